"""The workspace of vLLM's sparse attention, reserved in the profile run (v1/worker/workspace.py).

The layers share one workspace of the largest reservation. The indexer gathers cached keys of several sequences at once
(v1/attention/backends/mla/indexer.py, `get_max_prefill_buffer_size`), and compressed attention the keys of a few
prompts (models/deepseek_v4/nvidia/flashmla.py, `_prefill_workspace_reservation_specs`).
"""

from __future__ import annotations

from ...components.mixers.compressed import CompressedAttention
from ...components.mixers.indexer import Indexer
from ..engines.rank import EngineRank, float8_bytes, mixers

INDEXED_SEQUENCES = 40
"""Longest sequences whose indexer keys the workspace holds."""

PROMPTS_AT_ONCE = 4
"""Prompts whose keys compressed attention gathers at once (`PREFILL_CHUNK_SIZE`)."""

INT32_BYTES, BFLOAT16_BYTES = 4, 2


def sparse_workspace(rank: EngineRank, length: int, tokens: int) -> int:
    """Returns the bytes of the workspace; 0 for a model without sparse attention.

    length: tokens of the longest sequence. tokens: those of a batch.
    """
    reserved_bytes = [0]
    for mixer, _ in mixers(rank.preset.model):
        if isinstance(mixer, Indexer) and not mixer.shared:
            reserved_bytes.append(INDEXED_SEQUENCES * length * float8_bytes(mixer.index_head_dim))
        if isinstance(mixer, CompressedAttention):
            reserved_bytes += _reserved_bytes(mixer, length, tokens)
    return max(reserved_bytes)


def _reserved_bytes(mixer: CompressedAttention, length: int, tokens: int) -> list[int]:
    """Returns the bytes reserved by a layer of compressed attention and its indexer."""
    batch, window = min(length, tokens), mixer.sliding_window
    rate = mixer.compress_rate
    keys = batch + min(length - batch, window - 1) + (0 if rate is None else length // rate)
    gathered_keys = PROMPTS_AT_ONCE * keys * mixer.head_dim * BFLOAT16_BYTES
    if rate is None or mixer.indexer is None:
        return [gathered_keys + batch * (window + 1) * INT32_BYTES]
    indices = batch * (mixer.indexer.index_topk + window + 1) * INT32_BYTES
    return [
        gathered_keys + indices,
        INDEXED_SEQUENCES * length // rate * float8_bytes(mixer.indexer.index_head_dim),
    ]
