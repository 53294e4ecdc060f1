"""Eager `median` and `nanmedian` along an expanded dimension return what is none of the elements, on CPU."""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch

wrong = []
for name in ("median", "nanmedian"):
    for number in range(20):
        expanded = torch.full((1,), float(number) + 1.5).expand(4)
        found = getattr(torch, name)(expanded, 0).values.item()
        if found != number + 1.5:
            wrong.append(f"{name} of four times {number + 1.5} is {found}")
if wrong:
    print(f"torch {torch.__version__}: still fails: {wrong[0]}, and {len(wrong) - 1} more of 40")
    sys.exit(1)
print(f"torch {torch.__version__}: fixed: the median of equal numbers is that number")
