"""The ServerApp of fedpriv."""
