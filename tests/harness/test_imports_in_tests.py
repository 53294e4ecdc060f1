"""A package that is first imported in a test: what its import changes stays, and is no leak."""

from __future__ import annotations

import copyreg
import gc
import importlib
import logging
import os
import pickle
import sys
import warnings

import pytest
import torch

from pytest_regional import BackendLeakError, BackendSpec
from pytest_regional.testing import regional

PACKAGE = """
import copyreg, gc, logging, os, sys, warnings
import torch

class Pair:
    pass

def rebuilt(pair):
    return Pair, ()

def hook(module, inputs, output):
    return None

# Types of C extensions often name a module that does not exist.
Pair.__module__ = "_of_an_extension"
copyreg.pickle(Pair, rebuilt)
torch.utils._pytree.register_pytree_node(Pair, lambda pair: ([], None), lambda values, context: Pair())
torch.nn.modules.module._global_forward_hooks["of an import"] = hook
torch._inductor.config.max_fusion_size = 7
os.environ["SET_BY_AN_IMPORT"] = "1"
os.environ["CHANGED_BY_AN_IMPORT"] += " and an import"
gc.callbacks.append(lambda phase, info: None)
sys.path.append("of an import")
sys.setrecursionlimit(sys.getrecursionlimit() + 1)
warnings.filterwarnings("ignore", "of an import")
logging.getLogger("of an import").setLevel(logging.ERROR)
"""


def what_there_is():
    """Return whether each change of PACKAGE is there."""
    module = sys.modules["imported_late"]
    return {
        "copyreg": module.Pair in copyreg.dispatch_table,
        "pytree": module.Pair in torch.utils._pytree.SUPPORTED_NODES,
        "hook": "of an import" in torch.nn.modules.module._global_forward_hooks,
        "config": torch._inductor.config.max_fusion_size == 7,
        "environment": os.environ.get("SET_BY_AN_IMPORT") == "1",
        "changed environment": os.environ["CHANGED_BY_AN_IMPORT"].endswith("and an import"),
        "gc": any(each.__module__ == "imported_late" for each in gc.callbacks),
        "path": "of an import" in sys.path,
        "filter": any("of an import" in str(each) for each in warnings.filters),
        "logger": logging.getLogger("of an import").level == logging.ERROR,
    }


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package that no test has imported; what its import changes ends with the test."""
    (tmp_path / "imported_late.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("CHANGED_BY_AN_IMPORT", "test")
    callbacks, limit = list(gc.callbacks), sys.getrecursionlimit()
    with torch._inductor.config.patch(max_fusion_size=64), warnings.catch_warnings():
        yield "imported_late"
    sys.setrecursionlimit(limit)
    gc.callbacks[:] = callbacks
    os.environ.pop("SET_BY_AN_IMPORT", None)
    torch.nn.modules.module._global_forward_hooks.pop("of an import", None)
    module = sys.modules.pop("imported_late", None)
    if module is not None:
        copyreg.dispatch_table.pop(module.Pair, None)
        torch.utils._pytree.SUPPORTED_NODES.pop(module.Pair, None)


def test_what_an_import_changes_stays(package):
    with regional("aot_eager", expects_regions=False) as r:
        importlib.import_module(package)
    assert r.leaks == ()
    assert [name for name, there in what_there_is().items() if not there] == []
    with regional("aot_eager", expects_regions=False) as r:
        pickle.dumps(copyreg.dispatch_table[sys.modules[package].Pair])
    assert r.leaks == ()


def test_what_the_test_changes_does_not(package):
    before = list(sys.path), os.environ["CHANGED_BY_AN_IMPORT"]
    with regional("aot_eager", expects_regions=False) as r:
        sys.path.insert(0, "of the test")
        os.environ["SET_BY_A_TEST"] = "1"
        importlib.import_module(package)
        torch._inductor.config.max_autotune = True
        gc.callbacks.append(lambda phase, info: None)
    names = {"sys.path", "environment variable SET_BY_A_TEST", "torch._inductor.config.max_autotune"}
    assert {leak.name for leak in r.leaks} == {*names, "garbage collector"}
    assert [name for name, there in what_there_is().items() if not there] == []
    assert sys.path == [*before[0], "of an import"]
    assert os.environ["CHANGED_BY_AN_IMPORT"] == f"{before[1]} and an import"


def test_a_failed_import_is_no_exception(package, tmp_path):
    (tmp_path / "imported_late.py").write_text("import os\nos.environ['SET_BY_AN_IMPORT'] = '1'\nraise ImportError\n")
    with regional("aot_eager", expects_regions=False) as r:
        with pytest.raises(ImportError):
            importlib.import_module(package)
    assert r.leaks == ()
    assert importlib.util.find_spec(package).loader.get_source(package)


def test_a_backend_may_import_its_compiler_at_the_first_compile(package):
    def lazy(gm, inputs):
        importlib.import_module(package)
        return gm.forward

    with regional(BackendSpec("lazy", lambda: lazy), expects_regions=False) as r:
        torch.compile(torch.sin, backend=r.dynamo_backend)(torch.ones(2))
    assert r.leaks == ()
    assert what_there_is()["environment"]


def test_the_remedy_for_what_is_set_at_the_first_compile():
    def lazy(gm, inputs):
        os.environ["SET_BY_A_COMPILER"] = "1"
        return gm.forward

    with pytest.raises(BackendLeakError, match=r"SET_BY_A_COMPILER: set\n.*import that compiler at the top of"):
        with regional(BackendSpec("lazy", lambda: lazy), expects_regions=False) as r:
            torch.compile(torch.sin, backend=r.dynamo_backend)(torch.ones(2))
    assert "SET_BY_A_COMPILER" not in os.environ
