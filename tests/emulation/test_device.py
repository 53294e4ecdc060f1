"""Descriptions of GPUs."""

import dataclasses
import subprocess
import sys

import pytest

from pytest_regional._base.errors import RegionalValueError
from pytest_regional.emulation import PROFILES, profile_named


def test_the_gpus_that_users_have_are_described() -> None:
    capabilities = {name: profile.compute_capability for name, profile in PROFILES.items()}
    assert capabilities == {"h100": (9, 0), "h200": (9, 0), "a100": (8, 0), "rtx4090": (8, 9)}


def test_an_unknown_gpu_is_named_with_those_there_are() -> None:
    with pytest.raises(RegionalValueError, match=r"'h20'.*Did you mean 'h200'.*a100"):
        profile_named("h20")


@pytest.mark.parametrize("name", PROFILES)
def test_inductor_finds_every_property_it_asks_for(name: str) -> None:
    from pytest_regional._torch import symbol

    fields = {field.name for field in dataclasses.fields(PROFILES[name])}
    asked = set(symbol("torch._inductor.runtime.hints", "DeviceProperties")._fields) - {"type", "index", "cc"}
    assert asked <= fields


@pytest.mark.parametrize("name", PROFILES)
def test_arch_is_as_compilers_spell_it(name: str) -> None:
    major, minor = PROFILES[name].compute_capability
    assert PROFILES[name].arch == f"sm_{major}{minor}"


def test_descriptions_and_errors_need_neither_torch_nor_triton() -> None:
    program = (
        "import sys; from pytest_regional.emulation import PROFILES, MemoryFaultError; "
        "sys.exit(bool({'torch', 'triton', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
