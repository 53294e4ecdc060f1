"""What errors of Dynamo mean that name neither the annotation nor what to do about it."""

from __future__ import annotations

import re

_USER_CODE = re.compile(r"from user code:\s+(.*?)(?:\n\n|\Z)", re.DOTALL)
_REFUSED = re.compile(r"raised exception AnnotationError\((['\"])(.*)\1\)")
_SYMBOLIC = ("SymNodeVariable() is not a constant", "BUILD_STRING type error")
_MARKS = ("annotate(", "region(")


def annotation_mistake_in(error: BaseException) -> str | None:
    """Say what is wrong with an annotation that Dynamo failed on, and at which of the user's lines; None if nothing is.

    ``InternalTorchDynamoError``, or ``Unsupported``, where an annotation holds a number that Dynamo made symbolic: an
    argument of the compiled function at its second value, a size, an item of a tensor. ``Unsupported`` around an
    exception that the traced code raised. Both tell by their text alone (2.11, 2.13, 2.15).
    """
    if not str(type(error).__module__).startswith("torch._dynamo"):
        return None
    text = str(error)
    user_code = _USER_CODE.search(text)
    where = user_code.group(1).rstrip() if user_code else ""
    refused = _REFUSED.search(text)
    if refused:
        return f"{refused.group(2)}; from {where}"
    if any(sign in text for sign in _SYMBOLIC) and any(mark in where for mark in _MARKS):
        return (
            "an annotation holds a number that Dynamo made symbolic, as it makes every integer argument at its second "
            "value, while regions and configs have to be known when the program compiles. Give the integer to "
            'pytest_regional.region(i), or fix it: operator.index(i), f"layer{operator.index(i)}". Numbers that only '
            f"data tell (tensor.item()) and floats cannot be fixed so: pass strings. From {where}"
        )
    return None
