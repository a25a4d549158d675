"""Advantages: from rewards to what each token is credited with."""
