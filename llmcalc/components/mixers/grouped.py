"""Base classes of token mixers with grouped queries and a head_dim field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from ..base import HeadSizes, TokenMixer

if TYPE_CHECKING:
    from ..position import Rope


class GroupedQueryMixer(TokenMixer):
    """Attention with num_attention_heads query heads, num_key_value_heads key and value heads, head_dim and RoPE.

    A subclass declares these fields, in this order.
    """

    if TYPE_CHECKING:
        num_attention_heads: int
        num_key_value_heads: int
        head_dim: int
        position: Rope | None

    def heads(self, width: Any) -> HeadSizes:
        return HeadSizes(self.num_attention_heads, self.num_key_value_heads, self.head_dim)

    def score_position(self) -> Rope | None:
        return self.position

    def with_kv_heads(self, kv_heads: int, width: int) -> Self:
        return self.model_copy(update={"num_key_value_heads": kv_heads})

    def with_heads(self, head_sizes: HeadSizes) -> Self:
        if self.position is not None:
            self.position.check_heads(head_sizes)
        fields = {
            "num_attention_heads": head_sizes.heads,
            "num_key_value_heads": head_sizes.kv_heads,
            "head_dim": head_sizes.head_dim,
        }
        return self.model_copy(update=fields)


class WindowedMixer(GroupedQueryMixer):
    """A grouped-query mixer with an optional sliding window of sliding_window tokens, the token itself included."""

    if TYPE_CHECKING:
        type: str
        sliding_window: int | None

    def trait(self) -> str:
        return self.type if self.sliding_window is None else "sliding"

    def window(self) -> int | None:
        return self.sliding_window

    def reach(self) -> tuple[int, ...]:
        return () if self.sliding_window is None else (self.sliding_window,)

    def without_window(self) -> Self:
        return self.model_copy(update={"sliding_window": None})

    @property
    def cache_kind(self) -> str:
        """The kind that `llmcalc kv` lists its cache under."""
        return "full_attention" if self.sliding_window is None else "sliding_attention"
