"""What makes two failures the same defect: the innermost frame that says something."""

import types

import pytest
import torch

from pytest_regional.harness.raised import asserted_at, message_of, origin_of
from pytest_regional.testing import regional


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


def raised_by(call):
    with pytest.raises((AssertionError, ValueError)) as caught:
        call()
    return caught.value


def test_the_line_of_an_assertion():
    def asserts():
        assert len([]) == 1

    line = asserts.__code__.co_firstlineno + 1
    assert asserted_at(raised_by(asserts)) == f"{__file__}:{line}"


def expects_a_graph():
    with regional("aot_eager", "cpu", expects_regions=False) as r, r.expect(graphs=1):
        pass


def compares_numbers():
    torch.testing.assert_close(1.0, 2.0)


@pytest.mark.parametrize("call", [expects_a_graph, compares_numbers])
def test_the_line_that_calls_an_assertion(call):
    assert asserted_at(raised_by(call)) == f"{__file__}:{call.__code__.co_firstlineno + 1}"


def test_no_assertion_or_a_compilers_own_has_no_line():
    def compilers():
        torch.fx.Graph().inserting_before(torch.fx.Graph().placeholder("x"))

    assert asserted_at(raised_by(lambda: int("x"))) == ""
    assert isinstance(raised_by(compilers), AssertionError)
    assert asserted_at(raised_by(compilers)) == ""
