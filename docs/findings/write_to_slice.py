"""A custom operator writes to a slice of an input that begins behind the start of its memory: compiled, elsewhere.

``auto_functionalized_v2`` notes a written argument as a slice of its base where it can (``try_use_slice`` in
``torch/_higher_order_ops/auto_functionalize.py``), and takes for the slice's start the storage offset of the argument,
divided by the stride: the base's own offset is not taken off. Here ``x`` begins three numbers into its memory, so
``x[:8]`` is written as ``x[3:11]``. Nothing is said. No region and no Inductor is needed. Where the shifted slice ends
behind the base, the compiled call fails instead ("doesn't match the broadcast shape"). Found by fuzzing.

Expected: the compiled program writes what eager writes.
"""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


@torch.library.custom_op("findings::add_to", mutates_args=("target",))
def add_to(target: torch.Tensor, other: torch.Tensor) -> None:
    target.add_(other)


@add_to.register_fake
def add_to_fake(target, other):
    return None


def program(x):
    add_to(x[:8], torch.ones(8))
    return x * 2


def run(function):
    return function(torch.zeros(20)[3:])


compiled, eager = (run(function) for function in (torch.compile(program, backend="aot_eager"), program))
wrong = not torch.equal(compiled, eager)
print(f"compiled {compiled.int().tolist()}\neager    {eager.int().tolist()}")
print(f"torch {torch.__version__}: {'still fails' if wrong else 'fixed'}")
sys.exit(wrong)
