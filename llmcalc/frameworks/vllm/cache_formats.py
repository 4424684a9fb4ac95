"""Bytes of vLLM's quantized KV cache formats, with scales beside elements (v1/kv_cache_interface.py).

Scales of a token and head are one float32 for its keys and one for its values (v1/attention/backends/triton_attn.py,
`customize_spec`); TurboQuant has a norm of its keys, and a scale and a zero of its values
(model_executor/layers/quantization/turboquant/config.py). NVFP4 has one byte of scale for 16 elements of half a byte
(utils/torch_utils.py, `nvfp4_kv_cache_full_dim`).
"""

from __future__ import annotations

from fractions import Fraction

from ...accelerator import Hardware
from ...components.mixers.attention import Attention
from ...errors import InputError
from ..engines.rank import EngineRank, mixers_with_layer_counts

TURBOQUANT = {
    "turboquant_k8v4": (8, 4), "turboquant_4bit_nc": (4, 4), "turboquant_k3v4_nc": (3, 4), "turboquant_3bit_nc": (3, 3)
}  # fmt: skip
"""Format of TurboQuant → bits per element of keys, and of values."""

PACKED_FORMATS = ("fp8_per_token_head", "int8_per_token_head", "int4_per_token_head", "nvfp4", *TURBOQUANT)
"""Values of --kv-cache-dtype for formats with scales stored beside the elements."""

FP8_WORDS = ("fp8", "fp8_e4m3", "fp8_e5m2")
"""Values of --kv-cache-dtype for formats with 8-bit elements."""

SCALED_LATENTS = "fp8_ds_mla"
"""Value of --kv-cache-dtype for 8-bit latents with scales, which only models with sparse attention have."""

PACKED_FORMATS_FROM = (0, 20)
"""First version that may have the formats in `PACKED_FORMATS`: 0.19 has none of them, 0.33 has all."""

TURBOQUANT_FROM = (0, 21)
"""First version that has TurboQuant in models with recurrent states."""

SCALE_BYTES = 4

PLAIN_LATENTS_FROM = (0, 19)
"""First checked version in which FlashInfer's kernel reads 8-bit latents without scales."""

FLOAT8_LATENTS_FROM = (0, 24)
"""First version in which accelerators of compute capability 12 store latents in 8 bits by default."""


def scales_latents(hardware: Hardware, version_numbers: tuple[int, ...], attention_backend: str) -> bool:
    """Whether 8-bit latents of sparse attention are stored with scales (`fp8_ds_mla`).

    FlashMLA reads them so; accelerators of compute capability 10 prefer FlashInfer's kernel (platforms/cuda.py,
    `_get_backend_priorities`). attention_backend: `--attention-backend`.
    """
    if attention_backend:
        return attention_backend.upper() != "FLASHINFER_MLA_SPARSE"
    return version_numbers < PLAIN_LATENTS_FROM or not _has_capability(hardware, 10)


def stores_latents_in_float8(hardware: Hardware, version_numbers: tuple[int, ...]) -> bool:
    """Whether sparse attention stores latents in float8 by default (`_canonicalize_sparse_mla_kv_cache_dtype`)."""
    return version_numbers >= FLOAT8_LATENTS_FROM and _has_capability(hardware, 12)


def _has_capability(hardware: Hardware, major_version: int) -> bool:
    return hardware.compute_capability is not None and int(float(hardware.compute_capability)) == major_version


def packed_bytes(cache_format: str, engine_rank: EngineRank, version_numbers: tuple[int, ...]) -> Fraction:
    """Returns the bytes per element of a KV cache in a packed format, including the scales per element.

    cache_format: word of --kv-cache-dtype. engine_rank: the model of a rank. Raises `InputError` for a model or a
        version that has no such cache.
    """
    if version_numbers < PACKED_FORMATS_FROM:
        raise InputError(f"--kv-cache-dtype {cache_format}: vLLM 0.19 and earlier have no such cache; expected fp8")
    if engine_rank.up_projection_elements:
        raise InputError(f"--kv-cache-dtype {cache_format}: of latent attention is not modelled; expected fp8")
    if cache_format == "nvfp4":
        return Fraction(1, 2) + Fraction(1, 16)
    attention_layers = [
        mixer for mixer, _ in mixers_with_layer_counts(engine_rank.preset.model) if isinstance(mixer, Attention)
    ]
    head_dims = {mixer.head_dim or engine_rank.hidden_size // mixer.num_attention_heads for mixer in attention_layers}
    if len(head_dims) != 1:
        raise InputError(f"--kv-cache-dtype {cache_format}: heads of several sizes are not modelled; expected fp8")
    head_dim = head_dims.pop()
    if cache_format in TURBOQUANT:
        return _turboquant_bytes(cache_format, head_dim, engine_rank, version_numbers)
    return Fraction(1, 2 if cache_format.startswith("int4") else 1) + Fraction(SCALE_BYTES, head_dim)


def _turboquant_bytes(
    cache_format: str, head_dim: int, engine_rank: EngineRank, version_numbers: tuple[int, ...]
) -> Fraction:
    """Returns the bytes per element of keys and values in a format of TurboQuant. head_dim: elements of a head.

    Beside recurrent states all layers of full attention have the format; of other models the first two and the last
    two keep 16 bits (`get_boundary_skip_layers`).
    """
    if version_numbers < TURBOQUANT_FROM:
        raise InputError(f"--kv-cache-dtype {cache_format}: is modelled from vLLM 0.21 on; expected fp8")
    if not engine_rank.state_caches or any(token_cache.window for token_cache in engine_rank.token_caches):
        raise InputError(
            f"--kv-cache-dtype {cache_format}: is modelled for models with recurrent states alone, whose layers "
            "all have it; expected fp8"
        )
    key_bits, value_bits = TURBOQUANT[cache_format]
    key_bytes = head_dim if key_bits == 8 else -(-head_dim * key_bits // 8) + 2
    token_bytes = key_bytes + -(-head_dim * value_bits // 8) + 4
    return Fraction(token_bytes + token_bytes % 2, 2 * head_dim)
