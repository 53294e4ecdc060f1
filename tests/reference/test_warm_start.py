"""Warm starts without a trace: what is used again, and that nothing stale is."""

import contextlib
import gc
import importlib
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch._dynamo
import torch._functorch.config
import torch._inductor.config

from pytest_regional import torch_matches
from pytest_regional._torch.frames import why_no_frames
from pytest_regional.reference import CacheWarning, warm_start, warm_starts
from pytest_regional.reference.dynamo_backend import clear_caches
from tests.reference.warm_programs import Programs, bypasses, misses, traces, warm_run

pytestmark = pytest.mark.skipif(bool(why_no_frames()), reason=f"no traces are stored: {why_no_frames()}")


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
    "which function is a method": (
        "def one(self, x): return x + 1\ndef two(self, x): return x + 2\nclass A: m = one\na = A()\n"
        "def fn(x): return a.m(x)",
        "m = one",
        "m = two",
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
    "a member of a module": (
        "import types\ncfg = types.ModuleType('warm_cfg'); cfg.n = 2\nimport sys; sys.modules['warm_cfg'] = cfg\n"
        "def fn(x): return x * cfg.n",
        "cfg.n = 2",
        "cfg.n = 3",
    ),
    "a frozen dataclass": (
        "import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass C:\n    n: int\nc = C(2)\n"
        "def fn(x): return x * c.n",
        "C(2)",
        "C(3)",
    ),
    "a field of a named tuple": (
        "import collections\nC = collections.namedtuple('C', 'n m')\nc = C(2, 1)\ndef fn(x): return x * c.n",
        "C(2, 1)",
        "C(3, 1)",
    ),
    "a namespace": ("import types\nc = types.SimpleNamespace(n=2)\ndef fn(x): return x * c.n", "n=2", "n=3"),
    "an object with slots": (
        "class C:\n    __slots__ = ('n',)\n    def __init__(self): self.n = 2\nc = C()\ndef fn(x): return x * c.n",
        "self.n = 2",
        "self.n = 3",
    ),
    "an object that answers for any attribute": (
        "class C:\n    def __getattr__(self, name): return 2\nc = C()\ndef fn(x): return x * c.n",
        "return 2",
        "return 3",
    ),
    "a static method": (
        "class C:\n    @staticmethod\n    def m(x): return x * 2\ndef fn(x): return C.m(x)",
        "x * 2",
        "x * 3",
    ),
    "a class method": (
        "class C:\n    n = 2\n    @classmethod\n    def m(cls, x): return x * cls.n\ndef fn(x): return C.m(x)",
        "n = 2",
        "n = 3",
    ),
    "a metaclass": (
        "class M(type):\n    @property\n    def n(cls): return 2\nclass C(metaclass=M): pass\n"
        "def fn(x): return x * C.n",
        "return 2",
        "return 3",
    ),
    "a callable object": (
        "class C:\n    def __call__(self, x): return x * 2\nc = C()\ndef fn(x): return c(x)",
        "x * 2",
        "x * 3",
    ),
    "a partial function": (
        "def helper(x, n): return x * n\nf = functools.partial(helper, n=2)\ndef fn(x): return f(x)",
        "n=2",
        "n=3",
    ),
    "the function of a partial function": (
        "def one(x, n): return x + n\ndef two(x, n): return x - n\nf = functools.partial(one, n=2)\n"
        "def fn(x): return f(x)",
        "partial(one",
        "partial(two",
    ),
    "a cached function": (
        "@functools.lru_cache\ndef n(): return 2\ndef fn(x): return x * n()",
        "return 2",
        "return 3",
    ),
    "a set": ("N = {1, 2}\ndef fn(x): return x * 2 if 2 in N else x * 3", "{1, 2}", "{1, 4}"),
    "a tuple of functions": (
        "def one(x): return x + 1\ndef two(x): return x + 2\nF = (one, two)\ndef fn(x): return F[0](x)",
        "(one, two)",
        "(two, one)",
    ),
    "the order of a dictionary": (
        "N = {'a': 1.0, 'b': 2.0}\ndef fn(x):\n    for n in N.values(): x = x * 2 + n\n    return x",
        "'a': 1.0, 'b': 2.0",
        "'b': 2.0, 'a': 1.0",
    ),
    "a key of a dictionary": (
        "N = {2: 0}\ndef fn(x):\n    for n in N: x = x * n\n    return x",
        "2: 0",
        "3: 0",
    ),
    "a dictionary with a default": (
        "import collections\nN = collections.defaultdict(lambda: 2)\ndef fn(x): return x * N['a']",
        "lambda: 2",
        "lambda: 3",
    ),
    "a range": ("N = range(2)\ndef fn(x): return x * sum([1 + i for i in N])", "range(2)", "range(3)"),
    "a string": ("N = 'ab'\ndef fn(x): return x * len(f'{N}!')", "'ab'", "'abc'"),
    "a dtype": ("D = torch.float64\ndef fn(x): return x.to(D)", "float64", "float16"),
    "a global tensor": ("N = torch.tensor([2.0])\ndef fn(x): return x * N", "[2.0]", "[[2.0]]"),
    "a number in a global tensor": (
        "N = torch.tensor(2.0)\ndef fn(x): return x * N.item()",
        "tensor(2.0)",
        "tensor(3.0)",
    ),
    "a list that a closure holds": (
        "def outer():\n    k = [1, 2]\n    def inner(x): return x * sum(k)\n    return inner\nfn = outer()",
        "[1, 2]",
        "[1, 3]",
    ),
    "a default that is a list": ("def helper(x, n=[1, 2]): return x * sum(n)\ndef fn(x): return helper(x)", "2]", "3]"),
    "whether an object has an attribute": (
        "class C: pass\nc = C()\nc.n = 1\ndef fn(x): return x * 2 if hasattr(c, 'n') else x * 3",
        "c.n = 1",
        "c.m = 1",
    ),
    "what a class is a subclass of": (
        "class B: pass\nclass C(B): pass\nc = C()\ndef fn(x): return x * 2 if isinstance(c, B) else x * 3",
        "C(B)",
        "C",
    ),
    "how an object compares": (
        "class C:\n    def __eq__(self, other): return True\nc = C()\ndef fn(x): return x * 2 if c == 1 else x * 3",
        "return True",
        "return False",
    ),
    "how long an object is": (
        "class C:\n    def __len__(self): return 2\nc = C()\ndef fn(x): return x * len(c)",
        "return 2",
        "return 3",
    ),
    "a default that the signature says": (
        "import inspect\ndef helper(x, n=1): return x\nN = inspect.signature(helper)\n"
        "def fn(x): return x + N.parameters['n'].default",
        "n=1",
        "n=2",
    ),
    "a hook": (
        "def hook(m, i, o): return o * 2\nclass fn(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.a = torch.nn.Tanh()\n        self.a.register_forward_hook(hook)\n"
        "    def forward(self, x): return self.a(x)",
        "o * 2",
        "o * 3",
    ),
    "a hook that is gone": (
        "def hook(m, i, o): return o * 2\nclass fn(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.a = torch.nn.Tanh()\n        self.a.register_forward_hook(hook)\n"
        "    def forward(self, x): return self.a(x)",
        "self.a.register_forward_hook(hook)",
        "pass",
    ),
    "a parametrization": (
        "class P(torch.nn.Module):\n    def forward(self, w): return w * 2\nclass fn(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        torch.manual_seed(0)\n"
        "        self.a = torch.nn.Linear(4, 4)\n"
        "        torch.nn.utils.parametrize.register_parametrization(self.a, 'weight', P())\n"
        "    def forward(self, x): return self.a(x)",
        "w * 2",
        "w * 3",
    ),
    "the setting of a region": (
        "C = {'max_fusion_size': 8}\ndef fn(x):\n    with region('r', configs=C): y = x * 2\n    return y",
        "8",
        "9",
    ),
    "the name of a region": (
        "R = 'a'\ndef fn(x):\n    with region(R): y = x * 2\n    return y",
        "R = 'a'",
        "R = 'b'",
    ),
    "an environment variable": (
        "os.environ['WARM_TEST'] = '2'\ndef fn(x): return x * int(os.environ['WARM_TEST'])",
        "'2'",
        "'3'",
    ),
}


#: Edits of programs whose traces are not stored.
NOT_STORED = {
    "an environment variable": "is not found by its name",
    "a default that the signature says": "a signature",
}


@pytest.mark.parametrize("files", [True, False], ids=["with files", "without files"])
@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_is_a_miss(programs, monkeypatch, edit, files):
    if not files:
        # A file that is another is a miss by itself: here everything else has to show that.
        monkeypatch.setattr(warm_start, "file_digests", lambda modules: {})
    # A program sets it, and other tests of this process are not to see it.
    monkeypatch.setenv("WARM_TEST", "")
    source, before, after = EDITS[edit]
    if "autograd.grad(" in source and torch_matches(">=2.15"):
        pytest.skip("Dynamo of torch 2.15 gives the frame up in the middle of its trace, in every process")
    programs.write(source)
    x = inputs()
    _, traced = run_in_new_process(programs, x)
    assert traced >= 1
    if not (bypasses() or torch._dynamo.utils.counters["regional_traces"]["saved"]):
        pytest.skip(f"Dynamo of torch {torch.__version__} does not compile this program")
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


MODEL = """
N = 2
def helper(x, n=1): return torch.nn.functional.relu(x) + n
class Part(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    def scaled(self, x): return x * N
    def forward(self, x): return self.b(self.a(self.scaled(x)))
class fn(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.part, self.last = Part(), torch.nn.Dropout(0.0)
    def forward(self, x): return helper(self.last(self.part(x)))
"""


def _setting(module, name, value):
    def change(patch, program, model):
        stack = contextlib.ExitStack()
        stack.enter_context(importlib.import_module(module).patch(**{name: value}))
        return stack.pop_all()

    return change


def _tie(patch, program, model):
    model.part.b.weight = model.part.a.weight


def _share_memory(patch, program, model):
    model.part.b.weight = torch.nn.Parameter(model.part.a.weight.detach())


def _view(patch, program, model):
    base = torch.randn(4, 8)
    model.part.a.weight = torch.nn.Parameter(base[:, ::2])


#: What is done in the next process before it compiles: with a patch that is undone, the module, and the model.
CHANGES = {
    "a method is replaced": lambda patch, program, model: patch.setattr(program.Part, "scaled", lambda s, x: x * 5),
    "a forward is replaced": lambda patch, program, model: patch.setattr(program.Part, "forward", lambda s, x: x * 5),
    "the forward of one object is replaced": lambda patch, program, model: patch.setattr(
        model.part, "forward", lambda x: x * 5
    ),
    "a forward of torch is replaced": lambda patch, program, model: patch.setattr(
        torch.nn.Linear, "forward", lambda s, x: x * 5
    ),
    "a function of torch is replaced": lambda patch, program, model: patch.setattr(
        torch.nn.functional, "relu", lambda x: x * 5
    ),
    "a built-in function of torch is replaced": lambda patch, program, model: patch.setattr(
        torch.nn.functional, "linear", lambda x, w, b: x * 5
    ),
    "a function is replaced": lambda patch, program, model: patch.setattr(program, "helper", lambda x: x * 5),
    "the code of a function is replaced": lambda patch, program, model: patch.setattr(
        program.helper, "__code__", (lambda x, n: x * 5).__code__
    ),
    "a default is replaced": lambda patch, program, model: patch.setattr(program.helper, "__defaults__", (5,)),
    "a global is replaced": lambda patch, program, model: patch.setattr(program, "N", 5),
    "a global is of another type": lambda patch, program, model: patch.setattr(program, "N", 2.0),
    "a forward hook": lambda patch, program, model: model.part.register_forward_hook(lambda m, i, o: o * 5),
    "a forward hook inside": lambda patch, program, model: model.part.a.register_forward_hook(lambda m, i, o: o * 5),
    "a forward pre-hook": lambda patch, program, model: model.part.a.register_forward_pre_hook(
        lambda m, i: (i[0] * 5,)
    ),
    "a hook of all modules": lambda patch, program, model: patch.setitem(
        torch.nn.modules.module._global_forward_hooks, 0, lambda m, i, o: o * 5 if type(m) is torch.nn.Linear else None
    ),
    "evaluation": lambda patch, program, model: model.eval(),
    "a frozen parameter": lambda patch, program, model: model.part.a.weight.requires_grad_(False),
    "double precision": lambda patch, program, model: model.double(),
    "tied parameters": _tie,
    "parameters that share memory": _share_memory,
    "other strides of a parameter": _view,
    "no bias": lambda patch, program, model: setattr(model.part.a, "bias", None),
    "another submodule": lambda patch, program, model: setattr(model.part, "a", torch.nn.Tanh()),
    "a setting of Inductor": _setting("torch._inductor.config", "max_fusion_size", 8),
    "a setting of AOTAutograd": _setting("torch._functorch.config", "activation_memory_budget", 0.5),
    "a setting of Dynamo": _setting("torch._dynamo.config", "specialize_float", True),
    "a tag of the cache": _setting("torch.compiler.config", "cache_key_tag", "another"),
    "an environment variable": lambda patch, program, model: patch.setenv("TORCHINDUCTOR_WARM", "1"),
}


@pytest.mark.parametrize("files", [True, False], ids=["with files", "without files"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_before_the_first_compile_is_a_miss(programs, monkeypatch, change, files):
    if not files:
        monkeypatch.setattr(warm_start, "file_digests", lambda modules: {})
    programs.write(MODEL)
    x = inputs()
    warm_run(programs.begin().fn(), x)
    _, again = run_in_new_process(programs, x)
    assert again == 0, (misses(), bypasses())
    program = programs.begin()
    model = program.fn()
    with monkeypatch.context() as patch:
        undone = CHANGES[change](patch, program, model)
        given = x.double() if change == "double precision" else x
        with undone if isinstance(undone, contextlib.ExitStack) else contextlib.nullcontext():
            expected = model(given)
            output, traced = warm_run(model, given)
    assert torch.equal(output, expected), "a stale result"
    assert output.requires_grad == expected.requires_grad
    assert traced >= 1


@contextlib.contextmanager
def _threads():
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def _default_dtype():
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


#: States of the process in which a trace from another state must not be used.
STATES = {
    "no gradients": torch.no_grad,
    "inference mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "one thread more": _threads,
    "deterministic": _deterministic,
    "another default dtype": _default_dtype,
    "a default device": lambda: torch.device("cpu"),
    "hooks for saved tensors": lambda: torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t),
    "forward AD": torch.autograd.forward_ad.dual_level,
}


@pytest.mark.parametrize("state", STATES)
def test_another_state_of_the_process_is_a_miss(programs, state):
    programs.write("def fn(x, w): return torch.nn.functional.linear(x, w) + torch.ones(3)")
    x, w = inputs(), inputs().requires_grad_()
    warm_run(programs.begin().fn, x, w)
    _, again = run_in_new_process(programs, x, w)
    assert again == 0, (misses(), bypasses())
    fn = programs.begin().fn
    with STATES[state]():
        expected = fn(x, w)
        output, traced = warm_run(fn, x, w)
    assert traced >= 1
    assert (output.dtype, output.device, output.requires_grad) == (
        expected.dtype,
        expected.device,
        expected.requires_grad,
    )
    assert torch.equal(output, expected), "a stale result"


#: Arguments for which a trace of the first must not be used.
ARGUMENTS = {
    "another size": inputs(5, 4),
    "another number of dimensions": inputs(2, 3, 4),
    "another dtype": inputs(dtype=torch.float64),
    "other strides": inputs(4, 3).T,
    "with gradients": inputs().requires_grad_(),
    "a size that is broadcast": inputs(1, 4),
    "a parameter": torch.nn.Parameter(inputs()),
    "marked dynamic": "marked",
    "conjugate": inputs(dtype=torch.complex64).conj(),
}


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_another_tensor_is_a_miss(programs, argument):
    programs.write("def fn(x): return x * 2 + x.shape[0]")
    warm_run(programs.begin().fn, inputs())
    x = ARGUMENTS[argument]
    if argument == "marked dynamic":
        x = inputs()
        torch._dynamo.mark_dynamic(x, 0)
    _, traced = run_in_new_process(programs, x)
    assert traced == 1
    _, traced = run_in_new_process(programs, inputs())
    assert traced == 0, (misses(), bypasses())


VALUES = (1, 2, True, None, "a", 1.5, (1, 2), [1, 2], [1, 3], {"a": 1}, {"b": 1}, {"a": 2}, slice(0, 1), torch.float16)


def test_other_arguments_are_misses(programs):
    source = """
def fn(x, value):
    if value is None or isinstance(value, str): return x + 1 if value else x - 1
    if isinstance(value, dict): return sum([x * n for n in value.values()], x * ord(list(value)[0]))
    if isinstance(value, (list, tuple)): return x * sum(value)
    if isinstance(value, slice): return x[value]
    if isinstance(value, torch.dtype): return x.to(value)
    return x * value + isinstance(value, bool)
"""
    programs.write(source)
    for value in VALUES:
        _, traced = run_in_new_process(programs, inputs(), value, dynamic=False)
        assert traced == 1, value
    for value in VALUES:
        _, traced = run_in_new_process(programs, inputs(), value, dynamic=False)
        assert traced == 0, (value, misses())
    assert not bypasses()


def test_aliased_arguments_are_a_miss(programs):
    programs.write("def fn(x, y):\n    x.mul_(2)\n    return x + y")

    def run(*arguments):
        copies = [one.clone() for one in arguments] if arguments[0] is not arguments[1] else [arguments[0].clone()] * 2
        expected = [one.clone() for one in copies] if copies[0] is not copies[1] else [copies[0].clone()] * 2
        fn = programs.begin().fn
        output, traced = warm_run(fn, *copies)
        assert torch.equal(output, fn(*expected)), "a stale result"
        return traced

    x, y = inputs(), inputs() + 1
    assert [run(x, y), run(x, y), run(x, x), run(x, x), run(x, y)] == [1, 0, 1, 0, 0]


@pytest.mark.parametrize("made", ["numpy.float32({})", "torch.tensor([{}.0])"])
def test_other_values_of_what_is_an_input_of_the_graph_are_a_hit(programs, monkeypatch, made):
    monkeypatch.setattr(warm_start, "file_digests", lambda modules: {})
    for number, expected in (("2", 1), ("3", 0)):
        programs.write(f"import numpy\nN = {made.format(number)}\ndef fn(x): return x * N")
        _, traced = run_in_new_process(programs, inputs())
        assert traced == expected, misses()


def test_options_and_ways_to_compile_are_in_the_key(programs):
    programs.write("def fn(x): return x * 2")
    ways = [{}, {"dynamic": True}, {"fullgraph": True}, {"options": {"partitioner": "min_cut"}}]
    seen = [run_in_new_process(programs, inputs(), **way)[1] for way in ways + ways]
    assert seen == [1, 1, 1, 1, 0, 0, 0, 0], (misses(), bypasses())


def test_a_trace_without_gradients_and_one_with_them_are_both_stored(programs):
    programs.write(MODEL)
    for expected in (1, 0):
        model = programs.begin().fn()
        output, traced = warm_run(model, inputs())
        output.sum().backward()
        with torch.no_grad():
            _, without = warm_run(programs.begin().fn(), inputs())
        assert (traced, without) == (expected, expected), (misses(), bypasses())
        twin = programs.begin().fn()
        twin(inputs()).sum().backward()
        assert torch.equal(model.part.a.weight.grad, twin.part.a.weight.grad)


def test_symbolic_sizes(programs):
    programs.write("def fn(x):\n    y = x.sum(0) * x.shape[0]\n    return y if x.shape[0] < 6 else y + 1")
    sizes = [inputs(size, 4) for size in (3, 4, 7, 9)]
    assert [run_in_new_process(programs, x, dynamic=True)[1] for x in sizes] == [1, 0, 1, 0], misses()
    fn = programs.begin().fn
    with warm_starts(), traces() as seen:
        compiled = torch.compile(fn, backend="regional", dynamic=True)
        assert all(torch.equal(compiled(x), fn(x)) for x in sizes)
    assert seen == []


def test_a_program_that_started_from_a_trace_is_compiled_again_for_other_inputs(programs):
    programs.write("def fn(x): return x * 2 + x.shape[0]")
    run_in_new_process(programs, inputs())
    module = programs.begin()
    with warm_starts(), traces() as seen:
        compiled = torch.compile(module.fn, backend="regional")
        counts = []
        for x in (inputs(), inputs(5, 4), inputs(dtype=torch.float64), inputs(), inputs(6, 4), inputs(7, 4)):
            assert torch.equal(compiled(x), module.fn(x))
            counts.append(len(seen))
    # The second size is the first that Dynamo sees, the third makes a symbol of it.
    assert counts == [0, 1, 2, 2, 3, 3]
    torch._dynamo.reset()
    gc.collect()
    assert [name for name in vars(module) if name.startswith("__compiled_fn")] == []


def test_two_threads_start_from_traces(programs):
    programs.write(MODEL)
    x = inputs()
    warm_run(programs.begin().fn(), x)
    module = programs.begin()
    models = [module.fn() for _ in range(4)]
    with warm_starts(), traces() as seen, ThreadPoolExecutor(4) as pool:
        outputs = list(pool.map(lambda model: torch.compile(model, backend="regional")(x), models))
    assert all(torch.equal(output, model(x)) for output, model in zip(outputs, models, strict=True))
    assert seen == []


def test_graph_breaks(programs):
    source = """
def fn(x):
    y = x * 2
    torch._dynamo.graph_break()
    z = y + 1 if y.sum() > 0 else y - 1
    return z.cos()
"""
    programs.write(source)
    # Three frames: the second asks for a value, and each answer is resumed in a frame of its own.
    for x, expected in ((torch.ones(3, 4), 3), (-torch.ones(3, 4), 1)):
        assert run_in_new_process(programs, x)[1] == expected
        assert run_in_new_process(programs, x)[1] == 0, (misses(), bypasses())


def test_traces_of_other_programs_do_not_take_the_names_of_stored_ones(programs):
    programs.write(MODEL + "\ndef other(x):\n    y = x * 2\n    torch._dynamo.graph_break()\n    return y + len([x])")
    x = inputs()
    run_in_new_process(programs, x)
    module = programs.begin()
    model = module.fn()
    outputs = [warm_run(fn, x) for fn in (model, module.other, model, module.other)]
    assert torch.equal(outputs[0][0], model(x))
    assert torch.equal(outputs[1][0], module.other(x))
    assert [traced for _, traced in outputs] == [0, 2, 0, 0]


def test_two_functions_of_the_same_code_have_each_their_own(programs):
    source = """
def outer(k, f):
    def inner(x): return f(x) + k
    return inner
one, two = outer(1, torch.sin), outer(2, torch.cos)
"""
    programs.write(source)
    for expected in (1, 0):
        for name in ("one", "two"):
            _, traced = run_in_new_process(programs, inputs(), name=name)
            assert traced == expected, misses()


def test_what_is_not_stored_says_why(programs):
    source = """
@torch.compiler.assume_constant_result
def constant(): return 3
def of_a_constant(x): return x * constant()
class A:
    def __init__(self): self.f = functools.partial(torch.mul, other=2)
    def __call__(self, x): return self.f(x)
of_an_object = A()
class Sub(torch.Tensor): pass
def of_a_subclass(x): return x.as_subclass(Sub) + 1
def kept(x, all=[]): return x + len(all)
"""
    programs.write(source)
    reasons = {"of_a_constant": "assume_constant_result"}
    for name, reason in reasons.items():
        torch._dynamo.utils.counters.clear()
        for _ in range(2):
            _, traced = run_in_new_process(programs, inputs(), name=name)
            assert traced == 1
        assert reason in " ".join(bypasses())


def test_an_early_pass_is_run_on_every_trace(programs):
    programs.write("def fn(x): return x * 2")

    def pass_without_uuid(graph):
        seen.append(graph)

    seen = []
    with torch._inductor.config.patch(pre_grad_custom_pass=pass_without_uuid), pytest.warns(Warning, match="no uuid"):
        assert [run_in_new_process(programs, inputs())[1] for _ in range(2)] == [1, 1]
    assert len(seen) == 2
    assert "a pre-grad pass runs early" in bypasses()[0]


@pytest.mark.parametrize("error", [AssertionError("unexpected"), RuntimeError("not here"), LookupError("gone")])
def test_guards_that_cannot_be_made_are_a_miss(programs, monkeypatch, error):
    programs.write("def fn(x): return x * 2")
    run_in_new_process(programs, inputs())

    def fail(*_):
        raise error

    monkeypatch.setattr(warm_start, "guard_manager", fail)
    _, traced = run_in_new_process(programs, inputs())
    assert traced == 1
    assert misses() == [str(error)]


def test_mistakes_are_the_errors_that_they_are_without_traces(programs):
    programs.write("def fn(x): return x * 2")
    fn = programs.begin().fn
    for options, message in (({"partitioner": "none"}, "partitioner"), ({"outer_cach": True}, "outer_cache")):
        said = []
        for run in (warm_run, lambda fn, x, options: torch.compile(fn, backend="regional", options=options)(x)):
            with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=message) as raised:
                run(fn, inputs(), options=options)
            said.append(str(raised.value))
        assert said[0] == said[1]
    with (
        torch._inductor.config.patch(pre_grad_custom_pass=3),
        pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="not a pass"),
    ):
        warm_run(fn, inputs())


def test_a_torch_without_support_is_one_warning(programs, monkeypatch):
    programs.write("def fn(x): return x * 2")
    monkeypatch.setattr(warm_start, "why_no_frames", lambda: "it is too old")
    clear_caches()
    with pytest.warns(CacheWarning, match="No traces are stored: it is too old"):
        _, traced = warm_run(programs.begin().fn, inputs())
    assert (traced, bypasses()) == (1, [])


def test_without_the_context_nothing_is_stored(programs):
    programs.write("def fn(x): return x * 2")
    for _ in range(2):
        with traces() as seen:
            torch.compile(programs.begin().fn, backend="regional")(inputs())
        assert seen == ["fn"]


def test_other_backends_trace_as_ever(programs):
    programs.write("def fn(x): return x * 2")
    for _ in range(2):
        with warm_starts(), traces() as seen:
            torch.compile(programs.begin().fn, backend="aot_eager")(inputs())
        assert seen == ["fn"]


def test_strict_mode_raises_the_reason(programs):
    programs.write("@torch.compiler.assume_constant_result\ndef n(): return 3\ndef fn(x): return x * n()")
    strict = torch._functorch.config.patch(strict_autograd_cache=True)
    with strict, pytest.raises(Exception, match="assume_constant_result"):
        run_in_new_process(programs, inputs())
