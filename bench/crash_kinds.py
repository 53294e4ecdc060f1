"""What the tests of ``crash_run`` do, and how each has to end: a new kind is a line here.

Bodies stand in a test that has ``regional``, ``record_property`` and ``tmp_path``, below :data:`HEADER`.
"""

from __future__ import annotations

#: Of a test that leaves something behind it may be said in any of these ways, as long as the others end as they should.
SOMEHOW = ("passed", "failed", "error", "crashed")

GOOD = {
    "passes": ("assert regional.randn(2).shape == (2,)", ("passed",)),
    "compiles": ("regional.assert_parity(torch.sin, regional.randn(2))", ("passed",)),
    "fails": ("assert regional is None", ("failed",)),
    "skips": ("pytest.skip('on purpose')", ("skipped",)),
    "looks": ("look(); (tmp_path / 'file').write_text('')", ("passed",)),
}

CRASHES = {
    "os._exit": ("os._exit(0)", ("crashed",)),
    "segmentation fault": ("os.kill(os.getpid(), signal.SIGSEGV)", ("crashed",)),
    "abort": ("os.abort()", ("crashed",)),
    "SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL)", ("crashed",)),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)", ("crashed",)),
    "another program": ("os.execv(sys.executable, [sys.executable, '-c', ''])", ("crashed",)),
    "exit of C": ("ctypes.CDLL(None)._exit(0)", ("crashed",)),
    "fork that comes back": ("assert os.fork(), 'in the child'", ("passed",)),
    "exit in a thread": ("thread = threading.Thread(target=sys.exit); thread.start(); thread.join()", ("passed",)),
}

HANGS = {
    "hang": ("time.sleep(600)", ("failed",)),
    "loop in C": ("all(itertools.repeat(True))", ("crashed",)),
    "hang of a child": ("subprocess.run(['sleep', '600'])", ("failed",)),
}

LEAKS = {
    "default dtype": ("torch.set_default_dtype(torch.float64)", SOMEHOW),
    "grad mode": ("torch.set_grad_enabled(False)", SOMEHOW),
    "environment": ("os.environ['LEAKED'] = '1'", SOMEHOW),
    "changed folder": ("os.chdir(tmp_path)", SOMEHOW),
    "deterministic": ("torch.use_deterministic_algorithms(True)", SOMEHOW),
    "text": ("raise ValueError('\\udc80')", ("failed",)),
    "property": ("record_property('it', ['\\udc80', object()])", ("passed",)),
    "warning": ("warnings.warn('\\udc80')", ("passed",)),
    "output": ("print('\\udc80' + 'x' * 1_000_000); assert regional is None", ("failed",)),
    # What is put back only by what watches for leaks of Python's and of torch's modes.
    "dispatch mode": ("Counting().__enter__()", SOMEHOW),
    "inference mode": ("torch.inference_mode().__enter__()", SOMEHOW),
    "signal handler": ("signal.signal(signal.SIGUSR2, lambda *_: None)", SOMEHOW),
    "umask": ("os.umask(0o777)", SOMEHOW),
    "search path": ("sys.path.insert(0, 'leaked')", SOMEHOW),
    "closed output": ("sys.stdout.close()", SOMEHOW),
}

#: By group, from each of which a mix has one kind at least.
GROUPS = {"crashes": CRASHES, "hangs": HANGS, "leaks": LEAKS}

#: Without a seed: what ends or holds up a process.
SPREAD = {name: {**CRASHES, **HANGS}[name] for name in ("os._exit", "segmentation fault", "abort", "hang", "loop in C")}

ALL = {**GOOD, **CRASHES, **HANGS, **LEAKS}

HEADER = """
import ctypes, itertools, os, signal, subprocess, sys, threading, time, warnings
import pytest, torch
from torch.utils._python_dispatch import TorchDispatchMode

FOLDER = os.path.dirname(__file__)

class Counting(TorchDispatchMode):
    calls = 0
    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        Counting.calls += 1
        return function(*arguments, **(keywords or {}))

def umask():
    now = os.umask(0o022)
    os.umask(now)
    return now

UMASK = umask()

def look():
    Counting.calls = 0
    torch.ones(2) + 1
    print("seen")
    assert Counting.calls == 0
    assert torch.get_default_dtype() is torch.float32
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    assert not torch.are_deterministic_algorithms_enabled()
    assert os.getcwd() == FOLDER
    assert "LEAKED" not in os.environ and "leaked" not in sys.path
    assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL
    assert umask() == UMASK
"""

TEST = """
@pytest.mark.regional_compile(expects_regions=False)
def test_{number}(regional, record_property, tmp_path):
    {body}
"""
