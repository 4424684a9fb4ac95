"""The component classes that each field of a model's description accepts, selected by `type`.

Each entry is `type` → location of the class, `file:Class` in this package. The file is imported on first use.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from .base import Component
from .part_choice import PartChoice

MIXERS = PartChoice(
    "attention",
    {
        "attention": "mixers.attention:Attention",
        "exclusive": "mixers.exclusive_attention:ExclusiveAttention",
        "mla": "mixers.mla:MLA",
        "delta_net": "mixers.delta_net:DeltaNet",
        "gated_delta_net": "mixers.gated_delta_net:GatedDeltaNet",
        "jet_block": "mixers.jet_block:JetBlock",
        "mamba": "mixers.mamba:Mamba",
        "memory_gate": "mixers.memory_gate:MemoryGate",
        "mamba2": "mixers.mamba2:Mamba2",
        "selective_mamba2": "mixers.selective_mamba2:SelectiveMamba2",
        "kimi_delta_attention": "mixers.kimi_delta_attention:KimiDeltaAttention",
        "rglru": "mixers.rglru:RGLRU",
        "rwkv_time_mix": "mixers.rwkv4:RwkvTimeMix",
        "rwkv_head_mix": "mixers.rwkv_head_mix:RwkvHeadMix",
        "rwkv7_time_mix": "mixers.rwkv7:Rwkv7TimeMix",
        "short_conv": "mixers.short_conv:ShortConv",
        "cca": "mixers.compressed_conv_attention:CompressedConvAttention",
        "compressed": "mixers.compressed_attention:CompressedAttention",
        "shared_entries": "mixers.shared_entries:SharedCompressedKVAttention",
        "looped": "layers.looped_layer:LoopedAttention",
        "funnel": "layers.funnel_layer:FunnelAttention",
        "lightning": "mixers.lightning_attention:LightningAttention",
        "retention": "mixers.retention:Retention",
        "gated_linear_attention": "mixers.gated_linear_attention:GatedLinearAttention",
        "hgrn2": "mixers.hgrn2:HGRN2",
        "blended": "mixers.blended_attention:BlendedAttention",
        "differential": "mixers.differential_attention:DifferentialAttention",
        "mlstm": "mixers.mlstm:MLSTM",
        "mixture_of_attention": "mixers.mixture_of_attention:MixtureOfAttention",
        "local": "mixers.local_attention:LocalAttention",
        "dynamic_mask": "mixers.dynamic_mask:DynamicMaskAttention",
        "merged": "mixers.merged_attention:MergedAttention",
        "relative": "mixers.relative_attention:RelativeAttention",
        "relative_keys": "relative_keys:RelativeKeyAttention",
        "context": "mixers.context_attention:ContextAttention",
        "latent_context": "mixers.latent_context:LatentContextAttention",
        "fourier": "mixers.fourier:FourierMixer",
        "grouped_projections": "mixers.grouped_projections:GroupedProjectionAttention",
        "profile": "mixers.profile_attention:ProfileAttention",
        "gated_profile": "mixers.gated_profile_attention:GatedProfileAttention",
        "global_local": "layers.global_local:GlobalLocalAttention",
        "chunked": "mixers.chunked_attention:ChunkedAttention",
        "ngram": "mixers.ngram:NgramAttention",
        "sampled_blocks": "mixers.sampled_blocks:SampledBlockAttention",
        "span_convolution": "mixers.span_convolution:SpanConvolution",
        "none": "base:Nothing",
    },
)
"""Token mixers: attention, state-space models, linear attention."""

DRAFT_MIXERS = PartChoice("attention", {"attention": "mixers.attention:Attention", "mla": "mixers.mla:MLA"})
"""The attention classes of the first layer of an EAGLE-3 draft model, with an input wider than the output."""

CHANNEL_MIXERS = PartChoice(
    "mlp",
    {
        "mlp": "networks.feed_forward:FeedForward",
        "moe": "networks.moe:MoE",
        "rwkv_channel_mix": "mixers.rwkv4:RwkvChannelMix",
        "rwkv7_channel_mix": "mixers.rwkv7:Rwkv7ChannelMix",
        "grouped_mlp": "mixers.grouped_projections:GroupedFeedForward",
        "product_key_moe": "networks.product_key:ProductKeyMoE",
        "grove_moe": "networks.grove_moe:GroveMoE",
        "none": "base:Nothing",
    },
)
"""Components that process each token separately: feed-forward networks and mixtures of experts."""

HEADS = PartChoice(
    "lm",
    {
        "lm": "head:LMHead",
        "classification": "classifier:Classifier",
        "projection": "projection_head:ProjectionHead",
        "latents": "latent_head:LatentHead",
        "none": "no_head:NoHead",
    },
)
"""Output heads of a model."""

INDEXERS = PartChoice("indexer", {"indexer": "mixers.indexer:Indexer", "pooled": "mixers.pooled_indexer:PooledIndexer"})
"""Indexers of latent attention, which select the tokens to attend to."""

BLOCK_INDEXERS = PartChoice(
    "block_indexer",
    {
        "block_indexer": "mixers.block_indexer:BlockIndexer",
        "mean_indexer": "mixers.mean_indexer:MeanIndexer",
        "token_indexer": "mixers.token_indexer:TokenIndexer",
    },
)
"""Indexers of multi-head attention, which select the tokens or blocks of tokens to attend to."""

LAYERS = PartChoice(
    "block",
    {
        "block": "layers.block:Block",
        "hyper": "layers.hyper_layer:HyperLayer",
        "delayed_hyper": "layers.delayed_hyper:DelayedHyperLayer",
        "gated_streams": "layers.gated_streams:GatedStreamsLayer",
        "hybrid": "layers.hybrid_block:HybridBlock",
        "zamba": "layers.zamba_layer:ZambaLayer",
        "gemma4": "layers.gemma4_layer:Gemma4Layer",
        "altup": "layers.altup_layer:AltUpLayer",
        "shortcut": "layers.shortcut_layer:ShortcutLayer",
        "gated_norm": "layers.gated_norm:GatedNormLayer",
        "draft": "layers.draft_layer:DraftLayer",
        "grouped_conv": "layers.grouped_conv:GroupedConvLayer",
        "gated_cross": "layers.gated_cross:GatedCrossLayer",
        "gated_cross_text": "layers.gated_cross:GatedCrossTextLayer",
        "bottleneck": "layers.bottleneck_layer:BottleneckLayer",
        "dense_residual": "layers.dense_residual:DenseResidualLayer",
        "residual_gate": "layers.residual_gate:ResidualGateLayer",
        "initial_states": "layers.initial_states:InitialStatesLayer",
        "block_residual": "layers.block_residual:BlockResidualLayer",
        "conformer": "layers.conformer:ConformerLayer",
        "adapted": "layers.adapted_layer:AdaptedLayer",
        "paired": "layers.paired_layer:PairedLayer",
        "conditioned": "layers.conditioned_layer:ConditionedLayer",
        "convolved": "layers.convolved_layer:ConvolvedLayer",
        "convolved_residual": "layers.convolved_residual:ConvolvedResidualLayer",
        "global_local": "layers.global_local:GlobalLocalLayer",
        "reversible": "layers.reversible_layer:ReversibleLayer",
        "adapter": "layers.adapter_layer:AdapterLayer",
        "looped": "layers.looped_layer:LoopedLayer",
        "funnel": "layers.funnel_layer:FunnelLayer",
    },
)
"""Every kind of layer in a stack."""

STREAMS = PartChoice(
    "altup",
    {
        "altup": "layers.altup_layer:AltUp",
        "hyper": "layers.hyper_layer:HyperStreams",
        "delayed_hyper": "layers.delayed_hyper:DelayedHyperStreams",
        "gated_streams": "layers.gated_streams:GatedStreams",
        "target_states": "target_states:TargetStates",
        "block_residual": "layers.block_residual:BlockResiduals",
        "self_conditioning": "self_conditioning:SelfConditioning",
        "predict_streams": "mixers.ngram:PredictStreams",
        "prompt_tokens": "prompt_tokens:PromptTokens",
        "value_embeddings": "value_embeddings:ValueEmbeddings",
        "global_tokens": "layers.global_local:GlobalTokens",
        "latents": "latents:LatentStreams",
        "reversible": "layers.reversible_layer:ReversibleStreams",
        "byte_patches": "byte_patches:PatchStreams",
    },
)
"""Components that change the first layer's input, or split the residual stream into several and merge these after the
last layer.
"""

STEMS = PartChoice(
    "convolution",
    {
        "convolution": "stem:ConvStem",
        "subsampling": "audio_stems:SubsamplingStem",
        "waveform": "audio_stems:WaveformStem",
        "features": "feature_stem:FeatureStem",
        "frames": "frame_stem:FrameStem",
        "spectrum": "spectrum_stem:SpectrumStem",
        "wave": "wave_stem:WaveStem",
    },
)
"""Stems, which compute an encoder's input in the place of token embeddings."""

OTHER_COMPONENTS = PartChoice(
    "norm",
    {
        "norm": "norm:Norm",
        "learned": "added_position:LearnedPositions",
        "sinusoidal": "added_position:SinusoidalPositions",
        "axial": "added_position:AxialPositions",
        "relative_bias": "distance_bias:RelativeBias",
        "relative_embedding": "disentangled:RelativeEmbedding",
        "side_convolution": "disentangled:SideConvolution",
        "pooler": "pooler:Pooler",
        "contact_head": "contact_head:ContactHead",
        "unused_embedding": "unused_modules:UnusedEmbedding",
        "mtp": "multi_token_prediction:MultiTokenPrediction",
        "proposal": "block_proposal:Proposal",
        "token_types": "token_types:TokenTypes",
        "second_stream": "unused_modules:SecondStream",
        "entities": "entities:Entities",
        "input_features": "input_features:InputFeatures",
        "ngram_embedding": "ngram_embedding:NgramEmbedding",
        "relative_keys": "relative_keys:RelativeKeys",
    },
)
"""Component classes that each have a separate field in a spec, and separate examples."""

Mixer: TypeAlias = Annotated[Any, MIXERS]
DraftMixer: TypeAlias = Annotated[Any, DRAFT_MIXERS]
ChannelMixer: TypeAlias = Annotated[Any, CHANNEL_MIXERS]
Head: TypeAlias = Annotated[Any, HEADS]
AnyLayer: TypeAlias = Annotated[Any, LAYERS]
Streams: TypeAlias = Annotated[Any, STREAMS]
AnyStem: TypeAlias = Annotated[Any, STEMS]
AnyIndexer: TypeAlias = Annotated[Any, INDEXERS]
AnyBlockIndexer: TypeAlias = Annotated[Any, BLOCK_INDEXERS]


def load_all_components() -> tuple[type[Component], ...]:
    """Returns every component class with a reference and examples, except layers, for the contract tests."""
    part_choices = (MIXERS, CHANNEL_MIXERS, HEADS, STEMS, OTHER_COMPONENTS)
    classes = [cls for part_choice in part_choices for cls in part_choice.load_component_classes()]
    return tuple(dict.fromkeys(cls for cls in classes if issubclass(cls, Component)))
