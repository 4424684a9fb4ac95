"""The workspace of vLLM's sparse attention, reserved in the profile run (v1/worker/workspace.py).

The layers share one workspace of the largest reservation. The indexer gathers cached keys of several sequences at once
(v1/attention/backends/mla/indexer.py, `get_max_prefill_buffer_size`), and compressed attention the keys of a few
prompts (models/deepseek_v4/nvidia/flashmla.py, `_prefill_workspace_reservation_specs`).
"""

from __future__ import annotations

from ...components.mixers.compressed_attention import CompressedAttention
from ...components.mixers.indexer import Indexer
from ..engines.rank import EngineRank, mixers_with_layer_counts, scaled_float8_bytes

INDEXED_SEQUENCES = 40
"""Number of longest sequences whose indexer keys fit the workspace."""

GATHERED_PROMPTS = 4
"""Number of prompts whose keys compressed attention gathers at once (`PREFILL_CHUNK_SIZE`)."""

INT32_BYTES, BFLOAT16_BYTES = 4, 2


def sparse_workspace(engine_rank: EngineRank, max_model_len: int, max_num_batched_tokens: int) -> int:
    """Returns the bytes of the workspace; 0 for a model without sparse attention.

    max_model_len: tokens of the longest sequence. max_num_batched_tokens: those of a batch.
    """
    reserved_bytes = [0]
    for mixer, _ in mixers_with_layer_counts(engine_rank.preset.model):
        if isinstance(mixer, Indexer) and not mixer.shared:
            reserved_bytes.append(INDEXED_SEQUENCES * max_model_len * scaled_float8_bytes(mixer.index_head_dim))
        if isinstance(mixer, CompressedAttention):
            reserved_bytes += _reserved_bytes(mixer, max_model_len, max_num_batched_tokens)
    return max(reserved_bytes)


def _reserved_bytes(mixer: CompressedAttention, max_model_len: int, max_num_batched_tokens: int) -> list[int]:
    """Returns the bytes reserved by a layer of compressed attention and its indexer."""
    batch_tokens, window = min(max_model_len, max_num_batched_tokens), mixer.sliding_window
    tokens_per_entry = mixer.compress_rate
    keys_per_prompt = (
        batch_tokens
        + min(max_model_len - batch_tokens, window - 1)
        + (0 if tokens_per_entry is None else max_model_len // tokens_per_entry)
    )
    gathered_key_count = GATHERED_PROMPTS * keys_per_prompt * mixer.head_dim * BFLOAT16_BYTES
    if tokens_per_entry is None or mixer.indexer is None:
        return [gathered_key_count + batch_tokens * (window + 1) * INT32_BYTES]
    index_bytes = batch_tokens * (mixer.indexer.index_topk + window + 1) * INT32_BYTES
    return [
        gathered_key_count + index_bytes,
        INDEXED_SEQUENCES * max_model_len // tokens_per_entry * scaled_float8_bytes(mixer.indexer.index_head_dim),
    ]
