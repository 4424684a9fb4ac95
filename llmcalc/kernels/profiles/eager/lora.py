"""Linear layers with frozen weights and an adapter, as peft runs them; weights in 4 bits, as in bitsandbytes."""

from __future__ import annotations

from collections.abc import Sequence

from ....flow.axis import extent
from ....flow.program import Step
from ...autograd import Gradient, Needs, record
from ...layout import Shape
from ...tensor import UINT8, Tensor
from .basic import BasicKernels


class LoraKernels(BasicKernels):
    """What `Adapters` adds to linear layers, and how it stores them."""

    def matrix(self, step: Step) -> Tensor:
        """The weight of a linear layer; of the layers, in 4 bits if the base is."""
        how, weight = self.adapters, step.weight
        if how is None or not how.base or weight is None or all(frame.turn is None for frame in self.frames):
            return super().matrix(step)
        size = how.stored_bytes(extent(weight.out) * extent(weight.ins))
        return self.parameter((*self.module_path(), f"{step.name}.weight"), (size,), UINT8, trained=False)

    def adapter(self, name: str, shape: Shape) -> Tensor:
        """A trained matrix of the adapter of the module that runs."""
        assert self.adapters is not None
        return self.parameter((*self.module_path(), name), shape, self.adapters.dtype, trained=True)

    def multiplied(self, step: Step, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x·Wᵀ, plus the adapter's output if the layer has one (peft/tuners/lora/layer.py, `Linear.forward`)."""
        t, how = self.t, self.adapters
        if how is None:
            return super().multiplied(step, x, weight, bias)
        result = self._frozen(step, x, weight, bias)
        if step.name not in how.targets:
            return result
        if weight.dtype is UINT8:
            result = t.copy(result)
        dtype, (n_out, n_in) = result.dtype, (step.outs[0].width, x.shape[-1])
        down = self.adapter(f"{step.name}.lora_A.weight", (how.rank, n_in))
        up = self.adapter(f"{step.name}.lora_B.weight", (n_out, how.rank))
        read = t.to(x, how.dtype)
        low = t.linear(t.dropout(read) if how.dropout else read, down)
        result = t.add(result, t.scale(t.linear(low, up)))
        return t.to(result, dtype)

    def _frozen(self, step: Step, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x·Wᵀ with a frozen weight; one in 4 bits is decoded for the product (bitsandbytes/autograd/_functions.py)."""
        if weight.dtype is not UINT8:
            return super().multiplied(step, x, weight, bias)
        graph, shape = self.graph, (step.outs[0].width, x.shape[-1])
        flat = x.shape, x.dtype

        def back(g: Tensor, _: Needs, *__: Tensor) -> Sequence[Gradient]:
            decoded = graph.new(shape, flat[1])
            out = graph.new(flat[0], flat[1])
            del decoded
            return (out,)

        decoded = graph.new(shape, x.dtype)
        out = graph.new((*x.shape[:-1], shape[0]), x.dtype)
        del decoded
        return record(graph, "matmul_4bit", (x,), out, back, weight)
