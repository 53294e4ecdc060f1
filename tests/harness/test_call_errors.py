"""A call that gives the harness something else than a program is told so, and how to give one."""

import pytest
import torch

from pytest_regional.testing import regional


@pytest.mark.parametrize("call", ["compile", "run", "assert_parity"])
@pytest.mark.parametrize(("given", "shown"), [(torch.zeros(100), "a tensor"), ([1], "of type list")])
def test_invalid_programs(call, given, shown):
    with regional("aot_eager", expects_regions=False) as r, pytest.raises(TypeError) as caught:
        getattr(r, call)(given)
    assert f"regional.{call} needs a function or module, and this is {shown}" in str(caught.value)
    assert f"{call}(program, x), not {call}(program(x))" in str(caught.value)


def test_no_region_of_that_name():
    with regional("aot_eager", expects_regions=False) as r:
        record = r.run(torch.sin, torch.zeros(2))
    with pytest.raises(LookupError, match=r"^0 regions match 'typo'; there are: none$"):
        record.region("typo")
    with pytest.raises(LookupError, match=r"^0 regions match 'typo' in the forward graph; there are: none$"):
        record.region("typo", "forward")
