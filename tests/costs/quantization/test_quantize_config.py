"""Configs and names of schemes: the schemes they stand for, the rejected ones, and the output of `llmcalc memory`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import llmcalc
from llmcalc.costs.params import params
from llmcalc.costs.quantization import (
    BYTE_PURPOSES,
    COMMON_SCHEMES,
    StoredBytes,
    quantized_size,
    scheme_named,
    scheme_of_config,
)
from llmcalc.costs.quantization.base import weight_tensors_of
from llmcalc.device_memory.settings import Settings
from llmcalc.device_memory.static import memory
from llmcalc.errors import InputError
from llmcalc.model import ModelSpec
from tests.costs.quantization.test_quantize import DENSE, MIXTURE, WEIGHTS, deep, size
from tests.families import shapes_of
from tests.samples import in_one_test

GROUPS = {"group_0": {"targets": ["Linear"], "weights": WEIGHTS}}


def of_config(spec: ModelSpec, **quantization: Any) -> StoredBytes:
    scheme = scheme_of_config({"quantization_config": quantization})
    assert scheme is not None
    return quantized_size(spec, scheme).by_part


@in_one_test
@pytest.mark.parametrize(
    ("name", "config"),
    [
        (
            "awq-int4-g32",
            {
                "quant_method": "awq",
                "bits": 4,
                "group_size": 32,
                "version": "gemm",
                "zero_point": True,
                "modules_to_not_convert": None,
            },
        ),
        (
            "gptq-int4-g32",
            {
                "quant_method": "gptq",
                "bits": 4,
                "group_size": 32,
                "desc_act": True,
                "sym": True,
                "checkpoint_format": "gptq",
            },
        ),
        ("gptq-int8", {"quant_method": "gptq", "bits": 8, "group_size": -1}),
        (
            "nf4-double",
            {
                "quant_method": "bitsandbytes",
                "load_in_4bit": True,
                "bnb_4bit_quant_type": "nf4",
                "bnb_4bit_use_double_quant": True,
            },
        ),
        (
            "nf4",
            {
                "load_in_4bit": True,
                "bnb_4bit_quant_type": "nf4",
                "bnb_4bit_compute_dtype": "bfloat16",
                "_load_in_8bit": False,
            },
        ),
        ("int8", {"quant_method": "bitsandbytes", "load_in_8bit": True, "llm_int8_threshold": 6.0}),
        (
            "fp8-block128",
            {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
        ),
        ("fp8", {"quant_method": "fp8"}),
        ("fp8-channel", {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}),
        (
            "w4a16-g32",
            {
                "quant_method": "compressed-tensors",
                "format": "pack-quantized",
                "ignore": ["lm_head"],
                "config_groups": {
                    "group_0": {"targets": ["Linear"], "weights": {**WEIGHTS, "observer": "minmax", "dynamic": False}}
                },
            },
        ),
    ],
)
def test_a_config_is_the_scheme_of_that_name(name: str, config: dict[str, Any]) -> None:
    assert of_config(DENSE, **config) == size(DENSE, name)


def test_modules_that_a_config_leaves_out() -> None:
    """Under each library's rule of matching, and under the names that published models give the modules."""
    q, kv, o, f = 128 * 96, 64 * 96, 96 * 128, 192 * 96
    all_of_it = 2 * (q + 2 * kv + o + 3 * f)
    assert of_config(DENSE, quant_method="fp8", modules_to_not_convert=["lm_head"]).weights == all_of_it
    assert (
        of_config(DENSE, quant_method="fp8", modules_to_not_convert=[]).weights == all_of_it + 50 * 96
    )  # a list without the head
    assert (
        of_config(DENSE, quant_method="fp8", modules_to_not_convert=["lm_head", "o_proj"]).weights == all_of_it - 2 * o
    )
    assert of_config(
        DENSE, quant_method="fp8", modules_to_not_convert=["lm_head", "model.layers.1.self_attn"]
    ).weights == all_of_it - (q + 2 * kv + o)
    assert (
        of_config(DENSE, quant_method="fp8", modules_to_not_convert=["lm_head", "model.layers.1"]).weights
        == all_of_it // 2
    )
    assert (
        of_config(deep(DENSE, 12), quant_method="fp8", modules_to_not_convert=["lm_head", "model.layers.1"]).weights
        == 11 * all_of_it // 2
    )  # not 10, 11
    assert (
        of_config(DENSE, quant_method="fp8", modules_to_not_convert=["lm_head", "model.layers.*.mlp"]).weights
        == all_of_it - 2 * 3 * f
    )
    groups = {"group_0": {"targets": ["Linear"], "weights": {"type": "float", "num_bits": 8, "strategy": "channel"}}}
    common = {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": groups}
    assert of_config(DENSE, **common, ignore=["lm_head", "re:.*self_attn.*"]).weights == 2 * 3 * f
    assert (
        of_config(DENSE, **common, ignore=["lm_head", "model.layers.0.mlp"]).weights == all_of_it
    )  # not a linear layer
    assert of_config(DENSE, **common, ignore=["lm_head", "model.layers.0.mlp.up_proj"]).weights == all_of_it - f
    assert of_config(
        DENSE, quant_method="modelopt", quant_algo="FP8", ignore=["lm_head", "model.layers.0.self_attn*"]
    ).weights == all_of_it - (q + 2 * kv + o)
    some = [["self_attn.q_proj", "self_attn.o_proj"], ["mlp.up_proj"]]
    assert (
        of_config(DENSE, quant_method="gptq", bits=4, group_size=32, modules_in_block_to_quantize=some).weights
        == 2 * (q + o + f) // 2
    )
    expert, shared = 3 * 4 * 96 * 64, 3 * 192 * 64
    assert (
        of_config(MIXTURE, **common, ignore=["lm_head", "re:.*self_attn.*", "re:.*shared_expert.*"]).weights
        == 2 * expert
    )
    only = {
        "only": {
            "targets": ["re:.*mlp\\.experts.*"],
            "weights": {"type": "float", "num_bits": 8, "strategy": "channel"},
        }
    }
    assert of_config(MIXTURE, **{**common, "config_groups": only}).weights == 2 * expert
    assert (
        of_config(
            MIXTURE,
            quant_method="mxfp4",
            modules_to_not_convert=["model.layers.*.self_attn", "model.layers.0.mlp.experts"],
        ).weights
        == expert // 2
    )
    assert (
        of_config(MIXTURE, quant_method="awq", group_size=32, modules_to_not_convert=["gate", "self_attn"]).weights
        == 2 * (expert + shared) // 2
    )


def test_entries_that_name_nothing_are_said() -> None:
    scheme = scheme_of_config(
        {"quantization_config": {"quant_method": "fp8", "modules_to_not_convert": ["lm_head", "model.layers.0.mixer"]}}
    )
    assert scheme is not None
    quantized_size(DENSE, scheme)
    assert [text for text in scheme.notes() if "not in this model: model.layers.0.mixer" in text]


@in_one_test
@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "spqr"}, "quant_method: 'spqr' is not known; expected one of fp8, fbgemm_fp8, awq"),
        ({"quant_method": "awq", "bits": 3}, "bits: 3; expected one of 4"),
        ({"quant_method": "awq", "version": "gemv"}, "version: 'gemv'; expected one of 'gemm'"),
        (
            {"quant_method": "fp8", "weight_block_size": [128]},
            "weight_block_size: .128.; expected two whole numbers of 1 or more",
        ),
        (
            {"quant_method": "fp8", "speed": 3},
            "quantization_config of fp8: speed: not known; expected one of act_per_tensor, activation_scheme, ",
        ),
        ({"quant_method": "fp8", "modules_to_not_convert": "lm_head"}, "expected a list of module names"),
        ({"quant_method": "fp8", "modules_to_not_convert": ["a(*"]}, "is no regular expression"),
        (
            {"quant_method": "fp8", "modules_to_not_convert": ["model.layers.0.mlp.experts.7.up_proj"]},
            "names one expert",
        ),
        ({"quant_method": "fp8", "modules_to_not_convert": ["(\\w+\\.?)+#"]}, "quick to match"),
        (
            {"quant_method": "fp8", "modules_to_not_convert": [f"a{i}" for i in range(6000)]},
            "6,000 entries; expected at most 5,000",
        ),
        ({"quant_method": "gptq", "bits": 5}, "bits: 5; expected one of 2, 3, 4, 8"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 0}, "group_size: 0; expected a positive whole number"),
        (
            {"quant_method": "gptq", "bits": 4, "dynamic": {"+:lm_head": {"bits": 5}}},
            r"dynamic: .*bits: 5; expected one of 2",
        ),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": True}, "load_in_4bit"),
        (
            {"quant_method": "compressed-tensors", "format": "marlin-24", "config_groups": GROUPS},
            "group_size: 32; expected one",
        ),
        ({"quant_method": "vptq"}, "config_for_layers: None; expected the format of each layer"),
        ({"quant_method": "vptq", "config_for_layers": {"a": {"vector_lens": [-1]}}}, "expected two whole numbers"),
        (
            {"quant_method": "vptq", "config_for_layers": {"a": {"vector_lens": [-1, 8], "num_centroids": [-1, -1]}}},
            "num_centroids: -1; expected a positive whole number",
        ),
        (
            {
                "quant_method": "torchao",
                "quant_type": {"default": {"_type": "IntxWeightOnlyConfig", "_data": {"weight_dtype": ["x", 1]}}},
            },
            "weight_dtype: .*expected one of .int1",
        ),
        (
            {
                "quant_method": "torchao",
                "quant_type": {
                    "default": {
                        "_type": "IntxWeightOnlyConfig",
                        "_data": {"intx_packing_format": "opaque_torchao_auto"},
                    }
                },
            },
            "intx_packing_format: 'opaque_torchao_auto'; expected unpacked_to_int8",
        ),
        ({"quant_method": "compressed-tensors"}, "config_groups: None"),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "nvfp4-pack-quantized",
                "config_groups": {
                    "group_0": {
                        "targets": ["Linear"],
                        "weights": {"type": "float", "num_bits": 4, "strategy": "tensor_group", "group_size": 16},
                        "input_activations": {
                            "num_bits": 4,
                            "strategy": "tensor_group",
                            "group_size": 16,
                            "dynamic": False,
                        },
                    }
                },
            },
            "strategy: 'tensor_group'",
        ),
        ({"quant_method": "bitnet", "linear_class": "other"}, "linear_class: 'other'"),
        ({"quant_method": "eetq", "weights": "int4"}, "weights: 'int4'"),
        *(({"quant_method": name}, f"quant_method: '{name}' is not known") for name in ("spqr", "sinq")),
        (
            {"quant_method": "modelopt", "quant_algo": "W4A8"},
            "quant_algo: 'W4A8'; expected MIXED_PRECISION or one of FP8",
        ),
        ({"quant_algo": "MIXED_PRECISION"}, "quantized_layers: None; expected the algorithm of each module"),
        (
            {"quant_algo": "MIXED_PRECISION", "quantized_layers": {"lm_head": {"quant_algo": "FP9"}}},
            "quant_algo: 'FP9'; expected one of FP8",
        ),
        (
            {
                "quant_algo": "MIXED_PRECISION",
                "quantized_layers": {
                    "layers.0.mlp.experts.0.w1": {"quant_algo": "FP8"},
                    "layers.0.mlp.experts.1.w1": {"quant_algo": "NVFP4"},
                },
            },
            "expected the format of the layer's other experts",
        ),
        ({"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 5}}}, "nbits: 5; expected one of"),
        ({"quant_method": "auto-round", "bits": 4, "data_type": "fp"}, "data_type: 'fp'; expected one of 'int'"),
        ({"quant_method": "auto-round", "bits": 4, "packing_format": "gguf"}, "packing_format: 'gguf'; expected auto"),
        ({"quant_method": "quark"}, "global_quant_config: None; expected how weights are quantised"),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "int4"}}}, "dtype: 'int4'; expected"),
        ({"quant_method": "torchao", "quant_type": "int3"}, "quant_type: 'int3'; expected weights in int4"),
        ({"quant_method": "quanto", "weights": "int1"}, "weights: 'int1'; expected one of 'int8'"),
        ({"quant_method": "exl2"}, "bits: None; expected a number of bits above 0"),
        ({"quant_method": "exl3", "bits": float("nan")}, "bits: nan; expected a number of bits"),
        ({"quant_method": ["fp8"]}, "is not known; expected one of fp8"),
    ],
)
def test_a_config_that_is_not_understood_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        of_config(DENSE, **config)


@pytest.mark.parametrize(
    ("stated", "message"),
    [("awq", "'awq'; expected a table"), (["awq"], "a list; expected a table"), (4, "4; expected")],
)
def test_a_config_whose_quantization_is_no_table_is_refused_by_the_name_of_its_file(
    stated: Any, message: str, tmp_path: Path, run: Any
) -> None:
    file = tmp_path / "quant.json"
    file.write_text(json.dumps({**shapes_of("llama")[0], "quantization_config": stated}))
    assert f"{file}: quantization_config: {message}" in run("memory", str(file)).error


def test_a_division_that_leaves_part_of_a_block_is_named(run: Any) -> None:
    """A quarter of gpt-oss's 2,880 columns are 22.5 blocks; the scheme alone was to blame."""
    error = run("memory", "gpt-oss-20b", "--phase", "decode", "--tp", "4").error
    assert "--tp 4: of a rank's weights in mxfp4, layers.0.mlp.experts.down_proj: 720 columns" in error
    assert "expected a smaller --tp, another scheme" in error


@in_one_test
@pytest.mark.parametrize(
    ("name", "spec", "message"),
    [
        ("q5", DENSE, "--quantize q5: unknown scheme. Did you mean q5_0"),
        ("int4", DENSE, r"Did you mean q4_k_m \(llama.cpp\), awq-int4-g128 \(vLLM\), nf4 \(bitsandbytes\), mlx"),
        ("bnb-4bit", DENSE, r"Did you mean q4_k_m \(llama.cpp\)"),
        ("8bit", DENSE, r"Did you mean q8_0 \(llama.cpp\), fp8 \(vLLM\), int8 \(bitsandbytes\)"),
        ("f16", DENSE, "expected none, the published weights, or 16 bits where those are narrower; or --dtype fp16"),
        ("bfloat16", DENSE, "or --dtype bf16"),
        ("bf32", DENSE, "--quantize bf32: unknown scheme"),
        ("awq-int4-g0", DENSE, "a group of 0; expected 1 to"),
        ("awq-int4-g" + "9" * 5000, DENSE, "expected 1 to"),
        ("awq-int4-g128", DENSE, "layers.0.self_attn.q_proj: 96 columns are not a multiple of group_size 128"),
        ("mxfp4", DENSE, "converts routed experts, and this model has none"),
        ("gptq-int5-g32", DENSE, "unknown scheme"),
        ("q4_k_m", DENSE.model_copy(update={"encoder": DENSE.decoder}), "for models of one stack"),
    ],
)
def test_a_scheme_that_cannot_be_is_refused(name: str, spec: ModelSpec, message: str) -> None:
    with pytest.raises(InputError, match=message):
        quantized_size(spec, scheme_named(name))


# memory


def test_memory_takes_the_configs_scheme_unless_told_otherwise() -> None:
    config = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    plain = 2 * params(DENSE).total
    assert memory(DENSE, model_config=config).weights == size(DENSE, "fp8-block128").total
    assert memory(DENSE, Settings(quantize="int8"), model_config=config).weights == size(DENSE, "int8").total
    assert memory(DENSE, Settings(quantize="none"), model_config=config).weights == plain
    assert memory(DENSE, Settings(dtype="bf16"), model_config=config).weights == plain
    assert memory(DENSE, Settings("training"), model_config=config).weights == plain
    assert memory(DENSE, Settings(quantize="int8", dtype="fp32")).weights == size(DENSE, "int8", "float32").total
    assert memory(DENSE, Settings(quantize="int8"), published_dtype="float8").weights == size(DENSE, "int8").total
    with pytest.raises(InputError, match="--quantize: a quantised weight takes no gradient"):
        memory(DENSE, Settings("training", quantize="int8"))
    with pytest.raises(
        InputError, match="--dtype int4: with --quantize int8 this is the format of the tensors that stay"
    ):
        memory(DENSE, Settings(quantize="int8", dtype="int4"))


def test_the_command(run: Any) -> None:
    code, out, _ = run("memory", "llama3-8b", "--quantize", "q4_k_m", "--format", "json")
    found = json.loads(out)["memory"]
    assert code == 0
    assert (
        found["weights"]
        == sum(found["weights_by_part"].values())
        == size(llmcalc.load("llama3-8b").model, "q4_k_m").total
    )
    assert tuple(found["weights_by_part"]) == BYTE_PURPOSES
    assert sum(sum(parts.values()) for parts in found["weights_by_component"].values()) == found["weights"]
    assert found["quantization"] == {"scheme": "q4_k_m", "source": "llama.cpp", "unconverted_dtype": "float32"}
    assert run("memory", "gpt2", "--format", "json").document["memory"]["weights_by_part"] is None
    assert "Did you mean" in run("memory", "llama3-8b", "--quantize", "q4km").error
    assert run("memory", "llama3-8b", "--quantize", "q4_k_m", "--phase", "training")[0] == 2


def test_optional_parts() -> None:
    """An MTP module's layer is converted, its input projection is not; llama.cpp's rules do not cover MTP modules."""
    spec, mtp = llmcalc.load("deepseek-v3").model, frozenset({"mtp"})
    more, less = (
        quantized_size(spec, scheme_named("fp8"), included_parts=which).by_part for which in (mtp, frozenset[str]())
    )
    assert more.unconverted - less.unconverted == 2 * (
        14_336 * 7_168 + 256 * 7_168 + 5 * 7_168 + 1_536 + 512
    )  # eh_proj, router, norms
    with pytest.raises(InputError, match="expected no --with-mtp"):
        quantized_size(spec, scheme_named("q4_k_m"), included_parts=mtp)


@pytest.mark.parametrize("model", ["qwen3-30b-a3b", "mixtral-8x7b", "deepseek-v3", "llama3-8b", "gpt2"])
def test_every_name_is_counted(model: str) -> None:
    spec = llmcalc.load(model).model
    experts = params(spec).by_component.get("experts")
    for name in (*COMMON_SCHEMES, "q4_k_m-qkv", "q4_0-imatrix"):
        if name == "mxfp4" and not experts:
            with pytest.raises(InputError, match="converts routed experts, and this model has none"):
                quantized_size(spec, scheme_named(name))
            continue
        assert quantized_size(spec, scheme_named(name)).total < 2 * params(spec).total


@pytest.mark.parametrize("case", ["mamba-130m", "mamba2-2.7b"])
def test_state_space_models(case: str) -> None:
    """dt_proj of the smaller model has rows of 48: F16 in llama.cpp's mixes with blocks of 256, and no type in those
    with 32.
    """
    spec = llmcalc.load(str(Path(__file__).parents[2] / "data/cases" / case)).model
    for name in ("q4_k_m", "q8_0", "q2_k", "iq4_xs", "fp8", "nf4-double", "int8", "w8a8"):
        assert quantized_size(spec, scheme_named(name)).total < 2 * params(spec).total
    if case == "mamba-130m":
        with pytest.raises(InputError, match=r"dt_proj: rows of 48 are not a multiple of Q4_0's 32"):
            quantized_size(spec, scheme_named("q4_0"))
        with pytest.raises(InputError, match=r"dt_proj: 48 columns are not a multiple of group_size 128"):
            quantized_size(spec, scheme_named("awq-int4-g128"))


# --- mlx-lm -----------------------------------------------------------------------------------------------------------

MLX = {"group_size": 32, "bits": 4}


def test_mlx_holds_a_scale_and_a_bias_a_group_of_all_maps_and_embeddings() -> None:
    """DENSE: 96 wide, 2 layers, 4 query and 2 key/value heads of 32, FFNs of 192, a vocabulary of 50; 16-bit scales and
    biases.
    """
    maps = (
        2 * (128 * 96 + 2 * 64 * 96 + 96 * 128 + 3 * 192 * 96) + 2 * 50 * 96
    )  # also the token embedding and the output head
    found = of_config(DENSE, **MLX)
    assert (found.weights, found.scales, found.zeros) == (maps // 2, maps // 32 * 2, maps // 32 * 2)
    assert found.unconverted == 2 * (params(DENSE).total - maps)
    assert found == quantized_size(DENSE, _mlx({"quantization": MLX})).by_part == of_config(DENSE, **MLX, mode="affine")
    three = of_config(DENSE, group_size=32, bits=3)
    assert (three.weights, three.scales) == (maps * 3 // 8, found.scales)


def _mlx(config: dict[str, Any]) -> Any:
    scheme = scheme_of_config(config)
    assert scheme is not None
    return scheme


def test_mlx_keeps_what_has_no_whole_groups() -> None:
    """With groups of 64 columns, 96 is not a multiple; 128 and 192 are."""
    wide = 2 * (96 * 128 + 96 * 192)
    assert of_config(DENSE, group_size=64, bits=8).weights == wide


@pytest.mark.parametrize(("mode", "bits", "group"), [("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16)])
def test_mlx_holds_one_byte_a_group_in_the_microscaling_formats(mode: str, bits: int, group: int) -> None:
    found, affine = of_config(DENSE, mode=mode, bits=bits, group_size=group), of_config(DENSE, bits=bits, group_size=32)
    assert (found.weights, found.zeros, found.other) == (affine.weights, 0, 0)
    assert found.scales * group == found.weights * 8 // bits


def test_mlx_stores_the_modules_that_its_table_names_otherwise() -> None:
    usual, down = of_config(DENSE, **MLX), 96 * 192
    found = of_config(DENSE, **MLX, lm_head=False, **{"model.layers.1.mlp.down_proj": {"group_size": 64, "bits": 8}})
    assert found.weights == usual.weights - 50 * 96 // 2 + down // 2
    assert found.unconverted == usual.unconverted + 2 * 50 * 96
    assert found.scales == usual.scales - 2 * (50 * 96 + down) // 32 + 2 * down // 64


def test_mlx_converts_routers_where_its_table_says_so() -> None:
    """The class in mlx-lm decides whether a router is a linear layer, which the config tells only by its table."""
    scheme = scheme_of_config({"quantization_config": MLX})
    assert scheme is not None
    quantized_size(MIXTURE, scheme)
    assert "whether mlx-lm converts the routers is not in the config" in " ".join(scheme.notes())
    gates = {f"model.layers.{i}.mlp.gate": {"group_size": 32, "bits": 8} for i in range(MIXTURE.main.num_hidden_layers)}
    kept = dict.fromkeys(gates, False)
    assert of_config(MIXTURE, **MLX, **gates).total < of_config(MIXTURE, **MLX, **kept).total


def test_mlx_converts_no_router_that_is_a_bare_parameter() -> None:
    """`MoEGate` of mlx-lm's deepseek_v3.py has a bare `weight`, and `mlp.gate` of qwen3_moe.py is a linear layer."""
    routers = sum(site.tensor.size for site in weight_tensors_of(MIXTURE.tree()) if site.kind == "router")
    bare, usual = (
        quantized_size(MIXTURE, _mlx({"model_type": kind, "quantization": MLX})).by_part
        for kind in ("deepseek_v3", "qwen3_moe")
    )
    assert quantized_size(MIXTURE, _mlx({"model_type": "glm4v_moe", "quantization": MLX})).by_part == bare
    assert bare.unconverted - usual.unconverted == 2 * routers
    assert usual.weights - bare.weights == routers // 2
    scheme = _mlx({"model_type": "kimi_k25", "text_config": {}, "quantization": MLX})
    quantized_size(MIXTURE, scheme)
    assert "routers" not in " ".join(scheme.notes())


def test_mlx_leaves_what_a_class_of_mlx_vlm_refuses_without_listing_it() -> None:
    """`quant_predicate` of cohere2_moe says no to attention and routers, and that of mistral3 since April to a head."""
    refused_size = sum(
        site.tensor.size for site in weight_tensors_of(MIXTURE.tree()) if site.kind in ("attention", "router")
    )
    refusing, usual = (_mlx({"model_type": kind, "quantization": MLX}) for kind in ("cohere2_moe", "qwen3_moe"))
    found, converted = (quantized_size(MIXTURE, scheme).by_part for scheme in (refusing, usual))
    assert found.unconverted - converted.unconverted == 2 * refused_size
    assert "unconverted: norms, biases, attention, router" in refusing.notes()
    scheme = _mlx({"model_type": "mistral3", "text_config": {}, "quantization": MLX})
    quantized_size(DENSE, scheme)
    assert "output head unconverted since April 2026" in " ".join(scheme.notes())


@pytest.mark.parametrize("case", ["mamba-130m", "mamba2-2.7b"])
def test_mlx_converts_the_linear_layers_of_a_recurrence_and_no_convolution(case: str) -> None:
    spec = llmcalc.load(str(Path(__file__).parents[2] / "data/cases" / case)).model
    matrices = [p for p in weight_tensors_of(spec.tree()) if p.tensor.role != "vector" and p.tensor.shape[-1] % 32 == 0]
    bits = of_config(spec, **MLX)
    assert bits.weights * 2 == sum(p.tensor.size for p in matrices)
    assert {p.name for p in matrices} >= {"in_proj", "out_proj"}


@pytest.mark.parametrize(
    ("name", "usual", "fields"),
    [
        ("modelopt_fp4", "modelopt", {"quant_algo": "NVFP4", "group_size": 16}),
        ("petit_nvfp4", "modelopt", {"quant_algo": "NVFP4", "group_size": 16}),
        ("inc", "auto-round", {"bits": 4, "group_size": 32, "sym": True}),
        ("intel/auto-round", "auto-round", {"bits": 4, "group_size": 32, "sym": False}),
    ],
)
def test_a_method_has_other_names(name: str, usual: str, fields: dict[str, Any]) -> None:
    assert of_config(DENSE, quant_method=name, **fields) == of_config(DENSE, quant_method=usual, **fields)


@in_one_test
@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({**MLX, "model.layers.0.mlp.upproj": False}, "model.layers.0.mlp.upproj: names no module of this model"),
        ({**MLX, "lm_head": 4}, "lm_head: 4; expected how a module is stored, true or false"),
        ({**MLX, "lm_head": {"bits": 4, "group_size": 32, "width": 1}}, "lm_head: width: not known"),
        ({"group_size": 32, "bits": 7}, "bits: 7; expected one of 2, 3, 4, 5, 6, 8"),
        ({"group_size": 48, "bits": 4}, "group_size: 48; expected one of 32, 64, 128"),
        ({"group_size": 64, "bits": 4, "mode": "mxfp4"}, "group_size: 64; expected one of 32"),
        ({**MLX, "mode": "linear"}, "mode: 'linear'; expected one of 'affine'"),
    ],
)
def test_what_no_table_of_mlx_has_is_refused(table: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        of_config(DENSE, **table)
