"""PPO with a critic, a reference and a KL penalty, on the built-in tiny model and additions it gets wrong at first.

python examples/ppo.py
"""

import random

from rl_compat import AlgorithmConfig, ExperienceSettings, Session, make_experience

settings = ExperienceSettings(algorithm=AlgorithmConfig(name="ppo", gae_lambda=0.95, kl_in_reward="k1"))

with Session() as session:
    actor = session.actor("tiny", lr=5e-4, max_prompt_length=16, max_new_tokens=4)
    critic = session.critic("tiny", lr=5e-4)
    reference = session.reference("tiny")
    reward = session.reward("arithmetic")

    random.seed(0)
    for step in range(1, 21):
        sums = [(random.randrange(100), random.randrange(100)) for _ in range(64)]
        prompts = actor.encode([f"{a}+{b}=" for a, b in sums], ground_truths=[str(a + b) for a, b in sums])
        sequences = actor.generate(prompts, seed=step).result()
        values, scores = critic.compute_values(sequences), reward.compute_rewards(sequences)
        old, ref = actor.compute_logprobs(sequences), reference.compute_logprobs(sequences)
        batch = sequences.batch.with_(values=values.result(), old_logprobs=old.result(), ref_logprobs=ref.result())
        experience = make_experience(batch, rewards=scores.result().rewards, settings=settings, kl_coef=0.01)
        critic.update(experience.batch).result()
        metrics = actor.update(experience.batch).result()
        score, clipped = float(experience.batch.rewards.mean()), metrics["actor/pg_clipfrac"]
        print(f"step {step:2d}  reward {score:.2f}  kl {experience.reward_kl:.3f}  clipped {clipped:.3f}")
