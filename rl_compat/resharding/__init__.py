"""Resharding: the transfer of weights from the trainer to the rollout engine."""
