"""DeepSeek-V4's attention: a window of single tokens, and compressed entries for the tokens before it.

DeepSeek-V4 (2026), §2.3: one key head whose keys are also the values, a low-rank query, sinks, and an output projection
in groups. An entry is a weighted mean of compress_rate tokens, channel by channel. With overlapping windows (CSA) an
entry also covers the window before its own, and an indexer with entries of its own selects the entries that a token
attends to. Heavily compressed entries (HCA) are all attended to. transformers: models/deepseek_v4.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import model_validator

from ... import ops
from ...flow.axis import Axis, Beside, Shape
from ...flow.record import Flow
from ...flow.value import Value, Weight
from ...ops.sparse import COMPRESSED
from ...workload.rows import Rows
from ..base import (
    BY_TORCH,
    Flag,
    HeadDim,
    Heads,
    HeadSizes,
    ModelProperties,
    Part,
    PartWitness,
    QueryRank,
    RopeDim,
    TokenMixer,
    TopK,
    Unscalable,
    Width,
    Window,
)
from ..norm import Norm, norm_reference
from ..position import Rope
from ..rotation import rotate, rotate_at
from ..runtime import ForwardPass, attention_mask, cache_class, state_class, vector

if TYPE_CHECKING:
    from torch import Tensor, nn


class EntryIndexer(Part):
    """Small query heads that score a second set of compressed entries, to select entries for each token's attention.

    index_n_heads: the number of small query heads.
    index_head_dim: the size of a small query and of the indexer's entries.
    index_topk: the number of selected entries per token.
    """

    witness: ClassVar[PartWitness] = BY_TORCH

    index_n_heads: Heads
    index_head_dim: HeadDim
    index_topk: TopK


def check_head_sizes(heads: int, head_dim: int, groups: int, rope_dim: int, index_head_dim: int | None) -> None:
    """Checks that output groups divide the heads, and that rotated dimensions are even and fit into every head.

    index_head_dim: the head size of an indexer; None without one.
    """
    if heads * head_dim % groups:
        raise ValueError(f"o_groups: {groups} does not divide {heads} heads of {head_dim}")
    narrowest_head = head_dim if index_head_dim is None else min(head_dim, index_head_dim)
    if rope_dim % 2 or rope_dim > narrowest_head:
        field = "head_dim" if narrowest_head == head_dim else "index_head_dim"
        raise ValueError(f"qk_rope_head_dim: {rope_dim} is odd, or more than {field} {narrowest_head}")


class CompressedAttention(TokenMixer):
    """Attention to a window of tokens, and to entries that each summarize several earlier tokens.

    num_attention_heads: the number of query heads.
    head_dim: the size of a head.
    qk_rope_head_dim: the number of dimensions of a head with RoPE.
    q_lora_rank: the rank of the query.
    o_groups: the number of groups that the heads are projected in.
    o_lora_rank: the output width of each group; all groups together are then projected to the hidden size.
    sliding_window: the number of single tokens that each token attends to, itself included.
    compress_rate: the number of tokens per entry; by default there are no entries.
    overlap: whether an entry also covers the window before its own, false by default.
    indexer: the part that selects the entries to attend to; by default all are attended to.
    norm: the norm on the compressed query and on the keys.
    position: RoPE on queries and keys.
    """

    witness: ClassVar[PartWitness] = BY_TORCH
    node_name: ClassVar[str] = "self_attn"
    kind: ClassVar[str] = "attention"

    type: Literal["compressed"] = "compressed"
    num_attention_heads: Heads
    head_dim: HeadDim
    qk_rope_head_dim: RopeDim
    q_lora_rank: QueryRank
    o_groups: Heads
    o_lora_rank: Width
    sliding_window: Window
    compress_rate: Window | None = None
    overlap: Flag = False
    indexer: EntryIndexer | None = None
    norm: Norm = Norm(type="rmsnorm", eps=1e-6)
    position: Rope = Rope()

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        index_head_dim = None if self.indexer is None else self.indexer.index_head_dim
        check_head_sizes(self.num_attention_heads, self.head_dim, self.o_groups, self.qk_rope_head_dim, index_head_dim)
        if self.compress_rate is None and (self.overlap or self.indexer is not None):
            raise ValueError("compress_rate: missing; overlap and indexer require one")
        self.position.check_whole("qk_rope_head_dim")
        return self

    def heads(self, width: Any) -> HeadSizes:
        """The mixer's heads: all query heads share one key head, whose keys are also the values."""
        return HeadSizes(self.num_attention_heads, 1, self.head_dim)

    def trait(self) -> str:
        return "sliding"

    def window(self) -> int:
        return self.sliding_window

    def score_position(self) -> Rope:
        return self.position

    def reach(self) -> tuple[int, ...]:
        rate = self.compress_rate
        selected_tokens = None if self.indexer is None or rate is None else self.indexer.index_topk * rate
        return tuple(n for n in (self.sliding_window, rate, selected_tokens) if n is not None)

    def with_heads(self, head_sizes: HeadSizes) -> Self:
        raise Unscalable(
            "attention.type 'compressed' has ranks beside its heads (q_lora_rank, o_lora_rank); expected attention "
            "whose width depends only on its heads"
        )

    def source(self) -> str:
        return "DeepSeek-V4 2026, §2.3"

    def flow(self, recorder: Flow, x: Value) -> Value:
        """Records one softmax over the scores of tokens, entries and sinks; each core counts its own products."""
        heads, dim = Axis("heads", self.num_attention_heads), Axis("head_dim", self.head_dim)
        rope = self.position.model_copy(update={"rotary_dim": self.qk_rope_head_dim})
        without_weights = Norm(type="rmsnorm", weight=False, eps=self.norm.eps)
        compressed_query = recorder.norm(
            "q_a_norm", recorder.linear("q_a_proj", x, Axis("q_lora", self.q_lora_rank)), self.norm
        )
        q = recorder.linear("q_b_proj", compressed_query, heads, dim)
        recorder.hold(small=compressed_query, q=q)
        q = recorder.rope(recorder.normalized(q, without_weights, (dim,)), rope)
        recorder.hold(q=q)
        k = recorder.rope(recorder.norm("kv_norm", recorder.linear("kv_proj", x, dim), self.norm), rope)
        cache_kind = "sliding_attention" if self.compress_rate is None else COMPRESSED
        (k,) = recorder.cache("cache", cache_kind, k, limit=self.sliding_window)
        recorder.hold(k=k)
        recorder.mask(q, k, causal=True, window=self.sliding_window)
        scores = [recorder.scores("core", q, k, values=k, window=self.sliding_window)]
        entries: Value | None = None
        mask: Value | None = None
        if self.compress_rate is not None:
            with recorder.function():
                entries = self._all_entries(recorder, "compressor", x, dim, rope)
                recorder.hold(entries=entries)
                mask = recorder.whole_entries(q, entries, self.compress_rate)
                recorder.hold(seen=mask)
                if self.indexer is not None:
                    selection = self._selected_entries(recorder, self.indexer, x, compressed_query, mask, rope)
                    recorder.hold(chosen=selection)
                    mask, entries = recorder.among(mask, selection, entries)
            recorder.hold(entries=entries, entries_seen=mask)
            limits = {"rate": self.compress_rate, "chosen": None if self.indexer is None else self.indexer.index_topk}
            entry_options: dict[str, Any] = {
                "values": entries,
                "is_cross_attention": True,
                "core": ops.EntryScores,
                **limits,
            }
            scores.append(recorder.scores("entry_core", q, entries, **entry_options))
        attention_weights = recorder.joint_softmax(
            q, k, *scores, window=self.sliding_window, sinks=True, selection=mask
        )
        recorder.hold(shares=attention_weights)
        y = recorder.weighted(attention_weights, k)
        recorder.hold(out=y)
        if entries is not None:
            y = recorder.add(y, recorder.weighted(attention_weights, entries))
            recorder.hold(out=y)
        recorder.vector("sinks", heads)
        y = recorder.rope(y, rope, inverse=True)
        groups = Axis("output_groups", self.o_groups)
        output_groups = recorder.per_group("o_a_proj", y, groups, Axis("o_lora", self.o_lora_rank))
        return recorder.linear("o_b_proj", output_groups, *x.axes)

    def _selected_entries(
        self, recorder: Flow, indexer: EntryIndexer, x: Value, compressed_query: Value, mask: Value, rope: Rope
    ) -> Value:
        """Selects the entries for each token's attention. mask: the entries to choose from."""
        heads, dim = Axis("index_heads", indexer.index_n_heads), Axis("index_head_dim", indexer.index_head_dim)
        with recorder.scope("indexer", role="no_grad"):
            entries = self._all_entries(recorder, "compressor", x, dim, rope)
            q = recorder.linear("q_proj", compressed_query, heads, dim)
            recorder.hold(entries=entries, q=q)
            q = recorder.rope(q, rope)
            recorder.hold(q=q)
            entry_options: dict[str, Any] = {
                "is_cross_attention": True,
                "core": ops.EntryScores,
                "rate": self.compress_rate,
            }
            scores = recorder.act(
                recorder.scale(recorder.scores("core", q, entries, **entry_options), indexer.index_head_dim**-0.5),
                "relu",
            )
            return recorder.choose_entries(scores, recorder.linear("weights_proj", x, heads), mask, indexer.index_topk)

    def _all_entries(self, recorder: Flow, name: str, x: Value, dim: Axis, rope: Rope) -> Value:
        """Returns the compressed entries of all tokens so far, of width `dim`."""
        assert self.compress_rate is not None
        rate = Axis("rate", self.compress_rate)
        series: Shape = (Beside(((dim,), (dim,))),) if self.overlap else (dim,)
        with recorder.scope(name):
            projections = (
                self._entry_projection(recorder, "kv_proj", x, series),
                self._entry_projection(recorder, "gate_proj", x, series),
            )
            recorder.hold(rest_kv=projections[0], rest_gate=projections[1])
            unpooled_rows = recorder.with_rest(*projections)
            recorder.hold(rest_kv=unpooled_rows[0], rest_gate=unpooled_rows[1])
            kv, gate = (recorder.windows(series_rows, rate) for series_rows in unpooled_rows)
            gate = recorder.add(gate, recorder.vector("position_bias", rate, *series, count=rate.size))
            recorder.hold(kv=kv, gate=gate)
            if self.overlap:
                kv, gate = self._with_last_window(recorder, kv, gate, rate, dim, x.rows)
                recorder.hold(kv=kv, gate=gate)
            entries = recorder.norm("norm", recorder.weighted_mean(kv, gate), self.norm)
            recorder.hold(new=entries)
            entries = recorder.rope(entries, rope, row_stride=rate.size)
            recorder.hold(new=entries)
            op = ops.EntryCache(dim.size, rate.size, 2 * unpooled_rows[0].width, rows=x.rows)
            return recorder.keep_entries(op, entries, *unpooled_rows)

    def _with_last_window(
        self, recorder: Flow, kv: Value, gate: Value, rate: Axis, dim: Axis, tokens: Rows
    ) -> tuple[Value, Value]:
        """Concatenates each window of the second half of the features with the previous window of the first half."""
        window_rows = Beside(((rate,), (rate,)))
        with recorder.function():
            (delayed_series, current_series), (gate_delayed_series, current_gate) = (
                recorder.split(v, (rate, dim), (rate, dim)) for v in (kv, gate)
            )
            zeros = (
                recorder.zeros(delayed_series, state="last_window"),
                recorder.zeros(gate_delayed_series, state="last_window"),
            )
            first_window, first_gate = (recorder.resumed(zero, "last_window", i) for i, zero in enumerate(zeros))
            recorder.hold(first=first_window, gate_first=first_gate)
            op = ops.LastWindow(dim.size, rate.size, rows=tokens)
            recorder.record("state", "last_window", (delayed_series, gate_delayed_series), op=op)
            delayed_window = recorder.delayed(delayed_series, first_window)
            delayed_gate = recorder.delayed(gate_delayed_series, first_gate)
            recorder.hold(late=delayed_window, gate_late=delayed_gate)
            return recorder.cat(delayed_window, current_series, axes=(window_rows, dim)), recorder.cat(
                delayed_gate, current_gate, axes=(window_rows, dim)
            )

    def _entry_projection(self, recorder: Flow, name: str, x: Value, out: Shape) -> Value:
        """Records a projection from which compressed entries are computed."""
        assert self.compress_rate is not None
        op = ops.EntryLinear(x.width, recorder.n(out), rows=x.rows, rate=self.compress_rate)
        weight = Weight(name, out, x.axes)
        return recorder.step("linear", name, (x,), Value(x.rows, out), op=op, weight=weight, bias=False)

    def describe(self, hidden_size: int) -> str:
        entries = "" if self.compress_rate is None else f", entries of {self.compress_rate} tokens"
        selection_text = "" if self.indexer is None else f", {self.indexer.index_topk} of them"
        return (
            f"MQA {self.num_attention_heads} × {self.head_dim}, window {self.sliding_window}{entries}{selection_text}"
        )

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        base = cls(
            num_attention_heads=4,
            head_dim=8,
            qk_rope_head_dim=4,
            q_lora_rank=10,
            o_groups=2,
            o_lora_rank=6,
            sliding_window=5,
        )
        indexer = EntryIndexer(index_n_heads=3, index_head_dim=6, index_topk=2)
        return [
            base,
            base.model_copy(update={"compress_rate": 4, "o_groups": 4}),
            base.model_copy(update={"compress_rate": 2, "overlap": True, "indexer": indexer}),
        ]


@cache
def single_key_core_class() -> type[nn.Module]:
    from torch import nn

    class Core(nn.Module):
        """Attention scores of several query heads with a single key head.

        Given attention weights, it returns the weighted sum of the values, which are the keys.
        """

        def forward(self, q: Tensor, k: Tensor, attention_weights: Tensor | None = None) -> Tensor:
            return q @ k[:, None].transpose(-1, -2) if attention_weights is None else attention_weights @ k[:, None]

    return Core


@cache
def group_map_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class GroupMap(nn.Module):
        """A separate linear layer per group. x: [batch, tokens, groups, n_in] → [.., n_out]."""

        def __init__(self, groups: int, n_in: int, n_out: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.empty(groups, n_out, n_in))
            nn.init.normal_(self.weight, std=n_in**-0.5)

        def forward(self, x: Tensor) -> Tensor:
            rows = x.flatten(0, 1).transpose(0, 1)
            return torch.bmm(rows, self.weight.transpose(1, 2)).transpose(0, 1).unflatten(0, x.shape[:2])

    return GroupMap


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class Compressor(nn.Module):
        """Compresses tokens into entries. x: [batch, tokens, hidden] → all entries so far, [batch, entries, width]."""

        def __init__(self, spec: CompressedAttention, hidden: int, width: int) -> None:
            super().__init__()
            assert spec.compress_rate is not None
            self.rate = spec.compress_rate
            self.width = width
            self.rope = spec.qk_rope_head_dim
            self.theta = spec.position.rope_theta
            series = 2 * width if spec.overlap else width
            self.kv_proj, self.gate_proj = nn.Linear(hidden, series, bias=False), nn.Linear(hidden, series, bias=False)
            self.position_bias = vector(torch.zeros(self.rate, series))
            self.norm = norm_reference(spec.norm, width)
            self.cache: Any = state_class()()
            self.last_window: Any = state_class()() if spec.overlap else None

        def _with_last_window(self, kv: Tensor, gate: Tensor, forward_pass: ForwardPass) -> tuple[Tensor, Tensor]:
            """Concatenates each window of the second half of x with the previous window of the first half.

            [batch, windows, rate, 2·width] → [batch, windows, 2·rate, width].
            """
            assert self.last_window is not None
            (delayed_series, current_series), (gate_delayed_series, current_gate) = kv.chunk(2, -1), gate.chunk(2, -1)
            stored_window = self.last_window.load(forward_pass)
            first_window = (
                (torch.zeros_like(delayed_series[:, :1]), torch.full_like(gate_delayed_series[:, :1], float("-inf")))
                if stored_window is None
                else tuple(t[:, None] for t in stored_window)
            )
            self.last_window.keep(forward_pass, delayed_series[:, -1], gate_delayed_series[:, -1])
            delayed_window = (
                torch.cat([first_window[0], delayed_series[:, :-1]], 1),
                torch.cat([first_window[1], gate_delayed_series[:, :-1]], 1),
            )
            return torch.cat([delayed_window[0], current_series], 2), torch.cat([delayed_window[1], current_gate], 2)

        def forward(self, x: Tensor, forward_pass: ForwardPass) -> Tensor:
            kv, gate, stored_rows = self.kv_proj(x), self.gate_proj(x), self.cache.load(forward_pass)
            entries: Tensor | None = None
            if stored_rows is not None:
                entries, kv, gate = (
                    stored_rows[0],
                    torch.cat([stored_rows[1], kv], 1),
                    torch.cat([stored_rows[2], gate], 1),
                )
            windows = kv.shape[1] // self.rate
            window_tokens = windows * self.rate
            unpooled_rows = kv[:, window_tokens:], gate[:, window_tokens:]
            if windows:
                kv, gate = (t[:, :window_tokens].unflatten(1, (windows, self.rate)) for t in (kv, gate))
                gate = gate + self.position_bias.weight
                if self.last_window is not None:
                    kv, gate = self._with_last_window(kv, gate, forward_pass)
                new_entries = self.norm((kv * gate.float().softmax(2).to(kv.dtype)).sum(2))
                first_entry = 0 if entries is None else entries.shape[1]
                positions = (torch.arange(windows, device=x.device) + first_entry) * self.rate
                new_entries = rotate_at(new_entries, positions, self.rope, self.theta)
                entries = new_entries if entries is None else torch.cat([entries, new_entries], 1)
            if entries is None:
                entries = kv.new_zeros(kv.shape[0], 0, self.width)
            self.cache.keep(forward_pass, entries, *unpooled_rows)
            return entries

    class Chooser(nn.Module):
        """Selects the entries that each token attends to, [batch, tokens, index_topk at most]."""

        def __init__(self, spec: CompressedAttention, hidden: int) -> None:
            super().__init__()
            assert spec.indexer is not None
            self.spec, self.heads, self.topk = spec, spec.indexer.index_n_heads, spec.indexer.index_topk
            self.compressor = Compressor(spec, hidden, spec.indexer.index_head_dim)
            self.q_proj = nn.Linear(spec.q_lora_rank, self.heads * spec.indexer.index_head_dim, bias=False)
            self.weights_proj, self.core = nn.Linear(hidden, self.heads, bias=False), single_key_core_class()()

        @torch.no_grad()
        def forward(
            self, x: Tensor, compressed_query: Tensor, allowed_entries: Tensor, forward_pass: ForwardPass
        ) -> Tensor:
            entries = self.compressor(x, forward_pass)
            q = self.q_proj(compressed_query).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            q = rotate(q, forward_pass, forward_pass.past, self.spec.qk_rope_head_dim, self.spec.position.rope_theta)
            scores = torch.relu(self.core(q, entries) * q.shape[-1] ** -0.5)
            scores = (scores * self.weights_proj(x).transpose(1, 2)[..., None]).sum(1).float()
            ranked_entries = (
                scores.masked_fill(~allowed_entries, float("-inf")).sort(dim=-1, descending=True, stable=True).indices
            )
            return ranked_entries[..., : self.topk]

    class CompressedAttentionReference(nn.Module):
        """DeepSeek-V4's attention. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: CompressedAttention, model_properties: ModelProperties) -> None:
            super().__init__()
            self.spec, hidden, width = spec, model_properties.hidden_size, spec.num_attention_heads * spec.head_dim
            self.q_a_proj = nn.Linear(hidden, spec.q_lora_rank, bias=False)
            self.q_a_norm = norm_reference(spec.norm, spec.q_lora_rank)
            self.unit = norm_reference(Norm(type="rmsnorm", weight=False, eps=spec.norm.eps), spec.head_dim)
            self.q_b_proj = nn.Linear(spec.q_lora_rank, width, bias=False)
            self.kv_proj = nn.Linear(hidden, spec.head_dim, bias=False)
            self.kv_norm = norm_reference(spec.norm, spec.head_dim)
            self.core, self.cache = single_key_core_class()(), cache_class()(spec.sliding_window)
            self.sinks = vector(torch.zeros(spec.num_attention_heads))
            self.o_a_proj = group_map_class()(spec.o_groups, width // spec.o_groups, spec.o_lora_rank)
            self.o_b_proj = nn.Linear(spec.o_groups * spec.o_lora_rank, hidden, bias=False)
            if spec.compress_rate is not None:
                self.compressor, self.entry_core = Compressor(spec, hidden, spec.head_dim), single_key_core_class()()
            if spec.indexer is not None:
                self.indexer = Chooser(spec, hidden)

        def _rotate(self, x: Tensor, forward_pass: ForwardPass, inverse: bool = False) -> Tensor:
            return rotate(
                x, forward_pass, forward_pass.past, self.spec.qk_rope_head_dim, self.spec.position.rope_theta, inverse
            )

        def _entries_and_mask(
            self, x: Tensor, compressed_query: Tensor, forward_pass: ForwardPass
        ) -> tuple[Tensor, Tensor]:
            """Returns the entries and the mask of those that each token attends to, [.., tokens, entries]."""
            spec, end = self.spec, forward_pass.past + x.shape[1]
            assert spec.compress_rate is not None
            entries = self.compressor(x, forward_pass)
            complete_entries = (forward_pass.span(forward_pass.past, end, x.device) + 1) // spec.compress_rate
            allowed_entries = torch.arange(entries.shape[1], device=x.device)[None] < complete_entries[:, None]
            if spec.indexer is None:
                return entries, allowed_entries
            selected_entries = self.indexer(x, compressed_query, allowed_entries, forward_pass)
            if forward_pass.past and x.shape[1] == 1:  # decoding one token reads only the selected entries
                return entries.gather(
                    1, selected_entries[:, 0, :, None].expand(-1, -1, entries.shape[-1])
                ), allowed_entries[:, : selected_entries.shape[-1]]
            selected_mask = (
                torch.zeros_like(allowed_entries).expand(x.shape[0], -1, -1).scatter(-1, selected_entries, True)
            )
            return entries, (allowed_entries & selected_mask)[:, None]

        def forward(self, x: Tensor, forward_pass: ForwardPass) -> Tensor:
            spec = self.spec
            compressed_query = self.q_a_norm(self.q_a_proj(x))
            q = self.q_b_proj(compressed_query).unflatten(-1, (spec.num_attention_heads, -1)).transpose(1, 2)
            q = self._rotate(self.unit(q), forward_pass)
            (k,) = self.cache(forward_pass, self._rotate(self.kv_norm(self.kv_proj(x)), forward_pass))
            end, keys = forward_pass.past + x.shape[1], k.shape[1]
            mask = attention_mask(
                forward_pass, end, x.shape[1], keys, x.device, causal=True, window=spec.sliding_window
            )
            scores, entries, allowed_mask = self.core(q, k), None, mask
            if spec.compress_rate is not None:
                entries, entry_mask = self._entries_and_mask(x, compressed_query, forward_pass)
                scores = torch.cat([scores, self.entry_core(q, entries)], -1)
            scores = scores * spec.head_dim**-0.5
            if entries is not None:
                allowed_mask = torch.cat([mask.expand(*entry_mask.shape[:-1], -1), entry_mask], -1)
            sink = self.sinks.weight[None, :, None, None].expand(*scores.shape[:-1], 1).to(scores.dtype)
            scores = scores.masked_fill(~allowed_mask, float("-inf"))
            attention_weights = torch.cat([scores, sink], -1).float().softmax(-1)[..., :-1].to(k.dtype)
            out = self.core(q, k, attention_weights[..., :keys])
            if entries is not None:
                out = out + self.entry_core(q, entries, attention_weights[..., keys:])
            out = (
                self._rotate(out, forward_pass, inverse=True)
                .transpose(1, 2)
                .flatten(2)
                .unflatten(-1, (spec.o_groups, -1))
            )
            return self.o_b_proj(self.o_a_proj(out).flatten(2))

    return CompressedAttentionReference
