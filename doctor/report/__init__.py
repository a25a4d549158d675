"""A diagnosis as text, JSON and a bundle."""
