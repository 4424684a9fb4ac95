"""Gated linear attention (GLA): each key channel has a decay, computed from the tokens by a low-rank projection.

Yang et al. 2023 (arXiv:2312.06635), §4. S ← diag(α)·S + k ⊗ v, o = Sᵀq / √key_dim, with α = σ(W₂W₁x + b)^(1/16); then a
norm of each head and a gate. flash-linear-attention: fla/layers/gla.py.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field

from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ..base import PUBLISHED_KERNELS_WITNESS, FiniteNumber, InnerWidth, ModelProperties, PartWitness
from .linear_attention import LinearAttentionMixer, linear_attention_reference_class

if TYPE_CHECKING:
    from torch import Tensor, nn


class GatedLinearAttention(LinearAttentionMixer):
    """Gated linear attention (GLA): linear attention with a decay per key channel.

    decay_rank: the rank of the projection that makes the decays, 16 by default.
    decay_divisor: the divisor of the log decays, a temperature (§4.4), 16 by default.
    """

    formula_source: ClassVar[str] = "Yang et al. 2023, §4"
    witness: ClassVar[PartWitness] = PUBLISHED_KERNELS_WITNESS
    uncounted_operations: ClassVar[str] = "the decays of gated linear attention"

    type: Literal["gated_linear_attention"] = "gated_linear_attention"
    decay_rank: InnerWidth = 16
    decay_divisor: FiniteNumber = Field(default=16.0, gt=0)

    def _record_decays(self, recorder: Flow, x: Value, heads: Axis, key_dim: Axis) -> tuple[Value, ...]:
        low_rank_x = recorder.linear("gk_a_proj", x, Axis("decay_rank", self.decay_rank))
        decay_logits = recorder.linear("gk_b_proj", low_rank_x, heads, key_dim, bias=True)
        return (recorder.scale(recorder.act(decay_logits, "logsigmoid"), 1 / self.decay_divisor),)

    def describe(self, hidden_size: int) -> str:
        return f"gated linear attention {self._head_sizes_text()}"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        ungrouped_example, grouped_example = super().examples()
        return [ungrouped_example, grouped_example.model_copy(update={"decay_rank": 3, "decay_divisor": 8.0})]


@cache
def _reference_class() -> type[nn.Module]:
    from torch import nn
    from torch.nn import functional as F

    class GatedLinearAttentionReference(linear_attention_reference_class()):  # type: ignore[misc]
        """Computes gated linear attention. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: GatedLinearAttention, hidden_size: int) -> None:
            super().__init__(spec, hidden_size)
            key_width = spec.num_key_value_heads * spec.linear_key_head_dim
            self.gk_a_proj = nn.Linear(hidden_size, spec.decay_rank, bias=False)
            self.gk_b_proj = nn.Linear(spec.decay_rank, key_width, bias=True)

        def _log_decay(self, x: Tensor) -> Tensor:
            decay_logits = self._split_heads(self.gk_b_proj(self.gk_a_proj(x)), self.spec.linear_key_head_dim)
            return self._repeat_for_query_heads(F.logsigmoid(decay_logits) / self.spec.decay_divisor)

    return GatedLinearAttentionReference
