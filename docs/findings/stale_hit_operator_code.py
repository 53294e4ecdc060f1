"""Whole-graph Inductor's cache gives back what was compiled for other code of a user's operator.

AOTAutograd traces the derivative, the fake implementation and the composite kernel of an operator, and its key has only
the operator's name. The values are wrong in silence, also from one process to the next.
"""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def custom_op(name):
    made = torch.library.custom_op(f"mine::{name}", lambda x: x.clone(), mutates_args=(), schema="(Tensor x) -> Tensor")
    made.register_fake(lambda x: torch.empty_like(x))
    return made


def derivative(n):
    op = custom_op("derivative")
    op.register_autograd(lambda context, gradient: gradient * n)
    return lambda x: op(x)


def vmap_rule(n):
    op = custom_op("vmapped")
    op.register_vmap(lambda info, dims, x: (x * n, dims[0]))
    return lambda x: torch.func.vmap(lambda y: op(y))(x.detach()) * x


def composite(n):
    libraries.append(torch.library.Library("mine", "FRAGMENT"))
    libraries[0].define("composite(Tensor x) -> Tensor")
    libraries[0].impl("composite", lambda x: x * n, "CompositeImplicitAutograd")
    return lambda x: torch.ops.mine.composite(x)


def in_aten(n):
    libraries.append(torch.library.Library("aten", "FRAGMENT"))
    libraries[0].define("of_a_user(Tensor x) -> Tensor")
    libraries[0].impl("of_a_user", lambda x: x * n, "CompositeImplicitAutograd")
    return lambda x: torch.ops.aten.of_a_user(x)


def results(program):
    x = torch.arange(1.0, 5.0).reshape(2, 2).requires_grad_()
    output = program(x)
    output.sum().backward()
    return [output.detach(), x.grad]


def compiled(make, n):
    torch._dynamo.reset()  # as a new process would
    program = torch.compile(make(n), fullgraph=True)
    return results(program)


def forget():
    while libraries:
        libraries.pop()._destroy()


libraries = []
stale = 0
for make in (derivative, vmap_rule, composite, in_aten):
    compiled(make, 2)
    forget()
    found = compiled(make, 3)
    forget()
    expected = results(make(3))
    forget()
    wrong = not all(map(torch.equal, expected, found))
    stale += wrong
    print(f"  {make.__name__}: {'the result for the old code' if wrong else 'right'}")

print(f"torch {torch.__version__}: {'still fails' if stale else 'fixed'}: {stale} of 4 changes gave a stale result")
sys.exit(bool(stale))
