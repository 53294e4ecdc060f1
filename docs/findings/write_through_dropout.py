"""Dropout that drops nothing (in eval mode, or with p=0) returns its input; compiled, a write to the result is lost."""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def in_eval(x):
    torch.nn.functional.dropout(x, 0.5, False).mul_(2)


def of_none(x):
    torch.nn.functional.dropout(x, 0.0).mul_(2)


def wrong(function):
    expected, found = torch.ones(2), torch.ones(2)
    function(expected)
    torch.compile(function, backend="aot_eager", fullgraph=True)(found)
    print(f"{function.__name__}: eager leaves {expected.tolist()} in the input, compiled {found.tolist()}")
    return not torch.equal(found, expected)


still_fails = any([wrong(in_eval), wrong(of_none)])
print(f"torch {torch.__version__}: {'still fails: the write is lost' if still_fails else 'fixed'}")
sys.exit(still_fails)
