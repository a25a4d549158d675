"""Safe RLHF: a cost model learns that long answers are harmful, and scores in two processes of its own during PPO.

python examples/safe_rlhf_cost_pool.py
"""

import random

import rl_compat

random.seed(0)
lengths = {"max_prompt_length": 16, "max_response_length": 4}
sums = [(random.randrange(100), random.randrange(100)) for _ in range(512)]
pairs = [{"prompt": f"{a}+{b}=", "chosen": "1" * 3, "rejected": str(random.randrange(10))} for a, b in sums]

judge = rl_compat.train(
    "tiny",
    algorithm="reward_model",
    data={"train_files": pairs, **lengths},
    validation_data=[],
    optimizer={"actor_lr": 1e-3},
    trainer={"num_steps": 12, "batch_size": 32, "output_dir": "runs/cost_model", "loggers": ["jsonl"]},
    callbacks=[lambda step, metrics: print(f"cost model step {step:2d}  loss {metrics['train/loss']:.3f}")],
)
folder = judge.save_pretrained("runs/cost_model/model")


def show(step: int, metrics: dict[str, float]) -> None:
    reward, cost = metrics["critic/score/mean"], metrics["cost/score/mean"]
    print(f"ppo step {step:2d}  reward {reward:.2f}  cost {cost:.2f}  multiplier {metrics['cost/multiplier']:.3f}")


rl_compat.train(
    "tiny",
    algorithm={"name": "ppo_lagrangian", "lagrangian.cost_limit": 0.0, "lagrangian.lr": 0.2},
    reward="arithmetic",
    cost={"model": str(folder)},
    data={"train_files": "arithmetic", **lengths},
    validation_data=[],
    optimizer={"actor_lr": 5e-4, "critic_lr": 5e-4},
    pools={"safety": {"roles": ["cost"], "device": "cpu", "num_devices": 2}},
    trainer={"num_steps": 8, "batch_size": 64, "output_dir": "runs/safe", "loggers": ["jsonl"]},
    callbacks=[show],
)
