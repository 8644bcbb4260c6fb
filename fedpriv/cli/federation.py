"""What a live federation looks like to its operator: which silos are online, which are awaited."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from fedpriv.cli.processes import _script

_SECONDS = 60.0


class FederationUnreachable(RuntimeError):
    """The SuperLink did not answer; the message holds Flower's own words and what to check."""


@dataclass(frozen=True)
class FederationState:
    """SuperNodes of a federation, by what the SuperLink says of them.

    Parameters
    ----------
    online, offline, registered : tuple of str
        Node ids: connected now; connected before; registered and never seen.
    """

    online: tuple[str, ...]
    offline: tuple[str, ...] = ()
    registered: tuple[str, ...] = ()

    def words(self, expected: int) -> str:
        """One line for people.

        Parameters
        ----------
        expected : int
            Silos that a run needs.
        """
        there, away = len(self.online), ""
        if self.offline or self.registered:
            parts = [f"{len(self.offline)} offline"] if self.offline else []
            parts += [f"{len(self.registered)} never connected"] if self.registered else []
            away = f" ({', '.join(parts)})"
        if there < expected:
            return f"waiting for {expected - there} of {expected} silos: {there} online{away}"
        if there > expected:
            return f"{there} silos are online, but num-clients = {expected}: a run would refuse to start"
        return f"ready: {there} of {expected} silos are online{away}"

    def to_json(self, expected: int) -> dict[str, object]:
        """The state as plain data."""
        return {
            "expected": expected,
            "online": list(self.online),
            "offline": list(self.offline),
            "registered": list(self.registered),
            "ready": len(self.online) == expected,
            "state": self.words(expected),
        }


def federation_state(superlink: str, environment: Mapping[str, str] | None = None) -> FederationState:
    """Ask a SuperLink for its SuperNodes, through ``flwr supernode ls``.

    Parameters
    ----------
    superlink : str
        Name of the connection in Flower's ``config.toml``.
    environment : mapping, optional
        Environment of the command; this process's own by default.

    Raises
    ------
    FederationUnreachable
        When there is no such connection or no answer.
    """
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    try:
        done = subprocess.run(
            [_script("flwr"), "supernode", "ls", superlink, "--format", "json"],
            env=dict(os.environ if environment is None else environment) | quiet,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise FederationUnreachable(
            f"SuperLink {superlink!r} did not answer within {_SECONDS:.0f} s"
        ) from None
    try:
        answer = json.loads(done.stdout)
        nodes = answer["nodes"]
    except (ValueError, KeyError, TypeError):
        words = _flower_words(done.stdout, done.stderr)
        raise FederationUnreachable(
            f"SuperLink {superlink!r} did not answer: {words}; check that it runs, and its address and certificate "
            "in Flower's config.toml"
        ) from None
    by_status: dict[str, list[str]] = {}
    for node in nodes:
        by_status.setdefault(str(node["status"]), []).append(str(node["node-id"]))
    return FederationState(
        *(tuple(by_status.get(status, ())) for status in ("online", "offline", "registered"))
    )


def _flower_words(out: str, err: str) -> str:
    """Flower's error message: JSON where it got that far, else its last line."""
    try:
        text = str(json.loads(out)["error-message"])
    except (ValueError, KeyError, TypeError):
        text = out + "\n" + err
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else "no output"
