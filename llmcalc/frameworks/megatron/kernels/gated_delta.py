"""The kernels of Gated DeltaNet on a rank: one fused projection, the convolution, the delta rule, and a gated norm.

Sources: Megatron-LM, megatron/core/ssm/gated_delta_net/ (common.py, gdn.py), with the kernels of
flash-linear-attention. Deterministic runs use torch's convolution and a delta rule in PyTorch. What prepares the inputs
of the delta rule, and the product of norm and gate, run under torch.compile: each makes its results, and keeps what its
backward pass reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ....algebra import Number, ceil_div, exact_div
from ....flow.program import Alternatives, Scope, Step
from ....ops import DeltaRule
from ....simulator.aten import Aten
from ....simulator.autograd import record
from ....simulator.published import fla
from ....simulator.tensor import BFLOAT16, BOOL, FLOAT32, Gradient, Needs, Tensor
from .mamba import MambaKernels

CHUNK = 64
"""The tokens that the delta rule computes at once (gdn.py, `torch_chunk_gated_delta_rule`)."""

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "g_proj", "b_proj", "a_proj")
"""The projections that are one (gdn.py, `in_proj_split_names`)."""


class DeltaKernels(MambaKernels):
    """Kernels of gated DeltaNet. Its six input projections run as one linear layer."""

    def module_kernel(self, scope: Scope) -> Callable[[], None] | None:
        """Returns the kernel that runs a gated DeltaNet mixer."""
        alternatives = [item for item in scope.items if isinstance(item, Alternatives)]
        branch_steps = [step for item in alternatives for step in next(iter(item.branches.values())).steps()]
        delta_step = next(
            (step for step in branch_steps if isinstance(step.op, DeltaRule) and not step.op.by_channel), None
        )
        if delta_step is None:
            return super().module_kernel(scope)
        if self.rank_choices.cp > 1:
            raise self.unsupported("no kernels for a delta rule over several ranks of a sequence; expected no --cp")
        return lambda: self._run_delta_mixer(scope, delta_step)

    def _run_delta_mixer(self, scope: Scope, core: Step) -> None:
        """Runs GatedDeltaNet.forward."""
        t, op, batch = self.t, core.op, self.run_config.batch
        assert isinstance(op, DeltaRule)
        steps = {step.name: step for step in scope.items if isinstance(step, Step) and step.name}
        widths = [steps[name].outs[0].width for name in PROJECTIONS]
        query_projection = steps[PROJECTIONS[0]]
        input_value = query_projection.ins[0]
        x = self.get(input_value)
        self.forget(input_value.storage)
        product = self.column_linear(query_projection, x, sum(widths[1:], widths[0]))
        del x
        tokens = product.shape[0] // batch
        qkvzba = t.transpose(t.reshape(product, (tokens, batch, product.shape[1])), 0, 1)
        del product
        channels = sum(widths[1:3], widths[0])
        qkv, gate, beta, alpha = t.split(qkvzba, [channels, *widths[3:]])
        gate = t.unflatten(gate, -1, (op.heads, op.value_dim))
        kernel = steps["conv1d"].options["kernel"]
        filters = self.weight("conv1d.weight", (channels, 1, kernel))
        if self.rank_choices.deterministic:
            qkv = t.contiguous(t.transpose(qkv, 1, 2))
            _conv_out = t.convolution(qkv, filters, None, tokens + kernel - 1)
            qkv = t.transpose(t.function("silu", t.slice(_conv_out, tokens)), 1, 2)
        else:
            qkv = fla.causal_conv1d(t, qkv, t.reshape(filters, (channels, kernel)))
        dt_bias, a_log = self.weight("dt_bias", (op.heads,)), self.weight("A_log", (op.heads,))
        q, k, v, g, gate, beta_sigmoid = self._prepare_delta_inputs(
            op, widths[0], qkv, gate, a_log, dt_bias, beta, alpha
        )
        delta_rule = chunked_delta_rule if self.rank_choices.deterministic else fla.chunk_gated_delta_rule_alone
        y = delta_rule(t, q, k, v, g, beta_sigmoid)
        output_projection = steps["o_proj"]
        self.bind(
            output_projection.outs[0],
            self.row_linear(output_projection, self._run_gated_norm(steps["norm"], op, y, gate)),
        )

    def _prepare_delta_inputs(
        self,
        op: DeltaRule,
        key_width: Number,
        qkv: Tensor,
        gate: Tensor,
        a_log: Tensor,
        dt_bias: Tensor,
        beta: Tensor,
        alpha: Tensor,
    ) -> tuple[Tensor, ...]:
        """Runs _prepare_input_for_gated_delta_rule.

        It normalizes queries and keys, repeats them for each value head, and computes decay and beta. Values and the
        output gate are copied.
        """
        graph, (batch, tokens) = self.graph, qkv.shape[:2]
        key_heads = exact_div(key_width, op.key_dim)
        qk_shape, head_shape = (batch, tokens, 2 * key_width), (batch, tokens, op.heads)
        contiguous_qk = graph.new(qk_shape, BFLOAT16)
        normalized_qk, qk_norms = graph.new(qk_shape, BFLOAT16), graph.new((batch, tokens, 2 * key_heads), FLOAT32)
        del contiguous_qk
        q, k = (graph.new((*head_shape, op.key_dim), BFLOAT16) for _ in range(2))
        v = graph.new((*head_shape, op.value_dim), BFLOAT16)
        decay, beta_sigmoid = graph.new(head_shape, FLOAT32), graph.new(head_shape, BFLOAT16)
        out_gate = graph.new((*head_shape, op.value_dim), BFLOAT16)
        shapes = [x.shape for x in (qkv, gate, a_log, dt_bias, beta, alpha)]

        def backward(
            saved_tensors: list[Tensor | None], gradients: list[Gradient], needs_input_grad: Needs
        ) -> Sequence[Gradient]:
            normalized_gradients = graph.new(qk_shape, BFLOAT16)
            qk_gradients = graph.new(qk_shape, BFLOAT16)
            del normalized_gradients
            input_gradients = [graph.new(shape, BFLOAT16) for shape in shapes]
            del qk_gradients
            return input_gradients

        outs = (q, k, v, decay, out_gate, beta_sigmoid)
        ins = (qkv, gate, a_log, dt_bias, beta, alpha)
        self.node(
            "prepare_input_for_gated_delta_rule", ins, outs, backward, normalized_qk, qk_norms, alpha, beta_sigmoid
        )
        return outs

    def _run_gated_norm(self, norm: Step, op: DeltaRule, y: Tensor, gate: Tensor) -> Tensor:
        """Runs _gated_norm_and_a2a: norm(y) · silu(gate), then moves the token axis before the batch axis."""
        t, (batch, tokens) = self.t, y.shape[:2]
        flat_shape = (batch * tokens * op.heads, op.value_dim)
        normed = self.norm(t.reshape(y, flat_shape), norm, self.module_path(), flat_shape[0])
        out = self.times_gate(normed, t.reshape(gate, flat_shape))
        del normed
        out = t.reshape(out, (batch, tokens, op.heads * op.value_dim))
        out = t.contiguous(t.transpose(out, 0, 1))
        return t.reshape(out, (batch * tokens, op.heads * op.value_dim))


def chunked_delta_rule(t: Aten, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """Runs torch_chunk_gated_delta_rule: the delta rule in fp32 by torch's operations.

    q, k: [B, T, H, K]; v: [B, T, H, V]; g, beta: [B, T, H].
    """
    query, key, value, beta, g = [t.to(t.contiguous(t.transpose(x, 1, 2)), FLOAT32) for x in (q, k, v, beta, g)]
    tokens, chunks = key.shape[2], ceil_div(key.shape[2], CHUNK)
    padded_tokens = chunks * CHUNK
    query = t.pad(query, padded_tokens, -2)
    key = t.pad(key, padded_tokens, -2)
    value = t.pad(value, padded_tokens, -2)
    beta = t.pad(beta, padded_tokens)
    g = t.pad(g, padded_tokens)
    query = t.scale(query)
    v_beta = t.mul(value, t.unsqueeze(beta, -1))
    k_beta = t.mul(key, t.unsqueeze(beta, -1))
    query, key, value, k_beta, v_beta = [
        t.unflatten(x, 2, (chunks, CHUNK)) for x in (query, key, value, k_beta, v_beta)
    ]
    g = t.unflatten(g, 2, (chunks, CHUNK))
    mask = t.new((CHUNK, CHUNK), BOOL)
    g = cumsum(t, g)
    decay = tril(t, t.exp(tril(t, t.sub(t.unsqueeze(g, -1), t.unsqueeze(g, -2)))))
    attn = t.mul(t.matmul(k_beta, t.transpose(key, -1, -2)), decay)
    attn = t.scale(t.masked_fill(attn, mask), "neg")
    for i in range(1, CHUNK):
        attention_row = t.clone(t.slice(t.select(attn, -2), i))
        previous_rows = t.clone(t.slice(t.slice(attn, i, -2), i))
        attn = t.write_into(attn, t.add(attention_row, t.sum(t.mul(t.unsqueeze(attention_row, -1), previous_rows), -2)))
    attn = t.add(attn, t.new((CHUNK, CHUNK), FLOAT32))
    value = t.matmul(attn, v_beta)
    k_cumdecay = t.matmul(attn, t.mul(k_beta, t.unsqueeze(t.exp(g), -1)))
    state = t.new((*key.shape[:2], key.shape[-1], value.shape[-1]), FLOAT32)
    out = t.new(value.shape, FLOAT32)
    mask = t.new((CHUNK, CHUNK), BOOL)
    for _ in range(int(chunks)):
        q_i, k_i, v_i = (t.select(x, 2) for x in (query, key, value))
        attn = masked_fill_in_place(t, t.mul(t.matmul(q_i, t.transpose(k_i, -1, -2)), t.select(decay, 2)), mask)
        v_prime = t.matmul(t.select(k_cumdecay, 2), state)
        v_new = t.sub(v_i, v_prime)
        attn_inter = t.matmul(t.mul(q_i, t.exp(t.unsqueeze(t.select(g, 2), -1))), state)
        out = t.write_into(out, t.add(attn_inter, t.matmul(attn, v_new)))
        decayed_state = t.mul(state, t.exp(t.unsqueeze(t.unsqueeze(t.select(t.select(g, 2), -1), -1), -1)))
        remaining_decay = t.exp(t.sub(t.unsqueeze(t.select(t.select(g, 2), -1), -1), t.select(g, 2)))
        state = t.add(decayed_state, t.matmul(t.transpose(t.mul(k_i, t.unsqueeze(remaining_decay, -1)), -1, -2), v_new))
        del decayed_state, remaining_decay
    del state
    out = t.slice(t.flatten(out, 2, 3), tokens, 2)
    return t.to(t.contiguous(t.transpose(out, 1, 2)), q.dtype)


def cumsum(t: Aten, x: Tensor) -> Tensor:
    """Returns cumulative sums along the last axis; the gradient is flipped, summed and flipped (`cumsum_backward`)."""

    def backward(g: Tensor, _: Needs) -> Sequence[Gradient]:
        flipped = t.like(g)
        flipped_sums = t.like(flipped)
        gradient = t.like(flipped_sums)
        del flipped, flipped_sums
        return (gradient,)

    return record(t.graph, "cumsum", (x,), t.like(x), backward)


def tril(t: Aten, x: Tensor) -> Tensor:
    """Returns the lower triangle of a matrix; the gradient is a lower triangle too."""
    return record(t.graph, "tril", (x,), t.like(x), lambda g, _: (t.like(g),))


def masked_fill_in_place(t: Aten, x: Tensor, mask: Tensor) -> Tensor:
    """Fills masked elements in place and saves the mask; the gradient is a filled copy."""
    out = Tensor(x.shape, x.dtype, x.storage, x.strides)
    return record(t.graph, "masked_fill_", (x,), out, lambda g, _, mask: (t.like(g),), mask)
