"""Latent attention on a rank: projections to latents that every rank computes, and rotations of a part of each head.

Sources: Megatron-LM, megatron/core/transformer/multi_latent_attention.py and
megatron/core/fusions/fused_mla_yarn_rope_apply.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....flow.program import Step
from ....flow.value import Value
from ....simulator.autograd import record
from ....simulator.tensor import BFLOAT16, Gradient, Needs, Tensor
from .experts import ExpertKernels


class LatentKernels(ExpertKernels):
    """Splits and joins of heads' parts."""

    def do_split(self, step: Step) -> None:
        """Parts of a vector of each token are views of it; of each head, what joins them reads them as one."""
        x = self.get(step.ins[0])
        if len(step.ins[0].axes) == 1:
            for out, part in zip(step.outs, self.split_along(x, [out.width for out in step.outs]), strict=True):
                self.bind(out, part)
            return
        self.split_parts[id(step.ins[0])] = step.outs
        for out in step.outs:
            self.bind(out, x)

    def do_rope(self, step: Step) -> None:
        value = step.ins[0]
        if value.of is None:
            super().do_rope(step)
        elif len(value.axes) == 1:
            self.bind(step.outs[0], self._gather_shared_key(self.get(value)))
        else:
            self.bind(step.outs[0], self.get(value))  # in place, or by what joins the parts

    def _gather_shared_key(self, x: Tensor) -> Tensor:
        """The part of a key that all heads share, whose tokens every rank of a tensor group needs."""
        choices, graph, (rows, width) = self.rank_choices, self.graph, x.shape
        if choices.sequence_parallel:
            local_shape = x.shape
            gathered = self.new(rows * choices.tensor, width)
            x = record(graph, "gather", (x,), gathered, lambda g, _: (graph.new(local_shape, g.dtype),))
            del gathered
        if choices.mla_fusion:
            return x
        shape = x.shape
        return record(graph, "rope", (x,), self.new(*shape), lambda g, _: (graph.new(shape, g.dtype),))

    def do_cat(self, step: Step) -> None:
        if len(step.ins) != 2:
            raise self.unsupported("no kernels for joining these values", step.name)
        first, second = step.ins
        x, y = self.get(first), self.get(second)
        if x is y:
            self.bind(step.outs[0], self._rotate_query(x))
            return
        if len(step.outs[0].axes) == 1:
            self.bind(step.outs[0], self.t.cat([x, y]))
            return
        if first.of is None or id(first.of) not in self.split_parts:
            raise self.unsupported("no kernels for joining these values", step.name)
        rest = [out for out in self.split_parts.pop(id(first.of)) if out is not first]
        key, value = self._key_and_value(x, y, step.outs[0], rest[0])
        del x, y
        self.forget(first.of.storage)
        for out in rest:
            self.bind(out, value)
        self.bind(step.outs[0], key)

    def _rotate_query(self, x: Tensor) -> Tensor:
        """The rotation of a part of each head, in place by one kernel; otherwise a copy with the turned part."""
        if self.rank_choices.mla_fusion:
            return x
        graph, shape = self.graph, x.shape
        return record(graph, "cat", (x,), graph.new(shape, BFLOAT16), lambda g, _: (graph.new(shape, g.dtype),))

    def _key_and_value(self, x: Tensor, shared: Tensor, key: Value, value: Value) -> tuple[Tensor, Tensor]:
        """Keys with the part that all heads share, and values, of one product."""
        graph, rows, shapes = self.graph, x.shape[0], (x.shape, shared.shape)
        outs = self.new(rows, key.width), self.new(rows, value.width)

        def backward(
            saved_tensors: list[Tensor | None], gradients: list[Gradient], needs_input_grad: Needs
        ) -> Sequence[Gradient]:
            return [graph.new(shape, BFLOAT16) for shape in shapes]

        self.node("key_and_value", (x, shared), outs, backward)
        return outs
