"""GRPO in one call: eight responses to each sum, and advantages from their rewards.

python examples/grpo.py
"""

import rl_compat

run = rl_compat.train(
    "tiny",
    algorithm={"name": "grpo", "group_size": 8},
    reward="arithmetic",
    data={"train_files": "arithmetic", "max_prompt_length": 16, "max_response_length": 4},
    validation_data=[],
    optimizer={"actor_lr": 5e-4},
    trainer={"num_steps": 12, "batch_size": 16, "output_dir": "runs/grpo", "loggers": ["jsonl"]},
    callbacks=[lambda step, metrics: print(f"step {step:2d}  reward {metrics['critic/score/mean']:.2f}")],
)
print("saved to", run.save_pretrained("runs/grpo/model"))
