"""What the hardware allows, with reasons."""
