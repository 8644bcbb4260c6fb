"""DP-HYPE against the best candidate, a random candidate and a vote without noise."""
