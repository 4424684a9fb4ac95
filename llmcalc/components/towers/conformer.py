"""Conformers (Gulati 2020, arXiv:2005.08100): encoders of sound whose layers hold attention and a convolution between
two half feed-forward networks.

Gemma's is that of the Universal Speech Model (Zhang 2023, arXiv:2303.01037): windows, and scores of distances mapped
from their sinusoids; Phi-4-multimodal's has a table of distances that all layers share, biases everywhere and a gated
network.
transformers: models/gemma3n, models/gemma4, models/phi4_multimodal.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from ... import ops
from ...algebra import exact_div
from ...flow.tree import Node
from ..base import Around, Component, Flag, Heads, Kernel, Layers, Part, Positions, Width
from ..feed_forward import Activation, FeedForward
from ..norm import Norm
from .subsampling import Subsampling

if TYPE_CHECKING:
    from torch import nn


class ConformerAttention(Part):
    """Attention within a window, or over all where the contexts are not given.

    bias: on each of the four maps. context_left: positions that a query sees up to its own, that included;
    context_right: beyond.
    relative_keys: the sinusoid of each distance is mapped to a key, and each dimension of a query has a learned scale.
    """

    num_attention_heads: Heads
    bias: Flag = False
    relative_keys: Flag = False
    context_left: Positions | None = None
    context_right: int = Field(default=0, ge=0, le=2**40, strict=True)


class ConformerConvolution(Part):
    """hidden → 2 × hidden, of which one half gates the other, → a convolution of each channel → hidden.

    gate_act: on the half that gates. gate_bias: a vector added to either half. bias: on every map and convolution.
    causal: it sees no later position. multiplier: channels that the convolution makes of one. separable: a map back to
    hidden after it. norm: on what it gives.
    """

    kernel_size: Kernel
    hidden_act: Activation = "silu"
    gate_act: Activation = "sigmoid"
    gate_bias: Flag = False
    bias: Flag = False
    multiplier: Width = 1
    separable: Flag = False
    norm: Norm | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.multiplier > 1 and not self.separable:
            raise ValueError(
                f"multiplier: {self.multiplier} channels for one are mapped back; expected separable = true"
            )
        return self


class Conformer(Component):
    """Frames of a spectrum → fewer, of hidden_size → the layers → output_size, where a map follows.

    norm: before each part of a layer and after the whole; with `norm_placement = "sandwich"` after attention and
    feed-forward network too. relative_buckets: rows of a table of distances, a value for each head, that every layer
    adds to its scores.
    clamps: bounds held beside the maps of each layer, in values a layer (Gemma 4).
    """

    type: Literal["conformer"] = "conformer"
    hidden_size: Width
    subsampling: Subsampling
    num_hidden_layers: Layers
    attention: ConformerAttention
    convolution: ConformerConvolution
    feed_forward: FeedForward
    norm: Norm
    norm_placement: Literal["pre", "sandwich"] = "pre"
    relative_buckets: Positions | None = None
    output_size: Width | None = None
    clamps: int = Field(default=0, ge=0, le=1000, strict=True)

    @model_validator(mode="after")
    def _check(self) -> Self:
        heads = self.attention.num_attention_heads
        if self.hidden_size % heads:
            raise ValueError(
                f"num_attention_heads: {heads} does not divide hidden_size {self.hidden_size}; expected a divisor"
            )
        if self.attention.relative_keys and self.hidden_size % 2:
            raise ValueError(
                f"hidden_size: {self.hidden_size} has no two halves for sines and cosines; expected an even number"
            )
        return self

    @property
    def gives(self) -> int:
        """Width of what it gives."""
        return self.hidden_size if self.output_size is None else self.output_size

    def anatomy(self, name: str, around: Around) -> Node:
        h = self.hidden_size
        parts = [self.subsampling.anatomy("subsampling", Around(h, causal=False))]
        if self.relative_buckets is not None:
            parts.append(
                Node("relative_bias", ops.Embedding(self.relative_buckets, self.attention.num_attention_heads))
            )
        n = self.num_hidden_layers
        layer = Node("layers", children=tuple(self._layer(Around(h, causal=False))))
        parts.append(replace(layer, repeat=n, indices=range(n) if isinstance(n, int) else None, kind="layer"))
        if self.clamps:
            parts.append(Node("clamps", ops.Buffer(self.clamps * n)))
        if self.output_size is not None:
            parts.append(Node("output_proj", ops.Linear(h, self.output_size, bias=True)))
        return Node(name, children=tuple(parts), source="Gulati et al. 2020, §2")

    def _layer(self, own: Around) -> list[Node]:
        h, a, c, norm = self.hidden_size, self.attention, self.convolution, self.norm.anatomy
        after = self.norm_placement == "sandwich"
        inside = [Node(f"{which}_proj", ops.Linear(h, h, a.bias)) for which in "qkvo"]
        if a.relative_keys:
            inside += [
                Node("r_proj", ops.Linear(h, h)),
                Node("q_scale", ops.Weight(exact_div(h, a.num_attention_heads))),
            ]
        wide = h * c.multiplier
        conv = [Node("in_proj", ops.Linear(h, 2 * h, c.bias))]
        if c.gate_bias:
            conv.append(Node("gate_bias", ops.Weight(2 * h, rows=2)))
        conv.append(Node("conv", ops.Conv1d(h, wide, c.kernel_size, groups=h, bias=c.bias)))
        if c.separable:
            conv.append(Node("pointwise", ops.Linear(wide, h, c.bias)))
        if c.norm is not None:
            conv.append(c.norm.anatomy("norm", own))
        conv.append(Node("out_proj", ops.Linear(h, h, c.bias)))
        parts: list[Node] = []
        for name, node in (
            ("mlp_1", self.feed_forward.anatomy("mlp_1", own)),
            ("self_attn", Node("self_attn", children=tuple(inside), kind="attention")),
            ("convolution", Node("convolution", children=tuple(conv), kind="convolution")),
            ("mlp_2", self.feed_forward.anatomy("mlp_2", own)),
        ):
            parts += [norm(f"{name}_pre_norm", own), node]
            if after and name != "convolution":
                parts.append(norm(f"{name}_post_norm", own))
        return [*parts, norm("norm", own)]

    def describe(self, hidden_size: int) -> str:
        return f"conformer {self.num_hidden_layers} × {self.hidden_size}"

    def reference(self, around: Around) -> nn.Module:
        from .conformer_reference import conformer_class

        return conformer_class()(self)

    @classmethod
    def examples(cls) -> list[Self]:
        from .subsampling import SpectrumConv

        rms, layernorm, scale = Norm(type="rmsnorm"), Norm(type="layernorm"), Norm(type="layernorm", bias=False)
        two = Subsampling(
            num_mel_bins=12, convolutions=(SpectrumConv(channels=6), SpectrumConv(channels=4)), norm=scale
        )
        deep = SpectrumConv(channels=4, separable=True, bias=True)
        nemo = Subsampling(
            num_mel_bins=9, convolutions=(SpectrumConv(channels=4, bias=True), deep, deep), bias=True, standardize=True
        )
        plain = FeedForward(intermediate_size=40, hidden_act="silu")
        gated = FeedForward(
            intermediate_size=14, hidden_act="silu", gated=True, gate_bias=True, up_bias=True, down_bias=True
        )
        windowed = ConformerAttention(num_attention_heads=2, relative_keys=True, context_left=4, context_right=1)
        free = ConformerAttention(num_attention_heads=3, bias=True)
        light = ConformerConvolution(kernel_size=3, norm=rms)
        heavy = ConformerConvolution(
            kernel_size=3, gate_act="silu", gate_bias=True, bias=True, multiplier=2, separable=True
        )
        return [
            cls(
                hidden_size=10,
                subsampling=two,
                num_hidden_layers=2,
                attention=windowed,
                convolution=light,
                feed_forward=plain,
                norm=rms,
                norm_placement="sandwich",
                output_size=14,
                clamps=40,
            ),
            cls(
                hidden_size=12,
                subsampling=nemo,
                num_hidden_layers=3,
                attention=free,
                convolution=heavy,
                feed_forward=gated,
                norm=layernorm,
                relative_buckets=8,
            ),
        ]
