"""Transformer-XL's relative-position attention in both directions, as in XLNet and conformers.

Yang et al. 2019 (arXiv:1906.08237), §2.4 and §2.5; Gulati et al. 2020 (arXiv:2005.08100), §2.1.

Scores are (q + u)·k + (q + v)·r, where r is a projection of the distance's sinusoid, for every distance from −tokens +
1 to tokens − 1, computed separately for each sequence; XLNet computes that of `tokens` too. XLNet's third term, (q +
s)·segment, depends on whether two tokens are in the same segment. Its parameters are counted here; its computation is
not, because all tokens are in one segment.
transformers: models/xlnet, models/parakeet.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from ... import ops
from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ...workload.derived_rows import MultipliedRows
from ..base import TORCH_WITNESS, Flag, HeadDim, Heads, ModelProperties, PartWitness
from ..rotation import rotary_angles
from ..runtime import PassState, project_to_heads, softmax_core_class, vector_module
from .grouped_query import MultiHeadMixer, record_queries_keys_values

if TYPE_CHECKING:
    from torch import Tensor, nn


class RelativeAttention(MultiHeadMixer):
    """Multi-head encoder attention with Transformer-XL's relative positions.

    num_attention_heads: the number of heads.
    head_dim: the size of a head.
    bias: whether the projections of queries, keys, values and the output have a bias, false by default.
    segments: whether it has XLNet's segments and its distance of `tokens`, true by default.
    """

    witness: ClassVar[PartWitness] = TORCH_WITNESS
    allowed_stacks: ClassVar[tuple[str, ...]] = ("encoder",)

    type: Literal["relative"] = "relative"
    num_attention_heads: Heads
    head_dim: HeadDim
    bias: Flag = False
    segments: Flag = True

    @property
    def formula_source(self) -> str:
        return "Yang et al. 2019 (XLNet), §2.5" if self.segments else "Gulati et al. 2020, §2"

    def flow(self, recorder: Flow, x: Value) -> Value:
        heads, head_dim = Axis("heads", self.num_attention_heads), Axis("head_dim", self.head_dim)
        q, k, v = record_queries_keys_values(recorder, x, heads, head_dim, bias=self.bias)
        if self.segments:
            distance_rows = MultipliedRows(source_rows=x.rows, rows_per_source=2)
        else:
            distance_rows = MultipliedRows("distances", source_rows=x.rows, rows_per_source=2, extra_rows=-1)
        distance_keys = recorder.linear(
            "r_proj", recorder.sinusoids(x, distance_rows, *x.axes, is_stored=True), heads, head_dim
        )
        num_heads = q.axes[0].size
        position_q = recorder.add(q, recorder.vector("position_bias", heads, head_dim, row_count=num_heads))
        scores = ops.DistanceScores(num_heads, head_dim.size, x.rows, distance_rows)
        distance_scores = recorder.core("distances", scores, position_q, distance_keys, axes=(heads,))
        distance_index = recorder.distances(q, k, is_clamped=False, is_shifted=True)
        recorder.hold(q=q, k=k, v=v, r=distance_keys, by_distance=distance_scores, index=distance_index)
        content_q = recorder.add(q, recorder.vector("content_bias", heads, head_dim, row_count=num_heads))
        bias = recorder.scale(recorder.at_distance(distance_scores, distance_index), head_dim.size**-0.5)
        recorder.hold(q=content_q, bias=bias)
        attn_output = recorder.attention("core", content_q, k, v, causal=False, bias=bias, masked=False)
        recorder.hold(out=attn_output)
        if self.segments:
            recorder.vector("segment_bias", heads, head_dim, row_count=num_heads, role="idle")
            recorder.vector("segments", Axis("segments", 2), heads, head_dim, heads=heads, row_count=2, role="idle")
        return recorder.linear("o_proj", attn_output, *x.axes, bias=self.bias)

    def describe(self, hidden_size: int) -> str:
        return f"MHA {self.num_attention_heads} × {self.head_dim}, Transformer-XL relative"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties.hidden_size)

    @classmethod
    def examples(cls) -> list[Self]:
        return [
            cls(num_attention_heads=4, head_dim=6),
            cls(num_attention_heads=3, head_dim=10),
            cls(num_attention_heads=3, head_dim=8, bias=True, segments=False),
        ]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class DistanceKeyProducts(nn.Module):
        """Computes scores per distance. q: [batch, heads, tokens, d] → [batch, heads, tokens, distances]."""

        def forward(self, q: Tensor, distance_keys: Tensor) -> Tensor:
            return q @ distance_keys.transpose(-1, -2)

    class RelativeAttentionReference(nn.Module):
        """Attends by content and by distance. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: RelativeAttention, hidden_size: int) -> None:
            super().__init__()
            self.heads = spec.num_attention_heads
            head_dim = spec.head_dim
            heads_width = spec.num_attention_heads * spec.head_dim
            self.has_segments = spec.segments
            for projection_name in ("q_proj", "k_proj", "v_proj", "r_proj"):
                self.add_module(
                    projection_name, nn.Linear(hidden_size, heads_width, bias=spec.bias and projection_name != "r_proj")
                )
            self.content_bias, self.position_bias = (
                vector_module(torch.randn(self.heads, head_dim) * 0.02) for _ in range(2)
            )
            if spec.segments:
                self.segment_bias = vector_module(torch.randn(self.heads, head_dim) * 0.02)
                self.segments = vector_module(torch.randn(2, self.heads, head_dim) * 0.02)
            self.core, self.distances = softmax_core_class()(), DistanceKeyProducts()
            self.o_proj = nn.Linear(heads_width, hidden_size, bias=spec.bias)

        def _largest_distance(self, x: Tensor) -> int:
            """Returns the largest distance, in tokens, for which scores are computed."""
            return x.shape[1] if self.has_segments else x.shape[1] - 1

        def _encode_distances(self, pass_state: PassState, x: Tensor) -> Tensor:
            """Computes the sinusoids of all distances, the largest first: [batch, distances, hidden]."""
            hidden_size, largest_distance = x.shape[-1], self._largest_distance(x)
            angles = rotary_angles(
                largest_distance - pass_state.positions(0, largest_distance + x.shape[1], x.device),
                hidden_size,
                10000.0,
            )
            return torch.cat([angles.sin(), angles.cos()], -1)[:, :hidden_size].to(x.dtype).expand(x.shape[0], -1, -1)

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            q, k, v = (project_to_heads(self, projection_name, x) for projection_name in ("q_proj", "k_proj", "v_proj"))
            distance_keys = project_to_heads(
                self,
                "r_proj",
                pass_state.compute_once(("away", x.shape), lambda: self._encode_distances(pass_state, x)),
            )
            distance_scores = self.distances(q + self.position_bias.weight[:, None], distance_keys)
            positions = pass_state.positions(0, x.shape[1], x.device)
            distance_index = (self._largest_distance(x) - (positions[:, None] - positions[None, :])).expand(
                *q.shape[:-1], -1
            )
            q, bias = (
                q + self.content_bias.weight[:, None],
                distance_scores.gather(-1, distance_index) * q.shape[-1] ** -0.5,
            )
            attn_output = self.core(q, k, v, bias=bias)
            return self.o_proj(attn_output.transpose(1, 2).flatten(2))

    return RelativeAttentionReference
