"""The default app over several seeds, against non-private training and against a random candidate."""
