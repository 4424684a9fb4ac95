"""Attention in chunks of tokens: in their order, or sorted by a hash of their keys (Reformer).

Kitaev et al. 2020 (arXiv:2001.04451). Hashed attention has one projection for queries and keys. transformers:
models/reformer (`LocalSelfAttention`, `LSHSelfAttention`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field

from ... import ops
from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ..base import ChunkSize, HeadDim, Heads, ModelProperties
from ..norm import Norm
from ..runtime import PassState, project_to_heads
from .grouped_query import MultiHeadMixer

if TYPE_CHECKING:
    from torch import Tensor, nn

MAX_NEIGHBOURS, MAX_HASHES, MAX_DIRECTIONS = 64, 64, 2**20


class ChunkedAttention(MultiHeadMixer):
    """Attention of each chunk of tokens to itself and its neighbours; a sequence of a single chunk has full attention.

    num_attention_heads: the number of heads.
    head_dim: the size of a head.
    chunk_length: the number of tokens in a chunk.
    chunks_before, chunks_after: the number of neighbouring chunks on each side, 0 by default.
    num_hashes: the number of hashes that sort the tokens, none for tokens in their order.
    directions: the number of random directions of one hash.
    """

    formula_source: ClassVar[str] = "Kitaev et al. 2020, §2"
    allowed_stacks: ClassVar[tuple[str, ...]] = ("encoder", "decoder")

    type: Literal["chunked"] = "chunked"
    num_attention_heads: Heads
    head_dim: HeadDim
    chunk_length: ChunkSize
    chunks_before: int = Field(default=0, ge=0, le=MAX_NEIGHBOURS, strict=True)
    chunks_after: int = Field(default=0, ge=0, le=MAX_NEIGHBOURS, strict=True)
    num_hashes: int | None = Field(default=None, ge=1, le=MAX_HASHES, strict=True)
    directions: int = Field(default=1, ge=1, le=MAX_DIRECTIONS, strict=True)

    def required_stack_fields(self) -> Mapping[str, Mapping[str, Any]]:
        return {"streams": {"type": "reversible"}}

    def cost_thresholds(self) -> tuple[int, ...]:
        return (self.chunk_length,)

    def report_label(self) -> str:
        return "chunked" if self.num_hashes is None else "hashed"

    def flow(self, recorder: Flow, x: Value) -> Value:
        heads, head_dim = Axis("heads", self.num_attention_heads), Axis("head_dim", self.head_dim)
        if self.num_hashes is None:
            q, k = (recorder.linear(projection_name, x, heads, head_dim) for projection_name in ("q_proj", "k_proj"))
        else:
            q = recorder.linear("qk_proj", x, heads, head_dim)
            k = recorder.normalized(q, Norm(type="rmsnorm", weight=False), (head_dim,))
            rotations = ops.HashRotations(
                q.axes[0].size, head_dim.size, self.num_hashes, self.directions, self.chunk_length, rows=x.rows
            )
            with recorder.scope("hashing", role="no_grad"):
                recorder.core("", rotations, q, axes=(heads,))
        v = recorder.linear("v_proj", x, heads, head_dim)
        key_limits: dict[str, Any] = {
            "chunk_tokens": self.chunk_length,
            "chunks_before": self.chunks_before,
            "chunks_after": self.chunks_after,
            "hash_count": self.num_hashes,
        }
        attn_output = recorder.attention(
            "core", q, k, v, causal=recorder.causal, core=ops.NeighbourChunkAttentionCore, **key_limits
        )
        return recorder.linear("o_proj", attn_output, *x.axes)

    def describe(self, hidden_size: int) -> str:
        hashes_text = "" if self.num_hashes is None else f", {self.num_hashes} hashes"
        return f"MHA {self.num_attention_heads} × {self.head_dim}, chunks of {self.chunk_length}{hashes_text}"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        default_spec = cls(num_attention_heads=4, head_dim=6, chunk_length=4, chunks_before=1)
        return [default_spec, default_spec.model_copy(update={"num_hashes": 2, "directions": 3, "chunks_after": 1})]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class HashOrdering(nn.Module):
        """Sorts the tokens by the hash bucket of their keys (locality-sensitive hashing).

        [batch, heads, tokens, d] → [batch, heads, hashes · tokens].
        """

        def __init__(self, spec: ChunkedAttention) -> None:
            super().__init__()
            self.hashes, self.directions = spec.num_hashes or 1, spec.directions

        @torch.no_grad()
        def forward(self, keys: Tensor) -> Tensor:
            rotations = keys.new_empty(keys.shape[1], keys.shape[3], self.hashes * self.directions).normal_()
            rotated_keys = (keys @ rotations).unflatten(-1, (self.hashes, self.directions)).permute(0, 1, 3, 2, 4)
            return torch.cat([rotated_keys, -rotated_keys], -1).argmax(-1).argsort(-1).flatten(2)

    class HashAttentionCore(nn.Module):
        """Attends within chunks. q, k, v: [batch, heads, rows, d] → same shape and the logarithm of the sums."""

        def __init__(self, spec: ChunkedAttention, causal: bool) -> None:
            super().__init__()
            self.length, self.causal = spec.chunk_length, causal
            self.neighbours = range(-spec.chunks_before, spec.chunks_after + 1)

        def forward(
            self, q: Tensor, k: Tensor, v: Tensor, positions: Tensor, has_chunks: bool
        ) -> tuple[Tensor, Tensor]:
            if has_chunks:
                q, k, v = (x.unflatten(2, (-1, self.length)) for x in (q, k, v))
                positions = positions.unflatten(-1, (-1, self.length))
                k, v = (
                    torch.cat([x.roll(-neighbour_offset, 2) for neighbour_offset in self.neighbours], 3) for x in (k, v)
                )
                key_positions = torch.cat(
                    [positions.roll(-neighbour_offset, -2) for neighbour_offset in self.neighbours], -1
                )
            else:
                key_positions = positions
            scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
            if self.causal:
                scores = scores.masked_fill(positions[..., None] < key_positions[..., None, :], -1e5)
            log_sums = torch.logsumexp(scores, -1, keepdim=True)
            attn_output = torch.exp(scores - log_sums) @ v
            return (attn_output.flatten(2, 3), log_sums.flatten(2, 3)) if has_chunks else (attn_output, log_sums)

    class ChunkedAttentionReference(nn.Module):
        """Attends within chunks of tokens. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: ChunkedAttention, model_properties: ModelProperties) -> None:
            super().__init__()
            self.heads, self.hashes, self.length = spec.num_attention_heads, spec.num_hashes, spec.chunk_length
            hidden_size, heads_width = model_properties.hidden_size, spec.num_attention_heads * spec.head_dim
            projections = ("q_proj", "k_proj", "v_proj") if spec.num_hashes is None else ("qk_proj", "v_proj")
            for projection_name in projections:
                self.add_module(projection_name, nn.Linear(hidden_size, heads_width, bias=False))
            self.names = projections
            if spec.num_hashes is not None:
                self.hashing = HashOrdering(spec)
            self.core = HashAttentionCore(spec, model_properties.is_causal)
            self.o_proj = nn.Linear(heads_width, hidden_size, bias=False)

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            q, *k, v = (project_to_heads(self, projection_name, x) for projection_name in self.names)
            token_count, has_chunks = x.shape[1], x.shape[1] > self.length
            positions = torch.arange(token_count, device=x.device).expand(*q.shape[:3])
            keys = k[0] if k else q * torch.rsqrt(q.square().mean(-1, keepdim=True) + 1e-6)
            if self.hashes is None or not has_chunks:
                attn_output, _ = self.core(q, keys, v, positions, has_chunks)
            else:
                token_order = self.hashing(q)
                token_index = token_order[..., None].expand(-1, -1, -1, q.shape[-1])
                sorted_rows = (
                    head_rows.repeat(1, 1, self.hashes, 1).gather(2, token_index % token_count)
                    for head_rows in (q, keys, v)
                )
                attn_output, log_sums = self.core(*sorted_rows, token_order % token_count, True)
                attn_output, log_sums = (
                    hashed_rows.unflatten(2, (self.hashes, token_count)) for hashed_rows in (attn_output, log_sums)
                )
                attn_output = (attn_output * torch.softmax(log_sums, 2)).sum(2)
            projected_output: Tensor = self.o_proj(attn_output.transpose(1, 2).flatten(2))
            return projected_output

    return ChunkedAttentionReference
