"""When pre-grad passes run, with which uuids, and what is refused: the plan, before any cache is asked."""

from __future__ import annotations

import dataclasses
import enum
import itertools
import operator
import pathlib
import uuid
import warnings

import pytest
import torch
from torch._inductor import config, custom_graph_pass
from torch._inductor.custom_graph_pass import CustomGraphModulePass, CustomGraphPass

from pytest_regional import RegionalWarning
from pytest_regional.reference.pass_protocol import PreGradPassError, PreGradPlan, plan_pre_grad, stable_form


class Pass(CustomGraphPass):
    def __init__(self, uuid=None, action=None):
        self.value, self.action = uuid, action

    def __call__(self, graph):
        return self.action(graph) if self.action else None

    def uuid(self):
        return self.value


class Lacking(Pass):
    """A class of its own, for messages."""


def plan(passes, timing=None):
    with config.patch(pre_grad_custom_pass=passes):
        return plan_pre_grad(timing)


def graph_module(fn=lambda x: x * 1 + 2):
    return torch.fx.symbolic_trace(fn)


@pytest.fixture(autouse=True)
def _warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error", RegionalWarning)
        yield


@pytest.mark.parametrize(
    ("timing", "value", "early", "uuids"),
    [
        ("early", None, True, ()),
        ("early", "v1", True, ()),
        ("late", "v1", False, ("v1",)),
        ("default", "v1", False, ("v1",)),
        (None, "v1", False, ("v1",)),
    ],
)
def test_table(timing, value, early, uuids):
    custom = Pass(value)
    assert plan(custom, timing) == PreGradPlan((custom,), early, uuids)


@pytest.mark.parametrize("timing", ["early", "late", "default", None])
@pytest.mark.parametrize("passes", [None, [], ()])
def test_without_passes_nothing_runs_and_nothing_enters_the_key(timing, passes):
    assert plan(passes, timing) == PreGradPlan((), False, ())


def test_something_with_a_uuid_method_that_is_no_custom_graph_pass_has_none():
    """As in PyTorch."""
    duck = type("Duck", (), {"__call__": lambda self, graph: None, "uuid": lambda self: "v1"})()
    with pytest.raises(PreGradPassError, match=r"Duck has no uuid.*derive it from CustomGraphPass"):
        plan(duck, "late")


class Colour(enum.Enum):
    RED = 1


@dataclasses.dataclass(frozen=True)
class Version:
    major: int
    name: str = "x"


GOOD = {
    "str": "v1",
    "bytes": b"v1",
    "int": 1,
    "zero": 0,
    "float": 1.0,
    "bool": True,
    "nan": float("nan"),
    "tuple": ("a", (1, None)),
    "enum": Colour.RED,
    "uuid": uuid.UUID(int=3),
    "path": pathlib.PurePosixPath("a/b"),
    "frozenset": frozenset({"a", "b", "c"}),
    "dataclass": Version(1),
    "other dataclass": Version(2),
    "string of 1": "1",
}


@pytest.mark.parametrize("value", GOOD.values(), ids=GOOD.keys())
def test_uuids_that_identify(value):
    (entered,) = plan(Pass(value), "late").uuids
    assert hash(entered) is not None
    assert repr(entered) == repr(stable_form(value))


def test_two_uuids_that_differ_enter_the_key_differently():
    forms = [repr(stable_form(value)) for value in GOOD.values()]
    assert len(set(forms)) == len(forms)


def test_sets_enter_the_key_in_one_order():
    orders = {repr(stable_form(frozenset(order))) for order in itertools.permutations(["a", "bb", "ccc", "dd"])}
    assert len(orders) == 1


class Plain:
    pass


@pytest.mark.parametrize("timing", ["late", "default"])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", "returned '', which identifies nothing"),
        (b"", "identifies nothing"),
        ((), "identifies nothing"),
        (["v1"], "type list that cannot be hashed: return a non-empty str"),
        ({"v": 1}, "type dict that cannot be hashed"),
        (("a", ["b"]), "cannot be hashed"),
        (Plain(), "means nothing in another process"),
        ((1, Plain()), "means nothing in another process"),
        (Plain, "means nothing in another process"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_uuids_that_do_not_identify(value, message, timing):
    with pytest.raises(PreGradPassError, match=message) as caught:
        plan(Lacking(value), timing)
    assert "Lacking" in str(caught.value)
    assert "return" in str(caught.value)


class ModulePass(CustomGraphModulePass):
    def __call__(self, gm):
        pass

    def uuid(self):
        return "v1"


@pytest.mark.parametrize("timing", ["early", "late", "default"])
@pytest.mark.parametrize(
    ("custom", "message"),
    [
        (3, "holds 3, which is not a pass"),
        ("name", "which is not a pass"),
        (Lacking, "which is not a pass: give a CustomGraphPass instance"),
        ([Pass("v1"), None], "holds None"),
        (ModulePass(), "ModulePass is a CustomGraphModulePass.*derive it from CustomGraphPass"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_invalid_pre_grad_passes(custom, message, timing):
    with pytest.raises(PreGradPassError, match=message):
        plan(custom, timing)


@pytest.mark.skipif(
    not hasattr(custom_graph_pass, "CustomInferenceAwareGraphPass"), reason="torch 2.11 has no such pass"
)
def test_a_pass_with_a_second_argument_is_no_pre_grad_pass():
    class Aware(custom_graph_pass.CustomInferenceAwareGraphPass):
        def __call__(self, graph, is_inference):
            pass

        def uuid(self):
            return "v1"

    with pytest.raises(PreGradPassError, match="Aware is a CustomInferenceAwareGraphPass"):
        plan(Aware())


# Running


def test_nodes_may_be_left_out_of_order():
    """Inductor sorts the graph after its pre-grad passes, so passes come to rely on that."""

    def prepend(graph):
        output = graph.output_node()
        last = output.args[0]
        first = next(iter(graph.nodes))
        with graph.inserting_before(first):
            output.args = (graph.call_function(operator.neg, (last,)),)

    gm = graph_module()
    plan(Pass("v1", prepend)).run(gm)
    assert gm(torch.tensor(3)) == -5


def test_bodies_come_before_the_graph_that_uses_them():
    inner, body, outer = graph_module(), graph_module(), graph_module()
    for module, child, name in [(body, inner, "inner"), (outer, body, "body"), (outer, inner, "again")]:
        module.add_submodule(name, child)
        with module.graph.inserting_before(module.graph.output_node()):
            module.graph.get_attr(name)
    outer.add_submodule("unused", graph_module())
    seen = []
    plan([Pass("a", seen.append), Pass("b", seen.append)]).run(outer)
    assert seen == [g for module in (inner, body, outer) for g in (module.graph, module.graph)]


def other_graph_value(graph):
    other = torch.fx.Graph()
    graph.output_node().args = (other.placeholder("y"),)


def missing_attribute(graph):
    with graph.inserting_before(graph.output_node()):
        graph.output_node().args = (graph.create_node("call_module", "nowhere"),)


def cycle(graph):
    first = graph.find_nodes(op="call_function", target=operator.mul)[0]
    first.args = (graph.output_node().args[0], 1)


@pytest.mark.parametrize("action", [other_graph_value, missing_attribute, cycle])
def test_an_invalid_graph(action):
    with pytest.raises(PreGradPassError, match=r"pass Lacking left an invalid graph: .+"):
        plan([Pass("a"), Lacking("v1", action), Pass("b")]).run(graph_module())


def test_another_graph_returned():
    """PyTorch drops it without a word, and the pass seems to do nothing."""
    with pytest.raises(PreGradPassError, match=r"Lacking returned another Graph.*in place"):
        plan(Lacking("v1", lambda graph: torch.fx.Graph())).run(graph_module())


def test_its_own_graph_returned():
    plan(Lacking("v1", lambda graph: graph)).run(graph_module())
