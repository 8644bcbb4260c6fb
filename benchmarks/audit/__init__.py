"""Empirical lower bounds beside the claims, for every strategy."""
