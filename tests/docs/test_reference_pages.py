"""docs/reference is what the docstrings say now: names, parameters and first lines."""

import inspect
import pkgutil
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "docs" / "autodoc").glob("*.md"))
_DIRECTIVE = re.compile(r"^\.\. auto(\w+):: (\S+)\n((?:   :.*\n)*)", re.MULTILINE)
_ANCHOR = re.compile(r'<a id="([\w.]+)"></a>\n\n(#+ .*\n)((?:(?!<a id=).*\n)*)')


def documented(source):
    """Return the dotted names that a page has to hold."""
    names = []
    for kind, name, options in _DIRECTIVE.findall(source):
        if kind == "module":
            left_out = re.search(r":exclude-members: (.*)", options)
            excluded = set(re.split(r",\s*", left_out.group(1))) if left_out else set()
            names += [f"{name}.{one}" for one in pkgutil.resolve_name(name).__all__ if one not in excluded]
        else:
            names.append(name)
            if kind == "class" and ":members:" in options:
                names += [f"{name}.{one}" for one in methods(pkgutil.resolve_name(name))]
    return names


def methods(cls):
    return [
        name
        for name, member in vars(cls).items()
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)) and member.__doc__
    ]


def words(text):
    return re.findall(r"[A-Za-z0-9_]+", text)


def stale(source, page):
    """Return what a page lacks of the names, parameters and first lines that its source asks for."""
    sections = {name: (heading, body) for name, heading, body in _ANCHOR.findall(page)}
    missing = []
    for name in documented(source):
        shown = found_as(name, sections)
        thing = pkgutil.resolve_name(name)
        if shown is None:
            missing.append(f"{name} is not on the page")
            continue
        heading, body = sections[shown]
        if inspect.isfunction(thing):
            missing += [f"{name}: no parameter {one}" for one in lacking(thing, headings(heading + body))]
        first = (inspect.getdoc(thing) or "").partition("\n")[0]
        if ":" not in first and " ".join(words(first)) not in " ".join(words(body)):
            missing.append(f"{name}: not its first line, {first!r}")
    return missing


def found_as(name, sections):
    """Return the page's name of ``name``: a class may be shown where it is defined, not where it is exported."""
    for length in (2, 1):
        for one in sections:
            if one.split(".")[-length:] == name.split(".")[-length:]:
                return one
    return None


def headings(section):
    """Return the signatures of a section: of overloads there are several."""
    return "\n".join(line for line in section.splitlines() if line.startswith("#"))


def lacking(function, heading):
    # Overloads spell out what the function itself takes as keywords.
    overloaded = len(heading.splitlines()) > 1
    names = [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if name != "self" and not (overloaded and parameter.kind is parameter.VAR_KEYWORD)
    ]
    return [name for name in names if name not in words(heading.replace("\\", ""))]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_page(source):
    page = ROOT / "docs" / "reference" / source.name
    assert page.exists(), "run `make reference`"
    found = stale(source.read_text(encoding="utf-8"), page.read_text(encoding="utf-8"))
    assert not found, f"run `make reference`: {found}"


def test_a_page_that_lags_behind_is_noticed():
    source = (ROOT / "docs" / "autodoc" / "annotation.md").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "reference" / "annotation.md").read_text(encoding="utf-8")
    assert stale(source, page.replace("configs: Mapping", ": Mapping")) == [
        "pytest_regional.region: no parameter configs"
    ]
    assert "not its first line" in stale(source, page.replace("Mark the", "Marks"))[0]
    assert stale(source, page.replace("<a id=", "")) == ["pytest_regional.region is not on the page"]
