"""A rank with data-parallel attention (`--enable-dp-attention`), whose attention layers have a smaller layout.

Of `tp` ranks, `tp / dp` divide attention, its cache, and the embedding; all of them divide dense networks, experts, and
the head (srt/layers/dp_attention.py; `use_attn_tp_group` in srt/models). Each replica of attention has a cache.
"""

from __future__ import annotations

from functools import cached_property

from ...frozen import frozen
from ...parallel.layout import ONE_DEVICE, ImpossibleLayout, Layout
from ..engines.rank import EngineRank

COMPONENTS_ON_ALL_RANKS = frozenset({"feed_forward", "experts", "shared_expert", "router"})
"""Components that are divided over all ranks."""


@frozen(eq=False)
class AttentionRank(EngineRank):
    """A rank with two layouts. layout: for attention. network_layout: for feed-forward networks and the head.

    network_rank: the rank's number in it.
    divides_head: whether all ranks divide the head; with `--enable-dp-lm-head` only those of its attention.
    """

    network_layout: Layout = ONE_DEVICE
    network_rank: int = 0
    divides_head: bool = True

    @cached_property
    def network(self) -> EngineRank:
        """The same rank in the layout of the feed-forward networks."""
        return EngineRank(
            self.preset,
            self.network_layout,
            self.network_rank,
            self.quantize,
            self.dtype,
            self.includes_towers,
            self.includes_mtp,
        ).shared()

    @cached_property
    def weight_bytes(self) -> int:
        """The bytes of the rank's weights. Raises `ImpossibleLayout` for MXFP4 experts."""
        if self.scheme == "mxfp4":
            raise ImpossibleLayout("--enable-dp-attention: is not modelled for experts in MXFP4; remove the flag")
        network_bytes = self.network.weights_by_component
        network_components = COMPONENTS_ON_ALL_RANKS | ({"lm_head"} if self.divides_head else frozenset())
        return sum(
            (network_bytes if component_name in network_components else self.weights_by_component)[component_name]
            for component_name in self.weights_by_component
        )
