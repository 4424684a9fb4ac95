"""The parts of an architecture, one file each. A new part is its file and its line in one of these choices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from .base import Component, Nothing, Part
from .choice import PartChoice

if TYPE_CHECKING:
    from .attention import Attention
    from .cca import CompressedConvAttention
    from .compressed import CompressedAttention
    from .differential import DifferentialAttention
    from .disentangled import RelativeEmbedding, SideConvolution
    from .dynamic_mask import DynamicMaskAttention
    from .feed_forward import FeedForward
    from .gated_delta_net import GatedDeltaNet
    from .head import Classifier, LMHead, NoHead
    from .kda import KimiDeltaAttention
    from .lightning import LightningAttention
    from .local import LocalAttention
    from .mamba import Mamba
    from .mamba2 import Mamba2
    from .merged import MergedAttention
    from .mla import MLA
    from .mlstm import MLSTM
    from .moa import MixtureOfAttention
    from .moe import MoE
    from .norm import Norm
    from .position import Learned, RelativeBias, Sinusoidal
    from .product_key import ProductKeyMoE
    from .relative import RelativeAttention
    from .rglru import RGLRU
    from .rwkv import RwkvChannelMix, RwkvTimeMix
    from .short_conv import ShortConv
    from .stem import ConvStem

MIXERS = PartChoice(
    "attention",
    {
        "attention": "attention:Attention",
        "mla": "mla:MLA",
        "gated_delta_net": "gated_delta_net:GatedDeltaNet",
        "mamba": "mamba:Mamba",
        "mamba2": "mamba2:Mamba2",
        "kimi_delta_attention": "kda:KimiDeltaAttention",
        "rglru": "rglru:RGLRU",
        "rwkv_time_mix": "rwkv:RwkvTimeMix",
        "short_conv": "short_conv:ShortConv",
        "cca": "cca:CompressedConvAttention",
        "compressed": "compressed:CompressedAttention",
        "lightning": "lightning:LightningAttention",
        "differential": "differential:DifferentialAttention",
        "mlstm": "mlstm:MLSTM",
        "mixture_of_attention": "moa:MixtureOfAttention",
        "local": "local:LocalAttention",
        "dynamic_mask": "dynamic_mask:DynamicMaskAttention",
        "merged": "merged:MergedAttention",
        "relative": "relative:RelativeAttention",
        "none": "base:Nothing",
    },
)

CHANNEL_MIXERS = PartChoice(
    "mlp",
    {
        "mlp": "feed_forward:FeedForward",
        "moe": "moe:MoE",
        "rwkv_channel_mix": "rwkv:RwkvChannelMix",
        "product_key_moe": "product_key:ProductKeyMoE",
        "none": "base:Nothing",
    },
)

HEADS = PartChoice(
    "lm",
    {
        "lm": "head:LMHead",
        "classification": "head:Classifier",
        "none": "head:NoHead",
    },
)

if TYPE_CHECKING:
    Mixer: TypeAlias = (
        Attention
        | MLA
        | GatedDeltaNet
        | Mamba
        | Mamba2
        | KimiDeltaAttention
        | RGLRU
        | RwkvTimeMix
        | ShortConv
        | CompressedConvAttention
        | CompressedAttention
        | LightningAttention
        | DifferentialAttention
        | MLSTM
        | MixtureOfAttention
        | LocalAttention
        | DynamicMaskAttention
        | MergedAttention
        | RelativeAttention
        | Nothing
    )
    ChannelMixer: TypeAlias = FeedForward | MoE | RwkvChannelMix | ProductKeyMoE | Nothing
    Head: TypeAlias = LMHead | Classifier | NoHead
else:
    Mixer = Annotated[Part, MIXERS]
    """What moves information between tokens."""

    ChannelMixer = Annotated[Part, CHANNEL_MIXERS]
    """What works on each token by itself."""

    Head = Annotated[Part, HEADS]
    """What stands on top of the last layer."""

OTHERS = (
    "stem:ConvStem",
    "norm:Norm",
    "position:Learned",
    "position:Sinusoidal",
    "position:RelativeBias",
    "disentangled:RelativeEmbedding",
    "disentangled:SideConvolution",
)
"""Parts with an anatomy and a reference that stand in a place of their own."""

_HOMES = {
    name: module
    for home in (*MIXERS.homes.values(), *CHANNEL_MIXERS.homes.values(), *HEADS.homes.values(), *OTHERS)
    for module, _, name in [home.partition(":")]
}
"""Names that this package gives, and the files that they are loaded from when they are first used."""

__all__ = [
    "CHANNEL_MIXERS",
    "HEADS",
    "MIXERS",
    "MLA",
    "MLSTM",
    "PARTS",
    "RGLRU",
    "Attention",
    "ChannelMixer",
    "Classifier",
    "Component",
    "CompressedAttention",
    "CompressedConvAttention",
    "ConvStem",
    "DifferentialAttention",
    "DynamicMaskAttention",
    "FeedForward",
    "GatedDeltaNet",
    "Head",
    "KimiDeltaAttention",
    "LMHead",
    "Learned",
    "LightningAttention",
    "LocalAttention",
    "Mamba",
    "Mamba2",
    "MergedAttention",
    "Mixer",
    "MixtureOfAttention",
    "MoE",
    "NoHead",
    "Norm",
    "Nothing",
    "Part",
    "PartChoice",
    "ProductKeyMoE",
    "RelativeAttention",
    "RelativeBias",
    "RelativeEmbedding",
    "RwkvChannelMix",
    "RwkvTimeMix",
    "ShortConv",
    "SideConvolution",
    "Sinusoidal",
]  # fmt: skip

if TYPE_CHECKING:
    PARTS: tuple[type[Component], ...]


def __getattr__(name: str) -> Any:
    """A part when it is first asked for; `PARTS`, all that have an anatomy and a reference, for the contract tests."""
    from importlib import import_module

    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    if name == "PARTS":
        chosen = [cls for choice in (MIXERS, CHANNEL_MIXERS, HEADS) for cls in choice.classes()]
        own = [__getattr__(home.partition(":")[2]) for home in OTHERS]
        return tuple(cls for cls in (*chosen, *own) if issubclass(cls, Component))
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
