"""How servers store keys and values: number formats, llama.cpp's blocks, vLLM's scales for each token and head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from ..algebra import Number, exact_div
from ..errors import InputError, suggest
from ..flow.tree import Cost, Use
from ..ops import KVCache, State
from ..units import DTYPE_BITS, DTYPE_NAMES, bits_to_bytes
from ..units import dtype as dtype_of
from .quantization.blocks import BLOCKS

STATE_BITS = 16
"""Bits of an element of a recurrent state beside a quantized cache: servers quantize keys and values alone."""


@dataclass(frozen=True, slots=True)
class Vector:
    """How the key or the value of one head is stored.

    bits: of one element. block, block_bytes: elements that share a scale, and the bytes of that scale and of a minimum.
    vector_bytes: of the scales that a whole vector has.
    """

    bits: int
    block: int = 1
    block_bytes: int = 0
    vector_bytes: int = 0

    def bytes_of(self, size: int) -> int:
        """Bytes of a vector of `size` elements; blocks are whole."""
        blocks = -(-size // self.block)
        return bits_to_bytes(blocks * self.block * self.bits) + blocks * self.block_bytes + self.vector_bytes

    @property
    def element_bits(self) -> Fraction:
        """Bits of an element with its share of the block's scale."""
        return self.bits + Fraction(8 * self.block_bytes, self.block)


@dataclass(frozen=True, slots=True)
class CacheFormat:
    """A format of the cache. what: a sentence on its scales. even: a key and its value together fill an even number of
    bytes.
    """

    name: str
    keys: Vector
    values: Vector
    what: str
    even: bool = False

    @property
    def of_heads(self) -> bool:
        """Whether each head's vectors have scales of their own, so that only keys and values of heads can be stored."""
        return bool(self.keys.vector_bytes or self.values.vector_bytes)

    def bits_per_token(self, vectors: Sequence[tuple[int, int]]) -> int:
        """Bits of one token's entry in one cache. vectors: (heads, size) of the keys, of the values, and of what else
        is kept.
        """
        stored = [(heads, (self.values if i else self.keys).bytes_of(size)) for i, (heads, size) in enumerate(vectors)]
        if self.even and len(stored) == 2:
            (heads, key), (_, value) = stored
            return 8 * heads * (key + value + (key + value) % 2)
        return 8 * sum(heads * size for heads, size in stored)


PLAIN = "a scale per tensor or none, which is not counted"


def _blocks(name: str, scheme: str) -> CacheFormat:
    size, codes, scales, minima = BLOCKS[scheme]
    vector = Vector(8 * codes // size, size, scales + minima)
    return CacheFormat(name, vector, vector, f"blocks of {size} elements with {scales + minima} bytes of scales each")


def _per_token_head(name: str, bits: int) -> CacheFormat:
    vector = Vector(bits, vector_bytes=4)
    return CacheFormat(name, vector, vector, "a fp32 scale for each token and head, for keys and for values")


def _turbo(name: str, keys: int, values: int) -> CacheFormat:
    """Hadamard rotation and Lloyd-Max codes with a fp16 norm for a key, uniform codes with a fp16 scale and zero for a
    value.
    """
    key = Vector(8) if keys == 8 else Vector(keys, vector_bytes=2)
    what = "fp8 keys" if keys == 8 else f"{keys}-bit keys with a fp16 norm for each token and head"
    return CacheFormat(
        name,
        key,
        Vector(values, vector_bytes=4),
        f"{what}; {values}-bit values with a fp16 scale and zero for each token and head",
        even=True,
    )


FORMATS = {
    one.name: one
    for one in (
        *(_blocks(name.lower(), name) for name in ("Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0", "IQ4_NL")),
        CacheFormat("nvfp4", Vector(4, 16, 1), Vector(4, 16, 1), "blocks of 16 elements with a fp8 scale each"),
        _blocks("mxfp4", "MXFP4"),
        _per_token_head("fp8_per_token_head", 8),
        _per_token_head("int8_per_token_head", 8),
        _per_token_head("int4_per_token_head", 4),
        _turbo("turboquant_k8v4", 8, 4),
        _turbo("turboquant_4bit_nc", 4, 4),
        _turbo("turboquant_k3v4_nc", 3, 4),
        _turbo("turboquant_3bit_nc", 3, 3),
    )
}
"""Formats with scales, by the names that llama.cpp (`--cache-type-k`: ggml-common.h) and vLLM (`--kv-cache-dtype`:
vllm/v1/kv_cache_interface.py, vllm/model_executor/layers/quantization/turboquant/config.py) have for them.
"""

_SPELLED = {"f16": "float16", "f32": "float32", "fp8_e4m3": "float8", "fp8_e5m2": "float8", "int8kv": "int8"}


def cache_format(name: str) -> CacheFormat:
    """The format of that name: a number format (`bf16`, `fp8`, `int8`), or one of `FORMATS`.

    Raises `InputError` for one that is not known.
    """
    plain = name.strip().lower().replace("-", "_")
    if plain in FORMATS:
        return FORMATS[plain]
    try:
        full = dtype_of(_SPELLED.get(plain, name))
    except InputError:
        numbers = [DTYPE_NAMES.get(one, one) for one in DTYPE_BITS]
        near = suggest(plain, [*numbers, *FORMATS])
        raise InputError(
            f"unknown cache format '{name}': expected a number format ({', '.join(numbers)}) or one with scales "
            f"({', '.join(FORMATS)}).{near}"
        ) from None
    return CacheFormat(full, Vector(DTYPE_BITS[full]), Vector(DTYPE_BITS[full]), PLAIN)


def cache_bits_in(stored: CacheFormat) -> Cost:
    """Cost: bits that are kept between tokens, keys and values in that format.

    Raises `InputError` where the format has scales for each head and the cache holds entries that are no head's.
    """
    if stored.name in DTYPE_BITS:
        return lambda use: use.cache_bits(stored.keys.bits)

    def cost(use: Use) -> Number:
        op = use.op
        if not use.has("cache_bits"):
            return 0
        if isinstance(op, State):
            return use.cache_bits(STATE_BITS)
        if isinstance(op, KVCache) and not (stored.of_heads and op.kind == "latent_attention"):
            return exact_div(use.cache_bits(1), op.width) * stored.bits_per_token(op.vectors)
        if stored.of_heads:
            kind = getattr(op, "kind", "cache").replace("_", " ")
            raise InputError(
                f"{stored.name}: stores keys and values of heads, and the model's {kind} holds others; expected a "
                "number format such as fp8, or blocks such as q8_0"
            )
        return use.cache_bits(stored.keys.element_bits)

    return cost
