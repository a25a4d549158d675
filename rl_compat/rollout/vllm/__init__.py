"""vLLM as a rollout engine in this process."""
