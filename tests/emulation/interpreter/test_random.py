"""Philox, against the numbers of its authors."""

import pytest
import torch
import triton
import triton.language as tl

from .launching import run

N = 512


@triton.jit
def four_words(seed, out, offset, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b, c, d = tl.randint4x(tl.load(seed), offset + i)
    tl.store(out + 4 * i, a)
    tl.store(out + 4 * i + 1, b)
    tl.store(out + 4 * i + 2, c)
    tl.store(out + 4 * i + 3, d)


@triton.jit
def draws(seed, uniform, normal, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(uniform + i, tl.rand(tl.load(seed), i))
    tl.store(normal + i, tl.randn(tl.load(seed), i))


def philox(seed: int, counter: int) -> list[int]:
    """Philox 4x32 with ten rounds, as in Salmon et al., 2011."""
    word = (1 << 32) - 1
    c = [counter & word, 0, 0, 0]
    key = [seed & word, seed >> 32 & word]
    for _ in range(10):
        first, second = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(second >> 32) ^ c[1] ^ key[0], second & word, (first >> 32) ^ c[3] ^ key[1], first & word]
        key = [(key[0] + 0x9E3779B9) & word, (key[1] + 0xBB67AE85) & word]
    return c


def test_philox_of_its_authors():
    assert philox(0, 0) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


@pytest.mark.parametrize("seed", [0, 7, 2**40 + 3])
def test_words(seed):
    out = torch.zeros(4 * 8, dtype=torch.int32)
    run(four_words, seed=torch.tensor([seed]), out=out, offset=5, N=8)
    expected = [value for i in range(8) for value in philox(seed, 5 + i)]
    assert [value % 2**32 for value in out.tolist()] == expected


def test_distributions():
    uniform, normal = torch.zeros(N), torch.zeros(N)
    run(draws, seed=torch.tensor([42]), uniform=uniform, normal=normal, N=N)
    assert 0 <= uniform.min() < uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 0.05
    assert abs(normal.mean()) < 0.15
    assert abs(normal.std() - 1) < 0.15
