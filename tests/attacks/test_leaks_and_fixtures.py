"""What fixtures set for their tests is theirs: it is not put back between them, and is told to nobody."""

from __future__ import annotations

import os

from tests.warm_process import run_module

TESTS = """
import logging, os, signal
import pytest, torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

pytestmark = pytest.mark.regional_compile(expects_regions=False)

class Functions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))

class Dispatches(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))

@pytest.fixture(scope="session", autouse=True)
def of_the_session():
    torch.set_default_dtype(torch.float64)
    handler = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    add, torch.add = torch.add, lambda *args: "replaced"
    yield
    torch.set_default_dtype(torch.float32)
    signal.signal(signal.SIGUSR2, handler)
    torch.add = add

@pytest.fixture(scope="module", autouse=True)
def of_the_module():
    with Functions(), Dispatches(), torch.autocast("cpu"), torch.autograd.graph.save_on_cpu():
        os.umask(0o027)
        logging.getLogger("mine").setLevel(logging.DEBUG)
        yield

@pytest.fixture(autouse=True)
def before_the_isolation(monkeypatch):
    os.environ["OF_A_FIXTURE"] = "1"
    yield
    del os.environ["OF_A_FIXTURE"]

@pytest.fixture
def of_the_test(monkeypatch, caplog, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch, "compile", None)
    monkeypatch.setattr(os, "getcwd", lambda: "elsewhere")
    monkeypatch.syspath_prepend(tmp_path)
    caplog.set_level(logging.DEBUG, "mine")
    torch.set_grad_enabled(False)
    hook = torch.nn.modules.module.register_module_forward_hook(lambda *args: None)
    yield
    hook.remove()
    torch.set_grad_enabled(True)

@pytest.mark.parametrize("number", range(3))
def test_it(number, of_the_test):
    assert torch.get_default_dtype() is torch.float64
    assert torch.add() == "replaced"
    assert signal.getsignal(signal.SIGUSR2) == signal.SIG_IGN
    assert torch._C._len_torch_function_stack() == 1 and torch._C._len_torch_dispatch_stack() == 1
    assert torch.is_autocast_enabled("cpu")
    assert torch._C._autograd._top_saved_tensors_default_hooks(True)
    assert logging.getLogger("mine").level == logging.DEBUG
    mask = os.umask(0o027)
    assert mask == 0o027
    if number == 1:
        torch.set_default_dtype(torch.float16)
        signal.signal(signal.SIGUSR2, signal.SIG_DFL)
        torch._C._pop_torch_function_stack()
        Dispatches().__enter__()
        os.umask(0)
"""


def test_only_changes_of_tests_are_restored(pytester):
    pytester.makepyfile(test_it=TESTS)
    options = ("-p", "no:randomly", "-p", "no:cacheprovider", "-n0", "--regional-backend=aot_eager")
    done = run_module("pytest", options, pytester.path, os.environ, timeout=300)
    assert "3 passed, 1 warning" in done.stdout, done.stdout
    warning = next(line for line in done.stdout.splitlines() if "RegionalLeakWarning:" in line)
    assert "test_it[1] left 5 settings changed" in warning
    for name in ("dispatch modes", "function modes", "umask", "signal handler 12", "default dtype"):
        assert f" {name}: " in warning


def test_limits_are_no_leaks(pytester):
    pytester.makepyfile(
        test_it="""
        import pytest

        @pytest.mark.regional_compile(expects_regions=False)
        def test_it(regional):
            regional.run(abs, regional.randn(2))
        """
    )
    options = ("-p", "no:cacheprovider", "-n0", "--regional-backend=inductor")
    options += ("--regional-timeout=60", "-oregional_memory=8G")
    done = run_module("pytest", options, pytester.path, os.environ, timeout=300)
    assert "1 passed in" in done.stdout, done.stdout
