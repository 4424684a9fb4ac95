"""Retention of RetNet: linear attention with rotary positions and a fixed decay per head.

Sun et al. 2023 (arXiv:2307.08621), §2. S ← γ·S + k ⊗ v, o = Sᵀq / √key_dim, with γ = 1 − 2^(−5 − head); then a norm of
each head and a gate. flash-linear-attention: fla/layers/multiscale_retention.py.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal

from ...flow.record import Flow
from ...flow.value import Value
from ..base import PUBLISHED_KERNELS_WITNESS, ModelProperties, PartWitness, StackPosition
from ..rope import Rope
from ..runtime import PassState
from .linear_attention import LinearAttentionMixer, linear_attention_reference_class

if TYPE_CHECKING:
    from torch import Tensor, nn


class Retention(LinearAttentionMixer):
    """RetNet's retention: linear attention with a fixed decay per head.

    position: RoPE on queries and keys, on whole heads with a base of 10000 by default.
    """

    formula_source: ClassVar[str] = "Sun et al. 2023, §2"
    witness: ClassVar[PartWitness] = PUBLISHED_KERNELS_WITNESS
    uncounted_operations: ClassVar[str] = "the decays of retention"

    type: Literal["retention"] = "retention"
    position: Rope = Rope()

    def score_position_encoding(self) -> Rope:
        return self.position

    def check_stack_position(self, stack_position: StackPosition) -> None:
        super().check_stack_position(stack_position)
        self.position.check_stack_position(stack_position, self.linear_key_head_dim)

    def _record_positions(self, recorder: Flow, x: Value) -> Value:
        return recorder.rope(x, self.position)

    def describe(self, hidden_size: int) -> str:
        return f"retention {self._head_sizes_text()}"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties.hidden_size)


@cache
def _reference_class() -> type[nn.Module]:
    import torch

    class RetentionReference(linear_attention_reference_class()):  # type: ignore[misc]
        """Computes RetNet's retention. x: [batch, tokens, hidden] → same shape."""

        def _with_positions(self, x: Tensor, pass_state: PassState) -> Tensor:
            return self.spec.position.rotate_heads(x, pass_state, pass_state.past_tokens)

        def _log_decay(self, x: Tensor) -> Tensor:
            heads = torch.arange(self.spec.num_attention_heads, device=x.device, dtype=torch.float32)
            log_decay = (1 - 2.0 ** (-5 - heads)).log()
            return log_decay[:, None, None].expand(x.shape[0], -1, x.shape[1], 1)

    return RetentionReference
