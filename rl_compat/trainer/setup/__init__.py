"""From settings to a run that can start."""
