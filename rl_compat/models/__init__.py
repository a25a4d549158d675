"""Find, convert and load models and tokenizers."""
