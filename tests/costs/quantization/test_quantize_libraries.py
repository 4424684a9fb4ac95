"""Configs of ModelOpt's mixed precision and of other libraries: bytes by hand, from the layouts of their sources.

DENSE has two layers with queries of 128 × 96, keys and values of 64 × 96, an output of 96 × 128 and three matrices of
192 · 96 weights; its embedding and its head have 50 rows.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import llmcalc
from llmcalc.costs.params import params
from llmcalc.costs.quantization import StoredBytes, quantized_size, scheme_of_config
from llmcalc.costs.quantization.formats import AQLM, FP4, FP8, HQQ, ActivationScales, QuantoInt, WholeInt
from llmcalc.costs.quantization.schemes_by_name import scheme_named
from llmcalc.device_memory.settings import Settings
from llmcalc.device_memory.static import memory
from llmcalc.errors import InputError
from llmcalc.sources.huggingface.checkpoint import checkpoint_of
from tests.builders import spec_of
from tests.costs.quantization.test_quantize import DENSE
from tests.samples import in_one_test

SHAPES = [(128, 96), (64, 96), (64, 96), (96, 128), (192, 96), (192, 96), (96, 192)]
"""(rows, columns) of the linear layers of one layer."""

N = 2 * sum(rows * columns for rows, columns in SHAPES)
ROWS = 2 * sum(rows for rows, _ in SHAPES)
HEAD = 50 * 96
PLAIN = 2 * (params(DENSE).total - N)
"""Bytes in bf16 of everything else."""

MIXED: dict[str, dict[str, Any]] = json.loads((Path(__file__).parents[2] / "data" / "mixed_precision.json").read_text())


def parts_of(**quantization: Any) -> StoredBytes:
    scheme = scheme_of_config({"quantization_config": quantization})
    assert scheme is not None
    names = checkpoint_of({"model_type": "llama"}).names(DENSE.tree(), DENSE.kind)
    return quantized_size(DENSE, scheme, module_names_of=names).by_part


BY_HAND: dict[str, tuple[dict[str, Any], StoredBytes]] = {
    "auto-round": (
        {"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": True, "iters": 200},
        StoredBytes(N // 2, 2 * N // 32, N // 32 // 2, 0, PLAIN),
    ),
    "auto-round in AWQ's layout": (
        {"quant_method": "auto-round", "bits": 4, "group_size": 32, "packing_format": "auto_round:auto_awq"},
        StoredBytes(N // 2, 2 * N // 32, N // 32 // 2, 0, PLAIN),
    ),
    "auto-round without the second layer's last matrix": (
        {
            "quant_method": "auto-round", "bits": 4, "group_size": 32,
            "extra_config": {"model.layers.1.mlp.down_proj": {"bits": 16}},
        },
        StoredBytes((N - 96 * 192) // 2, 2 * (N - 96 * 192) // 32, (N - 96 * 192) // 32 // 2, 0, PLAIN + 2 * 96 * 192),
    ),
    "hqq": (
        {"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 64, "axis": 1}}},
        StoredBytes(N // 2, 2 * N // 64, 2 * N // 64, 0, PLAIN),
    ),
    "quark in FP8": (
        {
            "quant_method": "quark", "exclude": ["lm_head"],
            "global_quant_config": {
                "weight": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"},
                "input_tensors": {"dtype": "fp8_e4m3", "is_dynamic": False},
            },
        },
        StoredBytes(N, 14 * 2, 0, 14 * 2, PLAIN),
    ),
    "quark in FP8, activations scaled as they come": (
        {
            "quant_method": "quark", "exclude": ["lm_head"],
            "global_quant_config": {
                "weight": {"dtype": "fp8_e4m3", "qscheme": "per_channel"},
                "input_tensors": {"dtype": "fp8_e4m3", "is_dynamic": True},
            },
        },
        StoredBytes(N, 2 * ROWS, 0, 0, PLAIN),
    ),
    "quark in FP8, weights alone": (
        {
            "quant_method": "quark", "exclude": ["lm_head"],
            "global_quant_config": {
                "weight": {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "scale_type": "float32"}
            },
        },
        StoredBytes(N, 14 * 4, 0, 0, PLAIN),
    ),
    "quark in MXFP4": (
        {
            "quant_method": "quark", "exclude": ["lm_head"],
            "global_quant_config": {"weight": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32}},
        },
        StoredBytes(N // 2, N // 32, 0, 0, PLAIN),
    ),
    "torchao": (
        {
            "quant_method": "torchao",
            "quant_type": {"default": {"_type": "Int4WeightOnlyConfig", "_data": {"group_size": 32}}},
        },
        StoredBytes(N // 2, 2 * N // 32, 2 * N // 32, 0, PLAIN),
    ),
    "torchao in int8": (
        {"quant_method": "torchao", "quant_type": "int8_weight_only", "modules_to_not_convert": None},
        StoredBytes(N, 4 * ROWS, ROWS, 0, PLAIN),
    ),
    "torchao in int4, a byte each, as 8da4w": (
        {
            "quant_method": "torchao",
            "quant_type": {
                "default": {
                    "_type": "Int8DynamicActivationIntxWeightConfig",
                    "_version": 2,
                    "_data": {
                        "weight_dtype": {"_type": "torch.dtype", "_data": "int4"},
                        "weight_granularity": {"_type": "PerGroup", "_data": {"group_size": 32}},
                        "weight_scale_dtype": {"_type": "torch.dtype", "_data": "bfloat16"},
                        "intx_packing_format": {"_type": "IntxPackingFormat", "_data": "UNPACKED_TO_INT8"},
                    },
                }
            },
        },
        StoredBytes(N, 2 * N // 32, N // 32, 0, PLAIN),
    ),
    "torchao by module, with a table of embeddings": (
        {
            "quant_method": "torchao", "include_input_output_embeddings": True, "modules_to_not_convert": ["lm_head"],
            "quant_type": {
                "default": {
                    "_type": "FqnToConfig",
                    "_data": {
                        "fqn_to_config": {
                            "_default": {"_type": "Int4WeightOnlyConfig", "_data": {"group_size": 32}},
                            "model.embed_tokens": {
                                "_type": "IntxWeightOnlyConfig",
                                "_data": {"scale_dtype": {"_type": "torch.dtype", "_data": "bfloat16"}},  # by row
                            },
                            "re:model.layers.0.*": {"_type": "Int4WeightOnlyConfig", "_data": {"group_size": 32}},
                            "model.layers.0.mlp.down_proj": None,  # a name goes before a pattern
                        }
                    },
                }
            },
        },
        StoredBytes(
            (N - 96 * 192) // 2 + HEAD,
            2 * (N - 96 * 192) // 32 + 2 * 50,
            2 * (N - 96 * 192) // 32 + 50,
            0,
            PLAIN + 2 * (96 * 192 - HEAD),
        ),
    ),
    "hqq by layer": (
        {
            "quant_method": "hqq",
            "quant_config": {
                "self_attn.q_proj": {"weight_quant_params": {"nbits": 8, "group_size": 64, "axis": 1}},
                "mlp.up_proj": {"weight_quant_params": {"nbits": 4, "group_size": 32, "axis": 1}},
            },
        },
        StoredBytes(
            2 * (128 * 96 + 192 * 96 // 2),
            2 * 2 * (128 * 96 // 64 + 192 * 96 // 32),
            2 * 2 * (128 * 96 // 64 + 192 * 96 // 32),
            0,
            PLAIN + 2 * (N - 2 * (128 * 96 + 192 * 96)),
        ),
    ),
    "sparse integers of marlin-24": (
        {
            "quant_method": "compressed-tensors", "format": "marlin-24", "ignore": ["lm_head"],
            "sparsity_config": {"format": "sparse-24-bitmask"},
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "weights": {"type": "int", "num_bits": 4, "strategy": "channel", "symmetric": True},
                }
            },
        },
        StoredBytes(N // 4, 2 * ROWS, 0, N // 8, PLAIN),
    ),
    "vptq with a residual and outliers": (
        {
            "quant_method": "vptq",
            "config_for_layers": {
                f"model.layers.{layer}.self_attn.q_proj": {
                    "vector_lens": [4, 8], "num_centroids": [16, 256], "num_res_centroids": [-1, 16], "group_num": 1,
                    "group_size": 92, "outlier_size": 4, "enable_norm": True, "enable_perm": True, "in_features": 96,
                    "out_features": 128, "bias": False, "is_indice_packed": True,
                }
                for layer in range(2)
            },
        },
        # 16 rows of indices, each of 92 times 12 bits in 35 words; 32 rows of 4 outliers; three codebooks; an order
        StoredBytes(
            2 * (16 * 35 * 4 + 2 * 32 * 4),
            2 * 2 * 2 * 96,
            0,
            2 * (2 * (16 * 4 + 256 * 8 + 16 * 8) + 2 * 96),
            PLAIN + 2 * (N - 2 * 128 * 96),
        ),
    ),
    "quanto": ({"quant_method": "quanto", "weights": "int8"}, StoredBytes(N, 2 * ROWS, 0, 14 * 2 * 2, PLAIN)),
    "quanto in int4": (
        {"quant_method": "quanto", "weights": "int4"},  # 192 columns are two groups of 96
        StoredBytes(N // 2, 2 * (ROWS + 2 * 96), 2 * (ROWS + 2 * 96), 14 * 2 * 2, PLAIN),
    ),
    "Gemma's checkpoints": (
        {
            "quant_method": "gemma", "num_bits": 4, "modules_to_not_convert": ["lm_head"],
            "module_quant_configs": {r"layers\.1\.mlp\.down_proj|nothing": {"num_bits": 8}},
        },
        StoredBytes((N + 96 * 192) // 2, 4 * ROWS, 0, 14 * 2 * 4, PLAIN),
    ),
    "aqlm": (
        {
            "quant_method": "aqlm", "in_group_size": 8, "out_group_size": 1,
            "num_codebooks": 1, "nbits_per_codebook": 16,
            "linear_weights_not_to_quantize": ["lm_head.weight"],
        },
        StoredBytes(2 * N // 8, 2 * ROWS, 0, 14 * 2**16 * 8 * 2, PLAIN),
    ),
    "exl2": (
        {"quant_method": "exl2", "bits": 4.5, "head_bits": 6},
        StoredBytes(N * 9 // 16 + HEAD * 6 // 8, 0, 0, 0, PLAIN - 2 * HEAD),
    ),
    "exl3": (
        {"quant_method": "exl3", "bits": 3.0, "head_bits": 6, "codebook": "mcg"},
        # sides of 64, 96 and 50 become 128, those of 192 become 256; each of 15 layers has a codebook's number
        StoredBytes(
            2 * (4 * 128 * 128 + 3 * 256 * 128) * 3 // 8 + 128 * 128 * 6 // 8,
            2 * (2 * (4 * 256 + 3 * 384) + 256),
            0,
            15 * 4,
            PLAIN - 2 * HEAD,
        ),
    ),
    "ModelOpt's AWQ, without a method": (
        {
            "quant_algo": "W4A16_AWQ", "group_size": 32, "has_zero_point": False, "pre_quant_scale": True,
            "ignore": ["lm_head"],
        },
        StoredBytes(N // 2, 4 * N // 32, 0, 0, PLAIN),
    ),
    "ModelOpt's SmoothQuant": (
        {"quant_method": "modelopt", "quant_algo": "W8A8_SQ_PER_CHANNEL", "ignore": ["lm_head"]},
        StoredBytes(N, 4 * ROWS, 0, 14 * 4, PLAIN),
    ),
    "ModelOpt's FP8 in blocks": (
        {"quant_method": "modelopt", "quant_algo": "FP8_PB_WO", "group_size": 32, "ignore": ["lm_head"]},
        StoredBytes(N, 4 * N // 32**2, 0, 0, PLAIN),
    ),
    "FP8 with two lists": (
        {
            "quant_method": "fp8", "activation_scheme": "dynamic", "act_per_tensor": False, "weight_per_tensor": False,
            "weight_block_size": [32, 32], "ignored_layers": ["model.layers.0.mlp.up_proj"],
            "modules_to_not_convert": ["lm_head", "model.layers.0.mlp.gate_proj"],
        },
        StoredBytes(N - 2 * 192 * 96, 4 * (N - 2 * 192 * 96) // 32**2, 0, 0, PLAIN + 4 * 192 * 96),
    ),
    "compressed-tensors with a further list": (
        {
            "quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
            "ignored_layers": ["model.layers.0.mlp.up_proj"], "sparsity_config": {"format": "dense"},
            "transform_config": {"config_groups": {"R1": {"type": "hadamard"}}},
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "weights": {"type": "int", "num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": True},
                }
            },
        },
        StoredBytes((N - 192 * 96) // 2, 2 * (N - 192 * 96) // 32, 0, 13 * 16, PLAIN + 2 * 192 * 96),
    ),
    "one algorithm for each listed module": (
        {
            "quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "ignore": ["mtp*"],
            "quantized_layers": {
                "model.layers.0.self_attn.q_proj": {"quant_algo": "FP8"},
                "model.layers.1.mlp.up_proj": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
                "lm_head": {"quant_algo": "MXFP8"},
            },
        },
        StoredBytes(
            128 * 96 + 192 * 96 // 2 + HEAD,
            4 + (192 * 96 // 16 + 4) + HEAD // 32,
            0,
            4,
            PLAIN + 2 * (N - 128 * 96 - 192 * 96 - HEAD),
        ),
    ),
}  # fmt: skip


@in_one_test
@pytest.mark.parametrize("name", BY_HAND)
def test_the_bytes_are_those_of_the_layout(name: str) -> None:
    config, expected = BY_HAND[name]
    assert parts_of(**config) == expected


@pytest.mark.parametrize("name", MIXED)
def test_a_published_list_names_modules_of_its_model(name: str) -> None:
    """Every module of `quantized_layers` is found, and its weights have the listed format."""
    record = MIXED[name]
    preset = llmcalc.load(record["config"])
    use = memory(preset.model, Settings(), preset.dtype, frozenset(), preset.checkpoint)
    assert use.quantized_size is not None
    assert not [
        note for note in use.quantized_size.scheme.notes() if "converts modules that are not in this model" in note
    ]
    assert use.quantized_size.by_part.weights == eval_bytes(record["weight_bytes"])


def eval_bytes(terms: list[list[int]]) -> int:
    """Returns the sum of products: [layers, matrices, rows, columns, bits of a weight]."""
    return sum(layers * matrices * rows * columns * bits // 8 for layers, matrices, rows, columns, bits in terms)


def test_gpt_oss_is_counted_as_its_checkpoint_stores_it() -> None:
    """MXFP4 experts with one byte of scale for 32 weights; the rest in bf16. The published files have 60.77 GiB."""
    preset = llmcalc.load("gpt-oss-120b")
    experts = 36 * 128 * 3 * 2880 * 2880
    total = preset.model.tree().total(lambda use: use.params())
    use = memory(preset.model, Settings(), preset.dtype, frozenset(), preset.checkpoint)
    assert use.weights == experts // 2 + experts // 32 + 2 * (total - experts) == 65_248_815_744
    assert round(use.weights / 2**30, 2) == 60.77


@in_one_test
@pytest.mark.parametrize(
    ("storage_format", "rows", "columns", "total"),
    [
        # `HQQLinear` of hqq 0.2.8 with axis 1: W_q, scale and zero
        *(
            (HQQ(bits, 64), 128, 192, total)
            for bits, total in ((8, 26112), (4, 13824), (3, 11520), (2, 7680), (1, 4608))
        ),
        # `quantize` and `freeze` of optimum-quanto 0.2.7: the state dict
        (WholeInt(activation_scales=ActivationScales(2)), 128, 256, 33028),
        (FP8("row", None, 2), 128, 256, 33028),
        (QuantoInt(4), 128, 224, 17924),
        (QuantoInt(4), 128, 300, 19716),
        (QuantoInt(2), 127, 96, 3584),
        (QuantoInt(2), 126, 2880, 105844),
        # `QuantizedLinear` of aqlm 1.1.7: code books, codes and scales
        (AQLM(8, 1, 1, 16), 128, 192, 1054976),
        (AQLM(8, 1, 2, 8), 128, 192, 14592),
        # `quantize_` of torchao 0.18: the tensors of Int8Tensor and Float8Tensor
        (WholeInt(is_symmetric=False, scale_bytes=4), 128, 256, 33408),
        (WholeInt(32, is_symmetric=False, scale_bytes=4), 128, 256, 37888),
        (FP8("row"), 128, 256, 33280),
        # `NVFP4QTensor.quantize` of nvidia-modelopt 0.47: codes, scales of blocks and of the tensor
        (FP4(16, 1), 128, 192, 13828),
    ],
    ids=repr,
)
def test_a_layer_has_the_bytes_of_its_library(storage_format: Any, rows: int, columns: int, total: int) -> None:
    """The sum of the bytes of all tensors that the library made of a bf16 layer without a bias."""
    parts = storage_format.bytes_by_part(rows, columns, 2)
    assert parts.weights + parts.scales + parts.zeros + parts.other == total


@pytest.mark.parametrize(
    ("dtype", "scheme", "scale_type", "is_dynamic", "total"),
    [
        ("fp8_e4m3", "per_tensor", None, False, 63900),
        ("fp8_e4m3", "per_channel", "float", True, 64768),
        ("fp4", "per_group", "float", True, 49472),
    ],
)
def test_a_model_has_the_bytes_that_quark_exports(
    dtype: str, scheme: str, scale_type: str | None, is_dynamic: bool, total: int
) -> None:
    """The sum of all tensors in the file of `export_safetensors` of amd-quark 0.13, of a Llama with one layer."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "vocab_size": 128}
    config = {"model_type": "llama", **sizes, "num_attention_heads": 4, "num_key_value_heads": 2}
    weights = {
        "dtype": dtype,
        "qscheme": scheme,
        "scale_type": scale_type,
        "group_size": 32 if dtype == "fp4" else None,
    }
    inputs = {"dtype": dtype, "qscheme": scheme, "is_dynamic": is_dynamic}
    quantization = {"global_quant_config": {"weight": weights, "input_tensors": inputs}, "exclude": ["lm_head"]}
    scheme_of_quark = scheme_of_config({"quantization_config": {"quant_method": "quark", **quantization}})
    spec = spec_of(config)
    assert scheme_of_quark is not None
    names = checkpoint_of(config).names(spec.tree(), spec.kind)
    assert quantized_size(spec, scheme_of_quark, module_names_of=names).total == total


def test_a_block_size_that_transformers_does_not_read_changes_no_byte() -> None:
    """`BitsAndBytesConfig` of transformers 5.23 has no such field, and `Linear4bit` gets none."""
    config = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    assert parts_of(**config, bnb_4bit_blocksize=128) == parts_of(**config)
    remarks = {
        size: scheme_of_config({"quantization_config": {**config, "bnb_4bit_blocksize": size}}) for size in (64, 128)
    }
    assert [any("bnb_4bit_blocksize" in note for note in scheme.notes()) for scheme in remarks.values() if scheme] == [
        False,
        True,
    ]


def test_the_names_of_mlx_are_its_configs_default_mode() -> None:
    spec = llmcalc.load("llama3-8b").model
    for name, bits, group in (("mlx-4bit", 4, 64), ("mlx-int6-g32", 6, 32)):
        scheme = scheme_of_config({"quantization": {"group_size": group, "bits": bits}})
        assert scheme is not None
        assert quantized_size(spec, scheme_named(name)) == quantized_size(spec, scheme)
    with pytest.raises(InputError, match="mlx-int4-g16: a group of 16; MLX has groups of 32, 64 and 128 columns"):
        scheme_named("mlx-int4-g16")


def test_the_libraries_of_exl2_and_exl3_have_their_names() -> None:
    for method, library in (("exl2", "exllamav2"), ("exl3", "exllamav3")):
        scheme = scheme_of_config({"quantization_config": {"quant_method": method, "bits": 4.0, "head_bits": 6}})
        assert scheme is not None
        assert scheme.source == library
