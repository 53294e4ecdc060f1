"""What a Triton function loads from and stores to."""

from __future__ import annotations

import ast

import pytest

from pytest_regional.harness.codegen.kernels import accesses_of

HELPERS = """
def helper(pointer, other, n):
    tl.store(pointer + n, tl.load(other))
def again(pointer):
    again(pointer)
    tl.store(pointer, 1)
"""


@pytest.mark.parametrize(
    ("body", "loaded", "stored"),
    [
        ("tl.store(a + 1, tl.load(b))", {"b"}, {"a"}),
        ("x = tl.load(a); tl.store(b + x, x)", {"a"}, {"b"}),
        ("p = a; q = p + n * 4; tl.store(q, 0)", set(), {"a"}),
        ("p = a\nfor i in range(n):\n    tl.store(p, 0)\n    p += 4", set(), {"a"}),
        ("tl.atomic_add(a + 1, 2.0)", {"a"}, {"a"}),
        ("d = tl.make_tensor_descriptor(base=a, shape=[n]); d.store([0], tl.load(b))", {"b"}, {"a"}),
        ("p = tl.make_block_ptr(a, shape=[n]); x = tl.load(p, mask=None)", {"a"}, set()),
        ("tl.store(pointer=a, value=tl.load(pointer=b))", {"b"}, {"a"}),
        ("helper(a, b, n)", {"b"}, {"a"}),
        ("helper(n=0, pointer=b, other=a)", {"a"}, {"b"}),
        ("again(b)", set(), {"b"}),
        ("x = a + b", set(), set()),
    ],
)
def test_accesses(body, loaded, stored):
    lines = "\n".join(f"    {line}" for line in body.split("\n"))
    module = ast.parse(f"{HELPERS}\ndef kernel(a, b, n):\n{lines}")
    functions = {function.name: function for function in module.body}
    found = accesses_of(functions["kernel"], functions)
    assert (found.loaded - {"n"}, found.stored - {"n"}) == (loaded, stored)
