"""GRPO on one pool of several devices: the same run as grpo.py, with the same numbers.

python examples/grpo_pool.py
"""

import torch

import rl_compat

num_gpus = torch.cuda.device_count()
pool = rl_compat.ResourcePool(gpus=range(num_gpus)) if num_gpus else rl_compat.ResourcePool(gpus=[], num_processes=2)

run = rl_compat.train(
    "tiny",
    algorithm={"name": "grpo", "group_size": 8},
    reward="arithmetic",
    data={"train_files": "arithmetic", "max_prompt_length": 16, "max_response_length": 4},
    validation_data=[],
    optimizer={"actor_lr": 5e-4},
    trainer={"num_steps": 12, "batch_size": 16, "output_dir": "runs/grpo_pool", "loggers": ["jsonl"]},
    pool=pool,
    callbacks=[lambda step, metrics: print(f"step {step:2d}  reward {metrics['critic/score/mean']:.2f}")],
)
print("saved to", run.save_pretrained("runs/grpo_pool/model"))
