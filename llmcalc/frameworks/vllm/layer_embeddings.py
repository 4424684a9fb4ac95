"""The buffer from which vLLM's CUDA graphs read Gemma's per-layer embeddings (models/gemma4.py)."""

from __future__ import annotations

from ..engines.rank import EngineRank


def layer_embedding_bytes(engine_rank: EngineRank, token_count: int, element_bytes: int) -> int:
    """Returns the bytes of Gemma's per-layer embeddings for a batch of `token_count` tokens.

    Their buffer has this size (gemma4_mm.py). Their sum with the projected hidden states, which all layers read, has
    this size too (gemma4.py, `project_per_layer_inputs`).
    """
    decoder = engine_rank.preset.model.decoder
    if decoder is None or decoder.per_layer_embedding is None:
        return 0
    embedding_width: int = decoder.per_layer_embedding.hidden_size_per_layer_input
    return token_count * decoder.num_hidden_layers * embedding_width * element_bytes
