"""The cached shape of an element-wise operation on meta equals the shape that torch computes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from llmcalc.witnesses.shape_cache import ShapeCache

CALLS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "broadcast": lambda a, b: a * b,
    "by a whole number": lambda a, b: a * 2,
    "by a fraction": lambda a, b: a * 2.0,
    "integers by a fraction": lambda a, b: b.long() * 2.0,
    "integers by a whole number": lambda a, b: b.long() * 2,
    "transposed": lambda a, b: a.transpose(0, 1) + a.transpose(0, 1),
    "a comparison": lambda a, b: a > b,
    "a keyword": lambda a, b: torch.add(a, b, alpha=3),
    "another dtype": lambda a, b: a.to(torch.bfloat16),
    "a choice": lambda a, b: torch.where(a > b, a, 0.0),
    "no element-wise operation": lambda a, b: (a @ b[:, None]).softmax(0),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_second_call_gives_what_torch_gives(name: str) -> None:
    a, b, call = torch.empty(3, 4, 5, device="meta"), torch.empty(5, device="meta"), CALLS[name]
    plain = call(a, b)
    with ShapeCache():
        both = [call(a, b), call(a, b)]
    for out in both:
        assert (out.shape, out.stride(), out.dtype, out.device) == (
            plain.shape,
            plain.stride(),
            plain.dtype,
            plain.device,
        )


def test_it_is_remembered() -> None:
    a = torch.empty(3, 7, 11, device="meta")
    with ShapeCache() as mode:
        before = len(mode.cached_results)
        assert (a * a).shape == (a * a).shape == (3, 7, 11)
        assert len(mode.cached_results) == before + 1


def test_what_changes_a_tensor_or_has_values_is_run() -> None:
    a, real = torch.empty(3, device="meta"), torch.ones(3)
    with ShapeCache():
        assert a.add_(1) is a
        assert [(real + i).tolist() for i in (1, 1, 2)] == [[2.0] * 3, [2.0] * 3, [3.0] * 3]


def test_gradients_pass() -> None:
    a = torch.empty(3, device="meta", requires_grad=True)
    with ShapeCache():
        for _ in range(2):
            (a * a).sum().backward()
    assert a.grad is not None
    assert a.grad.shape == (3,)
