"""Hyper-connections: several residual streams, which each sublayer reads, mixes and writes with its own weights.

Zhu 2024 (arXiv:2409.19606). Xie 2025 (arXiv:2512.24880, §4) constrain the mixing matrix to be doubly stochastic, as
DeepSeek-V4 does; Hy 4 has no mixing. transformers: models/deepseek_v4 (`DeepseekV4HyperConnection`,
`DeepseekV4HyperHead`), models/hy_v4.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field

from ... import ops
from ...flow.axis import Axis, Beside
from ...flow.record import Flow
from ...flow.value import Value
from ..base import Component, Context, Real, Streams
from ..mixers.attention import Attention
from ..networks.feed_forward import FeedForward
from ..norm import Norm
from ..position import Rope
from ..runtime import Run
from ..streams import ResidualStreams
from .block import Layer, Sharing, WholeLayer

if TYPE_CHECKING:
    from torch import Tensor, nn


PLAIN = Norm(type="rmsnorm", weight=False, eps=1e-6)
"""The norm on all streams of a token together, before the projection that computes the weights."""


class HyperLayer(WholeLayer):
    """A layer whose sublayers read a weighted sum of several residual streams and write to all of them.

    A norm follows the weighted sum. The streams are mixed with each other before a sublayer's output is added to them.
    One projection of all streams of a token computes all weights.

    hc_mult: the number of streams.
    hc_sinkhorn_iters: the number of steps that make the mixing matrix doubly stochastic, 20 by default; None where the
        streams are not mixed.
    hc_magnitude: the largest factor on a sublayer's output, 2 by default.
    hc_eps: added to the weights, 1e-6 by default.
    """

    plain: ClassVar[bool] = False
    alone: ClassVar[bool] = False

    type: Literal["hyper"] = "hyper"
    hc_mult: Streams
    hc_sinkhorn_iters: int | None = Field(default=20, ge=1, le=1000, strict=True)
    hc_magnitude: Real = Field(default=2.0, gt=0)
    hc_eps: Real = Field(default=1e-6, ge=0)
    norm_placement: Literal["pre"] = "pre"
    parallel: None = None
    cross_attention: None = None

    def requires(self) -> Mapping[str, Mapping[str, Any]]:
        return {**super().requires(), "streams": {"type": self.type, "hc_mult": self.hc_mult}}

    def source(self) -> str:
        return "Xie et al. 2025, §4"

    def flow(self, f: Flow, x: Value, sharing: Sharing | None = None) -> Value:
        """x: all streams."""
        for where, part in (("self_attn", self.attention), ("mlp", self.feed_forward)):
            assert isinstance(part, Component)
            read, written, x = self._connected(f, f"{where}_connection", x)
            read = f.part(f"{where}_pre_norm", self.norm, read)
            y = f.part(where, part, read)
            x = f.add(f.mul(written, y, axes=x.axes), x)
        return x

    def _connected(self, f: Flow, name: str, x: Value) -> tuple[Value, Value, Value]:
        """Returns the sublayer's input, the weights that add its output to the streams, and the mixed streams."""
        streams, hidden = x.axes
        mixed = () if self.hc_sinkhorn_iters is None else ((streams, Axis("mixed", streams.size)),)
        with f.scope(name, kind="residual"):
            weights = _weights(f, x, Beside(((streams,), (streams,), *mixed)))
            read, written, *matrix = f.split(weights, (streams,), (streams,), *mixed)
            summed = f.sum(f.mul(x, f.act(read, "sigmoid")), hidden)
            written = f.act(written, "sigmoid")
            if matrix:  # the Sinkhorn steps are recorded as one
                doubly = f.act(f.act(matrix[0], "softmax"), "sinkhorn")
                x = f.core("mix", ops.StreamMix(streams.size, hidden.size, x.rows), doubly, x, axes=x.axes)
            return summed, written, x

    def reference(self, context: Context) -> nn.Module:
        return _references()["layer"](self, context)

    @classmethod
    def examples(cls) -> list[Self]:
        """None: the layer needs the stack's streams. One of the stack's examples uses it."""
        return []


class HyperStreams(ResidualStreams):
    """The streams of hyper-connections: copies of the embedding, summed with learned weights after the last layer.

    hc_mult: the number of streams.
    """

    kind: ClassVar[str] = "residual"

    type: Literal["hyper"] = "hyper"
    hc_mult: Streams

    def check_layers(self, layers: Mapping[str, Layer]) -> None:
        needed = {"type": self.type, "hc_mult": self.hc_mult}
        if any(layer.requires().get("streams") != needed for layer in layers.values()):
            raise ValueError(
                "streams: those of type 'hyper' stand where every layer is of type 'hyper' with their hc_mult, and "
                "nowhere else"
            )

    def widened(self, f: Flow, x: Value) -> Value:
        return f.repeat(x.seen(Axis("streams", 1), *x.axes), Axis("streams", self.hc_mult))

    def narrowed(self, f: Flow, x: Value) -> Value:
        return f.part("hyper_streams", self, x)

    def flow(self, f: Flow, x: Value) -> Value:
        """Returns the weighted sum of the streams. x: all streams."""
        streams, hidden = x.axes
        weights = f.act(_weights(f, x, Beside(((streams,),))), "sigmoid")
        return f.sum(f.mul(x, weights), hidden)

    def reference(self, context: Context) -> nn.Module:
        return _references()["streams"](self.hc_mult, context.hidden_size)


def _weights(f: Flow, x: Value, out: Beside) -> Value:
    """One projection of all streams, scaled and shifted; each part of `out` has its own scale."""
    raw = f.linear("map", f.normalized(x, PLAIN), out)
    return f.core("offsets", ops.StreamOffsets(out.size, len(out.parts)), raw, axes=raw.axes)


def hyper_example(**fields: Any) -> HyperLayer:
    """A small layer. fields: override its default fields."""
    attention = Attention(num_attention_heads=4, num_key_value_heads=2, position=Rope())
    network = FeedForward(intermediate_size=20, hidden_act="silu", gated=True)
    return HyperLayer(
        **{"attention": attention, "feed_forward": network, "norm": Norm(type="rmsnorm"), "hc_mult": 3, **fields}
    )


@cache
def _references() -> dict[str, type[nn.Module]]:
    import torch
    from torch import nn

    class Offsets(nn.Module):
        """The bias of each weight, and the scale of each kind of weight."""

        def __init__(self, weights: int, kinds: int) -> None:
            super().__init__()
            self.base, self.scale = nn.Parameter(torch.zeros(weights)), nn.Parameter(torch.ones(kinds))

    def normed(streams: Tensor) -> Tensor:
        flat = streams.flatten(2)
        return flat * torch.rsqrt(flat.float().square().mean(-1, keepdim=True) + 1e-6).to(flat.dtype)

    class Mix(nn.Module):
        """matrix: [.., in, out], streams: [.., in, hidden] → [.., out, hidden]."""

        def forward(self, matrix: Tensor, streams: Tensor) -> Tensor:
            mixed: Tensor = matrix.transpose(-1, -2) @ streams
            return mixed

    class Connection(nn.Module):
        """streams: [batch, tokens, n, hidden] → (the sublayer's input, its output's weights, the mixed streams)."""

        def __init__(self, spec: HyperLayer, hidden: int) -> None:
            super().__init__()
            self.spec, n = spec, spec.hc_mult
            self.parts = [n, n] if spec.hc_sinkhorn_iters is None else [n, n, n * n]
            self.map, self.offsets = (
                nn.Linear(n * hidden, sum(self.parts), bias=False),
                Offsets(sum(self.parts), len(self.parts)),
            )
            self.mix = None if spec.hc_sinkhorn_iters is None else Mix()

        def forward(self, streams: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            n, eps = self.spec.hc_mult, self.spec.hc_eps
            scale, parts = self.offsets.scale, self.parts
            read, write, *comb = (
                w * scale[i] + b
                for i, (w, b) in enumerate(
                    zip(self.map(normed(streams)).split(parts, -1), self.offsets.base.split(parts), strict=True)
                )
            )
            summed, strength = (
                ((read.sigmoid() + eps)[..., None] * streams).sum(2),
                self.spec.hc_magnitude * write.sigmoid(),
            )
            if self.mix is None or self.spec.hc_sinkhorn_iters is None:
                return summed, strength + eps, streams
            matrix = comb[0].unflatten(-1, (n, n)).softmax(-1) + eps
            matrix = matrix / (matrix.sum(-2, keepdim=True) + eps)
            for _ in range(self.spec.hc_sinkhorn_iters - 1):
                matrix = matrix / (matrix.sum(-1, keepdim=True) + eps)
                matrix = matrix / (matrix.sum(-2, keepdim=True) + eps)
            return summed, strength, self.mix(matrix, streams)

    class HyperLayerReference(nn.Module):
        """x: [batch, tokens, streams, hidden] → same shape."""

        def __init__(self, spec: HyperLayer, context: Context) -> None:
            super().__init__()
            for name, part in (("self_attn", spec.attention), ("mlp", spec.feed_forward)):
                assert isinstance(part, Component)
                self.add_module(f"{name}_connection", Connection(spec, context.hidden_size))
                self.add_module(f"{name}_pre_norm", spec.norm.reference(context))
                self.add_module(name, part.reference(context))

        def forward(self, x: Tensor, run: Run) -> Tensor:
            for name in ("self_attn", "mlp"):
                read, write, mixed = self.get_submodule(f"{name}_connection")(x)
                y = self.get_submodule(name)(self.get_submodule(f"{name}_pre_norm")(read), run)
                x = write[..., None] * y[:, :, None] + mixed
            return x

    class HeadReference(nn.Module):
        def __init__(self, n: int, hidden: int) -> None:
            super().__init__()
            self.map, self.offsets = nn.Linear(n * hidden, n, bias=False), Offsets(n, 1)

        def forward(self, streams: Tensor) -> Tensor:
            weights = (self.map(normed(streams)) * self.offsets.scale + self.offsets.base).sigmoid() + 1e-6
            total: Tensor = (weights[..., None] * streams).sum(2)
            return total

    class StreamsReference(nn.Module):
        """One residual stream → streams [batch, tokens, n, hidden], and back to one."""

        def __init__(self, n: int, hidden: int) -> None:
            super().__init__()
            self.n, self.hyper_streams = n, HeadReference(n, hidden)

        def to_streams(self, x: Tensor) -> Tensor:
            return x[:, :, None].expand(-1, -1, self.n, -1)

        def to_one(self, x: Tensor) -> Tensor:
            one: Tensor = self.hyper_streams(x)
            return one

    return {"layer": HyperLayerReference, "streams": StreamsReference}
