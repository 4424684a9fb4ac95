"""torch's operations on tensors without values: the shape and strides of each result, and what its backward saves.

Formulas of gradients: tools/autograd/derivatives.yaml and torch/csrc/autograd/FunctionsManual.cpp of torch 2.13. The
temporaries of a C++ expression live until its end, so a backward function here names each of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..algebra import Number, same
from . import strides as layout
from .autograd import Graph, record, record_all
from .strides import Shape, broadcast, contiguous, count, is_dense, is_one
from .tensor import BOOL, FLOAT32, INT64, Backward, Dtype, Gradient, Needs, Node, Tensor, promoted

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
            shape, made = broadcast(*[x.shape for x in xs]), result_type(*xs)
        strides = layout.elementwise(tuple([(x.shape, x.strides) for x in xs]), shape)
        return self.graph.new(shape, made if dtype is None else dtype, strides)

    # --- views -------------------------------------------------------------------------------------------------------

    def _view(self, x: Tensor, shape: Shape, strides: layout.Strides, name: str, back: Backward) -> Tensor:
        made, graph = x.view(shape, strides), self.graph
        if graph.enabled and (x.node is not None or x.leaf):
            made.node = Node(graph, name, (x,), back)
        return made

    def reshape(self, x: Tensor, shape: Shape) -> Tensor:
        """A view of another shape; a copy where the strides allow no view."""
        if x.shape == shape:
            return x
        strides, before = layout.viewed(x.shape, x.strides, shape), x.shape
        if strides is not None:
            return self._view(x, shape, strides, "view", lambda g, _: (self.reshape(g, before),))
        made = self._view(self.clone(x), shape, contiguous(shape), "view", lambda g, _: (self.reshape(g, before),))
        made.has_base = False  # `_unsafe_view`
        return made

    def renamed(self, x: Tensor, shape: Shape) -> Tensor:
        """The tensor under another shape, which it has in torch from the beginning: no operation, and no view."""
        if x.shape == shape:
            return x
        strides, before = layout.viewed(x.shape, x.strides, shape), x.shape
        assert strides is not None, (x.shape, x.strides, shape)
        made = self._view(x, shape, strides, "renamed", lambda g, _: (self.renamed(g, before),))
        made.has_base = x.has_base
        return made

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

    def permute(self, x: Tensor, order: Sequence[int]) -> Tensor:
        """The axes in another order."""
        back = [order.index(axis) for axis in range(len(order))]
        shape, strides = tuple(x.shape[axis] for axis in order), tuple(x.strides[axis] for axis in order)
        return self._view(x, shape, strides, "permute", lambda g, _: (self.permute(g, back),))

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
        return self._view(x, shape, strides, "expand", lambda g, _: (self.graph.summed_to(before, g),))

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
        parts = [x.view((*before[:axis], size, *before[axis + 1 :]), x.strides) for size in sizes]
        shapes = [part.shape for part in parts]

        def joined(came: list[Gradient], _: Needs) -> Sequence[Gradient]:
            missing = [self.graph.new(shape, dtype) for shape, g in zip(shapes, came, strict=True) if g is None]
            whole = self.graph.new(before, dtype)
            del missing
            return (whole,)

        record_all(self.graph, "split", (x,), parts, joined if len(parts) > 1 else lambda g, _: (g,))
        return parts

    def unbind(self, x: Tensor, axis: int = 0) -> list[Tensor]:
        """Every index of an axis: views with one node, whose backward stacks their gradients."""
        axis, before, dtype = axis % len(x.shape), x.shape, x.dtype
        shape, strides = (*before[:axis], *before[axis + 1 :]), (*x.strides[:axis], *x.strides[axis + 1 :])
        parts = [x.view(shape, strides) for _ in range(before[axis])]

        def stacked(came: list[Gradient], _: Needs) -> Sequence[Gradient]:
            missing = [self.graph.new((), dtype) for g in came if g is None]
            whole = self.graph.new(before, dtype)
            del missing
            return (whole,)

        record_all(self.graph, "unbind", (x,), parts, stacked if len(parts) > 1 else lambda g, _: stacked([g], _))
        return parts

    # --- copies ------------------------------------------------------------------------------------------------------

    def clone(self, x: Tensor) -> Tensor:
        """A dense copy."""
        return record(self.graph, "clone", (x,), self.graph.new(x.shape, x.dtype), lambda g, _: (g,))

    def copy(self, x: Tensor) -> Tensor:
        """A copy in the order of its axes (`clone` as it is by default)."""
        return record(
            self.graph, "clone", (x,), self.graph.new(x.shape, x.dtype, self._preserved(x)), lambda g, _: (g,)
        )

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
        return x.strides if is_dense(x.shape, x.strides) else layout.elementwise(((x.shape, x.strides),), x.shape)

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
        return record(self.graph, "cat", xs, made, lambda g, _: [g.view(s, g.strides) for s in shapes])

    def stack(self, xs: Sequence[Tensor], axis: int = 0) -> Tensor:
        """Joins tensors along a new axis; their gradients are views of one."""
        axis, n = axis % (len(xs[0].shape) + 1), len(xs)
        shape = (*xs[0].shape[:axis], n, *xs[0].shape[axis:])
        return record(self.graph, "stack", xs, self.graph.new(shape, xs[0].dtype), lambda g, _: self.unbind(g, axis))

    def pad(self, x: Tensor, size: Number, axis: int = -1) -> Tensor:
        """x with zeros after the end of an axis, up to that size."""
        axis = axis % len(x.shape)
        before = x.shape
        made = self.graph.new((*before[:axis], size, *before[axis + 1 :]), x.dtype)
        return record(self.graph, "pad", (x,), made, lambda g, _: (self.graph.new(before, g.dtype),))

    def written(self, base: Tensor, x: Tensor) -> Tensor:
        """base after x was written into a part of it; base itself may not be used any more (`CopySlices`)."""
        shape, strides, part = base.shape, base.strides, x.shape

        def back(g: Tensor, needs: Needs) -> Sequence[Gradient]:
            whole = self.graph.new(shape, g.dtype, strides)
            one = self.graph.new(part, g.dtype)
            rest = self.like(one) if needs[0] else None
            del rest
            return (whole if needs[0] else None, one)

        made = Tensor(shape, base.dtype, base.storage, strides)
        return record(self.graph, "CopySlices", (base, x), made, back)

    def repeat_interleave(self, x: Tensor, times: Number, axis: int) -> Tensor:
        """Repeats every index of an axis."""
        wide = self.unsqueeze(x, axis + 1)
        wide = self.expand(wide, (*wide.shape[: axis + 1], times, *wide.shape[axis + 2 :]))
        return self.flatten(self.clone(wide), axis, axis + 1)

    def repeat(self, x: Tensor, times: Number, axis: int) -> Tensor:
        """Copies of an axis, one after another."""
        axis, before = axis % len(x.shape), x.shape
        shape = (*before[:axis], times * before[axis], *before[axis + 1 :])
        made = self.graph.new(shape, x.dtype)
        if is_one(times):
            return record(self.graph, "repeat", (x,), made, lambda g, _: (g,))
        return record(self.graph, "repeat", (x,), made, lambda g, _: (self.graph.new(before, g.dtype),))

    # --- elementwise -------------------------------------------------------------------------------------------------

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        return record(self.graph, "add", (a, b), self.like(a, b), lambda g, _: (g, g))

    def sub(self, a: Tensor, b: Tensor) -> Tensor:
        return record(
            self.graph, "sub", (a, b), self.like(a, b), lambda g, needs: (g, self.like(g) if needs[1] else None)
        )

    def add_to(self, a: Tensor, b: Tensor) -> Tensor:
        """a += b, in a's storage."""
        made = Tensor(a.shape, a.dtype, a.storage, a.strides)
        return record(self.graph, "add_", (a, b), made, lambda g, _: (g, g))

    def add_number(self, x: Tensor) -> Tensor:
        """x plus a number."""
        return record(self.graph, "add", (x,), self.like(x), lambda g, _: (g,))

    def scale(self, x: Tensor, name: str = "mul") -> Tensor:
        """x times a number, or its negative."""
        return record(self.graph, name, (x,), self.like(x), lambda g, _: (self.like(g),))

    def mul(self, a: Tensor, b: Tensor) -> Tensor:
        saves = _factors(a, b)

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

    def sqrt(self, x: Tensor) -> Tensor:
        out = self.like(x)

        def back(g: Tensor, _: Needs, out: Tensor) -> Sequence[Gradient]:
            doubled = self.like(out)
            return (self.like(g, doubled),)

        return record(self.graph, "sqrt", (x,), out, back, out)

    def expm1(self, x: Tensor) -> Tensor:
        out = self.like(x)

        def back(g: Tensor, _: Needs, out: Tensor) -> Sequence[Gradient]:
            slope = self.like(out)
            return (self.like(g, slope),)

        return record(self.graph, "expm1", (x,), out, back, out)

    def clamp(self, x: Tensor) -> Tensor:
        """x, but at least a number."""

        def back(g: Tensor, _: Needs, x: Tensor) -> Sequence[Gradient]:
            above = self.compare(x)
            return (self._chosen(g, above),)

        return record(self.graph, "clamp", (x,), lambda: self.like(x), back, x)

    def minimum(self, a: Tensor, b: Tensor) -> Tensor:
        def back(g: Tensor, needs: Needs, a: Tensor, b: Tensor) -> Sequence[Gradient]:
            return tuple(self._of_smaller(g, a, b) if need else None for need in needs)

        return record(self.graph, "minimum", (a, b), lambda: self.like(a, b), back, a, b)

    def _of_smaller(self, g: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """Half of the gradient where both are equal; then, in place, none where the other is the smaller one."""
        equal, half = self.compare(a, b), self.like(g)
        made = self.like(equal, half, g, dtype=g.dtype)
        larger = self.compare(a, b)
        del larger
        return made

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
        shape = broadcast(x.shape, mask.shape)
        return record(
            self.graph,
            "masked_fill",
            (x,),
            lambda: self.graph.new(shape, x.dtype),
            lambda g, _, m: (self.graph.new(g.shape, g.dtype),),
            mask,
        )

    def compare(self, *xs: Tensor) -> Tensor:
        """A comparison or a logical operation: no gradient."""
        return self.like(*xs, dtype=BOOL)

    def where(self, condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
        def back(g: Tensor, needs: Needs, condition: Tensor) -> Sequence[Gradient]:
            return tuple(self._chosen(g, condition) if need else None for need in needs)

        return record(
            self.graph,
            "where",
            (a, b),
            lambda: self.like(condition, a, b, dtype=result_type(a, b)),
            back,
            condition,
        )

    def _chosen(self, g: Tensor, condition: Tensor) -> Tensor:
        """The gradient where the condition holds, else a zero, which is a tensor of its own."""
        zero = self.graph.new((), g.dtype)
        return self.like(g, condition, zero, dtype=g.dtype)

    def dropout(self, x: Tensor) -> Tensor:
        """Dropout in training, by one kernel, which keeps a mask of one byte for each element."""
        out, mask = self.like(x), self.like(x, dtype=BOOL)
        return record(self.graph, "dropout", (x,), out, lambda g, _, mask: (self.like(g),), mask)

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
        saves = _factors(a, b)
        alike = _like_matrix(a), _like_matrix(b)

        def back(g: Tensor, needs: Needs, *_: Tensor) -> Sequence[Gradient]:
            of_b = self.graph.new(alike[1][0], g.dtype, alike[1][1]) if needs[1] else None
            return (self.graph.new(alike[0][0], g.dtype, alike[0][1]) if needs[0] else None, of_b)

        return record(
            self.graph, "mm", (a, b), lambda: self.graph.made("mm", (a.shape[0], b.shape[1]), a.dtype), back, *saves
        )

    def addmm(self, bias: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """bias plus [n, k] times [k, m]."""
        saves = _factors(a, b)
        alike = _like_matrix(a), _like_matrix(b)

        def back(g: Tensor, needs: Needs, *_: Tensor) -> Sequence[Gradient]:
            of_a = self.graph.new(alike[0][0], g.dtype, alike[0][1]) if needs[1] else None
            of_b = self.graph.new(alike[1][0], g.dtype, alike[1][1]) if needs[2] else None
            return g if needs[0] else None, of_a, of_b

        return record(
            self.graph,
            "addmm",
            (bias, a, b),
            lambda: self.graph.made("addmm", (a.shape[0], b.shape[1]), a.dtype),
            back,
            *saves,
        )

    def _low(self, x: Tensor) -> Tensor:
        """What a product reads under autocast: a copy of the lower type; of a weight, one for the whole pass.

        A product's arguments are copied from the last to the first, and live beside the copies until it ran. Source:
        aten/src/ATen/autocast_mode.cpp, `cached_cast`.
        """
        low = self.graph.autocast
        if low is None or x.dtype is not FLOAT32:
            return x
        if not x.leaf:
            return self.to(x, low)
        if id(x) not in self.graph.casts:
            self.graph.casts[id(x)] = x, self.to(x, low)
        return self.graph.casts[id(x)][1]

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        """[n, k] times [k, m], in the type of autocast."""
        low_b = self._low(b)
        return self.mm(self._low(a), low_b)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """x·Wᵀ + b; weight: [out, in]."""
        if self.graph.autocast is None:
            return self._linear(x, weight, bias)
        low_bias = None if bias is None else self._low(bias)
        low_weight = self._low(weight)
        return self._linear(self._low(x), low_weight, low_bias)

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rows, turned = x.shape[:-1], self.transpose(weight, 0, 1)
        if bias is not None and len(x.shape) in (2, 3) and (len(x.shape) == 2 or x.is_contiguous):
            flat = self.reshape(x, (count(rows), x.shape[-1]))
            return self.reshape(self.addmm(bias, flat, turned), (*rows, weight.shape[0]))
        if self._folds(x, weight):
            out = self.reshape(self.mm(self.reshape(x, (count(rows), x.shape[-1])), turned), (*rows, weight.shape[0]))
        else:
            out = self._matmul(x, turned)
        return out if bias is None else self.add(out, bias)

    def _folds(self, x: Tensor, weight: Tensor) -> bool:
        """Whether a product of rows is one of a matrix: always if the weight is trained, else if x need not be copied.

        Source: aten/src/ATen/native/LinearAlgebra.cpp, `should_fold`.
        """
        if weight.needs_grad or not self.graph.enabled:
            return True
        sides = range(len(x.shape) - 2)
        return all(same(x.strides[i], x.strides[i + 1] * x.shape[i + 1]) for i in sides)

    def grouped_mm(self, a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
        """[rows, k] times [groups, k, m]: each group of rows, which ends at `ends`, by a matrix of its own."""
        saves = (*_factors(a, b), ends)
        shapes = a.shape, b.shape
        _, ins, outs = b.shape
        ordered = is_one(b.strides[1]) and not is_one(b.strides[2])
        strides = (ins * outs, 1, ins) if ordered else None

        def back(g: Tensor, needs: Needs, *_: Tensor) -> Sequence[Gradient]:
            of_b = self.graph.new(shapes[1], g.dtype, strides) if needs[1] else None
            return self.graph.new(shapes[0], g.dtype) if needs[0] else None, of_b

        made = shapes[0][0], outs
        return record(
            self.graph, "grouped_mm", (a, b), lambda: self.graph.made("grouped_mm", made, a.dtype), back, *saves
        )

    def bmm(self, a: Tensor, b: Tensor) -> Tensor:
        """[n, r, k] times [n, k, c]."""
        saves = _factors(a, b)
        shapes = a.shape, b.shape

        def back(g: Tensor, needs: Needs, *_: Tensor) -> Sequence[Gradient]:
            of_b = self.graph.new(shapes[1], g.dtype) if needs[1] else None
            return (self.graph.new(shapes[0], g.dtype) if needs[0] else None, of_b)

        shape = a.shape[0], a.shape[1], b.shape[2]
        return record(self.graph, "bmm", (a, b), lambda: self.graph.made("bmm", shape, a.dtype), back, *saves)

    def baddbmm(self, bias: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """bias plus [n, r, k] times [n, k, c]."""
        saves = _factors(a, b)
        shapes = a.shape, b.shape

        def back(g: Tensor, needs: Needs, *_: Tensor) -> Sequence[Gradient]:
            of_a = self.graph.new(shapes[0], g.dtype) if needs[1] else None
            return g if needs[0] else None, of_a, self.graph.new(shapes[1], g.dtype) if needs[2] else None

        shape = a.shape[0], a.shape[1], b.shape[2]
        return record(
            self.graph, "baddbmm", (bias, a, b), lambda: self.graph.made("baddbmm", shape, a.dtype), back, *saves
        )

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        """Products of the last two axes; the axes before them are the same, or broadcast."""
        low_b = self._low(b)
        return self._matmul(self._low(a), low_b)

    def _matmul(self, a: Tensor, b: Tensor) -> Tensor:
        before = broadcast(a.shape[:-2], b.shape[:-2])
        n = count(before)
        a3 = self.reshape(self.expand(a, (*before, *a.shape[-2:])), (n, *a.shape[-2:]))
        b3 = self.reshape(self.expand(b, (*before, *b.shape[-2:])), (n, *b.shape[-2:]))
        return self.reshape(self.bmm(a3, b3), (*before, a.shape[-2], b.shape[-1]))

    def convolution(self, x: Tensor, weight: Tensor, bias: Tensor | None, length: Number) -> Tensor:
        """A convolution along the last axis, [batch, channels, rows] → [batch, out, length]."""
        low_bias = None if bias is None else self._low(bias)
        low_weight = self._low(weight)
        return self._convolution(self._low(x), low_weight, low_bias, length)

    def _convolution(self, x: Tensor, weight: Tensor, bias: Tensor | None, length: Number) -> Tensor:
        shape, ins = (x.shape[0], weight.shape[0], length), (x, weight) if bias is None else (x, weight, bias)
        shapes = [each.shape for each in ins]

        def back(g: Tensor, needs: Needs, *_: Tensor) -> Sequence[Gradient]:
            return [self.graph.new(shape, g.dtype) if need else None for shape, need in zip(shapes, needs, strict=True)]

        return record(
            self.graph, "convolution", ins, lambda: self.graph.made("convolution", shape, x.dtype), back, x, weight
        )

    # --- look-ups ----------------------------------------------------------------------------------------------------

    def embedding(self, weight: Tensor, index: Tensor) -> Tensor:
        shape = weight.shape
        return record(
            self.graph,
            "embedding",
            (weight,),
            lambda: self.graph.new((*index.shape, shape[1]), weight.dtype),
            lambda g, _, index: (self.graph.new(shape, g.dtype),),
            index,
        )

    def gather(self, x: Tensor, index: Tensor) -> Tensor:
        """The elements of the last axis at these indices."""
        shape = x.shape
        return record(
            self.graph,
            "gather",
            (x,),
            lambda: self.graph.new(index.shape, x.dtype),
            lambda g, _, *__: (self._scattered(shape, g.dtype),),
            index,
            x,
        )

    def scatter(self, x: Tensor, index: Tensor, source: Tensor | None = None) -> Tensor:
        """x with other elements at these indices of the last axis: those of `source`, or a constant."""
        shapes = x.shape, index.shape

        def back(g: Tensor, needs: Needs, _: Tensor) -> Sequence[Gradient]:
            return [
                self.graph.new(shape, g.dtype) if need else None for shape, need in zip(shapes, needs, strict=False)
            ]

        ins = (x,) if source is None else (x, source)
        return record(self.graph, "scatter", ins, lambda: self.graph.new(x.shape, x.dtype), back, index)

    def index_select(self, x: Tensor, index: Tensor) -> Tensor:
        """Rows of x, by indices of any number of axes."""
        shape = x.shape
        return record(
            self.graph,
            "index_select",
            (x,),
            lambda: self.graph.new((*index.shape, *shape[1:]), x.dtype),
            lambda g, _, index: (self._scattered(shape, g.dtype),),
            index,
        )

    def _scattered(self, shape: Shape, dtype: Dtype) -> Tensor:
        """A gradient written into zeros; out of place under a TorchDispatchMode, as the graph adds gradients."""
        zeros = self.graph.new(shape, dtype)
        return zeros if self.graph.adds_in_place else self.like(zeros)

    def topk(self, x: Tensor, k: Number, axis: int = -1) -> tuple[Tensor, Tensor]:
        """The k highest values of an axis, and their indices."""
        axis = axis % len(x.shape)
        shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
        values, indices, before = self.graph.new(shape, x.dtype), self.graph.new(shape, INT64), x.shape
        made = record(
            self.graph, "topk", (x,), values, lambda g, _, indices: (self._scattered(before, g.dtype),), indices
        )
        return made, indices

    def histogram(self, x: Tensor, bins: Number) -> Tensor:
        """How often each of the integers 0 … bins − 1 is there, counted in float32."""
        numbers = self.to(x, FLOAT32)
        return self.graph.new((bins,), numbers.dtype)

    def sort(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Integers in rising order, and the indices that they were at."""
        return self.like(x), self.graph.new(x.shape, INT64)

    def index_add(self, rows: Number, source: Tensor, index: Tensor) -> Tensor:
        """The sum of source's rows at each index, into `rows` rows of zeros."""
        zeros = self.graph.new((rows, *source.shape[1:]), source.dtype)
        shape = source.shape
        return record(
            self.graph,
            "index_add",
            (source,),
            lambda: self.like(zeros),
            lambda g, _, index, source: (self.graph.new(shape, g.dtype),),
            index,
            source,
        )


def _factors(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    """What a product saves: each factor whose gradient is wanted needs the other one."""
    return (*((b,) if a.needs_grad else ()), *((a,) if b.needs_grad else ()))


def _like_matrix(x: Tensor) -> tuple[Shape, layout.Strides | None]:
    """The shape and strides of a matrix's gradient: stored by columns where the matrix is (`mm_mat1_backward`)."""
    by_columns = is_one(x.strides[0]) and same(x.strides[1], x.shape[0])
    return x.shape, (1, x.shape[0]) if by_columns else None


def result_type(*xs: Tensor) -> Dtype:
    """The type of an elementwise result. A tensor without axes only counts where it alone is floating."""
    with_axes = [x for x in xs if x.shape]
    if with_axes and (any(x.dtype.floating for x in with_axes) or not any(x.dtype.floating for x in xs)):
        xs = tuple(with_axes)
    made = xs[0].dtype
    for x in xs[1:]:
        made = promoted(made, x.dtype)
    return made
