"""The base of DeepSeek-V4's attention: keys of a recent window, and compressed keys and values of earlier tokens.

DeepSeek-V4 (2026), §2.3: one key head whose keys are also the values, a low-rank query, sinks, and an output projection
in groups. One softmax covers tokens and entries. transformers: models/deepseek_v4.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Self

from ... import ops
from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ...ops.sparse import COMPRESSED_CACHE_KIND
from ..base import (
    TORCH_WITNESS,
    HeadDim,
    Heads,
    HeadSizes,
    InnerWidth,
    ModelProperties,
    Part,
    PartWitness,
    QueryRank,
    RopeDim,
    TokenMixer,
    TopK,
    UnscalableError,
    Window,
)
from ..norm import Norm, norm_reference
from ..rope import Rope
from ..rotation import rotate
from ..runtime import PassState, append_sink_scores, attention_mask, tensor_cache_class, vector_module

if TYPE_CHECKING:
    from torch import Tensor, nn


class CompressedKVIndexer(Part):
    """Small query heads that score compressed keys, and select some of them for each token's attention.

    index_n_heads: the number of small query heads.
    index_head_dim: the size of a small query, and of the vectors that it is compared with.
    index_topk: the number of selected entries per token.
    """

    witness: ClassVar[PartWitness] = TORCH_WITNESS

    index_n_heads: Heads
    index_head_dim: HeadDim
    index_topk: TopK


class CompressedKVAttention(TokenMixer):
    """Attention to a window of recent tokens, and to compressed keys and values that each summarize several tokens.

    num_attention_heads: the number of query heads.
    head_dim: the size of a head.
    qk_rope_head_dim: the number of dimensions of a head with RoPE.
    q_lora_rank: the rank of the query.
    o_groups: the number of groups that the heads are projected in.
    o_lora_rank: the output width of each group; all groups together are then projected to the hidden size.
    sliding_window: the number of single tokens that each token attends to, itself included.
    compress_rate: the number of tokens per entry; by default there are no entries.
    indexer: the part that selects the entries to attend to.
    norm: the norm on the compressed query, on keys and on entries.
    position: RoPE on queries and keys.
    """

    num_attention_heads: Heads
    head_dim: HeadDim
    qk_rope_head_dim: RopeDim
    q_lora_rank: QueryRank
    o_groups: Heads
    o_lora_rank: InnerWidth
    sliding_window: Window
    compress_rate: Window | None = None
    indexer: CompressedKVIndexer | None = None
    norm: Norm = Norm(type="rmsnorm", eps=1e-6)
    position: Rope = Rope()

    def check_fields(self) -> None:
        heads, head_dim = self.num_attention_heads, self.head_dim
        if heads * head_dim % self.o_groups:
            raise ValueError(f"o_groups: {self.o_groups} does not divide {heads} heads of {head_dim}")
        smallest_head_dim = head_dim if self.indexer is None else min(head_dim, self.indexer.index_head_dim)
        if self.qk_rope_head_dim % 2 or self.qk_rope_head_dim > smallest_head_dim:
            field_name = "head_dim" if smallest_head_dim == head_dim else "index_head_dim"
            raise ValueError(
                f"qk_rope_head_dim: {self.qk_rope_head_dim} is odd, or more than {field_name} {smallest_head_dim}"
            )
        self.position.check_full_rotation()

    def head_sizes(self, hidden_size: Any) -> HeadSizes:
        """The sizes of the mixer's heads: all query heads share one key head, whose keys are also the values."""
        return HeadSizes(self.num_attention_heads, 1, self.head_dim)

    def report_label(self) -> str:
        return "sliding"

    def window_size(self) -> int:
        return self.sliding_window

    def score_position_encoding(self) -> Rope:
        return self.position

    @property
    def max_selected_keys(self) -> int | None:
        """The largest number of compressed keys that a token attends to; None without compression or a limit."""
        return None if self.indexer is None else self.indexer.index_topk

    def cost_thresholds(self) -> tuple[int, ...]:
        compress_rate, max_compressed_keys = self.compress_rate, self.max_selected_keys
        selected_tokens = (
            None if compress_rate is None or max_compressed_keys is None else compress_rate * max_compressed_keys
        )
        return tuple(length for length in (self.sliding_window, compress_rate, selected_tokens) if length is not None)

    def with_heads(self, head_sizes: HeadSizes) -> Self:
        raise UnscalableError(
            f"attention.type '{type(self).model_fields['type'].default}' has ranks beside its heads (q_lora_rank, "
            "o_lora_rank); expected attention whose width depends only on its heads"
        )

    def flow(self, recorder: Flow, x: Value) -> Value:
        """Records one softmax over the scores of tokens, compressed keys and sinks, which have separate products."""
        heads, head_dim = Axis("heads", self.num_attention_heads), Axis("head_dim", self.head_dim)
        rope = self.position.model_copy(update={"rotary_dim": self.qk_rope_head_dim})
        compressed_query = recorder.norm(
            "q_a_norm", recorder.linear("q_a_proj", x, Axis("q_lora", self.q_lora_rank)), self.norm
        )
        q = recorder.linear("q_b_proj", compressed_query, heads, head_dim)
        recorder.hold(small=compressed_query, q=q)
        q = recorder.rope(self._normed_query(recorder, q, head_dim), rope)
        recorder.hold(q=q)
        k = recorder.rope(recorder.norm("kv_norm", recorder.linear("kv_proj", x, head_dim), self.norm), rope)
        cache_kind = "sliding_attention" if self.compress_rate is None else COMPRESSED_CACHE_KIND
        (k,) = recorder.cache("cache", cache_kind, k, token_limit=self.sliding_window)
        recorder.hold(k=k)
        recorder.mask(q, k, causal=True, window=self.sliding_window)
        scores = [recorder.scores("core", q, k, values=k, window=self.sliding_window)]
        compressed_kv: Value | None = None
        mask: Value | None = None
        if self.compress_rate is not None:
            with recorder.function():
                mask, compressed_kv = self._mask_and_compressed_kv(recorder, x, compressed_query, q, head_dim, rope)
            recorder.hold(entries=compressed_kv, entries_seen=mask)
            key_limit_arguments: dict[str, Any] = {
                "tokens_per_entry": self.compress_rate,
                "chosen_entries": self.max_selected_keys,
            }
            scores.append(
                recorder.scores(
                    "entry_core",
                    q,
                    compressed_kv,
                    values=compressed_kv,
                    is_cross_attention=True,
                    core=ops.CompressedKVAttentionCore,
                    **key_limit_arguments,
                )
            )
        attention_weights = recorder.joint_softmax(
            q, k, *scores, window=self.sliding_window, sinks=True, selection=mask
        )
        recorder.hold(shares=attention_weights)
        attn_output = recorder.weighted(attention_weights, k)
        recorder.hold(out=attn_output)
        if compressed_kv is not None:
            attn_output = recorder.add(attn_output, recorder.weighted(attention_weights, compressed_kv))
            recorder.hold(out=attn_output)
        recorder.vector("sinks", heads)
        attn_output = recorder.rope(attn_output, rope, is_inverse=True)
        group_axis = Axis("output_groups", self.o_groups)
        output_groups = recorder.per_group("o_a_proj", attn_output, group_axis, Axis("o_lora", self.o_lora_rank))
        return recorder.linear("o_b_proj", output_groups, *x.axes)

    def _normed_query(self, recorder: Flow, q: Value, head_dim: Axis) -> Value:
        """Returns all heads' queries before RoPE; subclasses may apply a norm."""
        return q

    def _mask_and_compressed_kv(
        self, recorder: Flow, x: Value, compressed_query: Value, q: Value, head_dim: Axis, rope: Rope
    ) -> tuple[Value, Value]:
        """Returns the mask of the compressed keys that each token attends to, and the compressed keys."""
        raise TypeError(f"{type(self).__name__} computes no entries")

    @property
    def compressed_kv_name(self) -> str:
        """The word for compressed keys in headings of reports, such as `entries`."""
        return "entries"

    def describe(self, hidden_size: int) -> str:
        entries_text = (
            "" if self.compress_rate is None else f", {self.compressed_kv_name} of {self.compress_rate} tokens"
        )
        selection_text = "" if self.max_selected_keys is None else f", {self.max_selected_keys} of them"
        heading = f"MQA {self.num_attention_heads} × {self.head_dim}, window {self.sliding_window}"
        return heading + entries_text + selection_text


@cache
def single_key_core_class() -> type[nn.Module]:
    from torch import nn

    class SingleKeyScores(nn.Module):
        """Attention scores of several query heads with a single key head.

        Given attention weights, it returns the weighted sum of the values, which are the keys.
        """

        def forward(self, q: Tensor, k: Tensor, attention_weights: Tensor | None = None) -> Tensor:
            return q @ k[:, None].transpose(-1, -2) if attention_weights is None else attention_weights @ k[:, None]

    return SingleKeyScores


@cache
def grouped_linear_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class GroupedLinear(nn.Module):
        """Applies a separate linear layer per group. x: [batch, tokens, groups, in_features] → [.., out_features]."""

        def __init__(self, group_count: int, in_features: int, out_features: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.empty(group_count, out_features, in_features))
            nn.init.normal_(self.weight, std=in_features**-0.5)

        def forward(self, x: Tensor) -> Tensor:
            group_rows = x.flatten(0, 1).transpose(0, 1)
            return torch.bmm(group_rows, self.weight.transpose(1, 2)).transpose(0, 1).unflatten(0, x.shape[:2])

    return GroupedLinear


@cache
def compressed_kv_attention_class() -> Any:
    """Returns the base class of PyTorch references for attention to compressed keys, which subclasses compute."""
    import torch
    from torch import nn

    class CompressedKVAttentionReference(nn.Module):
        """Attends to recent tokens and compressed keys. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: CompressedKVAttention, model_properties: ModelProperties) -> None:
            super().__init__()
            self.spec = spec
            hidden_size = model_properties.hidden_size
            heads_width = spec.num_attention_heads * spec.head_dim
            self.q_a_proj = nn.Linear(hidden_size, spec.q_lora_rank, bias=False)
            self.q_a_norm, self.unit = norm_reference(spec.norm, spec.q_lora_rank), nn.Identity()
            self.q_b_proj = nn.Linear(spec.q_lora_rank, heads_width, bias=False)
            self.kv_proj = nn.Linear(hidden_size, spec.head_dim, bias=False)
            self.kv_norm = norm_reference(spec.norm, spec.head_dim)
            self.core, self.cache = single_key_core_class()(), tensor_cache_class()(spec.sliding_window)
            self.sinks = vector_module(torch.zeros(spec.num_attention_heads))
            self.o_a_proj = grouped_linear_class()(spec.o_groups, heads_width // spec.o_groups, spec.o_lora_rank)
            self.o_b_proj = nn.Linear(spec.o_groups * spec.o_lora_rank, hidden_size, bias=False)
            if spec.compress_rate is not None:
                self.entry_core = single_key_core_class()()

        def _rotate(self, x: Tensor, pass_state: PassState, is_inverse: bool = False) -> Tensor:
            rope_dim, rope_theta = self.spec.qk_rope_head_dim, self.spec.position.rope_theta
            return rotate(x, pass_state, pass_state.past_tokens, rope_dim, rope_theta, is_inverse)

        def _compressed_kv_and_mask(
            self, x: Tensor, compressed_query: Tensor, pass_state: PassState
        ) -> tuple[Tensor, Tensor]:
            """Returns the compressed keys, and the mask [.., tokens, keys] of the keys that each token attends to."""
            raise NotImplementedError

        def _count_visible_keys(self, x: Tensor, pass_state: PassState) -> Tensor:
            """Returns for each token the number of compressed keys that summarize only tokens up to it."""
            spec, end_position = self.spec, pass_state.past_tokens + x.shape[1]
            assert spec.compress_rate is not None
            return (pass_state.positions(pass_state.past_tokens, end_position, x.device) + 1) // spec.compress_rate

        def _selected_compressed_kv(
            self, x: Tensor, compressed_kv: Tensor, is_visible: Tensor, selection: Tensor, pass_state: PassState
        ) -> tuple[Tensor, Tensor]:
            """Returns the compressed keys to read, and the mask of those that are selected for each token."""
            if pass_state.past_tokens and x.shape[1] == 1:  # decoding one token reads only the selected entries
                gather_index = selection[:, 0, :, None].expand(-1, -1, compressed_kv.shape[-1])
                return compressed_kv.gather(1, gather_index), is_visible[:, : selection.shape[-1]]
            selected_mask = torch.zeros_like(is_visible).expand(x.shape[0], -1, -1).scatter(-1, selection, True)
            return compressed_kv, (is_visible & selected_mask)[:, None]

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            spec = self.spec
            compressed_query = self.q_a_norm(self.q_a_proj(x))
            q = self.q_b_proj(compressed_query).unflatten(-1, (spec.num_attention_heads, -1)).transpose(1, 2)
            q = self._rotate(self.unit(q), pass_state)
            (k,) = self.cache(pass_state, self._rotate(self.kv_norm(self.kv_proj(x)), pass_state))
            key_count = k.shape[1]
            mask = attention_mask(pass_state, x, k, causal=True, window=spec.sliding_window)
            scores, compressed_kv, allowed_mask = self.core(q, k), None, mask
            if spec.compress_rate is not None:
                compressed_kv, compressed_mask = self._compressed_kv_and_mask(x, compressed_query, pass_state)
                scores = torch.cat([scores, self.entry_core(q, compressed_kv)], -1)
            scores = scores * spec.head_dim**-0.5
            if compressed_kv is not None:
                allowed_mask = torch.cat([mask.expand(*compressed_mask.shape[:-1], -1), compressed_mask], -1)
            scores = scores.masked_fill(~allowed_mask, float("-inf"))
            attention_weights = append_sink_scores(scores, self.sinks.weight).softmax(-1)[..., :-1]
            attn_output = self.core(q, k, attention_weights[..., :key_count])
            if compressed_kv is not None:
                attn_output = attn_output + self.entry_core(q, compressed_kv, attention_weights[..., key_count:])
            attn_output = (
                self._rotate(attn_output, pass_state, is_inverse=True)
                .transpose(1, 2)
                .flatten(2)
                .unflatten(-1, (spec.o_groups, -1))
            )
            return self.o_b_proj(self.o_a_proj(attn_output).flatten(2))

    return CompressedKVAttentionReference


@cache
def compressed_kv_selector_class() -> Any:
    """Returns the base class of PyTorch modules that select compressed keys for each token."""
    from torch import nn

    class CompressedKVSelector(nn.Module):
        """Returns indices of the compressed keys that each token attends to, [batch, tokens, index_topk at most]."""

        def __init__(self, spec: CompressedKVAttention, hidden_size: int) -> None:
            super().__init__()
            assert spec.indexer is not None
            self.spec, self.heads, self.topk = spec, spec.indexer.index_n_heads, spec.indexer.index_topk
            self.q_proj = nn.Linear(spec.q_lora_rank, self.heads * spec.indexer.index_head_dim, bias=False)
            self.weights_proj, self.core = nn.Linear(hidden_size, self.heads, bias=False), single_key_core_class()()

    return CompressedKVSelector
