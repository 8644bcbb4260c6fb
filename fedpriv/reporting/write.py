"""From a report to the files of a run folder."""

from __future__ import annotations

import os
from pathlib import Path

from fedpriv.reporting.figures import write_figures
from fedpriv.reporting.markdown import to_markdown
from fedpriv.reporting.model import RunReport


def write_report(run_dir: str | os.PathLike[str], report: RunReport) -> list[Path]:
    """Write ``report.json``, ``report.md`` and ``figures/*.png`` into a run folder.

    Writing the same report again gives the same JSON and Markdown; each file is replaced as a whole, so that
    a crash never leaves half of one.

    Parameters
    ----------
    run_dir : path
        Created when missing.
    report : RunReport

    Returns
    -------
    list of Path
        The files, the report for people first.
    """
    folder = Path(run_dir)
    folder.mkdir(parents=True, exist_ok=True)
    figures = write_figures(folder / "figures", report)
    relative = {name: path.relative_to(folder).as_posix() for name, path in figures.items()}
    text, data = folder / "report.md", folder / "report.json"
    _replace(data, report.to_json())
    _replace(text, to_markdown(report, relative))
    return [text, data, *figures.values()]


def read_report(path: str | os.PathLike[str]) -> RunReport:
    """Read ``report.json`` back (or the one in a run folder).

    Raises
    ------
    FileNotFoundError
        There is none.
    pydantic.ValidationError
        It is not a report of this version.
    """
    path = Path(path)
    return RunReport.from_json((path / "report.json" if path.is_dir() else path).read_bytes())


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
