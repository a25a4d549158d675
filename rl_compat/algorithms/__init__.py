"""The mathematics of reinforcement learning on tokens: pure functions of tensors."""
