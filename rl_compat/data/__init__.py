"""Rows, prompts and chat templates."""
