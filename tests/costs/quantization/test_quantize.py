"""Quantised weights against the output of libraries: GGUF files, FP8 and MXFP4 modules, tensors in each documented
layout.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sympy

import llmcalc
from llmcalc.components.mixers.attention import Attention
from llmcalc.components.networks.feed_forward import FeedForward
from llmcalc.components.networks.moe import MoE
from llmcalc.costs.params import params
from llmcalc.costs.quantization import (
    BYTE_PURPOSES,
    COMMON_SCHEMES,
    StoredBytes,
    quantized_size,
    scheme_named,
    scheme_of_config,
)
from llmcalc.costs.quantization.base import WeightTensor, weight_tensors_of
from llmcalc.model import ModelSpec
from llmcalc.sources.checkpoints.safetensors import read_safetensors
from tests.contracts.test_parts import decoder

GATED = FeedForward(intermediate_size=192, hidden_act="silu", gated=True)
DENSE = decoder(
    hidden_size=96,
    attention=Attention(num_attention_heads=4, num_key_value_heads=2, head_dim=32, q_bias=True),
    feed_forward=GATED,
)
MIXTURE = decoder(
    hidden_size=64,
    attention=Attention(num_attention_heads=2, num_key_value_heads=1, head_dim=32),
    feed_forward=MoE(
        num_experts=4,
        num_experts_per_tok=2,
        expert=FeedForward(intermediate_size=96, hidden_act="silu", gated=True),
        shared_expert=GATED,
        shared_expert_gate=True,
    ),
)

WEIGHTS = {"type": "int", "num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": True}
"""Weights of a group in a compressed-tensors config."""


def deep(spec: ModelSpec, layers: int) -> ModelSpec:
    """The same model with another number of layers."""
    assert spec.decoder is not None
    return spec.model_copy(update={"decoder": spec.decoder.model_copy(update={"num_hidden_layers": layers})})


def size(spec: ModelSpec, name: str, dtype: str = "bfloat16") -> StoredBytes:
    return quantized_size(spec, scheme_named(name), dtype).by_part


# By hand


def test_one_layer_of_awq_by_hand() -> None:
    """Two layers of q, k, v, o and gate, up, down (96 × 96 and so on) under AWQ with groups of 32."""
    shapes = [(128, 96), (64, 96), (64, 96), (96, 128), (192, 96), (192, 96), (96, 192)]  # rows, columns
    n = 2 * sum(rows * columns for rows, columns in shapes)
    groups = 2 * sum(rows * columns // 32 for rows, columns in shapes)
    got = size(DENSE, "awq-int4-g32")
    assert got == StoredBytes(
        weights=n // 2, scales=2 * groups, zeros=groups // 2, other=0, unconverted=2 * (params(DENSE).total - n)
    )
    gptq = size(DENSE, "gptq-int4-g32")
    assert (gptq.weights, gptq.scales, gptq.zeros) == (n // 2, 2 * groups, groups // 2)
    assert gptq.other == 4 * 2 * sum(columns for _, columns in shapes)  # g_idx


def test_the_parts_add_up() -> None:
    for name in COMMON_SCHEMES:
        if name in ("mxfp4", "awq-int4-g128"):
            continue
        got = quantized_size(DENSE, scheme_named(name))
        assert got.total == sum(got.by_part.data().values())
        assert got.by_part == sum(got.by_component.values(), start=StoredBytes())
        assert set(got.by_component) == set(params(DENSE).by_component)


def test_the_same_form_takes_symbols() -> None:
    h = sympy.Symbol("h", integer=True, positive=True)
    spec = decoder(
        attention=Attention(num_attention_heads=4, head_dim=8),
        feed_forward=FeedForward(intermediate_size=64, hidden_act="relu"),
    )
    swept = quantized_size(spec.model_copy(update={"hidden_size": h}), scheme_named("fp8-channel"))
    for width in (8, 40):
        alone = quantized_size(spec.model_copy(update={"hidden_size": width}), scheme_named("fp8-channel"))
        assert swept.total.subs(h, width) == alone.total


# Tensors in the documented layouts, written and read back


Layout = Callable[[int, int], dict[str, Any]]


def awq(n_out: int, n_in: int, group: int = 32) -> dict[str, Any]:
    import torch

    return {
        "qweight": torch.zeros(n_in, n_out // 8, dtype=torch.int32),
        "qzeros": torch.zeros(n_in // group, n_out // 8, dtype=torch.int32),
        "scales": torch.zeros(n_in // group, n_out, dtype=torch.float16),
    }


def gptq(bits: int, group: int) -> Layout:
    def of(n_out: int, n_in: int) -> dict[str, Any]:
        import torch

        groups = -(-n_in // group)
        return {
            "qweight": torch.zeros(n_in // 32 * bits, n_out, dtype=torch.int32),
            "qzeros": torch.zeros(groups, n_out // 32 * bits, dtype=torch.int32),
            "scales": torch.zeros(groups, n_out, dtype=torch.float16),
            "g_idx": torch.zeros(n_in, dtype=torch.int32),
        }

    return of


def nf4(double: bool) -> Layout:
    def of(n_out: int, n_in: int) -> dict[str, Any]:
        import torch

        blocks = -(-n_out * n_in // 64)
        tensors = {"weight": torch.zeros((n_out * n_in + 1) // 2, 1, dtype=torch.uint8), "quant_map": torch.zeros(16)}
        if not double:
            return {**tensors, "absmax": torch.zeros(blocks)}
        nested = {"nested_absmax": torch.zeros(-(-blocks // 256)), "nested_quant_map": torch.zeros(256)}
        return {**tensors, "absmax": torch.zeros(blocks, dtype=torch.uint8), **nested}

    return of


def int8(n_out: int, n_in: int) -> dict[str, Any]:
    import torch

    return {
        "weight": torch.zeros(n_out, n_in, dtype=torch.int8),
        "SCB": torch.zeros(n_out),
        "weight_format": torch.tensor(0, dtype=torch.uint8),
    }


def fp8(rows: int, columns: int) -> Layout:
    def of(n_out: int, n_in: int) -> dict[str, Any]:
        import torch

        scales = torch.zeros(-(-n_out // rows), -(-n_in // columns))
        return {"weight": torch.zeros(n_out, n_in, dtype=torch.float8_e4m3fn), "weight_scale_inv": scales}

    return of


def packed(n_out: int, n_in: int) -> dict[str, Any]:
    import torch

    return {
        "weight_packed": torch.zeros(n_out, n_in // 8, dtype=torch.int32),
        "weight_scale": torch.zeros(n_out, n_in // 32, dtype=torch.bfloat16),
        "weight_shape": torch.tensor([n_out, n_in]),
    }


def nvfp4(n_out: int, n_in: int) -> dict[str, Any]:
    import torch

    return {
        "weight_packed": torch.zeros(n_out, n_in // 2, dtype=torch.uint8),
        "weight_scale": torch.zeros(n_out, n_in // 16, dtype=torch.float8_e4m3fn),
        "weight_global_scale": torch.zeros(1),
    }


LAYOUTS: dict[str, Layout] = {
    "awq-int4-g32": awq,
    "gptq-int4-g32": gptq(4, 32),
    "gptq-int8-g64": gptq(8, 64),
    "gptq-int3-g32": gptq(3, 32),
    "gptq-int2-g128": gptq(2, 128),
    "nf4": nf4(False),
    "nf4-double": nf4(True),
    "int8": int8,
    "fp8-block128": fp8(128, 128),
    "fp8-block32": fp8(32, 32),
    "w4a16-g32": packed,
    "nvfp4": nvfp4,
}
PART_OF = {
    "weight": "weights",
    "qweight": "weights",
    "weight_packed": "weights",
    "scales": "scales",
    "absmax": "scales",
    "nested_absmax": "scales",
    "SCB": "scales",
    "weight_scale_inv": "scales",
    "weight_scale": "scales",
    "weight_global_scale": "scales",
    "qzeros": "zeros",
    "g_idx": "other",
    "quant_map": "other",
    "nested_quant_map": "other",
    "weight_format": "other",
    "weight_shape": "other",
}
"""Name of a tensor → the part that it belongs to."""


def linear_sites(spec: ModelSpec, gates: bool) -> Iterator[tuple[WeightTensor, bool]]:
    """Yields every tensor, and whether a published checkpoint would quantise it, judged by its name in the reference
    model.
    """
    names = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj") + (
        ("shared_expert_gate",) if gates else ()
    )
    for site in weight_tensors_of(spec.tree()):
        yield site, site.name in names and site.tensor.role == "matrix"


@pytest.mark.parametrize("spec", [DENSE, MIXTURE], ids=["dense", "mixture"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_checkpoint_so_laid_out_has_these_bytes(name: str, spec: ModelSpec, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    tensors: dict[str, Any] = {}
    for site, converted in linear_sites(spec, gates=name in ("int8", "nf4", "nf4-double")):
        where = f"{site.path}.{site.tensor.role}"
        if not converted:
            tensors[f"{where}.plain"] = torch.zeros(site.tensor.shape, dtype=torch.bfloat16)
            continue
        *stack, n_out, n_in = site.tensor.shape
        for i in range(stack[0] if stack else 1):  # each expert separately
            tensors |= {f"{where}.{i}.{key}": value for key, value in LAYOUTS[name](n_out, n_in).items()}
    save_file(tensors, tmp_path / "it.safetensors")
    checkpoint = read_safetensors(tmp_path / "it.safetensors")
    got = quantized_size(spec, scheme_named(name))
    assert got.total == checkpoint.nbytes
    bytes_by_purpose = dict.fromkeys(BYTE_PURPOSES, 0)
    for tensor in checkpoint.tensors:
        bytes_by_purpose[PART_OF.get(tensor.name.rpartition(".")[2], "unconverted")] += tensor.nbytes
    assert got.by_part.data() == bytes_by_purpose


# Modules that transformers builds for quantised checkpoints


def bytes_of(tensors: Any) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def test_fp8_modules_of_transformers(tmp_path: Path) -> None:
    """A whole model whose linear layers `transformers` replaces, with rows and columns that are not multiples of the
    block.
    """
    import torch
    from transformers import FineGrainedFP8Config, Qwen3Config, Qwen3ForCausalLM
    from transformers.integrations.finegrained_fp8 import replace_with_fp8_linear

    config = Qwen3Config(
        vocab_size=160,
        hidden_size=200,
        intermediate_size=328,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=72,
    )
    kept = ["lm_head", "model.layers.1.mlp", "model.layers.2.self_attn.o_proj"]
    for block, scheme in (((128, 128), "dynamic"), ((64, 32), "static"), (None, "static")):
        quantization = FineGrainedFP8Config(
            weight_block_size=block, activation_scheme=scheme, modules_to_not_convert=kept
        )
        with torch.device("meta"):
            model = Qwen3ForCausalLM(config).to(torch.bfloat16)
        replace_with_fp8_linear(
            model, modules_to_not_convert=kept, quantization_config=quantization, pre_quantized=True
        )
        data = {
            **config.to_dict(),
            "quantization_config": quantization.to_dict(),
            "architectures": ["Qwen3ForCausalLM"],
            "dtype": "bfloat16",
        }
        (tmp_path / "config.json").write_text(json.dumps(data, default=str))
        use = llmcalc.memory(llmcalc.load(str(tmp_path))).states
        assert use.quantized_size is not None
        assert use.weights == bytes_of(model.parameters())
        scales = [p for name, p in model.named_parameters() if name.endswith("scale_inv")]
        assert use.quantized_size.by_part.scales == bytes_of(scales)
        assert len(scales) == 3 * 7 - 3 - 1
        assert use.quantized_size.by_part.other == (4 * len(scales) if scheme == "static" else 0)


@pytest.mark.parametrize("experts", ["fp8", "fp4"])
def test_fp8_experts_of_transformers(experts: str) -> None:
    import torch
    from transformers import Qwen3MoeConfig
    from transformers.integrations.finegrained_fp8 import FP8Experts

    config = Qwen3MoeConfig(
        hidden_size=256, moe_intermediate_size=128, num_experts=6, num_experts_per_tok=2, hidden_act="silu"
    )
    with torch.device("meta"):
        held = FP8Experts(config, block_size=(128, 128), expert_dtype=experts)
    expert = FeedForward(intermediate_size=128, hidden_act="silu", gated=True)
    spec = decoder(hidden_size=256, feed_forward=MoE(num_experts=6, num_experts_per_tok=2, expert=expert))
    scheme = scheme_of_config(
        {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128], "expert_dtype": experts}}
    )
    assert scheme is not None
    got = quantized_size(spec, scheme).by_component["experts"]
    assert got.total == 2 * bytes_of(held.parameters())  # two layers
    assert got.scales == 2 * bytes_of(p for name, p in held.named_parameters() if "scale" in name)


def test_mxfp4_experts_of_transformers() -> None:
    """The transformers module for the packed codes and its unpacking: blocks and scales of these shapes give the full
    weights.
    """
    import torch
    from transformers import GptOssConfig
    from transformers.integrations.mxfp4 import Mxfp4GptOssExperts, convert_moe_packed_tensors

    experts, width, h = 4, 96, 64
    with torch.device("meta"):
        held = Mxfp4GptOssExperts(GptOssConfig(num_local_experts=experts, intermediate_size=width, hidden_size=h))
    expert = FeedForward(
        intermediate_size=width, hidden_act="silu", gated=True, gate_bias=True, up_bias=True, down_bias=True
    )
    spec = decoder(hidden_size=h, feed_forward=MoE(num_experts=experts, num_experts_per_tok=2, expert=expert))
    got = size(spec, "mxfp4")
    assert got.weights == 2 * bytes_of([held.gate_up_proj, held.down_proj])
    scales = 0
    for rows, columns in ((2 * width, h), (h, width)):
        blocks = torch.zeros(experts, rows, columns // 32, 16, dtype=torch.uint8)
        scale = torch.full((experts, rows, columns // 32), 127, dtype=torch.uint8)
        assert convert_moe_packed_tensors(blocks, scale).shape == (experts, columns, rows)
        scales += bytes_of([scale])
    assert got.scales == 2 * scales
    n = params(spec)
    assert got.unconverted == 2 * (n.total - 2 * got.weights)


# Optional libraries, if they are installed


@pytest.mark.filterwarnings("ignore")
def test_bitsandbytes_modules() -> None:
    bnb = pytest.importorskip("bitsandbytes")
    import torch

    for name, double in (("nf4", False), ("nf4-double", True)):
        weight = bnb.nn.Params4bit(
            torch.randn(130, 100), requires_grad=False, compress_statistics=double, quant_type="nf4"
        )._quantize("cpu")
        held = bnb.nn.Linear4bit(100, 130, bias=False, compress_statistics=double, quant_type="nf4")
        held.weight = weight
        tensors = {
            key: value for key, value in held.state_dict().items() if "quant_state" not in key
        }  # the JSON description of the tensor
        assert bytes_of(tensors.values()) == one_map(name, 130, 100)
    held = bnb.nn.Linear8bitLt(100, 130, bias=False, has_fp16_weights=False)
    held.weight = bnb.nn.Int8Params(
        torch.randn(130, 100).half(), requires_grad=False, has_fp16_weights=False
    )._quantize("cpu")
    assert bytes_of(held.state_dict().values()) == one_map("int8", 130, 100)


def one_map(name: Any, n_out: int, n_in: int) -> int:
    scheme: Any = scheme_named(name) if isinstance(name, str) else name
    total: int = scheme.groups[0].format.bytes_by_part(n_out, n_in, 2).total
    return total


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("layout", "weights", "inputs"),
    [
        ("pack-quantized", WEIGHTS, None),
        ("pack-quantized", {**WEIGHTS, "symmetric": False}, None),
        ("pack-quantized", {**WEIGHTS, "num_bits": 8, "strategy": "channel", "group_size": None}, None),
        (
            "int-quantized",
            {"type": "int", "num_bits": 8, "strategy": "channel", "symmetric": True},
            {"num_bits": 8, "dynamic": True, "strategy": "token"},
        ),
        (
            "float-quantized",
            {"type": "float", "num_bits": 8, "strategy": "tensor"},
            {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False},
        ),
        (
            "float-quantized",
            {"type": "float", "num_bits": 8, "strategy": "channel"},
            {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True},
        ),
        ("pack-quantized", {**WEIGHTS, "strategy": "tensor", "group_size": None}, None),
        (
            "int-quantized",
            {"num_bits": 8, "strategy": "group", "group_size": 32, "symmetric": False},
            {"num_bits": 8, "dynamic": False, "symmetric": False},
        ),
        (
            "int-quantized",
            {"type": "int", "num_bits": 4, "strategy": "channel"},
            {"num_bits": 8, "dynamic": True, "strategy": "token"},
        ),
        (
            "float-quantized",
            {"type": "float", "num_bits": 8, "strategy": "tensor"},
            {"num_bits": 8, "type": "float", "dynamic": False, "symmetric": False},
        ),
        ("mxfp8-quantized", {"type": "float", "num_bits": 8, "strategy": "group", "group_size": 32}, None),
        ("float-quantized", {"type": "float", "num_bits": 8, "strategy": "block", "block_structure": [128, 128]}, None),
        (
            "nvfp4-pack-quantized",
            {"type": "float", "num_bits": 4, "strategy": "tensor_group", "group_size": 16},
            {"type": "float", "num_bits": 4, "strategy": "tensor_group", "group_size": 16, "dynamic": "local"},
        ),
        ("mxfp4-pack-quantized", {"type": "float", "num_bits": 4, "strategy": "group", "group_size": 32}, None),
    ],
)
def test_compressed_tensors_modules(layout: str, weights: dict[str, Any], inputs: dict[str, Any] | None) -> None:
    """Compares with the tensors that the library initialises and compresses for one linear layer of 160 × 256."""
    library = pytest.importorskip("compressed_tensors")
    import torch
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationScheme, initialize_module_for_quantization

    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    module = torch.nn.Linear(256, 160, bias=False, dtype=torch.bfloat16)
    scheme = QuantizationScheme.model_validate({**group, "format": layout})
    initialize_module_for_quantization(module, scheme)
    for name, parameter in module.named_parameters():
        if "scale" in name:
            parameter.data.fill_(1)
    stored = BaseCompressor.get_value_from_registry(layout).compress(dict(module.state_dict()), scheme)
    made = {
        "quant_method": "compressed-tensors",
        "format": layout,
        "config_groups": {"group_0": group},
        "version": library.__version__,
    }
    assert one_map(scheme_of_config({"quantization_config": made}), 160, 256) == bytes_of(stored.values()), {
        k: v.shape for k, v in stored.items()
    }


def test_the_format_of_experts_may_stand_beside_the_table() -> None:
    """`DeepseekV4Config` moves `expert_dtype` into the table: configs of DeepSeek-V4 have it beside."""
    from transformers import DeepseekV4Config

    table = {"quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": "ue8m0"}
    moved = DeepseekV4Config(expert_dtype="fp4", quantization_config=dict(table)).quantization_config
    spec = llmcalc.load("qwen3-30b-a3b").model
    beside, inside, without = (
        quantized_size(spec, scheme)
        for config in (
            {"expert_dtype": "fp4", "quantization_config": table},
            {"quantization_config": moved},
            {"quantization_config": table},
        )
        if (scheme := scheme_of_config(config)) is not None
    )
    assert beside.total == inside.total < without.total


@pytest.mark.parametrize(
    ("name", "gigabytes"), [("kimi-k2-thinking", 594), ("kimi-k2.5", 594), ("deepseek-v4-flash", 156)]
)
def test_presets_with_experts_of_four_bits_have_the_bytes_of_their_checkpoints(name: str, gigabytes: int) -> None:
    preset = llmcalc.load(name)
    scheme = scheme_of_config({"quantization_config": preset.storage_table})
    assert scheme is not None
    assert round(quantized_size(preset.model, scheme).total / 1e9) == gigabytes
