"""A private name of PyTorch that is gone is named, with the version."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pytest_regional import torch_matches
from pytest_regional._torch import MissingTorchSymbolError, private_module, symbol, torch_version
from pytest_regional._torch.config import force_autograd_cache


@pytest.mark.parametrize(
    ("fetch", "name"),
    [
        (lambda: private_module("torch._no_such_module"), "torch._no_such_module"),
        (lambda: symbol("torch._dynamo", "no_such_name"), "torch._dynamo.no_such_name"),
        (lambda: symbol("torch._no_such_module", "config"), "torch._no_such_module.config"),
    ],
)
def test_missing_symbols_are_named(fetch, name):
    with pytest.raises(MissingTorchSymbolError, match=f"{name} does not exist in torch {torch.__version__[:4]}"):
        fetch()


def test_a_configuration_is_imported_where_nothing_else_has(monkeypatch):
    functorch = private_module("torch._functorch")
    monkeypatch.setattr(functorch, "config", private_module("torch._functorch.config"))  # to be put back
    monkeypatch.delitem(sys.modules, "torch._functorch.config")
    assert not force_autograd_cache()


@pytest.mark.slow(
    "starts an interpreter that imports torch", fast="test_a_configuration_is_imported_where_nothing_else_has"
)
def test_configurations_are_found_in_a_process_that_imported_nothing_else():
    program = (
        "from pytest_regional._torch.config import compile_state, force_autograd_cache;"
        "print(force_autograd_cache(), sorted(compile_state()))"
    )
    output = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert output.strip() == "False ['functorch', 'global', 'inductor']"


def test_versions_of_every_build_are_understood(monkeypatch):
    builds = {
        "2.13.0+cpu": ((2, 13), False),
        "2.15.1": ((2, 15), False),
        "2.16.0a0+git1234567": ((2, 16), True),
        "2.16.0.dev20261101+cu132": ((2, 16), True),
        "3.0.0": ((3, 0), True),
        "main+git1234567": ((2, 16), True),
        "git1234567": ((2, 16), True),
    }
    for version, (release, is_later) in builds.items():
        monkeypatch.setattr(torch, "__version__", version)
        assert torch_version() == release, version
        assert torch_matches(">=2.16") is is_later, version
        assert torch_matches(">=2.13"), version
        with pytest.raises(MissingTorchSymbolError, match=re.escape(version)):
            symbol("torch._dynamo", "no_such_name")


def test_the_version_is_known_before_torch_is_imported():
    program = (
        "import sys; from pytest_regional._torch import installed_version as version;"
        "print(version(), 'torch' in sys.modules)"
    )
    output = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert output.split() == [torch.__version__, "False"]


def test_no_build_of_torch_is_replaced_by_a_release():
    dependencies = (
        Path("pyproject.toml").read_text(encoding="utf-8").partition("\ndependencies = [")[2].partition("]")[0]
    )
    assert '  "torch>=2.11",\n' in dependencies
