"""What Dynamo says of an annotation is said again as an AnnotationError, and nothing else is."""

import pytest
import torch
from torch._dynamo.exc import InternalTorchDynamoError, Unsupported
from torch.fx.traceback import annotate

from pytest_regional import AnnotationError, region
from pytest_regional._torch.dynamo import annotation_mistake_in
from pytest_regional.testing import regional

SYMBOLIC = """AsPythonConstantNotImplementedError: SymNodeVariable() is not a constant

from user code:
   File "m.py", line 3, in f
    {}

Set TORCHDYNAMO_VERBOSE=1"""


def test_a_symbolic_number_in_an_annotation():
    mistake = annotation_mistake_in(InternalTorchDynamoError(SYMBOLIC.format("with annotate({'a': i}):")))
    assert "operator.index(i)" in mistake
    assert mistake.endswith("with annotate({'a': i}):")


@pytest.mark.parametrize(
    "error",
    [
        InternalTorchDynamoError(SYMBOLIC.format("return table[i]")),
        InternalTorchDynamoError('something else\n\nfrom user code:\n   File "m.py"\n   with annotate(i):\n\n'),
        RuntimeError(SYMBOLIC.format("with annotate({'a': i}):")),
        ValueError("AnnotationError"),
    ],
    ids=["no annotation", "another error", "not Dynamo's", "no error of compilers"],
)
def test_others_are_left_alone(error):
    assert annotation_mistake_in(error) is None


def test_an_exception_of_traced_code():
    error = AnnotationError("not a float")
    assert "not a float" in annotation_mistake_in(Unsupported(f"Observed exception\n raised exception {error!r}\n", ""))


def test_an_exception_of_traced_code_as_torch_2_11_shows_it():
    shown = "raised exception AnnotationError((ConstantVariable(str: 'an id, not a list'),))"
    text = f"Observed exception\n {shown}\n\nfrom user code:\n   m.py\n\n"
    assert annotation_mistake_in(Unsupported(text, "")) == "an id, not a list; from m.py"


@pytest.mark.parametrize("name", [1.5, True, [1], ("a", 2.5), torch.ones(1)], ids=str)
def test_region_refuses_what_is_no_id_at_once(name):
    with pytest.raises(AnnotationError, match="a region id is a string, an integer"):
        region(name)


def test_plain_code_of_the_user_outside_of_torch_compile():
    with regional("aot_eager", expects_regions=False) as r:

        def program(x, layer):
            with annotate({"compile_with_inductor": {"inductor_region": layer}}):
                return x.sin()

        compiled = r.compile(program)
        r.run(compiled, r.randn(2), 1, as_is=True)
        with pytest.raises(AnnotationError, match="an annotation holds a number"):
            r.run(compiled, r.randn(2), 2, as_is=True)
