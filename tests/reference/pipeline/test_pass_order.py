"""The order of passes: by declaration, then as given; what cannot be is refused by name."""

from __future__ import annotations

import itertools
import warnings

import pytest

from pytest_regional import RegionalWarning
from pytest_regional.reference.pipeline import InvalidPassError, PassOrderError, PassPipeline, PipelineError

from .pass_examples import declared, note, traced


def names(*passes, disable=()):
    return PassPipeline(passes, disable=disable).names


def test_given_order_is_kept_where_nothing_is_declared():
    assert names(note("c"), note("a"), note("b")) == ("c", "a", "b")


@pytest.mark.parametrize(
    ("first", "order"),
    [
        ({"after": ("c",)}, ("b", "c", "a", "d")),
        ({"requires": ("d",)}, ("b", "c", "d", "a")),
        ({"after": "c"}, ("b", "c", "a", "d")),
        ({"after": ["b", "c"]}, ("b", "c", "a", "d")),
        ({"after": ("nobody",)}, ("a", "b", "c", "d")),
        ({"terminal": True}, ("b", "c", "d", "a")),
    ],
)
def test_a_declaration_moves_that_pass_and_no_other(first, order):
    assert names(declared("a", **first), note("b"), note("c"), note("d")) == order


def test_before_is_after_seen_from_the_other_side():
    assert names(note("a"), note("b"), declared("c", before=("a",))) == ("b", "c", "a")
    assert names(note("a"), note("b"), declared("c", before="b")) == ("a", "c", "b")


def test_every_order_of_the_list_gives_an_order_that_holds():
    chain = [note("a"), declared("b", after=("a",)), declared("c", requires=("b",)), declared("d", terminal=True)]
    for given in itertools.permutations(chain):
        assert names(*given) == ("a", "b", "c", "d")


def test_joint_passes_stand_first_since_they_run_first():
    assert names(note("a"), declared("j", graphs=("joint",)), note("b")) == ("j", "a", "b")


def test_terminal_passes_of_different_graphs_may_be_two():
    forward, backward = declared("f", terminal=True, graphs="forward"), declared("b", terminal=True, graphs="backward")
    assert names(forward, backward, note("x")) == ("x", "f", "b")


def refusal(*passes, disable=()):
    with pytest.raises(PassOrderError) as caught:
        PassPipeline(passes, disable=disable)
    return caught.value


def test_a_cycle_is_described():
    error = refusal(
        note("bystander"),
        declared("a", after=("b",)),
        declared("b", requires=("c",)),
        declared("c", after=("nobody",)),
        declared("downstream", after=("a",)),
        declared("d", before=("c",), after=("a",)),
    )
    assert set(error.passes) == {"a", "b", "c", "d"}
    for said in (
        "'a' must run after 'b' (after=('b',))",
        "'b' must run after 'c' (requires=('c',))",
        "'d' must run before 'c' (before=('c',))",
        "'d' must run after 'a' (after=('a',))",
    ):
        assert said in str(error)
    assert "bystander" not in str(error)
    assert "downstream" not in str(error)


def test_a_cycle_that_leads_over_a_terminal_pass_says_so():
    one_order = (declared("b", graphs="backward", after="t"), declared("f", graphs="forward", after="b"))
    error = refusal(declared("t", graphs="forward", terminal=True), *one_order)
    assert "'t' is terminal, so that 'f' runs before it; 'b' must run after 't'" in str(error)


def test_a_pass_after_itself():
    error = refusal(declared("a", after=("a",)))
    assert error.passes == ("a",)
    assert "itself" in str(error)


def test_a_required_pass_that_is_absent():
    error = refusal(declared("a", requires=("canonicalise",)), note("canonicalize"))
    assert error.passes == ("a", "canonicalise")
    assert "is not in the pipeline" in str(error)
    assert "Is 'canonicalize' meant?" in str(error)


def test_a_required_pass_that_is_disabled():
    error = refusal(declared("a", requires=("b",)), note("b"), disable=("b",))
    assert "'a' requires pass 'b', which is disabled: enable it, or disable 'a' too" in str(error)
    assert names(declared("a", requires=("b",)), note("b"), note("c"), disable=("a", "b")) == ("c",)


def test_two_terminal_passes():
    error = refusal(declared("regional", terminal=True), note("x"), declared("full", terminal=True))
    assert error.passes == ("regional", "full")
    assert "both terminal for the forward graph" in str(error)
    assert names(declared("regional", terminal=True), declared("full", terminal=True), disable="regional") == ("full",)


@pytest.mark.parametrize(
    "passes",
    [
        (declared("late", after=("last",)), declared("last", terminal=True)),
        (declared("late", requires=("last",)), declared("last", terminal=True)),
        (note("late"), declared("last", terminal=True, before=("late",))),
    ],
)
def test_a_pass_after_a_terminal_one(passes):
    error = refusal(*passes)
    assert error.passes == ("late", "last")
    assert "'last' is terminal" in str(error)


@pytest.mark.parametrize("graphs", [("forward",), ("backward",), ("forward", "backward"), ("inference", "forward")])
def test_a_joint_pass_after_one_of_a_later_graph(graphs):
    error = refusal(declared("early", graphs=("joint",), after=("late",)), declared("late", graphs=graphs))
    assert error.passes == ("early", "late")
    assert "the joint graph is partitioned into later" in str(error)
    assert names(declared("j", graphs="joint", after="k"), declared("k", graphs=("joint", *graphs))) == ("k", "j")


def test_a_terminal_pass_on_the_joint_graph():
    assert "still has to be partitioned" in str(refusal(declared("t", terminal=True, graphs=("joint", "forward"))))


def test_one_name_for_two_passes_even_if_it_is_disabled():
    assert refusal(note("a"), note("b"), note("a")).passes == ("a",)
    assert "disable= refer to passes by name" in str(refusal(note("a"), note("a"), disable=("a",)))


@pytest.mark.parametrize(
    ("declarations", "said"),
    [
        ({"after": 3}, "after=3 of the pass 'a' names no passes"),
        ({"requires": (1,)}, r"requires=\(1,\) of the pass 'a' names no passes"),
        ({"terminal": "yes"}, "terminal='yes' of the pass 'a' is neither"),
        ({"graphs": ()}, r"'a' has graphs=\(\): it would never run"),
        ({"name": ""}, "give a string that is not empty"),
    ],
)
def test_a_declaration_that_is_not_understood(declarations, said):
    with pytest.raises(InvalidPassError, match=said):
        PassPipeline([declared(**{"name": "a", **declarations})])


def test_a_graph_that_there_is_not():
    with pytest.raises(PipelineError, match=r"'forwards'.* Did you mean 'forward'\? Known: backward, forward, inf"):
        PassPipeline([declared("a", graphs=("forwards",))])


def test_requiring_a_pass_that_does_not_run_on_that_graph():
    gm = traced()
    pipeline = PassPipeline([declared("a", requires=("j",)), declared("j", graphs=("joint",))])
    assert pipeline.names == ("j", "a")
    pipeline.run(gm, [], graph="forward")  # The joint graph came before it.
    with pytest.raises(PassOrderError, match="'a' requires pass 'j', which does not run on the inference graph"):
        pipeline.run(gm, [], graph="inference")


@pytest.mark.parametrize("word", ["after", "before"])
def test_a_name_that_is_nearly_one_of_the_list_is_a_warning(word):
    with pytest.warns(RegionalWarning, match=f"pass 'a' has {word}='canonicalise', .* Is 'canonicalize' meant") as got:
        PassPipeline([declared("a", **{word: ("canonicalise",)}), note("canonicalize")], disable="canonicalize")
    assert [one.filename for one in got] == [__file__]


@pytest.mark.parametrize(
    ("declared_name", "there"),
    [("cse", "cse_late"), ("pass_1", "pass_2"), ("annotate_ops(r1)", "annotate_ops(r2)"), ("itself", "itselfs")],
)
def test_other_names_that_no_pass_has_say_nothing(declared_name, there):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other = there if there != "itselfs" else "unlike"
        PassPipeline([declared("itselfs", after=declared_name), note(other), note("b")])


def test_a_warning_of_a_name_is_given_once_a_list():
    with pytest.warns(RegionalWarning):
        pipeline = PassPipeline([declared("a", after="canonicalise"), note("canonicalize"), note("b")])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pipeline.without("b").names == ("a", "canonicalize")
