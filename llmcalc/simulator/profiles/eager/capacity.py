"""Experts with a fixed capacity: equal row counts, one batched product per linear layer."""

from __future__ import annotations

from ....components.base import BY_TORCH
from ....evidence import compared
from ....flow.axis import extent
from ....flow.program import Step
from ....flow.value import Value
from ....workload.expert_capacity import expert_rows
from ....workload.rows import Routed
from ...tensor import Tensor
from .experts import ExpertKernels


class CapacityKernels(ExpertKernels):
    """Experts as in the reference with `expert_capacity`."""

    def set(self, value: Value, tensor: Tensor) -> None:
        """Binds a value; expert rows keep the shape [experts, rows, width]."""
        if self.choices.capacity is not None and isinstance(value.rows, Routed) and len(tensor.shape) == 3:
            self.bind(value, tensor)
        else:
            super().set(value, tensor)

    @compared(BY_TORCH)
    def do_dispatch(self, step: Step) -> None:
        """Selects for each expert the rows with the highest weights, up to its capacity."""
        factor, x = self.choices.capacity, step.ins[0]
        if factor is None:
            super().do_dispatch(step)
            return
        t, local_tensors, experts = self.t, self.frames[-1].local_tensors, step.options["experts"].size
        weights, chosen_experts = (t.flatten(local_tensors[name], 0, 1) for name in ("weights", "chosen"))
        tokens, top_k = chosen_experts.shape
        zeros = t.new((tokens, experts), weights.dtype)
        by_expert = t.scatter(zeros, chosen_experts, weights)
        del zeros, weights, chosen_experts
        sent_weights, token_indices = t.topk(by_expert, expert_rows(tokens, top_k, experts, factor), 0)
        del by_expert
        local_tensors["weight"], local_tensors["token"] = (
            t.transpose(sent_weights, 0, 1),
            t.flatten(t.transpose(token_indices, 0, 1)),
        )
        del sent_weights, token_indices
        rows = t.index_select(t.flatten(self.get(x), 0, -2), local_tensors["token"])
        self.bind(step.outs[0], t.unflatten(rows, 0, local_tensors["weight"].shape))

    @compared(BY_TORCH)
    def do_to_tokens(self, step: Step) -> None:
        if self.choices.capacity is not None:
            raise self.unsupported("experts inside attention have no capacity; expected --moe dropless")
        super().do_to_tokens(step)

    @compared(BY_TORCH)
    def do_experts(self, step: Step) -> None:
        if self.choices.capacity is None:
            super().do_experts(step)
            return
        if step.options["identities"]:
            raise self.unsupported("identity experts have no capacity; expected --moe dropless", step.name)
        t, experts, rows = self.t, *self.expert_row_index("weight").shape
        x = self._by_expert(self.get(step.ins[0]), experts, rows)
        outs, ins = extent(step.outs[0].axes), x.shape[-1]
        weight = self.weight(f"{step.name}.weight", (experts, outs, ins))
        y = t.matmul(x, t.transpose(weight, 1, 2))
        if step.options["bias"]:
            y = t.add(y, t.unsqueeze(self.weight(f"{step.name}.bias", (experts, outs)), 1))
        self.bind(step.outs[0], y)

    def _by_expert(self, x: Tensor, experts: int, rows: int) -> Tensor:
        """Returns a tensor as [experts, rows, width], which another step may have reshaped."""
        return x if len(x.shape) == 3 and x.shape[0] == experts else self.t.reshape(x, (experts, rows, x.shape[-1]))

    @compared(BY_TORCH)
    def do_combine(self, step: Step) -> None:
        if self.choices.capacity is None:
            super().do_combine(step)
            return
        t, weights, sent_weights = self.t, self.get(step.ins[1]), self.expert_row_index("weight")
        y = self._by_expert(self.take(step, step.ins[0]), *sent_weights.shape)
        y = t.flatten(t.mul(y, t.unsqueeze(t.to(sent_weights, y.dtype), 2)), 0, 1)
        self.set(step.outs[0], t.index_add(weights.shape[0] * weights.shape[1], y, self.expert_row_index("token")))
