"""Rollout engines, which generate responses."""
