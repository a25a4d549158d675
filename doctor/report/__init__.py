"""A diagnosis as text, as JSON and in a bundle for bug reports."""
