"""A report as a file: JSON for machines, HTML for people, by the name's ending."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pytest_regional.report.document import RunReport


def _write_html(report: RunReport, path: Path) -> None:
    from pytest_regional.report import page

    page.write(report, path)


_WRITERS: dict[str, Callable[[RunReport, Path], None]] = {".json": RunReport.write, ".html": _write_html}

#: Endings of names that a report can have.
ENDINGS = tuple(_WRITERS)


def write_report(report: RunReport, path: Path) -> None:
    """Write ``report`` to ``path``, whose folder is made and whose ending is one of :data:`ENDINGS`."""
    _WRITERS[path.suffix](report, path)


def wrong_name(path: Path) -> str:
    """Return what is wrong with the name of a report; nothing where all is well."""
    return "" if path.suffix in ENDINGS else f"expected a name that ends in {' or '.join(ENDINGS)}"


__all__ = ["ENDINGS", "write_report", "wrong_name"]
