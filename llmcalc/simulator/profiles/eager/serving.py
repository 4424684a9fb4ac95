"""Attention in inference engines: one kernel computes score terms, masks, selected keys and sinks.

FlashAttention 2 and 3 take windows, soft caps and ALiBi's slopes, and the FlashAttention of vLLM and FlashInfer take
sinks (flash_attn/flash_attn_interface.py; vllm/v1/attention/backends/flash_attn.py; flashinfer/prefill.py). A bias by
distance is computed from its table (torch/nn/attention/flex_attention.py, `score_mod`). Sparse latent attention reads
the selected keys by their indices (vllm/v1/attention/backends/mla/flashmla_sparse.py).
"""

from __future__ import annotations

from collections.abc import Callable

from ....algebra import Number, ceil_div, minimum
from ....components.base import TORCH_WITNESS
from ....evidence import compared
from ....flow.program import AlternativeBranches, ModuleScope, Step
from ....flow.value import Value
from ....workload.derived_rows import QueryKeyPairs
from ...tensor import FLOAT32, INT32, Tensor
from .compressed_kv import CompressedKVKernels
from .fused import FusedKernels
from .positions import PositionKernels

MAX_INDEXER_LOGIT_BYTES = 512 << 20
"""Largest number of bytes of an indexer's logits at once; vLLM splits more queries into parts (vllm/envs.py,
`VLLM_SPARSE_INDEXER_MAX_LOGITS_MB`).
"""


class ServingKernels(CompressedKVKernels, PositionKernels, FusedKernels):
    """Attention kernels of inference engines, which allocate no tensor with an element per query and key.

    joint_output: the first sum of values of the last joint softmax, which its kernel has computed; None before.
    selectable_entry_count: number of the entries that the current module may select from.
    """

    joint_output: Value | None = None
    selectable_entry_count: Number = 0

    @property
    def computes_scores_in_kernel(self) -> bool:
        """Whether one kernel computes all of attention, including every score term and mask."""
        return self.choices.attention == "flash" and not self.has_trained_weights

    def choose_branch(self, alternatives: AlternativeBranches) -> ModuleScope:
        """Returns the branch of latent attention to run: the absorbed form if keys are selected, even in prefill."""
        absorbed_branch = alternatives.branches.get("absorbed")
        if absorbed_branch is None or not self.computes_scores_in_kernel or self.run_config.execution.mla != "auto":
            return super().choose_branch(alternatives)
        selects_keys = any(
            operation.options.get("selected_keys") is not None
            for operation in absorbed_branch.steps(includes_idle=False)
        )
        return absorbed_branch if selects_keys else super().choose_branch(alternatives)

    def run_step(self, operation: Step) -> None:
        if (
            self.computes_scores_in_kernel
            and operation.verb not in SELECTION_VERBS
            and operation.output_values
            and all(map(has_query_key_pairs, operation.output_values))
        ):
            if operation.verb == "at_distance":
                raise self.unsupported(
                    f"--attn-implementation {self.choices.attention} has no scores by distance; expected eager",
                    operation.name,
                )
            self.release_last_reads(operation, operation.input_values)
            return
        super().run_step(operation)

    def kernel_of(self, operation: Step) -> Callable[[Step], None] | None:
        """Returns the `serve_…` method for an operation that is computed inside the attention kernel."""
        kernel = getattr(self, f"serve_{operation.verb}", None) if self.computes_scores_in_kernel else None
        return super().kernel_of(operation) if kernel is None else kernel

    def is_computed(self, recorded_value: Value) -> bool:
        """Whether a value gets a tensor of its own; false inside the attention kernel."""
        return (
            not self.computes_scores_in_kernel
            or not has_query_key_pairs(recorded_value)
            or self._value_with_tensor(recorded_value) is not None
        )

    @compared(TORCH_WITNESS)
    def do_hold(self, operation: Step) -> None:
        module_frame = self.frames[-2 if operation.options["outside"] else -1]
        for value_name, recorded_value in zip(operation.options["names"], operation.input_values, strict=True):
            if self.is_computed(recorded_value) and not self.is_from_earlier_pass(recorded_value):
                module_frame.local_tensors[value_name] = self.tensor_of(recorded_value)

    @compared(TORCH_WITNESS)
    def do_keep(self, operation: Step) -> None:
        for value_name, recorded_value in zip(operation.options["names"], operation.input_values, strict=True):
            if self.is_computed(recorded_value):
                self.pass_memo[value_name] = self.tensor_of(recorded_value)

    # --- selections -------------------------------------------------------------------------------------------------

    def indexer_logits(self, query_count: Number, key_count: Number) -> Tensor:
        """Allocates the logits of all queries that an indexer scores in one call. query_count: over all sequences."""
        return self.aten.new_tensor((minimum(query_count * key_count, MAX_INDEXER_LOGIT_BYTES // 4),), FLOAT32)

    def serve_select(self, operation: Step) -> None:
        batch_size, key_count = self.tensor_of(operation.input_values[1]).shape[:2]
        query_count = self.run_config.new_rows(operation.input_values[1].rows)
        logits = self.indexer_logits(batch_size * query_count, key_count)
        self.pass_memo["selected"] = self.aten.new_tensor(
            (batch_size, query_count, minimum(key_count, operation.options["top_k"])), INT32
        )
        del logits

    def serve_selected(self, operation: Step) -> None:
        """Passes all keys and values to the kernel, which reads the selected keys by index."""
        self._store_selected_keys(operation, list(map(self.tensor_of, operation.input_values[1:])))

    serve_only_selected = serve_selected

    def serve_select_blocks(self, operation: Step) -> None:
        """Allocates each block's highest score, and the indices of the selected blocks."""
        output, keys = operation.output_values[0], self.tensor_of(operation.input_values[1])
        shape = (keys.shape[0], output.axes[0].size, self.run_config.new_rows(operation.input_values[1].rows))
        block_count = ceil_div(keys.shape[1], operation.options["block"])
        scores = self.aten.new_tensor((*shape, block_count), FLOAT32)
        self.store_without_reshape(
            output, self.aten.new_tensor((*shape, minimum(block_count, operation.options["blocks"])), INT32)
        )
        del scores

    def serve_choose_entries(self, operation: Step) -> None:
        selectable_entries = self.selectable_entry_count
        batch_size, query_count = self.tensor_of(operation.input_values[1]).shape[:2]
        logits = self.indexer_logits(batch_size * query_count, selectable_entries)
        if operation.options["finds"] is not None:
            block_count, entries_per_block = operation.options["finds"]
            self.pass_memo["candidate blocks"] = self.aten.new_tensor(
                (batch_size, query_count, minimum(ceil_div(selectable_entries, entries_per_block), block_count)), INT32
            )
        self.store_output(
            operation,
            self.aten.new_tensor(
                (batch_size, query_count, minimum(selectable_entries, operation.options["top_k"])), INT32
            ),
        )
        del logits

    def serve_candidates(self, operation: Step) -> None:
        """Stores the number of keys in the blocks that a lower layer selected; the kernel reads the keys in place."""
        keys = self.tensor_of(operation.input_values[0])
        chosen_block_count = self.pass_memo["candidate blocks"].shape[-1]
        self.selectable_entry_count = minimum(keys.shape[1], chosen_block_count * operation.options["block_size"])
        self.store_output(operation, keys)

    def serve_whole_entries(self, operation: Step) -> None:
        self.selectable_entry_count = self.tensor_of(operation.input_values[1]).shape[1]

    def serve_among(self, operation: Step) -> None:
        selected_mask, entry_vectors = map(self.tensor_of, operation.input_values[1:])
        self.tensors_by_value.pop(id(operation.input_values[2]), None)
        self.store_output(operation, selected_mask)
        self.store_without_reshape(operation.output_values[1], entry_vectors)

    # --- one softmax over several kinds of keys -----------------------------------------------------------------------

    def serve_joint_softmax(self, operation: Step) -> None:
        """Keeps the queries until the first weighted sum of values is computed, where the kernel runs."""
        q = self.tensor_of(operation.input_values[operation.options["parts"]])
        if operation.options["sinks"]:
            self.weight("sinks", (operation.output_values[0].axes[0].size,))
        self.joint_output = None
        self.store_output(operation, q)

    def serve_weighted(self, operation: Step) -> None:
        """Allocates the output of the kernel, which sums the values of all kinds of keys."""
        if self.joint_output is not None:
            self.store_tensor(operation.output_values[0], self.tensor_of(self.joint_output))
            return
        q, output_value = self.tensor_of(operation.input_values[0]), operation.output_values[0]
        output = self.aten.new_tensor((*q.shape[:3], output_value.axes[-1].size), q.dtype)
        self.aten.new_tensor(q.shape[:3], FLOAT32)
        self.store_tensor(output_value, output)
        self.joint_output = output_value

    @compared(TORCH_WITNESS)
    def do_add(self, operation: Step) -> None:
        if (
            self.computes_scores_in_kernel
            and self.joint_output is not None
            and self.joint_output in operation.input_values
        ):
            a, b = map(self.tensor_of, operation.input_values)
            if a.storage is b.storage:
                self.store_output(operation, a)
                return
        super().do_add(operation)


SELECTION_VERBS = frozenset({"choose_entries", "value_of_lower_layer", "select_blocks", "whole_entries"})
"""Verbs whose kernels create indices of selected keys, or store how many keys may be selected."""


def has_query_key_pairs(recorded_value: Value) -> bool:
    """Whether a tensor has an element per query and key."""
    return isinstance(recorded_value.rows, QueryKeyPairs)
