"""The sizes of weight matrices as engines allocate them, and the bytes that torch's allocator adds to each matrix.

A tensor of 10 MiB or more has a segment of its own, whose size is a multiple of 2 MiB; torch splits off what is left of
it if that is more than 1 MiB (c10/cuda/CUDACachingAllocator.cpp: `kMinLargeAlloc`, `kRoundLarge`, `should_split`).
Projections of queries, keys and values are one matrix, gates and up-projections too (`QKVParallelLinear`,
`MergedColumnParallelLinear` and `w13_weight` of vLLM and SGLang).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

from ...components.mixers.attention import Attention
from ...costs.params import params
from ...costs.quantization.base import StoredBytes, WeightTensor, stored_tensors, unquantized_bytes, weight_tensors_of
from ...costs.quantization.formats import IndivisibleMatrix
from ...optional import included_part_names
from .rank import MAX_SHARED_RANKS, EngineRank, architectures, mixers_with_layer_counts

LEAST_SEGMENT_TENSOR, SEGMENT_ROUNDING = 10 * 2**20, 2 * 2**20
"""Bytes of the smallest tensor with a separate allocator segment, and the divisor of segment sizes."""

MAX_UNSPLIT_BYTES = 2**20
"""Largest number of bytes at a segment's end that torch's allocator does not split off, and so counts as allocated."""

FUSED_MATRICES = {"q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "gate_proj": "gate_up", "up_proj": "gate_up"}
"""Name of a projection → name of the fused matrix that contains it."""


@lru_cache(maxsize=MAX_SHARED_RANKS)
def segment_remainders(engine_rank: EngineRank) -> Counter[int]:
    """Maps the unused bytes in allocator segments of large weight matrices to the number of such segments.

    Empty if the sizes on ranks are not known, because they divide blocks with one scale.
    """
    matrix_bytes: Counter[tuple[str, str, str]] = Counter()
    try:
        for weight_tensor, stored_bytes in _stored_tensors(engine_rank):
            module_path, _, matrix_name = weight_tensor.path.rpartition(".")
            if weight_tensor.tensor.role != "vector":
                matrix_key = module_path, FUSED_MATRICES.get(matrix_name, matrix_name), weight_tensor.tensor.role
                matrix_bytes[matrix_key] += int(stored_bytes.weights) + int(stored_bytes.unconverted)
    except IndivisibleMatrix:
        return Counter()
    large_matrices = (stored_bytes for stored_bytes in matrix_bytes.values() if stored_bytes >= LEAST_SEGMENT_TENSOR)
    return Counter(-stored_bytes % SEGMENT_ROUNDING for stored_bytes in large_matrices)


def unsplit_bytes(engine_rank: EngineRank) -> int:
    """Returns the unused bytes in weight matrices' allocator segments that are too few to be split off as blocks."""
    return sum(
        remainder_bytes * segment_count
        for remainder_bytes, segment_count in segment_remainders(engine_rank).items()
        if remainder_bytes <= MAX_UNSPLIT_BYTES
    )


def _stored_tensors(engine_rank: EngineRank) -> Iterator[tuple[WeightTensor, StoredBytes]]:
    """Yields each tensor of the rank's text model with its stored bytes."""
    included_parts = included_part_names(engine_rank.includes_mtp, with_towers=False)
    weight_format = engine_rank.weight_memory.dtype
    if engine_rank.quantization is None:
        for weight_tensor in weight_tensors_of(engine_rank.model.tree(), included_parts):
            yield weight_tensor, unquantized_bytes(weight_tensor.tensor.size, weight_format)
        return
    checkpoint = engine_rank.preset.checkpoint
    module_names = None if checkpoint is None else checkpoint.names(engine_rank.model.tree(), engine_rank.model.kind)
    yield from stored_tensors(engine_rank.model, engine_rank.quantization, weight_format, included_parts, module_names)


def unused_projection_bytes(engine_rank: EngineRank, class_names: tuple[str, ...]) -> int:
    """Returns the bytes of attention projections that an engine allocates on a rank but does not use.

    Classes of Gemma 3n and Gemma 4 have one matrix of queries, keys and values in each layer: also in layers that take
    keys and values from a lower one, and in layers whose values are the projected keys (models/gemma4.py of vLLM,
    gemma4_causal.py of SGLang). class_names: names of the model classes that have them.
    """
    if {*architectures(engine_rank.preset)}.isdisjoint(class_names):
        return 0
    unused_elements = 0
    for mixer, layer_count in mixers_with_layer_counts(engine_rank.preset.model):
        if isinstance(mixer, Attention) and (mixer.kv_shared or mixer.attention_k_eq_v):
            key_heads = max(1, (mixer.num_key_value_heads or mixer.num_attention_heads) // engine_rank.layout.tp)
            head_dim = mixer.head_dim or engine_rank.hidden_size // mixer.num_attention_heads
            unused_elements += (
                layer_count * (2 if mixer.kv_shared else 1) * engine_rank.hidden_size * key_heads * head_dim
            )
    stored_elements = int(params(engine_rank.model).by_component["attention"])
    return unused_elements * engine_rank.weights_by_component["attention"] // (stored_elements * engine_rank.layout.pp)
