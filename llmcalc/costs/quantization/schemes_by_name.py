"""The quantization schemes of `--quantize` by name, where names state bits and group size (`gptq-int4-g128`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ...errors import InputError, suggest
from .base import QuantizationScheme
from .formats import AWQ, FP4, FP8, GPTQ, Bnb4, Bnb8, LinearFormat, PackedInt, WholeInt
from .gguf import DEFAULT_TYPE_BY_MIX, MIXES_WITH_LARGER_EMBEDDINGS, GGUFMix
from .linear import LayerGroup, LinearScheme
from .mlx import MLXAffine, MLXScheme, ModuleFormat

LARGEST_GROUP = 2**20
"""The largest group or block size that is supported."""

AWQ_SOURCE = "AutoAWQ, arXiv:2306.00978"
GPTQ_SOURCE = "AutoGPTQ, arXiv:2210.17323"
BNB_SOURCE = "bitsandbytes"
DEEPSEEK_SOURCE = "DeepSeek-V3, arXiv:2412.19437"
TRANSFORMERS_FP8_SOURCE = "transformers FP8Linear"
FBGEMM_SOURCE = "FBGEMM"
COMPRESSED_TENSORS_SOURCE = "compressed-tensors"
MX_SOURCE = "OCP Microscaling Formats 1.0"
NV_SOURCE = "NVIDIA NVFP4"
LLAMA_CPP_SOURCE = "llama.cpp"

BITNET_SOURCE = "transformers BitLinear"
EETQ_SOURCE = "transformers EetqLinear"

STACKED_EXPERTS_REMARK = (
    "experts are separate linear layers, as in transformers 4; transformers 5 stacks them and does not convert them"
)
ZERO_BIASES_REMARK = "AutoGPTQ checkpoints also store a zero bias for every linear layer, 2 bytes per row: not counted"
JSON_DESCRIPTION_REMARK = "the JSON description of each weight in a checkpoint, about 100 bytes, is not counted"


def scheme_of_linears_in_layers(
    scheme_label: str, format_source: str, linear_format: LinearFormat, *scheme_remarks: str
) -> LinearScheme:
    """Returns a scheme for all linear layers inside transformer layers, except the gates of shared experts.

    Published checkpoints do not convert that gate.
    """
    return LinearScheme(scheme_label, format_source, scheme_remarks, (LayerGroup(linear_format),))


def scheme_of_linears_without_routers(
    scheme_label: str, format_source: str, linear_format: LinearFormat, *scheme_remarks: str
) -> LinearScheme:
    """Returns a scheme for every `nn.Linear` except output heads and routers, as in `transformers`."""
    return LinearScheme(
        scheme_label, format_source, scheme_remarks, (LayerGroup(linear_format),), converts_outside_layers=True
    )


def bnb4_scheme(scheme_label: str, has_double_quantization: bool) -> LinearScheme:
    return LinearScheme(
        scheme_label,
        BNB_SOURCE,
        (JSON_DESCRIPTION_REMARK, STACKED_EXPERTS_REMARK),
        (LayerGroup(Bnb4(has_double_quantization)),),
        converts_outside_layers=True,
    )


def mxfp4_scheme(scheme_label: str) -> LinearScheme:
    return LinearScheme(scheme_label, MX_SOURCE, (), (LayerGroup(FP4(32)),), scope="experts")


def mlx_scheme(scheme_label: str, bits: int, group_size: int | None) -> MLXScheme:
    """Returns mlx-lm's affine mode, as `mlx_lm.convert -q --q-bits B --q-group-size N` stores weights."""
    group_size = 64 if group_size is None else group_size
    if group_size not in (32, 64, 128):
        raise InputError(
            f"--quantize {scheme_label}: a group of {group_size}; MLX has groups of 32, 64 and 128 columns"
        )
    return MLXScheme(
        f"mlx-int{bits}-g{group_size}", "mlx-lm", (), ModuleFormat(MLXAffine(bits, group_size), group_size)
    )


_SCHEMES_BY_NAME: dict[str, Callable[[str], QuantizationScheme]] = {
    "fp8": lambda label: scheme_of_linears_without_routers(label, TRANSFORMERS_FP8_SOURCE, FP8("tensor")),
    "fp8-channel": lambda label: scheme_of_linears_without_routers(label, FBGEMM_SOURCE, FP8("row")),
    "fp8-dynamic": lambda label: scheme_of_linears_in_layers(label, COMPRESSED_TENSORS_SOURCE, FP8("row", None)),
    "nf4": lambda label: bnb4_scheme(label, False),
    "nf4-double": lambda label: bnb4_scheme(label, True),
    "int8": lambda label: LinearScheme(
        label, BNB_SOURCE, (STACKED_EXPERTS_REMARK,), (LayerGroup(Bnb8()),), converts_outside_layers=True
    ),
    "w8a8": lambda label: scheme_of_linears_in_layers(label, COMPRESSED_TENSORS_SOURCE, WholeInt()),
    "mxfp4": mxfp4_scheme,
    "mxfp4-linear": lambda label: scheme_of_linears_in_layers(label, MX_SOURCE, FP4(32)),
    "mxfp8": lambda label: scheme_of_linears_in_layers(label, MX_SOURCE, FP8((1, 32), 1)),
    "nvfp4": lambda label: scheme_of_linears_in_layers(label, NV_SOURCE, FP4(16, tensor_scale_count=1)),
}

_SCHEMES_BY_PATTERN: tuple[tuple[str, str, Callable[[str, int, int | None], QuantizationScheme]], ...] = (
    (
        "fp8-blockN",
        r"fp8-block(?P<group>\d+)",
        lambda label, bits, group: scheme_of_linears_in_layers(
            label, DEEPSEEK_SOURCE, FP8((group or 128, group or 128))
        ),
    ),
    (
        "awq-int4-gN",
        r"awq-int(?P<bits>4)(?:-g(?P<group>\d+))?",
        lambda label, bits, group: scheme_of_linears_in_layers(label, AWQ_SOURCE, AWQ(group)),
    ),
    (
        "gptq-intB-gN",
        r"gptq-int(?P<bits>[2348])(?:-g(?P<group>\d+))?",
        lambda label, bits, group: scheme_of_linears_in_layers(
            label, GPTQ_SOURCE, GPTQ(bits, group), ZERO_BIASES_REMARK
        ),
    ),
    (
        "wBa16-gN",
        r"w(?P<bits>[48])a16(?:-g(?P<group>\d+))?",
        lambda label, bits, group: scheme_of_linears_in_layers(
            label, COMPRESSED_TENSORS_SOURCE, PackedInt(bits, group)
        ),
    ),
    ("mlx-intB-gN", r"mlx-(?:int)?(?P<bits>[234568])(?:bit)?(?:-g(?P<group>\d+))?", mlx_scheme),
)
"""(name as printed, pattern, function that builds the scheme). A name without a group has one scale per row."""

COMMON_SCHEMES = (
    "fp8-block128",
    "awq-int4-g128",
    "gptq-int4-g128",
    "w4a16-g128",
    "mlx-int4-g64",
    *_SCHEMES_BY_NAME,
    *(mix.lower() for mix in (*DEFAULT_TYPE_BY_MIX, *MIXES_WITH_LARGER_EMBEDDINGS)),
)
"""Names of all schemes, with the group sizes of most published models."""

SCHEMES_BY_GROUP = {
    "fp8": ("fp8", "fp8-channel", "fp8-dynamic", "fp8-blockN"),
    "AWQ and GPTQ": ("awq-int4-gN", "gptq-intB-gN"),
    "compressed-tensors": ("wBa16-gN", "w8a8"),
    "bitsandbytes": ("nf4", "nf4-double", "int8"),
    "microscaling": ("mxfp4", "mxfp4-linear", "mxfp8", "nvfp4"),
    "MLX": ("mlx-intB-gN",),
    "llama.cpp, also with -imatrix and -qkv": tuple(
        mix.lower() for mix in (*DEFAULT_TYPE_BY_MIX, *MIXES_WITH_LARGER_EMBEDDINGS)
    ),
}
"""Tool → its scheme names, with N for a size and B for bits."""

SCHEMES_BY_BITS = {
    "4": "q4_k_m (llama.cpp), awq-int4-g128 (vLLM), nf4 (bitsandbytes), mlx-int4-g64 (MLX)",
    "8": "q8_0 (llama.cpp), fp8 (vLLM), int8 (bitsandbytes), mlx-int8-g64 (MLX)",
}
"""Bits per weight → the usual schemes, each with a program that runs the scheme."""


def scheme_named(scheme_name: str) -> QuantizationScheme:
    """Returns the quantization scheme that `--quantize` calls by this name.

    A llama.cpp mix may have the suffix `-imatrix` (made with an importance matrix) or `-qkv` (q, k and v are one
    tensor). Raises `InputError`, which lists all names, for an unknown name.
    """
    scheme_label = scheme_name.strip().lower()
    if scheme_label in _SCHEMES_BY_NAME:
        return _SCHEMES_BY_NAME[scheme_label](scheme_label)
    base_label, fuses_qkv = scheme_label.removesuffix("-qkv"), scheme_label.endswith("-qkv")
    mix_name = base_label.removesuffix("-imatrix").upper().replace("-", "_")
    mix_name = mix_name + "_M" if mix_name in ("Q3_K", "Q4_K", "Q5_K") else mix_name
    if mix_name in DEFAULT_TYPE_BY_MIX or mix_name in MIXES_WITH_LARGER_EMBEDDINGS:
        return GGUFMix(
            scheme_label,
            LLAMA_CPP_SOURCE,
            (),
            MIXES_WITH_LARGER_EMBEDDINGS.get(mix_name, mix_name),
            base_label.endswith("-imatrix"),
            fuses_qkv,
            has_larger_embeddings=mix_name in MIXES_WITH_LARGER_EMBEDDINGS,
        )
    if re.fullmatch(r"ud[-_].*|.*_xl", base_label):
        raise InputError(
            f"--quantize {scheme_name[:40]}: Unsloth chooses the types of its dynamic files tensor by tensor; expected "
            f"the .gguf file itself as TARGET or with -m, or a mix near it such as "
            f"{nearest_gguf_mix(scheme_label) or 'q4_k_m'}"
        )
    for _, name_pattern, make_scheme in _SCHEMES_BY_PATTERN:
        name_match = re.fullmatch(name_pattern, scheme_label)
        if name_match:
            matched_sizes = name_match.groupdict()
            group_size = matched_sizes["group"]
            if group_size is not None and not 0 < int(group_size[:12]) <= LARGEST_GROUP:
                raise InputError(
                    f"--quantize {scheme_name[:40]}: a group of {group_size[:12]}; "
                    f"expected 1 to {LARGEST_GROUP:,} columns"
                )
            return make_scheme(
                scheme_label, int(matched_sizes.get("bits") or 8), None if group_size is None else int(group_size)
            )
    if re.fullmatch(r"(?:bf|bfloat)16|f(?:p|loat)?(?:16|32)", scheme_label):
        dtype_text = f"{'bf' if scheme_label[0] == 'b' else 'fp'}{scheme_label[-2:]}"
        raise InputError(
            f"--quantize {scheme_name[:40]}: is not quantized; expected none, the published weights, or 16 bits where "
            f"those are narrower; or --dtype {dtype_text}"
        )
    bits_match = re.fullmatch(
        r"(?:bnb|bitsandbytes|(?:bnb|int|uint|q|w)?[-_]?(?P<bits>[48])[-_]?(?:bits?)?)", scheme_label
    )
    if bits_match:
        suggestion_text = f" Did you mean {SCHEMES_BY_BITS[bits_match['bits'] or '4']}?"
    else:
        suggestion_text = suggest(scheme_label, list(COMMON_SCHEMES))
    names_text = "; ".join(
        f"{named_size}: {', '.join(scheme_names)}" for named_size, scheme_names in SCHEMES_BY_GROUP.items()
    )
    raise InputError(
        f"--quantize {scheme_name[:40]}: unknown scheme"
        + (f".{suggestion_text}" if suggestion_text else f"; expected none or one of {names_text}")
    )


_DYNAMIC_FILE = re.compile(r"(?:ud_(?P<mix>[a-z0-9_]+?)(?:_xl)?|(?P<mix_of_xl>q[2-8]_k)_xl)")

NEAR_MIXES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M", "Q8_K": "Q8_0"}
"""Type in the name of an Unsloth dynamic file → the nearest llama-quantize mix, if it has another name."""

DYNAMIC_FILES_DIFFER = "9 % less to 13 % more"
"""The range of differences in bytes between Unsloth's dynamic files and the nearest mix, in words.

Of Qwen3.8 27B (unsloth/Qwen3.8-27B-GGUF of August 2026, in bytes): UD-Q3_K_XL 13,441,059,904 and Q3_K_M 13,818,690,528;
UD-Q4_K_XL 17,923,394,624 and Q4_K_M 17,106,775,008; UD-Q5_K_XL 20,218,178,624 and Q5_K_M 19,834,055,648; UD-Q6_K_XL
25,924,152,384 and Q6_K 22,884,408,288; UD-Q8_K_XL 31,457,991,680 and Q8_0 29,047,086,048; UD-IQ4_XS 14.3 GB and IQ4_XS
15,705,861,088.
"""


def nearest_gguf_mix(scheme_name: str) -> str | None:
    """Returns the llama.cpp mix nearest to an Unsloth dynamic quantization (`ud-q4_k_xl`); None for other names."""
    file_match = _DYNAMIC_FILE.fullmatch(scheme_name.strip().lower().replace("-", "_"))
    if file_match is None or scheme_name.strip().upper().replace("-", "_") in MIXES_WITH_LARGER_EMBEDDINGS:
        return None
    file_mix = (file_match["mix"] or file_match["mix_of_xl"]).upper()
    nearest_mix = NEAR_MIXES.get(file_mix, file_mix)
    return nearest_mix.lower() if nearest_mix in DEFAULT_TYPE_BY_MIX else None


def with_published_experts(
    quantization_scheme: QuantizationScheme, quantization_config: Mapping[str, Any] | None
) -> QuantizationScheme:
    """Returns the scheme; a llama.cpp mix keeps the experts in MXFP4 if the checkpoint stores them in MXFP4.

    quantization_config: how the published weights are stored, the table of that name in their config; None for none.
    """
    is_mxfp4 = quantization_config is not None and quantization_config.get("quant_method") == "mxfp4"
    if is_mxfp4 and isinstance(quantization_scheme, GGUFMix):
        return replace(quantization_scheme, has_mxfp4_experts=True)
    return quantization_scheme
