"""The documented table of run-config keys, made from the settings models."""

from __future__ import annotations

import typing
from typing import Any

from pydantic.fields import FieldInfo

from fedpriv.settings.resolve import TABLES, _toml_value


def _allowed(field: FieldInfo) -> str:
    if typing.get_origin(field.annotation) is typing.Literal:
        return ", ".join(f"`{value}`" for value in typing.get_args(field.annotation))
    names: dict[Any, str] = {int: "integer", float: "number", bool: "true, false", str: "text"}
    name = names[field.annotation]
    bounds = []
    for item in field.metadata:
        for sign, attribute in (("≥", "ge"), (">", "gt"), ("≤", "le"), ("<", "lt")):
            if (bound := getattr(item, attribute, None)) is not None:
                bounds.append(f"{sign} {bound:g}")
    return " ".join([name, *bounds])


def settings_table() -> str:
    """Return the Markdown table of all keys: key, default, allowed values, meaning."""
    lines: list[str] = []
    for table in TABLES:
        lines += [f"## {table.title}", "", "| key | default | allowed | meaning |", "|---|---|---|---|"]
        for key, field in table.keys().items():
            info = table.model_fields[field]
            default = _toml_value(info.default).replace("|", "\\|")
            lines.append(f"| `{key}` | `{default}` | {_allowed(info)} | {info.description} |")
        lines.append("")
    return "\n".join(lines)
