"""Weights on their way from the engine that trains to the engine that generates."""
