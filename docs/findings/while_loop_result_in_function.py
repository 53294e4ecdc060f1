"""What a while loop returns cannot be given to an ``autograd.Function``: Dynamo fails while it traces the function.

No dimension of the program is dynamic and no size in it depends on data; still, Dynamo meets an expression over a
symbol that does (``12*u0 - 12`` for a result of twelve elements), and has to lift it into the sub-graph of the
function. Where that symbol comes from it does not know: an AssertionError in ``_lift_symbols_in_symint``, in Dynamo
itself and so on every backend. The loop alone compiles, and so does the function alone.
"""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, gradient):
        x, y = ctx.saved_tensors
        return gradient * y, gradient * x


def program(x):
    start = torch.zeros((), dtype=torch.int64)
    _, y = torch._higher_order_ops.while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, y.sin()), (start, x))
    return Product.apply(y, x)


x = torch.ones(3, 4, requires_grad=True)
try:
    torch.compile(program, backend="eager", fullgraph=True)(x)
except Exception as error:
    print(f"torch {torch.__version__}: still fails: {type(error).__name__}: {str(error).splitlines()[0]}")
    sys.exit(1)
print(f"torch {torch.__version__}: fixed")
