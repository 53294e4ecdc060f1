"""What makes two failures the same defect: the innermost frame that says something."""

import types

import pytest

from pytest_regional.harness.raised import message_of, origin_of


def raised_in(*modules):
    """Return an error that passed a function ``call`` of each module, the last one raising it."""
    call = None
    for name in reversed(modules):
        module = types.ModuleType(name)
        module.inner = call
        exec("def call():\n    if inner:\n        inner()\n    raise ValueError", module.__dict__)
        call = module.call
    try:
        call()
    except ValueError as error:
        return error


def test_generated_modules_have_one_name():
    origins = {
        origin_of(raised_in("torch._dynamo.x", f"torch._inductor.runtime.compile_tasks.{name}"))
        for name in ("cabc", "cxyz")
    }
    assert origins == {"ValueError at torch._inductor.runtime.compile_tasks:call"}


def test_a_module_that_only_passes_calls_on_is_no_origin():
    error = raised_in("torch._functorch.partitioners", "torch.fx._lazy_graph_module")
    assert origin_of(error) == "ValueError at torch._functorch.partitioners:call"


def test_a_check_that_fails_is_named_by_who_asked_for_it():
    module = types.ModuleType("torch._functorch.partitioners")
    exec("import torch\ndef asked(): torch._check(False, lambda: 'no')", module.__dict__)
    with pytest.raises(RuntimeError, match="no") as raised:
        module.asked()
    assert origin_of(raised.value) == "RuntimeError at torch._functorch.partitioners:asked"


@pytest.mark.parametrize(
    ("place", "message", "complaint"),
    [
        (
            "torch._dynamo.exc",
            'a call of mul_(*(FakeTensor(size=(s4,))): got RuntimeError("no 3 of s4\\n2")',
            "RuntimeError: no N of sN",
        ),
        ("torch._dynamo.exc", "No 3 of these\n  Explanation: none", "No N of these"),
        ("torch.nn.functional", "does not work. Got graph break/error:\n\nNo 7\n", None),
        ("torch.utils._pytree", "does not work. Got graph break/error:\n\nNo 7\n", "No N"),
        ("mine", "no 0x7f2 here", "no N here"),
    ],
)
def test_what_raises_all_sorts_of_errors_is_named_with_the_message(place, message, complaint):
    module = types.ModuleType(place)
    module.message = message
    exec("def unimplemented(): raise ValueError(message)", module.__dict__)
    with pytest.raises(ValueError, match=r"[Nn]o ") as raised:
        module.unimplemented()
    _, colon, rest = origin_of(raised.value).partition(" at ")[2].partition(": ")
    assert (rest if colon else None) == complaint


def test_the_module_of_the_backend_under_test_is_one():
    error = raised_in("torch._dynamo.x", "somebodys.backend")
    assert origin_of(error) == "ValueError at torch._dynamo.x:call"
    assert origin_of(error, "somebodys.backend") == "ValueError at somebodys.backend:call"


def test_a_message_names_no_place_of_this_machine():
    native = "\nException raised from fail at x.cpp:1\nframe #0: fail in /home/somebody/x.so"
    for more in ('\n\nfrom user code:\n   File "/home/somebody/x.py"', "\n\nSet TORCHDYNAMO_VERBOSE=1", native):
        assert message_of(ValueError(f"the cause{more}")) == "the cause"
    assert len(message_of(ValueError("x" * 900))) == 604
