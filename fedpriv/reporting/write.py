"""From a report to the files of a run folder."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from fedpriv.reporting.figures import write_figures
from fedpriv.reporting.html import to_html
from fedpriv.reporting.markdown import to_markdown
from fedpriv.reporting.model import RunReport

_PNG = b"\x89PNG\r\n\x1a\n"


def write_report(run_dir: str | os.PathLike[str], report: RunReport) -> list[Path]:
    """Write ``report.html``, ``report.md``, ``report.json`` and ``figures/*.png`` into a run folder.

    Writing the same report again gives the same text in each; each file is replaced as a whole, so that a
    crash never leaves half of one.

    Parameters
    ----------
    run_dir : path
        Created when missing.
    report : RunReport

    Returns
    -------
    list of Path
        The files, those for people first.
    """
    folder = Path(run_dir)
    folder.mkdir(parents=True, exist_ok=True)
    figures = write_figures(folder / "figures", report)
    relative = {name: path.relative_to(folder).as_posix() for name, path in figures.items()}
    text, page, data = folder / "report.md", folder / "report.html", folder / "report.json"
    markdown = to_markdown(report, relative)
    _replace(data, report.to_json())
    _replace(text, markdown)
    shown = [*relative.values(), *([report.partition_figure] if report.partition_figure else [])]
    _replace(page, to_html(markdown, _pictures(folder, shown), report.title))
    return [text, page, data, *figures.values()]


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


def _pictures(folder: Path, names: Iterable[str]) -> dict[str, bytes]:
    """Those of the named files that are pictures and lie in the folder."""
    found = {}
    for name in names:
        path = (folder / name).resolve()
        if path.is_relative_to(folder.resolve()) and path.is_file():
            data = path.read_bytes()
            if data.startswith(_PNG):
                found[name] = data
    return found


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
