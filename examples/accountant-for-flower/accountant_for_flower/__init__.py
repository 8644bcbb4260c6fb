"""The accountant of fedpriv inside a DP strategy of Flower."""
