"""How Sphinx makes the site of these pages (``make docs``, a warning is an error) and docs/reference.

Pages are Markdown that reads well where Sphinx is not, so what is written for that is translated here: the file name of
a code block, links to files that are no pages, and the comments that say how a block is tested. Pages of docs/reference
are made from docstrings by ``make reference``; Sphinx reads those of docs/autodoc in their place.
"""

from __future__ import annotations

import re
import shutil
from importlib import metadata
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

project = "pytest-regional"
author = "The authors of pytest-regional"
release = version = metadata.version("pytest-regional")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["autodoc", "findings/reports/*-*"]
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_preserve_defaults = True
# One name of one thing: a dataclass's fields stand among its members.
napoleon_use_ivar = True

# For `make reference`: links from page to page lead to the name.
markdown_anchor_signatures = True

html_theme = "furo"
html_title = "pytest-regional"
html_theme_options = {"navigation_with_keys": True}

_TITLED = re.compile(r'^```(\w+) title="([^"]+)"$', re.MULTILINE)
_DIRECTIVE = re.compile(r"^<!-- run.* -->\n", re.MULTILINE)
# Files that are no page: the site does not have them, so the words of the link are left.
_ELSEWHERE = re.compile(r"\[([^]]+)\]\((?:\.\./(?:tests|pytest_regional|suites)/|CHANGELOG)[^)]*\)")


def _translated(text: str) -> str:
    text = _TITLED.sub(r"```{code-block} \1\n:caption: \2", _DIRECTIVE.sub("", text))
    return _ELSEWHERE.sub(r"\1", text)


def _page(app: Sphinx, name: str, source: list[str]) -> None:
    if name.startswith("reference/"):
        source[0] = (Path(app.srcdir) / "autodoc" / Path(name).name).with_suffix(".md").read_text(encoding="utf-8")
        return
    source[0] = _translated(source[0])
    if "/" not in name:
        # The repository's README is the site's first page.
        source[0] = source[0].replace("](../README.md", "](index.md")


def _included(_app: Sphinx, _path: Path, _name: str, content: list[str]) -> None:
    content[0] = _translated(content[0])


def _for_agents(app: Sphinx, error: Exception | None) -> None:
    """Publish ``llms.txt`` with the pages that it names, as Markdown next to their HTML."""
    if error is not None or app.builder.format != "html":
        return
    source, target = Path(app.srcdir), Path(app.outdir)
    text = (source / "llms.txt").read_text(encoding="utf-8")
    for name in ["llms.txt", *re.findall(r"\]\(([^)]+)\)", text)]:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, target / name)


def _without_abbreviations(app: Sphinx, tree: nodes.document, _name: str) -> None:
    """Write the star before keyword-only parameters as text: the Markdown builder (0.6) drops it otherwise."""
    if app.builder.name == "markdown":
        for node in list(tree.findall(nodes.abbreviation)):
            node.replace_self(nodes.Text(node.astext()))


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect what is above."""
    app.connect("source-read", _page)
    app.connect("include-read", _included)
    app.connect("doctree-resolved", _without_abbreviations)
    app.connect("build-finished", _for_agents)
    return {"parallel_read_safe": True}
