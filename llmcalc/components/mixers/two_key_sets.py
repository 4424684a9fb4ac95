"""The base of attention to two sequences: the layer's own tokens and a second sequence, such as an encoder's output."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ..norm import Norm, norm_reference
from ..runtime import attention_products_class, tensor_cache_class
from .grouped_query import WindowedMixer, grouped_reference_class

if TYPE_CHECKING:
    from torch import Tensor

    from ..rope import Rope


class TwoKeySetsMixer(WindowedMixer):
    """Grouped-query attention to the layer's tokens and to a second sequence, with shared key and value projections.

    A subclass also declares attention_bias and norm, the norm on each query and key head.
    """

    if TYPE_CHECKING:
        attention_bias: bool
        norm: Norm | None
        position: Rope

    def _normalize(self, recorder: Flow, norm_name: str, x: Value, head_dim: Axis) -> Value:
        return x if self.norm is None else recorder.norm(norm_name, x, self.norm, (head_dim,))

    def _heading_of_attended_keys(self, key_text: str) -> str:
        """Returns a report heading of the heads and the window. key_text: the attended tokens, in words."""
        heads, kv_heads = self.num_attention_heads, self.num_key_value_heads
        window_text = "" if self.sliding_window is None else f", window {self.sliding_window}"
        heads_text = str(heads) if heads == kv_heads else f"{heads}/{kv_heads}"
        attention_kind = "MHA" if heads == kv_heads else "GQA"
        return f"{attention_kind} {heads_text} × {self.head_dim}, {key_text}{window_text}"


@cache
def two_key_sets_reference_class() -> Any:
    """Returns the base class of PyTorch references, with projections, norms and the cache of the layer's tokens."""

    class TwoKeySetsReference(grouped_reference_class()):  # type: ignore[misc]
        def __init__(self, spec: TwoKeySetsMixer, hidden_size: int) -> None:
            super().__init__(spec, hidden_size, spec.attention_bias)
            if spec.norm is not None:
                self.q_norm, self.k_norm = (norm_reference(spec.norm, spec.head_dim) for _ in "qk")
            self.core, self.cache = attention_products_class()(), tensor_cache_class()(spec.sliding_window)

        def _split_heads(self, projection_letter: str, x: Tensor) -> Tensor:
            """Splits queries, keys or values into heads; queries and keys are also normalized."""
            heads = super()._split_heads(projection_letter, x)
            is_normed = projection_letter != "v" and self.spec.norm is not None
            return self.get_submodule(f"{projection_letter}_norm")(heads) if is_normed else heads

    return TwoKeySetsReference
