"""Shapes of models."""
