"""Who may import whom, what stays cheap to import, and that pyproject.toml holds the settings' defaults."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fedpriv.settings.resolve import default_run_config

ROOT = Path(__file__).resolve().parents[1]

#: Part of the package -> parts that it may import. Lower parts know nothing of higher ones.
ALLOWED: dict[str, set[str]] = {
    "accounting": set(),
    "wire": set(),
    "settings": set(),
    "mechanisms": {"accounting"},
    "ledger": {"accounting"},
    "plans": {"accounting", "mechanisms"},
    "secure_sum": {"wire"},
    "testing": {"wire"},
    "reporting": {"accounting"},
    "tasks": {"accounting", "mechanisms", "settings"},
    "clients": {"accounting", "ledger", "mechanisms", "secure_sum", "wire"},
    "strategies": {"accounting", "ledger", "mechanisms", "plans", "secure_sum", "wire"},
}
ALLOWED["audit"] = set(ALLOWED) | {"testing"}
ALLOWED["stages"] = {part for part in ALLOWED if part not in ("audit", "testing", "clients")}
ALLOWED["cli"] = set(ALLOWED)
ALLOWED["__init__"] = set()

PACKAGE = sorted((ROOT / "fedpriv").rglob("*.py"))


def part_of(path: Path) -> str:
    relative = path.relative_to(ROOT / "fedpriv")
    return relative.parts[0].removesuffix(".py")


def imported_parts(path: Path) -> set[str]:
    """Parts of fedpriv that a file imports anywhere, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "fedpriv" else [module]
        else:
            continue
        for name in names:
            first, _, rest = name.partition(".")
            if first == "fedpriv" and rest:
                part = rest.split(".")[0]
                if not part.startswith("__"):  # fedpriv.__version__ is everyone's
                    found.add(part)
    return found


@pytest.mark.parametrize("path", PACKAGE, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_import_direction(path: Path) -> None:
    part = part_of(path)
    assert part in ALLOWED, f"{part} is not in the table of parts: say what it may import"
    wrong = imported_parts(path) - ALLOWED[part] - {part}
    assert not wrong, f"{part} must not import {', '.join(sorted(wrong))}"


def test_the_direction_has_no_cycle() -> None:
    def below(part: str, seen: tuple[str, ...] = ()) -> None:
        assert part not in seen, f"cycle: {' -> '.join((*seen, part))}"
        for lower in ALLOWED[part] - {part} if part not in ("cli", "audit") else ():
            below(lower, (*seen, part))

    for part in ALLOWED:
        below(part)


def test_the_apps_hold_no_algorithm_and_import_only_public_parts() -> None:
    assert imported_parts(ROOT / "server_app" / "app.py") == {"stages"}
    assert imported_parts(ROOT / "client_app" / "app.py") <= {"clients", "settings", "tasks"}


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        ("import fedpriv.accounting", ("torch", "flwr", "pandas", "dp_accounting", "scipy")),
        ("import fedpriv.secure_sum.client", ("torch", "pandas", "dp_accounting", "scipy", "sklearn")),
        ("import fedpriv.clients", ("torch", "pandas", "dp_accounting", "mpmath", "pydantic", "scipy")),
        ("import client_app.app", ("torch", "pandas", "dp_accounting", "scipy", "fedpriv.tasks")),
        ("import server_app.app", ("torch", "pandas", "dp_accounting", "sklearn", "fedpriv.stages")),
        ("import fedpriv.cli", ("torch", "flwr", "pandas", "matplotlib", "dp_accounting")),
        ("import fedpriv.settings", ("torch", "flwr", "numpy", "dp_accounting")),
    ],
)
def test_imports_stay_cheap(statement: str, unwanted: tuple[str, ...]) -> None:
    code = f"{statement}\nimport sys\nprint([name for name in {unwanted!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"


def test_run_config_of_the_app_is_the_settings_defaults() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    stored: dict[str, object] = {}
    for key, value in project["tool"]["flwr"]["app"]["config"].items():
        stored |= {f"{key}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {key: value}
    defaults = default_run_config()
    assert list(stored) == list(defaults)
    for key, value in defaults.items():
        assert (stored[key], type(stored[key])) == (value, type(value)), key
