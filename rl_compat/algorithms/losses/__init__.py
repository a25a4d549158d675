"""Losses of policies, critics and preferences as tensor functions."""
