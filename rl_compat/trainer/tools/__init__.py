"""Evaluation, export and data checks outside a run."""
