"""torch's operations on tensors without values: the shape and strides of each result, and what its backward saves.

Formulas of gradients: tools/autograd/derivatives.yaml and torch/csrc/autograd/FunctionsManual.cpp of torch 2.13. The
temporaries of a C++ expression live until its end, so a backward function here names each of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..algebra import Number
from . import layout
from .autograd import Backward, Gradient, Graph, Needs, record, record_all
from .layout import Shape, broadcast, contiguous, count, is_dense, is_one
from .tensor import BOOL, Dtype, Tensor, promoted

SAVES_INPUT = frozenset({"silu", "gelu", "softplus", "abs", "log", "cos", "sin"})
"""Elementwise functions whose gradient is computed from their input, by one kernel."""

SAVES_OUTPUT = frozenset({"relu", "sigmoid", "tanh"})
"""Elementwise functions whose gradient is computed from their output, by one kernel."""


class Aten:
    """torch's operations, recorded in one graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def new(self, shape: Shape, dtype: Dtype) -> Tensor:
        """A new tensor that is computed from no other (`zeros`, `arange`)."""
        return self.graph.new(shape, dtype)

    def like(self, *xs: Tensor, dtype: Dtype | None = None) -> Tensor:
        """The result of an elementwise operation on these tensors."""
        if len(xs) == 1:
            shape, made = xs[0].shape, xs[0].dtype
        else:
            shape, made = broadcast(*[x.shape for x in xs]), xs[0].dtype
            for x in xs[1:]:
                made = promoted(made, x.dtype)
        strides = layout.elementwise([(x.shape, x.strides) for x in xs], shape)
        return self.graph.new(shape, made if dtype is None else dtype, strides)

    # --- views -------------------------------------------------------------------------------------------------------

    def _view(self, x: Tensor, shape: Shape, strides: layout.Strides, name: str, back: Backward) -> Tensor:
        return record(self.graph, name, (x,), Tensor(shape, x.dtype, x.storage, strides), back)

    def reshape(self, x: Tensor, shape: Shape) -> Tensor:
        """A view of another shape; a copy where the strides allow no view."""
        if x.shape == shape:
            return x
        assert type(x.count) is not int or x.count == count(shape), (x.shape, shape)
        strides = layout.viewed(x.shape, x.strides, shape)
        if strides is None:
            x = self.clone(x)
            strides = contiguous(shape)
        before = x.shape
        return self._view(x, shape, strides, "view", lambda g, _: (self.reshape(g, before),))

    def flatten(self, x: Tensor, first: int = 0, last: int = -1) -> Tensor:
        """Joins the axes `first` to `last`."""
        last = last % len(x.shape)
        return self.reshape(x, (*x.shape[:first], count(x.shape[first : last + 1]), *x.shape[last + 1 :]))

    def unflatten(self, x: Tensor, axis: int, sizes: Shape) -> Tensor:
        """Splits one axis."""
        axis = axis % len(x.shape)
        return self.reshape(x, (*x.shape[:axis], *sizes, *x.shape[axis + 1 :]))

    def transpose(self, x: Tensor, first: int, second: int) -> Tensor:
        shape, strides = list(x.shape), list(x.strides)
        shape[first], shape[second] = shape[second], shape[first]
        strides[first], strides[second] = strides[second], strides[first]
        return self._view(
            x, tuple(shape), tuple(strides), "transpose", lambda g, _: (self.transpose(g, first, second),)
        )

    def unsqueeze(self, x: Tensor, axis: int) -> Tensor:
        axis = axis % (len(x.shape) + 1)
        before = x.shape
        step = x.shape[axis] * x.strides[axis] if axis < len(x.shape) else 1
        shape, strides = (*before[:axis], 1, *before[axis:]), (*x.strides[:axis], step, *x.strides[axis:])
        return self._view(x, shape, strides, "unsqueeze", lambda g, _: (self.reshape(g, before),))

    def expand(self, x: Tensor, shape: Shape) -> Tensor:
        """Repeats axes of one element without memory; the gradient is their sum."""
        if x.shape == shape:
            return x
        before, extra = x.shape, len(shape) - len(x.shape)
        strides = (0,) * extra + tuple(
            0 if is_one(own) and not is_one(wide) else stride
            for own, wide, stride in zip(x.shape, shape[extra:], x.strides, strict=True)
        )
        return self._view(x, shape, strides, "expand", lambda g, _: (self.graph.new(before, g.dtype),))

    def slice(self, x: Tensor, size: Number, axis: int = -1) -> Tensor:
        """A part of an axis. Its gradient is that of the whole, with zeros."""
        axis = axis % len(x.shape)
        before = x.shape
        shape = (*before[:axis], size, *before[axis + 1 :])
        return self._view(x, shape, x.strides, "slice", lambda g, _: (self.graph.new(before, g.dtype),))

    def select(self, x: Tensor, axis: int) -> Tensor:
        """One index of an axis. Its gradient is that of the whole, with zeros."""
        axis = axis % len(x.shape)
        before = x.shape
        shape, strides = (*before[:axis], *before[axis + 1 :]), (*x.strides[:axis], *x.strides[axis + 1 :])
        return self._view(x, shape, strides, "select", lambda g, _: (self.graph.new(before, g.dtype),))

    def split(self, x: Tensor, sizes: Sequence[Number], axis: int = -1) -> list[Tensor]:
        """Parts of an axis: views with one node, whose backward joins their gradients."""
        axis = axis % len(x.shape)
        before, dtype = x.shape, x.dtype
        parts = [Tensor((*before[:axis], size, *before[axis + 1 :]), dtype, x.storage, x.strides) for size in sizes]
        shapes = [part.shape for part in parts]

        def joined(came: list[Gradient], _: Needs) -> Sequence[Gradient]:
            missing = [self.graph.new(shape, dtype) for shape, g in zip(shapes, came, strict=True) if g is None]
            whole = self.graph.new(before, dtype)
            del missing
            return (whole,)

        record_all(self.graph, "split", (x,), parts, joined if len(parts) > 1 else lambda g, _: (g,))
        return parts

    # --- copies ------------------------------------------------------------------------------------------------------

    def clone(self, x: Tensor) -> Tensor:
        """A dense copy."""
        return record(self.graph, "clone", (x,), self.graph.new(x.shape, x.dtype), lambda g, _: (g,))

    def contiguous(self, x: Tensor) -> Tensor:
        """The tensor itself where it is dense, else a copy."""
        return x if x.is_contiguous else self.clone(x)

    def to(self, x: Tensor, dtype: Dtype) -> Tensor:
        """A copy of another type; the tensor itself if it has that type."""
        if x.dtype is dtype:
            return x
        made = self.graph.new(x.shape, dtype, self._preserved(x))
        before = x.dtype
        return record(self.graph, "to", (x,), made, lambda g, _: (self.to(g, before),))

    def _preserved(self, x: Tensor) -> layout.Strides:
        """The strides of a copy that keeps the order of axes."""
        return x.strides if is_dense(x.shape, x.strides) else layout.elementwise([(x.shape, x.strides)], x.shape)

    def cat(self, xs: Sequence[Tensor], axis: int = -1) -> Tensor:
        """Joins tensors along an axis; their gradients are views of one."""
        axis = axis % len(xs[0].shape)
        total: Number = 0
        for x in xs:
            total = total + x.shape[axis]
        dtype = xs[0].dtype
        for x in xs[1:]:
            dtype = promoted(dtype, x.dtype)
        shapes = [x.shape for x in xs]
        made = self.graph.new((*shapes[0][:axis], total, *shapes[0][axis + 1 :]), dtype)
        return record(
            self.graph, "cat", xs, made, lambda g, _: [Tensor(s, g.dtype, g.storage, g.strides) for s in shapes]
        )

    def repeat_interleave(self, x: Tensor, times: Number, axis: int) -> Tensor:
        """Repeats every index of an axis."""
        wide = self.unsqueeze(x, axis + 1)
        wide = self.expand(wide, (*wide.shape[: axis + 1], times, *wide.shape[axis + 2 :]))
        return self.flatten(self.clone(wide), axis, axis + 1)

    # --- elementwise -------------------------------------------------------------------------------------------------

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        return record(self.graph, "add", (a, b), self.like(a, b), lambda g, _: (g, g))

    def sub(self, a: Tensor, b: Tensor) -> Tensor:
        return record(
            self.graph, "sub", (a, b), self.like(a, b), lambda g, needs: (g, self.like(g) if needs[1] else None)
        )

    def add_number(self, x: Tensor) -> Tensor:
        """x plus a number."""
        return record(self.graph, "add", (x,), self.like(x), lambda g, _: (g,))

    def scale(self, x: Tensor, name: str = "mul") -> Tensor:
        """x times a number, or its negative."""
        return record(self.graph, name, (x,), self.like(x), lambda g, _: (self.like(g),))

    def mul(self, a: Tensor, b: Tensor) -> Tensor:
        saves = (*((b,) if a.needs_grad else ()), *((a,) if b.needs_grad else ()))

        def back(g: Tensor, needs: Needs, *saved: Tensor) -> Sequence[Gradient]:
            return (
                self.like(g, saved[0]) if needs[0] else None,
                self.like(g, saved[-1]) if needs[1] else None,
            )

        return record(self.graph, "mul", (a, b), lambda: self.like(a, b), back, *saves)

    def div(self, a: Tensor, b: Tensor) -> Tensor:
        saves = (b, a) if b.needs_grad else (b,)

        def back(g: Tensor, needs: Needs, *saved: Tensor) -> Sequence[Gradient]:
            of_b = self._of_divisor(g, *saved) if needs[1] else None
            return self.like(g, saved[0]) if needs[0] else None, of_b

        return record(self.graph, "div", (a, b), lambda: self.like(a, b), back, *saves)

    def _of_divisor(self, g: Tensor, b: Tensor, a: Tensor) -> Tensor:
        """−g · ((a / b) / b)."""
        ratio = self.like(a, b)
        again, negative = self.like(ratio, b), self.like(g)
        return self.like(negative, again)

    def square(self, x: Tensor) -> Tensor:
        def back(g: Tensor, _: Needs, x: Tensor) -> Sequence[Gradient]:
            power = self.like(x)
            doubled = self.like(power)
            return (self.like(g, doubled),)

        return record(self.graph, "pow", (x,), lambda: self.like(x), back, x)

    def rsqrt(self, x: Tensor) -> Tensor:
        out = self.like(x)

        def back(g: Tensor, _: Needs, out: Tensor) -> Sequence[Gradient]:
            scaled, power = self.like(g), self.like(out)
            return (self.like(scaled, power),)

        return record(self.graph, "rsqrt", (x,), out, back, out)

    def exp(self, x: Tensor) -> Tensor:
        out = self.like(x)
        return record(self.graph, "exp", (x,), out, lambda g, _, out: (self.like(g, out),), out)

    def function(self, name: str, x: Tensor) -> Tensor:
        """An elementwise function whose gradient is one kernel."""
        out = self.like(x)
        if name in SAVES_OUTPUT:
            return record(self.graph, name, (x,), out, lambda g, _, out: (self.like(g, out),), out)
        assert name in SAVES_INPUT, name
        return record(self.graph, name, (x,), out, lambda g, _, x: (self.like(g, x),), x)

    def masked_fill(self, x: Tensor, mask: Tensor) -> Tensor:
        out = self.like(x, mask, dtype=x.dtype)
        return record(self.graph, "masked_fill", (x,), out, lambda g, _, m: (self.like(g),), mask)

    def compare(self, *xs: Tensor) -> Tensor:
        """A comparison or a logical operation: no gradient."""
        return self.like(*xs, dtype=BOOL)

    def where(self, condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
        out = self.like(condition, a, b, dtype=promoted(a.dtype, b.dtype))

        def back(g: Tensor, needs: Needs, condition: Tensor) -> Sequence[Gradient]:
            return tuple(self._chosen(g, condition) if need else None for need in needs)

        return record(self.graph, "where", (a, b), out, back, condition)

    def _chosen(self, g: Tensor, condition: Tensor) -> Tensor:
        """The gradient where the condition holds, else a zero, which is a tensor of its own."""
        zero = self.graph.new((), g.dtype)
        return self.like(g, condition, zero, dtype=g.dtype)

    # --- reductions --------------------------------------------------------------------------------------------------

    def _reduced(self, x: Tensor, axis: int, keep: bool) -> Shape:
        axis = axis % len(x.shape)
        return (*x.shape[:axis], *((1,) if keep else ()), *x.shape[axis + 1 :])

    def mean(self, x: Tensor, axis: int = -1, keep: bool = True) -> Tensor:
        out, before = self.graph.new(self._reduced(x, axis, keep), x.dtype), x.shape
        return record(self.graph, "mean", (x,), out, lambda g, _: (self.graph.new(before, g.dtype),))

    def sum(self, x: Tensor, axis: int = -1, keep: bool = False) -> Tensor:
        out, before = self.graph.new(self._reduced(x, axis, keep), x.dtype), x.shape
        axis = axis % len(before)

        def back(g: Tensor, _: Needs) -> Sequence[Gradient]:
            return (self.expand(g if keep else self.unsqueeze(g, axis), before),)

        return record(self.graph, "sum", (x,), out, back)

    def softmax(self, x: Tensor, dtype: Dtype | None = None) -> Tensor:
        """Over the last axis."""
        out = self.graph.new(x.shape, x.dtype if dtype is None else dtype)
        return record(self.graph, "softmax", (x,), out, lambda g, _, out: (self.graph.new(out.shape, out.dtype),), out)

    def log_softmax(self, x: Tensor) -> Tensor:
        out = self.graph.new(x.shape, x.dtype)
        return record(
            self.graph, "log_softmax", (x,), out, lambda g, _, out: (self.graph.new(out.shape, out.dtype),), out
        )

    def nll_loss(self, logs: Tensor, labels: Tensor) -> Tensor:
        """The mean of the negative log-probabilities of the labels."""
        out, weight = self.graph.new((), logs.dtype), self.graph.new((), logs.dtype)
        return record(
            self.graph,
            "nll_loss",
            (logs,),
            out,
            lambda g, _, logs, *__: (self.graph.new(logs.shape, logs.dtype),),
            logs,
            labels,
            weight,
        )

    # --- products ----------------------------------------------------------------------------------------------------

    def mm(self, a: Tensor, b: Tensor) -> Tensor:
        """[n, k] times [k, m]."""
        saves = (*((b,) if a.needs_grad else ()), *((a,) if b.needs_grad else ()))
        shapes = a.shape, b.shape
        ordered = is_one(b.strides[0]) and not is_one(b.strides[1])  # a transposed weight has a transposed gradient

        def back(g: Tensor, needs: Needs, *_: Tensor) -> Sequence[Gradient]:
            of_b = None
            if needs[1]:
                of_b = self.graph.new(shapes[1], g.dtype, (1, shapes[1][0]) if ordered else None)
            return (self.graph.new(shapes[0], g.dtype) if needs[0] else None, of_b)

        return record(
            self.graph, "mm", (a, b), lambda: self.graph.made("mm", (a.shape[0], b.shape[1]), a.dtype), back, *saves
        )

    def addmm(self, bias: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """bias plus [n, k] times [k, m]."""
        saves = (*((b,) if a.needs_grad else ()), *((a,) if b.needs_grad else ()))
        shapes = a.shape, b.shape
        ordered = is_one(b.strides[0]) and not is_one(b.strides[1])

        def back(g: Tensor, needs: Needs, *_: Tensor) -> Sequence[Gradient]:
            of_a = self.graph.new(shapes[0], g.dtype) if needs[1] else None
            of_b = None
            if needs[2]:
                of_b = self.graph.new(shapes[1], g.dtype, (1, shapes[1][0]) if ordered else None)
            return g if needs[0] else None, of_a, of_b

        return record(
            self.graph,
            "addmm",
            (bias, a, b),
            lambda: self.graph.made("addmm", (a.shape[0], b.shape[1]), a.dtype),
            back,
            *saves,
        )

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """x·Wᵀ + b; weight: [out, in]."""
        rows, turned = x.shape[:-1], self.transpose(weight, 0, 1)
        if bias is not None and len(x.shape) in (2, 3) and (len(x.shape) == 2 or x.is_contiguous):
            flat = self.reshape(x, (count(rows), x.shape[-1]))
            return self.reshape(self.addmm(bias, flat, turned), (*rows, weight.shape[0]))
        out = self.mm(self.reshape(x, (count(rows), x.shape[-1])), turned)
        out = self.reshape(out, (*rows, weight.shape[0]))
        return out if bias is None else self.add(out, bias)

    def bmm(self, a: Tensor, b: Tensor) -> Tensor:
        """[n, r, k] times [n, k, c]."""
        saves = (*((b,) if a.needs_grad else ()), *((a,) if b.needs_grad else ()))
        shapes = a.shape, b.shape

        def back(g: Tensor, needs: Needs, *_: Tensor) -> Sequence[Gradient]:
            return [self.graph.new(shape, g.dtype) if need else None for shape, need in zip(shapes, needs, strict=True)]

        shape = a.shape[0], a.shape[1], b.shape[2]
        return record(self.graph, "bmm", (a, b), lambda: self.graph.made("bmm", shape, a.dtype), back, *saves)

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        """Products of the last two axes; the axes before them are the same, or broadcast."""
        before = broadcast(a.shape[:-2], b.shape[:-2])
        n = count(before)
        a3 = self.reshape(self.expand(a, (*before, *a.shape[-2:])), (n, *a.shape[-2:]))
        b3 = self.reshape(self.expand(b, (*before, *b.shape[-2:])), (n, *b.shape[-2:]))
        return self.reshape(self.bmm(a3, b3), (*before, a.shape[-2], b.shape[-1]))

    # --- look-ups ----------------------------------------------------------------------------------------------------

    def embedding(self, weight: Tensor, index: Tensor) -> Tensor:
        out, shape = self.graph.new((*index.shape, weight.shape[1]), weight.dtype), weight.shape
        return record(
            self.graph, "embedding", (weight,), out, lambda g, _, index: (self.graph.new(shape, g.dtype),), index
        )

    def index_select(self, x: Tensor, index: Tensor) -> Tensor:
        """Rows of x."""
        out, shape = self.graph.new((*index.shape, *x.shape[1:]), x.dtype), x.shape

        def back(g: Tensor, _: Needs, index: Tensor) -> Sequence[Gradient]:
            zeros = self.graph.new(shape, g.dtype)
            return (self.like(zeros),)

        return record(self.graph, "index_select", (x,), out, back, index)

    def index_add(self, rows: Number, source: Tensor, index: Tensor) -> Tensor:
        """The sum of source's rows at each index, into `rows` rows of zeros."""
        zeros = self.graph.new((rows, *source.shape[1:]), source.dtype)
        out, shape = self.like(zeros), source.shape
        return record(
            self.graph,
            "index_add",
            (source,),
            out,
            lambda g, _, index, source: (self.graph.new(shape, g.dtype),),
            index,
            source,
        )
