"""Fused attention kernels: flash attention and the backends of scaled_dot_product_attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....algebra import ceil_div
from ....components.base import TORCH_WITNESS
from ....evidence import compared, kernels_compared, source_code_witness, torch_witness
from ....flow.program import Step
from ....flow.value import Value
from ...autograd import needs_autograd_node, record
from ...sdpa import SdpaCall, has_extra_mask_input, sdpa_backend
from ...strides import Shape as Sizes
from ...strides import elementwise_strides, is_size_one
from ...tensor import BOOL, FLOAT32, INT64, UINT8, Dtype, NeedsInputGrad, OptionalGradient, Tensor
from .attention import AttentionKernels

FUSED_KERNELS_WITNESS = torch_witness("tests/simulator/test_choices.py")
"""Witness of fused attention and norms, which replace several operations."""

SDPA_WITNESS = source_code_witness(
    "torch's sdp_utils.cpp and derivatives.yaml; the CPU's kernel on the CPU, the others' results on meta",
    "tests/simulator/test_sdpa.py",
)
"""Witness of the backends of scaled_dot_product_attention."""

CUDNN_WORKSPACE = 256
"""Bytes of cuDNN's attention workspace besides the sums of dQ, on an H200 with cuDNN 9.19."""


@kernels_compared(TORCH_WITNESS)
class FusedAttention(AttentionKernels):
    """The attention kernels that the settings select instead of the reference's operations."""

    def do_mask(self, operation: Step) -> None:
        if self.choices.attention == "eager":
            super().do_mask(operation)

    def do_repeat(self, operation: Step) -> None:
        """Skips the repetition of key heads that flash attention does not need."""
        is_read_by_attention = any(
            self._is_read_in_module(verb, operation.output_values[0]) for verb in ("attention", "only_selected")
        )
        if self.choices.attention in ("flash", "sdpa") and not operation.options["tiled"] and is_read_by_attention:
            self.store_output(operation, self.tensor_of(operation.input_values[0]))
        else:
            super().do_repeat(operation)

    def _is_read_in_module(self, verb: str, recorded_value: Value) -> bool:
        """Whether an operation named `verb` in the current module reads a value."""
        scope_items = self.frames[-1].scope.items
        return any(
            isinstance(scope_item, Step) and scope_item.verb == verb and recorded_value in scope_item.input_values
            for scope_item in scope_items
        )

    def attention_AttentionCore(self, operation: Step) -> None:
        if self.choices.attention == "eager":
            super().attention_AttentionCore(operation)
            return
        uses_flash = self.choices.attention == "flash"
        has_mask = self.choices.attention == "sdpa" and has_extra_mask_input(operation)
        has_score_terms = not has_mask and (
            operation.options.get("selected_keys") is not None or len(operation.input_values) > 3
        )
        sinks = self.sinks_of(operation)
        has_other_sinks = sinks is not None and (not uses_flash or len(sinks.shape) == 2)
        if not (uses_flash and not self.has_trained_weights) and (has_score_terms or has_other_sinks):
            raise self.unsupported(
                f"--attn-implementation {self.choices.attention} takes no bias, no sinks and no such selection; "
                "expected eager",
                operation.name,
            )
        q, k, v = (self.heads_first(self.tensor_of(input_value)) for input_value in operation.input_values[:3])
        if self.choices.matches_transformers and operation.options["copies_heads"]:
            q, k, v = (self.aten.contiguous(tensor) for tensor in (q, k, v))
        is_cross_attention = operation.input_values[1].rows != operation.input_values[0].rows
        if self.choices.attention == "sdpa":
            attention_output = self.scaled_dot_product(operation, q, k, v, is_cross_attention)
        elif self.choices.attention == "flash":
            attention_output = self.run_attention_core(self.flash, *self._attention_operands(q, k, v), sinks)
        else:
            has_window = operation.options.get("window") is not None or operation.options.get("chunk") is not None
            if has_window or operation.options["cap"] is not None:
                raise self.unsupported(
                    "--attn-implementation sdpa-math takes no window and no soft cap", operation.name
                )
            k, v = (self.aten.expand(tensor, (tensor.shape[0], q.shape[1], *tensor.shape[2:])) for tensor in (k, v))
            is_masked = operation.options["causal"] and not is_cross_attention
            dropout = operation.options["dropout"]
            q, k, v = self._attention_operands(q, k, v)
            attention_output = self.run_attention_core(
                lambda q, k, v: self.sdpa_math(q, k, v, is_masked, dropout), q, k, v
            )
        attention_output = self.aten.transpose(attention_output, 1, 2)
        self.store_tensor(
            operation.output_values[0],
            self.aten.contiguous(attention_output) if self.choices.matches_transformers else attention_output,
        )

    def _attention_operands(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Casts queries, keys and values to the autocast format (aten/src/ATen/autocast_mode.h)."""
        v = self.aten.autocast_operand(v)
        k = self.aten.autocast_operand(k)
        return self.aten.autocast_operand(q), k, v

    @compared(FUSED_KERNELS_WITNESS, attention="flash")
    def flash(self, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None) -> Tensor:
        """Runs flash attention, which saves queries, keys, values, output and logsumexp.

        q: [batch, heads, queries, size]; k and v may have fewer heads.
        sinks: the score per head of one more key, which the kernel reads and saves.

        Source: derivatives.yaml, `_scaled_dot_product_flash_attention`. On a GPU the backward pass accumulates dQ in
        float32, and dK and dV of every query head (Dao-AILab/flash-attention, csrc/flash_attn/flash_api.cpp,
        `mha_bwd`).
        """
        autograd_graph, allocates_workspace = self.graph, self.choices.is_on_gpu
        batch, heads, query_count, _ = q.shape
        strides = elementwise_strides(((q.shape, q.strides),), q.shape) if q.shape[-1] == v.shape[-1] else None
        kernel_name = "flash_attention"
        attention_output = autograd_graph.operation_result(kernel_name, (*q.shape[:-1], v.shape[-1]), q.dtype, strides)
        logsumexp = autograd_graph.operation_result(kernel_name, (batch, heads, query_count), FLOAT32)
        dropout_seed = autograd_graph.operation_result(kernel_name, (2,), INT64)
        unused_offset = autograd_graph.operation_result(kernel_name, (), INT64)
        layouts, repeats_keys = [(tensor.shape, tensor.strides) for tensor in (q, k, v)], k.shape[1] != heads
        sink_inputs = [] if sinks is None else [sinks]

        def backward(output_gradient: Tensor, _: NeedsInputGrad, *saved_tensors: Tensor) -> Sequence[OptionalGradient]:
            input_gradients = [
                autograd_graph.new_tensor(shape, output_gradient.dtype, strides) for shape, strides in layouts
            ]
            input_gradients += [
                autograd_graph.new_tensor(sink_tensor.shape, sink_tensor.dtype) for sink_tensor in sink_inputs
            ]
            if allocates_workspace:
                fp32_query_gradient = autograd_graph.new_tensor(layouts[0][0], FLOAT32)
                logsumexp = autograd_graph.new_tensor((batch, heads, query_count), FLOAT32)
                repeated_gradients = [
                    autograd_graph.new_tensor((batch, heads, *shape[2:]), output_gradient.dtype)
                    for shape, _ in layouts[1:]
                    if repeats_keys
                ]
                del fp32_query_gradient, logsumexp, repeated_gradients
            return input_gradients

        inputs = (q, k, v, *sink_inputs)
        return record(
            autograd_graph,
            kernel_name,
            inputs,
            attention_output,
            backward,
            *inputs,
            attention_output,
            logsumexp,
            dropout_seed,
            unused_offset,
        )

    @compared(SDPA_WITNESS, attention="sdpa")
    def scaled_dot_product(self, operation: Step, q: Tensor, k: Tensor, v: Tensor, is_cross_attention: bool) -> Tensor:
        """Runs F.scaled_dot_product_attention as transformers calls it.

        The call has a mask unless causality determines the keys, and then keys and values of every head.
        """
        if operation.options["cap"] is not None:
            raise self.unsupported("--attn-implementation sdpa takes no soft cap; expected eager", operation.name)
        kernel_choices, query_count, key_count, heads = self.choices, q.shape[2], k.shape[2], q.shape[1]
        causal = operation.options["causal"] and not is_cross_attention and not is_size_one(query_count)
        window_sizes = [operation.options.get(option_name) for option_name in ("window", "chunk")]
        has_window = any(
            isinstance(window_size, int) and isinstance(key_count, int) and window_size < key_count
            for window_size in window_sizes
        )
        has_window = has_window and not is_size_one(query_count)
        is_masked = has_window or (causal and query_count != key_count)
        dropout = operation.options["dropout"] if self.run_config.workload.phase == "training" else 0.0
        bias = (
            self.additive_bias_mask(operation, query_count, key_count, causal) if operation.options["biased"] else None
        )
        is_mask_trained = bias is not None and needs_autograd_node(self.graph, (bias,))
        selection_mask = self.tensor_of(operation.input_values[-1]) if operation.options["narrowed"] else None
        is_masked = is_masked or bias is not None or selection_mask is not None
        is_trained = needs_autograd_node(self.graph, (q, k, v))
        dtype = self.graph.autocast_dtype or q.dtype
        sdpa_call = SdpaCall(
            dtype, q.shape[-1], v.shape[-1], key_count, is_masked, is_trained, dropout, is_mask_trained
        )
        backend = sdpa_backend(kernel_choices.compute_capability, sdpa_call)
        is_grouped_query = not is_masked and q.shape[-1] == v.shape[-1] and v.shape[-1] <= 256
        if k.shape[1] != heads and is_grouped_query and backend == "efficient":
            backend = "math"  # transformers asks for groups, which the efficient kernel does not have
        broadcasts_kv_heads = kernel_choices.matches_transformers and not operation.options["repeat_kv"]
        if broadcasts_kv_heads:
            backend = "math"  # all others ask for equal numbers of heads (`check_batch_size_and_num_heads_dense`)
        elif k.shape[1] != heads and not (is_grouped_query and backend in ("cudnn", "flash", "cpu")):
            k, v = (self.repeat_heads(tensor, heads) for tensor in (k, v))
        q, k, v = self._attention_operands(q, k, v)
        if bias is not None:
            if backend not in ("cudnn", "efficient"):
                raise self.unsupported(
                    f"--attn-implementation sdpa runs the backend '{backend}' here, which is not modelled with a bias; "
                    "expected eager",
                    operation.name,
                )
            return self.run_attention_core(
                lambda q, k, v, bias: self.sdpa_kernel(q, k, v, None, backend == "efficient", bias), q, k, v, bias
            )
        mask = selection_mask
        if is_masked and mask is None:
            mask = self.mask(operation, query_count, key_count)
        if backend == "flash":
            return self.run_attention_core(self.flash, q, k, v)
        if backend == "math":
            adds_mask = causal or mask is not None
            return self.run_attention_core(
                lambda q, k, v: self.sdpa_math(q, k, v, adds_mask, dropout, selection_mask), q, k, v
            )
        if backend == "cpu":
            return self.run_attention_core(lambda q, k, v: self.cpu_attention(q, k, v, mask), q, k, v)
        return self.run_attention_core(lambda q, k, v: self.sdpa_kernel(q, k, v, mask, backend == "efficient"), q, k, v)

    def additive_bias_mask(self, operation: Step, query_count: Any, key_count: Any, causal: bool) -> Tensor:
        """Returns an additive mask [1, heads, queries, keys]: the bias, with a constant at keys that are not visible.

        Source: transformers/integrations/sdpa_attention.py, `create_position_bias_mask`.
        """
        aten = self.aten
        bias = aten.unsqueeze(self.tensor_of(operation.input_values[3]), 0)
        if causal:
            visible_keys = self._visible_key_mask(query_count, key_count, causal, None, None)
            return aten.clone(aten.masked_fill(bias, visible_keys))
        return aten.contiguous(bias)

    def sdpa_kernel(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        is_efficient: bool,
        mask_with_gradient: Tensor | None = None,
    ) -> Tensor:
        """Runs scaled_dot_product_attention by torch's memory-efficient or cuDNN kernel.

        mask_with_gradient: a mask [1, heads, queries, keys] that gets a gradient; None (default) without one.

        Source: derivatives.yaml; transformers/cuda/attention.cu and attention_backward.cu; cudnn/MHA.cpp. Both save the
        inputs, the mask in their number format, the output, and one number per query and head; the efficient kernel
        pads queries to a multiple of 32. Dropout keeps no mask: the backward pass draws the same numbers from two
        seeds, which the efficient kernel has on the host, except on meta. In the backward pass dQ is summed in float32:
        cuDNN's workspace for it was measured on an H200 (tests/data/gpu), that of the efficient kernel is taken to be
        that of flash attention.
        """
        autograd_graph, allocates_workspace = self.graph, self.choices.is_on_gpu
        batch, heads, query_count, _ = q.shape
        kernel_name = "efficient_attention" if is_efficient else "cudnn_attention"
        bias = [] if mask is None else [self._additive_mask(mask, q, is_efficient)]
        trained_masks = (
            [] if mask_with_gradient is None else [self._expanded_mask(mask_with_gradient, batch, is_efficient)]
        )
        mask_shapes = [(tensor.shape, tensor.dtype) for tensor in trained_masks]
        output_shape = (*q.shape[:-1], v.shape[-1])
        if is_efficient:
            attention_output = self._allocate_tokens_first(kernel_name, output_shape, q.dtype)
        else:
            attention_output = self._allocate_in_query_order(kernel_name, q, v)
        padded_query_count = ceil_div(query_count, 32) * 32 if is_efficient else query_count
        needs_gradient = needs_autograd_node(autograd_graph, (q, k, v))
        row_sum_shape: tuple[Any, ...] = (batch, heads, query_count, 1)
        if is_efficient:
            row_sum_shape = (batch, heads, padded_query_count if needs_gradient else 0)
        row_sums = autograd_graph.operation_result(kernel_name, row_sum_shape, FLOAT32)
        seed_count = 0 if allocates_workspace and is_efficient else 2
        seeds = [autograd_graph.operation_result(kernel_name, (), INT64) for _ in range(seed_count)]
        if allocates_workspace and not is_efficient:
            autograd_graph.new_tensor((CUDNN_WORKSPACE,), UINT8)
        layouts = [
            (tensor.shape, elementwise_strides(((tensor.shape, tensor.strides),), tensor.shape)) for tensor in (q, k, v)
        ]
        workspace_bytes = FLOAT32.bytes * batch * heads * query_count * (q.shape[-1] + 1) + CUDNN_WORKSPACE

        def backward(output_gradient: Tensor, _: NeedsInputGrad, *saved_tensors: Tensor) -> Sequence[OptionalGradient]:
            if is_efficient:
                input_gradients = [
                    self._allocate_tokens_first("", shape, output_gradient.dtype) for shape, _ in layouts
                ]
            else:
                input_gradients = [
                    autograd_graph.new_tensor(shape, output_gradient.dtype, strides) for shape, strides in layouts
                ]
            input_gradients += [autograd_graph.new_tensor(*mask_shape) for mask_shape in mask_shapes]
            if allocates_workspace and is_efficient:
                row_sums_of_gradient = autograd_graph.new_tensor((batch, heads, query_count), FLOAT32)
                float_gradient = autograd_graph.new_tensor(layouts[0][0], FLOAT32)
                del row_sums_of_gradient, float_gradient
            elif allocates_workspace:
                autograd_graph.new_tensor((workspace_bytes,), UINT8)
            return input_gradients

        inputs = (q, k, v, *trained_masks)
        return record(
            autograd_graph,
            kernel_name,
            inputs,
            attention_output,
            backward,
            *inputs,
            *bias,
            attention_output,
            row_sums,
            *seeds,
        )

    def _expanded_mask(self, mask: Tensor, batch: Any, is_aligned: bool) -> Tensor:
        """Returns one mask per sequence. is_aligned: rows are padded to a multiple of 16, and the mask is a view."""
        aten, (_, heads, query_count, key_count) = self.aten, mask.shape
        if is_aligned and key_count % 16:
            padding = aten.new_tensor((1, heads, query_count, ceil_div(key_count, 16) * 16 - key_count), mask.dtype)
            mask = aten.slice(aten.cat([mask, padding]), key_count)
        return aten.expand(mask, (batch, heads, query_count, key_count))

    def cpu_attention(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Runs torch's flash attention for CPUs (aten/src/ATen/native/transformers/attention.cpp)."""
        autograd_graph, kernel_name = self.graph, "flash_attention_for_cpu"
        batch, heads, query_count = q.shape[:3]
        bias = [] if mask is None else [self._additive_mask(mask, q, False)]
        attention_output = self._allocate_tokens_first(kernel_name, (*q.shape[:-1], v.shape[-1]), q.dtype)
        row_sums = autograd_graph.operation_result(kernel_name, (batch, query_count, heads), FLOAT32)
        shapes = [tensor.shape for tensor in (q, k, v)]

        def backward(output_gradient: Tensor, _: NeedsInputGrad, *saved_tensors: Tensor) -> Sequence[OptionalGradient]:
            return [self._allocate_tokens_first("", shape, output_gradient.dtype) for shape in shapes]

        return record(
            autograd_graph,
            kernel_name,
            (q, k, v),
            attention_output,
            backward,
            q,
            k,
            v,
            attention_output,
            row_sums,
            *bias,
        )

    def _allocate_tokens_first(self, operation_name: str, shape: Sizes, dtype: Dtype) -> Tensor:
        """Allocates [batch, heads, tokens, size], stored as [batch, tokens, heads, size].

        operation_name: its operation.
        """
        _, head_count, token_count, head_size = shape
        strides = (token_count * head_count * head_size, head_size, head_count * head_size, 1)
        if operation_name:
            return self.graph.operation_result(operation_name, shape, dtype, strides)
        return self.graph.new_tensor(shape, dtype, strides)

    def _allocate_in_query_order(self, operation_name: str, q: Tensor, v: Tensor) -> Tensor:
        """Allocates the output of cuDNN's attention kernel, in the order of the queries' axes."""
        strides = elementwise_strides(((q.shape, q.strides),), q.shape) if q.shape[-1] == v.shape[-1] else None
        return self.graph.operation_result(operation_name, (*q.shape[:-1], v.shape[-1]), q.dtype, strides)

    def _additive_mask(self, mask: Tensor, q: Tensor, is_aligned: bool) -> Tensor:
        """Converts a boolean mask to 0 and −∞ in the queries' number format (`convert_boolean_attn_mask`).

        transformers expands the mask, [queries, keys], to the sequences of the batch. If the mask must be aligned, a
        copy has rows padded to a multiple of 16.
        """
        aten, (query_count, key_count) = self.aten, mask.shape[-2:]
        minus_infinity = aten.new_tensor((), q.dtype)
        bias = aten.new_tensor((q.shape[0], 1, query_count, key_count), q.dtype)
        del minus_infinity
        is_padded = is_aligned and key_count % 16
        return (
            aten.new_tensor((q.shape[0], 1, query_count, ceil_div(key_count, 16) * 16), q.dtype) if is_padded else bias
        )

    @compared(FUSED_KERNELS_WITNESS, attention="sdpa-math")
    def sdpa_math(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        is_masked: bool,
        dropout: float = 0.0,
        selection_mask: Tensor | None = None,
    ) -> Tensor:
        """Runs scaled_dot_product_attention by matrix products and a softmax (`_scaled_dot_product_attention_math`).

        dropout: the probability of dropout, which runs on the probabilities.
        selection_mask: the mask of the keys that another part selected; None (default) for the keys of earlier tokens.
        """
        aten, dtype = self.aten, q.dtype
        bias = None if selection_mask is None else self._additive_mask(selection_mask, q, False)
        q, k, v = (aten.to(tensor, FLOAT32) for tensor in (q, k, v))
        scaled_q = aten.scale(q)
        mask = self._float_mask(q.shape[2], k.shape[2]) if is_masked and bias is None else bias
        scores = aten.matmul(scaled_q, aten.scale(aten.transpose(k, -1, -2)))
        if mask is not None:
            scores = aten.add(scores, mask)
        scores = self.apply_dropout(self._safe_softmax(scores), dropout)
        attention_weights = aten.to(scores, dtype)
        attention_output = aten.to(aten.matmul(scores, v), dtype)
        del attention_weights
        return attention_output

    def _safe_softmax(self, scores: Tensor) -> Tensor:
        """Runs torch's `_safe_softmax` (native/transformers/attention.cpp), for which a row may have only −∞ scores."""
        probabilities = self.aten.softmax(scores)
        if self.choices.is_on_gpu:
            self.aten.new_tensor(scores.shape, BOOL)
        return probabilities

    def _float_mask(self, query_count: Any, key_count: Any) -> Tensor:
        """Computes a mask of 0 for visible keys and −∞ elsewhere, in every layer."""
        aten = self.aten
        visible_mask = aten.new_like(aten.new_tensor((query_count, key_count), BOOL))
        zero_scalar, minus_infinity = aten.new_tensor((), FLOAT32), aten.new_tensor((), FLOAT32)
        mask = aten.new_tensor((query_count, key_count), FLOAT32)
        del visible_mask, zero_scalar, minus_infinity
        return mask
