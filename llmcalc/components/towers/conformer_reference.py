"""A conformer in PyTorch, from the fields of its spec alone (see conformer.py)."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

from ..base import Around
from ..feed_forward import activate
from ..runtime import Run, vector

if TYPE_CHECKING:
    from torch import Tensor, nn

    from .conformer import Conformer, ConformerConvolution


@cache
def conformer_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class SelfAttention(nn.Module):
        """x: [sounds, frames, hidden] → the same. bias: [heads, frames, frames], added to the scores."""

        def __init__(self, spec: Conformer) -> None:
            super().__init__()
            own, width = spec.attention, spec.hidden_size
            self.heads, self.left, self.right = own.num_attention_heads, own.context_left, own.context_right
            for which in "qkvo":
                self.add_module(f"{which}_proj", nn.Linear(width, width, bias=own.bias))
            if own.relative_keys:
                self.r_proj = nn.Linear(width, width, bias=False)
                self.q_scale = vector(torch.zeros(width // own.num_attention_heads))

        def _distances(self, frames: int, width: int, like: Tensor) -> Tensor:
            """The sinusoid of each query's distance to each key, [frames, frames, hidden]."""
            where = torch.arange(frames, device=like.device)
            scales = torch.exp(torch.arange(width // 2, device=like.device) * (-math.log(1e4) / max(width // 2 - 1, 1)))
            angles = (where[:, None] - where[None, :])[..., None] * scales
            return torch.cat([angles.sin(), angles.cos()], -1).to(like.dtype)

        def forward(self, x: Tensor, bias: Tensor | None) -> Tensor:
            q, k, v = (
                self.get_submodule(f"{which}_proj")(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
                for which in "qkv"
            )
            frames, width = x.shape[1:]
            if hasattr(self, "r_proj"):
                q = q * nn.functional.softplus(self.q_scale.weight) / math.log(2)
                far = self.r_proj(self._distances(frames, width, x)).unflatten(-1, (self.heads, -1))
                scores = q @ k.transpose(-1, -2) + torch.einsum("bhqd,qkhd->bhqk", q, far)
            else:
                scores = q @ k.transpose(-1, -2)
            scores = scores * q.shape[-1] ** -0.5
            scores = scores if bias is None else scores + bias
            if self.left is not None:
                where = torch.arange(frames, device=x.device)
                back = where[:, None] - where[None, :]
                scores = scores.masked_fill((back >= self.left) | (back < -self.right), float("-inf"))
            mixed = torch.softmax(scores.float(), -1).to(v.dtype) @ v
            out: Tensor = self.get_submodule("o_proj")(mixed.transpose(1, 2).flatten(2))
            return out

    class Convolution(nn.Module):
        """x: [sounds, frames, hidden] → the same. A frame sees those before it."""

        def __init__(self, spec: ConformerConvolution, width: int) -> None:
            super().__init__()
            self.spec = spec
            self.in_proj = nn.Linear(width, 2 * width, bias=spec.bias)
            if spec.gate_bias:
                self.gate_bias = vector(torch.zeros(2, width))
            wide = width * spec.multiplier
            self.conv = nn.Conv1d(width, wide, spec.kernel_size, groups=width, bias=spec.bias)
            if spec.separable:
                self.pointwise = nn.Linear(wide, width, bias=spec.bias)
            if spec.norm is not None:
                self.norm = spec.norm.reference(Around(width))
            self.out_proj = nn.Linear(width, width, bias=spec.bias)

        def forward(self, x: Tensor) -> Tensor:
            value, gate = self.in_proj(x).chunk(2, -1)
            if hasattr(self, "gate_bias"):
                value, gate = value + self.gate_bias.weight[0], gate + self.gate_bias.weight[1]
            x = (value * activate(self.spec.gate_act, gate)).transpose(1, 2)
            x = self.conv(nn.functional.pad(x, (self.spec.kernel_size - 1, 0))).transpose(1, 2)
            x = self.pointwise(x) if hasattr(self, "pointwise") else x
            x = self.norm(x) if hasattr(self, "norm") else x
            out: Tensor = self.out_proj(activate(self.spec.hidden_act, x))
            return out

    class Layer(nn.Module):
        def __init__(self, spec: Conformer) -> None:
            super().__init__()
            around = Around(spec.hidden_size, causal=False)
            self.mlp_1, self.mlp_2 = spec.feed_forward.reference(around), spec.feed_forward.reference(around)
            self.self_attn, self.convolution = SelfAttention(spec), Convolution(spec.convolution, spec.hidden_size)
            for name in ("mlp_1", "self_attn", "convolution", "mlp_2"):
                self.add_module(f"{name}_pre_norm", spec.norm.reference(around))
                if spec.norm_placement == "sandwich" and name != "convolution":
                    self.add_module(f"{name}_post_norm", spec.norm.reference(around))
            self.norm = spec.norm.reference(around)

        def _after(self, name: str, y: Tensor) -> Tensor:
            out: Tensor = getattr(self, f"{name}_post_norm")(y) if hasattr(self, f"{name}_post_norm") else y
            return out

        def forward(self, x: Tensor, bias: Tensor | None) -> Tensor:
            x = x + 0.5 * self._after("mlp_1", self.mlp_1(self.get_submodule("mlp_1_pre_norm")(x), Run()))
            x = x + self._after("self_attn", self.self_attn(self.get_submodule("self_attn_pre_norm")(x), bias))
            x = x + self.convolution(self.get_submodule("convolution_pre_norm")(x))
            x = x + 0.5 * self._after("mlp_2", self.mlp_2(self.get_submodule("mlp_2_pre_norm")(x), Run()))
            out: Tensor = self.norm(x)
            return out

    class Held(nn.Module):
        def __init__(self, many: int) -> None:
            super().__init__()
            self.register_buffer("bounds", torch.full((many,), float("inf")))

    class ConformerReference(nn.Module):
        """frames: [sounds, frames, num_mel_bins] → [sounds, fewer frames, output_size].

        Bounds that a checkpoint holds are infinite here. Gemma's classes cap the scores as well.
        """

        def __init__(self, spec: Conformer) -> None:
            super().__init__()
            self.subsampling = spec.subsampling.reference(Around(spec.hidden_size, causal=False))
            self.buckets = spec.relative_buckets
            if spec.relative_buckets is not None:
                self.relative_bias = nn.Embedding(spec.relative_buckets, spec.attention.num_attention_heads)
            self.layers = nn.ModuleList(Layer(spec) for _ in range(spec.num_hidden_layers))
            if spec.clamps:
                self.clamps = Held(spec.clamps * spec.num_hidden_layers)
            if spec.output_size is not None:
                self.output_proj = nn.Linear(spec.hidden_size, spec.output_size)

        def _bias(self, frames: int, like: Tensor) -> Tensor | None:
            """Of each distance, [heads, frames, frames]:
            half of the table is for what comes before, half for what comes after.
            """
            if self.buckets is None:
                return None
            where, half = torch.arange(frames, device=like.device), self.buckets // 2
            far = (where[None, :] - where[:, None]).clamp(-half, max(self.buckets - half - 1, 0))
            table: Tensor = self.relative_bias(far + half)
            return table.permute(2, 0, 1)

        def forward(self, frames: Tensor) -> Tensor:
            x: Tensor = self.subsampling(frames)
            bias = self._bias(x.shape[1], x)
            for layer in self.layers:
                x = layer(x, bias)
            return self.output_proj(x) if hasattr(self, "output_proj") else x

    return ConformerReference
