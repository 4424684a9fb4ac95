"""Each operation without values saves, holds and allocates what torch's does on meta."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from llmcalc.simulator.aten import Aten
from llmcalc.simulator.autograd import AutogradGraph, backward, saved_storages
from llmcalc.simulator.meter import Meter
from llmcalc.simulator.tensor import DTYPES, Tensor, empty
from tests.samples import in_one_test
from tests.simulator.witness import Held, measured

BF16, F32, LONG, BOOL = torch.bfloat16, torch.float32, torch.int64, torch.bool


class Case:
    """inputs: (shape, dtype, trained?, transposed axes or None)."""

    def __init__(self, ours: Callable[..., Tensor], theirs: Callable[..., torch.Tensor], *inputs: Any) -> None:
        self.ours, self.theirs = ours, theirs
        self.inputs = [(one if isinstance(one, tuple) and isinstance(one[0], tuple) else (one, BF16)) for one in inputs]


def of(shape: tuple[int, ...], dtype: torch.dtype = BF16) -> tuple[tuple[int, ...], torch.dtype]:
    return shape, dtype


X, Y, ROW, COLUMN = of((2, 3, 8)), of((2, 3, 8)), of((8,)), of((2, 3, 1))
HEADS = of((2, 4, 5, 6))


def turned(x: Any) -> Any:
    """Heads before tokens: [2, 5, 4, 6], not dense."""
    return x.transpose(1, 2)


def written_into_zeros(x: torch.Tensor, rows: int = 5, twice: bool = False) -> torch.Tensor:
    """x in the first rows of zeros, and for the second time in the last."""
    base = x.new_zeros(x.shape[0], rows, x.shape[2])
    base[:, : x.shape[1]] = x
    if twice:
        base[:, x.shape[1] :] = x * 2
    return base


CASES: dict[str, Case] = {
    "add": Case(lambda t, a, b: t.add(a, b), lambda a, b: a + b, X, Y),
    "add a row": Case(lambda t, a, b: t.add(a, b), lambda a, b: a + b, X, ROW),
    "add wider": Case(lambda t, a, b: t.add(a, b), lambda a, b: a + b, of((2, 3, 8), F32), Y),
    "sub": Case(lambda t, a, b: t.sub(a, b), lambda a, b: a - b, X, Y),
    "sub a column": Case(lambda t, a, b: t.sub(a, b), lambda a, b: a - b, X, COLUMN),
    "mul": Case(lambda t, a, b: t.mul(a, b), lambda a, b: a * b, X, Y),
    "mul a row": Case(lambda t, a, b: t.mul(a, b), lambda a, b: a * b, X, ROW),
    "mul a column": Case(lambda t, a, b: t.mul(a, b), lambda a, b: a * b, X, COLUMN),
    "mul wider": Case(lambda t, a, b: t.mul(a, b), lambda a, b: a * b, of((2, 3, 8), F32), Y),
    "mul, the first without gradient": Case(lambda t, a, b: t.mul(a, b), lambda a, b: a * b, of((2, 3, 8), LONG), Y),
    "mul, the second without gradient": Case(lambda t, a, b: t.mul(a, b), lambda a, b: a * b, X, of((2, 3, 8), LONG)),
    "mul by a wider number": Case(lambda t, a, b: t.mul(t.select(b, 0), a), lambda a, b: b[0] * a, X, of((2,), F32)),
    "div": Case(lambda t, a, b: t.div(a, b), lambda a, b: a / b, X, Y),
    "div by a column": Case(lambda t, a, b: t.div(a, b), lambda a, b: a / b, X, COLUMN),
    "by itself": Case(lambda t, a: t.mul(a, a), lambda a: a * a, X),
    "twice": Case(lambda t, a: t.add(t.scale(a), t.elementwise_function("silu", a)), lambda a: a * 2 + F.silu(a), X),
    "scale": Case(lambda t, a: t.scale(a), lambda a: a * 3.0, X),
    "add a number": Case(lambda t, a: t.add_number(a), lambda a: a + 1e-5, X),
    "square": Case(lambda t, a: t.square(a), lambda a: a.square(), X),
    "expm1": Case(lambda t, a: t.expm1(a), lambda a: a.expm1(), X),
    "clamp": Case(lambda t, a: t.clamp(a), lambda a: a.clamp(min=0.5), X),
    "minimum": Case(lambda t, a, b: t.minimum(a, b), torch.minimum, X, Y),
    "minimum of a number": Case(
        lambda t, a, b: t.minimum(a, t.select(b, 0)), lambda a, b: a.minimum(b[0]), X, of((2,))
    ),
    "rsqrt": Case(lambda t, a: t.rsqrt(a), lambda a: a.rsqrt(), X),
    "sqrt": Case(lambda t, a: t.sqrt(a), lambda a: a.sqrt(), X),
    "exp": Case(lambda t, a: t.exp(a), lambda a: a.exp(), X),
    **{
        name: Case(lambda t, a, name=name: t.elementwise_function(name, a), lambda a, name=name: getattr(F, name)(a), X)
        for name in ("relu", "sigmoid", "tanh", "silu", "gelu", "softplus")
    },
    "to float": Case(lambda t, a: t.to(a, DTYPES["float32"]), lambda a: a.float(), X),
    "masked fill": Case(lambda t, a, m: t.masked_fill(a, m), lambda a, m: a.masked_fill(m, 0.0), X, of((3, 8), BOOL)),
    "masked fill, turned": Case(
        lambda t, a, m: t.flatten(t.masked_fill(t.transpose(a, 1, 2), m), 1, 2),
        lambda a, m: a.transpose(1, 2).masked_fill(m, 0.0).flatten(1, 2),
        X,
        of((3,), BOOL),
    ),
    "masked fill, repeated": Case(
        lambda t, a, m: t.masked_fill(t.expand(a, (2, 3, 8)), m),
        lambda a, m: a.expand(-1, -1, 8).masked_fill(m, 0.0),
        COLUMN,
        of((3, 8), BOOL),
    ),
    "where": Case(lambda t, m, a, b: t.where(m, a, b), torch.where, of((2, 3, 8), BOOL), X, Y),
    "mean": Case(lambda t, a: t.mean(a), lambda a: a.mean(-1, keepdim=True), X),
    "sum": Case(lambda t, a: t.sum(a), lambda a: a.sum(-1), X),
    "sum kept": Case(lambda t, a: t.mul(a, t.sum(a, keepdim=True)), lambda a: a * a.sum(-1, keepdim=True), X),
    "softmax": Case(lambda t, a: t.softmax(a), lambda a: a.softmax(-1), X),
    "log softmax": Case(lambda t, a: t.log_softmax(a), lambda a: a.log_softmax(-1), X),
    "nll": Case(lambda t, a, i: t.nll_loss(a, i), F.nll_loss, of((6, 8), F32), of((6,), LONG)),
    "cat": Case(
        lambda t, a, b: t.elementwise_function("silu", t.cat([a, b])), lambda a, b: F.silu(torch.cat([a, b], -1)), X, Y
    ),
    "split": Case(lambda t, a: t.mul(*t.split(t.scale(a), [4, 4])), lambda a: torch.mul(*(a * 2).split(4, -1)), X),
    "split, one part": Case(lambda t, a: t.split(t.scale(a), [4, 4])[0], lambda a: (a * 2).split(4, -1)[0], X),
    "unbind": Case(
        lambda t, a: t.mul(*t.unbind(t.scale(a), 0)), lambda a: torch.mul(*(a * 2).unbind(0)), of((2, 3, 8))
    ),
    "unbind, some": Case(
        lambda t, a: t.mul(*t.unbind(t.scale(a), 1)[:2]), lambda a: torch.mul(*(a * 2).unbind(1)[:2]), of((2, 3, 8))
    ),
    "unbind, one": Case(lambda t, a: t.scale(t.unbind(a, 1)[0]), lambda a: a.unbind(1)[0] * 2, of((2, 1, 8))),
    "stack": Case(
        lambda t, a, b: t.elementwise_function("silu", t.stack([a, t.scale(b)], 2)),
        lambda a, b: F.silu(torch.stack([a, b * 2], 2)),
        X,
        Y,
    ),
    "slice": Case(lambda t, a: t.scale(t.slice(a, 3)), lambda a: a[..., :3] * 2, X),
    "select": Case(lambda t, a: t.scale(t.select(a, 1)), lambda a: a[:, 0] * 2, X),
    "repeat": Case(lambda t, a: t.repeat_interleave(a, 3, 1), lambda a: a.repeat_interleave(3, 1), HEADS),
    "repeat turned": Case(
        lambda t, a: t.repeat_interleave(t.transpose(a, 1, 2), 3, 1),
        lambda a: a.transpose(1, 2).repeat_interleave(3, 1),
        HEADS,
    ),
    "repeat, tiled": Case(lambda t, a: t.repeat(a, 3, 1), lambda a: a.repeat(1, 3, 1, 1), HEADS),
    "repeat, tiled, once": Case(lambda t, a: t.repeat(a, 1, 1), lambda a: a.repeat(1, 1, 1, 1), HEADS),
    "repeat turned, tiled": Case(
        lambda t, a: t.repeat(t.transpose(a, 1, 2), 3, 1), lambda a: a.transpose(1, 2).repeat(1, 3, 1, 1), HEADS
    ),
    "linear": Case(lambda t, x, w: t.linear(x, w), F.linear, X, of((5, 8))),
    "linear with bias": Case(lambda t, x, w, b: t.linear(x, w, b), F.linear, X, of((5, 8)), of((5,))),
    "linear, not dense, with bias": Case(
        lambda t, x, w, b: t.linear(t.transpose(x, 0, 1), w, b),
        lambda x, w, b: F.linear(x.transpose(0, 1), w, b),
        X,
        of((5, 8)),
        of((5,)),
    ),
    "linear, 2 axes": Case(lambda t, x, w, b: t.linear(x, w, b), F.linear, of((6, 8)), of((5, 8)), of((5,))),
    "linear twice": Case(
        lambda t, x, w: t.linear(t.linear(x, w), w), lambda x, w: F.linear(F.linear(x, w), w), X, of((8, 8))
    ),
    "linear, 4 axes": Case(lambda t, x, w: t.linear(x, w), F.linear, HEADS, of((5, 6))),
    "matmul": Case(lambda t, a, b: t.matmul(a, b), lambda a, b: a @ b, HEADS, of((2, 4, 6, 7))),
    "matmul of turned": Case(
        lambda t, a, b: t.matmul(t.transpose(a, 1, 2), t.transpose(t.transpose(b, 1, 2), 2, 3)),
        lambda a, b: a.transpose(1, 2) @ b.transpose(1, 2).transpose(2, 3),
        HEADS,
        of((2, 7, 5, 6)),
    ),
    "matmul of turned, one sequence": Case(
        lambda t, a, b: t.matmul(t.transpose(a, 1, 2), t.transpose(t.transpose(b, 1, 2), 2, 3)),
        lambda a, b: a.transpose(1, 2) @ b.transpose(1, 2).transpose(2, 3),
        of((1, 4, 5, 6)),
        of((1, 7, 5, 6)),
    ),
    "matmul, broadcast": Case(lambda t, a, b: t.matmul(a, b), lambda a, b: a @ b, HEADS, of((2, 1, 6, 7))),
    "heads there and back": Case(
        lambda t, x: t.flatten(t.transpose(t.scale(t.transpose(t.unflatten(x, -1, (4, 2)), 1, 2)), 1, 2), 2),
        lambda x: (x.unflatten(-1, (4, 2)).transpose(1, 2) * 2).transpose(1, 2).flatten(2),
        X,
    ),
    "heads, cat, and back": Case(
        lambda t, x: t.flatten(t.transpose(t.cat([t.transpose(t.unflatten(x, -1, (4, 2)), 1, 2)] * 2), 1, 2), 2),
        lambda x: torch.cat([x.unflatten(-1, (4, 2)).transpose(1, 2)] * 2, -1).transpose(1, 2).flatten(2),
        X,
    ),
    "product with a matrix by columns": Case(
        lambda t, a, b: t.mm(t.transpose(a, 0, 1), t.transpose(b, 0, 1)),
        lambda a, b: a.T @ b.T,
        of((6, 8)),
        of((5, 6)),
    ),
    "product with a part of a matrix by columns": Case(
        lambda t, a, b: t.elementwise_function("silu", t.mm(a, t.transpose(t.slice(t.scale(b), 4), 0, 1))),
        lambda a, b: F.silu(a @ (b * 2)[:, :4].T),
        of((3, 4)),
        of((5, 6)),
    ),
    "baddbmm": Case(lambda t, c, a, b: t.baddbmm(c, a, b), torch.baddbmm, of((2, 1, 7)), of((2, 3, 6)), of((2, 6, 7))),
    "pad": Case(lambda t, x: t.scale(t.pad(x, 5, 1)), lambda x: F.pad(x, (0, 0, 0, 2)) * 2, X),
    "write into zeros": Case(
        lambda t, x: t.scale(t.write_into(t.new_tensor((2, 5, 8), x.dtype), x)),
        lambda x: written_into_zeros(x) * 2,
        X,
    ),
    "write twice": Case(
        lambda t, x: t.scale(t.write_into(t.write_into(t.new_tensor((2, 6, 8), x.dtype), x), t.scale(x))),
        lambda x: written_into_zeros(x, 6, twice=True) * 2,
        X,
    ),
    "add in place": Case(lambda t, a, b: t.scale(t.add_to(t.scale(a), b)), lambda a, b: (a * 2).add_(b) * 2, X, Y),
    "a product of heads": Case(
        lambda t, x, y: t.mul(
            t.transpose(t.unflatten(x, -1, (4, 2)), 1, 2), t.transpose(t.unflatten(y, -1, (4, 2)), 1, 2)
        ),
        lambda x, y: x.unflatten(-1, (4, 2)).transpose(1, 2) * y.unflatten(-1, (4, 2)).transpose(1, 2),
        X,
        Y,
    ),
    "convolution": Case(
        lambda t, x, w, b: t.elementwise_function("silu", t.convolution(x, w, b, 9)),
        lambda x, w, b: F.silu(F.conv1d(x, w, b, stride=2, padding=1)),
        of((2, 5, 18)),
        of((8, 5, 3)),
        of((8,)),
    ),
    "convolution of turned rows": Case(
        lambda t, x, w: t.elementwise_function(
            "silu", t.transpose(t.convolution(t.transpose(x, 1, 2), w, None, 18), 1, 2)
        ),
        lambda x, w: F.silu(F.conv1d(x.transpose(1, 2), w, None, padding=1, groups=2).transpose(1, 2)),
        of((2, 18, 6)),
        of((8, 3, 3)),
    ),
    "embedding": Case(lambda t, i, w: t.embedding(w, i), F.embedding, of((2, 3), LONG), of((9, 8))),
    "gather": Case(lambda t, x, i: t.gather(x, i), lambda x, i: x.gather(-1, i), X, of((2, 3, 5), LONG)),
    "gather, index repeated": Case(
        lambda t, x, i: t.scale(t.transpose(t.gather(x, t.expand(i, (2, 3, 5))), 1, 2)),
        lambda x, i: x.gather(-1, i.expand(2, 3, 5)).transpose(1, 2) * 2,
        X,
        of((3, 5), LONG),
    ),
    "scatter": Case(
        lambda t, x, i, y: t.scatter(x, i, y),
        lambda x, i, y: x.scatter(-1, i, y),
        X,
        of((2, 3, 5), LONG),
        of((2, 3, 5)),
    ),
    "scatter a number": Case(
        lambda t, x, i: t.scatter(x, i), lambda x, i: x.scatter(-1, i, 1.0), X, of((2, 3, 5), LONG)
    ),
    "permute": Case(lambda t, x: t.scale(t.permute(x, (2, 0, 1))), lambda x: x.permute(2, 0, 1) * 2, X),
    "permute, flat": Case(
        lambda t, x: t.flatten(t.permute(x, (2, 0, 1)), 1), lambda x: x.permute(2, 0, 1).flatten(1), X
    ),
    "index select": Case(
        lambda t, x, i: t.index_select(x, i), lambda x, i: x.index_select(0, i), of((6, 8)), of((10,), LONG)
    ),
    "index select by several axes": Case(
        lambda t, x, i: t.index_select(x, i), lambda x, i: x[i], of((6,)), of((2, 5, 3), LONG)
    ),
    "top k": Case(lambda t, x: t.topk(x, 3)[0], lambda x: x.topk(3, -1).values, of((2, 3, 8), F32)),
    "at the indices of top k": Case(
        lambda t, x: t.gather(x, t.topk(x, 3)[1]), lambda x: x.gather(-1, x.topk(3, -1).indices), of((2, 3, 8), F32)
    ),
    "rows in the order of their experts": Case(
        lambda t, x, i: t.index_select(x, t.new_like(t.sort(t.flatten(i))[1])),
        lambda x, i: x.index_select(0, i.flatten().sort(stable=True)[1] // 2),
        of((6, 8)),
        of((6, 2), LONG),
    ),
    "grouped product": Case(
        lambda t, x, w, i: t.grouped_mm(x, t.transpose(w, 1, 2), t.to(t.histogram(i, 4), DTYPES["int32"])),
        lambda x, w, i: F.grouped_mm(x, w.transpose(1, 2), offs=i.float().histc(4, 0, 3).cumsum(0, dtype=torch.int32)),
        of((12, 8)),
        of((4, 16, 8)),
        of((12,), LONG),
    ),
    "grouped product of weights stored by input": Case(
        lambda t, x, w, ends: t.grouped_mm(x, w, ends),
        lambda x, w, ends: F.grouped_mm(x, w, offs=ends),
        of((12, 8)),
        of((4, 8, 16)),
        of((4,), torch.int32),
    ),
    "index add": Case(
        lambda t, x, i: t.index_add(5, x, i),
        lambda x, i: torch.zeros(5, 8, device="meta", dtype=BF16).index_add(0, i, x),
        of((6, 8)),
        of((6,), LONG),
    ),
}


def ours(case: Case) -> Held:
    meter = Meter()
    graph = AutogradGraph(meter)
    graph.adds_in_place = False  # under a dispatch mode torch never does
    meter.kind = "weights"
    inputs = [
        empty(meter, shape, DTYPES[str(dtype)[6:]], is_leaf=dtype.is_floating_point) for shape, dtype in case.inputs
    ]
    meter.kind = "temporary"
    base = meter.live_bytes
    meter.restart()
    out = case.ours(Aten(graph), *inputs)
    saved = sum(s.bytes for s in saved_storages(out) if s.block.kind != "weights")
    live, forward = meter.live_bytes - base, meter.peak_bytes - base
    meter.restart()
    backward(graph, out, graph.new_tensor(out.shape, out.dtype, out.strides))
    del out
    return Held(saved, live, forward, meter.peak_bytes - base, meter.live_bytes - base)


def theirs(case: Case, log: list[str] | None = None) -> Held:
    inputs = [
        torch.empty(shape, dtype=dtype, device="meta", requires_grad=dtype.is_floating_point)
        for shape, dtype in case.inputs
    ]
    return measured(lambda: case.theirs(*inputs), inputs, log)


@in_one_test
@pytest.mark.parametrize("name", CASES)
def test_an_operation_holds_what_torch_holds(name: str) -> None:
    log: list[str] = []
    theirs(CASES[name])  # the first pass of a process may keep a gradient that later ones hand on
    want = theirs(CASES[name], log)
    assert ours(CASES[name]) == want, "\n".join(log)
