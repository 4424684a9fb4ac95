"""Fused kernels that replace several operations: norms, gated activations, losses and attention."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from ....algebra import Number, ceil_div
from ....components.base import TORCH_WITNESS
from ....components.norm import Norm
from ....evidence import Witness, compared, kernels_compared, source_code_witness, torch_witness
from ....flow.axis import Shape
from ....flow.program import Step
from ....flow.value import Value
from ....workload.execution import LOSSES_WITH_HEAD
from ...autograd import record
from ...checkpoint import checkpoint
from ...lowering import ModulePath
from ...tensor import BOOL, DTYPES, FLOAT32, INT64, NeedsInputGrad, OptionalGradient, Tensor
from .elementwise import ElementwiseKernels
from .fake_quantization import FakeQuantizationKernels
from .fused_attention import FUSED_KERNELS_WITNESS, FusedAttention

LIGER_WITNESS = source_code_witness("linkedin/Liger-Kernel's cross-entropy", "tests/device_memory/test_grid.py")
"""Witness of Liger-Kernel's losses: torch allocates the same storages in the same order without the kernels."""

LIGER_GRPO_WITNESS = source_code_witness("linkedin/Liger-Kernel's GRPO", "tests/simulator/test_choices.py")
"""Witness of Liger-Kernel's log-probabilities, which consist of torch operations."""

FLASH_LOSS_WITNESS = source_code_witness("flash-attn's cross-entropy", "tests/simulator/test_choices.py")
"""Witness of flash-attn's losses: torch allocates the same storages in the same order without the kernels."""

CHUNKED_LOSS_WITNESS = torch_witness("tests/simulator/test_adapter_libraries.py")
"""Witness of a loss computed in chunks."""

TRL_CHUNKS_WITNESS = source_code_witness("huggingface/trl's chunked_nll", "tests/simulator/test_choices.py")
"""Witness of TRL's loss in recomputed chunks, whose lines of code run in torch."""

COMPILED_WITNESS = Witness(
    "estimate",
    "torch.compile: products and attention kept, norms fused, all else run again (within 8 % of 2 published runs, "
    "17 to 20 % below 3 measured steps of a whole compiled model, 42 % below one of QLoRA)",
    "tests/device_memory/test_published.py",
)
"""Witness of what torch.compile keeps: published measurements of fine-tuning, and steps on an H200."""

HEAD_AXES = ("heads", "kv_heads", "half_heads")
"""Names of the axes of heads."""

DEFAULT_LOSS_CHUNKS = 8
"""Number of chunks of a `split` cross-entropy: torchtune's default (`num_output_chunks`)."""

ENTROPY_ROWS = 128
"""Number of rows of logits whose entropies TRL computes at once (trainer/utils.py, `entropy_from_logits`)."""

TRL_ROWS = 256
"""Number of tokens per chunk of TRL's loss (trainer/sft_trainer.py, `_CHUNKED_LM_HEAD_CHUNK_SIZE`)."""

MAX_REPLAYED_CHUNKS = 32
"""Largest number of recomputed chunks that are replayed; all later chunks allocate and free the same bytes."""

LIGER_ROWS, LIGER_VOCABULARY = 2048, 4096
"""Number of tokens, and of vocabulary entries, whose logits Liger-Kernel's GRPO computes at once."""


def _chunk_sizes(axis_size: int, part_size: int) -> list[int]:
    """Returns the chunk sizes into which an axis is split; the last chunk may be smaller."""
    return [min(part_size, axis_size - part_start) for part_start in range(0, axis_size, part_size)]


@kernels_compared(TORCH_WITNESS)
class FusedKernels(FusedAttention, ElementwiseKernels, FakeQuantizationKernels):
    """The fused kernels that the settings select instead of the reference's operations."""

    # --- norms ------------------------------------------------------------------------------------------------------

    def norms_heads_first(self, recorded_value: Value, normed_shape: Shape) -> bool:
        """Whether a norm's input is stored heads first: the fused kernel preserves the order of axes.

        The classes of transformers norm queries and keys before they are stored heads first.
        """
        is_fused = self.choices.norm == "fused" or self.choices.compiled
        return (
            is_fused
            and not self.choices.matches_transformers
            and len(recorded_value.axes) == 2
            and len(normed_shape) == 1
            and recorded_value.axes[0].name in HEAD_AXES
        )

    @compared(FUSED_KERNELS_WITNESS, norm="fused")
    def norm(
        self, x: Tensor, spec: Norm, norm_name: str, shape: Any, groups: Any = 1, module_path: ModulePath | None = None
    ) -> Tensor:
        """Runs a fused norm, which saves its input and each row's statistics for the backward pass.

        Source: derivatives.yaml, `native_layer_norm`, `_fused_rms_norm`. On a GPU an input that is not dense is copied
        for the kernel (aten/src/ATen/native/cuda/layer_norm_kernel.cu).
        """
        has_weight_product = spec.float32_product and spec.weight
        runs_layer_norm = spec.type == "layernorm" and self.choices.fused_layer_norm and not has_weight_product
        is_unfused_norm = self.choices.norm == "eager" and not self.choices.compiled and not runs_layer_norm
        if is_unfused_norm or spec.type == "affine" or groups != 1 or len(shape) > 1:
            return super().norm(x, spec, norm_name, shape, groups, module_path)
        if runs_layer_norm and spec.float32_product and x.dtype is not FLOAT32:
            copy_spec = spec.model_copy(update={"float32_product": False})
            return self.aten.to(
                self.norm(self.aten.to(x, FLOAT32), copy_spec, norm_name, shape, groups, module_path), x.dtype
            )
        autograd_graph, statistics_shape = self.graph, (*x.shape[:-1], 1)
        weight = self.norm_factor(spec, norm_name, shape, module_path) if spec.weight else None
        bias = self.weight(f"{norm_name}.bias", shape, module_path) if spec.has_bias else None
        inputs = [tensor for tensor in (x, weight, None if spec.type == "rmsnorm" else bias) if tensor is not None]
        shapes_and_dtypes = [(tensor.shape, tensor.dtype) for tensor in inputs]

        def copy_if_strided(tensor: Tensor) -> Tensor | None:
            needs_copy = self.choices.is_on_gpu and not tensor.is_contiguous
            return autograd_graph.new_tensor(tensor.shape, tensor.dtype) if needs_copy else None

        def backward(
            output_gradient: Tensor, needs_input_grad: NeedsInputGrad, x: Tensor, *_: Tensor
        ) -> Sequence[OptionalGradient]:
            input_copies = copy_if_strided(output_gradient), copy_if_strided(x)
            input_gradients = [
                autograd_graph.new_tensor(*shape_and_dtype) if needs_grad else None
                for shape_and_dtype, needs_grad in zip(shapes_and_dtypes, needs_input_grad, strict=True)
            ]
            del input_copies
            return input_gradients

        input_copy = copy_if_strided(x)
        normed_output = autograd_graph.new_tensor(x.shape, x.dtype)
        row_statistics = [
            autograd_graph.new_tensor(statistics_shape, FLOAT32) for _ in range(2 if spec.type == "layernorm" else 1)
        ]
        del input_copy
        normed_x = record(
            autograd_graph,
            "norm",
            inputs,
            normed_output,
            backward,
            x,
            *row_statistics,
            *([] if weight is None else [weight]),
        )
        return self.aten.add(normed_x, bias) if spec.type == "rmsnorm" and bias is not None else normed_x

    # --- gated activations ------------------------------------------------------------------------------------------

    @property
    def _fuses_gates(self) -> bool:
        """Whether one kernel computes an activation and the product with the activated gate."""
        return self.choices.compiled or self.choices.fused_gate

    def do_act(self, operation: Step) -> None:
        if self._fuses_gates and self._is_read_in_module("mul", operation.output_values[0]):
            # the product reads the gate itself
            self.store_output(operation, self.tensor_of(operation.input_values[0]))
        else:
            super().do_act(operation)

    def do_mul(self, operation: Step) -> None:
        """Computes act(gate) · up. The backward pass of torch.compile and Liger-Kernel recomputes the activation.

        Source: linkedin/Liger-Kernel 0.8.5, ops/swiglu.py, which writes the gradients over the gate and the projection.
        """
        autograd_graph, is_in_place = self.graph, self.choices.fused_gate
        if not (self._fuses_gates and any(map(self._is_activation_output, operation.input_values))):
            super().do_mul(operation)
            return
        gate, up_projection = map(self.tensor_of, operation.input_values)
        gated_output = self.aten.new_like(gate, up_projection)
        shapes_and_dtypes = [(input_value.shape, input_value.dtype) for input_value in (gate, up_projection)]

        def backward(
            output_gradient: Tensor, needs_input_grad: NeedsInputGrad, *inputs: Tensor
        ) -> Sequence[OptionalGradient]:
            if is_in_place:
                return [
                    input_tensor if needs_grad else None
                    for input_tensor, needs_grad in zip(inputs, needs_input_grad, strict=True)
                ]
            return [
                autograd_graph.new_tensor(*shape_and_dtype) if needs_grad else None
                for shape_and_dtype, needs_grad in zip(shapes_and_dtypes, needs_input_grad, strict=True)
            ]

        gated_product = record(
            autograd_graph, "glu", (gate, up_projection), gated_output, backward, gate, up_projection
        )
        self.store_tensor(operation.output_values[0], gated_product)

    def _is_activation_output(self, recorded_value: Value) -> bool:
        scope_items = self.frames[-1].scope.items
        return any(
            isinstance(scope_item, Step) and scope_item.verb == "act" and recorded_value in scope_item.output_values
            for scope_item in scope_items
        )

    # --- the loss ---------------------------------------------------------------------------------------------------

    def do_linear(self, operation: Step) -> None:
        computes_loss_in_chunks = (
            self.choices.cross_entropy in LOSSES_WITH_HEAD and self.has_trained_weights and self.graph.is_grad_enabled
        )
        if not (computes_loss_in_chunks and operation.output_values[0] is self.result):
            super().do_linear(operation)
            return
        if self.has_adapter(operation):
            raise self.unsupported(
                f"--cross-entropy {self.choices.cross_entropy} computes the product itself; expected no adapter on it",
                operation.name,
            )
        if self.choices.fake_quantization is not None and self.choices.cross_entropy != "split":
            raise self.unsupported(
                f"--cross-entropy {self.choices.cross_entropy} computes the product itself; expected no "
                "--fake-quantize beside it",
                operation.name,
            )
        bias = (
            self.weight(f"{operation.name}.bias", (operation.output_values[0].width,))
            if operation.options["bias"]
            else None
        )
        self.head_of_loss = (operation, self.linear_weight(operation), bias)
        self.store_output(operation, self.flat_tensor(operation.input_values[0]))

    def output_rows(self, operation: Step) -> Number:
        row_count, last_rows = super().output_rows(operation), self.choices.logits_to_keep
        skips_prompt = self.choices.cross_entropy == "selective" and operation.output_values[0] is self.result
        return min(row_count, last_rows + 1) if skips_prompt and last_rows is not None else row_count

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self.choices.cross_entropy == "selective":
            return self._selective_loss(logits, labels)
        if self.choices.cross_entropy == "fused":
            return self._loss_over_logits(self._rows_of_logits(logits), labels)
        if self.choices.cross_entropy == "flash":
            return self._flash_loss(self._rows_of_logits(logits), labels)
        if self.choices.cross_entropy == "flash-in-place":
            return self._loss_in_place(self._rows_of_logits(logits), labels)
        if self.head_of_loss is not None:
            (head_step, weight, bias), self.head_of_loss = self.head_of_loss, None
            if self.choices.cross_entropy == "split":
                return self._loss_chunk_by_chunk(head_step, logits, weight, bias, labels)
            if self.choices.cross_entropy == "recomputed":
                return self._recomputed_loss(logits, weight, bias, labels)
            if self.choices.cross_entropy == "selective-chunked":
                return self._chunked_log_probabilities(logits, weight, bias)
            return self._fused_linear_loss(self.aten.flatten(logits, 0, 1), weight, bias, labels)
        if self.choices.compiles_loss:
            return self._compiled_loss(self._rows_of_logits(logits))
        return super().loss(logits, labels)

    def _rows_of_logits(self, logits: Tensor) -> Tensor:
        """Returns the logits as [tokens, vocabulary] in the loss's number format."""
        return self.aten.flatten(self.aten.to(logits, DTYPES[self.choices.logits_dtype or logits.dtype.name]), 0, 1)

    @compared(COMPILED_WITNESS, compiled=True)
    def _compiled_loss(self, logits: Tensor) -> Tensor:
        """Computes cross-entropy of logits [tokens, vocabulary] with torch.compile, which saves two numbers per row."""
        autograd_graph, statistics_shape = self.graph, (logits.shape[0], 1)
        row_maxima = autograd_graph.new_tensor(statistics_shape, FLOAT32)
        exponential_sum = autograd_graph.new_tensor(statistics_shape, FLOAT32)
        loss_scalar = autograd_graph.new_tensor((), FLOAT32)
        shape, dtype = logits.shape, logits.dtype

        def backward(output_gradient: Tensor, _: NeedsInputGrad, *__: Tensor) -> Sequence[OptionalGradient]:
            return (autograd_graph.new_tensor(shape, dtype),)

        return record(
            autograd_graph, "cross_entropy", (logits,), loss_scalar, backward, logits, row_maxima, exponential_sum
        )

    @compared(LIGER_WITNESS, cross_entropy="fused")
    def _loss_over_logits(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Runs Liger-Kernel's loss, whose forward pass overwrites the logits with their gradient.

        Source: linkedin/Liger-Kernel 0.8.2, ops/cross_entropy.py. The host reads the number of labels that count, and
        whether all labels are within the vocabulary.
        """
        aten = self.aten
        losses = aten.new_tensor(logits.shape[:1], logits.dtype)
        counted_token_mask = aten.compare(labels)
        aten.new_tensor((), INT64)
        for _ in ("max", "min"):
            clamped_labels = aten.new_like(labels)
            aten.new_tensor((), INT64)
            del clamped_labels
        loss_scalar = aten.new_tensor((), logits.dtype)
        del losses, counted_token_mask
        return record(self.graph, "cross_entropy", (logits,), loss_scalar, lambda g, _, gradient: (gradient,), logits)

    @compared(FUSED_KERNELS_WITNESS, cross_entropy="selective")
    def _selective_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Computes log-probabilities of the labels, and the entropies without a gradient, as TRL's GRPO does.

        Source: huggingface/trl, trainer/grpo_trainer.py, `_get_per_token_logps_and_entropies`, and trainer/utils.py,
        `selective_log_softmax` and `entropy_from_logits`. The loss of log-probabilities is counted as their mean.
        """
        aten, (batch_size, token_count) = self.aten, logits.shape[:2]
        default_dtype = FLOAT32 if self.choices.float32_loss else logits.dtype
        logits = aten.to(logits, DTYPES[self.choices.logits_dtype or default_dtype.name])
        logit_rows = aten.scale_slice_in_place(logits, token_count - 1, 1)
        completion_labels = aten.slice(
            aten.reshape(labels, (batch_size, labels.shape[0] // batch_size)), token_count - 1, 1
        )
        log_probabilities = self._log_probabilities(logit_rows, aten.unsqueeze(completion_labels, 2))
        with self.graph.no_grad():
            _token_entropies = self._compute_entropies(logit_rows)
        return aten.mean(aten.flatten(log_probabilities), keepdim=False)

    def _log_probabilities(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Computes the labels' log-probabilities sequence by sequence."""
        aten = self.aten
        if logits.dtype is FLOAT32:
            label_logits = aten.gather(logits, labels)
            log_sums = aten.stack([aten.logsumexp(sequence_logits) for sequence_logits in aten.unbind(logits)])
            return aten.squeeze(aten.sub(label_logits, aten.unsqueeze(log_sums, 2)))
        label_log_probs: list[Tensor] = []
        for sequence_logits, row_labels in zip(aten.unbind(logits), aten.unbind(labels), strict=True):
            log_probs = aten.log_softmax(sequence_logits)
            label_log_probs.append(aten.gather(log_probs, row_labels))
        del sequence_logits, log_probs, row_labels
        return aten.squeeze(aten.stack(label_log_probs))

    def _compute_entropies(self, logits: Tensor) -> Tensor:
        """Computes entropies of logits, 128 rows at a time."""
        aten = self.aten
        logit_rows = aten.reshape(logits, (logits.shape[0] * logits.shape[1], logits.shape[2]))
        entropies: list[Tensor] = []
        for first_row in range(0, logit_rows.shape[0], ENTROPY_ROWS):
            log_probs = aten.log_softmax(aten.slice(logit_rows, min(ENTROPY_ROWS, logit_rows.shape[0] - first_row), 0))
            probabilities = aten.scale(log_probs, "exp")
            weighted_log_probs = aten.mul(probabilities, log_probs)
            del probabilities
            entropy_sum = aten.sum(weighted_log_probs)
            del weighted_log_probs
            entropies.append(aten.scale(entropy_sum, "neg"))
            del entropy_sum
        return aten.cat(entropies, 0)

    @compared(FLASH_LOSS_WITNESS, cross_entropy="flash")
    def _flash_loss(self, logits: Tensor, labels: Tensor, is_in_place: bool = False) -> Tensor:
        """Runs flash-attn's cross-entropy, which saves the logits and two numbers per row.

        Source: Dao-AILab/flash-attention, flash_attn/ops/triton/cross_entropy.py, `CrossEntropyLoss`.

        is_in_place: whether the backward pass writes the gradient over the logits; false by default.
        """
        aten, autograd_graph = self.aten, self.graph
        losses, log_sums, squared_log_sums = (aten.new_tensor(logits.shape[:1], FLOAT32) for _ in range(3))

        def backward(
            output_gradient: Tensor, _: NeedsInputGrad, logits: Tensor, *__: Tensor
        ) -> Sequence[OptionalGradient]:
            # zeros, which autograd makes for any function
            gradient_of_squares = aten.new_tensor(logits.shape[:1], FLOAT32)
            gradient = logits if is_in_place else aten.new_like(logits)
            del gradient_of_squares
            return (gradient,)

        losses = record(autograd_graph, "cross_entropy", (logits,), losses, backward, logits, log_sums, labels)
        del squared_log_sums
        return aten.mean(losses, keepdim=False)

    @compared(FLASH_LOSS_WITNESS, cross_entropy="flash-in-place")
    def _loss_in_place(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Runs flash-attn's cross-entropy, whose backward pass overwrites the logits."""
        return self._flash_loss(logits, labels, is_in_place=True)

    @compared(CHUNKED_LOSS_WITNESS, cross_entropy="split")
    def _loss_chunk_by_chunk(
        self, head_step: Step, x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor
    ) -> Tensor:
        """Runs output head and loss chunk by chunk, as LitGPT and torchtune do.

        Source: lit_gpt/lora.py, `GPT.forward`, and lit_gpt/utils.py, `chunked_cross_entropy`; torchtune/modules/
        transformer.py, `chunked_output`, and modules/loss/ce_chunked_output_loss.py.

        head_step: the step of the output head. x: its input, [batch, tokens, hidden]. weight, bias: the head's.
        """
        aten, (batch_size, sequence_length) = self.aten, x.shape[:2]
        token_count = min(sequence_length, self.choices.logits_to_keep or sequence_length)
        if token_count < sequence_length:
            x = aten.slice(x, token_count, 1)
        chunk_tokens = self.choices.loss_chunk or ceil_div(token_count, DEFAULT_LOSS_CHUNKS)
        loss_dtype = DTYPES[self.choices.logits_dtype or (x.dtype if self.choices.compiles_loss else FLOAT32).name]
        chunk_sizes = [min(chunk_tokens, token_count - first_row) for first_row in range(0, token_count, chunk_tokens)]
        logits_chunks = [
            self._chunk_logits(head_step, chunk_input, weight, bias) for chunk_input in aten.split(x, chunk_sizes, 1)
        ]
        if self.choices.keeps_logits:
            self.logits = logits_chunks = [aten.to(chunk_logits, loss_dtype) for chunk_logits in logits_chunks]
        loss_sum: Tensor | None = None
        for chunk_logits in logits_chunks:
            chunk_labels = aten.flatten(
                aten.slice(aten.reshape(labels, (batch_size, sequence_length)), chunk_logits.shape[1], 1)
            )
            flat_logits = aten.flatten(aten.to(chunk_logits, loss_dtype), 0, 1)
            if self.choices.compiles_loss:
                loss = self._compiled_loss(flat_logits)
            else:
                loss = self.cross_entropy(flat_logits, chunk_labels)
            del flat_logits
            loss_sum = loss if loss_sum is None else aten.add(loss_sum, loss)
        assert loss_sum is not None
        return loss_sum

    def _chunk_logits(self, head_step: Step, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Returns the logits of a chunk of hidden states."""
        x, weight = self.fake_quantized_operands(head_step, x, weight, has_adapter=False)
        return self.product(x, weight, bias, head_step.output_values[0].width)

    @compared(TRL_CHUNKS_WITNESS, cross_entropy="recomputed")
    def _recomputed_loss(self, x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor) -> Tensor:
        """Runs output head and loss in checkpointed chunks of the tokens of all sequences, as TRL's `chunked_nll`.

        Source: huggingface/trl 1.10, trainer/sft_trainer.py, `_chunked_cross_entropy_loss`, with labels that all count.

        x: the input of the output head, [batch, tokens, hidden]. weight, bias: the head's.
        """
        aten, (batch_size, sequence_length, width) = self.aten, x.shape
        token_count = batch_size * (sequence_length - 1)
        hidden_states = aten.reshape(aten.slice(x, sequence_length - 1, 1), (token_count, width))
        labels = aten.reshape(
            aten.slice(aten.reshape(labels, (batch_size, sequence_length)), sequence_length - 1, 1), (token_count,)
        )
        token_order = aten.new_tensor(labels.shape, INT64)
        hidden_states, labels = aten.index_select(hidden_states, token_order), aten.index_select(labels, token_order)
        del token_order
        parameters = [tensor for tensor in (weight, bias) if tensor is not None]
        loss_sum = aten.new_tensor((), FLOAT32)
        chunk_sizes = _chunk_sizes(token_count, self.choices.loss_chunk or TRL_ROWS)
        for chunk_rows in chunk_sizes[: MAX_REPLAYED_CHUNKS - 1] + chunk_sizes[MAX_REPLAYED_CHUNKS - 1 :][-1:]:
            run_chunk = partial(self._loss_of_float_logits, aten.slice(labels, chunk_rows, 0))
            chunk_tensors = [aten.slice(hidden_states, chunk_rows, 0), *parameters]
            loss_sum = aten.add(loss_sum, checkpoint(self.graph, run_chunk, chunk_tensors))
        return aten.scale(loss_sum, "div")

    def _loss_of_float_logits(self, labels: Tensor, head_tensors: Sequence[Tensor]) -> Tensor:
        """Computes the loss and the entropy of a chunk's tokens from float32 logits.

        head_tensors: the input of the output head, [tokens, hidden], its weight and its bias, if it has one.
        """
        aten, (x, weight, *biases) = self.aten, head_tensors
        logits = aten.product(aten.to(x, FLOAT32), aten.transpose(aten.to(weight, FLOAT32), 0, 1))
        for bias in biases:
            logits = aten.add(logits, aten.to(bias, FLOAT32))
        logits = self.scale_and_cap(logits)
        log_probabilities = aten.log_softmax(aten.to(logits, FLOAT32))  # under autocast a cast
        loss = aten.nll_loss(log_probabilities, labels)
        counted_token_mask = aten.compare(labels)
        entropies = aten.sum(aten.mul(aten.exp(log_probabilities), log_probabilities))
        aten.sum(aten.mul(aten.scale(entropies, "neg"), counted_token_mask), 0)
        return loss

    @compared(LIGER_WITNESS, cross_entropy="chunked")
    def _fused_linear_loss(self, x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor) -> Tensor:
        """Runs output head and loss as Liger-Kernel's single function, which computes gradients in its forward pass.

        Source: linkedin/Liger-Kernel 0.8.5, ops/fused_linear_cross_entropy.py, measured on an H200 (tests/data/gpu).
        Products of operands in one format write into one tensor of a chunk's logits, over which their gradient is
        written, and add to the weight's gradient in place; those of float32 make a whole gradient for each chunk.
        Unsloth's compiled loss does so with chunks of its own size (`loss_chunk`).

        x: the input of the output head, [tokens, hidden]. weight, bias: the head's.
        """
        aten, autograd_graph = self.aten, self.graph
        token_count, chunk_count = x.shape[0], ceil_div(weight.shape[0], x.shape[1])
        next_power_of_two = 1 << (ceil_div(token_count, chunk_count) - 1).bit_length()
        chunk_tokens = self.choices.loss_chunk or next_power_of_two
        inputs = [tensor for tensor in (x, weight, bias) if tensor is not None]
        gradients = [aten.new_like(tensor) if tensor.needs_grad or tensor is bias else None for tensor in inputs]
        losses, counted_token_mask = aten.new_tensor((token_count,), FLOAT32), aten.compare(labels)
        aten.new_tensor((), INT64)
        writes_in_place = x.dtype is weight.dtype and autograd_graph.autocast_dtype in (None, x.dtype)
        with autograd_graph.no_grad():
            logits = (
                aten.new_tensor((min(chunk_tokens, token_count), weight.shape[0]), x.dtype) if writes_in_place else None
            )
            for first_row in range(0, token_count, chunk_tokens):
                chunk_input = aten.slice(x, min(chunk_tokens, token_count - first_row), 0)
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
            loss_scalar = aten.new_tensor((), FLOAT32)
        del losses, counted_token_mask
        present_gradients = [tensor for tensor in gradients if tensor is not None]
        gradient_flags = [tensor is not None for tensor in gradients]

        def backward(output_gradient: Tensor, _: NeedsInputGrad, *saved_tensors: Tensor) -> Sequence[OptionalGradient]:
            saved_gradients = iter(saved_tensors)
            return [next(saved_gradients) if has_gradient else None for has_gradient in gradient_flags]

        del gradients
        return record(autograd_graph, "linear_cross_entropy", inputs, loss_scalar, backward, *present_gradients)

    @compared(LIGER_GRPO_WITNESS, cross_entropy="selective-chunked")
    def _chunked_log_probabilities(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Runs Liger-Kernel's GRPO: log-probabilities and gradients of one sequence at a time in its forward pass.

        Source: linkedin/Liger-Kernel 0.8.5, chunked_loss/fused_linear_ppo.py, `LigerFusedLinearPPOBase.forward`, with
        the hidden states that TRL 1.10 cuts (trainer/grpo_trainer.py, `_get_last_hidden_state`). The loss of
        log-probabilities is counted as their mean.

        x: the input of the output head, [batch, tokens, hidden]. weight, bias: the head's.
        """
        aten, autograd_graph, (batch_size, token_count, width) = self.aten, self.graph, x.shape
        completion_tokens = min(self.choices.logits_to_keep or token_count - 1, token_count - 1)
        x = aten.slice(aten.slice(x, token_count - 1, 1), completion_tokens, 1)
        inputs = [tensor for tensor in (x, weight, bias) if tensor is not None]
        with autograd_graph.no_grad():
            loss_scalar = aten.new_tensor((), FLOAT32)
            gradients = [aten.new_like(tensor) for tensor in (weight, bias) if tensor is not None and tensor.needs_grad]
            input_gradients: list[Tensor] = []
            for _sequence in range(batch_size):
                flat_rows = x.view((completion_tokens, width), x.strides[1:])
                log_probabilities, log_sums = self._log_probabilities_by_part(flat_rows, weight, bias)
                input_gradients.append(self._gradients_by_part(flat_rows, weight, bias, log_sums))
                del log_probabilities, log_sums
            input_gradient = aten.cat(input_gradients, 0)
            input_gradient = aten.reshape(input_gradient, (batch_size, completion_tokens, width))
        del input_gradients
        gradient_flags = [tensor.needs_grad for tensor in inputs]

        def backward(output_gradient: Tensor, _: NeedsInputGrad, *saved_tensors: Tensor) -> Sequence[OptionalGradient]:
            saved_gradients = iter(saved_tensors)
            return [next(saved_gradients) if is_saved else None for is_saved in gradient_flags]

        return record(
            autograd_graph, "linear_log_probabilities", inputs, loss_scalar, backward, input_gradient, *gradients
        )

    def _vocabulary_logits(self, flat_rows: Tensor, weight: Tensor, bias: Tensor | None, part_size: int) -> Tensor:
        """Returns the float32 logits of rows [tokens, hidden] for `part_size` entries of the vocabulary."""
        aten = self.aten
        weight_part = aten.to(aten.slice(weight, part_size, 0), flat_rows.dtype)
        logits = aten.product(flat_rows, aten.transpose(weight_part, 0, 1))
        del weight_part
        logits = aten.to(logits, FLOAT32)
        if bias is not None:
            aten.to(aten.slice(bias, part_size, 0), FLOAT32)
        return logits

    def _log_probabilities_by_part(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        """Computes the labels' log-probabilities and the logits' logsumexp by vocabulary parts. x: [tokens, hidden]."""
        aten = self.aten
        log_probabilities, log_sums = (aten.new_tensor(x.shape[:1], FLOAT32) for _ in range(2))
        for row_count in _chunk_sizes(x.shape[0], LIGER_ROWS):
            row_chunk, row_shape = aten.slice(x, row_count, 0), (row_count,)
            row_maxima, exponential_sums, label_logits = (aten.new_tensor(row_shape, FLOAT32) for _ in range(3))
            row_indices = aten.new_tensor(row_shape, INT64)
            logits = exponentials = max_logits = rescale_factor = label_mask = label_indices = None
            for part_size in _chunk_sizes(weight.shape[0], LIGER_VOCABULARY):
                logits = self._vocabulary_logits(row_chunk, weight, bias, part_size)
                max_logits = aten.new_tensor(row_shape, FLOAT32)
                new_maxima = aten.new_tensor(row_shape, FLOAT32)
                rescale_factor = aten.scale(aten.sub(row_maxima, new_maxima), "exp")
                exponentials = aten.scale(aten.sub(logits, aten.unsqueeze(new_maxima, 1)), "exp")
                exponential_sums = aten.add(aten.mul(exponential_sums, rescale_factor), aten.sum(exponentials))
                row_maxima = new_maxima
                label_mask, label_indices = self._mask_labels_in_vocabulary_part(row_count)
                label_logits_of_part = aten.new_tensor(row_shape, FLOAT32)
                aten.new_like(label_logits_of_part)
                del label_logits_of_part
            aten.add(row_maxima, aten.scale(exponential_sums, "log"))
            del logits, exponentials, max_logits, rescale_factor, label_mask, label_indices, row_indices, label_logits
        return log_probabilities, log_sums

    def _mask_labels_in_vocabulary_part(self, row_count: int) -> tuple[Tensor, Tensor]:
        """Returns, for a vocabulary chunk, the mask of the labels in the chunk and the labels' indices in it."""
        aten, shape = self.aten, (row_count,)
        above_part_mask, below_part_mask = (aten.new_tensor(shape, BOOL) for _ in range(2))
        label_mask = aten.new_like(above_part_mask)
        del above_part_mask, below_part_mask
        label_offset = aten.new_tensor(shape, INT64)
        return label_mask, aten.new_like(label_offset)

    def _gradients_by_part(self, x: Tensor, weight: Tensor, bias: Tensor | None, log_sums: Tensor) -> Tensor:
        """Computes the gradients of log-probabilities by vocabulary chunk in float32. x: [tokens, hidden].

        log_sums: the logarithms of the sums of exponentials, which the forward pass saves.
        """
        aten = self.aten
        trains_bias = bias is not None and bias.needs_grad
        _loss, _loss_gradient = (aten.new_tensor((), FLOAT32) for _ in range(2))
        row_gradients = aten.new_like(log_sums)
        input_gradient = aten.new_tensor(x.shape, FLOAT32)
        weight_gradient = aten.new_tensor(weight.shape, FLOAT32) if weight.needs_grad else None
        bias_gradient = aten.new_tensor(weight.shape[:1], FLOAT32) if trains_bias else None
        for row_count in _chunk_sizes(x.shape[0], LIGER_ROWS):
            row_chunk, row_shape = aten.slice(x, row_count, 0), (row_count,)
            row_indices = aten.new_tensor(row_shape, INT64)
            logits = probabilities = gradient = label_mask = label_indices = None
            for part_size in _chunk_sizes(weight.shape[0], LIGER_VOCABULARY):
                logits = self._vocabulary_logits(row_chunk, weight, bias, part_size)
                row_log_sums = aten.unsqueeze(aten.slice(log_sums, row_count, 0), 1)
                probabilities = aten.scale(aten.sub(logits, row_log_sums), "exp")
                negated_gradients = aten.scale(aten.slice(row_gradients, row_count, 0), "neg")
                gradient = aten.mul(aten.unsqueeze(negated_gradients, 1), probabilities)
                del negated_gradients
                label_mask, label_indices = self._mask_labels_in_vocabulary_part(row_count)
                aten.product(gradient, aten.to(aten.slice(weight, part_size, 0), FLOAT32))
                if weight_gradient is not None:
                    aten.product(aten.transpose(gradient, 0, 1), aten.to(row_chunk, FLOAT32))
                if bias_gradient is not None:
                    aten.new_tensor((part_size,), FLOAT32)
            del logits, probabilities, gradient, label_mask, label_indices, row_indices
        rounded_gradient = aten.to(input_gradient, x.dtype)
        if weight_gradient is not None:
            aten.to(weight_gradient, weight.dtype)
        return rounded_gradient
