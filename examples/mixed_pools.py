"""Two kinds of cards in one session: an H100 trains and a P40 scores, both emulated on the CPU.

python examples/mixed_pools.py
"""

import random

from rl_compat import AlgorithmConfig, ExperienceSettings, ResourcePool, Session, make_experience

settings = ExperienceSettings(algorithm=AlgorithmConfig(name="ppo", kl_in_reward="k1"))
h100 = ResourcePool(emulate="h100-sxm", gpus=[])  # with the cards: ResourcePool(gpus=[0]) and ResourcePool(gpus=[1])
p40 = ResourcePool(emulate="p40", gpus=[])

with Session() as session:
    actor = session.actor("tiny", pool=h100, lr=5e-4, max_prompt_length=16, max_new_tokens=4)
    critic = session.critic("tiny", pool=h100, lr=5e-4)
    reference = session.reference("tiny", pool=p40)
    reward = session.reward("arithmetic")
    for role, placed in session.plan.roles.items():
        pool = session.plan.pools[placed.pool]
        print(f"{role:9} on {pool.emulated}: computes in {placed.compute_dtype}, attention {placed.attention}")

    random.seed(0)
    for step in range(1, 9):
        sums = [(random.randrange(100), random.randrange(100)) for _ in range(64)]
        prompts = actor.encode([f"{a}+{b}=" for a, b in sums], ground_truths=[str(a + b) for a, b in sums])
        sequences = actor.generate(prompts, seed=step).result()
        values, scores = critic.compute_values(sequences), reward.compute_rewards(sequences)
        old, ref = actor.compute_logprobs(sequences), reference.compute_logprobs(sequences)
        batch = sequences.batch.with_(values=values.result(), old_logprobs=old.result(), ref_logprobs=ref.result())
        experience = make_experience(batch, rewards=scores.result().rewards, settings=settings, kl_coef=0.01)
        critic.update(experience.batch).result()
        actor.update(experience.batch).result()
        print(f"step {step:2d}  reward {float(experience.batch.rewards.mean()):.2f}  kl {experience.reward_kl:.3f}")
