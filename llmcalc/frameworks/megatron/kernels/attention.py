"""The attention kernels of a rank: rotary embeddings, and the backends that compute attention.

Sources: Megatron-LM, megatron/core/transformer/attention.py and dot_product_attention.py; TransformerEngine,
transformer_engine/pytorch/attention/dot_product_attention/ (backends.py, utils.py `get_qkv_layout`,
context_parallel.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from ....algebra import Number, ceil_div
from ....flow.program import Step
from ....flow.value import Value
from ....simulator.tensor import BOOL, FLOAT32, INT64, NeedsInputGrad, OptionalGradient, Tensor
from .linear import LinearKernels
from .lowering import Gradients, SavedTensors

HEAD_AXES = ("heads", "kv_heads")

MAX_FUSED_SOFTMAX_KEYS = 4096
"""Largest number of keys for which Megatron-Core's fused softmax kernel exists."""

UNMODELLED_FEATURES = {
    "sinks": "attention sinks",
    "selected_keys": "keys that an indexer selects",
    "window": "sliding windows",
    "chunk": "chunks of attention",
    "cap": "soft-capped scores",
    "biased": "biases of scores",
    "narrowed": "keys that an indexer selects",
}
"""Option of an attention step that Megatron-Core's kernels lack → its description."""


def unsupported_attention_reason(operation: Step) -> str:
    """Returns the reason why Megatron-Core's kernels cannot run an attention operation; empty if they can."""
    feature_names = dict.fromkeys(
        feature_name for option_name, feature_name in UNMODELLED_FEATURES.items() if operation.options.get(option_name)
    )
    if not feature_names:
        return ""
    return (
        f"{' and '.join(feature_names)} are not modelled with --framework megatron; expected --framework fsdp2 or torch"
    )


class AttentionKernels(LinearKernels):
    """Splits of fused QKV projections, rotary embeddings, and attention."""

    def do_mask(self, operation: Step) -> None: ...

    def do_cache(self, operation: Step) -> None:
        """Returns keys and values unchanged, because training has no cache."""
        for output_value, input_value in zip(operation.output_values, operation.input_values, strict=True):
            self.store_without_reshape(output_value, self.tensor_of(input_value))

    def tensor_of(self, program_value: Value) -> Tensor:
        """Returns the tensor of a program value; for a view, the tensor that the view is of."""
        tensor = self.tensors_by_value.get(id(program_value))
        if tensor is not None:
            return tensor
        if program_value.view_source is None:
            raise self.unsupported("reads a value that no step has made")
        return self.tensor_of(program_value.view_source)

    def store_tensor(self, recorded_value: Value, tensor: Tensor) -> None:
        """Assigns a tensor to a value of the program, without reshaping the tensor to the value's axes."""
        self.store_without_reshape(recorded_value, tensor)

    def do_repeat(self, operation: Step) -> None:
        """Does nothing, because attention kernels read each key head once for the query heads that share it."""
        self.store_output(operation, self.tensor_of(operation.input_values[0]))

    # --- queries, keys and values of one product ---------------------------------------------------------------------

    def split_product(
        self, fused_operations: list[Step], linear_output: Tensor, output_widths: Sequence[Number]
    ) -> list[Tensor]:
        """Splits the output of a fused QKV projection into queries, keys and values."""
        if any(operation.output_values[0].axes[0].name not in HEAD_AXES for operation in fused_operations):
            return super().split_product(fused_operations, linear_output, output_widths)
        qkv_parts = self.split_columns(linear_output, output_widths)
        heads = [operation.output_values[0].axes[0].size for operation in fused_operations]
        query_group_count = min(heads)
        # [groups, queries of a group]: no view of heads
        if len(fused_operations) in (3, 4) and query_group_count > 1 and heads[0] > query_group_count:
            del linear_output
            for i in (0, 3)[: len(fused_operations) - 2]:
                qkv_parts[i] = self.dense_copy(qkv_parts[i])
        return qkv_parts

    def split_columns(self, x: Tensor, part_widths: Sequence[Number]) -> list[Tensor]:
        """Returns views of consecutive columns (`SplitAlongDim`). Gradients are copied unless they share a tensor."""
        row_count = x.shape[0]
        part_views = [Tensor((row_count, width), x.dtype, x.storage, (x.shape[1], 1)) for width in part_widths]
        input_shape, dtype = x.shape, x.dtype

        def join_gradients(
            saved_tensors: SavedTensors, gradients: list[OptionalGradient], needs_input_grad: NeedsInputGrad
        ) -> Gradients:
            """Returns the joined gradient of the columns: a view if gradients share one tensor, otherwise a copy."""
            present_gradients = [gradient for gradient in gradients if gradient is not None]
            first_gradient = present_gradients[0]
            if len(present_gradients) == len(gradients) and all(
                gradient.storage is first_gradient.storage for gradient in present_gradients
            ):
                return [Tensor(input_shape, dtype, first_gradient.storage)]
            return [self.graph.new_tensor(input_shape, dtype)]

        self.record_node("split", (x,), part_views, join_gradients)
        return part_views

    # --- rotation ----------------------------------------------------------------------------------------------------

    def do_rope(self, operation: Step) -> None:
        """Applies rotary embeddings to queries or keys."""
        x = self.tensor_read_by(operation, operation.input_values[0])
        self.frames[-1].local_tensors[f"qkv_output of {operation.name} {id(operation)}"] = x
        self.store_output(operation, self.rotate(x))

    def rotate(self, x: Tensor) -> Tensor:
        """Applies rotary embeddings, in one kernel or by torch's operations."""
        if self.rank_choices.fuses_rope:
            return self.copy_reordered("rope", x, x.shape)
        aten = self.aten
        rotated_input = aten.add(aten.scale(x), aten.scale(aten.scale(x)))
        return self.dense_copy(rotated_input)

    # --- attention ---------------------------------------------------------------------------------------------------

    def do_attention(self, operation: Step) -> None:
        """Runs attention, with optional recomputation in the backward pass."""
        kernel_name = type(operation.op).__name__
        if kernel_name != "AttentionCore":
            raise self.unsupported(f"no kernels for '{kernel_name}'", operation.name)
        refusal_reason = unsupported_attention_reason(operation)
        if refusal_reason:
            raise self.unsupported(refusal_reason, operation.name)
        q, k, v = (self.tensor_read_by(operation, input_value) for input_value in operation.input_values[:3])
        head_count = operation.output_values[0].axes[0].size
        if operation.input_values[1].unrepeated_value is not None:
            kv_head_count = operation.input_values[1].unrepeated_value.axes[0].size
        else:
            kv_head_count = operation.input_values[1].axes[0].size
        is_cross_attention = operation.input_values[1].rows != operation.input_values[0].rows
        has_mask = self.rank_choices.has_padding_mask and (is_cross_attention or not operation.options["causal"])
        output_width = operation.output_values[0].width

        def run_attention(input_tensors: Sequence[Tensor]) -> Tensor:
            q, k, v = input_tensors
            return self.attention(q, k, v, head_count, kv_head_count, output_width, has_mask)

        qkv = [q, k, v]
        del q, k, v
        self.frames[-1].local_tensors |= dict(zip(("query", "key", "value"), qkv, strict=True))
        if self.rank_choices.recomputes_attention_core:
            attention_output = self.checkpoint(run_attention, qkv)
        else:
            attention_output = run_attention(qkv)
        del qkv
        self.store_output(operation, attention_output)

    def attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        head_count: Number,
        kv_head_count: Number,
        output_width: Number,
        masked: bool,
    ) -> Tensor:
        """Runs attention with the run's attention backend."""
        attention_backend = self.rank_choices.attention_backend
        if attention_backend == "fused":
            return self.cudnn_attention(q, k, v, head_count, output_width)
        if attention_backend == "flash":
            return self.flash_attention(q, k, v, head_count, output_width)
        return self.unfused_attention(q, k, v, head_count, kv_head_count, output_width, masked)

    def cudnn_attention(self, q: Tensor, k: Tensor, v: Tensor, head_count: Number, output_width: Number) -> Tensor:
        """Runs cuDNN's attention, which saves its inputs, output, and one logsumexp per query and head.

        Its backward pass has a workspace beside the gradients, where queries' gradients and a number per query and head
        are summed in fp32 (NVIDIA/cudnn-frontend, node/scaled_dot_product_flash_attention.h, `dQ_accum` and
        `softmax_sum`; transformer_engine/pytorch/csrc/extensions/attention.cpp allocates it). A deterministic one has
        another workspace, whose size the library alone knows: it is not counted.
        """
        graph, row_count = self.graph, q.shape[0]
        query_sums_shape = None if self.rank_choices.is_deterministic else (q.shape[0], q.shape[1])
        if not (q.storage is k.storage is v.storage):
            q, k, v = (self.contiguous(x) for x in (q, k, v))
        qkv = (q, k, v)
        shares_storage = q.storage is k.storage
        input_shapes = [x.shape for x in qkv]
        fused_qkv_shape = (row_count, q.strides[0]) if shares_storage else None
        attn_output = self.new_tensor(row_count, output_width)
        logsumexp = self.new_tensor(row_count, head_count, FLOAT32)
        random_state = graph.new_tensor((2,), INT64)

        def backward(
            saved_tensors: SavedTensors, output_gradient: Tensor, needs_input_grad: NeedsInputGrad
        ) -> Gradients:
            if fused_qkv_shape is None:
                input_gradients = [graph.new_tensor(input_shape, output_gradient.dtype) for input_shape in input_shapes]
                self.cudnn_workspace(query_sums_shape, head_count)
                return input_gradients
            fused_qkv_gradient = graph.new_tensor(fused_qkv_shape, output_gradient.dtype)
            self.cudnn_workspace(query_sums_shape, head_count)
            return [
                Tensor(input_shape, output_gradient.dtype, fused_qkv_gradient.storage, fused_qkv_gradient.strides)
                for input_shape in input_shapes
            ]

        self.record_node("attention", qkv, [attn_output], backward, *qkv, attn_output, logsumexp, random_state)
        return self.all_to_all_output(attn_output)

    def cudnn_workspace(self, gradient_sums_shape: tuple[Number, Number] | None, head_count: Number) -> None:
        """Allocates and frees the workspace of cuDNN's backward pass.

        gradient_sums_shape: shape of the fp32 gradient sums; None without them.
        """
        if gradient_sums_shape is not None:
            query_gradient_sums = self.graph.new_tensor(
                (gradient_sums_shape[0], gradient_sums_shape[1] + head_count), FLOAT32
            )
            del query_gradient_sums

    def all_to_all_output(self, attention_output: Tensor) -> Tensor:
        """Returns the output of attention after the all-to-all of context-parallel ranks that divide heads.

        The output before the all-to-all stays saved.
        """
        if self.rank_choices.cp == 1 or self.rank_choices.context_parallel_exchange != "a2a":
            return attention_output
        return self.node_with_new_gradients("all_to_all", (attention_output,), self.empty_like(attention_output))

    def flash_attention(self, q: Tensor, k: Tensor, v: Tensor, head_count: Number, output_width: Number) -> Tensor:
        """Runs FlashAttention on [batch, tokens, heads, size]; a batch above 1 needs copies of the inputs."""
        autograd_graph, row_count, has_several_sequences = self.graph, q.shape[0], self.run_config.batch != 1
        if has_several_sequences:
            q, k, v = (self.dense_copy(x) for x in (q, k, v))
        else:
            q, k, v = (self.contiguous(x) for x in (q, k, v))
        qkv = (q, k, v)
        input_shapes = [x.shape for x in qkv]
        attn_output = self.new_tensor(row_count, output_width)
        logsumexp = self.new_tensor(row_count, head_count, FLOAT32)
        random_state = autograd_graph.new_tensor((2,), INT64)
        q_shape, split_count = q.shape, 1
        if self.rank_choices.is_deterministic:  # flash_api.cpp, `mha_bwd`: a sum of its own for each group of blocks
            split_count = ceil_div(self.rank_choices.multiprocessor_count, self.run_config.batch * head_count)

        def backward(
            saved_tensors: SavedTensors, output_gradient: Tensor, needs_input_grad: NeedsInputGrad
        ) -> Gradients:
            input_gradients = [autograd_graph.new_tensor(shape, output_gradient.dtype) for shape in input_shapes]
            logsumexp = self.new_tensor(row_count, head_count, FLOAT32)
            query_gradient_sums = autograd_graph.new_tensor((split_count * q_shape[0], q_shape[1]), FLOAT32)
            del query_gradient_sums, logsumexp
            return input_gradients

        self.record_node("flash_attention", qkv, [attn_output], backward, *qkv, attn_output, logsumexp, random_state)
        attn_output = self.all_to_all_output(attn_output)
        return self.dense_copy(attn_output) if has_several_sequences else attn_output

    def unfused_attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        head_count: Number,
        kv_head_count: Number,
        output_width: Number,
        is_masked: bool,
    ) -> Tensor:
        """Computes attention with all scores in memory, as UnfusedDotProductAttention and DotProductAttention do."""
        autograd_graph, kernel_choices, batch_size = self.graph, self.rank_choices, self.run_config.batch
        row_count, key_row_count = q.shape[0], k.shape[0]
        if kv_head_count != head_count:  # keys and values repeated for each query head
            repeated_shape = (key_row_count, q.shape[1])
            q = self.contiguous(q)
            k = self.copy_reordered("repeat", k, repeated_shape)
            v = self.copy_reordered("repeat", v, (key_row_count, output_width))
        self.persistent.use_torch_workspace("forward")
        scores_shape = (batch_size * head_count * (row_count // batch_size), key_row_count // batch_size)
        uses_transformer_engine = kernel_choices.uses_transformer_engine
        attention_mask = None
        if is_masked and uses_transformer_engine:
            attention_mask = autograd_graph.new_tensor((row_count, key_row_count // batch_size), BOOL)
        if uses_transformer_engine:
            baddbmm_input: Tensor | None = autograd_graph.new_tensor(scores_shape, q.dtype)
        else:
            self.persistent.grow_gather_buffer(2 * scores_shape[0] * scores_shape[1])
            baddbmm_input = None
        input_shapes = q.shape, k.shape

        def scores_backward(
            saved_tensors: SavedTensors, output_gradient: Tensor, needs_input_grad: NeedsInputGrad
        ) -> Gradients:
            """Allocates the gradients of queries and keys."""
            self.persistent.use_torch_workspace("backward")
            input_gradients: list[OptionalGradient] = []
            for shape in input_shapes:  # a product, and the product times the scale (derivatives.yaml, `baddbmm`)
                scores_gradient = autograd_graph.new_tensor(shape, output_gradient.dtype)
                input_gradients.append(self.empty_like(scores_gradient))
                del scores_gradient
            return input_gradients

        raw_scores = autograd_graph.new_tensor(scores_shape, q.dtype)
        self.record_node("scores", (q, k), [raw_scores], scores_backward, q, k)
        del baddbmm_input, q, k
        has_fused_softmax = uses_transformer_engine or self.has_fused_softmax(
            batch_size * head_count, row_count // batch_size, key_row_count // batch_size
        )
        attention_probs = self.fused_softmax(raw_scores) if has_fused_softmax else self.unfused_softmax(raw_scores)
        if attention_mask is not None:
            attention_probs = self.masked_copy(attention_probs, attention_mask)
        del attention_mask
        if kernel_choices.attention_dropout > 0:
            attention_probs = self.dropout(attention_probs)
        value_shape = v.shape

        def context_backward(
            saved_tensors: SavedTensors, output_gradient: Tensor, needs_input_grad: NeedsInputGrad
        ) -> Gradients:
            """Allocates the gradients of attention probabilities and values."""
            self.persistent.use_torch_workspace("backward")
            return [
                autograd_graph.new_tensor(scores_shape, output_gradient.dtype),
                autograd_graph.new_tensor(value_shape, output_gradient.dtype),
            ]

        context_rows = self.new_tensor(row_count, output_width)
        self.record_node("context", (attention_probs, v), [context_rows], context_backward, attention_probs, v)
        del attention_probs, v
        attention_output = self.dense_copy(context_rows)  # its gradient is viewed in the other order
        del context_rows, raw_scores
        return attention_output

    def fused_softmax(self, scores: Tensor) -> Tensor:
        """Runs ScaledMaskedSoftmax, which saves its result.

        Its gradient overwrites the incoming one in the kernels of Megatron-LM, and in those of Transformer Engine up to
        2.17.1 (csrc/extensions/softmax.cpp).
        """
        probs = self.graph.new_tensor(scores.shape, scores.dtype)
        self.record_node(
            "softmax", (scores,), [probs], lambda saved_tensors, gradient, needs_input_grad: [gradient], probs
        )
        return probs

    def softmax(self, scores: Tensor) -> Tensor:
        """Runs torch's softmax, which saves its result."""
        probs = self.empty_like(scores)
        return self.node_with_new_gradients("softmax", (scores,), probs, probs)

    def has_fused_softmax(self, head_count: Number, query_count: Number, key_count: Number) -> bool:
        """Whether FusedScaleMaskSoftmax has a kernel for these sizes (fused_softmax.py, `is_kernel_available`)."""
        has_fitting_sizes = 16 < key_count <= MAX_FUSED_SOFTMAX_KEYS and query_count % 4 == 0 and key_count % 4 == 0
        return bool(self.rank_choices.fuses_softmax and has_fitting_sizes and head_count % 4 == 0)

    def unfused_softmax(self, scores: Tensor) -> Tensor:
        """Runs `forward_torch_softmax`, in float32 with `runs_softmax_in_fp32`; the mask is applied in place."""
        kernel_choices, aten, x = self.rank_choices, self.aten, scores
        if kernel_choices.runs_softmax_in_fp32:
            x = aten.to(x, FLOAT32)
        if kernel_choices.scales_attention_scores:
            x = aten.scale(x)
        scores_shape = x.shape
        # made once, and remembered (`get_default_causal_mask`)
        if not kernel_choices.has_padding_mask and not kernel_choices.has_batch_mask:
            self.persistent.allocate_causal_mask(scores_shape[-1])
        masked_scores = Tensor(scores_shape, x.dtype, x.storage)
        probs = self.softmax(self.node_with_new_gradients("masked_fill", (x,), masked_scores))
        return aten.to(probs, scores.dtype) if kernel_choices.runs_softmax_in_fp32 else probs

    def masked_copy(self, x: Tensor, mask: Tensor) -> Tensor:
        """Returns a copy with zeros where the mask is set."""
        return self.node_with_new_gradients("masked_fill", (x,), self.empty_like(x), mask)

    def dropout(self, x: Tensor) -> Tensor:
        """Runs `native_dropout`, which saves one byte per element."""
        dropout_mask = self.dropout_mask(x)
        return self.node_with_new_gradients("dropout", (x,), self.empty_like(x), dropout_mask)
