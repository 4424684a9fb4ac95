"""JetBlock: gated DeltaNet whose values pass a convolution with filters computed from each token.

Gu et al. 2025 (arXiv:2508.15884), §3. Queries and keys pass no convolution. A network of two layers gives every
channel of the values a filter over the last tokens, for each token. Projections, filters and the tensors kept between
passes are those of jet_block.py and dynamic_conv.py of NVlabs/Jet-Nemotron (jetai/modeling/hf).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field

from ...algebra import Number
from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ...ops import DeltaRule, DynamicConvolution
from ..base import (
    PUBLISHED_KERNELS_WITNESS,
    ChunkSize,
    FiniteNumber,
    HeadSizes,
    InnerWidth,
    KernelSize,
    ModelProperties,
    PartWitness,
    RecurrentMixer,
)
from ..norm import Norm, norm_reference
from ..runtime import PassState, recurrent_state_class, vector_module
from .delta_rule import CHUNK_TOKENS, delta_rule_class, record_delta_rule
from .gated_delta_net import LinearKeyDim, LinearValueDim, LinearValueHeads

if TYPE_CHECKING:
    from torch import Tensor, nn


class JetBlock(RecurrentMixer):
    """Gated DeltaNet with a convolution of the values whose filters are computed from each token.

    linear_num_value_heads: the number of heads, each with a query, a key, a value and a state.
    linear_key_head_dim: the size of a query or key head.
    linear_value_head_dim: the size of a value head.
    generator_size: the width of the inner layer of the network that computes the filters.
    linear_conv_kernel_dim: the number of tokens that a filter covers, 4 by default; as many are cached.
    chunk_size: the number of tokens computed at once, 64 by default; FLOPs depend on it, the state does not.
    norm_eps: the ε of the norm on the output of each head, 1e-5 by default.
    """

    formula_source: ClassVar[str] = "Gu et al. 2025 (arXiv:2508.15884), §3"
    witness: ClassVar[PartWitness] = PUBLISHED_KERNELS_WITNESS
    uncounted_operations: ClassVar[str] = "the decays of JetBlock, and in decode the whole step of its state"

    type: Literal["jet_block"] = "jet_block"
    linear_num_value_heads: LinearValueHeads
    linear_key_head_dim: LinearKeyDim
    linear_value_head_dim: LinearValueDim
    generator_size: InnerWidth
    linear_conv_kernel_dim: KernelSize = 4
    chunk_size: ChunkSize = CHUNK_TOKENS
    norm_eps: FiniteNumber = Field(default=1e-5, ge=0)

    def head_sizes(self, hidden_size: Number) -> HeadSizes:
        return HeadSizes(self.linear_num_value_heads, self.linear_num_value_heads, self.linear_key_head_dim)

    def flow(self, recorder: Flow, x: Value) -> Value:
        heads, kernel_axis = Axis("heads", self.linear_num_value_heads), Axis("kernel", self.linear_conv_kernel_dim)
        key_dim, value_dim = Axis("key_dim", self.linear_key_head_dim), Axis("value_dim", self.linear_value_head_dim)
        q = recorder.act(recorder.linear("q_proj", x, heads, key_dim), "silu")
        k = recorder.act(recorder.linear("k_proj", x, heads, key_dim), "silu")
        v = recorder.linear("v_proj", x, heads, value_dim)
        generator_hidden = recorder.act(recorder.linear("w1", x, Axis("generator", self.generator_size)), "silu")
        filters = recorder.linear("w2", generator_hidden, heads, value_dim, kernel_axis, bias=True)
        convolution = DynamicConvolution(v.width, 1, kernel_axis.size, x.rows)
        v = recorder.act(recorder.core("convolution", convolution, v, filters, axes=(heads, value_dim)), "silu")
        recorder.state("conv_state", heads, value_dim, kernel_axis, state_kind="conv_state")
        decay_rate = recorder.act(recorder.vector("A_log", heads), "exp")  # the decay rate of each head
        step_size = recorder.add(recorder.linear("a_proj", x, heads), recorder.vector("dt_bias", heads))
        decay = recorder.mul(recorder.act(step_size, "softplus"), decay_rate)
        beta = recorder.act(recorder.linear("b_proj", x, heads), "sigmoid")  # the strength of the correction
        scan_inputs = (q, k, v, decay, beta)
        delta_rule = DeltaRule(beta.width, key_dim.size, value_dim.size, self.chunk_size, rows=x.rows)
        scan_output = record_delta_rule(recorder, delta_rule, scan_inputs, (heads, key_dim, value_dim))
        gate = recorder.act(recorder.linear("g_proj", x, heads, value_dim), "silu")
        scan_output = recorder.norm("norm", scan_output, Norm(type="rmsnorm", eps=self.norm_eps), (value_dim,))
        return recorder.linear("o_proj", recorder.mul(scan_output, gate), *x.axes)

    def describe(self, hidden_size: int) -> str:
        head_dims_text = f"{self.linear_key_head_dim}/{self.linear_value_head_dim}"
        return f"JetBlock {self.linear_num_value_heads} × {head_dims_text}"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        return [
            cls(linear_num_value_heads=2, linear_key_head_dim=6, linear_value_head_dim=12, generator_size=5),
            cls(
                linear_num_value_heads=3,
                linear_key_head_dim=4,
                linear_value_head_dim=6,
                generator_size=8,
                linear_conv_kernel_dim=3,
                chunk_size=4,
            ),
        ]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn
    from torch.nn import functional as F

    class CausalFilters(nn.Module):
        """A causal convolution with a filter per token and channel.

        x: [batch, tokens, channels], filters: [batch, tokens, channels, kernel]. Returns the shape of x.
        state_module: the module that stores the last `kernel` inputs of each channel.
        """

        def forward(self, x: Tensor, filters: Tensor, pass_state: PassState, state_module: Any) -> Tensor:
            kernel_size = filters.shape[-1]
            stored_input = state_module.load(pass_state)
            earlier_inputs = (
                x.new_zeros(x.shape[0], kernel_size, x.shape[-1]) if stored_input is None else stored_input[0]
            )
            tokens_with_past = torch.cat([earlier_inputs, x], 1)
            state_module.keep(pass_state, tokens_with_past[:, -kernel_size:])
            windows = tokens_with_past[:, 1:].unfold(1, kernel_size, 1)  # [batch, tokens, channels, kernel]
            return (windows[..., None, :] @ filters[..., None])[..., 0, 0]

    class JetBlockReference(nn.Module):
        """Runs gated DeltaNet on convolved values. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: JetBlock, hidden_size: int) -> None:
            super().__init__()
            heads, self.kernel = spec.linear_num_value_heads, spec.linear_conv_kernel_dim
            self.head_dims = spec.linear_key_head_dim, spec.linear_value_head_dim
            key_width, value_width = heads * spec.linear_key_head_dim, heads * spec.linear_value_head_dim
            self.q_proj, self.k_proj = (nn.Linear(hidden_size, key_width, bias=False) for _ in range(2))
            self.v_proj = nn.Linear(hidden_size, value_width, bias=False)
            self.w1 = nn.Linear(hidden_size, spec.generator_size, bias=False)
            self.w2 = nn.Linear(spec.generator_size, value_width * self.kernel)
            self.convolution = CausalFilters()
            self.a_proj, self.b_proj = (
                nn.Linear(hidden_size, heads, bias=False),
                nn.Linear(hidden_size, heads, bias=False),
            )
            self.A_log = vector_module(torch.linspace(0.5, 8.0, heads).log())
            self.dt_bias = vector_module(torch.ones(heads))
            self.core = delta_rule_class()(spec.chunk_size, decays_by_channel=False)
            self.conv_state, self.recurrent_state = recurrent_state_class()(), recurrent_state_class()()
            self.g_proj = nn.Linear(hidden_size, value_width, bias=False)
            self.norm = norm_reference(Norm(type="rmsnorm", eps=spec.norm_eps), spec.linear_value_head_dim)
            self.o_proj = nn.Linear(value_width, hidden_size, bias=False)

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            key_dim, value_dim = self.head_dims
            filters = self.w2(F.silu(self.w1(x))).unflatten(-1, (-1, self.kernel))
            v = F.silu(self.convolution(self.v_proj(x), filters, pass_state, self.conv_state))
            q, k = (
                F.silu(projection(x)).unflatten(-1, (-1, key_dim)).transpose(1, 2)
                for projection in (self.q_proj, self.k_proj)
            )
            decay = -self.A_log.weight.float().exp() * F.softplus(self.a_proj(x).float() + self.dt_bias.weight.float())
            beta = self.b_proj(x).sigmoid().transpose(1, 2)
            v_heads = v.unflatten(-1, (-1, value_dim)).transpose(1, 2)
            decay = decay.transpose(1, 2)[..., None]
            scan_output = self.core(q, k, v_heads, decay, beta, pass_state, self.recurrent_state)
            gate = F.silu(self.g_proj(x).unflatten(-1, (-1, value_dim)))
            return self.o_proj((self.norm(scan_output.transpose(1, 2).to(x.dtype)) * gate).flatten(2))

    return JetBlockReference
