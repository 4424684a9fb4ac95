"""Storage formats of the KV cache in inference servers: number formats, llama.cpp's blocks, vLLM's per-token scales."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from ..algebra import Number, exact_div
from ..errors import InputError, suggest
from ..flow.tree import Cost, CountedOp
from ..frozen import frozen
from ..ops import KVCache, State
from ..units import DTYPE_BITS, DTYPE_NAMES, bits_to_bytes
from ..units import dtype as dtype_of
from .quantization.blocks import BLOCKS

STATE_BITS = 16
"""Bits per element of a recurrent state in a model with a quantized cache: servers quantize only keys and values."""


@frozen(slots=True)
class VectorFormat:
    """The storage format of the key or value vector of one head.

    bits: bits per element.
    block_elements: elements that share a scale; default 1.
    block_bytes: bytes of the scale and the minimum of a block; default 0.
    vector_bytes: bytes of the scales of a whole vector; default 0.
    """

    bits: int
    block_elements: int = 1
    block_bytes: int = 0
    vector_bytes: int = 0

    def bytes_of(self, element_count: int) -> int:
        """Returns the bytes of a vector of `element_count` elements, rounded up to whole blocks."""
        block_count = -(-element_count // self.block_elements)
        return (
            bits_to_bytes(block_count * self.block_elements * self.bits)
            + block_count * self.block_bytes
            + self.vector_bytes
        )

    @property
    def element_bits(self) -> Fraction:
        """Returns the bits per element, including the block's scale divided by the block's elements."""
        return self.bits + Fraction(8 * self.block_bytes, self.block_elements)


@frozen(slots=True)
class CacheFormat:
    """A storage format of the KV cache: the formats of keys and of values, each with its scales.

    name: its name in `CACHE_FORMATS`, or the full name of a number format.
    keys, values: storage of one head's key and value.
    scales_text: a phrase that describes the scales.
    pads_to_even: whether a key and its value are padded together to an even number of bytes.
    is_latent_format: whether it stores the latents of MLA and the keys of an indexer (`keys`), and rotary keys
        (`values`), and nothing else.
    """

    name: str
    keys: VectorFormat
    values: VectorFormat
    scales_text: str
    pads_to_even: bool = False
    is_latent_format: bool = False

    @property
    def has_scale_per_head(self) -> bool:
        """Whether each head's key or value vector has its own scale; such a format cannot store MLA latents."""
        return bool(self.keys.vector_bytes or self.values.vector_bytes)

    def bits_per_token(self, head_vectors: Sequence[tuple[int, int]]) -> int:
        """Returns the bits that one token takes in the cache of one layer.

        head_vectors: (heads, size) of the keys, of the values, and of any other cached vectors.
        """
        stored_vectors = [
            (vector_count, (self.values if vector_index else self.keys).bytes_of(vector_elements))
            for vector_index, (vector_count, vector_elements) in enumerate(head_vectors)
        ]
        if self.pads_to_even and len(stored_vectors) == 2:
            (vector_count, key_bytes), (_, value_bytes) = stored_vectors
            return 8 * vector_count * (key_bytes + value_bytes + (key_bytes + value_bytes) % 2)
        return 8 * sum(vector_count * vector_bytes for vector_count, vector_bytes in stored_vectors)


UNCOUNTED_SCALES_TEXT = "a scale per tensor or none, which is not counted"


def _block_format(format_name: str, block_name: str) -> CacheFormat:
    block_elements, code_bytes, scale_bytes, minimum_bytes = BLOCKS[block_name]
    vector_format = VectorFormat(8 * code_bytes // block_elements, block_elements, scale_bytes + minimum_bytes)
    return CacheFormat(
        format_name,
        vector_format,
        vector_format,
        f"blocks of {block_elements} elements with {scale_bytes + minimum_bytes} bytes of scales each",
    )


def _per_token_head_format(format_name: str, bits_per_element: int) -> CacheFormat:
    vector_format = VectorFormat(bits_per_element, vector_bytes=4)
    return CacheFormat(
        format_name, vector_format, vector_format, "a fp32 scale for each token and head, for keys and for values"
    )


def _turbo_format(format_name: str, key_bits: int, value_bits: int) -> CacheFormat:
    """Returns a TurboQuant format of the cache.

    Keys have Hadamard rotation, Lloyd-Max codes and a fp16 norm; values have uniform codes with a fp16 scale and zero
    point.
    """
    key_vector = VectorFormat(8) if key_bits == 8 else VectorFormat(key_bits, vector_bytes=2)
    description = "fp8 keys" if key_bits == 8 else f"{key_bits}-bit keys with a fp16 norm for each token and head"
    return CacheFormat(
        format_name,
        key_vector,
        VectorFormat(value_bits, vector_bytes=4),
        f"{description}; {value_bits}-bit values with a fp16 scale and zero for each token and head",
        pads_to_even=True,
    )


CACHE_FORMATS = {
    cache_format.name: cache_format
    for cache_format in (
        *(_block_format(name.lower(), name) for name in ("Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0", "IQ4_NL")),
        CacheFormat(
            "nvfp4", VectorFormat(4, 16, 1), VectorFormat(4, 16, 1), "blocks of 16 elements with a fp8 scale each"
        ),
        _block_format("mxfp4", "MXFP4"),
        _per_token_head_format("fp8_per_token_head", 8),
        _per_token_head_format("int8_per_token_head", 8),
        _per_token_head_format("int4_per_token_head", 4),
        _turbo_format("turboquant_k8v4", 8, 4),
        _turbo_format("turboquant_4bit_nc", 4, 4),
        _turbo_format("turboquant_k3v4_nc", 3, 4),
        _turbo_format("turboquant_3bit_nc", 3, 3),
        CacheFormat(
            "fp8_ds_mla",
            VectorFormat(8, 128, 4),
            VectorFormat(16),
            "fp8 latents and indexer keys with a fp32 scale for each 128 elements; rotary keys in bf16",
            is_latent_format=True,
        ),
    )
}
"""Formats with scales, under their names in llama.cpp (`--cache-type-k`: ggml-common.h) and vLLM (`--kv-cache-dtype`:
vllm/v1/kv_cache_interface.py, vllm/model_executor/layers/quantization/turboquant/config.py; of `fp8_ds_mla`, 656 bytes
per token and layer and 132 of the indexer, vllm/v1/attention/backends/mla/flashmla_sparse.py). SGLang stores
DeepSeek-V3.2 in `fp8_ds_mla` too.
"""

LATENT_CACHE_KINDS = ("latent_attention", "indexer")
"""Kinds of caches to which a number format for MLA latents applies."""

_FORMAT_BY_SPELLING = {"f16": "float16", "f32": "float32", "fp8_e4m3": "float8", "fp8_e5m2": "float8", "int8kv": "int8"}


def cache_format(format_name: str) -> CacheFormat:
    """Returns the cache format with this name: a number format (`bf16`, `fp8`, `int8`), or one of `CACHE_FORMATS`.

    Raises `InputError` for an unknown name.
    """
    normalized_name = format_name.strip().lower().replace("-", "_")
    if normalized_name in CACHE_FORMATS:
        return CACHE_FORMATS[normalized_name]
    try:
        number_format_name = dtype_of(_FORMAT_BY_SPELLING.get(normalized_name, format_name))
    except InputError:
        number_formats = [DTYPE_NAMES.get(number_format, number_format) for number_format in DTYPE_BITS]
        suggestion_text = suggest(normalized_name, [*number_formats, *CACHE_FORMATS])
        raise InputError(
            f"unknown cache format '{format_name}': expected a number format ({', '.join(number_formats)}) or one with "
            f"scales ({', '.join(CACHE_FORMATS)}).{suggestion_text}"
        ) from None
    vector_format = VectorFormat(DTYPE_BITS[number_format_name])
    return CacheFormat(number_format_name, vector_format, vector_format, UNCOUNTED_SCALES_TEXT)


def state_bits(state: State, stored_format: CacheFormat) -> Number:
    """Returns the bits per element of a recurrent state, given the cache format of the model's keys and values."""
    return max(STATE_BITS, stored_format.keys.bits) if state.element_bits is None else state.element_bits


def cache_bits_cost(stored_format: CacheFormat) -> Cost:
    """Returns a function that computes an operation's cached bits for this storage format.

    Raises `InputError` if the format has a scale per head and the cache has entries without heads (MLA latents).
    """

    def cached_bits(counted_op: CountedOp) -> Number:
        op = counted_op.op
        if not counted_op.has_effect("cache_bits"):
            return 0
        if isinstance(op, State):
            return counted_op.cache_bits(state_bits(op, stored_format))
        if stored_format.name in DTYPE_BITS:
            return counted_op.cache_bits(stored_format.keys.bits)
        cache_kind = getattr(op, "cache_kind", "cache")
        remedy_text = "expected a number format such as fp8, or blocks such as q8_0"
        if stored_format.is_latent_format and cache_kind not in LATENT_CACHE_KINDS:
            raise InputError(
                f"{stored_format.name}: stores the latents of MLA, and the model has a cache of "
                f"{cache_kind.replace('_', ' ')}; {remedy_text}"
            )
        if isinstance(op, KVCache) and not (stored_format.has_scale_per_head and op.cache_kind == "latent_attention"):
            return exact_div(counted_op.cache_bits(1), op.width) * stored_format.bits_per_token(op.vectors)
        if stored_format.has_scale_per_head:
            raise InputError(
                f"{stored_format.name}: stores keys and values of heads, and the model's "
                f"{cache_kind.replace('_', ' ')} holds others; {remedy_text}"
            )
        return counted_op.cache_bits(stored_format.keys.element_bits)

    return cached_bits
