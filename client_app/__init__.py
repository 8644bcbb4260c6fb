"""The ClientApp of fedpriv."""
