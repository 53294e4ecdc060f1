"""What is refused, what it leaves behind, and the one warning."""

from __future__ import annotations

import itertools
import logging
import warnings

import pytest
import torch
import torch._inductor.custom_graph_pass

from .programs import program_and_inputs, run
from .table import NEEDS

pytestmark = pytest.mark.regional_compile(requires=NEEDS, dynamic=False, expects_regions=False)
checked = pytest.mark.regional_compile(
    requires=("pre_grad_passes", "annotation_checks"), dynamic=False, expects_regions=False
)

_names = itertools.count()


@pytest.fixture
def works_with_a_uuid(regional, pre_grad_pass):
    """Show that the same compile is fine with a uuid: the error was about that, and passes do run here."""

    def check(kind="function", timing="late"):
        counting = pre_grad_pass(uuid="v1")
        program, inputs = program_and_inputs(regional, kind)
        run(regional.compile(program, pre_grad_pass=counting, pre_grad_pass_timing=timing), inputs)
        assert counting.calls_by_compile == (1,)

    return check


def pass_without_uuid():
    """Return a pass of a class that nobody was warned of, in whatever process this is."""

    def call(self, graph):
        """Do nothing."""

    base = torch._inductor.custom_graph_pass.CustomGraphPass
    name = f"Lacking{next(_names)}"
    return type(name, (base,), {"__call__": call, "uuid": lambda self: None, "__qualname__": name})()


def function_without_uuid(graph):
    """No CustomGraphPass at all."""


@pytest.mark.parametrize("kind", ["function", "module"])
@pytest.mark.parametrize("make", [pass_without_uuid, lambda: function_without_uuid], ids=["pass", "function"])
def test_late_without_a_uuid(regional, works_with_a_uuid, make, kind):
    custom = make()
    name = getattr(custom, "__qualname__", type(custom).__qualname__)
    program, inputs = program_and_inputs(regional, kind)
    compiled = regional.compile(program, pre_grad_pass=custom, pre_grad_pass_timing="late")
    with (
        regional.expect(cache_hits=0, cache_misses=0, cache_saves=0, region_compiles=0),
        pytest.raises(RuntimeError, match=rf"(?s){name}.*uuid\(\).*early"),
    ):
        run(compiled, inputs)
    works_with_a_uuid(kind)


@pytest.mark.regional_compile(requires=(*NEEDS, "pre_grad_pass_lists"), dynamic=False, expects_regions=False)
def test_late_with_a_list_names_the_pass_without_a_uuid(regional, pre_grad_pass, works_with_a_uuid):
    lacking = pass_without_uuid()
    program, inputs = program_and_inputs(regional, "function")
    compiled = regional.compile(program, pre_grad_pass=[pre_grad_pass(uuid="v1"), lacking], pre_grad_pass_timing="late")
    with pytest.raises(RuntimeError, match=type(lacking).__qualname__):
        run(compiled, inputs)
    works_with_a_uuid()


@pytest.fixture
def said():
    """Collect what is said of uuids, by warnings or in PyTorch's log."""
    messages = []

    class Keep(logging.Handler):
        def emit(self, record):
            messages.append(record.getMessage())

    logger, handler = logging.getLogger("torch._inductor.codecache"), Keep()
    logger.addHandler(handler)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield lambda: [text for text in [*messages, *(str(w.message) for w in caught)] if "uuid" in text]
    logger.removeHandler(handler)


def test_default_without_a_uuid_is_said_once_for_each_class(regional, said, works_with_a_uuid):
    program, inputs = program_and_inputs(regional, "function")
    first, other = pass_without_uuid(), pass_without_uuid()
    for custom, expected in [(first, 1), (first, 1), (other, 2), (type(first)(), 2)]:
        run(regional.compile(program, pre_grad_pass=custom, pre_grad_pass_timing="default"), inputs)
        assert len(said()) == expected
    assert type(first).__qualname__ in said()[0]
    assert type(other).__qualname__ in said()[1]
    works_with_a_uuid(timing="default")


@pytest.mark.parametrize(("timing", "uuid"), [("early", None), ("early", "v1"), ("late", "v1"), ("default", "v1")])
def test_nothing_is_said_otherwise(regional, pre_grad_pass, said, timing, uuid):
    program, inputs = program_and_inputs(regional, "function")
    counting = pre_grad_pass(uuid=uuid)
    run(regional.compile(program, pre_grad_pass=counting, pre_grad_pass_timing=timing), inputs)
    assert said() == []
    assert counting.calls_by_compile == (1,)


class Mine(Exception):
    """The user's own."""


@pytest.mark.parametrize("timing", ["early", "late"])
@pytest.mark.parametrize("kind", ["function", "module"])
def test_a_pass_that_raises_leaves_no_entry(regional, pre_grad_pass, timing, kind):
    failing = [True]

    def fail(graph):
        if failing:
            raise Mine("what I meant to say")

    program, inputs = program_and_inputs(regional, kind)
    custom = pre_grad_pass(uuid="v1", transform=fail)

    def compiled(custom=custom):
        return regional.compile(program, pre_grad_pass=custom, pre_grad_pass_timing=timing)

    with (
        regional.expect(cache_saves=0, region_compiles=0),
        pytest.raises(Exception, match="what I meant to say") as caught,
    ):
        run(compiled(), inputs)
    # Dynamo wraps what a backend raises and keeps it as inner_exception.
    assert isinstance(caught.value, Mine) or isinstance(caught.value.inner_exception, Mine)

    regional.restart()
    with regional.expect(cache_hits=0, cache_misses=1, cache_saves=1):
        torch.testing.assert_close(run(compiled(None), inputs), run(program, inputs))
    failing.clear()
    regional.restart()
    # Early, the graph is now that of the compile without the pass.
    hits = int(timing == "early")
    with regional.expect(pre_grad_calls=1, cache_hits=hits, cache_misses=1 - hits):
        torch.testing.assert_close(run(compiled(), inputs), run(program, inputs))


def test_exceptions_of_uuid_are_visible(regional, works_with_a_uuid):
    base = torch._inductor.custom_graph_pass.CustomGraphPass

    def uuid(self):
        raise Mine("no uuid today")

    broken = type("Broken", (base,), {"__call__": lambda self, graph: None, "uuid": uuid})()
    program, inputs = program_and_inputs(regional, "function")
    with pytest.raises(Exception, match="no uuid today"):
        run(regional.compile(program, pre_grad_pass=broken, pre_grad_pass_timing="late"), inputs)
    works_with_a_uuid()


@checked
@pytest.mark.parametrize("timing", ["erly", "LATE", ""])
def test_a_misspelt_timing_is_an_error(regional, pre_grad_pass, timing):
    if not hasattr(torch._inductor.config, "pre_grad_pass_timing"):
        pytest.skip("this torch has no pre_grad_pass_timing (2.12 and later)")
    program, inputs = program_and_inputs(regional, "function")
    with (
        torch._inductor.config.patch(pre_grad_pass_timing=timing, pre_grad_custom_pass=pre_grad_pass(uuid="v1")),
        pytest.raises(RuntimeError, match=rf"pre_grad_pass_timing '{timing}'.*default, early, late"),
    ):
        run(regional.compile(program), inputs)


@pytest.mark.quick
@checked
@pytest.mark.parametrize("timing", ["late", "default"])
@pytest.mark.parametrize(
    "uuid",
    ["", b"", (), ["v1"], {"v": 1}, object()],
    ids=lambda uuid: f"{type(uuid).__name__} of {len(uuid)}" if hasattr(uuid, "__len__") else "object",
)
def test_a_uuid_that_identifies_nothing_is_an_error(regional, pre_grad_pass, timing, uuid):
    program, inputs = program_and_inputs(regional, "function")
    custom = pre_grad_pass(uuid=uuid)
    with (
        regional.expect(cache_bypasses=0, cache_hits=0, cache_misses=0, region_compiles=0),
        pytest.raises(RuntimeError, match=r"uuid\(\) of the pre-grad pass CountingPass returned .*: return "),
    ):
        run(regional.compile(program, pre_grad_pass=custom, pre_grad_pass_timing=timing), inputs)
    assert custom.calls == 0


@pytest.mark.quick
@checked
def test_a_uuid_that_changes_is_an_error(regional):
    numbers = itertools.count(1)
    base = torch._inductor.custom_graph_pass.CustomGraphPass
    members = {"__call__": lambda self, graph: None, "uuid": lambda self: next(numbers)}
    program, inputs = program_and_inputs(regional, "function")
    compiled = regional.compile(
        program, pre_grad_pass=type("Changing", (base,), members)(), pre_grad_pass_timing="late"
    )
    with pytest.raises(RuntimeError, match="Changing returned 1 and then 2"):
        run(compiled, inputs)
