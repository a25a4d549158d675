"""Benchmarks of the rollout engines."""
