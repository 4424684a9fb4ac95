"""Families whose class is code of the model's repository, against the reference and the sizes of published checkpoints.

`tests/data/remote_code.json` has configs as published, each with the `total_size` of its checkpoint's index in bytes of
16-bit numbers and its source. `buffer_bytes` are bytes of it that are no parameters, and `buffers` says which.

`tests/data/engine_classes.json` has small configs with the parameters that classes of vLLM, SGLang and mlx-lm, which
implement the same models, hold for them: of the text model (`parameters`) or of the encoders beside it (`encoders`).
Their classes were built without values, with each linear layer, norm, embedding and expert of its stated size.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import llmcalc
from llmcalc.costs.encoders import encoded_inputs
from llmcalc.costs.flops import forward_flops_of
from llmcalc.costs.params import params
from llmcalc.costs.quantization import quantized_size, scheme_of_config
from llmcalc.errors import InputError
from llmcalc.sources.huggingface.checkpoint import checkpoint_of
from llmcalc.sources.huggingface.description import read_description
from llmcalc.sources.huggingface.registry import TYPES_BY_FILE, family_of, model_types
from llmcalc.witnesses.reference import verify_reference
from llmcalc.workload.inputs import Inputs
from tests.builders import WITH_CLASSES, kinds_of_parts, spec_of
from tests.families.remote_code.kimi_k3 import TEXT as KIMI_K3
from tests.samples import in_one_test, sampled

PUBLISHED: dict[str, dict[str, Any]] = json.loads((Path(__file__).parents[1] / "data" / "remote_code.json").read_text())
KINDS = [kind for kind in model_types() if family_of(kind).source]
SHAPES = {
    f"{cls}-{shape['model_type']}-{i}": {"architectures": [cls], **shape}
    for file in TYPES_BY_FILE
    if file not in WITH_CLASSES
    for cls, shapes in import_module(f"tests.families.{file}").SHAPES.items()
    for i, shape in enumerate(shapes)
}


def read_and_built(config: dict[str, Any]) -> set[Any]:
    """The function that reads the family, and the parts whose formulas are compared."""
    return {family_of(config["model_type"]).read_model, *kinds_of_parts(spec_of(config))}


@pytest.mark.parametrize("config", sampled(SHAPES, read_and_built))
def test_small_shapes_agree_with_the_reference(config: dict[str, Any]) -> None:
    reading = read_description(config)
    about_omissions = (
        "not counted", "no vision or audio encoder is described", "its encoder has its class's defaults",
        "memory is counted without",
    )  # fmt: skip
    assert [note for note in reading.notes if not any(words in note for words in about_omissions)] == []
    assert reading.unknown_fields == []
    verdict = verify_reference(spec_of(config), batch=2)
    assert verdict.ok, [(c.node, c.quantity, c.closed_form, c.measured_value) for c in verdict.failures[:8]]


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_checkpoint_has_the_counted_bytes(name: str) -> None:
    record = PUBLISHED[name]
    description = llmcalc.load(record["config"])
    assert 2 * params(description.model).total + record.get("buffer_bytes", 0) == record["total_size"]
    assert not description.notes


ENGINE_CLASSES: dict[str, Any] = json.loads((Path(__file__).parents[1] / "data" / "engine_classes.json").read_text())


@pytest.mark.parametrize("record", ENGINE_CLASSES["records"], ids=lambda record: record["classes"][0].split(" ", 1)[1])
def test_the_class_of_an_engine_has_the_counted_parameters(record: dict[str, Any]) -> None:
    description = llmcalc.load(record["config"])
    text = llmcalc.params(description).total
    if "encoders" in record:
        assert llmcalc.params(description, with_towers=True).total - text == record["encoders"]
        assert not [note for note in description.notes if "encoder" in note]
    else:
        assert text == record["parameters"]


ENCODERS = {
    f"{record['config']['model_type']}-{i}": record["config"]
    for i, record in enumerate(ENGINE_CLASSES["records"])
    if "encoders" in record
}


@pytest.mark.parametrize("name", ENCODERS)
def test_encoders_agree_with_the_reference(name: str) -> None:
    verdict = verify_reference(spec_of(ENCODERS[name]), batch=2)
    assert verdict.ok, [(c.node, c.quantity, c.closed_form, c.measured_value) for c in verdict.failures[:8]]
    assert {f"towers.{tower}" for tower in spec_of(ENCODERS[name]).towers} < {c.node for c in verdict.checks}


QWEN3_5_ENCODERS = ("interns1_pro", "intern_s2_preview")
"""Wrappers with the vision encoder of Qwen3.5, whose class is compared."""


@pytest.mark.parametrize("vision", [{}, {"depth": 2, "hidden_size": 16, "num_heads": 2, "out_hidden_size": 32}])
@pytest.mark.parametrize("kind", QWEN3_5_ENCODERS)
def test_encoders_are_those_of_qwen3_5(kind: str, vision: dict[str, Any]) -> None:
    texts = {shape["model_type"]: shape["text_config"] for shape in SHAPES.values() if "text_config" in shape}
    config = {"model_type": kind, "text_config": texts[kind], "vision_config": vision}
    qwen = {"model_type": "qwen3_5_moe", "text_config": texts["intern_s2_preview"], "vision_config": vision}
    assert spec_of(config).towers
    assert spec_of(config).towers == spec_of(qwen).towers


def test_the_encoder_of_dots_vlm_is_that_of_dots_ocr() -> None:
    ocr = next(config for config in ENCODERS.values() if config["model_type"] == "dots_ocr")
    text = SHAPES["DotsVLMForCausalLM-dots_vlm-0"] | {"hidden_size": ocr["hidden_size"]}
    assert spec_of(ocr).towers
    assert spec_of({**text, "vision_config": ocr["vision_config"]}).towers == spec_of(ocr).towers


def test_every_encoder_of_a_class_of_code_is_compared() -> None:
    """DeepSeek-VL2's encoder is timm's: its formula is compared with the reference alone.

    MiniCPM-o's is MiniCPM-V's, dots.vlm's is dots.ocr's. Phi-3-vision's is as large as its class states, and compared
    with a published total, as those of Kimi K3, OpenVLA, LLaVA-OneVision 1.5, LocateAnything, Ovis 2.5 and VideoLLaMA 3
    are. Ultravox's has the bytes of its file. MiniMax-VL-01's is LLaVA-NeXT's but for a norm. Ovis 1.6 and Moondream
    have the parts of Ovis 2.5 and DeepSeek-VL2, step_robotics those of Step 3.7.
    """
    read_here = {kind for kind in KINDS if family_of(kind).tower_file}
    assert read_here == {
        *(config["model_type"] for config in ENCODERS.values()), *QWEN3_5_ENCODERS, "deepseek_vl_v2", "dots_vlm",
        "kimi_k3", "llavaonevision1_5", "locateanything", "minicpmo", "minimax_vl_01", "moondream1", "moondream2",
        "moondream3", "openvla", "ovis", "ovis2_5", "phi3_v", "step_robotics", "ultravox", "videollama3_qwen2",
    }  # fmt: skip


INTERNVIT_300M = {
    "model_type": "intern_vit_6b", "hidden_size": 1024, "image_size": 448, "intermediate_size": 4096,
    "num_attention_heads": 16, "num_hidden_layers": 24, "patch_size": 14, "qk_normalization": False, "qkv_bias": True,
    "norm_type": "layer_norm",
}  # fmt: skip
INTERNVIT_6B = {
    "model_type": "intern_vit_6b", "hidden_size": 3200, "image_size": 448, "intermediate_size": 12800,
    "num_attention_heads": 25, "num_hidden_layers": 45, "patch_size": 14, "qk_normalization": True, "qkv_bias": False,
    "norm_type": "rms_norm",
}  # fmt: skip


def _sizes(kind: str, vocab: int, hidden: int, ffn: int, depth: int, heads: int, kv_heads: int) -> dict[str, Any]:
    return {
        "model_type": kind, "vocab_size": vocab, "hidden_size": hidden, "intermediate_size": ffn,
        "num_hidden_layers": depth, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        **({"bias": False} if kind == "internlm2" else {}), "tie_word_embeddings": False,
    }  # fmt: skip


def _internvl(encoder: dict[str, Any], *sizes: Any) -> dict[str, Any]:
    return {
        "architectures": ["InternVLChatModel"], "model_type": "internvl_chat", "downsample_ratio": 0.5,
        "llm_config": _sizes(*sizes), "vision_config": encoder,
    }  # fmt: skip


WITH_ENCODERS: dict[str, tuple[dict[str, Any], int]] = {
    "InternVL2_5-1B": (_internvl(INTERNVIT_300M, "qwen2", 151674, 896, 4864, 24, 14, 2), 938_193_024),
    "InternVL2_5-2B": (_internvl(INTERNVIT_300M, "internlm2", 92553, 2048, 8192, 24, 16, 8), 2_205_754_368),
    "InternVL2_5-4B": (_internvl(INTERNVIT_300M, "qwen2", 151674, 2048, 11008, 36, 16, 2), 3_712_637_952),
    "InternVL2_5-8B": (_internvl(INTERNVIT_300M, "internlm2", 92553, 4096, 14336, 32, 32, 8), 8_075_365_376),
    "InternVL2_5-26B": (_internvl(INTERNVIT_6B, "internlm2", 92553, 6144, 16384, 48, 48, 8), 25_514_186_112),
    "InternVL2_5-38B": (_internvl(INTERNVIT_6B, "qwen2", 151674, 5120, 27648, 64, 40, 8), 38_388_164_992),
    "InternVL2_5-78B": (_internvl(INTERNVIT_6B, "qwen2", 151674, 8192, 29568, 80, 64, 8), 78_408_318_336),
    "Phi-3.5-vision-instruct": (
        {
            "architectures": ["Phi3VForCausalLM"], **_sizes("phi3_v", 32064, 3072, 8192, 32, 32, 32),
            "img_processor": {"image_dim_out": 1024, "name": "clip_vision_model", "num_img_tokens": 144},
        },
        4_146_621_440,
    ),
    "MiniCPM-V-2_6": (
        {
            "architectures": ["MiniCPMV"], **_sizes("minicpmv", 151666, 3584, 18944, 28, 28, 4), "version": 2.6,
            "drop_vision_last_layer": False, "query_num": 64,
            "vision_config": {
                "model_type": "siglip", "hidden_size": 1152, "image_size": 980, "intermediate_size": 4304,
                "num_attention_heads": 16, "num_hidden_layers": 27, "patch_size": 14,
            },
        },
        8_099_175_152,
    ),
    "Qwen-VL": (
        {
            "architectures": ["QWenLMHeadModel"], "model_type": "qwen", "vocab_size": 151936, "hidden_size": 4096,
            "intermediate_size": 22016, "num_hidden_layers": 32, "num_attention_heads": 32, "kv_channels": 128,
            "visual": {
                "heads": 16, "image_size": 448, "layers": 48, "mlp_ratio": 4.9231, "output_dim": 4096, "patch_size": 14,
                "width": 1664,
            },
        },
        9_656_935_168,
    ),
}  # fmt: skip
"""Model → its sizes as its config has them, and the parameters of its checkpoint, encoders included.

https://github.com/floschne/gimmick gimmick/utils, which read the checkpoints' metadata. Qwen-VL's
is torch's count of its class, from a comparison of ten models.
"""


@pytest.mark.parametrize("name", WITH_ENCODERS)
def test_a_model_with_its_encoder_has_its_published_number_of_parameters(name: str) -> None:
    config, published = WITH_ENCODERS[name]
    assert llmcalc.params(config, with_towers=True).total == published


ULTRAVOX: dict[str, Any] = {
    "architectures": ["UltravoxModel"], "model_type": "ultravox", "hidden_size": 4096, "stack_factor": 8,
    "projector_act": "swiglu", "projector_ln_mid": True, "audio_model_id": None,
    "text_config": {
        "model_type": "llama", "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192,
        "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": True,
    },
    "audio_config": {
        "model_type": "whisper", "d_model": 1280, "encoder_layers": 32, "encoder_attention_heads": 20,
        "encoder_ffn_dim": 5120, "max_source_positions": 1500, "num_mel_bins": 128,
    },
}  # fmt: skip
"""The sizes of fixie-ai/ultravox-v0_5-llama-3_2-1b.

The repository vokra has its encoder and projector as a GGUF file of 1,366,275,264 bytes, in bfloat16, and states these
sizes (tools that dump a reference of Ultravox 0.5).
"""


def test_the_encoder_of_ultravox_has_the_bytes_of_its_file() -> None:
    result = llmcalc.params(ULTRAVOX)
    assert not [note for note in llmcalc.load(ULTRAVOX).notes if "not counted" in note]
    header_bytes = 24 + 37_352 + 704  # the beginning, the entries of 491 tensors, metadata with padding
    assert 1_366_275_264 - header_bytes == 2 * result.left_out["towers"] == 2 * 683_118_592


def test_ultravox_before_version_0_5_has_its_norm_after_the_last_layer() -> None:
    """It has the text's width, where that of later versions has half of the projector's."""
    earlier = llmcalc.params({**ULTRAVOX, "projector_ln_mid": False, "hidden_size": 2048})
    later = llmcalc.params({**ULTRAVOX, "hidden_size": 2048})
    assert earlier.left_out["towers"] - later.left_out["towers"] == 2048 - 1024


@pytest.mark.parametrize(
    ("change", "remark"),
    [
        ({"audio_model_id": "openai/whisper-medium"}, "audio_model_id: 'openai/whisper-medium'; expected null and"),
        ({"hidden_size": 4095}, "hidden_size: 4095; expected an even number: one half gates the other"),
        ({"projector_act": "gelu"}, "projector_act: 'gelu'; expected one of 'swiglu'"),
    ],
)
def test_an_encoder_of_ultravox_that_its_config_does_not_describe_is_named(change: dict[str, Any], remark: str) -> None:
    notes = llmcalc.load({**ULTRAVOX, **change}).notes
    assert [note for note in notes if note.startswith(f"its encoder is not counted: {remark}")]


def _jet_nemotron(kinds: str, hidden: int, ffn: int, heads: int, expand_v: float, window: int) -> dict[str, Any]:
    names = {"j": "jet", "f": "attn", "s": "swa"}
    jet = {
        "conv_size": 4,
        "dconv_generator_reduction": 8,
        "expand_v": expand_v,
        "head_dim": 96 if hidden == 1536 else 128,
    }
    return {
        "architectures": ["JetNemotronForCausalLM"], "model_type": "jet_nemotron", "vocab_size": 151936,
        "hidden_size": hidden, "intermediate_size": ffn, "num_hidden_layers": len(kinds), "num_attention_heads": heads,
        "num_key_value_heads": 2, "tie_word_embeddings": True, "layer_types": [names[kind] for kind in kinds],
        "efficient_attention_config": {
            "jet": {**jet, "num_heads": heads, "norm_eps": "1e-5"}, "swa": {"window_size": window}
        },
    }  # fmt: skip


JET_NEMOTRON = {
    "2B": (_jet_nemotron("jjjjjjjjjjjjjjfjjjjfssjjjjjj", 1536, 8960, 12, 2.6666666667, 1152), 1.96),
    "4B": (_jet_nemotron("jjjjjsjjjjjjjjjjsfjsfssjjsjsjjjjfjjj", 2048, 11008, 16, 2, 2048), 3.96),
}
"""Sizes of jetai/modeling/configs of NVlabs/Jet-Nemotron, and billions of parameters in arXiv:2508.15884, Table 1."""


@pytest.mark.parametrize("size", JET_NEMOTRON)
def test_jet_nemotron_has_its_published_number_of_parameters(size: str) -> None:
    config, published = JET_NEMOTRON[size]
    assert round(llmcalc.params(config).total / 1e9, 2) == published


def test_jet_nemotron_caches_what_its_layers_keep() -> None:
    """Three full layers, seven windows, and 26 states in float32 with four inputs of each channel of the values."""
    full, window = 3 * 2 * 65536 * 2 * 128 * 2, 7 * 2 * 2048 * 2 * 128 * 2
    states = 26 * (16 * 128 * 256 * 4 + 16 * 256 * 4 * 2)
    assert llmcalc.kv(JET_NEMOTRON["4B"][0], seq=65536).bytes == full + window + states


def test_memory_of_jet_nemotron_is_of_training() -> None:
    answer = llmcalc.memory(JET_NEMOTRON["2B"][0], phase="training", seq=1024)
    assert answer.device.device_bytes > 16 * llmcalc.params(JET_NEMOTRON["2B"][0]).total
    for phase in ("prefill", "decode"):
        with pytest.raises(InputError, match=r"filters of each token \(jet_block\) is modelled in training alone"):
            llmcalc.memory(JET_NEMOTRON["2B"][0], phase=phase).report()


def test_damaged_sections_of_jet_nemotron_are_named() -> None:
    config = JET_NEMOTRON["2B"][0]
    for kind, name, value in (("jet", "expand_v", 1.001), ("jet", "norm_eps", "x"), ("swa", "window_size", 0)):
        section = config["efficient_attention_config"]
        damaged = {**config, "efficient_attention_config": {**section, kind: {**section[kind], name: value}}}
        with pytest.raises(InputError, match=rf"efficient_attention_config\.{kind}\.{name}: "):
            llmcalc.load(damaged)


GROVE_MOE: dict[str, Any] = {
    "architectures": ["GroveMoeForCausalLM"], "model_type": "grove_moe", "vocab_size": 151936, "hidden_size": 2048,
    "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
    "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
    "max_position_embeddings": 40960,
}  # fmt: skip


def test_grove_moe_has_the_experts_of_qwen3_and_half_as_many_small_ones() -> None:
    """Upcycled from Qwen3-30B-A3B-Base to 33 B parameters (README of inclusionAI/GroveMoE)."""
    qwen = llmcalc.params({**GROVE_MOE, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"})
    total = qwen.total + 48 * 64 * 3 * 2048 * 128
    assert llmcalc.params(GROVE_MOE).total == total
    assert round(total / 1e9) == 33


def test_adjugate_experts_are_divided_as_experts_are() -> None:
    whole, half = (llmcalc.params(GROVE_MOE, **layout) for layout in ({}, {"ep": 2, "dp": 2}))
    assert whole.total - half.total == 48 * (128 * 3 * 2048 * 768 + 64 * 3 * 2048 * 128) // 2
    with pytest.raises(InputError, match="--ep 128: does not divide"):
        llmcalc.params(GROVE_MOE, ep=128, dp=128)
    with pytest.raises(InputError, match="num_experts: 7; expected a multiple of 2"):
        llmcalc.load({**GROVE_MOE, "num_experts": 7, "num_experts_per_tok": 2})


LING_2_5: dict[str, Any] = {
    "architectures": ["BailingMoeV2_5ForCausalLM"], "model_type": "bailing_hybrid", "num_experts": 8,
    "num_experts_per_tok": 2, "moe_intermediate_size": 16, "q_lora_rank": 12, "layer_group_size": 2,
    "num_key_value_heads": None,
}  # fmt: skip
LONGCAT_LITE: dict[str, Any] = {
    "architectures": ["LongcatFlashNgramForCausalLM"], "vocab_size": 131072, "hidden_size": 3072,
    "ffn_hidden_size": 6144, "expert_ffn_hidden_size": 1024, "num_layers": 14, "num_attention_heads": 32,
    "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
    "n_routed_experts": 256, "moe_topk": 12, "zero_expert_num": 128, "ngram_vocab_size_ratio": 78,
    "emb_neighbor_num": 4, "emb_split_num": 4,
}  # fmt: skip
SALA_LAYERS = {0, 9, 16, 17, 22, 29, 30, 31}
MINICPM_SALA: dict[str, Any] = {
    "model_type": "minicpm_sala", "hidden_size": 4096, "intermediate_size": 16384, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128, "vocab_size": 73448, "lightning_nh": 32,
    "lightning_nkv": 32, "lightning_head_dim": 128, "attn_use_output_gate": True, "attn_use_rope": False,
    "qk_norm": True, "use_output_gate": True, "use_output_norm": True,
    "mixer_types": ["minicpm4" if i in SALA_LAYERS else "lightning-attn" for i in range(32)],
}  # fmt: skip
RWKV_6: dict[str, Any] = {
    "model_type": "rwkv6", "hidden_size": 2048, "num_hidden_layers": 24, "head_size": 64, "attention_hidden_size": 2048,
    "vocab_size": 65536,
}  # fmt: skip

PUBLISHED_SIZES: dict[str, tuple[dict[str, Any], int, int]] = {
    "MiniCPM-SALA": (MINICPM_SALA, 10**6, 9477),
    "rwkv-6-world-1b6": (RWKV_6, 1, 1_599_873_024),
}
"""Model → its sizes, a unit, and its parameters in that unit.

MiniCPM-SALA's are the size in a log of its quantization, 18,076.38 MiB of 16-bit numbers; RWKV-6's torch's count of the
582 tensors of its checkpoint.
"""


@pytest.mark.parametrize("name", PUBLISHED_SIZES)
def test_a_model_has_the_size_that_its_publisher_gives(name: str) -> None:
    config, unit, total = PUBLISHED_SIZES[name]
    assert round(llmcalc.params(config).total / unit) == total


@in_one_test
@pytest.mark.parametrize("kind", KINDS)
def test_the_source_of_the_class_is_given(kind: str) -> None:
    assert family_of(kind).source.startswith("https://")
    assert family_of(kind).class_model_type is None


SMALL = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
FLASH = "jinaai/xlm-roberta-flash-implementation--modeling_lora.XLMRobertaLoRA"


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"architectures": ["LlavaQwenForCausalLM"], "model_type": "llava", "num_key_value_heads": 4}, "llava_qwen"),
        (LING_2_5, "bailing_moe_v2_5"),
        ({**LONGCAT_LITE, "model_type": "longcat_flash"}, "longcat_flash_ngram"),
        ({"architectures": ["Grok1ForCausalLM"], "model_type": "git", "residual_moe": True}, "grok-2"),
        ({"architectures": ["JinaBertForMaskedLM"], "model_type": "bert"}, "jina_bert"),
        (
            {"architectures": ["XLMRobertaModel"], "model_type": "xlm-roberta", "auto_map": {"AutoModel": FLASH}},
            "xlm_roberta_flash",
        ),
    ],
)
def test_a_class_of_code_is_read_under_its_own_model_type(config: dict[str, Any], kind: str) -> None:
    """Published configs of these classes state the model type of another class, which has other parameters."""
    config = {**SMALL, **config}
    counted = llmcalc.params(config).total
    assert counted == params(spec_of({**config, "model_type": kind})).total
    other = {**config, "architectures": [], "auto_map": {}}
    assert counted != llmcalc.params(llmcalc.load(other, allow_unknown=True)).total


def test_grok_2_has_its_published_number_of_parameters() -> None:
    """https://huggingface.co/xai-org/grok-2: 270B, with a head and a network beside the experts."""
    config = {
        "architectures": ["Grok1ForCausalLM"], "model_type": "git", "vocab_size": 131072, "hidden_size": 8192,
        "intermediate_size": 32768, "moe_intermediate_size": 16384, "num_experts_per_tok": 2, "num_local_experts": 8,
        "residual_moe": True, "num_attention_heads": 64, "num_key_value_heads": 8, "num_hidden_layers": 64,
        "head_dim": 128, "rms_norm_eps": 1e-05, "final_logit_softcapping": 50, "attn_logit_softcapping": 30.0,
    }  # fmt: skip
    attention, network = 2 * 8192**2 + 2 * 8192 * 1024, 3 * 8192 * 32768
    experts = 8 * 3 * 8192 * 16384 + 8 * 8192
    total = 64 * (attention + network + experts + 4 * 8192) + 8192 + 2 * 131072 * 8192
    assert llmcalc.params(config).total == total == 269_515_497_472


def test_llada_has_its_published_number_of_parameters() -> None:
    """A LLaDA of 124,327,616 parameters, as torch counts its class (dllm, examples/llada)."""
    config = {
        "architectures": ["LLaDAModelLM"], "model_type": "llada", "block_type": "llama", "d_model": 448,
        "embedding_size": 126464, "include_bias": False, "include_qkv_bias": False, "input_emb_norm": False,
        "layer_norm_type": "rms", "max_sequence_length": 1024, "mlp_hidden_size": 768, "mlp_ratio": 2, "n_heads": 7,
        "n_kv_heads": 7, "n_layers": 6, "rms_norm_eps": 1e-05, "rope": True, "vocab_size": 126464,
        "weight_tying": False,
    }  # fmt: skip
    assert llmcalc.params(config).total == 124_327_616


def test_a_comparison_with_a_class_is_refused() -> None:
    config = PUBLISHED["internlm2-chat-7b"]["config"]
    with pytest.raises(InputError, match="the class of 'internlm2' is code of its own repository"):
        llmcalc.verify(config, against="transformers")


def test_the_published_config_of_minimax_m1_is_the_preset() -> None:
    """MiniMax-M1 and Text-01 have one architecture; the preset's witness is the class of transformers.

    https://huggingface.co/MiniMaxAI/MiniMax-M1-80k/blob/main/config.json
    """
    scales = ("full_attention", "linear_attention", "mlp")
    config = {
        "architectures": ["MiniMaxM1ForCausalLM"],
        "attn_type_list": ([0] * 7 + [1]) * 10,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 6144,
        "intermediate_size": 9216,
        **{f"layernorm_{name}_alpha": 3.5565588200778455 for name in scales},
        **{f"layernorm_{name}_beta": 1.0 for name in scales},
        "max_position_embeddings": 10240000,
        "model_type": "minimax_m1",
        "num_attention_heads": 64,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 80,
        "num_key_value_heads": 8,
        "num_local_experts": 32,
        "postnorm": True,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000000,
        "rotary_dim": 64,
        "router_aux_loss_coef": 0.001,
        "shared_intermediate_size": 0,
        "shared_moe_mode": "sigmoid",
        "sliding_window": None,
        "tie_word_embeddings": False,
        "vocab_size": 200064,
    }
    assert params(spec_of(config)).total == params(llmcalc.load("minimax-text-01").model).total == 456_089_655_296


def test_solar_pro_has_its_published_number_of_parameters() -> None:
    """https://huggingface.co/upstage/solar-pro-preview-instruct: 22.1B."""
    config = {
        "architectures": ["SolarForCausalLM"], "model_type": "solar", "vocab_size": 32128, "hidden_size": 5120,
        "intermediate_size": 17920, "num_attention_heads": 40, "num_key_value_heads": 10, "num_hidden_layers": 64,
        "max_position_embeddings": 4096, "sliding_window": 2047, "bskcn_1": [12, 20, 32, 44], "bskcn_2": [20, 32],
        "bskcn_3": [16, 24, 36, 48], "bskcn_4": [28, 40], "bskcn_tv": [0.9, 0.8],
    }  # fmt: skip
    layer = 2 * 5120**2 + 2 * 5120 * 1280 + 3 * 5120 * 17920 + 2 * 5120
    assert llmcalc.params(config).total == 64 * layer + 5120 + 2 * 32128 * 5120 == 22_140_032_000


def test_every_step_of_ouro_runs_the_same_layers() -> None:
    """https://huggingface.co/ByteDance/Ouro-1.4B: the parameters of 24 layers, the FLOPs and the cache of 96."""
    config = {
        "architectures": ["OuroForCausalLM"], "model_type": "ouro", "vocab_size": 49152, "hidden_size": 2048,
        "intermediate_size": 5632, "num_attention_heads": 16, "num_key_value_heads": 16, "num_hidden_layers": 24,
        "max_position_embeddings": 65536, "total_ut_steps": 4,
    }  # fmt: skip
    layer = 4 * 2048**2 + 3 * 2048 * 5632 + 4 * 2048
    assert llmcalc.params(config).total == 24 * layer + 2048 + 2 * 49152 * 2048 == 1_434_650_624
    assert llmcalc.kv(config, seq=1000).bytes == 96 * 2 * 2048 * 1000 * 2


def test_moondream_has_the_sizes_of_its_own_table() -> None:
    """Phi's layer of width h has attention of 4h² + 4h, a network of 8h² + 5h, and a norm of 2h."""
    small = {"architectures": ["HfMoondream"], "model_type": "moondream1", "config": {"text": {"dim": 1024}}}
    small["config"]["text"] |= {"ff_dim": 4096, "n_heads": 16, "n_kv_heads": 16}
    layers = 24 * (12 * 1024**2 + 11 * 1024)
    assert llmcalc.params(small).total == layers + 51200 * (2 * 1024 + 1) + 2 * 1024
    assert llmcalc.params({**small, "config": {}}).total == 1_418_270_720
    with pytest.raises(InputError, match=r"config\.text\.dims: 8; expected no such field"):
        llmcalc.load({**small, "config": {"text": {"dims": 8}}})


ENCODERS_WITH_PUBLISHED_TOTALS: dict[str, tuple[int, dict[str, Any]]] = {
    "openvla-7b": (
        7_541_237_184,  # half of the bytes in its index, 15,082,474,368
        {
            "architectures": ["OpenVLAForActionPrediction"], "model_type": "openvla", "image_sizes": [224, 224],
            "text_config": {"model_type": "llama", "vocab_size": 32064}, "use_fused_vision_backbone": True,
            "timm_model_ids": ["vit_large_patch14_reg4_dinov2.lvd142m", "vit_so400m_patch14_siglip_224"],
        },
    ),
    "locateanything-3b": (
        7_661_331_936 // 2 - 152_681 * 2_048,  # half of the bytes in its index, which has the tied embedding twice
        {
            "architectures": ["LocateAnythingForConditionalGeneration"], "model_type": "locateanything",
            "mlp_connector_layers": 2,
            "text_config": {
                "model_type": "qwen2", "vocab_size": 152681, "hidden_size": 2048, "intermediate_size": 11008,
                "num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 2, "block_size": 6,
                "tie_word_embeddings": True,
            },
            "vision_config": {
                "model_type": "moonvit", "hidden_size": 1152, "init_pos_emb_height": 64, "init_pos_emb_width": 64,
                "intermediate_size": 4304, "merge_kernel_size": [2, 2], "num_attention_heads": 16,
                "num_hidden_layers": 27, "patch_size": 14,
            },
        },
    ),
    "llava-onevision-1.5-8b": (
        17_054_429_248 // 2 - 32,  # half of the bytes in its index, without the angles of the class vector
        {
            "architectures": ["LLaVAOneVision1_5_ForConditionalGeneration"], "model_type": "llavaonevision1_5",
            "text_config": {
                "model_type": "LLaVAOneVision1_5_text", "vocab_size": 151936, "hidden_size": 4096, "head_dim": 128,
                "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32,
                "num_key_value_heads": 8, "tie_word_embeddings": False,
            },
            "vision_config": {
                "depth": 24, "embed_dim": 1024, "hidden_act": "gelu", "hidden_size": 1024, "in_channels": 3,
                "intermediate_size": 4096, "layer_norm_eps": 1e-05, "model_type": "rice_vit", "num_heads": 16,
                "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 1, "text_hidden_size": 4096,
            },
        },
    ),
    "ovis2.5-9b": (
        9_174_807_784,  # 840 tensors of 18,349,615,568 bytes
        {
            "architectures": ["Ovis2_5"], "model_type": "ovis2_5", "visual_vocab_size": 65536,
            "llm_config": {
                "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 12288,
                "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
                "tie_word_embeddings": False,
            },
            "vit_config": {
                "model_type": "siglip2_navit", "hidden_size": 1152, "intermediate_size": 4304, "num_patches": -1,
                "num_hidden_layers": 27, "num_attention_heads": 16, "image_size": 512, "patch_size": 16,
                "hidden_stride": 2, "window_size": 112, "use_rope": True, "preserve_original_pe": True,
            },
        },
    ),
}  # fmt: skip
"""Model → its published number of parameters with encoders, and its config."""


@pytest.mark.parametrize("name", ENCODERS_WITH_PUBLISHED_TOTALS)
def test_a_model_with_encoders_has_its_published_total(name: str) -> None:
    published, config = ENCODERS_WITH_PUBLISHED_TOTALS[name]
    assert llmcalc.params(config, with_towers=True).total == published


MOLMO: dict[str, Any] = {
    "architectures": ["MolmoForCausalLM"], "model_type": "molmo", "attention_layer_norm": False,
    "embedding_size": 152064, "hidden_size": 3584, "intermediate_size": 37888, "layer_norm_eps": 1e-06,
    "layer_norm_type": "rms", "max_position_embeddings": 4096, "norm_after": False, "num_attention_heads": 28,
    "num_hidden_layers": 28, "num_key_value_heads": 4, "qkv_bias": True, "rope_theta": 1000000.0,
    "tie_word_embeddings": False, "torch_dtype": "float16", "vocab_size": 152064,
}  # fmt: skip
"""Molmo 7B D."""


def test_the_encoder_of_molmo_has_the_parameters_that_are_named() -> None:
    """https://huggingface.co/allenai/Molmo-7B-D-0924: 8,021,025,280 parameters, as a converted index says."""
    description = llmcalc.load(MOLMO)
    assert llmcalc.params(description).total + 404_950_016 == 8_021_025_280
    (note,) = description.notes
    assert "404,950,016 parameters" in note


def test_modules_of_molmo_keep_their_format_by_their_own_names() -> None:
    """Its index in NF4 has 6,661,964,712 bytes, with the encoder in float16, and tables and states of each layer."""
    skipped_modules = ["model.vision_backbone", "model.transformer.ff_out", "model.transformer.ln_f"]
    table = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    config = {**MOLMO, "quantization_config": {**table, "llm_int8_skip_modules": skipped_modules}}
    spec, scheme = spec_of(MOLMO), scheme_of_config(config)
    assert scheme is not None
    size = quantized_size(spec, scheme, module_names_of=checkpoint_of(config).names(spec.tree(), spec.kind))
    assert 0 <= 6_661_964_712 - (size.total + 2 * 404_950_016) < 28 * 4 * 200


def test_an_encoder_of_a_class_that_is_not_read_is_named() -> None:
    config = {**SHAPES["DeepseekVLV2ForCausalLM-deepseek_vl_v2-0"], "vision_config": {"width": {"sam_vit_b": {}}}}
    (note,) = read_description({**config, "architectures": ["DeepseekOCR2ForCausalLM"]}).notes
    assert note.startswith("its encoder is not counted: vision_config.image_size: 384; expected one of 1024")


@pytest.mark.parametrize(("image", "tokens"), [("448x448", 196), ("800x600", 19 * 25), ("4000x3000", 48 * 64)])
def test_images_of_ovis_2_5_are_tokens_of_32_pixels_and_two_marks(image: str, tokens: int) -> None:
    """vllm/transformers_utils/processors/ovis2_5.py, `smart_resize`: 4000 · 3000 become 2048 · 1536 pixels."""
    spec = spec_of(ENCODERS_WITH_PUBLISHED_TOTALS["ovis2.5-9b"][1])
    assert encoded_inputs(spec, Inputs(image=image)).image_tokens == tokens + 2


KIMI_VL, MINICPM_V = "KimiVLForConditionalGeneration-kimi_vl-0", "MiniCPMV-minicpmv-0"


@pytest.mark.parametrize(
    ("kind", "encoder", "image", "tokens"),
    [
        (KIMI_VL, {"vision_config": {"model_type": "moonvit"}}, "1024x768", 28 * 37),
        (KIMI_VL, {"vision_config": {"model_type": "moonvit"}}, "4000x3000", 28 * 37),
        (MINICPM_V, {"version": 2.6, "hidden_size": 128, "vision_config": {}}, "1024x768", 3 + 5 * 66 + 1),
        (
            MINICPM_V,
            {"version": "4.0", "hidden_size": 128, "vision_config": {}, "slice_config": {"max_slice_nums": 2}},
            "990x9000",
            202,
        ),
    ],
)
def test_images_of_kimi_and_minicpm_are_cut_as_their_code_cuts_them(
    kind: str, encoder: dict[str, Any], image: str, tokens: int
) -> None:
    """image_processing_kimi_vl.py shrinks to 4,096 patches and pads; MiniCPM-V marks lines of slices and the image."""
    spec = spec_of({**SHAPES[kind], **encoder})
    encoded = encoded_inputs(spec, Inputs(image=image))
    assert encoded.image_tokens == tokens
    assert encoded.total(forward_flops_of) > 0


def test_kimi_vl_refuses_an_image_with_a_long_side() -> None:
    spec = spec_of({**SHAPES[KIMI_VL], "vision_config": {"model_type": "moonvit"}})
    with pytest.raises(InputError, match="refuses more than 511 patches along a side"):
        encoded_inputs(spec, Inputs(image="14000x40"))


def test_encoders_that_are_not_supported_are_named() -> None:
    config = ENCODERS_WITH_PUBLISHED_TOTALS["openvla-7b"][1]
    for change, text in (
        ({"timm_model_ids": ["vit_huge", "vit_so400m_patch14_siglip_224"]}, "timm_model_ids: 'vit_huge'"),
        ({"image_sizes": [224, 225]}, "image_sizes: 225"),
        ({"use_fused_vision_backbone": False}, "a list of 1, as use_fused_vision_backbone says"),
    ):
        assert any("not counted" in note and text in note for note in read_description({**config, **change}).notes)


def test_the_weights_of_images_in_the_layers_of_cogvlm_are_counted() -> None:
    """CogVLM 2 with the sizes of Llama 3 8B: https://huggingface.co/zai-org/cogvlm2-llama3-chat-19B modeling_cogvlm.py.

    A layer has for images: queries, keys and values with biases, an output projection and a gated network.
    """
    config = {
        "architectures": ["CogVLMForCausalLM"], "model_type": "cogvlm", "vocab_size": 128256, "hidden_size": 4096,
        "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_multi_query_heads": 8,
        "max_position_embeddings": 8192, "tie_word_embeddings": False,
    }  # fmt: skip
    layer = 4096 * 6144 + 6144 + 4096**2 + 3 * 4096 * 14336
    count = llmcalc.params(config)
    assert count.total == 8_030_261_248 + 32 * layer == 15_009_779_712
    assert count.active == 8_030_261_248


def test_kimi_k3_has_its_published_figures() -> None:
    """The technical report (arXiv:2607.24653, table 1): 2.78T parameters, 104.2B active, an encoder of 401M.

    The active ones are counted without the embedding. The checkpoint takes 1.5609 TB: its experts are in MXFP4, and its
    latent projections are not, although its `quantization_config` does not list them. It stores the weights with which
    attention of the first layer would read finished blocks (`layers.0.self_attention_res_norm` and `_proj`).
    """
    record = json.loads((Path(__file__).parents[1] / "data" / "kimi_k3.json").read_text())
    description = llmcalc.load(record["config"])
    count = llmcalc.params(description)
    assert count.total == 2_779_484_393_568
    assert round((count.active - count.embedding) / 1e9, 1) == 104.2
    spec, projector = description.model, 4096 * 4096 + 4096 * 7168 + 7168
    encoder = llmcalc.params(description, with_towers=True).total - count.total - projector
    assert round(encoder / 1e6) == 401
    vision = {**record["config"]["vision_config"], "text_hidden_size": KIMI_K3["hidden_size"]}
    small = spec_of({**record["config"], "text_config": KIMI_K3, "vision_config": vision})
    assert small.towers
    assert verify_reference(small, batch=2).ok
    names = checkpoint_of(record["config"])
    stored = quantized_size(
        spec,
        scheme_of_config(names.config),
        included_parts=frozenset({"towers"}),
        module_names_of=names.names(spec.tree(), spec.kind),
    )
    assert round(stored.total / 1e12, 4) == 1.5608


@pytest.mark.parametrize(
    ("cls", "head"),
    [
        ("Qwen2ForRewardModel", 32 * 32 + 32 + 32 + 1),
        ("Qwen2ForProcessRewardModel", 32 * 32 + 32 + 2 * 32 + 2),
        ("InternLM2ForRewardModel", 32),
    ],
)
def test_a_reward_model_of_code_has_the_head_of_its_class(cls: str, head: int) -> None:
    """qwen2_rm.py and internlm2.py of vLLM: linear layers, ReLU and a score; or a score without a bias."""
    kind = "internlm2" if cls.startswith("Intern") else "qwen2"
    config = {
        "model_type": kind,
        "vocab_size": 96,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 48,
        **({"bias": False} if kind == "internlm2" else {}),
    }
    scored, plain = (spec_of({**config, "architectures": [name]}) for name in (cls, "Model"))
    assert params(scored).total - params(plain).total == head
    assert verify_reference(scored, batch=2).ok
