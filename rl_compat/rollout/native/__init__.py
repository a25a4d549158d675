"""The project's own rollout engine."""
