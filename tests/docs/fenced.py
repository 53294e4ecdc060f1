"""Fenced blocks of the documentation, and the directives that say how each is checked.

A directive is an HTML comment on the line before the fence, so that it does not show in the rendered page::

    <!-- run: --regional-backend=aot_eager; outcome: passed=2 -->
    ```python title="test_x.py"

A block with a title is a file; with ``run`` it is run by pytest with those options and must have that outcome. A Python
block without a title is a script. A console block with ``run`` is executed, after ``replace: A => B`` edited the files,
and its output compared; without ``run`` its commands and options must exist. What Sphinx makes itself (`{include}` and
the like) is checked by building the site. A block with ``slow: FILE::NAME`` runs at night;
the test NAME runs on each push and notices the same faults.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = (
    ROOT / "README.md",
    *sorted(DOCS.glob("*.md")),
    *sorted(DOCS.glob("reference/*.md")),
    *sorted(DOCS.glob("examples/*/README.md")),
    *sorted(DOCS.glob("skills/*/SKILL.md")),
)
LANGUAGES = ("python", "console", "toml", "ini", "yaml", "text")

_FENCE = re.compile(r"^( *)(`{3,})(.*)$")
_COMMENT = re.compile(r"^\s*<!-- (.*) -->\s*$")
_TITLE = re.compile(r'title="([^"]+)"')


class DocsError(AssertionError):
    """A page that cannot be checked as written; the message names page and line."""


@dataclass(frozen=True)
class Block:
    """One fenced block: where it stands, its language, its title, its directives and its text."""

    page: str
    line: int
    language: str
    title: str | None
    directives: dict[str, str] = field(hash=False)
    text: str = field(repr=False)

    @property
    def where(self) -> str:
        """Return page and line, as test ids and messages show them."""
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """Return the commands of a console block."""
        return [line[2:] for line in self.text.splitlines() if line.startswith("$ ")]

    @property
    def output(self) -> list[str]:
        """Return the output that a console block shows, without the lines that stand for anything."""
        shown = [line.rstrip() for line in self.text.splitlines() if not line.startswith("$ ")]
        return [line for line in shown if line.strip() not in ("", "...")]


def blocks_of(page: Path, name: str | None = None) -> list[Block]:
    """Return the blocks of a Markdown file in order.

    Raises:
        DocsError: a fence that is never closed, a language nobody checks, or a directive that is not understood.
    """
    lines, name = page.read_text().splitlines(), name or page.name
    blocks, number = [], 0
    while number < len(lines):
        fence = _FENCE.match(lines[number])
        if fence is None:
            number += 1
            continue
        end = _closing(lines, number, fence, name)
        if fence[3].startswith("{"):
            number = end + 1
            continue
        comment = _COMMENT.match(lines[number - 1]) if number else None
        blocks.append(_block(name, number + 1, fence, comment, lines[number + 1 : end]))
        number = end + 1
    return blocks


def _closing(lines: list[str], start: int, fence: re.Match[str], name: str) -> int:
    for number in range(start + 1, len(lines)):
        if lines[number].strip() == fence[2]:
            return number
    raise DocsError(f"{name}:{start + 1}: this fence is never closed")


def _block(name: str, line: int, fence: re.Match[str], comment: re.Match[str] | None, body: list[str]) -> Block:
    language, _, rest = fence[3].strip().partition(" ")
    if language not in LANGUAGES:
        raise DocsError(f"{name}:{line}: language {language!r} is not checked; use one of {', '.join(LANGUAGES)}")
    title = _TITLE.search(rest)
    text = "".join(text_line.removeprefix(fence[1]) + "\n" for text_line in body)
    directives = _directives(comment[1], f"{name}:{line}") if comment else {}
    return Block(name, line, language, title[1] if title else None, directives, text)


def _directives(comment: str, where: str) -> dict[str, str]:
    directives = {}
    for part in comment.split("; "):
        key, _, value = part.partition(":")
        if key not in ("run", "outcome", "replace", "slow"):
            raise DocsError(f"{where}: directive {key!r} is not understood")
        directives[key] = value.strip()
    return directives


def all_blocks() -> list[Block]:
    """Return the blocks of every page."""
    return [block for page in PAGES for block in blocks_of(page, name_of(page))]


def name_of(page: Path) -> str:
    """Return what ids and messages call a page: its path below ``docs``."""
    return str(page.relative_to(DOCS)) if page.is_relative_to(DOCS) else page.name


def table(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the first table below ``heading`` without its two header rows; back-quotes are removed.

    Raises:
        DocsError: no such heading, or no table before the next one.
    """
    lines = (ROOT / page).read_text().splitlines()
    titles = [line.lstrip("# ") if line.startswith("#") else None for line in lines]
    if heading not in titles:
        raise DocsError(f"{page} has no heading {heading!r}")
    rows = []
    for line in lines[titles.index(heading) + 1 :]:
        if line.startswith("#") or (rows and not line.startswith("|")):
            break
        if line.startswith("|"):
            rows.append([cell.strip().replace("`", "") for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    if len(rows) < 3:
        raise DocsError(f"{page}: no table below {heading!r}")
    return rows[2:]
