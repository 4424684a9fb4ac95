"""Mixtures of experts: routers, rows sorted by expert, and one grouped product per linear layer of all experts.

No token is dropped: the rows of all experts together are top_k per token, so no size depends on how evenly the router
spreads the tokens.
"""

from __future__ import annotations

from ....components.base import BY_TORCH
from ....evidence import compared
from ....flow.axis import extent
from ....flow.program import Step
from ....flow.value import Value
from ....ops import ExpertRows
from ...lowering import CARRIED, Lowering
from ...strides import count
from ...tensor import FLOAT32, INT32, INT64, Tensor

ALIGNED = 16
"""torch's grouped product requires rows of a multiple of that many bytes."""


GATE_AND_UP = ("gate_proj", "up_proj")
"""The linear layers of gated experts that read the experts' input."""


class ExpertKernels(Lowering):
    """Experts as in the reference with `grouped_experts`."""

    def by_row(self, x: Tensor, axes: int = 1) -> Tensor:
        """Flattens [batch, rows, …] to [batch · rows, elements], unless x has expert rows.

        axes: the axes of one row.
        """
        if axes > 1:
            return self.t.flatten(self.t.flatten(x, 0, len(x.shape) - axes - 1), 1)
        return self.t.with_shape(x, (count(x.shape[:-1]), x.shape[-1]))

    # --- routers ----------------------------------------------------------------------------------------------------

    @compared(BY_TORCH)
    def do_route(self, step: Step) -> None:
        t, options = self.t, step.options
        inputs = dict(zip(options["beside"], step.ins[1:], strict=True))
        if options["scoring"] == "softmax of chosen":
            logits, expert_indices = t.topk(t.to(self.take(step, step.ins[0]), FLOAT32), options["top_k"])
            weights = t.softmax(logits)
        else:
            scores = self.router_scores(self.take(step, step.ins[0]), options["scoring"])
            if "table" in inputs:
                expert_indices = t.new((*scores.shape[:-1], options["top_k"]), INT64)
            else:
                expert_indices = self.top_experts(scores, options["top_k"], inputs.get("correction"))
            weights = self.weights_of(scores, expert_indices)
            if "scale" in inputs:
                weights = t.mul(weights, t.index_select(self.get(inputs["scale"]), expert_indices))
            if options["skip"]:
                skips = t.compare(expert_indices)
                weights, expert_indices = t.masked_fill(weights, skips), t.like(expert_indices)
        for value, x in zip(step.outs, (weights, expert_indices), strict=True):
            self.set(value, x)

    def router_scores(self, logits: Tensor, scoring: str) -> Tensor:
        """Converts logits to scores, in float32."""
        t = self.t
        logits = t.to(logits, FLOAT32)
        if scoring == "softmax":
            return t.softmax(logits)
        return t.function("sigmoid", logits) if scoring == "sigmoid" else t.sqrt(t.function("softplus", logits))

    def top_experts(self, scores: Tensor, top_k: int, correction: Value | None) -> Tensor:
        """Returns the experts with the highest corrected scores."""
        return self.t.topk(scores if correction is None else self.t.add(scores, self.get(correction)), top_k)[1]

    def weights_of(self, scores: Tensor, expert_indices: Tensor) -> Tensor:
        """Returns the scores of the chosen experts, divided by their sum."""
        of_chosen = self.t.gather(scores, expert_indices)
        return self.t.div(of_chosen, self.t.sum(of_chosen, keep=True)) if expert_indices.shape[-1] != 1 else of_chosen

    @compared(BY_TORCH)
    def do_product_keys(self, step: Step) -> None:
        t, grid_side = self.t, step.options["side"].size
        rows, columns = t.split(t.to(self.take(step, step.ins[0]), FLOAT32), (grid_side, grid_side))
        top_scores, top_indices = t.topk(
            t.flatten(t.add(t.unsqueeze(rows, 3), t.unsqueeze(columns, 2)), 2), step.options["top_k"]
        )
        self.set(step.outs[0], t.to(t.softmax(top_scores), self.dtype))
        self.set(step.outs[1], top_indices)

    @compared(BY_TORCH)
    def do_carry(self, step: Step) -> None:
        x, key = self.get(step.ins[0]), (CARRIED, step.options["slot"])
        if len(step.ins) > 1 and self.recompute.reentrant:
            raise self.unsupported(
                "--recompute full-reentrant takes no layer that keeps a value for the layer above; expected full"
            )
        if len(step.ins) > 1 and any(id(frame.scope) in self.recomputed_modules for frame in self.frames):
            raise self.unsupported(
                "it reads what the layer below has kept, and runs again after the layers above; expected --recompute "
                "full, or nodes without this module"
            )
        if len(step.ins) > 1 and key in self.memo:
            x = self.t.add(x, self.t.mul(self.memo[key], self.get(step.ins[1])))
        self.memo[key] = x
        self.set(step.outs[0], x)

    # --- rows -------------------------------------------------------------------------------------------------------

    @compared(BY_TORCH)
    def do_dispatch(self, step: Step) -> None:
        x, out = step.ins[0], step.outs[0]
        if x.rows == out.rows:  # they are in the order of the tokens
            order = self.expert_row_index("order")
            self.set(out, self.t.index_select(self.by_row(self.get(x), len(x.axes)), order))
            return
        local_tensors = self.frames[-1].local_tensors
        local_tensors["expert"], local_tensors["order"] = self.t.sort(self.t.flatten(self.get(step.ins[1])))
        local_tensors["token"] = self.t.like(local_tensors["order"])
        self.set(out, self.t.index_select(self.t.flatten(self.get(x), 0, -2), local_tensors["token"]))

    def expert_row_index(self, name: str) -> Tensor:
        """Returns one index per expert row: its expert, its token, or its position in the order of tokens.

        name: which.
        """
        for frame in reversed(self.frames):
            if name in frame.local_tensors:
                tensor: Tensor = frame.local_tensors[name]
                return tensor
        raise self.unsupported("no kernels for experts without a router")

    @compared(BY_TORCH)
    def do_to_tokens(self, step: Step) -> None:
        value = step.ins[0]
        x = self.by_row(self.take(step, value), len(value.axes))
        self.set(step.outs[0], self.t.index_add(x.shape[0], x, self.expert_row_index("order")))

    @compared(BY_TORCH)
    def do_combine(self, step: Step) -> None:
        """Sums the weighted outputs of each token's experts.

        The classes of transformers put the rows back into the order of tokens by an index and sum over the experts
        (integrations/moe.py, `grouped_mm_experts_forward`).
        """
        t, weights = self.t, self.get(step.ins[1])
        y = self.by_row(self.take(step, step.ins[0]), len(step.ins[0].axes))
        y = t.mul(y, t.unsqueeze(t.index_select(t.flatten(t.to(weights, y.dtype)), self.expert_row_index("order")), 1))
        if self.choices.like_classes:
            y = t.index_select(y, t.like(self.expert_row_index("order")))
            self.set(
                step.outs[0],
                t.sum(
                    t.unflatten(
                        y,
                        0,
                        weights.shape[-2:]
                        if len(weights.shape) == 2
                        else (weights.shape[0] * weights.shape[1], weights.shape[-1]),
                    ),
                    1,
                ),
            )
            return
        self.set(step.outs[0], t.index_add(weights.shape[0] * weights.shape[1], y, self.expert_row_index("token")))

    # --- experts ----------------------------------------------------------------------------------------------------

    @compared(BY_TORCH)
    def do_experts(self, step: Step) -> None:
        t, out, experts = self.t, step.outs[0], step.options["experts"].size
        x = self.by_row(self.get(step.ins[0]), len(step.ins[0].axes))
        ins, outs = x.shape[1], extent(out.axes)
        for size in (ins, outs):
            if isinstance(size, int) and size * x.dtype.bytes % ALIGNED:
                raise self.unsupported(
                    f"{size} elements of {x.dtype} are {size * x.dtype.bytes} bytes; a grouped product requires a "
                    f"multiple of {ALIGNED}",
                    step.name,
                )
        steps = self._run_with(step)
        if step is not steps[0]:
            return  # bound by the first of them
        group_ends = self.ends_of_groups(experts, step.options["identities"])
        if len(steps) > 1:
            beside = [t.transpose(self.expert_weight(item, (experts, outs, ins)), 1, 2) for item in steps]
            product = t.grouped_mm(x, beside[0], group_ends, *beside[1:])
            for item, y in zip(steps, t.split(product, [outs] * len(steps)), strict=True):
                self.set(item.outs[0], y)
            return
        weight = self.expert_weight(step, (experts, outs, ins))
        if x.dtype is not weight.dtype:
            raise self.unsupported(
                f"torch has no grouped product of {x.dtype} rows and {weight.dtype} weights, and casts neither under "
                "autocast; expected weights in the type of activations",
                step.name,
            )
        y = t.grouped_mm(x, t.transpose(weight, 1, 2), group_ends)
        if step.options["bias"]:
            y = t.add(
                y, t.index_select(self.weight(f"{step.name}.bias", (experts, outs)), self.expert_row_index("expert"))
            )
        self.set(out, y)

    def _run_with(self, step: Step) -> list[Step]:
        """Returns the linear layers of experts that run as one product with this step, in order.

        The classes of transformers have gate and up projections as one weight (`gate_up_proj`).
        """
        if not self.choices.like_classes or self.adapters is not None or step.name not in GATE_AND_UP:
            return [step]
        steps = [
            item
            for item in self.frames[-1].scope.items
            if isinstance(item, Step)
            and item.verb == "experts"
            and item.name in GATE_AND_UP
            and item.ins[0] is step.ins[0]
            and not item.options["bias"]
        ]
        return steps if len(steps) == len(GATE_AND_UP) else [step]

    def ends_of_groups(self, experts: int, identities: bool) -> Tensor:
        """Returns the cumulative row count per expert, computed by the experts' first linear layer."""
        t, local_tensors = self.t, self.frames[-1].local_tensors
        if "ends" not in local_tensors:
            if identities:
                local_tensors["identity"] = t.compare(self.expert_row_index("expert"))
                local_tensors["expert"] = t.like(self.expert_row_index("expert"))
            counts = t.histogram(self.expert_row_index("expert"), experts)
            local_tensors["ends"] = t.to(counts, INT32)
        group_ends: Tensor = local_tensors["ends"]
        return group_ends

    @compared(BY_TORCH)
    def core_IdentityExperts(self, step: Step) -> None:
        rows, y = (self.by_row(self.get(value), len(value.axes)) for value in step.ins)
        identity = self.frames[-1].local_tensors["identity"]
        self.set(step.outs[0], self.t.where(self.t.unsqueeze(identity, 1), rows, y))

    @compared(BY_TORCH)
    def core_ExpertRows(self, step: Step) -> None:
        """Runs experts of one hidden unit each, whose input and output vectors are looked up per token."""
        t, op, (x, expert_indices) = self.t, step.op, step.ins
        assert isinstance(op, ExpertRows)
        table = self.weight(f"{step.name}.weight", (op.num_experts, op.width))
        if step.outs[0].axes == expert_indices.axes:
            out = t.select(t.matmul(t.embedding(table, self.get(expert_indices)), t.unsqueeze(self.get(x), 3)), 3)
        else:
            out = t.select(t.matmul(t.unsqueeze(self.get(x), 2), t.embedding(table, self.get(expert_indices))), 2)
        self.set(step.outs[0], out)
