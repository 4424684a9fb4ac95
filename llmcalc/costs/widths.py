"""How wide a layer is for one token: its heads, and the feed-forward network that the token passes through."""

from __future__ import annotations

from typing import Any

from ..components.attention import Attention
from ..components.feed_forward import FeedForward
from ..components.mla import MLA
from ..components.moe import MoE


def heads_of(mixer: Any, hidden_size: int) -> tuple[int | None, int | None, int | None]:
    """(heads, key/value heads, size of a query) of an attention;
    no number of key/value heads for latent attention, none at all for other mixers.
    """
    if isinstance(mixer, MLA):
        return mixer.num_attention_heads, None, mixer.qk_nope_head_dim + mixer.qk_rope_head_dim
    return mixer.sizes(hidden_size) if isinstance(mixer, Attention) else (None, None, None)


def active_width(mixer: Any) -> int | None:
    """Units of the feed-forward network that one token passes through;
    of a mixture of experts, those of its experts and the shared ones.
    """
    if isinstance(mixer, MoE):
        shared = mixer.shared_expert.intermediate_size if mixer.shared_expert is not None else 0
        return mixer.num_experts_per_tok * mixer.expert.intermediate_size + shared
    return mixer.intermediate_size if isinstance(mixer, FeedForward) else None
