"""PPO on two pools: the critic and the reference compute their values while the actor computes its own.

python examples/ppo_two_pools.py
"""

import random

import torch

from rl_compat import AlgorithmConfig, ExperienceSettings, ResourcePool, Session, make_experience

settings = ExperienceSettings(algorithm=AlgorithmConfig(name="ppo", gae_lambda=0.95, kl_in_reward="k1"))
num_gpus = torch.cuda.device_count()
if num_gpus > 1:
    train = ResourcePool(gpus=range(num_gpus - 1))
    score = ResourcePool(gpus=[num_gpus - 1])
else:
    train = ResourcePool(gpus=[], num_processes=2)
    score = ResourcePool(gpus=[])

with Session() as session:
    actor = session.actor("tiny", pool=train, lr=5e-4, max_prompt_length=16, max_new_tokens=4)
    critic = session.critic("tiny", pool=score, lr=5e-4)
    reference = session.reference("tiny", pool=score)
    reward = session.reward("arithmetic")

    random.seed(0)
    for step in range(1, 13):
        sums = [(random.randrange(100), random.randrange(100)) for _ in range(64)]
        prompts = actor.encode([f"{a}+{b}=" for a, b in sums], ground_truths=[str(a + b) for a, b in sums])
        sequences = actor.generate(prompts, seed=step).result()
        old, scores = actor.compute_logprobs(sequences), reward.compute_rewards(sequences)
        values, ref = critic.compute_values(sequences), reference.compute_logprobs(sequences)
        batch = sequences.batch.with_(values=values.result(), old_logprobs=old.result(), ref_logprobs=ref.result())
        experience = make_experience(batch, rewards=scores.result().rewards, settings=settings, kl_coef=0.01)
        both = critic.update(experience.batch), actor.update(experience.batch)
        loss, clipped = both[0].result()["critic/vf_loss"], both[1].result()["actor/pg_clipfrac"]
        score_mean = float(experience.batch.rewards.mean())
        print(f"step {step:2d}  reward {score_mean:.2f}  value loss {loss:.3f}  clipped {clipped:.3f}")
