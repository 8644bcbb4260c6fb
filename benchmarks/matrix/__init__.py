"""Correlated noise under random allocation: noise, error and accuracy at equal epsilon, and what it costs to draw."""
