"""Where the metrics of a run go: the terminal, JSON lines, TensorBoard, W&B."""
