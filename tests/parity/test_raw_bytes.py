"""Tensors as bytes."""

import torch

from pytest_regional.harness.parity.state import raw_bytes, same_bytes


def test_one_element_with_a_stride():
    one = torch.tensor([1.5, 2.5, 3.5, 4.5])[::2][:1]

    assert one.stride() == (2,)
    assert raw_bytes(one).tolist() == raw_bytes(torch.tensor([1.5])).tolist()
    assert not same_bytes(one, torch.tensor([1.25]))
    assert same_bytes(one.to(torch.complex64)[:1], torch.tensor([1.5 + 0j]))
