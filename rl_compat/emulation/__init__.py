"""Run on this device as if it were another card."""
