"""Trackers of the metrics of a run: terminal, JSON lines, TensorBoard, W&B."""
