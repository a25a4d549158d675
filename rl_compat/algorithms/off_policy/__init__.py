"""Off-policy correction: importance weights, rejection and metrics."""
