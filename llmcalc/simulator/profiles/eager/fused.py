"""Fused kernels that replace several steps: attention, norms, and cross-entropy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....algebra import Number, ceil_div
from ....components.base import BY_TORCH
from ....components.norm import Norm
from ....evidence import Witness, by_source, by_torch, compared
from ....flow.axis import Shape
from ....flow.program import Step
from ....flow.value import Value
from ...autograd import record, recorded
from ...lowering import Path
from ...sdpa import SdpaCall, sdpa_backend, takes_as_mask
from ...strides import Shape as Sizes
from ...strides import elementwise, is_size_one
from ...tensor import BOOL, DTYPES, FLOAT32, INT64, UINT8, Dtype, Gradient, Needs, Tensor
from .attention import AttentionKernels
from .elementwise import ElementwiseKernels
from .fake_quantization import FakeQuantizationKernels

CHOSEN = by_torch("tests/simulator/test_choices.py")
"""The witness of attention and norms that replace several steps."""

LIGER = by_source("linkedin/Liger-Kernel's cross-entropy", "tests/device_memory/test_grid.py")
"""The witness of the losses of Liger-Kernel, whose storages torch makes in their order without the kernels."""

FLASH_LOSS = by_source("flash-attn's cross-entropy", "tests/simulator/test_choices.py")
"""The witness of flash-attn's losses, whose storages torch makes in their order without the kernels."""

CHUNKS_KEPT = by_torch("tests/simulator/test_adapter_libraries.py")
"""The witness of a loss chunk by chunk."""

COMPILED = Witness(
    "estimate",
    "torch.compile: products and attention kept, norms fused, all else run again (within 8 % of 2 published runs, "
    "17 to 20 % below 3 measured steps of a whole compiled model, 42 % below one of QLoRA)",
    "tests/device_memory/test_published.py",
)
"""The witness of what torch.compile is taken to keep: published measurements of fine-tuning, and steps on an H200."""

SDPA = by_source(
    "torch's sdp_utils.cpp and derivatives.yaml; the CPU's kernel on the CPU, the others' results on meta",
    "tests/simulator/test_sdpa.py",
)
"""The witness of the backends of scaled_dot_product_attention."""

HEADS = ("heads", "kv_heads", "half_heads")
"""The names of axes of heads."""

CUDNN_WORKSPACE = 256
"""Bytes that cuDNN's attention takes beside the sums of dQ, on an H200 with cuDNN 9.19."""

CHUNKS = 8
"""Chunks of a `split` cross-entropy: the default of torchtune (`num_output_chunks`)."""

ENTROPY_ROWS = 128
"""Rows of logits whose entropies TRL computes at a time (trainer/utils.py, `entropy_from_logits`)."""


class FusedKernels(AttentionKernels, ElementwiseKernels, FakeQuantizationKernels):
    """The fused kernels that the settings select instead of the reference's operations."""

    # --- attention --------------------------------------------------------------------------------------------------

    @compared(BY_TORCH)
    def do_mask(self, operation: Step) -> None:
        if self.choices.attention == "eager":
            super().do_mask(operation)

    @compared(BY_TORCH)
    def do_repeat(self, operation: Step) -> None:
        """Skips the repetition of key heads that flash attention does not need."""
        is_read_by_attention = any(
            self._in_this_module(verb, operation.outs[0]) for verb in ("attention", "only_selected")
        )
        if self.choices.attention in ("flash", "sdpa") and not operation.options["tiled"] and is_read_by_attention:
            self.bind(operation.outs[0], self.tensor_of(operation.ins[0]))
        else:
            super().do_repeat(operation)

    @compared(BY_TORCH)
    def attention_AttentionCore(self, operation: Step) -> None:
        if self.choices.attention == "eager":
            super().attention_AttentionCore(operation)
            return
        flash = self.choices.attention == "flash"
        has_mask = self.choices.attention == "sdpa" and takes_as_mask(operation)
        changes_scores = not has_mask and (operation.options.get("selected") is not None or len(operation.ins) > 3)
        sinks = self.weight("sinks", (operation.outs[0].axes[0].size,)) if operation.options.get("sinks") else None
        if not (flash and not self.trained) and (changes_scores or (sinks is not None and not flash)):
            raise self.unsupported(
                f"--attn-implementation {self.choices.attention} takes no bias, no sinks and no such selection; "
                "expected eager",
                operation.name,
            )
        q, k, v = (self.heads_first(self.tensor_of(input_value)) for input_value in operation.ins[:3])
        if self.choices.like_classes and operation.options["copies_heads"]:
            q, k, v = (self.t.contiguous(x) for x in (q, k, v))
        is_cross_attention = operation.ins[1].rows != operation.ins[0].rows
        if self.choices.attention == "sdpa":
            output = self.scaled_dot_product(operation, q, k, v, is_cross_attention)
        elif self.choices.attention == "flash":
            output = self.run_attention_core(self.flash, *self._attention_operands(q, k, v), sinks)
        else:
            has_window = operation.options.get("window") is not None or operation.options.get("chunk") is not None
            if has_window or operation.options["cap"] is not None:
                raise self.unsupported(
                    "--attn-implementation sdpa-math takes no window and no soft cap", operation.name
                )
            k, v = (self.t.expand(x, (x.shape[0], q.shape[1], *x.shape[2:])) for x in (k, v))
            is_masked = operation.options["causal"] and not is_cross_attention
            dropout = operation.options["dropout"]
            q, k, v = self._attention_operands(q, k, v)
            output = self.run_attention_core(lambda q, k, v: self.sdpa_math(q, k, v, is_masked, dropout), q, k, v)
        output = self.t.transpose(output, 1, 2)
        self.store_tensor(operation.outs[0], self.t.contiguous(output) if self.choices.like_classes else output)

    def _attention_operands(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Casts queries, keys and values to the autocast format (aten/src/ATen/autocast_mode.h)."""
        v = self.t.operand(v)
        k = self.t.operand(k)
        return self.t.operand(q), k, v

    @compared(CHOSEN, attention="flash")
    def flash(self, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None) -> Tensor:
        """Runs flash attention, which saves queries, keys, values, output and logsumexp.

        q: [batch, heads, queries, size]; k and v may have fewer heads.
        sinks: the score per head of one more key, which the kernel reads and saves.

        Source: derivatives.yaml, `_scaled_dot_product_flash_attention`. On a GPU the backward pass accumulates dQ in
        float32, and dK and dV of every query head (Dao-AILab/flash-attention, csrc/flash_attn/flash_api.cpp,
        `mha_bwd`).
        """
        autograd_graph, allocates_workspace = self.graph, self.choices.on_gpu
        batch, heads, queries, _ = q.shape
        strides = elementwise(((q.shape, q.strides),), q.shape) if q.shape[-1] == v.shape[-1] else None
        name = "flash_attention"
        output = autograd_graph.operation_result(name, (*q.shape[:-1], v.shape[-1]), q.dtype, strides)
        logsumexp = autograd_graph.operation_result(name, (batch, heads, queries), FLOAT32)
        seed = autograd_graph.operation_result(name, (2,), INT64)
        unused_offset = autograd_graph.operation_result(name, (), INT64)
        shapes, repeats_keys = [(x.shape, x.strides) for x in (q, k, v)], k.shape[1] != heads
        sink_inputs = [] if sinks is None else [sinks]

        def backward(output_gradient: Tensor, _: Needs, *saved_tensors: Tensor) -> Sequence[Gradient]:
            outputs = [autograd_graph.new_tensor(shape, output_gradient.dtype, strides) for shape, strides in shapes]
            outputs += [autograd_graph.new_tensor(sink.shape, sink.dtype) for sink in sink_inputs]
            if allocates_workspace:
                fp32_query_gradient = autograd_graph.new_tensor(shapes[0][0], FLOAT32)
                logsumexp = autograd_graph.new_tensor((batch, heads, queries), FLOAT32)
                repeated_gradients = [
                    autograd_graph.new_tensor((batch, heads, *shape[2:]), output_gradient.dtype)
                    for shape, _ in shapes[1:]
                    if repeats_keys
                ]
                del fp32_query_gradient, logsumexp, repeated_gradients
            return outputs

        inputs = (q, k, v, *sink_inputs)
        return record(autograd_graph, name, inputs, output, backward, *inputs, output, logsumexp, seed, unused_offset)

    @compared(SDPA, attention="sdpa")
    def scaled_dot_product(self, operation: Step, q: Tensor, k: Tensor, v: Tensor, is_cross_attention: bool) -> Tensor:
        """Runs F.scaled_dot_product_attention as transformers calls it: with a mask unless causality determines the
        keys, and then with keys and values of every head."""
        if operation.options["cap"] is not None:
            raise self.unsupported("--attn-implementation sdpa takes no soft cap; expected eager", operation.name)
        kernel_choices, queries, keys, heads = self.choices, q.shape[2], k.shape[2], q.shape[1]
        causal = operation.options["causal"] and not is_cross_attention and not is_size_one(queries)
        limits = [operation.options.get(name) for name in ("window", "chunk")]
        is_limited = any(isinstance(n, int) and isinstance(keys, int) and n < keys for n in limits)
        is_limited = is_limited and not is_size_one(queries)
        is_masked = is_limited or (causal and queries != keys)
        dropout = operation.options["dropout"] if self.run_config.workload.phase == "training" else 0.0
        bias = self.bias_as_mask(operation, queries, keys, causal) if operation.options["biased"] else None
        mask_trained = bias is not None and recorded(self.graph, (bias,))
        selection = self.tensor_of(operation.ins[-1]) if operation.options["narrowed"] else None
        is_masked = is_masked or bias is not None or selection is not None
        is_trained = recorded(self.graph, (q, k, v))
        dtype = self.graph.autocast or q.dtype
        call = SdpaCall(dtype, q.shape[-1], v.shape[-1], keys, is_masked, is_trained, dropout, mask_trained)
        backend = sdpa_backend(kernel_choices.capability, call)
        is_grouped_query = not is_masked and q.shape[-1] == v.shape[-1] and v.shape[-1] <= 256
        if k.shape[1] != heads and is_grouped_query and backend == "efficient":
            backend = "math"  # transformers asks for groups, which the efficient kernel does not have
        broadcasts = kernel_choices.like_classes and not operation.options["repeat_kv"]
        if broadcasts:
            backend = "math"  # all others ask for equal numbers of heads (`check_batch_size_and_num_heads_dense`)
        elif k.shape[1] != heads and not (is_grouped_query and backend in ("cudnn", "flash", "cpu")):
            k, v = (self.repeat_heads(x, heads) for x in (k, v))
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
        mask = selection
        if is_masked and mask is None:
            mask = self.mask(operation, queries, keys)
        if backend == "flash":
            return self.run_attention_core(self.flash, q, k, v)
        if backend == "math":
            adds_mask = causal or mask is not None
            return self.run_attention_core(
                lambda q, k, v: self.sdpa_math(q, k, v, adds_mask, dropout, selection), q, k, v
            )
        if backend == "cpu":
            return self.run_attention_core(lambda q, k, v: self.cpu_attention(q, k, v, mask), q, k, v)
        return self.run_attention_core(lambda q, k, v: self.sdpa_kernel(q, k, v, mask, backend == "efficient"), q, k, v)

    def bias_as_mask(self, operation: Step, queries: Any, keys: Any, causal: bool) -> Tensor:
        """Returns the bias as a contiguous mask [1, heads, queries, keys], a constant at keys that are not visible.

        Source: transformers/integrations/sdpa_attention.py, `create_position_bias_mask`.
        """
        aten = self.t
        bias = aten.unsqueeze(self.tensor_of(operation.ins[3]), 0)
        if causal:
            visible_keys = self._visible_keys(queries, keys, causal, None, None)
            return aten.clone(aten.masked_fill(bias, visible_keys))
        return aten.contiguous(bias)

    def sdpa_kernel(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, efficient: bool, trained_mask: Tensor | None = None
    ) -> Tensor:
        """Runs `_scaled_dot_product_efficient_attention` or `_scaled_dot_product_cudnn_attention`.

        trained_mask: a mask [1, heads, queries, keys] that gets a gradient, for each sequence; None (default) for none.

        Source: derivatives.yaml; transformers/cuda/attention.cu and attention_backward.cu; cudnn/MHA.cpp. Both save the
        inputs, the mask in their number format, the output, and one number per query and head; the efficient kernel
        pads queries to a multiple of 32. Dropout keeps no mask: the backward pass draws the same numbers from two
        seeds, which the efficient kernel has on the host, except on meta. In the backward pass dQ is summed in float32:
        cuDNN's workspace for it was measured on an H200 (tests/data/gpu), that of the efficient kernel is taken to be
        that of flash attention.
        """
        autograd_graph, allocates_workspace = self.graph, self.choices.on_gpu
        batch, heads, queries, _ = q.shape
        name = "efficient_attention" if efficient else "cudnn_attention"
        bias = [] if mask is None else [self._additive_mask(mask, q, efficient)]
        trained_masks = [] if trained_mask is None else [self._expanded_mask(trained_mask, batch, efficient)]
        mask_shapes = [(x.shape, x.dtype) for x in trained_masks]
        output_shape = (*q.shape[:-1], v.shape[-1])
        output = self._by_token(name, output_shape, q.dtype) if efficient else self._as_queries(name, q, v)
        padded_queries = ceil_div(queries, 32) * 32 if efficient else queries
        needs = recorded(autograd_graph, (q, k, v))
        rows = (batch, heads, (padded_queries if needs else 0)) if efficient else (batch, heads, queries, 1)
        sums = autograd_graph.operation_result(name, rows, FLOAT32)
        seed_count = 0 if allocates_workspace and efficient else 2
        seeds = [autograd_graph.operation_result(name, (), INT64) for _ in range(seed_count)]
        if allocates_workspace and not efficient:
            autograd_graph.new_tensor((CUDNN_WORKSPACE,), UINT8)
        shapes = [(x.shape, elementwise(((x.shape, x.strides),), x.shape)) for x in (q, k, v)]
        workspace = FLOAT32.bytes * batch * heads * queries * (q.shape[-1] + 1) + CUDNN_WORKSPACE

        def back(output_gradient: Tensor, _: Needs, *saved_tensors: Tensor) -> Sequence[Gradient]:
            if efficient:
                outputs = [self._by_token("", shape, output_gradient.dtype) for shape, _ in shapes]
            else:
                outputs = [
                    autograd_graph.new_tensor(shape, output_gradient.dtype, strides) for shape, strides in shapes
                ]
            outputs += [autograd_graph.new_tensor(*mask_shape) for mask_shape in mask_shapes]
            if allocates_workspace and efficient:
                delta = autograd_graph.new_tensor((batch, heads, queries), FLOAT32)
                float_gradient = autograd_graph.new_tensor(shapes[0][0], FLOAT32)
                del delta, float_gradient
            elif allocates_workspace:
                autograd_graph.new_tensor((workspace,), UINT8)
            return outputs

        inputs = (q, k, v, *trained_masks)
        return record(autograd_graph, name, inputs, output, back, *inputs, *bias, output, sums, *seeds)

    def _expanded_mask(self, mask: Tensor, batch: Any, is_aligned: bool) -> Tensor:
        """Returns one mask per sequence of the batch; aligned masks are views with rows padded to a multiple of 16."""
        aten, (_, heads, queries, keys) = self.t, mask.shape
        if is_aligned and keys % 16:
            padding = aten.new_tensor((1, heads, queries, ceil_div(keys, 16) * 16 - keys), mask.dtype)
            mask = aten.slice(aten.cat([mask, padding]), keys)
        return aten.expand(mask, (batch, heads, queries, keys))

    def cpu_attention(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Runs `_scaled_dot_product_flash_attention_for_cpu` (aten/src/ATen/native/transformers/attention.cpp)."""
        autograd_graph, name = self.graph, "flash_attention_for_cpu"
        batch, heads, queries = q.shape[:3]
        bias = [] if mask is None else [self._additive_mask(mask, q, False)]
        output = self._by_token(name, (*q.shape[:-1], v.shape[-1]), q.dtype)
        sums = autograd_graph.operation_result(name, (batch, queries, heads), FLOAT32)
        shapes = [x.shape for x in (q, k, v)]

        def back(output_gradient: Tensor, _: Needs, *saved_tensors: Tensor) -> Sequence[Gradient]:
            return [self._by_token("", shape, output_gradient.dtype) for shape in shapes]

        return record(autograd_graph, name, (q, k, v), output, back, q, k, v, output, sums, *bias)

    def _by_token(self, operation_name: str, shape: Sizes, dtype: Dtype) -> Tensor:
        """Allocates [batch, heads, tokens, size], stored as [batch, tokens, heads, size].

        operation_name: its operation.
        """
        _, heads, tokens, size = shape
        strides = (tokens * heads * size, size, heads * size, 1)
        if operation_name:
            return self.graph.operation_result(operation_name, shape, dtype, strides)
        return self.graph.new_tensor(shape, dtype, strides)

    def _as_queries(self, operation_name: str, q: Tensor, v: Tensor) -> Tensor:
        """Allocates the output of cuDNN's attention kernel, in the order of the queries' axes."""
        strides = elementwise(((q.shape, q.strides),), q.shape) if q.shape[-1] == v.shape[-1] else None
        return self.graph.operation_result(operation_name, (*q.shape[:-1], v.shape[-1]), q.dtype, strides)

    def _additive_mask(self, mask: Tensor, q: Tensor, is_aligned: bool) -> Tensor:
        """Runs `convert_boolean_attn_mask`: 0 and −∞ in the queries' number format; aligned, also a copy with rows of a
        multiple of 16. transformers expands the mask, [queries, keys], to the sequences of the batch."""
        aten, (queries, keys) = self.t, mask.shape[-2:]
        minus_infinity = aten.new_tensor((), q.dtype)
        bias = aten.new_tensor((q.shape[0], 1, queries, keys), q.dtype)
        del minus_infinity
        is_copied = is_aligned and keys % 16
        return aten.new_tensor((q.shape[0], 1, queries, ceil_div(keys, 16) * 16), q.dtype) if is_copied else bias

    @compared(CHOSEN, attention="sdpa-math")
    def sdpa_math(
        self, q: Tensor, k: Tensor, v: Tensor, is_masked: bool, dropout: float = 0.0, selection: Tensor | None = None
    ) -> Tensor:
        """Runs `_scaled_dot_product_attention_math` (aten/src/ATen/native/transformers/attention.cpp).

        dropout: the probability of dropout, which runs on the probabilities.
        selection: the mask of the keys that another part selected; None (default) for the keys of earlier tokens.
        """
        aten, dtype = self.t, q.dtype
        bias = None if selection is None else self._additive_mask(selection, q, False)
        q, k, v = (aten.to(x, FLOAT32) for x in (q, k, v))
        scaled_q = aten.scale(q)
        mask = self._float_mask(q.shape[2], k.shape[2]) if is_masked and bias is None else bias
        scores = aten.matmul(scaled_q, aten.scale(aten.transpose(k, -1, -2)))
        if mask is not None:
            scores = aten.add(scores, mask)
        scores = self.apply_dropout(self._safe_softmax(scores), dropout)
        weights = aten.to(scores, dtype)
        output = aten.to(aten.matmul(scores, v), dtype)
        del weights
        return output

    def _safe_softmax(self, scores: Tensor) -> Tensor:
        """Runs `_safe_softmax` (aten/src/ATen/native/transformers/attention.cpp), which marks scores of −∞."""
        probabilities = self.t.softmax(scores)
        if self.choices.on_gpu:
            self.t.new_tensor(scores.shape, BOOL)
        return probabilities

    def _float_mask(self, queries: Any, keys: Any) -> Tensor:
        """Computes a mask of 0 for visible keys and −∞ elsewhere, in every layer."""
        aten = self.t
        is_visible = aten.like(aten.new_tensor((queries, keys), BOOL))
        zero, minus_infinity = aten.new_tensor((), FLOAT32), aten.new_tensor((), FLOAT32)
        mask = aten.new_tensor((queries, keys), FLOAT32)
        del is_visible, zero, minus_infinity
        return mask

    # --- norms ------------------------------------------------------------------------------------------------------

    def norms_heads_first(self, value: Value, normed_shape: Shape) -> bool:
        """Whether a norm's input is stored heads first: the fused kernel preserves the order of axes.

        The classes of transformers norm queries and keys before they are stored heads first.
        """
        is_fused = self.choices.norm == "fused" or self.choices.compiled
        return (
            is_fused
            and not self.choices.like_classes
            and len(value.axes) == 2
            and len(normed_shape) == 1
            and value.axes[0].name in HEADS
        )

    @compared(CHOSEN, norm="fused")
    def norm(
        self, x: Tensor, spec: Norm, name: str, shape: Any, groups: Any = 1, module_path: Path | None = None
    ) -> Tensor:
        """Runs a fused norm, which saves the input and row statistics.

        Source: derivatives.yaml, `native_layer_norm`, `_fused_rms_norm`. On a GPU an input that is not dense is copied
        for the kernel (aten/src/ATen/native/cuda/layer_norm_kernel.cu).
        """
        is_unfused = spec.float32_product and spec.weight
        layer_norm = spec.type == "layernorm" and self.choices.fused_layer_norm and not is_unfused
        eager = self.choices.norm == "eager" and not self.choices.compiled and not layer_norm
        if eager or spec.type == "affine" or groups != 1 or len(shape) > 1:
            return super().norm(x, spec, name, shape, groups, module_path)
        if layer_norm and spec.float32_product and x.dtype is not FLOAT32:
            copy_spec = spec.model_copy(update={"float32_product": False})
            return self.t.to(self.norm(self.t.to(x, FLOAT32), copy_spec, name, shape, groups, module_path), x.dtype)
        autograd_graph, rows = self.graph, (*x.shape[:-1], 1)
        weight = self.norm_factor(spec, name, shape, module_path) if spec.weight else None
        bias = self.weight(f"{name}.bias", shape, module_path) if spec.has_bias else None
        inputs = [present for present in (x, weight, None if spec.type == "rmsnorm" else bias) if present is not None]
        shapes = [(present.shape, present.dtype) for present in inputs]

        def dense(tensor: Tensor) -> Tensor | None:
            is_copied = self.choices.on_gpu and not tensor.is_contiguous
            return autograd_graph.new_tensor(tensor.shape, tensor.dtype) if is_copied else None

        def backward(output_gradient: Tensor, needs_input_grad: Needs, x: Tensor, *_: Tensor) -> Sequence[Gradient]:
            copies = dense(output_gradient), dense(x)
            input_gradients = [
                autograd_graph.new_tensor(*input_gradients) if needs_grad else None
                for input_gradients, needs_grad in zip(shapes, needs_input_grad, strict=True)
            ]
            del copies
            return input_gradients

        copy = dense(x)
        output = autograd_graph.new_tensor(x.shape, x.dtype)
        statistics = [autograd_graph.new_tensor(rows, FLOAT32) for _ in range(2 if spec.type == "layernorm" else 1)]
        del copy
        normed = record(
            autograd_graph, "norm", inputs, output, backward, x, *statistics, *([] if weight is None else [weight])
        )
        return self.t.add(normed, bias) if spec.type == "rmsnorm" and bias is not None else normed

    # --- gated activations ------------------------------------------------------------------------------------------

    @property
    def _fuses_gates(self) -> bool:
        """Whether an activation and the product with it are one operation."""
        return self.choices.compiled or self.choices.fused_gate

    @compared(BY_TORCH)
    def do_act(self, operation: Step) -> None:
        if self._fuses_gates and self._in_this_module("mul", operation.outs[0]):
            self.bind(operation.outs[0], self.tensor_of(operation.ins[0]))  # the product reads the gate itself
        else:
            super().do_act(operation)

    @compared(BY_TORCH)
    def do_mul(self, operation: Step) -> None:
        """Computes act(gate) · up; torch.compile and Liger-Kernel compute the activation in the backward pass again.

        Source: linkedin/Liger-Kernel 0.8.5, ops/swiglu.py, which writes the gradients over the gate and the projection.
        """
        autograd_graph, in_place = self.graph, self.choices.fused_gate
        if not (self._fuses_gates and any(map(self._is_activation_output, operation.ins))):
            super().do_mul(operation)
            return
        gate, up_projection = map(self.tensor_of, operation.ins)
        output = self.t.like(gate, up_projection)
        shapes = [(operand.shape, operand.dtype) for operand in (gate, up_projection)]

        def backward(output_gradient: Tensor, needs_input_grad: Needs, *inputs: Tensor) -> Sequence[Gradient]:
            if in_place:
                return [x if needs_grad else None for x, needs_grad in zip(inputs, needs_input_grad, strict=True)]
            return [
                autograd_graph.new_tensor(*shape_and_dtype) if needs_grad else None
                for shape_and_dtype, needs_grad in zip(shapes, needs_input_grad, strict=True)
            ]

        product = record(autograd_graph, "glu", (gate, up_projection), output, backward, gate, up_projection)
        self.store_tensor(operation.outs[0], product)

    def _in_this_module(self, verb: str, value: Value) -> bool:
        """Whether an operation of that name in the current module reads a value."""
        items = self.frames[-1].scope.items
        return any(isinstance(item, Step) and item.verb == verb and value in item.ins for item in items)

    def _is_activation_output(self, value: Value) -> bool:
        items = self.frames[-1].scope.items
        return any(isinstance(item, Step) and item.verb == "act" and value in item.outs for item in items)

    # --- the loss ---------------------------------------------------------------------------------------------------

    @compared(BY_TORCH)
    def do_linear(self, operation: Step) -> None:
        computes_loss_in_chunks = (
            self.choices.cross_entropy in ("chunked", "split") and self.trained and self.graph.enabled
        )
        if not (computes_loss_in_chunks and operation.outs[0] is self.result):
            super().do_linear(operation)
            return
        if self.has_adapter(operation):
            raise self.unsupported(
                f"--cross-entropy {self.choices.cross_entropy} computes the product itself; expected no adapter on it",
                operation.name,
            )
        if self.choices.fake_quantization is not None and self.choices.cross_entropy == "chunked":
            raise self.unsupported(
                f"--cross-entropy {self.choices.cross_entropy} computes the product itself; expected no "
                "--fake-quantize beside it",
                operation.name,
            )
        bias = self.weight(f"{operation.name}.bias", (operation.outs[0].width,)) if operation.options["bias"] else None
        self.head = (operation, self.matrix(operation), bias)
        self.bind(operation.outs[0], self.flat_tensor(operation.ins[0]))

    def output_rows(self, operation: Step) -> Number:
        rows, last_rows = super().output_rows(operation), self.choices.logits_to_keep
        is_cut = self.choices.cross_entropy == "selective" and operation.outs[0] is self.result
        return min(rows, last_rows + 1) if is_cut and last_rows is not None else rows

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self.choices.cross_entropy == "selective":
            return self._selective_loss(logits, labels)
        if self.choices.cross_entropy == "fused":
            return self._loss_over_logits(self._rows_of_logits(logits), labels)
        if self.choices.cross_entropy == "flash":
            return self._flash_loss(self._rows_of_logits(logits), labels)
        if self.choices.cross_entropy == "flash-in-place":
            return self._loss_in_place(self._rows_of_logits(logits), labels)
        if self.head is not None:
            (head, weight, bias), self.head = self.head, None
            if self.choices.cross_entropy == "split":
                return self._loss_chunk_by_chunk(head, logits, weight, bias, labels)
            return self._fused_linear_loss(self.t.flatten(logits, 0, 1), weight, bias, labels)
        if self.choices.compiles_loss:
            return self._compiled_loss(self._rows_of_logits(logits))
        return super().loss(logits, labels)

    def _rows_of_logits(self, logits: Tensor) -> Tensor:
        """Returns the logits as [tokens, vocabulary] in the loss's number format."""
        return self.t.flatten(self.t.to(logits, DTYPES[self.choices.logits_dtype or logits.dtype.name]), 0, 1)

    @compared(COMPILED, compiled=True)
    def _compiled_loss(self, logits: Tensor) -> Tensor:
        """Computes cross-entropy of logits [tokens, vocabulary] under torch.compile; saves two numbers per row."""
        autograd_graph, rows = self.graph, (logits.shape[0], 1)
        row_maxima = autograd_graph.new_tensor(rows, FLOAT32)
        total = autograd_graph.new_tensor(rows, FLOAT32)
        output = autograd_graph.new_tensor((), FLOAT32)
        shape, dtype = logits.shape, logits.dtype

        def backward(output_gradient: Tensor, _: Needs, *__: Tensor) -> Sequence[Gradient]:
            return (autograd_graph.new_tensor(shape, dtype),)

        return record(autograd_graph, "cross_entropy", (logits,), output, backward, logits, row_maxima, total)

    @compared(LIGER, cross_entropy="fused")
    def _loss_over_logits(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Runs Liger-Kernel's loss, whose forward pass overwrites the logits with the gradient.

        Source: linkedin/Liger-Kernel 0.8.2, ops/cross_entropy.py. The host reads the number of labels that count, and
        whether all labels are within the vocabulary.
        """
        aten = self.t
        losses = aten.new_tensor(logits.shape[:1], logits.dtype)
        is_counted = aten.compare(labels)
        aten.new_tensor((), INT64)
        for _ in ("max", "min"):
            safe_labels = aten.like(labels)
            aten.new_tensor((), INT64)
            del safe_labels
        output = aten.new_tensor((), logits.dtype)
        del losses, is_counted
        return record(self.graph, "cross_entropy", (logits,), output, lambda g, _, gradient: (gradient,), logits)

    @compared(CHOSEN, cross_entropy="selective")
    def _selective_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Computes log-probabilities of the labels, and the entropies without a gradient, as TRL's GRPO.

        Source: huggingface/trl, trainer/grpo_trainer.py, `_get_per_token_logps_and_entropies`, and trainer/utils.py,
        `selective_log_softmax` and `entropy_from_logits`. The loss of log-probabilities is counted as their mean.
        """
        aten, (batch, tokens) = self.t, logits.shape[:2]
        default_dtype = FLOAT32 if self.choices.float32_loss else logits.dtype
        logits = aten.to(logits, DTYPES[self.choices.logits_dtype or default_dtype.name])
        view = aten.scale_slice_in_place(logits, tokens - 1, 1)
        last_labels = aten.slice(aten.reshape(labels, (batch, labels.shape[0] // batch)), tokens - 1, 1)
        log_probabilities = self._log_probabilities(view, aten.unsqueeze(last_labels, 2))
        with self.graph.no_grad():
            _entropies = self._entropies(view)
        return aten.mean(aten.flatten(log_probabilities), keepdim=False)

    def _log_probabilities(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Computes the labels' log-probabilities sequence by sequence."""
        aten = self.t
        if logits.dtype is FLOAT32:
            of_labels = aten.gather(logits, labels)
            log_sums = aten.stack([aten.logsumexp(rows) for rows in aten.unbind(logits)])
            return aten.squeeze(aten.sub(of_labels, aten.unsqueeze(log_sums, 2)))
        of_sequences: list[Tensor] = []
        for rows, row_labels in zip(aten.unbind(logits), aten.unbind(labels), strict=True):
            of_rows = aten.log_softmax(rows)
            of_sequences.append(aten.gather(of_rows, row_labels))
        del rows, of_rows, row_labels
        return aten.squeeze(aten.stack(of_sequences))

    def _entropies(self, logits: Tensor) -> Tensor:
        """Computes entropies of logits, 128 rows at a time."""
        aten = self.t
        rows = aten.reshape(logits, (logits.shape[0] * logits.shape[1], logits.shape[2]))
        entropies: list[Tensor] = []
        for start in range(0, rows.shape[0], ENTROPY_ROWS):
            of_rows = aten.log_softmax(aten.slice(rows, min(ENTROPY_ROWS, rows.shape[0] - start), 0))
            probabilities = aten.scale(of_rows, "exp")
            product = aten.mul(probabilities, of_rows)
            del probabilities
            total = aten.sum(product)
            del product
            entropies.append(aten.scale(total, "neg"))
            del total
        return aten.cat(entropies, 0)

    @compared(FLASH_LOSS, cross_entropy="flash")
    def _flash_loss(self, logits: Tensor, labels: Tensor, in_place: bool = False) -> Tensor:
        """Runs flash-attn's cross-entropy, which saves two numbers per row beside the logits.

        Source: Dao-AILab/flash-attention, flash_attn/ops/triton/cross_entropy.py, `CrossEntropyLoss`.

        in_place: whether the backward pass writes the gradient over the logits; false by default.
        """
        aten, graph = self.t, self.graph
        losses, log_sums, squares = (aten.new_tensor(logits.shape[:1], FLOAT32) for _ in range(3))

        def backward(output_gradient: Tensor, _: Needs, logits: Tensor, *__: Tensor) -> Sequence[Gradient]:
            gradient_of_squares = aten.new_tensor(
                logits.shape[:1], FLOAT32
            )  # zeros, which autograd makes for any function
            gradient = logits if in_place else aten.like(logits)
            del gradient_of_squares
            return (gradient,)

        losses = record(graph, "cross_entropy", (logits,), losses, backward, logits, log_sums, labels)
        del squares
        return aten.mean(losses, keepdim=False)

    @compared(FLASH_LOSS, cross_entropy="flash-in-place")
    def _loss_in_place(self, logits: Tensor, labels: Tensor) -> Tensor:
        return self._flash_loss(logits, labels, in_place=True)

    @compared(CHUNKS_KEPT, cross_entropy="split")
    def _loss_chunk_by_chunk(
        self, head: Step, x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor
    ) -> Tensor:
        """Runs output head and loss chunk by chunk, as LitGPT and torchtune do.

        Source: lit_gpt/lora.py, `GPT.forward`, and lit_gpt/utils.py, `chunked_cross_entropy`; torchtune/modules/
        transformer.py, `chunked_output`, and modules/loss/ce_chunked_output_loss.py.

        head: the step of the output head. x: its input, [batch, tokens, hidden]. weight, bias: the head's.
        """
        aten, (batch, tokens) = self.t, x.shape[:2]
        size = self.choices.loss_chunk or ceil_div(tokens, CHUNKS)
        loss_dtype = DTYPES[self.choices.logits_dtype or (x.dtype if self.choices.compiles_loss else FLOAT32).name]
        sizes = [min(size, tokens - start) for start in range(0, tokens, size)]
        chunks = [self._chunk_logits(head, chunk_input, weight, bias) for chunk_input in aten.split(x, sizes, 1)]
        if self.choices.keeps_logits:
            self.logits = chunks = [aten.to(chunk, loss_dtype) for chunk in chunks]
        total: Tensor | None = None
        for chunk in chunks:
            rows = aten.flatten(aten.slice(aten.reshape(labels, (batch, tokens)), chunk.shape[1], 1))
            flat_logits = aten.flatten(aten.to(chunk, loss_dtype), 0, 1)
            loss = (
                self._compiled_loss(flat_logits)
                if self.choices.compiles_loss
                else self.cross_entropy(flat_logits, rows)
            )
            del flat_logits
            total = loss if total is None else aten.add(total, loss)
        assert total is not None
        return total

    def _chunk_logits(self, head: Step, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Returns the logits of a chunk of hidden states."""
        x, weight = self.rounded(head, x, weight, has_adapter=False)
        return self.product(x, weight, bias, head.outs[0].width)

    @compared(LIGER, cross_entropy="chunked")
    def _fused_linear_loss(self, x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor) -> Tensor:
        """Runs output head and loss as Liger-Kernel's single function, which computes gradients in its forward pass.

        Source: linkedin/Liger-Kernel 0.8.5, ops/fused_linear_cross_entropy.py, measured on an H200 (tests/data/gpu).
        Products of operands in one format write into one tensor of a chunk's logits, over which their gradient is
        written, and add to the weight's gradient in place; those of float32 make a whole gradient for each chunk.

        x: the input of the output head, [tokens, hidden]. weight, bias: the head's.
        """
        aten, autograd_graph = self.t, self.graph
        tokens, chunks = x.shape[0], ceil_div(weight.shape[0], x.shape[1])
        size = 1 << (ceil_div(tokens, chunks) - 1).bit_length()  # the next power of two
        inputs = [tensor for tensor in (x, weight, bias) if tensor is not None]
        gradients = [aten.like(tensor) if tensor.needs_grad or tensor is bias else None for tensor in inputs]
        losses, is_counted = aten.new_tensor((tokens,), FLOAT32), aten.compare(labels)
        aten.new_tensor((), INT64)
        writes_in_place = x.dtype is weight.dtype and autograd_graph.autocast in (None, x.dtype)
        with autograd_graph.no_grad():
            logits = aten.new_tensor((min(size, tokens), weight.shape[0]), x.dtype) if writes_in_place else None
            for start in range(0, tokens, size):
                chunk_input = aten.slice(x, min(size, tokens - start), 0)
                if not writes_in_place:
                    logits = aten.product(chunk_input, aten.transpose(weight, 0, 1))
                    if bias is not None:
                        logits = aten.add(logits, bias)
                    aten.product(logits, weight)
                assert logits is not None
                if weight.needs_grad and logits.dtype is FLOAT32:
                    aten.product(aten.transpose(aten.slice(logits, chunk_input.shape[0], 0), 0, 1), chunk_input)
                elif weight.needs_grad:
                    aten.to(chunk_input, logits.dtype)
                if bias is not None:
                    aten.new_tensor(bias.shape, logits.dtype)
                if not writes_in_place:
                    logits = None
            del chunk_input, logits
            output = aten.new_tensor((), FLOAT32)
        del losses, is_counted
        present_gradients = [tensor for tensor in gradients if tensor is not None]
        has_gradient = [tensor is not None for tensor in gradients]

        def backward(output_gradient: Tensor, _: Needs, *saved_tensors: Tensor) -> Sequence[Gradient]:
            saved_gradients = iter(saved_tensors)
            return [next(saved_gradients) if is_saved else None for is_saved in has_gradient]

        del gradients
        return record(autograd_graph, "linear_cross_entropy", inputs, output, backward, *present_gradients)
