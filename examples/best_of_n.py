"""Best of n without training: sixteen responses to each sum, and the reward picks one.

python examples/best_of_n.py
"""

import random

from rl_compat import Session

GROUP_SIZE = 16

random.seed(0)
sums = [(random.randrange(100), random.randrange(100)) for _ in range(64)]

with Session() as session:
    actor = session.actor("tiny", max_prompt_length=16, max_new_tokens=4)
    reward = session.reward("arithmetic")
    prompts = actor.encode([f"{a}+{b}=" for a, b in sums], ground_truths=[str(a + b) for a, b in sums])
    sequences = actor.generate(prompts, group_size=GROUP_SIZE, seed=1).result()
    rewards = reward.compute_rewards(sequences).result().rewards

groups = [range(first, first + GROUP_SIZE) for first in range(0, len(sequences), GROUP_SIZE)]
best = [max(group, key=rewards.__getitem__) for group in groups]
for (a, b), row in list(zip(sums, best, strict=True))[:5]:
    print(f"{a}+{b}={sequences.texts[row]}  reward {rewards[row]:.0f}")
print(f"mean of all {sum(rewards) / len(rewards):.2f}")
print(f"mean of the best {sum(rewards[row] for row in best) / len(best):.2f}")
