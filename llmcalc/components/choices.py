"""Every part that a field can hold one of, told apart by `type`. A new part is its file and its line here.

`type` → where the part is, `file:Class` in this package. A file is imported when a description first has its part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from .base import Component, Part
from .choice import PartChoice

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
"""What moves information between tokens."""

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
"""What works on each token by itself."""

HEADS = PartChoice(
    "lm",
    {
        "lm": "head:LMHead",
        "classification": "head:Classifier",
        "none": "head:NoHead",
    },
)
"""What stands on top of the last layer."""

LAYERS = PartChoice(
    "block",
    {
        "block": "block:Block",
        "hyper": "hyper:HyperLayer",
        "hybrid": "hybrid:HybridBlock",
        "zamba": "zamba:ZambaLayer",
        "gemma4": "gemma4_layer:Gemma4Layer",
        "altup": "altup:AltUpLayer",
        "shortcut": "shortcut:ShortcutLayer",
        "gated_norm": "gated_norm:GatedNormLayer",
    },
)
"""Every kind of layer that a stack can be made of."""

OTHERS = PartChoice(
    "norm",
    {
        "stem": "stem:ConvStem",
        "norm": "norm:Norm",
        "learned": "position:Learned",
        "sinusoidal": "position:Sinusoidal",
        "relative_bias": "position:RelativeBias",
        "relative_embedding": "disentangled:RelativeEmbedding",
        "side_convolution": "disentangled:SideConvolution",
    },
)
"""Parts that stand in a place of their own, with examples of their own."""

if TYPE_CHECKING:
    Mixer: TypeAlias = Any
    ChannelMixer: TypeAlias = Any
    Head: TypeAlias = Any
    AnyLayer: TypeAlias = Any
else:
    Mixer = Annotated[Part, MIXERS]
    ChannelMixer = Annotated[Part, CHANNEL_MIXERS]
    Head = Annotated[Part, HEADS]
    AnyLayer = Annotated[Part, LAYERS]


def parts() -> tuple[type[Component], ...]:
    """Every part with a flow, a reference and examples, layers excepted: what the contract tests run over."""
    found = [cls for choice in (MIXERS, CHANNEL_MIXERS, HEADS, OTHERS) for cls in choice.classes()]
    return tuple(dict.fromkeys(cls for cls in found if issubclass(cls, Component)))
