"""What a Triton function loads from and stores to."""

from __future__ import annotations

import pytest

from pytest_regional.harness.codegen import events_of

#: Of a template, the arguments that it stores to are read as well only if it loads from them.
WRAPPER = """
triton_tem_kernel = async_compile.triton('triton_tem_kernel', '''
@triton.jit
def helper(pointer, other, n):
    tl.store(pointer + n, tl.load(other))
@triton.jit
def again(pointer):
    again(pointer)
    tl.store(pointer, 1)
@triton.jit
def triton_tem_kernel(arg_a, arg_b, n):
    a = arg_a
    b = arg_b
BODY
''', device_str='cuda')

def call(args):
    a, b = args
    triton_tem_kernel.run(a, b, 4, stream=stream0)
    return (a, b)
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
    (launch,) = events_of(WRAPPER.replace("BODY", lines), None).of_kind("kernel")
    assert set(launch.writes) == stored
    assert set(launch.reads) == {"a", "b"} - (stored - loaded)
