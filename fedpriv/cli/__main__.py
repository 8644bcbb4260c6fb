"""``python -m fedpriv.cli``."""

from fedpriv.cli import app

app()
