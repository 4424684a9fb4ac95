"""DeepSeek-V4.1's attention: keys of a recent window, and compressed keys that several layers share.

Some layers compute entries, and the indexer's keys from them; the layers above read both. Some of these score the keys
again with small queries of their own, the others also reuse the selection. An entry is a weighted mean of compress_rate
tokens, channel by channel, or with a rate of 1 a projection of one token. From one layer on, indexers score only the
blocks of keys that this layer found best. vLLM: models/deepseek_v41; mlx-vlm: models/deepseek_v41.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from ... import ops
from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ..base import TORCH_WITNESS, Flag, ModelProperties, Part, PartWitness, TopK, Window
from ..norm import norm_reference
from ..rope import Rope
from ..rotation import rotate, rotate_at
from ..runtime import PassState, recurrent_state_class
from .compressed_kv import (
    CompressedKVAttention,
    CompressedKVIndexer,
    compressed_kv_attention_class,
    compressed_kv_selector_class,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

SOURCE = "DeepSeek-V4.1 2026"


class CandidateBlocks(Part):
    """The blocks of compressed keys to which an indexer is limited: those that a lower layer's indexer selected.

    candidate_topk_blocks: the number of blocks.
    candidate_block_size: the number of keys in a block.
    """

    witness: ClassVar[PartWitness] = TORCH_WITNESS

    candidate_topk_blocks: TopK
    candidate_block_size: Window


class SharedCompressedKVIndexer(CompressedKVIndexer):
    """Small query heads that score compressed keys by separate index keys, and select some for each token.

    finds: the blocks that the layer finds for the indexers above it; none by default.
    candidates: the blocks that a lower layer found, outside which no key is scored; by default all keys are scored.
    """

    witness: ClassVar[PartWitness] = TORCH_WITNESS

    finds: CandidateBlocks | None = None
    candidates: CandidateBlocks | None = None


class SharedCompressedKVAttention(CompressedKVAttention):
    """Attention to a window of recent tokens, and to compressed keys computed by this layer or by a lower layer.

    weighted_entries: whether an entry is a weighted mean of its tokens, as entries of several tokens are; false by
        default, where an entry is a projection of one token.
    entries_shared: whether entries and the indexer's keys are those of the nearest lower layer that computes its own;
        false by default.
    indexer: the part that selects the entries to attend to; by default the selection of a lower layer is reused.
    index_topk: the number of entries in that selection; none beside an indexer, which has its own.
    """

    formula_source: ClassVar[str] = SOURCE
    witness: ClassVar[PartWitness] = TORCH_WITNESS

    type: Literal["shared_entries"] = "shared_entries"
    weighted_entries: Flag = False
    entries_shared: Flag = False
    indexer: SharedCompressedKVIndexer | None = None
    index_topk: TopK | None = None

    def check_fields(self) -> None:
        super().check_fields()
        if self.compress_rate is None and (self.entries_shared or self.indexer is not None or self.index_topk):
            raise ValueError("compress_rate: missing; entries_shared, indexer and index_topk require one")
        if self.weighted_entries != (self.compress_rate is not None and self.compress_rate > 1):
            raise ValueError("weighted_entries: true where compress_rate is 2 or more, and nowhere else")
        if self.compress_rate is not None and (self.indexer is None) != (self.index_topk is not None):
            raise ValueError("index_topk: a layer without an indexer states how many entries it reuses; others do not")
        if self.compress_rate is not None and not self.entries_shared and self.indexer is None:
            raise ValueError("indexer: missing; a layer that computes entries selects among them")
        if self.indexer is not None and self.indexer.candidates is not None and self.compress_rate != 1:
            raise ValueError("indexer.candidates: blocks of keys are counted for a compress_rate of 1 alone")

    @property
    def compressed_kv_name(self) -> str:
        return "shared entries" if self.entries_shared else "entries"

    @property
    def max_selected_keys(self) -> int | None:
        return self.index_topk if self.indexer is None else self.indexer.index_topk

    def cost_thresholds(self) -> tuple[int, ...]:
        candidate_spec = None if self.indexer is None else self.indexer.candidates
        if candidate_spec is None:
            return super().cost_thresholds()
        return (*super().cost_thresholds(), candidate_spec.candidate_topk_blocks * candidate_spec.candidate_block_size)

    def shared_result_fields(self) -> Mapping[tuple[Any, ...], str]:
        compress_rate, indexer = self.compress_rate, self.indexer
        if compress_rate is None:
            return {}
        field_name = "entries_shared" if self.entries_shared else ""
        field_by_result: dict[tuple[Any, ...], str] = {
            ("entries", compress_rate, self.head_dim, self.qk_rope_head_dim): field_name
        }
        field_by_result["selected entries", compress_rate, self.max_selected_keys] = (
            "" if indexer is not None else "indexer"
        )
        if indexer is not None:
            field_by_result["entry keys", compress_rate, indexer.index_head_dim] = field_name
            if indexer.finds is not None or indexer.candidates is not None:
                spec = indexer.finds or indexer.candidates
                field_by_result["candidates", spec] = "" if indexer.finds is not None else "indexer.candidates"
        return field_by_result

    def dependency_field(self) -> str:
        return next(filter(None, self.shared_result_fields().values()), "")

    def _mask_and_compressed_kv(
        self, recorder: Flow, x: Value, compressed_query: Value, q: Value, head_dim: Axis, rope: Rope
    ) -> tuple[Value, Value]:
        """Returns the mask of the compressed keys each token attends to, and the keys, this or a lower layer's."""
        assert self.compress_rate is not None
        lower_layer_values: dict[str, Value] = recorder.layer_memo.setdefault("entries", {})
        latent: Value | None = None
        if self.entries_shared:
            compressed_kv = recorder.value_of_lower_layer("entries", x, lower_layer_values.get("entries"), head_dim)
        else:
            latent, compressed_kv = self._record_compression(recorder, x, head_dim, rope)
            lower_layer_values["entries"] = compressed_kv
            recorder.hold(latent=latent)
            recorder.keep(entries=compressed_kv)
        recorder.hold(entries=compressed_kv)
        visible_mask = recorder.whole_entries(q, compressed_kv, self.compress_rate)
        recorder.hold(seen=visible_mask)
        if self.indexer is None:
            selection = recorder.value_of_lower_layer("selection", x, lower_layer_values.get("selection"))
        else:
            with recorder.scope("indexer", role="no_grad"):
                selection = self._record_selection(
                    recorder, self.indexer, x, compressed_query, latent, visible_mask, rope
                )
            lower_layer_values["selection"] = selection
            recorder.keep(selection=selection)
        recorder.hold(chosen=selection)
        return recorder.among(visible_mask, selection, compressed_kv)

    def _record_compression(self, recorder: Flow, x: Value, head_dim: Axis, rope: Rope) -> tuple[Value, Value]:
        """Returns the new compressed keys before RoPE, and all cached and new compressed keys after RoPE."""
        assert self.compress_rate is not None
        rate_axis = Axis("rate", self.compress_rate)
        pending_rows: tuple[Value, ...] = ()
        with recorder.scope("compressor"):
            kv = recorder.linear("kv_proj", x, head_dim)
            recorder.hold(kv=kv)
            if self.weighted_entries:
                gate = recorder.linear("gate_proj", x, head_dim)
                recorder.hold(gate=gate)
                pending_rows = recorder.with_unpooled_rows(kv, gate)
                recorder.hold(kv=pending_rows[0], gate=pending_rows[1])
                kv = recorder.weighted_mean(
                    *(recorder.windows(pending_row_values, rate_axis) for pending_row_values in pending_rows)
                )
            latent = recorder.norm("norm", kv, self.norm)
            recorder.hold(latent=latent)
            compressed_kv = recorder.rope(latent, rope, row_stride=rate_axis.size)
            recorder.hold(new=compressed_kv)
            op = ops.CompressedKVCache(
                head_dim.size,
                rate_axis.size,
                sum(pending_row_values.width for pending_row_values in pending_rows),
                rows=x.rows,
            )
            return latent, recorder.keep_entries(op, compressed_kv, *pending_rows)

    def _record_selection(
        self,
        recorder: Flow,
        indexer: SharedCompressedKVIndexer,
        x: Value,
        compressed_query: Value,
        latent: Value | None,
        visible_mask: Value,
        rope: Rope,
    ) -> Value:
        """Returns the cached compressed keys that the indexer selects for each token's attention.

        latent: the new entries before RoPE; None for shared ones. visible_mask: the mask of whole entries.
        """
        assert self.compress_rate is not None
        lower_layer_values: dict[str, Value] = recorder.layer_memo["entries"]
        heads, index_dim = Axis("index_heads", indexer.index_n_heads), Axis("index_head_dim", indexer.index_head_dim)
        if latent is None:
            keys = recorder.value_of_lower_layer("keys", x, lower_layer_values.get("keys"), index_dim)
        else:
            with recorder.function():
                keys = recorder.norm("k_norm", recorder.linear("k_proj", latent, index_dim), self.norm)
                recorder.hold(new=keys)
                keys = recorder.rope(keys, rope, row_stride=self.compress_rate)
                recorder.hold(new=keys)
                keys = recorder.keep_entries(
                    ops.CompressedKVCache(index_dim.size, self.compress_rate, 0, rows=x.rows), keys
                )
            lower_layer_values["keys"] = keys
            recorder.keep(keys=keys)
        recorder.hold(keys=keys)
        q = recorder.linear("q_proj", compressed_query, heads, index_dim)
        recorder.hold(q=q)
        q = recorder.rope(q, rope)
        recorder.hold(q=q)
        block_config = indexer.candidates
        score_options: dict[str, Any] = {"core": ops.CompressedKVAttentionCore, "tokens_per_entry": self.compress_rate}
        if block_config is not None:
            score_options = {"core": ops.BlockAttentionCore, "block": block_config.candidate_block_size}
            score_options["blocks"] = block_config.candidate_topk_blocks
            keys, visible_mask = recorder.candidates(keys, visible_mask, block_config.candidate_block_size)
            recorder.hold(keys=keys, seen=visible_mask)
        scores = recorder.act(
            recorder.scale(
                recorder.scores("core", q, keys, is_cross_attention=True, **score_options), indexer.index_head_dim**-0.5
            ),
            "relu",
        )
        head_weights = recorder.linear("weights_proj", x, heads)
        candidate_spec = indexer.finds
        block_counts = None
        if candidate_spec is not None:
            block_counts = (candidate_spec.candidate_topk_blocks, candidate_spec.candidate_block_size)
        return recorder.choose_entries(
            scores, head_weights, visible_mask, indexer.index_topk, block_count_and_size=block_counts
        )

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        """Returns mixers that compress their own keys; the stack's examples have layers that share compressed keys."""
        examples: Any = shared_entry_examples()
        return [examples[example_name] for example_name in ("local", "computing", "finding")]


def shared_entry_examples() -> dict[str, SharedCompressedKVAttention]:
    """Returns small mixers by name, for examples of stacks; two of them reuse the selection of another."""
    local_example = SharedCompressedKVAttention(
        num_attention_heads=4,
        head_dim=8,
        qk_rope_head_dim=4,
        q_lora_rank=10,
        o_groups=2,
        o_lora_rank=6,
        sliding_window=5,
    )
    indexer = SharedCompressedKVIndexer(index_n_heads=3, index_head_dim=6, index_topk=2)
    block_config = CandidateBlocks(candidate_topk_blocks=2, candidate_block_size=3)
    rate_two_fields = {"compress_rate": 2, "weighted_entries": True, "o_groups": 4, "indexer": indexer}
    shared_fields = {"compress_rate": 1, "entries_shared": True}
    changes: dict[str, dict[str, Any]] = {
        "local": {},
        "computing": rate_two_fields,
        "finding": {"compress_rate": 1, "indexer": indexer.model_copy(update={"finds": block_config})},
        "scoring": {**shared_fields, "indexer": indexer.model_copy(update={"candidates": block_config})},
        "reusing": {**shared_fields, "index_topk": 2},
    }
    return {
        example_name: local_example.model_copy(update=changed_fields)
        for example_name, changed_fields in changes.items()
    }


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class KVCompressor(nn.Module):
        """Compresses every `compress_rate` tokens into one cached key.

        x: [batch, tokens, hidden] → the new entries without RoPE, and all entries with RoPE.
        """

        def __init__(self, spec: SharedCompressedKVAttention, hidden_size: int) -> None:
            super().__init__()
            assert spec.compress_rate is not None
            self.rate, key_width = spec.compress_rate, spec.head_dim
            self.kv_proj = nn.Linear(hidden_size, key_width, bias=False)
            if spec.weighted_entries:
                self.gate_proj = nn.Linear(hidden_size, key_width, bias=False)
            self.spec, self.norm = spec, norm_reference(spec.norm, key_width)
            self.cache: Any = recurrent_state_class()()

        def forward(self, x: Tensor, pass_state: PassState) -> tuple[Tensor | None, Tensor]:
            kv, gate = self.kv_proj(x), self.gate_proj(x) if self.spec.weighted_entries else None
            stored_rows = self.cache.load(pass_state)
            compressed_kv, latent = None if stored_rows is None else stored_rows[0], None
            pending_rows: tuple[Tensor, ...] = ()
            if gate is None:
                latent = self.norm(kv)
            else:
                if stored_rows is not None:
                    kv, gate = torch.cat([stored_rows[1], kv], 1), torch.cat([stored_rows[2], gate], 1)
                window_count = kv.shape[1] // self.rate
                window_tokens = window_count * self.rate
                pending_rows = kv[:, window_tokens:], gate[:, window_tokens:]
                if window_count:
                    kv, gate = (
                        tensor[:, :window_tokens].unflatten(1, (window_count, self.rate)) for tensor in (kv, gate)
                    )
                    latent = self.norm((kv * gate.float().softmax(2).to(kv.dtype)).sum(2))
            if latent is not None:
                first_compressed_index = 0 if compressed_kv is None else compressed_kv.shape[1]
                window_positions = (torch.arange(latent.shape[1], device=x.device) + first_compressed_index) * self.rate
                new_compressed_kv = rotate_at(
                    latent, window_positions, self.spec.qk_rope_head_dim, self.spec.position.rope_theta
                )
                compressed_kv = (
                    new_compressed_kv if compressed_kv is None else torch.cat([compressed_kv, new_compressed_kv], 1)
                )
            if compressed_kv is None:
                compressed_kv = kv.new_zeros(kv.shape[0], 0, kv.shape[-1])
            self.cache.keep(pass_state, compressed_kv, *pending_rows)
            return latent, compressed_kv

    class CompressedKVSelector(compressed_kv_selector_class()):  # type: ignore[misc]
        """Selects the compressed keys that each token attends to, by scores of one index key per compressed key."""

        def __init__(self, spec: SharedCompressedKVAttention, hidden_size: int) -> None:
            super().__init__(spec, hidden_size)
            assert spec.indexer is not None
            index_head_dim = spec.indexer.index_head_dim
            if not spec.entries_shared:
                self.k_proj = nn.Linear(spec.head_dim, index_head_dim, bias=False)
                self.k_norm = norm_reference(spec.norm, index_head_dim)
                self.cache: Any = recurrent_state_class()()

        def _candidate_keys(
            self, keys: Tensor, visible_mask: Tensor, pass_state: PassState
        ) -> tuple[Tensor, Tensor, Tensor | None]:
            """Returns the index keys to score, their mask, and their positions if only some index keys are scored."""
            assert self.spec.indexer is not None
            block_config = self.spec.indexer.candidates
            if block_config is None:
                return keys, visible_mask, None
            chosen_blocks: Tensor = pass_state.shared_values["candidate blocks"]
            block_size = block_config.candidate_block_size
            # decoding one token scores only the candidates
            if pass_state.past_tokens and visible_mask.shape[0] == 1:
                token_offsets = torch.arange(block_size, device=keys.device)
                positions = (chosen_blocks[:, 0, :, None] * block_size + token_offsets).flatten(1)
                last_block_start = (keys.shape[1] - 1) // block_size * block_size
                last_block_size = keys.shape[1] - last_block_start
                # its own block is first
                positions = torch.cat([positions[:, :last_block_size], positions[:, block_size:]], 1)
                positions = positions.sort().values  # equal scores are ranked by position, as in a full pass
                candidate_keys = keys.gather(1, positions[..., None].expand(-1, -1, keys.shape[-1]))
                return candidate_keys, visible_mask[:, :1].expand(1, positions.shape[1]), positions
            block_count = -(-keys.shape[1] // block_size)
            is_in_chosen_block = torch.zeros(
                *chosen_blocks.shape[:2], block_count, dtype=torch.bool, device=keys.device
            )
            is_in_chosen_block = is_in_chosen_block.scatter(-1, chosen_blocks, True).repeat_interleave(block_size, -1)[
                ..., : keys.shape[1]
            ]
            return keys, visible_mask & is_in_chosen_block, None

        def _store_best_blocks(self, scores: Tensor, pass_state: PassState) -> None:
            """Stores the best-scored blocks of each token, its own block first. scores: −inf for invisible keys."""
            assert self.spec.indexer is not None
            block_config = self.spec.indexer.finds
            if block_config is None:
                return
            block_size, token_count = block_config.candidate_block_size, scores.shape[1]
            padding_columns = -scores.shape[-1] % block_size
            block_scores = (
                nn.functional.pad(scores, (0, padding_columns), value=float("-inf"))
                .unflatten(-1, (-1, block_size))
                .amax(-1)
            )
            block_index_by_token = (
                pass_state.positions(pass_state.past_tokens, pass_state.past_tokens + token_count, scores.device)
                // block_size
            )
            block_scores = block_scores.scatter(
                -1, block_index_by_token[None, :, None].expand(scores.shape[0], -1, -1), float("inf")
            )
            ranked_indices = block_scores.sort(dim=-1, descending=True, stable=True).indices
            pass_state.shared_values["candidate blocks"] = ranked_indices[..., : block_config.candidate_topk_blocks]

        def _all_index_keys(self, latent: Tensor | None, pass_state: PassState, x: Tensor) -> Tensor:
            """Returns the index keys of all compressed keys so far. latent: the new ones before RoPE, or None."""
            spec, stored_rows = self.spec, self.cache.load(pass_state)
            assert spec.compress_rate is not None
            keys = None if stored_rows is None else stored_rows[0]
            if latent is not None:
                new_keys = self.k_norm(self.k_proj(latent))
                first_compressed_index = 0 if keys is None else keys.shape[1]
                key_positions = (
                    torch.arange(latent.shape[1], device=x.device) + first_compressed_index
                ) * spec.compress_rate
                new_keys = rotate_at(new_keys, key_positions, spec.qk_rope_head_dim, spec.position.rope_theta)
                keys = new_keys if keys is None else torch.cat([keys, new_keys], 1)
            if keys is None:
                keys = x.new_zeros(x.shape[0], 0, self.k_proj.out_features)
            self.cache.keep(pass_state, keys)
            return keys

        @torch.no_grad()
        def forward(
            self,
            x: Tensor,
            compressed_query: Tensor,
            latent: Tensor | None,
            visible_mask: Tensor,
            pass_state: PassState,
        ) -> Tensor:
            spec = self.spec
            if not spec.entries_shared:
                pass_state.shared_values["entry keys"] = self._all_index_keys(latent, pass_state, x)
            keys = pass_state.shared_values["entry keys"]
            q = self.q_proj(compressed_query).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            q = rotate(q, pass_state, pass_state.past_tokens, spec.qk_rope_head_dim, spec.position.rope_theta)
            keys, visible_mask, key_positions = self._candidate_keys(keys, visible_mask, pass_state)
            scores = torch.relu(self.core(q, keys) * q.shape[-1] ** -0.5)
            scores = (scores * self.weights_proj(x).transpose(1, 2)[..., None]).sum(1).float()
            masked_scores = scores.masked_fill(~visible_mask, float("-inf"))
            self._store_best_blocks(masked_scores, pass_state)
            best_indices = masked_scores.sort(dim=-1, descending=True, stable=True).indices[..., : self.topk]
            return best_indices if key_positions is None else key_positions[:, None].gather(-1, best_indices)

    class SharedCompressedKVReference(compressed_kv_attention_class()):  # type: ignore[misc]
        """DeepSeek-V4.1's attention. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: SharedCompressedKVAttention, model_properties: ModelProperties) -> None:
            super().__init__(spec, model_properties)
            if spec.compress_rate is not None and not spec.entries_shared:
                self.compressor = KVCompressor(spec, model_properties.hidden_size)
            if spec.indexer is not None:
                self.indexer = CompressedKVSelector(spec, model_properties.hidden_size)

        def _compressed_kv_and_mask(
            self, x: Tensor, compressed_query: Tensor, pass_state: PassState
        ) -> tuple[Tensor, Tensor]:
            spec, shared_values, latent = self.spec, pass_state.shared_values, None
            if not spec.entries_shared:
                latent, shared_values["entries"] = self.compressor(x, pass_state)
            compressed_kv: Tensor = shared_values["entries"]
            visible_key_counts = self._count_visible_keys(x, pass_state)  # held until the end, as the flow holds it
            is_visible = torch.arange(compressed_kv.shape[1], device=x.device)[None] < visible_key_counts[:, None]
            if spec.indexer is not None:
                shared_values["selected entries"] = self.indexer(x, compressed_query, latent, is_visible, pass_state)
            selection = shared_values["selected entries"]
            return self._selected_compressed_kv(x, compressed_kv, is_visible, selection, pass_state)

    return SharedCompressedKVReference
