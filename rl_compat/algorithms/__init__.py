"""Algorithms as pure functions of tensors: advantages, losses, KL, off-policy correction."""
