"""A reward model learns from pairs which sum is right, then PPO learns from the reward model.

python examples/reward_model_then_ppo.py
"""

import random

import rl_compat

random.seed(0)
sums = [(random.randrange(100), random.randrange(100)) for _ in range(1024)]
pairs = [{"prompt": f"{a}+{b}=", "chosen": str(a + b), "rejected": str(random.randrange(200))} for a, b in sums]
lengths = {"max_prompt_length": 16, "max_response_length": 4}

judge = rl_compat.train(
    "tiny",
    algorithm="reward_model",
    data={"train_files": pairs, **lengths},
    validation_data=[],
    optimizer={"actor_lr": 1e-3},
    trainer={"num_steps": 20, "batch_size": 32, "output_dir": "runs/judge", "loggers": ["jsonl"]},
    callbacks=[lambda step, metrics: print(f"judge step {step:2d}  loss {metrics['train/loss']:.3f}")],
)
folder = judge.save_pretrained("runs/judge/model")

rl_compat.train(
    "tiny",
    algorithm="ppo",
    reward={"model": str(folder), "functions": []},
    data={"train_files": "arithmetic", **lengths},
    validation_data=[],
    optimizer={"actor_lr": 5e-4, "critic_lr": 5e-4},
    trainer={"num_steps": 8, "batch_size": 64, "output_dir": "runs/judged_ppo", "loggers": ["jsonl"]},
    callbacks=[lambda step, metrics: print(f"ppo step {step:2d}  reward {metrics['critic/score/mean']:.2f}")],
)
