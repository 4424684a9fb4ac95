"""Quantised weights against the modules with which `transformers` replaces a model's own, for every family of configs.

`replace_with_fp8_linear` (transformers/integrations/finegrained_fp8.py) converts a class on meta. A scheme for every
`nn.Linear` must convert the same layers, fused or not. The other modules are compared one by one.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

import llmcalc
from llmcalc.costs.quantization import quantized_size, scheme_named, scheme_of_config
from llmcalc.costs.quantization.base import weight_tensors_of
from llmcalc.costs.quantization.linear import LinearScheme
from llmcalc.model import ModelSpec
from llmcalc.sources.huggingface.description import read_config
from llmcalc.sources.huggingface.registry import family_of
from llmcalc.witnesses.transformers import build_class_model, uncounted_parameters
from tests.builders import WITH_CLASSES, kinds_of_parts, spec_of
from tests.samples import sampled

# Every family

ROUTERS = {"afmoe", "diffusion_gemma_text", "doge", "gemma4_text", "hunyuan_v1_moe", "longcat_flash", "zaya"}
"""Families whose router is an `nn.Linear`, which `transformers` would convert unless a config excludes it; here a
router is never converted.
"""

OTHER_CLASSES = {
    "falcon",
    "glm5_next_text",
    "gpt2",
    "inkling_text",
    "funnel",
    "gpt-sw3",
    "ibert",
    "openai-gpt",
    "gpt_bigcode",
    "xlnet",
}
"""Families whose linear layers have their own class (`Conv1D`, `FalconLinear`, `QuantLinear`) or are bare parameters,
which the function does not convert.
"""

LAST_OR_TIED = {
    "nanochat",
    "neomme",
    "olmo",
    "gemma3n_text",
    "siglip_text_model",
    "siglip2_text_model",
    "ultrabert",
    "zamba",
    "zamba2",
    *("wav2vec2", "hubert", "unispeech", "unispeech-sat", "data2vec-audio"),
}
"""Families in which `get_keys_to_not_convert` excludes the module of the last parameter or shared modules: here the
last linear layer of the model, a projection and its transpose, or shared blocks. Of SigLIP's and wav2vec 2.0's last
layer it excludes the bias (`head.bias`, `lm_head.bias`), and so not the layer.
"""

BESIDE = {"esm", "git", "idefics", "layoutlmv3", "t5gemma2"}
"""Families in which it also converts modules outside of the text model: a regression on attention maps, a vision
encoder; or, of LayoutLMv3, tables of relative biases (here no matrices), which its class has as `nn.Linear`.
"""

REFUSED = {
    "aria_text",
    "dbrx",
    "ernie4_5_moe",
    "ernie4_5_vl_moe_text",
    "gpt_oss",
    "jetmoe",
    "lfm2_moe",
    "muse_spark_text",
    "nemotron_h",
    "nllb-moe",
    "openai_privacy_filter",
    "switch_transformers",
}
"""Families for which `FP8Experts` cannot be built, at least from some of their configs, or has another width than the
class's experts (Muse Spark).
"""


def shapes() -> dict[str, dict[str, Any]]:
    """Returns one config of each model type: the first with a language-model head."""
    found: dict[str, dict[str, Any]] = {}
    for file in WITH_CLASSES:
        for cls, some in import_module(f"tests.families.{file}").SHAPES.items():
            for shape in some:
                kind = shape["model_type"]
                if (
                    kind not in found
                    and "Classification" not in cls
                    and "QuestionAnswering" not in cls
                    and "PreTraining" not in cls
                ):
                    found[kind] = {"architectures": [cls], **shape}
    apart = ROUTERS | OTHER_CLASSES | LAST_OR_TIED | BESIDE | REFUSED
    return {kind: config for kind, config in found.items() if kind not in apart}


def converted_of(config: dict[str, Any]) -> set[Any]:
    """What may be converted otherwise: the parts of the model, and its family's names of them."""
    modules = family_of(config["model_type"]).modules
    return {*kinds_of_parts(spec_of(config)), *map(repr, modules.items())}


def fp8(model: Any, block: tuple[int, int] | None = None) -> Any:
    """Replaces the linear layers of the class, except those that `transformers` excludes by default."""
    from transformers import FineGrainedFP8Config
    from transformers.integrations.finegrained_fp8 import replace_with_fp8_linear
    from transformers.quantizers.base import get_keys_to_not_convert

    kept = get_keys_to_not_convert(model)
    config = FineGrainedFP8Config(weight_block_size=block)
    return replace_with_fp8_linear(model, modules_to_not_convert=kept, quantization_config=config, pre_quantized=True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("config", sampled(shapes(), converted_of))
def test_the_same_maps_are_converted(config: dict[str, Any]) -> None:
    import torch

    spec = ModelSpec.model_validate(read_config(config)[0])
    model = fp8(build_class_model(config))
    uncounted = uncounted_parameters(config, model)
    converted = {name: p for name, p in model.named_parameters() if p.dtype == torch.float8_e4m3fn}
    real = sum(p.numel() for name, p in converted.items() if name not in uncounted)
    scheme = scheme_of_config({"quantization_config": {"quant_method": "fp8", "weight_block_size": None}})
    assert scheme is not None
    assert quantized_size(spec, scheme).by_part.weights == real > 0


@pytest.mark.filterwarnings("ignore")
def test_routers_alone_are_what_is_not_converted() -> None:
    """For classes whose routers are linear layers, the difference is the routers."""
    import torch

    for kind in ROUTERS:
        spec, config = first(kind)
        real = sum(p.numel() for p in fp8(build_class_model(config)).parameters() if p.dtype == torch.float8_e4m3fn)
        scheme = scheme_of_config({"quantization_config": {"quant_method": "fp8", "weight_block_size": None}})
        assert scheme is not None
        routers = sum(
            site.tensor.size
            for site in weight_tensors_of(spec.tree())
            if site.kind == "router" and site.tensor.role == "matrix"
        )
        assert real - quantized_size(spec, scheme).by_part.weights == routers


def first(kind: str) -> tuple[ModelSpec, dict[str, Any]]:
    """Returns the family's first config with experts of one width, which the modules require."""
    for file in WITH_CLASSES:
        for cls, some in import_module(f"tests.families.{file}").SHAPES.items():
            for shape in some:
                config = {"architectures": [cls], **shape}
                if shape["model_type"] == kind and not isinstance(shape.get("moe_intermediate_size"), list):
                    return ModelSpec.model_validate(read_config(config)[0]), config
    raise AssertionError(kind)


# Module by module


def one_map(scheme: Any, n_out: int, n_in: int) -> int:
    assert isinstance(scheme, LinearScheme)
    total = scheme.groups[0].format.bytes_by_part(n_out, n_in, 2).total
    assert isinstance(total, int)
    return total


def bytes_of(module: Any) -> int:
    return sum(t.numel() * t.element_size() for t in module.state_dict().values())


@pytest.mark.filterwarnings("ignore")
def test_linear_modules_of_transformers() -> None:
    import torch
    from transformers.integrations.bitnet import BitLinear
    from transformers.integrations.eetq import EetqLinear
    from transformers.integrations.fbgemm_fp8 import FbgemmFp8Linear
    from transformers.integrations.gemma_quant import QuantizedLinear
    from transformers.integrations.higgs import HiggsLinear
    from transformers.integrations.metal_quantization import MetalLinear

    def scheme_of(method: str, **fields: Any) -> Any:
        return scheme_of_config({"quantization_config": {"quant_method": method, **fields}})

    with torch.device("meta"):
        assert one_map(scheme_named("fp8-channel"), 136, 96) == bytes_of(FbgemmFp8Linear(96, 136, bias=False))
        bitnet = scheme_of_config({"quantization_config": {"quant_method": "bitnet"}})
        assert one_map(bitnet, 136, 96) == bytes_of(BitLinear(96, 136, bias=False, dtype=torch.bfloat16))
        eetq = scheme_of_config({"quantization_config": {"quant_method": "eetq"}})
        assert one_map(eetq, 136, 96) == bytes_of(EetqLinear(96, 136))
        for bits in (2, 4, 8):
            metal = scheme_of("metal", bits=bits, group_size=32)
            assert one_map(metal, 136, 96) == bytes_of(MetalLinear(96, 136, bias=False, bits=bits, group_size=32))
            assert one_map(scheme_of("gemma", num_bits=bits), 136, 94) == bytes_of(
                QuantizedLinear(94, 136, num_bits=bits)
            )
        for bits in (2, 3, 4):
            higgs = scheme_of("higgs", bits=bits, group_size=32)
            layer = HiggsLinear(96, 160, bits, bias=False, dtype=torch.bfloat16, group_size=32)
            assert one_map(higgs, 160, 96) == bytes_of(layer)


@pytest.mark.filterwarnings("ignore")
def test_gemma_with_quantized_tables() -> None:
    """The form of Gemma 4 E2B's checkpoint for mobile devices: tables, head and networks in their own bits."""
    from transformers import GemmaQuantizationConfig
    from transformers.integrations.gemma_quant import replace_with_quant_layers

    table = {
        "num_bits": 4,
        "quantize_embeddings": True,
        "module_quant_configs": {
            "^lm_head$": {"num_bits": 2},
            r"embed_tokens$": {"num_bits": 2},
            r"layers\.\d+\.mlp\.": {"num_bits": 2},
            r"per_layer_projection$": {"num_bits": 8},
        },
        "modules_to_not_convert": ["per_layer_model_projection"],
    }
    shapes_of_class = import_module("tests.families.gemma.gemma4").SHAPES["Gemma4ForCausalLM"]
    shape = next(c for c in shapes_of_class if c.get("hidden_size_per_layer_input") and not c.get("enable_moe_block"))
    config = {"architectures": ["Gemma4ForCausalLM"], **shape, "tie_word_embeddings": False}
    described = llmcalc.load(config)
    scheme = scheme_of_config({"quantization_config": {"quant_method": "gemma", **table}})
    assert scheme is not None
    assert described.checkpoint is not None
    names = described.checkpoint.names(described.model.tree(), described.model.kind)
    size = quantized_size(described.model, scheme, module_names_of=names)
    model = replace_with_quant_layers(
        build_class_model(config), GemmaQuantizationConfig(**table), table["modules_to_not_convert"]
    )
    assert size.total == sum(p.numel() * p.element_size() for p in model.parameters())
    assert "3 % more than its class" in " ".join(scheme.notes())


@pytest.mark.filterwarnings("ignore")
def test_a_bitnet_model() -> None:
    """All layers except the output head, which is a separate layer in the first shape; online training stores plain
    weights.
    """
    import torch
    from transformers import BitNetQuantConfig
    from transformers.integrations.bitnet import replace_with_bitnet_linear
    from transformers.quantizers.base import get_keys_to_not_convert

    spec, config = first("bitnet")
    model = build_class_model(config)
    replace_with_bitnet_linear(model, get_keys_to_not_convert(model), BitNetQuantConfig())
    model.to(torch.bfloat16)
    scheme = scheme_of_config({"quantization_config": {"quant_method": "bitnet", "modules_to_not_convert": None}})
    assert scheme is not None
    held = {id(t): t for t in (*model.parameters(), *model.buffers()) if t.dtype in (torch.bfloat16, torch.uint8)}
    rotary = sum(t.numel() for name, t in model.named_buffers() if "inv_freq" in name and t.dtype == torch.bfloat16)
    assert quantized_size(spec, scheme).total == sum(t.numel() * t.element_size() for t in held.values()) - 2 * rotary
    assert (
        scheme_of_config(
            {
                "quantization_config": {
                    "quant_method": "bitnet",
                    "linear_class": "autobitlinear",
                    "quantization_mode": "online",
                }
            }
        )
        is None
    )


# Published checkpoints: the bytes of all tensors, from their safetensors headers


G_IDX = {"actorder": "group", "type": "int", "num_bits": 4, "strategy": "group", "group_size": 128, "symmetric": True}


@pytest.mark.parametrize(
    ("name", "config", "total"),
    [
        # RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-dynamic: one bf16 scale per row
        (
            "llama3-8b",
            {
                "quant_method": "compressed-tensors",
                "format": "float-quantized",
                "ignore": ["lm_head"],
                "config_groups": {
                    "group_0": {
                        "targets": ["Linear"],
                        "weights": {"type": "float", "num_bits": 8, "strategy": "channel", "symmetric": True},
                        "input_activations": {"type": "float", "num_bits": 8, "strategy": "token", "dynamic": True},
                    }
                },
            },
            9_083_953_152,
        ),
        # RedHatAI/Llama-3.3-70B-Instruct-quantized.w4a16: group indices for every column
        (
            "llama3-70b",
            {
                "quant_method": "compressed-tensors",
                "format": "pack-quantized",
                "ignore": ["lm_head"],
                "config_groups": {"group_0": {"targets": ["Linear"], "weights": G_IDX}},
            },
            39_525_311_232,
        ),
        # nvidia/Llama-3.3-70B-Instruct-FP4
        ("llama3-70b", {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}, 42_709_045_632),
        # RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16, made by AutoGPTQ: 43,008 rows in each of 32 layers have a
        # bias of 2 bytes, too
        (
            "llama3-8b",
            {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True},
            5_735_587_840 - 2 * 32 * 43_008,
        ),
    ],
    ids=["fp8-dynamic", "w4a16", "nvfp4", "gptq"],
)
def test_published_checkpoints(name: str, config: dict[str, Any], total: int) -> None:
    """Compares with the sum over `data_offsets` in the headers of the safetensors files."""
    scheme = scheme_of_config({"quantization_config": config})
    assert scheme is not None
    assert quantized_size(llmcalc.load(name).model, scheme).total == total
