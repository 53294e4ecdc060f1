"""Warm starts without a trace: what is used again, and that nothing stale is."""

import sys

import pytest
import torch
import torch._dynamo
import torch._functorch.config
import torch._inductor.config

from pytest_regional.reference import warm_start
from tests.reference.warm_programs import Programs, bypasses, misses, traces, warm_run


@pytest.fixture
def programs(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    torch._dynamo.utils.counters.clear()
    written = Programs(tmp_path)
    yield written
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(path.stem, None)


def inputs(*shape, **kwargs):
    return torch.randn(shape or (3, 4), generator=torch.Generator().manual_seed(0)).to(**kwargs)


#: What is edited between two processes: the source before, what is replaced, and by what.
EDITS = {
    "the function": ("def fn(x): return x * 2", "x * 2", "x * 3"),
    "a function that it calls": ("def helper(x): return x + 1\ndef fn(x): return helper(x)", "x + 1", "x + 2"),
    "a default of a function that it calls": (
        "def helper(x, n=1): return x + n\ndef fn(x): return helper(x)",
        "n=1",
        "n=2",
    ),
    "a keyword default": ("def helper(x, *, n=1): return x + n\ndef fn(x): return helper(x)", "n=1", "n=2"),
    "a global number": ("N = 2\ndef fn(x): return x * N", "N = 2", "N = 3"),
    "a global that decides a branch": ("FLAG = True\ndef fn(x): return x * 2 if FLAG else x * 3", "True", "False"),
    "a global list": ("N = [1, 2]\ndef fn(x): return x * sum(N)", "[1, 2]", "[1, 3]"),
    "a global dictionary": ("N = {'a': 1}\ndef fn(x): return x * N['a']", "'a': 1", "'a': 2"),
    "a value that a closure holds": (
        "def outer(k):\n    def inner(x): return x + k\n    return inner\nADD = outer(3)\ndef fn(x): return ADD(x)",
        "outer(3)",
        "outer(4)",
    ),
    "the function itself a closure": (
        "def outer(k):\n    def inner(x): return x + k\n    return inner\nfn = outer(3)",
        "outer(3)",
        "outer(4)",
    ),
    "which function a name stands for": (
        "def one(x): return x + 1\ndef two(x): return x + 2\nhelper = one\ndef fn(x): return helper(x)",
        "helper = one",
        "helper = two",
    ),
    "which lambda a name stands for": ("helper = lambda x: x + 1\ndef fn(x): return helper(x)", "x + 1", "x + 2"),
    "a function of torch": ("f = torch.sin\ndef fn(x): return f(x)", "torch.sin", "torch.cos"),
    "an operator": ("f = torch.ops.aten.sin.default\ndef fn(x): return f(x)", "sin", "cos"),
    "a class constant": ("class A:\n    n = 1\ndef fn(x): return x + A.n", "n = 1", "n = 2"),
    "a constant of an object's class": ("class A:\n    n = 1\na = A()\ndef fn(x): return x + a.n", "n = 1", "n = 2"),
    "a method": (
        "class A:\n    def m(self, x): return x + 1\na = A()\ndef fn(x): return a.m(x)",
        "x + 1",
        "x + 2",
    ),
    "a property": (
        "class A:\n    @property\n    def n(self): return 1\na = A()\ndef fn(x): return x + a.n",
        "return 1",
        "return 2",
    ),
    "a base class": (
        "class B:\n    def m(self, x): return x + 1\nclass C:\n    def m(self, x): return x + 2\n"
        "class A(B): pass\na = A()\ndef fn(x): return a.m(x)",
        "A(B)",
        "A(C)",
    ),
    "an attribute of an object": (
        "class A:\n    def __init__(self): self.n = 1\na = A()\ndef fn(x): return x + a.n",
        "self.n = 1",
        "self.n = 2",
    ),
    "the value of a member of an enumeration": (
        "class E(enum.Enum):\n    A = 1\ndef fn(x): return x + E.A.value",
        "A = 1",
        "A = 2",
    ),
    "a decorator": (
        "def times(n):\n    def wrap(f):\n        @functools.wraps(f)\n        def inner(x): return f(x) * n\n"
        "        return inner\n    return wrap\n@times(2)\ndef helper(x): return x + 1\ndef fn(x): return helper(x)",
        "times(2)",
        "times(3)",
    ),
    "the size of a module": (
        "class fn(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        torch.manual_seed(0)\n        self.a = torch.nn.Linear(4, 5)\n"
        "    def forward(self, x): return self.a(x)",
        "Linear(4, 5)",
        "Linear(4, 6)",
    ),
    "a submodule": (
        "class fn(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.a = torch.nn.ReLU()\n    def forward(self, x): return self.a(x)",
        "ReLU()",
        "Tanh()",
    ),
    "how many submodules there are": (
        "class fn(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.a = torch.nn.ModuleList([torch.nn.Tanh() for _ in range(2)])\n"
        "    def forward(self, x):\n        for one in self.a: x = one(x)\n        return x",
        "range(2)",
        "range(3)",
    ),
    "a number that a submodule has": (
        "class fn(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.a = torch.nn.Softplus(beta=1.0)\n    def forward(self, x): return self.a(x)",
        "beta=1.0",
        "beta=2.0",
    ),
    "the backward of an autograd function": (
        "class F(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x): return x * 2\n"
        "    @staticmethod\n    def backward(ctx, g): return g * 2\n"
        "def fn(x):\n    x = x.detach().requires_grad_()\n    return torch.autograd.grad(F.apply(x).sum(), x)[0] + 0",
        "g * 2",
        "g * 3",
    ),
    "an environment variable": (
        "os.environ['WARM_TEST'] = '2'\ndef fn(x): return x * int(os.environ['WARM_TEST'])",
        "'2'",
        "'3'",
    ),
}


#: Edits of programs whose traces are not stored.
NOT_STORED = {"an environment variable": "is not found by its name"}


@pytest.mark.parametrize("files", [True, False], ids=["with files", "without files"])
@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_is_a_miss(programs, monkeypatch, edit, files):
    if not files:
        # A file that is another is a miss by itself: here everything else has to show that.
        monkeypatch.setattr(warm_start, "file_digests", lambda modules: {})
    source, before, after = EDITS[edit]
    programs.write(source)
    x = inputs()
    _, traced = run_in_new_process(programs, x)
    assert traced >= 1
    _, again = run_in_new_process(programs, x)
    if edit in NOT_STORED:
        assert NOT_STORED[edit] in bypasses()[0]
    else:
        assert again == 0, (misses(), bypasses())
    edited = source.replace(before, after)
    assert edited != source
    programs.write(edited)
    _, traced = run_in_new_process(programs, x)
    assert traced >= 1


def run_in_new_process(programs, *arguments, name="fn", **options):
    """Run in a new process, and compare with eager there; return the output and how many frames were traced."""
    fn = getattr(programs.begin(), name)
    fn = fn() if isinstance(fn, type) else fn
    output, traced = warm_run(fn, *arguments, **options)
    assert torch.equal(output, fn(*arguments)), "a stale result"
    return output, traced
