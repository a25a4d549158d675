"""DPO on pairs of a right and a random sum.

python examples/dpo.py
"""

import random

import rl_compat

random.seed(0)
sums = [(random.randrange(100), random.randrange(100)) for _ in range(512)]
pairs = [{"prompt": f"{a}+{b}=", "chosen": str(a + b), "rejected": str(random.randrange(200))} for a, b in sums]

run = rl_compat.train(
    "tiny",
    algorithm={"name": "dpo", "dpo.beta": 0.1},
    data={"train_files": pairs, "max_prompt_length": 16, "max_response_length": 4},
    validation_data=[],
    optimizer={"actor_lr": 1e-3},
    trainer={"num_steps": 16, "batch_size": 32, "output_dir": "runs/dpo", "loggers": ["jsonl"]},
    callbacks=[lambda step, metrics: print(f"step {step:2d}  loss {metrics['train/loss']:.3f}")],
)
print("saved to", run.save_pretrained("runs/dpo/model"))
