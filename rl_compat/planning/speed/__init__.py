"""Speed of the rollout engines."""
