"""Additional tensors that vLLM allocates for Gemma 3n and Gemma 4 (model_executor/models/gemma4.py).

Its classes have one matrix of queries, keys and values in each layer: also in layers that take keys and values from a
lower one, and in layers whose values are the projected keys. CUDA graphs read the small embeddings
of each layer from a buffer.
"""

from __future__ import annotations

from ...components.mixers.attention import Attention
from ...costs.params import params
from ..engines.rank import EngineRank, architectures, mixers


def unused_projection_bytes(engine_rank: EngineRank, class_names: tuple[str, ...]) -> int:
    """Returns the bytes of a rank's unused projections, in the number format of the other attention projections.

    class_names: names of the model classes that have them.
    """
    if {*architectures(engine_rank.preset)}.isdisjoint(class_names):
        return 0
    unused_elements = 0
    for mixer, layer_count in mixers(engine_rank.preset.model):
        if isinstance(mixer, Attention) and (mixer.kv_shared or mixer.attention_k_eq_v):
            key_heads = max(1, (mixer.num_key_value_heads or mixer.num_attention_heads) // engine_rank.layout.tp)
            head_dim = mixer.head_dim or engine_rank.hidden_size // mixer.num_attention_heads
            unused_elements += (
                layer_count * (2 if mixer.kv_shared else 1) * engine_rank.hidden_size * key_heads * head_dim
            )
    stored_elements = int(params(engine_rank.model).by_component["attention"])
    return unused_elements * engine_rank.weights_by_component["attention"] // (stored_elements * engine_rank.layout.pp)


def layer_embedding_bytes(engine_rank: EngineRank, tokens: int, element_bytes: int) -> int:
    """Returns the bytes of Gemma's per-layer embeddings for a batch of `tokens` tokens.

    Their buffer has this size (gemma4_mm.py). Their sum with the projected hidden states, which all layers read, has
    this size too (gemma4.py, `project_per_layer_inputs`).
    """
    decoder = engine_rank.preset.model.decoder
    if decoder is None or decoder.per_layer_embedding is None:
        return 0
    embedding_width: int = decoder.per_layer_embedding.hidden_size_per_layer_input
    return tokens * decoder.num_hidden_layers * embedding_width * element_bytes
