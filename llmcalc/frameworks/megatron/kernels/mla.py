"""The kernels of multi-latent attention on a rank: unsharded latent projections, and partial rotary embeddings.

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
    """Kernels that split and join the rotary and non-rotary parts of heads."""

    def do_split(self, step: Step) -> None:
        """Splits a latent vector into views; parts of heads are not split, since one kernel reads them together."""
        x = self.get(step.ins[0])
        if len(step.ins[0].axes) == 1:
            for out, view in zip(step.outs, self.split_along(x, [out.width for out in step.outs]), strict=True):
                self.bind(out, view)
            return
        self.split_parts[id(step.ins[0])] = step.outs
        for out in step.outs:
            self.bind(out, x)

    def do_rope(self, step: Step) -> None:
        """Rotates the rotary part of queries, or of the key shared by all heads."""
        value = step.ins[0]
        if value.of is None:
            super().do_rope(step)
        elif len(value.axes) == 1:
            self.bind(step.outs[0], self._gather_shared_key(self.get(value)))
        else:
            self.bind(step.outs[0], self.get(value))  # in place, or by what joins the parts

    def _gather_shared_key(self, x: Tensor) -> Tensor:
        """Gathers the tokens of the rotary key part, which all heads share, over the tensor-parallel ranks."""
        choices, graph, (rows, width) = self.rank_choices, self.graph, x.shape
        if choices.sequence_parallel:
            local_shape = x.shape
            gathered_key = self.new(rows * choices.tp, width)
            x = record(graph, "gather", (x,), gathered_key, lambda g, _: (graph.new(local_shape, g.dtype),))
            del gathered_key
        if choices.mla_fusion:
            return x
        shape = x.shape
        return record(graph, "rope", (x,), self.new(*shape), lambda g, _: (graph.new(shape, g.dtype),))

    def do_cat(self, step: Step) -> None:
        """Joins the rotary and non-rotary parts of queries or keys."""
        if len(step.ins) != 2:
            raise self.unsupported("no kernels for joining these values", step.name)
        first_value, second_value = step.ins
        x, y = self.get(first_value), self.get(second_value)
        if x is y:
            self.bind(step.outs[0], self._rotate_query(x))
            return
        if len(step.outs[0].axes) == 1:
            self.bind(step.outs[0], self.t.cat([x, y]))
            return
        if first_value.of is None or id(first_value.of) not in self.split_parts:
            raise self.unsupported("no kernels for joining these values", step.name)
        other_parts = [out for out in self.split_parts.pop(id(first_value.of)) if out is not first_value]
        key, value = self._assemble_key_and_value(x, y, step.outs[0], other_parts[0])
        del x, y
        self.forget(first_value.of.storage)
        for out in other_parts:
            self.bind(out, value)
        self.bind(step.outs[0], key)

    def _rotate_query(self, x: Tensor) -> Tensor:
        """Applies rotary embeddings to a part of each query head, in place in one kernel or in a copy."""
        if self.rank_choices.mla_fusion:
            return x
        graph, shape = self.graph, x.shape
        return record(graph, "cat", (x,), graph.new(shape, BFLOAT16), lambda g, _: (graph.new(shape, g.dtype),))

    def _assemble_key_and_value(
        self, x: Tensor, shared_key: Tensor, key_output: Value, value_output: Value
    ) -> tuple[Tensor, Tensor]:
        """Assembles keys, with the rotary part shared by all heads, and values from one projection."""
        graph, rows, shapes = self.graph, x.shape[0], (x.shape, shared_key.shape)
        outs = self.new(rows, key_output.width), self.new(rows, value_output.width)

        def backward(
            saved_tensors: list[Tensor | None], gradients: list[Gradient], needs_input_grad: Needs
        ) -> Sequence[Gradient]:
            return [graph.new(shape, BFLOAT16) for shape in shapes]

        self.node("key_and_value", (x, shared_key), outs, backward)
        return outs
