"""Whole-graph Inductor on CPU gives wrong values for flex attention behind a rotary embedding."""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

HEADS, KV_HEADS, LENGTH, SIZE = 16, 8, 128, 16
torch.manual_seed(0)
mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, LENGTH, LENGTH, device="cpu")
angles = torch.arange(LENGTH)[:, None] * torch.rand(SIZE // 2)
cosine, sine = angles.cos(), angles.sin()


def rotate(x):
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, first * sine + second * cosine), dim=-1)


def program(x, w):
    heads = (x @ w).view(2, LENGTH, -1, SIZE).transpose(1, 2)
    query, key, value = heads.split((HEADS, KV_HEADS, KV_HEADS), dim=1)
    return flex_attention(rotate(query), rotate(key), value, block_mask=mask, enable_gqa=True)


x, w = torch.randn(2, LENGTH, 256), torch.randn(256, (HEADS + 2 * KV_HEADS) * SIZE) / 16
with torch.no_grad():
    worst = (torch.compile(program, fullgraph=True)(x, w) - program(x, w)).abs().max().item()
print(f"torch {torch.__version__}: largest difference from eager {worst:.3g}")
sys.exit(worst > 1e-3)
