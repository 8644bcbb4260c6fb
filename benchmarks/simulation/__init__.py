"""Speed and memory of a simulated round, against plain Flower and against pfl-research."""
