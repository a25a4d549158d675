"""GRPO with a Python function as the reward, and a list of rows as the data.

python examples/custom_reward.py
"""

import rl_compat

rows = [{"prompt": f"{a}+{b}=", "ground_truth": str(a + b)} for a in range(10, 42) for b in range(10, 42, 4)]


def right_digits(solution_str: str, ground_truth: str) -> dict[str, float]:
    """`score` is what the model learns from; the other entries become metrics."""
    right = sum(given == wanted for given, wanted in zip(solution_str, ground_truth, strict=False))
    longest = max(len(solution_str), len(ground_truth))
    return {"score": right / longest, "acc": float(solution_str == ground_truth), "length": len(solution_str)}


def show(step: int, metrics: dict[str, float]) -> None:
    print(f"step {step:2d}  reward {metrics['critic/score/mean']:.2f}  length {metrics['reward/length']:.1f}")


rl_compat.train(
    "tiny",
    algorithm="grpo",
    reward=right_digits,
    data={"train_files": rows, "max_prompt_length": 16, "max_response_length": 4},
    validation_data=[],
    optimizer={"actor_lr": 5e-4},
    trainer={"num_steps": 12, "batch_size": 16, "output_dir": "runs/custom_reward", "loggers": ["jsonl"]},
    callbacks=[show],
)
