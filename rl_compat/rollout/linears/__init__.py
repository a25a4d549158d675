"""Linear layers for decoding."""
