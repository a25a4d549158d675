"""Training on responses that the policy generates."""
