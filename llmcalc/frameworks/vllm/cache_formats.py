"""Bytes of vLLM's quantized KV cache formats, which store scales beside elements (v1/kv_cache_interface.py).

Scales of a token and head are one float32 for its keys and one for its values (v1/attention/backends/triton_attn.py,
`customize_spec`). NVFP4 has one byte of scale for 16 elements of half a byte (utils/torch_utils.py,
`nvfp4_kv_cache_full_dim`).
"""

from __future__ import annotations

from fractions import Fraction

from ...components.mixers.attention import Attention
from ...errors import InputError
from ..engines.rank import EngineRank, mixers

PACKED_FORMATS = ("fp8_per_token_head", "int8_per_token_head", "int4_per_token_head", "nvfp4")
"""Words of --kv-cache-dtype whose elements have scales beside them."""

FP8_WORDS = ("fp8", "fp8_e4m3", "fp8_e5m2")
"""Words of --kv-cache-dtype whose elements have 8 bits."""

FIRST_VERSION = (0, 20)
"""First version that may have them: 0.19 has none, 0.33 has all."""

SCALE_BYTES = 4


def packed_bytes(word: str, rank: EngineRank, version: tuple[int, ...]) -> Fraction:
    """Returns the bytes of one KV cache element with its share of the scales.

    word: the format. rank: the model of a rank. Raises `InputError` for a model or a version that has no such cache.
    """
    if version < FIRST_VERSION:
        raise InputError(f"--kv-cache-dtype {word}: vLLM 0.19 and earlier have no such cache; expected fp8")
    if rank.latent_projections:
        raise InputError(f"--kv-cache-dtype {word}: of latent attention is not modelled; expected fp8")
    if word == "nvfp4":
        return Fraction(1, 2) + Fraction(1, 16)
    attentions = [mixer for mixer, _ in mixers(rank.preset.model) if isinstance(mixer, Attention)]
    dims = {mixer.head_dim or rank.hidden_size // mixer.num_attention_heads for mixer in attentions}
    if len(dims) != 1:
        raise InputError(f"--kv-cache-dtype {word}: heads of several sizes are not modelled; expected fp8")
    return Fraction(1, 2 if word.startswith("int4") else 1) + Fraction(SCALE_BYTES, dims.pop())
