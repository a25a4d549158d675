"""From rows to token ids."""
