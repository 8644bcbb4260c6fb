"""Which source a run was made from."""

from __future__ import annotations

import subprocess
from pathlib import Path

#: Environment variable by which the commit of a submitted folder reaches the ServerApp.
COMMIT_VARIABLE = "FEDPRIV_COMMIT"


def commit_of(folder: Path) -> str:
    """Commit of a git checkout, with ``-dirty`` when it has changes; empty outside a checkout."""
    if not (folder / ".git").exists():
        return ""
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
