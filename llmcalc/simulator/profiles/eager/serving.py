"""Attention of inference engines, whose kernel computes score terms, masks, selections and sinks itself.

FlashAttention 2 and 3 take windows, soft caps and ALiBi's slopes, and the FlashAttention of vLLM and FlashInfer take
sinks (flash_attn/flash_attn_interface.py; vllm/v1/attention/backends/flash_attn.py; flashinfer/prefill.py). A bias by
distance is computed from its table (torch/nn/attention/flex_attention.py, `score_mod`). Sparse latent attention reads
the selected keys by their indices (vllm/v1/attention/backends/mla/flashmla_sparse.py).
"""

from __future__ import annotations

from ....algebra import Number, ceil_div, minimum
from ....components.base import BY_TORCH
from ....evidence import compared
from ....flow.program import Alternatives, Scope, Step
from ....flow.value import Value
from ....workload.derived_rows import QueryKeyPairs
from ...tensor import FLOAT32, INT32, Tensor
from .entries import EntryKernels
from .fused import FusedKernels
from .positions import PositionKernels

INDEXER_LOGITS = 512 << 20
"""Most bytes of an indexer's logits at once: vLLM runs more queries in several parts (vllm/envs.py,
`VLLM_SPARSE_INDEXER_MAX_LOGITS_MB`).
"""


class ServingKernels(EntryKernels, PositionKernels, FusedKernels):
    """Kernels of inference without a tensor for each query-key pair.

    joint_output: the first sum of values of the last joint softmax, which its kernel has computed; None before.
    selectable_entries: number of the entries that the current module may select from.
    """

    joint_output: Value | None = None
    selectable_entries: Number = 0

    @property
    def scores_in_kernel(self) -> bool:
        """Whether one kernel computes all of attention, including every term and mask of its scores."""
        return self.choices.attention == "flash" and not self.trained

    def branch(self, item: Alternatives) -> Scope:
        """Returns the absorbed form of latent attention to selected keys, in a prefill too."""
        absorbed_form = item.branches.get("absorbed")
        if absorbed_form is None or not self.scores_in_kernel or self.run_config.execution.mla != "auto":
            return super().branch(item)
        selects = any(step.options.get("selected") is not None for step in absorbed_form.steps(idle=False))
        return absorbed_form if selects else super().branch(item)

    def step(self, step: Step) -> None:
        if self.scores_in_kernel and step.verb not in SELECTIONS and step.outs and all(map(is_of_pairs, step.outs)):
            if step.verb == "at_distance":
                raise self.unsupported(
                    f"--attn-implementation {self.choices.attention} has no scores by distance; expected eager",
                    step.name,
                )
            self.release(step, step.ins)
            return
        super().step(step)

    def is_computed(self, value: Value) -> bool:
        """Whether a value has a tensor, or a view of a value that has one."""
        return not self.scores_in_kernel or not is_of_pairs(value) or self._bound(value) is not None

    @compared(BY_TORCH)
    def do_hold(self, step: Step) -> None:
        frame = self.frames[-2 if step.options["outside"] else -1]
        for name, value in zip(step.options["names"], step.ins, strict=True):
            if self.is_computed(value) and not self.missing(value):
                frame.local_tensors[name] = self.get(value)

    @compared(BY_TORCH)
    def do_keep(self, step: Step) -> None:
        for name, value in zip(step.options["names"], step.ins, strict=True):
            if self.is_computed(value):
                self.memo[name] = self.get(value)

    # --- selections -------------------------------------------------------------------------------------------------

    def indexer_logits(self, queries: Number, keys: Number) -> Tensor:
        """Allocates the logits of the queries that an indexer scores at once. queries: those of all sequences."""
        return self.t.new((minimum(queries * keys, INDEXER_LOGITS // 4),), FLOAT32)

    @compared(BY_TORCH)
    def do_select(self, step: Step) -> None:
        if not self.scores_in_kernel:
            super().do_select(step)
            return
        batch, keys = self.get(step.ins[1]).shape[:2]
        queries = self.run_config.new(step.ins[1].rows)
        logits = self.indexer_logits(batch * queries, keys)
        self.memo["selected"] = self.t.new((batch, queries, minimum(keys, step.options["top_k"])), INT32)
        del logits

    @compared(BY_TORCH)
    def do_selected(self, step: Step) -> None:
        if not self.scores_in_kernel:
            super().do_selected(step)
            return
        self._bind_selected(step, [self.get(value) for value in step.ins[1:]])

    @compared(BY_TORCH)
    def do_select_blocks(self, step: Step) -> None:
        """Allocates the largest score of each block, and the indices of the selected blocks."""
        if not self.scores_in_kernel:
            super().do_select_blocks(step)
            return
        out, keys = step.outs[0], self.get(step.ins[1])
        shape = (keys.shape[0], out.axes[0].size, self.run_config.new(step.ins[1].rows))
        blocks = ceil_div(keys.shape[1], step.options["block"])
        scores = self.t.new((*shape, blocks), FLOAT32)
        self.bind(out, self.t.new((*shape, minimum(blocks, step.options["blocks"])), INT32))
        del scores

    @compared(BY_TORCH)
    def do_only_selected(self, step: Step) -> None:
        if not self.scores_in_kernel:
            super().do_only_selected(step)
            return
        self._bind_selected(step, [self.get(value) for value in step.ins[1:]])

    @compared(BY_TORCH)
    def do_choose_entries(self, step: Step) -> None:
        if not self.scores_in_kernel:
            super().do_choose_entries(step)
            return
        entries = self.selectable_entries
        batch, queries = self.get(step.ins[1]).shape[:2]
        logits = self.indexer_logits(batch * queries, entries)
        self.bind(step.outs[0], self.t.new((batch, queries, minimum(entries, step.options["top_k"])), INT32))
        del logits

    @compared(BY_TORCH)
    def do_whole_entries(self, step: Step) -> None:
        if not self.scores_in_kernel:
            super().do_whole_entries(step)
            return
        self.selectable_entries = self.get(step.ins[1]).shape[1]

    @compared(BY_TORCH)
    def do_among(self, step: Step) -> None:
        if not self.scores_in_kernel:
            super().do_among(step)
            return
        selected_mask, entries = (self.get(value) for value in step.ins[1:])
        self.values.pop(id(step.ins[2]), None)
        self.bind(step.outs[0], selected_mask)
        self.bind(step.outs[1], entries)

    # --- one softmax over several kinds of keys -----------------------------------------------------------------------

    @compared(BY_TORCH)
    def do_joint_softmax(self, step: Step) -> None:
        """Keeps the queries until the first sum of values is read, which is when the kernel runs."""
        if not self.scores_in_kernel:
            super().do_joint_softmax(step)
            return
        q = self.get(step.ins[step.options["parts"]])
        if step.options["sinks"]:
            self.weight("sinks", (step.outs[0].axes[0].size,))
        self.joint_output = None
        self.bind(step.outs[0], q)

    @compared(BY_TORCH)
    def do_weighted(self, step: Step) -> None:
        """Allocates the output of the kernel, which sums the values of all kinds of keys."""
        if not self.scores_in_kernel:
            super().do_weighted(step)
            return
        if self.joint_output is not None:
            self.set(step.outs[0], self.get(self.joint_output))
            return
        q, out = self.get(step.ins[0]), step.outs[0]
        output = self.t.new((*q.shape[:3], out.axes[-1].size), q.dtype)
        self.t.new(q.shape[:3], FLOAT32)
        self.set(out, output)
        self.joint_output = out

    @compared(BY_TORCH)
    def do_add(self, step: Step) -> None:
        if self.scores_in_kernel and self.joint_output is not None and self.joint_output in step.ins:
            a, b = (self.get(value) for value in step.ins)
            if a.storage is b.storage:
                self.bind(step.outs[0], a)
                return
        super().do_add(step)


SELECTIONS = frozenset({"choose_entries", "select_blocks", "whole_entries"})
"""Verbs whose kernels make indices, or note how many there may be."""


def is_of_pairs(value: Value) -> bool:
    """Whether a value has an element for each pair of a query and a key."""
    return isinstance(value.rows, QueryKeyPairs)
