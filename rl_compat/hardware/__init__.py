"""What this machine is: facts, each with its source."""
