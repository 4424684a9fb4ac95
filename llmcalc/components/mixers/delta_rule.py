"""The delta rule of DeltaNet, Gated DeltaNet and Kimi Delta Attention: shared operations and a PyTorch module.

S ← S·exp(g); S ← S + k ⊗ β(v − Sᵀk); o = Sᵀq, with S: [key_dim, value_dim] per head (Schlag 2021, arXiv:2102.11174;
gated: Yang 2024, arXiv:2412.06464; DeltaNet has no decay g). Several tokens at once run in chunks (Yang 2024,
arXiv:2406.06484, §3), like `chunk_delta_rule`, `chunk_gated_delta_rule` and `chunk_kda` of flash-linear-attention and
their PyTorch versions in transformers. A single token runs the recurrence.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from ...flow.axis import Axis, JoinedShapes, Shape
from ...flow.record import Flow
from ...flow.value import Value
from ...ops import DeltaRule, Elementwise
from ..residual_convolution import record_causal_convolution
from ..runtime import PassState

if TYPE_CHECKING:
    from torch import Tensor, nn

CHUNK_TOKENS = 64
"""The number of tokens per chunk in every known implementation."""


def record_convolved_heads(
    recorder: Flow, x: Value, key_axes: Shape, value_axes: Shape, kernel_size: int
) -> list[Value]:
    """Records the query, key and value projections, and a short convolution with SiLU over their outputs.

    key_axes: the axes of queries and keys. value_axes: the axes of values. kernel_size: the convolution's, in tokens.
    """
    q = recorder.linear("q_proj", x, *key_axes)
    k = recorder.linear("k_proj", x, *key_axes)
    v = recorder.linear("v_proj", x, *value_axes)
    qkv_axes = JoinedShapes((key_axes, key_axes, value_axes))
    qkv = recorder.cat(q, k, v, axes=(qkv_axes,))
    qkv = record_causal_convolution(recorder, "conv1d", qkv, qkv_axes, kernel_size=kernel_size)
    return list(recorder.split(recorder.act(qkv, "silu"), *qkv_axes.shapes))


def record_delta_rule(
    recorder: Flow,
    delta_rule: DeltaRule,
    scan_inputs: tuple[Value, ...],
    state_axes: tuple[Axis, Axis, Axis],
    source: str = "",
) -> Value:
    """Records the recurrent state and the delta rule: in chunks, or as a single step when one token is decoded.

    scan_inputs: queries, keys, values, the decay if there is one, and β.
    state_axes: the axes of heads, of a key and of a value. source: the paper's section, by default that of the mixer.
    """
    heads, _key_dim, value_dim = state_axes
    value_axes, node_fields = (heads, value_dim), {"source": source} if source else {}
    scan_output = recorder.alternatives(
        chunked=lambda: recorder.core("core", delta_rule, *scan_inputs, axes=value_axes, node_fields=node_fields),
        step=lambda: recorder.core("core", Elementwise(), *scan_inputs, axes=value_axes, node_fields=node_fields),
    )
    recorder.state("recurrent_state", *state_axes, bits=32)
    return scan_output


@cache
def delta_rule_class() -> type[nn.Module]:
    import torch
    from torch import nn
    from torch.nn import functional as F

    def unit_vector(x: Tensor) -> Tensor:
        """Scales x to length 1 along the last axis."""
        return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)

    def strictly_lower_inverse(system_matrix: Tensor) -> Tensor:
        """Computes (1 + L)⁻¹ row by row, where L is the part of the matrix `system_matrix` below the diagonal."""
        row_count = system_matrix.shape[-1]
        identity_matrix = torch.eye(row_count, dtype=system_matrix.dtype, device=system_matrix.device).expand(
            system_matrix.shape
        )
        inverse_rows = [identity_matrix[..., 0, :]]
        for row_index in range(1, row_count):
            solved_rows = torch.stack(inverse_rows, -2)
            inverse_rows.append(
                identity_matrix[..., row_index, :]
                - (system_matrix[..., row_index, :row_index, None] * solved_rows).sum(-2)
            )
        return torch.stack(inverse_rows, -2)

    class DeltaRule(nn.Module):
        """Runs the delta rule in fp32. q, k: [batch, heads, tokens, key_dim], v: [.., value_dim] → o, shape of v.

        β: [batch, heads, tokens].

        g: the log decay, [batch, heads, tokens, 1] or one per key channel; None without a decay.
        state_module: the module that stores S, [batch, heads, key_dim, value_dim], between passes.
        """

        def __init__(self, chunk_size: int, decays_by_channel: bool) -> None:
            super().__init__()
            self.chunk, self.by_channel = chunk_size, decays_by_channel

        def forward(
            self,
            q: Tensor,
            k: Tensor,
            v: Tensor,
            log_decay: Tensor | None,
            beta: Tensor,
            pass_state: PassState,
            state_module: Any,
        ) -> Tensor:
            q, k, v, beta = (x.float() for x in (q, k, v, beta))
            log_decay = None if log_decay is None else log_decay.float()
            q, k = unit_vector(q) * q.shape[-1] ** -0.5, unit_vector(k)
            stored_state = state_module.load(pass_state)
            old_state = q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1]) if stored_state is None else stored_state[0]
            decodes_one_token = stored_state is not None and q.shape[2] == 1
            scan_output, new_state = (self._run_token if decodes_one_token else self._run_chunks)(
                q, k, v, log_decay, beta, old_state
            )
            state_module.keep(pass_state, new_state)
            return scan_output

        def _run_token(
            self, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, beta: Tensor, recurrent_state: Tensor
        ) -> tuple[Tensor, Tensor]:
            if log_decay is not None:
                recurrent_state = recurrent_state * log_decay[:, :, 0, :, None].exp()
            predicted_values = (recurrent_state * k[:, :, 0, :, None]).sum(-2)
            value_correction = (v[:, :, 0] - predicted_values) * beta
            recurrent_state = recurrent_state + k[:, :, 0, :, None] * value_correction[..., None, :]
            return (recurrent_state * q[:, :, 0, :, None]).sum(-2)[:, :, None], recurrent_state

        def _run_chunks(
            self, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, beta: Tensor, recurrent_state: Tensor
        ) -> tuple[Tensor, Tensor]:
            token_count, chunk_size = q.shape[2], self.chunk
            g = torch.zeros_like(beta)[..., None] if log_decay is None else log_decay
            padding_tokens = -token_count % chunk_size
            q, k, v, g, beta = (
                F.pad(x, (0, 0, 0, padding_tokens)).unflatten(2, (-1, chunk_size))
                for x in (q, k, v, g, beta[..., None])
            )
            g = g.cumsum(-2)
            mask = torch.ones(chunk_size, chunk_size, dtype=torch.bool, device=q.device).tril()
            decayed_k, decayed_q = k * beta * g.exp(), q * g.exp()
            if self.by_channel:
                decay = (g[..., :, None, :] - g[..., None, :, :]).masked_fill(~mask[..., None], float("-inf")).exp()
                system_matrix = ((k * beta)[..., :, None, :] * k[..., None, :, :] * decay).sum(-1)
                scores = (q[..., :, None, :] * k[..., None, :, :] * decay).sum(-1)
                system_inverse = strictly_lower_inverse(system_matrix)
                values, keys = system_inverse @ (v * beta), system_inverse @ decayed_k
            else:
                decay = (g - g.transpose(-1, -2)).masked_fill(~mask, float("-inf")).exp()
                system_matrix, scores = (k * beta) @ k.transpose(-1, -2) * decay, q @ k.transpose(-1, -2) * decay
                values = torch.linalg.solve_triangular(system_matrix, v * beta, upper=False, unitriangular=True)
                keys = torch.linalg.solve_triangular(system_matrix, decayed_k, upper=False, unitriangular=True)
            chunk_decay = g[..., -1:, :]
            decayed_k_to_end, state_decay = k * (chunk_decay - g).exp(), chunk_decay.exp().transpose(-1, -2)
            chunk_outputs = []
            for chunk_index in range(q.shape[2]):
                corrected_values = values[:, :, chunk_index] - keys[:, :, chunk_index] @ recurrent_state
                chunk_outputs.append(
                    decayed_q[:, :, chunk_index] @ recurrent_state + scores[:, :, chunk_index] @ corrected_values
                )
                recurrent_state = (
                    recurrent_state * state_decay[:, :, chunk_index]
                    + decayed_k_to_end[:, :, chunk_index].transpose(-1, -2) @ corrected_values
                )
            return torch.stack(chunk_outputs, 2).flatten(2, 3)[:, :, :token_count], recurrent_state

    return DeltaRule
