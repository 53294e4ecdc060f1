"""Private names of PyTorch and Triton stand in ``_torch/`` alone, and each symbol is fetched in one function."""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "pytest_regional"

#: Namespaces of operators, whose names are public whatever they begin with.
OPERATORS = re.compile(r"(torch\.)?ops(\.\w+)?$|_?aten(_op)?$")

#: Private names that are not PyTorch's: of Python, pytest and pytest-xdist.
OF_OTHERS = {
    "_DummyThread",
    "_current_frames",
    "_event_loop_policy",
    "_excinfo",
    "_exit",
    "_getframe",
    "_io",
    "_make",
    "_max_worker_restart",
    "_pending_of",
    "_pyfuncitem",
    "_removed2pending",
    "_run_exitfuncs",
    "_setupstate",
    "_shutdown",
    "_tmp_path_factory",
}

IN_PYTORCH = re.compile(r"(torch|triton|tl)(\.\w+)*")
ACCESS = ("getattr", "hasattr", "setattr", "delattr")
FETCHING = ("symbol", "private_module", "PatchPoint", "fetching", "calling", "importing")
ADDRESS = re.compile(r"(torch|triton|functorch)(?=[.:])[\w.:]*[.:]_(?!_)[\w.:]*")


@functools.cache
def sources() -> dict[str, str]:
    return {str(path.relative_to(PACKAGE)): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}


@functools.cache
def parsed(text: str) -> ast.Module:
    return ast.parse(text)


@functools.cache
def nodes(tree: ast.AST) -> list[ast.AST]:
    return list(ast.walk(tree))


def is_private(name: object) -> bool:
    return isinstance(name, str) and name.startswith("_") and not name.startswith("__")


def our_own(trees: Iterable[ast.AST]) -> set[str]:
    """Return the private names that the package itself defines or assigns."""
    names: set[str] = set()
    for node in (node for tree in trees for node in nodes(tree)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return {name for name in names if is_private(name)}


def private_names(tree: ast.AST, own: Collection[str]) -> Iterator[tuple[int, str]]:
    """Yield line and text of each private name of PyTorch's or Triton's in a module; messages may name them."""
    ours = {*own, *OF_OTHERS}
    messages = {id(part) for node in nodes(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes(tree):
        if id(node) in messages:
            continue
        found: list[str] = []
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names if ADDRESS.fullmatch(alias.name)]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found = [name for name in names if ADDRESS.fullmatch(name)]
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            holder = ast.unparse(node.value)
            is_ours = node.attr in ours and not IN_PYTORCH.fullmatch(holder)
            found = [] if is_ours or OPERATORS.search(holder) else [node.attr]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and ADDRESS.fullmatch(node.value):
            found = [node.value]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ACCESS:
            given = [value.value for value in node.args[1:2] if isinstance(value, ast.Constant)]
            found = [str(name) for name in given if is_private(name) and name not in ours]
        yield from ((node.lineno, name) for name in found)


def outside(modules: Mapping[str, str]) -> dict[str, ast.Module]:
    return {name: parsed(text) for name, text in modules.items() if not name.startswith("_torch/")}


@functools.cache
def own_names() -> frozenset[str]:
    return frozenset(our_own(outside(sources()).values()))


def violations(modules: Mapping[str, str]) -> list[str]:
    trees = outside(modules)
    own = own_names() | our_own(tree for name, tree in trees.items() if name not in sources())
    return [f"{name}:{line} {text}" for name, tree in trees.items() for line, text in private_names(tree, own)]


def fetches(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield symbol and function of each call of :data:`FETCHING`."""
    constants = {
        ast.unparse(node.targets[0]): node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
    }
    for outer in tree.body:
        where = getattr(outer, "name", f"line {outer.lineno}")
        for node in ast.walk(outer):
            if isinstance(node, ast.Call) and (called := ast.unparse(node.func)) in FETCHING:
                words = [word(argument, constants) for argument in node.args[:2]]
                if all(words):
                    yield ("patch point " if called == "PatchPoint" else "") + ".".join(words), where


def word(argument: ast.expr, constants: Mapping[str, object]) -> str:
    """Return what a fetch is given where that stands in the module, or nothing."""
    return str(argument.value if isinstance(argument, ast.Constant) else constants.get(ast.unparse(argument), ""))


def fetched_twice(modules: Mapping[str, str]) -> list[str]:
    found: dict[str, set[str]] = defaultdict(set)
    for name, text in modules.items():
        if name.startswith("_torch/"):
            for fetched, where in fetches(parsed(text)):
                found[fetched].add(f"{name}:{where}")
    return [f"{fetched}: {', '.join(sorted(where))}" for fetched, where in sorted(found.items()) if len(where) > 1]


def test_private_names_stand_in_one_package() -> None:
    assert violations(sources()) == []


def test_each_symbol_is_fetched_in_one_function() -> None:
    assert fetched_twice(sources()) == []


@pytest.mark.parametrize(
    ("planted", "named"),
    [
        ("import torch\nkey = lambda t: t.untyped_storage()._cdata", "_cdata"),
        ("def schema(node):\n    return node.target._schema", "_schema"),
        ("import torch._inductor.config", "torch._inductor.config"),
        ("from torch.utils._pytree import tree_map", "torch.utils._pytree.tree_map"),
        ("import torch\nis_op = lambda x: isinstance(x, torch._ops.OpOverload)", "_ops"),
        ("import importlib\nconfig = importlib.import_module('torch._dynamo.config')", "torch._dynamo.config"),
        ("from triton.runtime import _allocation", "triton.runtime._allocation"),
        ("def codegen(gm):\n    return getattr(gm.graph, '_codegen', None)", "_codegen"),
        ("stage = PatchPoint('torch._dynamo.convert_frame', '_compile')", "torch._dynamo.convert_frame"),
    ],
)
def test_a_planted_private_name_is_found(planted: str, named: str) -> None:
    (found,) = violations({"harness/planted.py": planted})
    assert found.startswith("harness/planted.py:")
    assert found.endswith(f" {named}")


@pytest.mark.parametrize(
    "allowed",
    [
        "import torch\ncopy = torch.ops.aten._to_copy.default",
        "class Own:\n    def _mine(self): ...\n    def call(self): return self._mine()",
        "import os\nos._exit(0)",
    ],
)
def test_names_that_are_not_private_to_pytorch_are_allowed(allowed: str) -> None:
    assert violations({"harness/planted.py": allowed}) == []


@pytest.mark.parametrize(
    "planted",
    [
        "def again():\n    return symbol('torch._dynamo.utils', 'counters')",
        "MODULE = 'torch._dynamo.utils'\ndef again():\n    return symbol(MODULE, 'counters')",
        "again = fetching('torch._dynamo.utils', 'counters')",
        "def again():\n    return private_module('torch._inductor.config')",
        "AGAIN = {'timing': PatchPoint('torch._dynamo.guards', 'profile_guard_manager')}",
    ],
)
def test_a_planted_second_fetch_is_found(planted: str) -> None:
    (found,) = fetched_twice({**sources(), "_torch/planted.py": planted})
    assert "_torch/planted.py:" in found
