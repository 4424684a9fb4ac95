"""DeepSeek-V4's attention: single keys for a window of recent tokens, and compressed keys for earlier tokens.

DeepSeek-V4 (2026), §2.3: one key head whose keys are also the values, a low-rank query, sinks, and an output projection
in groups. An entry is a weighted mean of compress_rate tokens, channel by channel. With overlapping windows (CSA) an
entry also covers the window before its own, and an indexer with entries of its own selects the entries that a token
attends to. Heavily compressed entries (HCA) are all attended to. transformers: models/deepseek_v4.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from ... import ops
from ...flow.axis import Axis, JoinedShapes, Shape
from ...flow.record import Flow
from ...flow.value import Value, Weight
from ...workload.rows import Rows
from ..base import TORCH_WITNESS, Flag, ModelProperties, PartWitness
from ..norm import Norm, norm_reference
from ..rope import Rope
from ..rotation import rotate, rotate_at
from ..runtime import PassState, recurrent_state_class, vector_module
from .compressed_kv import (
    CompressedKVAttention,
    CompressedKVIndexer,
    compressed_kv_attention_class,
    compressed_kv_selector_class,
)

if TYPE_CHECKING:
    from torch import Tensor, nn


class CompressedAttention(CompressedKVAttention):
    """Attention to a window of recent tokens, and to compressed keys and values, each of several earlier tokens.

    overlap: whether an entry also covers the window before its own, false by default.
    indexer: the part that selects the entries to attend to; by default all are attended to.
    """

    formula_source: ClassVar[str] = "DeepSeek-V4 2026, §2.3"
    witness: ClassVar[PartWitness] = TORCH_WITNESS

    type: Literal["compressed"] = "compressed"
    overlap: Flag = False

    def check_fields(self) -> None:
        super().check_fields()
        if self.compress_rate is None and (self.overlap or self.indexer is not None):
            raise ValueError("compress_rate: missing; overlap and indexer require one")

    def _normed_query(self, recorder: Flow, q: Value, head_dim: Axis) -> Value:
        return recorder.normalized(q, Norm(type="rmsnorm", weight=False, scales_x=True, eps=self.norm.eps), (head_dim,))

    def _mask_and_compressed_kv(
        self, recorder: Flow, x: Value, compressed_query: Value, q: Value, head_dim: Axis, rope: Rope
    ) -> tuple[Value, Value]:
        assert self.compress_rate is not None
        compressed_kv = self._all_compressed_kv(recorder, x, head_dim, rope)
        recorder.hold(entries=compressed_kv)
        mask = recorder.whole_entries(q, compressed_kv, self.compress_rate)
        recorder.hold(seen=mask)
        if self.indexer is None:
            return mask, compressed_kv
        selection = self._selected_compressed_kv(recorder, self.indexer, x, compressed_query, mask, rope)
        recorder.hold(chosen=selection)
        return recorder.among(mask, selection, compressed_kv)

    def _selected_compressed_kv(
        self, recorder: Flow, indexer: CompressedKVIndexer, x: Value, compressed_query: Value, mask: Value, rope: Rope
    ) -> Value:
        """Returns the mask of the compressed keys that the indexer selects per token. mask: the visible keys."""
        heads, index_dim = Axis("index_heads", indexer.index_n_heads), Axis("index_head_dim", indexer.index_head_dim)
        with recorder.scope("indexer", role="no_grad"):
            compressed_kv = self._all_compressed_kv(recorder, x, index_dim, rope)
            q = recorder.linear("q_proj", compressed_query, heads, index_dim)
            recorder.hold(entries=compressed_kv, q=q)
            q = recorder.rope(q, rope)
            recorder.hold(q=q)
            score_options: dict[str, Any] = {
                "is_cross_attention": True,
                "core": ops.CompressedKVAttentionCore,
                "tokens_per_entry": self.compress_rate,
            }
            scores = recorder.act(
                recorder.scale(
                    recorder.scores("core", q, compressed_kv, **score_options), indexer.index_head_dim**-0.5
                ),
                "relu",
            )
            return recorder.choose_entries(scores, recorder.linear("weights_proj", x, heads), mask, indexer.index_topk)

    def _all_compressed_kv(self, recorder: Flow, x: Value, head_dim: Axis, rope: Rope) -> Value:
        """Returns the compressed keys of all tokens so far, each of width `head_dim`."""
        assert self.compress_rate is not None
        rate_axis = Axis("rate", self.compress_rate)
        series_axes: Shape = (JoinedShapes(((head_dim,), (head_dim,))),) if self.overlap else (head_dim,)
        with recorder.scope("compressor"):
            projections = (
                self._compression_projection(recorder, "kv_proj", x, series_axes),
                self._compression_projection(recorder, "gate_proj", x, series_axes),
            )
            recorder.hold(rest_kv=projections[0], rest_gate=projections[1])
            pending_rows = recorder.with_unpooled_rows(*projections)
            recorder.hold(rest_kv=pending_rows[0], rest_gate=pending_rows[1])
            kv, gate = (recorder.windows(series_rows, rate_axis) for series_rows in pending_rows)
            gate = recorder.add(
                gate, recorder.vector("position_bias", rate_axis, *series_axes, row_count=rate_axis.size)
            )
            recorder.hold(kv=kv, gate=gate)
            if self.overlap:
                kv, gate = self._join_previous_window(recorder, kv, gate, rate_axis, head_dim, x.rows)
                recorder.hold(kv=kv, gate=gate)
            compressed_kv = recorder.norm("norm", recorder.weighted_mean(kv, gate), self.norm)
            recorder.hold(new=compressed_kv)
            compressed_kv = recorder.rope(compressed_kv, rope, row_stride=rate_axis.size)
            recorder.hold(new=compressed_kv)
            op = ops.CompressedKVCache(head_dim.size, rate_axis.size, 2 * pending_rows[0].width, rows=x.rows)
            return recorder.keep_entries(op, compressed_kv, *pending_rows)

    def _join_previous_window(
        self, recorder: Flow, kv: Value, gate: Value, rate_axis: Axis, head_dim: Axis, token_rows: Rows
    ) -> tuple[Value, Value]:
        """Joins the second half of the features of each token window with the first half of the previous window."""
        window_axes = JoinedShapes(((rate_axis,), (rate_axis,)))
        with recorder.function():
            (delayed_series, current_series), (delayed_gate_series, current_gate_series) = (
                recorder.split(window_value, (rate_axis, head_dim), (rate_axis, head_dim))
                for window_value in (kv, gate)
            )
            zero_windows = (
                recorder.zeros(delayed_series, state_name="last_window"),
                recorder.zeros(delayed_gate_series, state_name="last_window"),
            )
            first_window, first_gate = (
                recorder.resumed(zero_window, "last_window", tensor_index)
                for tensor_index, zero_window in enumerate(zero_windows)
            )
            recorder.hold(first=first_window, gate_first=first_gate)
            op = ops.PendingTokenCache(head_dim.size, rate_axis.size, rows=token_rows)
            recorder.record("state", "last_window", (delayed_series, delayed_gate_series), op=op)
            delayed_window = recorder.delayed(delayed_series, first_window)
            delayed_gate = recorder.delayed(delayed_gate_series, first_gate)
            recorder.hold(late=delayed_window, gate_late=delayed_gate)
            return recorder.cat(delayed_window, current_series, axes=(window_axes, head_dim)), recorder.cat(
                delayed_gate, current_gate_series, axes=(window_axes, head_dim)
            )

    def _compression_projection(self, recorder: Flow, projection_name: str, x: Value, output_axes: Shape) -> Value:
        """Records the operations of a projection from which compressed keys are computed."""
        assert self.compress_rate is not None
        op = ops.CompressionLinear(
            x.width, recorder.element_count(output_axes), rows=x.rows, tokens_per_entry=self.compress_rate
        )
        weight = Weight(projection_name, output_axes, x.axes)
        return recorder.step(
            "linear", projection_name, (x,), Value(x.rows, output_axes), op=op, weight=weight, bias=False
        )

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        default_spec = cls(
            num_attention_heads=4,
            head_dim=8,
            qk_rope_head_dim=4,
            q_lora_rank=10,
            o_groups=2,
            o_lora_rank=6,
            sliding_window=5,
        )
        indexer = CompressedKVIndexer(index_n_heads=3, index_head_dim=6, index_topk=2)
        return [
            default_spec,
            default_spec.model_copy(update={"compress_rate": 4, "o_groups": 4}),
            default_spec.model_copy(update={"compress_rate": 2, "overlap": True, "indexer": indexer}),
        ]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class KVCompressor(nn.Module):
        """Compresses tokens into keys. x: [batch, tokens, hidden] → all compressed keys, [batch, keys, width]."""

        def __init__(self, spec: CompressedAttention, hidden_size: int, key_width: int) -> None:
            super().__init__()
            assert spec.compress_rate is not None
            self.rate = spec.compress_rate
            self.width = key_width
            self.rope = spec.qk_rope_head_dim
            self.theta = spec.position.rope_theta
            series_width = 2 * key_width if spec.overlap else key_width
            self.kv_proj = nn.Linear(hidden_size, series_width, bias=False)
            self.gate_proj = nn.Linear(hidden_size, series_width, bias=False)
            self.position_bias = vector_module(torch.zeros(self.rate, series_width))
            self.norm = norm_reference(spec.norm, key_width)
            self.cache: Any = recurrent_state_class()()
            self.last_window: Any = recurrent_state_class()() if spec.overlap else None

        def _join_previous_window(self, kv: Tensor, gate: Tensor, pass_state: PassState) -> tuple[Tensor, Tensor]:
            """Joins the second half of the features of each token window with the first half of the previous window.

            [batch, windows, rate, 2·width] → [batch, windows, 2·rate, width].
            """
            assert self.last_window is not None
            (delayed_series, current_series), (delayed_gate_series, current_gate_series) = (
                kv.chunk(2, -1),
                gate.chunk(2, -1),
            )
            stored_window = self.last_window.load(pass_state)
            first_window = (
                (torch.zeros_like(delayed_series[:, :1]), torch.full_like(delayed_gate_series[:, :1], float("-inf")))
                if stored_window is None
                else tuple(tensor[:, None] for tensor in stored_window)
            )
            self.last_window.keep(pass_state, delayed_series[:, -1], delayed_gate_series[:, -1])
            delayed_window = (
                torch.cat([first_window[0], delayed_series[:, :-1]], 1),
                torch.cat([first_window[1], delayed_gate_series[:, :-1]], 1),
            )
            return torch.cat([delayed_window[0], current_series], 2), torch.cat(
                [delayed_window[1], current_gate_series], 2
            )

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            kv, gate, stored_rows = self.kv_proj(x), self.gate_proj(x), self.cache.load(pass_state)
            compressed_kv: Tensor | None = None
            if stored_rows is not None:
                compressed_kv, kv, gate = (
                    stored_rows[0],
                    torch.cat([stored_rows[1], kv], 1),
                    torch.cat([stored_rows[2], gate], 1),
                )
            window_count = kv.shape[1] // self.rate
            window_tokens = window_count * self.rate
            pending_rows = kv[:, window_tokens:], gate[:, window_tokens:]
            if window_count:
                kv, gate = (tensor[:, :window_tokens].unflatten(1, (window_count, self.rate)) for tensor in (kv, gate))
                gate = gate + self.position_bias.weight
                if self.last_window is not None:
                    kv, gate = self._join_previous_window(kv, gate, pass_state)
                new_compressed_kv = self.norm((kv * gate.float().softmax(2).to(kv.dtype)).sum(2))
                first_compressed_index = 0 if compressed_kv is None else compressed_kv.shape[1]
                positions = (torch.arange(window_count, device=x.device) + first_compressed_index) * self.rate
                new_compressed_kv = rotate_at(new_compressed_kv, positions, self.rope, self.theta)
                compressed_kv = (
                    new_compressed_kv if compressed_kv is None else torch.cat([compressed_kv, new_compressed_kv], 1)
                )
            if compressed_kv is None:
                compressed_kv = kv.new_zeros(kv.shape[0], 0, self.width)
            self.cache.keep(pass_state, compressed_kv, *pending_rows)
            return compressed_kv

    class CompressedKVSelector(compressed_kv_selector_class()):  # type: ignore[misc]
        """Selects compressed keys for each token by scores with a separate set of compressed keys."""

        def __init__(self, spec: CompressedAttention, hidden_size: int) -> None:
            super().__init__(spec, hidden_size)
            assert spec.indexer is not None
            self.compressor = KVCompressor(spec, hidden_size, spec.indexer.index_head_dim)

        @torch.no_grad()
        def forward(self, x: Tensor, compressed_query: Tensor, allowed_mask: Tensor, pass_state: PassState) -> Tensor:
            compressed_kv = self.compressor(x, pass_state)
            q = self.q_proj(compressed_query).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            q = rotate(q, pass_state, pass_state.past_tokens, self.spec.qk_rope_head_dim, self.spec.position.rope_theta)
            scores = torch.relu(self.core(q, compressed_kv) * q.shape[-1] ** -0.5)
            scores = (scores * self.weights_proj(x).transpose(1, 2)[..., None]).sum(1).float()
            ranked_indices = (
                scores.masked_fill(~allowed_mask, float("-inf")).sort(dim=-1, descending=True, stable=True).indices
            )
            return ranked_indices[..., : self.topk]

    class CompressedAttentionReference(compressed_kv_attention_class()):  # type: ignore[misc]
        """Attends to recent tokens and to compressed keys. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: CompressedAttention, model_properties: ModelProperties) -> None:
            super().__init__(spec, model_properties)
            self.unit = norm_reference(
                Norm(type="rmsnorm", weight=False, scales_x=True, eps=spec.norm.eps), spec.head_dim
            )
            if spec.compress_rate is not None:
                self.compressor = KVCompressor(spec, model_properties.hidden_size, spec.head_dim)
            if spec.indexer is not None:
                self.indexer = CompressedKVSelector(spec, model_properties.hidden_size)

        def _compressed_kv_and_mask(
            self, x: Tensor, compressed_query: Tensor, pass_state: PassState
        ) -> tuple[Tensor, Tensor]:
            compressed_kv = self.compressor(x, pass_state)
            visible_key_counts = self._count_visible_keys(x, pass_state)  # held until the end, as the flow holds it
            is_visible = torch.arange(compressed_kv.shape[1], device=x.device)[None] < visible_key_counts[:, None]
            if self.spec.indexer is None:
                return compressed_kv, is_visible
            selection = self.indexer(x, compressed_query, is_visible, pass_state)
            return self._selected_compressed_kv(x, compressed_kv, is_visible, selection, pass_state)

    return CompressedAttentionReference
