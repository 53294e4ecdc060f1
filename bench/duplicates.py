"""How often ``pytest-regional report`` recognises a known bug, and how often it takes another for one.

``python -m bench.duplicates`` makes a variant of each script of ``docs/findings`` whose bug is in the index of known
issues, stands with this PyTorch, and makes a result wrong or raises: names are others and comments are gone, and by
turns the program is in a module, or in a larger program. Each variant that shows the defect, and is right where nothing
is compiled, is observed as a report observes a script. It is recognised if its bug is among the likely duplicates. With
its bug taken out of the index, nothing may be called a duplicate.

``--json FILE`` keeps what was observed; ``--observed FILE`` counts such a file again, in no time.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from pytest_regional._torch import torch_version
from pytest_regional.bug_report.gathering import seen_of
from pytest_regional.bug_report.known_issues import KnownIssue, Seen, public_issues
from pytest_regional.bug_report.running import Changes, ScriptRunner
from pytest_regional.bug_report.scripts import without_scaffold
from pytest_regional.bug_report.subjects import of_script
from suites.history.known_bugs import all_bugs

SCRIPTS = Path(__file__).parents[1] / "docs" / "findings"

#: What stands in front of a script whose program is part of something else; each defines ``surrounded``.
SURROUNDINGS = {
    "renamed": "",
    "in a module": """
class Surrounded(torch.nn.Module):
    def __init__(self, called):
        super().__init__()
        self.called = called

    def forward(self, *args, **kwargs):
        return self.called(*args, **kwargs)


surrounded = Surrounded
""",
    "in a larger program": """
def surrounded(called):
    count = torch.zeros(3)

    def larger(*args, **kwargs):
        count.add_(torch.cos(torch.tanh(count) * 0.5))
        return called(*args, **kwargs)

    return larger
""",
}


class _Renamed(ast.NodeTransformer):
    """Gives what a script defines other names, and compiles its programs as part of something else."""

    def __init__(self, names: dict[str, str], *, surrounded: bool) -> None:
        self._names, self._surrounded = names, surrounded

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.copy_location(ast.Name(self._names.get(node.id, node.id), node.ctx), node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.name = self._names.get(node.name, node.name)
        self.generic_visit(node)
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.arg = self._names.get(node.arg, node.arg)
        return node

    def visit_Nonlocal(self, node: ast.Nonlocal) -> ast.AST:
        node.names = [self._names.get(name, name) for name in node.names]
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if self._surrounded and ast.unparse(node.func) == "torch.compile" and node.args:
            node.args[0] = ast.Call(ast.Name("surrounded", ast.Load()), [node.args[0]], [])
        return node


def variant(text: str, surroundings: str) -> str:
    """Return a script with other names, without comments, whose programs are in other surroundings.

    Args:
        text: a script of ``docs/findings``.
        surroundings: a key of :data:`SURROUNDINGS`.
    """
    tree = ast.parse(without_scaffold(text))
    if ast.get_docstring(tree):
        del tree.body[0]
    names = {name: f"v{number}" for number, name in enumerate(sorted(_defined(tree)))}
    before = SURROUNDINGS[surroundings]
    renamed = ast.fix_missing_locations(_Renamed(names, surrounded=bool(before)).visit(tree))
    return f"import torch\n{before}\n{ast.unparse(renamed)}\n"


def _defined(tree: ast.AST) -> set[str]:
    """Return the names that a script defines; not those that it also uses as text, keyword or attribute."""
    nodes = list(ast.walk(tree))
    methods = {each for node in nodes if isinstance(node, ast.ClassDef) for each in node.body}
    names = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    names |= {node.name for node in nodes if isinstance(node, ast.FunctionDef) and node not in methods}
    arguments = {node.arg for node in nodes if isinstance(node, ast.arg)}
    named = {keyword.arg for node in nodes if isinstance(node, ast.Call) for keyword in node.keywords}
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {name for name in (names | arguments) - named - attributes - texts if not hasattr(builtins, name)}


@dataclass(frozen=True)
class Observed:
    """What a report observes of one variant.

    Attributes:
        bug: the name of the bug that it has.
        surroundings: what its program is part of.
        outcome: what became of it.
        seen: what duplicates are looked for by.
        seconds: how long it took.
    """

    bug: str
    surroundings: str
    outcome: str
    seen: Seen
    seconds: float


def observe(names: Sequence[str]) -> Iterator[Observed]:
    """Run a variant of the script of each bug, and yield what was observed."""
    with tempfile.TemporaryDirectory() as folder:
        runner = ScriptRunner(Path(folder))
        for number, name in enumerate(names):
            surroundings = list(SURROUNDINGS)[number % len(SURROUNDINGS)]
            script = variant((SCRIPTS / f"{name}.py").read_text(encoding="utf-8"), surroundings)
            subject = of_script("variant.py", script)
            control, run = runner.run_each(
                script, [Changes(uncompiled=True), Changes(measure=True, blame_seconds=60.0)]
            )
            outcome = run.outcome if control.outcome == "right" else f"in eager {control.sentence}"
            yield Observed(name, surroundings, outcome, seen_of(subject, run.facts), run.seconds)


#: What only a harness notices: a program that is right all the same has no duplicates in an issue tracker.
UNSEEN = ("cache", "partitions", "recompile")


def stands(name: str) -> bool:
    """Return whether a bug has a script, stands with this PyTorch, and makes something wrong."""
    version = ".".join(map(str, torch_version()))
    bugs = [bug for bug in all_bugs() if bug.name == name and bug.stands_in(version) and bug.notices not in UNSEEN]
    return (SCRIPTS / f"{name}.py").exists() and bool(bugs)


def table(observed: Sequence[Observed], issues: Sequence[KnownIssue]) -> Iterator[str]:
    """Yield what was recognised, in Markdown, and what it comes to."""
    shown = [one for one in observed if one.outcome in ("wrong", "raises", "died")]
    yield "| bug | variant | its own bug | other bugs, with its own out of the index |"
    yield "|---|---|---|---|"
    recognised = mistaken = 0
    for one in shown:
        known = {found.issue.name: found.likeness for found in one.seen.similar_to(issues)}
        others = [name for name in known if name != one.bug]
        recognised += one.bug in known
        mistaken += bool(others)
        own = f"{known[one.bug]:.0%}" if one.bug in known else "**not recognised**"
        yield f"| `{one.bug}` | {one.surroundings} | {own} | {', '.join(f'`{name}`' for name in others) or 'none'} |"
    yield ""
    yield f"variants recognised: {recognised} of {len(shown)}; taken for another bug: {mistaken} of {len(shown)}"
    left = [f"{one.bug} ({one.outcome})" for one in observed if one not in shown]
    yield f"variants that do not show the defect: {', '.join(left) or 'none'}; torch {torch.__version__}"


def _read(file: Path) -> list[Observed]:
    return [Observed(**{**row, "seen": _seen(row["seen"])}) for row in json.loads(file.read_text(encoding="utf-8"))]


def _seen(row: dict[str, Any]) -> Seen:
    return Seen(**{**row, "operators": tuple(row["operators"]), "features": frozenset(row["features"])})


def main() -> None:
    """Observe, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="names of bugs")
    parser.add_argument("--json", type=Path, help="where what was observed is written")
    parser.add_argument("--observed", type=Path, help="a file of --json: nothing is run")
    options = parser.parse_args()
    issues = public_issues()
    observed = _read(options.observed) if options.observed else []
    names = [issue.name for issue in issues if stands(issue.name) and issue.name in (options.only or [issue.name])]
    for one in [] if options.observed else observe(names):
        observed.append(one)
        if options.json:
            rows = json.dumps([asdict(each) for each in observed], indent=1, default=sorted)
            options.json.write_text(f"{rows}\n", encoding="utf-8")
    print("\n".join(table(observed, issues)))


if __name__ == "__main__":
    main()
