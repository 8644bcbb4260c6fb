"""Benchmarks: each is one command that prints a table and writes it to its ``results`` folder; see README.md."""
