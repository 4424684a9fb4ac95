"""The kernels of Gated DeltaNet on a rank: one fused projection, the convolution, the delta rule, and a gated norm.

Sources: Megatron-LM, megatron/core/ssm/gated_delta_net/ (common.py, gdn.py), with the kernels of
flash-linear-attention. Deterministic runs use torch's convolution and a delta rule in PyTorch. What prepares the inputs
of the delta rule, and the product of norm and gate, run under torch.compile: each makes its results, and keeps what its
backward pass reads.
"""

from __future__ import annotations

from collections.abc import Callable

from ....algebra import Number, ceil_div, exact_div
from ....flow.program import AlternativeBranches, ModuleScope, Step
from ....ops import DeltaRule
from ....simulator.aten import Aten
from ....simulator.autograd import record
from ....simulator.published import fla
from ....simulator.tensor import BFLOAT16, BOOL, FLOAT32, NeedsInputGrad, OptionalGradient, Tensor
from .lowering import Gradients, SavedTensors, operations_by_name
from .mamba import MambaKernels

CHUNK_TOKENS = 64
"""Number of tokens that the delta rule computes at once (gdn.py, `torch_chunk_gated_delta_rule`)."""

FUSED_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "g_proj", "b_proj", "a_proj")
"""Names of the projections that one fused linear layer computes (gdn.py, `in_proj_split_names`)."""


class DeltaKernels(MambaKernels):
    """Kernels of gated DeltaNet, which runs all six input projections as one linear layer."""

    def module_kernel(self, module_scope: ModuleScope) -> Callable[[], None] | None:
        """Returns the kernel that runs a gated DeltaNet mixer."""
        branch_items = [item for item in module_scope.items if isinstance(item, AlternativeBranches)]
        branch_steps = [operation for item in branch_items for operation in next(iter(item.branches.values())).steps()]
        delta_step = next(
            (
                operation
                for operation in branch_steps
                if isinstance(operation.op, DeltaRule) and not operation.op.decays_by_channel
            ),
            None,
        )
        if delta_step is None:
            return super().module_kernel(module_scope)
        if self.rank_choices.cp > 1:
            raise self.unsupported("no kernels for a delta rule over several ranks of a sequence; expected no --cp")
        return lambda: self._run_delta_mixer(module_scope, delta_step)

    def _run_delta_mixer(self, module_scope: ModuleScope, delta_step: Step) -> None:
        """Runs the Gated DeltaNet mixer: projection, convolution, delta rule, gated norm (`GatedDeltaNet.forward`)."""
        aten, delta_op, batch_size = self.aten, delta_step.op, self.run_config.batch
        assert isinstance(delta_op, DeltaRule)
        steps_with_module_path = operations_by_name(module_scope)
        projection_widths = [
            steps_with_module_path[projection_name].output_values[0].width for projection_name in FUSED_PROJECTIONS
        ]
        query_projection = steps_with_module_path[FUSED_PROJECTIONS[0]]
        input_value = query_projection.input_values[0]
        x = self.tensor_of(input_value)
        self.free_value(input_value.storage)
        projected_input = self.column_linear(query_projection, x, sum(projection_widths[1:], projection_widths[0]))
        del x
        token_count = projected_input.shape[0] // batch_size
        qkvzba = aten.transpose(
            aten.reshape(projected_input, (token_count, batch_size, projected_input.shape[1])), 0, 1
        )
        del projected_input
        conv_channels = sum(projection_widths[1:3], projection_widths[0])
        qkv, gate, beta, alpha = aten.split(qkvzba, [conv_channels, *projection_widths[3:]])
        gate = aten.unflatten(gate, -1, (delta_op.heads, delta_op.value_dim))
        kernel_size = steps_with_module_path["conv1d"].options["kernel"]
        conv_filters = self.weight("conv1d.weight", (conv_channels, 1, kernel_size))
        if self.rank_choices.is_deterministic:
            qkv = aten.contiguous(aten.transpose(qkv, 1, 2))
            _conv_out = aten.convolution(qkv, conv_filters, None, token_count + kernel_size - 1)
            qkv = aten.transpose(aten.elementwise_function("silu", aten.slice(_conv_out, token_count)), 1, 2)
        else:
            qkv = fla.causal_conv1d(aten, qkv, aten.reshape(conv_filters, (conv_channels, kernel_size)))
        dt_bias, a_log = self.weight("dt_bias", (delta_op.heads,)), self.weight("A_log", (delta_op.heads,))
        q, k, v, log_decay, gate, beta_sigmoid = self._prepare_delta_inputs(
            delta_op, projection_widths[0], qkv, gate, a_log, dt_bias, beta, alpha
        )
        rule = chunked_delta_rule if self.rank_choices.is_deterministic else fla.chunk_gated_delta_rule_without_norms
        delta_output = rule(aten, q, k, v, log_decay, beta_sigmoid)
        output_projection = steps_with_module_path["o_proj"]
        self.store_without_reshape(
            output_projection.output_values[0],
            self.row_linear(
                output_projection, self._run_gated_norm(steps_with_module_path["norm"], delta_op, delta_output, gate)
            ),
        )

    def _prepare_delta_inputs(
        self,
        delta_op: DeltaRule,
        key_width: Number,
        qkv: Tensor,
        gate: Tensor,
        a_log: Tensor,
        dt_bias: Tensor,
        beta: Tensor,
        alpha: Tensor,
    ) -> tuple[Tensor, ...]:
        """Normalizes queries and keys, and computes decay and beta (`_prepare_input_for_gated_delta_rule`).

        Queries and keys are repeated for each value head. Values and the output gate are copied.
        """
        autograd_graph, (batch_size, token_count) = self.graph, qkv.shape[:2]
        key_head_count = exact_div(key_width, delta_op.key_dim)
        qk_shape, head_shape = (batch_size, token_count, 2 * key_width), (batch_size, token_count, delta_op.heads)
        contiguous_qk = autograd_graph.new_tensor(qk_shape, BFLOAT16)
        normalized_qk = autograd_graph.new_tensor(qk_shape, BFLOAT16)
        qk_norms = autograd_graph.new_tensor((batch_size, token_count, 2 * key_head_count), FLOAT32)
        del contiguous_qk
        q, k = (autograd_graph.new_tensor((*head_shape, delta_op.key_dim), BFLOAT16) for _ in range(2))
        v = autograd_graph.new_tensor((*head_shape, delta_op.value_dim), BFLOAT16)
        decay = autograd_graph.new_tensor(head_shape, FLOAT32)
        beta_sigmoid = autograd_graph.new_tensor(head_shape, BFLOAT16)
        out_gate = autograd_graph.new_tensor((*head_shape, delta_op.value_dim), BFLOAT16)
        input_shapes = [x.shape for x in (qkv, gate, a_log, dt_bias, beta, alpha)]

        def backward(
            saved_tensors: SavedTensors, gradients: list[OptionalGradient], needs_input_grad: NeedsInputGrad
        ) -> Gradients:
            normalized_gradients = autograd_graph.new_tensor(qk_shape, BFLOAT16)
            qk_gradients = autograd_graph.new_tensor(qk_shape, BFLOAT16)
            del normalized_gradients
            input_gradients = [autograd_graph.new_tensor(shape, BFLOAT16) for shape in input_shapes]
            del qk_gradients
            return input_gradients

        rule_inputs = (q, k, v, decay, out_gate, beta_sigmoid)
        mixer_inputs = (qkv, gate, a_log, dt_bias, beta, alpha)
        self.record_node(
            "prepare_input_for_gated_delta_rule",
            mixer_inputs,
            rule_inputs,
            backward,
            normalized_qk,
            qk_norms,
            alpha,
            beta_sigmoid,
        )
        return rule_inputs

    def _run_gated_norm(self, norm_step: Step, delta_op: DeltaRule, delta_output: Tensor, gate: Tensor) -> Tensor:
        """Runs _gated_norm_and_a2a: norm(y) · silu(gate), then moves the token axis before the batch axis."""
        aten, (batch_size, token_count) = self.aten, delta_output.shape[:2]
        flat_shape = (batch_size * token_count * delta_op.heads, delta_op.value_dim)
        normed_output = self.norm(aten.reshape(delta_output, flat_shape), norm_step, self.module_path(), flat_shape[0])
        gated_output = self.multiply_by_gate(normed_output, aten.reshape(gate, flat_shape))
        del normed_output
        gated_output = aten.reshape(gated_output, (batch_size, token_count, delta_op.heads * delta_op.value_dim))
        gated_output = aten.contiguous(aten.transpose(gated_output, 0, 1))
        return aten.reshape(gated_output, (batch_size * token_count, delta_op.heads * delta_op.value_dim))


def chunked_delta_rule(aten: Aten, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor) -> Tensor:
    """Runs torch_chunk_gated_delta_rule: the delta rule in fp32 by torch's operations.

    q, k: [B, T, H, K]; v: [B, T, H, V]; log_decay, beta: [B, T, H].
    """
    query, key, value, beta, log_decay = [
        aten.to(aten.contiguous(aten.transpose(x, 1, 2)), FLOAT32) for x in (q, k, v, beta, log_decay)
    ]
    token_count, chunk_count = key.shape[2], ceil_div(key.shape[2], CHUNK_TOKENS)
    padded_tokens = chunk_count * CHUNK_TOKENS
    query = aten.pad(query, padded_tokens, -2)
    key = aten.pad(key, padded_tokens, -2)
    value = aten.pad(value, padded_tokens, -2)
    beta = aten.pad(beta, padded_tokens)
    log_decay = aten.pad(log_decay, padded_tokens)
    query = aten.scale(query)
    v_beta = aten.mul(value, aten.unsqueeze(beta, -1))
    k_beta = aten.mul(key, aten.unsqueeze(beta, -1))
    query, key, value, k_beta, v_beta = [
        aten.unflatten(x, 2, (chunk_count, CHUNK_TOKENS)) for x in (query, key, value, k_beta, v_beta)
    ]
    log_decay = aten.unflatten(log_decay, 2, (chunk_count, CHUNK_TOKENS))
    triangle_mask = aten.new_tensor((CHUNK_TOKENS, CHUNK_TOKENS), BOOL)
    log_decay = cumsum(aten, log_decay)
    decay = tril(aten, aten.exp(tril(aten, aten.sub(aten.unsqueeze(log_decay, -1), aten.unsqueeze(log_decay, -2)))))
    intra_chunk_attention = aten.mul(aten.matmul(k_beta, aten.transpose(key, -1, -2)), decay)
    intra_chunk_attention = aten.scale(aten.masked_fill(intra_chunk_attention, triangle_mask), "neg")
    for i in range(1, CHUNK_TOKENS):
        attention_row = aten.clone(aten.slice(aten.select(intra_chunk_attention, -2), i))
        previous_rows = aten.clone(aten.slice(aten.slice(intra_chunk_attention, i, -2), i))
        intra_chunk_attention = aten.write_into(
            intra_chunk_attention,
            aten.add(attention_row, aten.sum(aten.mul(aten.unsqueeze(attention_row, -1), previous_rows), -2)),
        )
    intra_chunk_attention = aten.add(intra_chunk_attention, aten.new_tensor((CHUNK_TOKENS, CHUNK_TOKENS), FLOAT32))
    value = aten.matmul(intra_chunk_attention, v_beta)
    k_cumdecay = aten.matmul(intra_chunk_attention, aten.mul(k_beta, aten.unsqueeze(aten.exp(log_decay), -1)))
    kv_state = aten.new_tensor((*key.shape[:2], key.shape[-1], value.shape[-1]), FLOAT32)
    delta_output = aten.new_tensor(value.shape, FLOAT32)
    triangle_mask = aten.new_tensor((CHUNK_TOKENS, CHUNK_TOKENS), BOOL)
    for _ in range(int(chunk_count)):
        q_i, k_i, v_i = (aten.select(x, 2) for x in (query, key, value))
        intra_chunk_attention = masked_fill_in_place(
            aten, aten.mul(aten.matmul(q_i, aten.transpose(k_i, -1, -2)), aten.select(decay, 2)), triangle_mask
        )
        v_prime = aten.matmul(aten.select(k_cumdecay, 2), kv_state)
        v_new = aten.sub(v_i, v_prime)
        attn_inter = aten.matmul(aten.mul(q_i, aten.exp(aten.unsqueeze(aten.select(log_decay, 2), -1))), kv_state)
        delta_output = aten.write_into(delta_output, aten.add(attn_inter, aten.matmul(intra_chunk_attention, v_new)))
        decayed_state = aten.mul(
            kv_state, aten.exp(aten.unsqueeze(aten.unsqueeze(aten.select(aten.select(log_decay, 2), -1), -1), -1))
        )
        remaining_decay = aten.exp(
            aten.sub(aten.unsqueeze(aten.select(aten.select(log_decay, 2), -1), -1), aten.select(log_decay, 2))
        )
        kv_state = aten.add(
            decayed_state,
            aten.matmul(aten.transpose(aten.mul(k_i, aten.unsqueeze(remaining_decay, -1)), -1, -2), v_new),
        )
        del decayed_state, remaining_decay
    del kv_state
    delta_output = aten.slice(aten.flatten(delta_output, 2, 3), token_count, 2)
    return aten.to(aten.contiguous(aten.transpose(delta_output, 1, 2)), q.dtype)


def cumsum(aten: Aten, x: Tensor) -> Tensor:
    """Returns cumulative sums along the last axis, with torch's gradient (`cumsum_backward`)."""

    def backward(output_gradient: Tensor, _: NeedsInputGrad) -> Gradients:
        flipped_gradient = aten.new_like(output_gradient)
        flipped_sums = aten.new_like(flipped_gradient)
        input_gradient = aten.new_like(flipped_sums)
        del flipped_gradient, flipped_sums
        return (input_gradient,)

    return record(aten.graph, "cumsum", (x,), aten.new_like(x), backward)


def tril(aten: Aten, x: Tensor) -> Tensor:
    """Returns the lower triangle of a matrix, whose gradient is a lower triangle too."""
    return record(aten.graph, "tril", (x,), aten.new_like(x), lambda g, _: (aten.new_like(g),))


def masked_fill_in_place(aten: Aten, x: Tensor, mask: Tensor) -> Tensor:
    """Fills masked elements in place, and saves the mask for the gradient."""
    filled_tensor = Tensor(x.shape, x.dtype, x.storage, x.strides)
    return record(aten.graph, "masked_fill_", (x,), filled_tensor, lambda g, _, mask: (aten.new_like(g),), mask)
