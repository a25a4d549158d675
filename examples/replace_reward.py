"""A reward is replaced in mid-run: the first reward model judges the first steps, a second one the others.

python examples/replace_reward.py
"""

import random

import rl_compat
from rl_compat import AlgorithmConfig, ExperienceSettings, ResourcePool, Session, make_experience

random.seed(0)
lengths = {"max_prompt_length": 16, "max_response_length": 4}
sums = [(random.randrange(100), random.randrange(100)) for _ in range(512)]


def judge(name: str, chosen: list[str], rejected: list[str]) -> str:
    """The folder of a reward model that has learned from pairs."""
    answers = zip(sums, chosen, rejected, strict=True)
    run = rl_compat.train(
        "tiny",
        algorithm="reward_model",
        data={
            "train_files": [{"prompt": f"{a}+{b}=", "chosen": c, "rejected": r} for (a, b), c, r in answers],
            **lengths,
        },
        validation_data=[],
        optimizer={"actor_lr": 1e-3},
        trainer={"num_steps": 12, "batch_size": 32, "output_dir": f"runs/{name}", "loggers": ["jsonl"]},
    )
    return str(run.save_pretrained(f"runs/{name}/model"))


right = [str(a + b) for a, b in sums]
wrong = [str(random.randrange(200)) for _ in sums]
short = judge("short", [str(random.randrange(10)) for _ in sums], wrong)
correct = judge("correct", right, wrong)

settings = ExperienceSettings(algorithm=AlgorithmConfig(name="grpo", group_size=8))
with Session() as session:
    actor = session.actor("tiny", lr=5e-4, algorithm="grpo", max_prompt_length=16, max_new_tokens=4)
    reward = session.reward(short, pool=ResourcePool(gpus=[]))
    for step in range(1, 13):
        if step == 7:
            reward.replace(model=correct)
        asked = [(random.randrange(100), random.randrange(100)) for _ in range(16)]
        sequences = actor.generate([f"{a}+{b}=" for a, b in asked], group_size=8, seed=step).result()
        scores, old = reward.compute_rewards(sequences), actor.compute_logprobs(sequences)
        batch = sequences.batch.with_(old_logprobs=old.result())
        experience = make_experience(batch, rewards=scores.result().rewards, settings=settings)
        actor.update(experience.batch).result()
        judged = "correct" if step >= 7 else "short"
        length = float(sequences.batch.response_mask.sum() / len(sequences))
        print(f"{judged} step {step:2d}  reward {float(experience.batch.rewards.mean()):.2f}  length {length:.2f}")
