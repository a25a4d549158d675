"""Supervised training on right sums, then PPO from the model that it gives.

python examples/sft_then_ppo.py
"""

import random

import rl_compat

random.seed(0)
sums = [(random.randrange(100), random.randrange(100)) for _ in range(512)]
lengths = {"max_prompt_length": 16, "max_response_length": 4}

supervised = rl_compat.train(
    "tiny",
    algorithm="sft",
    data={"train_files": [{"prompt": f"{a}+{b}=", "response": str(a + b)} for a, b in sums], **lengths},
    validation_data=[],
    optimizer={"actor_lr": 1e-3},
    trainer={"num_steps": 12, "batch_size": 32, "output_dir": "runs/sft", "loggers": ["jsonl"]},
    callbacks=[lambda step, metrics: print(f"sft step {step:2d}  loss {metrics['train/loss']:.3f}")],
)
folder = supervised.save_pretrained("runs/sft/model")

rl_compat.train(
    str(folder),
    algorithm="ppo",
    reward="arithmetic",
    data={"train_files": "arithmetic", **lengths},
    validation_data=[],
    optimizer={"actor_lr": 5e-4, "critic_lr": 5e-4},
    trainer={"num_steps": 8, "batch_size": 64, "output_dir": "runs/sft_ppo", "loggers": ["jsonl"]},
    callbacks=[lambda step, metrics: print(f"ppo step {step:2d}  reward {metrics['critic/score/mean']:.2f}")],
)
