"""The compose files as data, and a schema of what they may hold (Compose specification, the part that we use)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy"
FILES: dict[str, dict[str, str]] = {
    "docker-compose.yml": {},
    "docker-compose.silo.yml": {"SUPERLINK": "fl.example.org:8000", "SILO_FILE": "records.csv"},
}


def load(name: str) -> dict[str, Any]:
    """A compose file with its variables put in, read by the same code that runs it on the loopback."""
    found: dict[str, Any] = loopback().load(ROOT / name, FILES[name])
    return found


def loopback() -> Any:
    """The module deploy/loopback.py."""
    import importlib.util
    import sys

    if "loopback" not in sys.modules:
        spec = importlib.util.spec_from_file_location("loopback", FOLDER / "loopback.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["loopback"] = module
        spec.loader.exec_module(module)
    return sys.modules["loopback"]


_DURATION = re.compile(r"(\d+(\.\d+)?(us|ms|s|m|h))+")
_PORT = re.compile(r"127\.0\.0\.1:\d{1,5}:\d{1,5}")
_VOLUME = re.compile(r"\./[\w./-]+:/[\w./-]+(:ro)?")
_IMAGE = re.compile(r"[\w./-]+:\d+\.\d+\.\d+")


def _words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)


def _matches(pattern: re.Pattern[str]) -> Any:
    return lambda value: isinstance(value, str) and pattern.fullmatch(value) is not None


def _all_match(pattern: re.Pattern[str]) -> Any:
    return lambda value: _words(value) and all(pattern.fullmatch(word) for word in value)


def _strings(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(v, str) for v in value.values())


_HEALTH = {
    "test": lambda v: _words(v) and v[0] in ("CMD", "CMD-SHELL"),
    "interval": _matches(_DURATION),
    "timeout": _matches(_DURATION),
    "start_period": _matches(_DURATION),
    "retries": lambda v: isinstance(v, int) and v > 0,
}
_BUILD = {
    "context": lambda v: isinstance(v, str),
    "dockerfile": lambda v: isinstance(v, str),
    "args": _strings,
}
_LOGGING = {"driver": lambda v: v == "json-file", "options": _strings}
_CONDITIONS = ("service_started", "service_healthy", "service_completed_successfully")


def _table(schema: dict[str, Any]) -> Any:
    return lambda value: (
        isinstance(value, dict) and all(k in schema and schema[k](v) for k, v in value.items())
    )


SERVICE: dict[str, Any] = {
    "image": _matches(_IMAGE),  # a version, never "latest"
    "build": _table(_BUILD),
    "entrypoint": _words,
    "command": _words,
    "environment": _strings,
    "user": lambda v: v in ("0", "49999"),
    "restart": lambda v: v in ("no", "always", "on-failure", "unless-stopped"),
    "init": lambda v: isinstance(v, bool),
    "stop_grace_period": _matches(_DURATION),
    "cap_drop": _words,
    "cap_add": _words,
    "security_opt": _words,
    "logging": _table(_LOGGING),
    "healthcheck": _table(_HEALTH),
    "ports": _all_match(_PORT),
    "volumes": _all_match(_VOLUME),
    "profiles": _words,
    "network_mode": lambda v: v in ("none", "bridge", "host"),
    "networks": lambda v: _words(v) or isinstance(v, dict),
    "secrets": lambda v: all(set(item) == {"source", "target"} for item in v),
    "depends_on": lambda v: _words(v) or all(set(c) == {"condition"} for c in v.values()),
}
FILE: dict[str, Any] = {
    "services": lambda v: isinstance(v, dict) and bool(v),
    "networks": lambda v: all(set(options or {}) <= {"internal"} for options in v.values()),
    "secrets": lambda v: all(
        set(options) == {"file"} and options["file"].startswith("./") for options in v.values()
    ),
}


def misfits(compose: dict[str, Any]) -> list[str]:
    """Everything in a compose file that does not fit the schema or names what is not there."""
    found = [
        f"{key}: not known or of a wrong form"
        for key, value in compose.items()
        if not key.startswith("x-") and not (key in FILE and FILE[key](value))
    ]
    for name, service in compose["services"].items():
        found += [
            f"{name}.{key} = {value!r}: not known or of a wrong form"
            for key, value in service.items()
            if not (key in SERVICE and SERVICE[key](value))
        ]
        if not {"image", "entrypoint"} <= set(service):
            found.append(f"{name}: without image or entrypoint")
        for other, how in _dependencies(service).items():
            if other not in compose["services"]:
                found.append(f"{name}.depends_on: there is no service {other}")
            elif how not in _CONDITIONS:
                found.append(f"{name}.depends_on: no condition {how}")
            elif how == "service_healthy" and "healthcheck" not in compose["services"][other]:
                found.append(f"{name}.depends_on: {other} has no health check")
        found += [f"{name}: no secret {s['source']}" for s in service.get("secrets", ())
                  if s["source"] not in compose["secrets"]]  # fmt: skip
        found += [
            f"{name}: no network {n}" for n in service.get("networks", ()) if n not in compose["networks"]
        ]
    return found


def _dependencies(service: dict[str, Any]) -> dict[str, str]:
    needed = service.get("depends_on", {})
    if isinstance(needed, list):
        return dict.fromkeys(needed, "service_started")
    return {name: options["condition"] for name, options in needed.items()}
