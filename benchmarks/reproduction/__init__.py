"""Claims of the five papers, each with our figure and a verdict: ``python -m benchmarks.reproduction``."""
