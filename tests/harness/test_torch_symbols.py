"""A private name of PyTorch that is gone is named, with the version."""

import subprocess
import sys

import pytest
import torch

from pytest_regional._torch import MissingTorchSymbolError, private_module, symbol


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


def test_configurations_are_found_in_a_process_that_imported_nothing_else():
    program = (
        "from pytest_regional._torch.config import compile_state, force_autograd_cache;"
        "print(force_autograd_cache(), sorted(compile_state()))"
    )
    output = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert output.strip() == "False ['functorch', 'global', 'inductor']"
