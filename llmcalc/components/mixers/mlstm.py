"""mLSTM, the matrix memory of xLSTM (Beck et al. 2024, arXiv:2405.04517, §2.3), as in xLSTM-7B (arXiv:2503.13427, §3).

C ← f·C + i·k ⊗ v, n ← f·n + i·k, h = Cᵀq / max(|n·q|, 1). The gates are exponential, and their largest exponent m is
stored separately. The output has a norm per head and a gate. transformers: models/xlstm.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import Field

from ...algebra import Number
from ...flow.axis import Axis, JoinedShapes, Shape
from ...flow.record import Flow
from ...flow.value import Value
from ...ops import MatrixMemory
from ..base import (
    PUBLISHED_KERNELS_WITNESS,
    ChunkSize,
    FiniteNumber,
    Flag,
    HeadDim,
    Heads,
    HeadSizes,
    ModelProperties,
    PartWitness,
    RecurrentMixer,
    SizeSymbol,
)
from ..norm import Norm, norm_reference
from ..runtime import PassState, recurrent_state_class

if TYPE_CHECKING:
    from torch import Tensor, nn

MemoryValueDim: TypeAlias = Annotated[int, SizeSymbol("v")]


class MLSTM(RecurrentMixer):
    """The matrix memory of xLSTM, with the field names of xLSTM-7B's config.

    num_heads: the number of heads, each with a memory of [qk_head_dim, v_head_dim].
    qk_head_dim: the size of a query or key head.
    v_head_dim: the size of a value head.
    use_bias: whether the norm and the projections have a bias, false by default; the projections of the two gates
        always have one.
    chunk_size: the number of tokens computed at once, 64 by default.
    gate_soft_cap: the soft cap of the gates' exponents, 15 by default.
    norm_eps: the ε of the norm on the output, 1e-6 by default.
    """

    formula_source: ClassVar[str] = "Beck et al. 2024, §2.3"
    witness: ClassVar[PartWitness] = PUBLISHED_KERNELS_WITNESS
    node_name: ClassVar[str] = "mlstm"
    uncounted_operations: ClassVar[str] = "the decays and exponential gates of mLSTM's memory"

    type: Literal["mlstm"] = "mlstm"
    num_heads: Heads
    qk_head_dim: HeadDim
    v_head_dim: MemoryValueDim
    use_bias: Flag = False
    chunk_size: ChunkSize = 64
    gate_soft_cap: FiniteNumber = Field(default=15.0, gt=0)
    norm_eps: FiniteNumber = Field(default=1e-6, ge=0)

    def head_sizes(self, hidden_size: Number) -> HeadSizes:
        return HeadSizes(self.num_heads, self.num_heads, self.qk_head_dim)

    def flow(self, recorder: Flow, x: Value) -> Value:
        heads, has_bias = Axis("heads", self.num_heads), self.use_bias
        key_dim, value_dim = Axis("qk_head_dim", self.qk_head_dim), Axis("v_head_dim", self.v_head_dim)
        value_axes: Shape = (heads, value_dim)
        q = recorder.linear("q", x, heads, key_dim, bias=has_bias)
        k = recorder.linear("k", x, heads, key_dim, bias=has_bias)
        v = recorder.linear("v", x, *value_axes, bias=has_bias)
        input_gate, forget_gate = (
            recorder.act(recorder.linear(gate_name, x, heads, bias=True), "tanh") for gate_name in ("igate", "fgate")
        )
        memory_op = MatrixMemory(input_gate.width, key_dim.size, value_dim.size, self.chunk_size, x.rows)
        memory_output = recorder.core("core", memory_op, q, k, v, input_gate, forget_gate, axes=value_axes)
        state_shape = JoinedShapes(((key_dim, value_dim), (key_dim,), (Axis("largest", 1),)))
        recorder.state("recurrent_state", heads, state_shape)
        norm = Norm(type="layernorm", bias=has_bias, eps=self.norm_eps)
        memory_output = recorder.norm("norm", memory_output, norm, groups=heads)
        gate = recorder.act(recorder.linear("ogate", x, *value_axes, bias=has_bias), "sigmoid")
        return recorder.linear("out_proj", recorder.mul(gate, memory_output), *x.axes, bias=has_bias)

    def describe(self, hidden_size: int) -> str:
        return f"mLSTM {self.num_heads} × {self.qk_head_dim}/{self.v_head_dim}"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        return [
            cls(num_heads=3, qk_head_dim=4, v_head_dim=6),
            cls(num_heads=2, qk_head_dim=6, v_head_dim=5, use_bias=True, chunk_size=4),
            cls(num_heads=2, qk_head_dim=4, v_head_dim=4, chunk_size=11),
        ]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn
    from torch.nn import functional as F

    class MatrixMemoryCell(nn.Module):
        """Runs mLSTM's matrix memory. q, k: [batch, heads, tokens, d], v: [batch, heads, tokens, v] → (output, state).

        input_gate, forget_gate: [batch, heads, tokens]. h has the shape of v.
        """

        def __init__(self, chunk_size: int) -> None:
            super().__init__()
            self.chunk = chunk_size

        def forward(
            self,
            q: Tensor,
            k: Tensor,
            v: Tensor,
            input_gate: Tensor,
            forget_gate: Tensor,
            cell_state: tuple[Tensor, ...],
        ) -> tuple[Tensor, tuple[Tensor, ...]]:
            log_forget_gate, q = F.logsigmoid(forget_gate), q * q.shape[-1] ** -0.5
            chunk_outputs, chunk_start, token_count = [], 0, q.shape[2]
            while chunk_start < token_count:
                run_step, chunk_size = (
                    (self._run_chunk, self.chunk) if token_count - chunk_start >= self.chunk else (self._run_token, 1)
                )
                chunk_slice = slice(chunk_start, chunk_start + chunk_size)
                memory_output, cell_state = run_step(
                    q[:, :, chunk_slice],
                    k[:, :, chunk_slice],
                    v[:, :, chunk_slice],
                    input_gate[:, :, chunk_slice],
                    log_forget_gate[:, :, chunk_slice],
                    cell_state,
                )
                chunk_outputs.append(memory_output)
                chunk_start += chunk_size
            return torch.cat(chunk_outputs, 2), cell_state

        def _run_chunk(
            self,
            q: Tensor,
            k: Tensor,
            v: Tensor,
            input_gate: Tensor,
            log_forget_gate: Tensor,
            cell_state: tuple[Tensor, ...],
        ) -> tuple[Tensor, tuple[Tensor, ...]]:
            memory, normalizer, largest_exponent = cell_state
            log_decay = log_forget_gate.cumsum(-1)
            mask = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device).tril()
            pair_exponent = (log_decay[..., :, None] - log_decay[..., None, :] + input_gate[..., None, :]).masked_fill(
                ~mask, float("-inf")
            )
            state_exponent = log_decay + largest_exponent
            largest_score_exponent = torch.maximum(state_exponent, pair_exponent.max(-1).values)
            scores = q @ k.transpose(-1, -2) * (pair_exponent - largest_score_exponent[..., None]).exp()
            scaled_q = q * (state_exponent - largest_score_exponent).exp()[..., None]
            numerator = scaled_q @ memory + scores @ v
            denominator = (scaled_q @ normalizer[..., None])[..., 0] + scores.sum(-1)
            memory_output = (
                numerator / (torch.maximum(denominator.abs(), (-largest_score_exponent).exp()) + 1e-6)[..., None]
            )
            input_exponent, chunk_decay = log_decay[..., -1:] - log_decay + input_gate, log_decay[..., -1:]
            new_exponent = torch.maximum(chunk_decay + largest_exponent, input_exponent.max(-1, keepdim=True).values)
            scaled_k = k * (input_exponent - new_exponent).exp()[..., None]
            state_scale = (chunk_decay + largest_exponent - new_exponent).exp()
            return memory_output, (
                state_scale[..., None] * memory + scaled_k.transpose(-1, -2) @ v,
                state_scale * normalizer + scaled_k.sum(-2),
                new_exponent,
            )

        def _run_token(
            self,
            q: Tensor,
            k: Tensor,
            v: Tensor,
            input_gate: Tensor,
            log_forget_gate: Tensor,
            cell_state: tuple[Tensor, ...],
        ) -> tuple[Tensor, tuple[Tensor, ...]]:
            memory, normalizer, largest_exponent = cell_state
            new_exponent = torch.maximum(log_forget_gate + largest_exponent, input_gate)
            state_scale, input_scale = (
                (log_forget_gate + largest_exponent - new_exponent).exp(),
                (input_gate - new_exponent).exp(),
            )
            memory = state_scale[..., None] * memory + input_scale[..., None] * (k.transpose(-1, -2) @ v)
            normalizer = state_scale * normalizer + input_scale * k[:, :, 0]
            denominator = (q @ normalizer[..., None])[..., 0]
            memory_output = q @ memory / (torch.maximum(denominator.abs(), (-new_exponent).exp()) + 1e-6)[..., None]
            return memory_output, (memory, normalizer, new_exponent)

    class MLSTMReference(nn.Module):
        """Runs the mLSTM mixer around its matrix memory. x: [batch, tokens, hidden] → same shape."""

        recurrent_state: Any

        def __init__(self, spec: MLSTM, hidden_size: int) -> None:
            super().__init__()
            self.spec, heads, has_bias = spec, spec.num_heads, spec.use_bias
            key_width, value_width = heads * spec.qk_head_dim, heads * spec.v_head_dim
            for projection_name, output_width in (
                ("q", key_width),
                ("k", key_width),
                ("v", value_width),
                ("ogate", value_width),
            ):
                self.add_module(projection_name, nn.Linear(hidden_size, output_width, bias=has_bias))
            self.igate, self.fgate = nn.Linear(hidden_size, heads), nn.Linear(hidden_size, heads)
            self.core, self.recurrent_state = MatrixMemoryCell(spec.chunk_size), recurrent_state_class()()
            self.norm = norm_reference(
                Norm(type="layernorm", bias=has_bias, eps=spec.norm_eps), value_width, group_count=heads
            )
            self.out_proj = nn.Linear(value_width, hidden_size, bias=has_bias)

        def _split_heads(self, projection_letter: str, x: Tensor) -> Tensor:
            return (
                self.get_submodule(projection_letter)(x)
                .float()
                .unflatten(-1, (self.spec.num_heads, -1))
                .transpose(1, 2)
            )

        def _gate(self, gate_name: str, x: Tensor) -> Tensor:
            gate_cap = self.spec.gate_soft_cap
            return gate_cap * torch.tanh(self._split_heads(gate_name, x)[..., 0] / gate_cap)

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            q, k, v = (self._split_heads(projection_letter, x) for projection_letter in "qkv")
            stored_state = self.recurrent_state.load(pass_state)
            if stored_state is None:
                stored_state = (
                    q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1]),
                    q.new_zeros(*q.shape[:2], q.shape[-1]),
                    q.new_zeros(*q.shape[:2], 1),
                )
            memory_output, cell_state = self.core(
                q,
                k,
                v,
                self._gate("igate", x),
                self._gate("fgate", x),
                tuple(tensor.float() for tensor in stored_state),
            )
            self.recurrent_state.keep(pass_state, *(tensor.to(x.dtype) for tensor in cell_state))
            normed_output = self.norm(memory_output.transpose(1, 2).flatten(2).to(x.dtype))
            return self.out_proj(self.get_submodule("ogate")(x).sigmoid() * normed_output)

    return MLSTMReference
