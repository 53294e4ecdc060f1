"""Pages and source files use plain words: the field's terms, and no phrases that a reader has to decode."""

from __future__ import annotations

import ast
import io
import re
import tokenize

from fenced import DOCS, ROOT, name_of

PAGES = (
    ROOT / "README.md",
    *sorted(DOCS.glob("*.md")),
    *sorted(DOCS.glob("examples/*/README.md")),
    *sorted(DOCS.glob("skills/*/SKILL.md")),
)

#: Parts of the package whose docstrings, comments and messages use plain words.
PLAIN = ("_torch", "reference", "harness/codegen", "harness/isolation", "harness/kernel_store")
SOURCES = [path for part in PLAIN for path in sorted((ROOT / "pytest_regional" / part).rglob("*.py"))]

#: A word, as a pattern, and what to write instead.
INSTEAD = {
    r"nobody": "passive voice, or 'no one'",
    r"anew": "again",
    r"beside": "next to",
    r"but for": "except",
    r"folders?": "directory",
    r"(is|are|was|were) told": "is reported",
    r"mend(s|ed)?": "fix",
    r"read over": "ignored",
    r"judge[sd]?": "check",
    r"lanes?": "mode",
    r"laws?": "oracle",
    r"seams?": "patch point",
    r"what of": "name the thing",
    r"all the same": "still",
    r"of (its|their|your) own": "'its own ...' before the noun, or 'separate'",
}

_NOT_PROSE = re.compile(
    r"<!-- [\w: ]*begins? -->.*?<!-- [\w: ]*ends? -->"  # written by tools
    r"|^( *)(`{3,}).*?^\1\2$"  # fenced
    r"|``[^`]*``|`[^`\n]*`"
    r"|^ +\w+: (?=[a-z])"  # the name of a parameter
    r"|\]\([^)]*\)",
    re.DOTALL | re.MULTILINE,
)
_ALLOWED = ("A backend of your own",)  # a heading that other pages link to


def found_in(text: str) -> list[str]:
    prose = _NOT_PROSE.sub(" ", text)
    for phrase in _ALLOWED:
        prose = prose.replace(phrase, "")
    return [
        f"{found[0]!r}: write {instead}"
        for word, instead in INSTEAD.items()
        for found in re.finditer(rf"\b{word}\b", prose, re.IGNORECASE)
    ]


def test_pages_use_plain_words():
    assert {name_of(page): found for page in PAGES if (found := found_in(page.read_text(encoding="utf-8")))} == {}


def prose_of(source: str) -> str:
    """Return the docstrings, comments and messages of a module."""
    texts = [
        node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.count(" ") > 1
    ]
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return "\n".join([*texts, *(token.string for token in tokens if token.type == tokenize.COMMENT)])


def test_source_uses_plain_words():
    texts = {path.relative_to(ROOT).as_posix(): prose_of(path.read_text(encoding="utf-8")) for path in SOURCES}
    assert {path: found for path, text in texts.items() if (found := found_in(text))} == {}


def test_a_word_is_noticed_in_source():
    source = (
        'def f(folder):\n    """Read ``folder``.\n\n    Args:\n        folder: of files.\n    """  # anew\n'
        '    fail("nobody reads it")\n'
    )
    assert found_in(prose_of(source)) == ["'nobody': write passive voice, or 'no one'", "'anew': write again"]


def test_a_word_is_noticed_in_prose_and_not_in_code():
    assert found_in("Nobody reads `a folder`.") == ["'Nobody': write passive voice, or 'no one'"]
    assert found_in("text\n```python\nfolder = 1\n```\nfiles in a folder") == ["'folder': write directory"]
    assert found_in("<!-- table begins -->\n| a law |\n<!-- table ends -->\n") == []
