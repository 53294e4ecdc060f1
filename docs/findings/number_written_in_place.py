"""A write to an input of float64 without dimensions, as ``zero_`` or ``mul_``, is lost once compiled, in silence."""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x):
    y = torch.sin(x)
    x.mul_(2.0)
    return y


def left(function):
    x = torch.tensor(1.5, dtype=torch.float64)
    function(x)
    return x.item()


eager, compiled = left(program), left(torch.compile(program, backend="aot_eager"))
print(f"the input afterwards: eager {eager}, compiled {compiled}")
still_fails = eager != compiled
print(f"torch {torch.__version__}: {'still fails: the write is lost' if still_fails else 'fixed'}")
sys.exit(still_fails)
