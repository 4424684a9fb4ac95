"""Published configs of models whose own code names or counts fields otherwise than a class of transformers does.

`tests/data/own_code_configs.json` has their texts with their sources, and the published numbers of parameters.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import llmcalc
from llmcalc.errors import InputError
from llmcalc.sources.huggingface.description import read_config, read_description
from llmcalc.witnesses.transformers import build_class_model
from tests.builders import spec_of
from tests.families import shapes_of
from tests.samples import in_one_test

RECORDS: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "data" / "own_code_configs.json").read_text()
)


def config_of(name: str) -> dict[str, Any]:
    config: dict[str, Any] = RECORDS[name]["config"]
    return config


def text_of(name: str) -> dict[str, Any]:
    section: dict[str, Any] = config_of(name)["text_config"]
    return section


@pytest.mark.parametrize("name", [name for name, record in RECORDS.items() if "published" in record])
def test_a_published_number_of_parameters(name: str) -> None:
    assert llmcalc.params(config_of(name)).total == RECORDS[name]["published"]


def as_exaone4() -> dict[str, Any]:
    text = text_of("exaone-4.5-33b-fp8")
    kinds = text["layer_types"][: text["num_hidden_layers"]]
    return {**text, "model_type": "exaone4", "layer_types": kinds, "tie_word_embeddings": False}


CLASSES: dict[str, tuple[str, dict[str, Any]]] = {
    "aria-chat": (
        "AriaTextForCausalLM",
        {**text_of("aria-chat"), "model_type": "aria_text", "intermediate_size": 1664},
    ),
    "emu3.5": ("Qwen3ForCausalLM", {**config_of("emu3.5"), "model_type": "qwen3"}),
    "exaone-4.5-33b-fp8": ("Exaone4ForCausalLM", as_exaone4()),
    "glm-asr-nano": ("LlamaForCausalLM", {**config_of("glm-asr-nano")["lm_config"], "tie_word_embeddings": False}),
    "got": ("Qwen2ForCausalLM", {**config_of("got"), "model_type": "qwen2"}),
    "hyperclovax-think-32b": (
        "HyperCLOVAXForCausalLM",
        {**text_of("hyperclovax-think-32b"), "tie_word_embeddings": False},
    ),
}
"""Config → a class of transformers with the same layers, and the config under that class's names."""


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_with_the_same_layers_has_the_counted_parameters(name: str) -> None:
    cls, fields = CLASSES[name]
    fields = {
        key: value for key, value in fields.items() if key not in ("quantization_config", "auto_map", "_name_or_path")
    }
    model = build_class_model({**fields, "architectures": [cls]}, will_run=False)
    assert llmcalc.params(config_of(name)).total == sum(parameter.numel() for parameter in model.parameters())


def test_emu3_is_read_as_its_converted_repository() -> None:
    assert llmcalc.params(config_of("emu3-chat")).total == llmcalc.params(config_of("emu3-chat-hf")).total


def test_ernies_own_code_lists_text_and_image_experts() -> None:
    config = config_of("ernie-4.5-vl-28b-a3b-thinking")
    converted = {
        name: value for name, value in config.items() if not name.startswith("moe_layer") and name != "auto_map"
    } | {"model_type": "ernie4_5_vl_moe_text", "architectures": [], "moe_num_experts": 64}
    assert read_config(config, "lm")[0]["decoder"] == read_config(converted, "lm")[0]["decoder"]
    with pytest.raises(InputError, match=r"moe_num_experts: a list; expected the same number for text and for images"):
        read_description({**config, "moe_num_experts": [64, 32]})
    with pytest.raises(InputError, match=r"moe_layer_end_index: 20; expected 27 or more"):
        read_description({**config, "moe_layer_end_index": 20})


def test_layers_without_experts_of_ernies_own_code_are_named() -> None:
    """The class of transformers reads `mlp_layer_types` alone."""
    config = {**shapes_of("ernie4_5_vl_moe_text")[0], "num_hidden_layers": 4, "moe_layer_start_index": 2}
    assert any(
        "moe_layer_start_index: counted as Baidu's own code reads it" in note for note in read_description(config).notes
    )
    kinds = ["dense", "dense", "sparse", "sparse"]
    listed = read_description({**config, "mlp_layer_types": kinds})
    assert listed.notes == []
    assert listed.model == read_description(config).model
    with pytest.raises(InputError, match="moe_layer_start_index: 2; expected the first sparse layer of mlp"):
        read_description({**config, "mlp_layer_types": ["dense", *kinds[:3]]})


def test_ernies_own_code_has_no_shared_experts_by_default() -> None:
    """The model is published as 424 B; two shared experts in each of its 51 layers would be 9.0 B more."""
    total = llmcalc.params(config_of("ernie-4.5-vl-424b-a47b")).total
    assert 422e9 < total < 424e9


def test_layers_that_predict_further_tokens_may_end_a_list_of_layers() -> None:
    exaone = config_of("exaone-4.5-33b-fp8")
    text = exaone["text_config"]
    assert len(text["layer_types"]) == text["num_hidden_layers"] + 1
    reading = read_description(exaone)
    assert "num_nextn_predict_layers: the multi-token-prediction modules are not counted" in reading.notes
    with pytest.raises(InputError, match=r"text_config.layer_types: a list; expected 64 times"):
        read_description({**exaone, "text_config": {**text, "layer_types": text["layer_types"] * 2}})
    ocr = read_description(config_of("glm-ocr"))
    assert "num_nextn_predict_layers: the multi-token-prediction modules are not counted" in ocr.notes


@pytest.mark.parametrize(
    ("kind", "section"),
    [
        ("hyperclovax_vlm", "vision_config"),
        ("sarashina2_vision", "vision_config"),
    ],
)
def test_a_wrapper_whose_class_is_named_as_a_text_model_names_its_encoder(kind: str, section: str) -> None:
    notes = llmcalc.load({**shapes_of(kind)[0], section: {"depth": 2}}).notes
    assert any(note.startswith(f"its encoder is not counted: {section}") for note in notes)


@pytest.mark.parametrize("name", [name for name, record in RECORDS.items() if "published_with_encoders" in record])
def test_a_published_number_of_parameters_with_encoders(name: str) -> None:
    """In the form of the model's own code, of which DeepSeek-OCR's states most sizes of its encoders."""
    total = llmcalc.params(config_of(name), with_towers=True).total
    assert total == RECORDS[name]["published_with_encoders"]


def test_the_encoders_of_deepseek_ocr_2_are_those_of_its_class() -> None:
    from transformers import DeepseekOcr2Config
    from transformers.models.deepseek_ocr2.modeling_deepseek_ocr2 import DeepseekOcr2VisionModel

    layers = {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24}
    heads = {"num_attention_heads": 14, "num_key_value_heads": 2}
    config = DeepseekOcr2Config(
        vision_config={"encoder_config": {**layers, **heads}},
        text_config={"num_hidden_layers": 1, "mlp_layer_types": ["dense"]},
    )
    with torch.device("meta"):
        encoders = DeepseekOcr2VisionModel(config.vision_config)
    projector_and_separator = 896 * 1280 + 1280 + 1280
    parameters = sum(parameter.numel() for parameter in encoders.parameters())
    answer = llmcalc.params(config_of("deepseek-ocr-2"))
    assert answer.left_out["towers"] == parameters + projector_and_separator


def test_a_model_may_be_named_none() -> None:
    assert llmcalc.load(config_of("got")).name == "none"


def test_fields_of_a_training_run_are_no_sizes() -> None:
    config = {**shapes_of("xlm")[0], "batch_size": 16, "beam_size": 1, "n_gpu_per_node": 8, "world_size": 32}
    assert spec_of(config) == spec_of(shapes_of("xlm")[0])


def test_a_wrapper_is_known_by_its_class_and_its_encoders_are_counted_or_named() -> None:
    """The checkpoint of HyperCLOVA X SEED Think has 33 B parameters, its encoder of images included."""
    config = config_of("hyperclovax-think-32b")
    assert config["model_type"] == "vlm"
    assert round(llmcalc.params(config, with_towers=True).total / 1e9, 1) == 33.3
    omni = {
        **config,
        "audio_config": {"model_type": "qwen2_audio_encoder"},
        "discrete_audio_config": {"model_type": "x"},
    }
    notes = llmcalc.load(omni).notes
    assert "its encoder is not counted: audio_config: 'qwen2_audio_encoder' is not supported" in notes
    assert "its encoder is not counted: discrete_audio_config: 'x' is not supported" in notes


@pytest.mark.parametrize(
    ("kind", "field", "remark"),
    [
        ("bailing_moe", {"multi_gate": True}, "multi_gate: the two routers of each layer for tokens of images and"),
        ("bailingmm", {"talker_config": {"layers": 2}}, "talker_config: the part that it describes is not counted"),
        ("chatglm", {"pre_seq_len": 128}, "pre_seq_len: the weights of a trained prefix of 128 tokens are not counted"),
    ],
)
def test_weights_that_only_a_field_adds_are_named(kind: str, field: dict[str, object], remark: str) -> None:
    """Ming-lite-omni routes tokens of images and of sound apart; ChatGLM may be tuned with a prefix."""
    config = shapes_of(kind)[0]
    remarks = {*llmcalc.load({**config, **field}).notes} - {*llmcalc.load(config).notes}
    assert [note for note in remarks if note.startswith(remark)]


@pytest.mark.parametrize(
    ("kind", "field", "says"),
    [
        ("telechat", {"embed_layernorm": True}, "embed_layernorm: true; expected one of false"),
        ("qwen3_omni_moe_text", {"sliding_window": 4}, "sliding_window: 4; expected one of null"),
    ],
)
def test_a_field_that_would_change_the_counts_is_refused(kind: str, field: dict[str, object], says: str) -> None:
    """A norm of TeleChat's embeddings; a window that the class of Qwen3-Omni gives its cache alone."""
    with pytest.raises(InputError, match=says):
        llmcalc.load({**shapes_of(kind)[0], **field})


def test_a_text_section_of_another_name_is_read_and_none_at_all_is_refused() -> None:
    """GLM-ASR's own form has `lm_config`; its class would have taken Llama 7B's sizes from its defaults."""
    config = config_of("glm-asr-nano")
    notes = llmcalc.load(config).notes
    assert "lm_config: read as text_config" in notes
    assert "whisper_config: the part that it describes is not counted" in notes
    renamed = {"text_model_config" if name == "lm_config" else name: section for name, section in config.items()}
    with pytest.raises(InputError, match="text_config: missing; expected the section with the text model's sizes"):
        llmcalc.load(renamed)
    with pytest.raises(InputError, match="text_config: missing"):
        llmcalc.load({**config, "llm_config": {}})


QWEN = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
}


def test_sizes_in_a_section_that_nothing_reads_are_refused() -> None:
    """They were those of the class's defaults, 12 billion parameters."""
    with pytest.raises(InputError, match="llm: a section with a width, 64, which the class of 'qwen3' does not"):
        llmcalc.load({"model_type": "qwen3", "llm": QWEN})
    assert llmcalc.load({"model_type": "qwen3", **QWEN, "llm": QWEN}).model.hidden_size == QWEN["hidden_size"]
    text = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336}  # the width is Llama's default
    with pytest.raises(InputError, match="text_config: a section with intermediate_size = 14336, which the class of"):
        llmcalc.load({"model_type": "llama", "text_config": text})
    with pytest.raises(InputError, match="text_config: a section with a width, a list, which"):
        llmcalc.load({"model_type": "llama", "text_config": {"hidden_size": [1]}})
    for name in ("num_hidden_layers", "n_layer", "num_layers"):
        deeper = {"hidden_size": 4096, name: 40}  # one size at the top, and the others in the section
        with pytest.raises(InputError, match=f"text_config: a section with {name} = 40, which the class of 'llama'"):
            llmcalc.load({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "text_config": deeper})
    at_the_top = {"model_type": "llama", **QWEN, "num_hidden_layers": 2}
    assert (
        llmcalc.load({**at_the_top, "text_config": {**QWEN, "num_hidden_layers": 40}}).model.main.num_hidden_layers == 2
    )


@pytest.mark.parametrize(
    ("kind", "section", "remark"),
    [
        ("vibevoice", {"decoder_config": {**QWEN, "model_type": "qwen2"}}, "decoder_config: read as text_config"),
        (
            "qwen3_asr",
            {"thinker_config": {"text_config": {**QWEN, "model_type": "qwen3"}, "model_type": "qwen3_asr_thinker"}},
            "thinker_config: its sections are read as those of the config",
        ),
    ],
)
def test_sections_of_a_models_own_form_are_read(kind: str, section: dict[str, object], remark: str) -> None:
    description = llmcalc.load({"model_type": kind, **section})
    assert remark in description.notes
    assert description.model.hidden_size == QWEN["hidden_size"]
    assert description.model.vocab_size == QWEN["vocab_size"]


def test_settings_that_ernies_trainer_saves_change_no_count() -> None:
    """`num_acc_steps` is the run's `gradient_accumulation_steps`, by which its code divides the routers' loss."""
    config = config_of("ernie-4.5-vl-28b-a3b-thinking")
    saved = {**config, "num_acc_steps": 8, "per_device_train_batch_size": 2, "multi_token_pred_lambda": 0.3}
    assert llmcalc.params(saved).total == llmcalc.params(config).total


def test_glm_asr_repeats_the_size_of_its_rotation_outside_of_its_text_model() -> None:
    config = config_of("glm-asr-nano")
    assert llmcalc.params({**config, "rope_dim": 128}).total == llmcalc.params(config).total


# --- code under the model type, or the class's name, of another model -------------------------------------------------

BERT_BASE: dict[str, Any] = {"num_attention_heads": 12, "num_hidden_layers": 12, "type_vocab_size": 2}


def test_mosaic_bert_is_told_from_bert_by_its_alibi() -> None:
    """DNABERT-2 and MosaicBERT state `bert` and BERT's class; bert_layers.py has ALiBi and a gated network."""
    auto_map = {"AutoModelForMaskedLM": "bert_layers.BertForMaskedLM"}
    config = {**BERT_BASE, "model_type": "bert", "architectures": ["BertForMaskedLM"], "auto_map": auto_map}
    config |= {"hidden_size": 768, "intermediate_size": 3072, "vocab_size": 4096, "alibi_starting_size": 512}
    h, f, v, depth = 768, 3072, 4096, 12
    layer = 4 * (h * h + h) + 2 * h + 2 * h * f + (f * h + h) + 2 * h  # Wqkv and dense, gated_layers, wo; two norms
    head = h * h + h + 2 * h + v  # transform with its norm, the decoder's bias
    assert llmcalc.params(config).total == v * h + 2 * h + 2 * h + depth * layer + head == 117_074_176


def test_nucleotide_transformer_2_states_no_model_type_and_the_class_of_esm() -> None:
    """Its modeling_esm.py has SwiGLU, and a table of positions beside rotary ones."""
    config = {"architectures": ["EsmForMaskedLM"], "add_bias_fnn": False, "position_embedding_type": "rotary"}
    config |= {"emb_layer_norm_before": False, "tie_word_embeddings": False, "pad_token_id": 1, "vocab_size": 4107}
    config |= {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "num_hidden_layers": 29}
    config |= {"max_position_embeddings": 2050, "token_dropout": False}
    h, f, v, depth = 1024, 4096, 4107, 29
    layer = 4 * (h * h + h) + 2 * 2 * h + 3 * h * f
    contacts = 16 * depth + 1
    head = h * h + h + 2 * h + h * v + v
    total = v * h + 2050 * h + depth * layer + 2 * h + contacts + head
    assert llmcalc.params(config).total == total == 498_345_436
    assert llmcalc.params({**config, "model_type": "esm"}).total == total


def test_the_first_bitnet_states_llama() -> None:
    """1bitLLM's modeling_bitnet.py has a norm before each output projection, as the class of transformers."""
    shape = shapes_of("bitnet")[0]
    config = {**shape, "model_type": "llama", "architectures": ["BitnetForCausalLM"], "weight_bits": 1, "input_bits": 8}
    assert llmcalc.params(config).total == llmcalc.params(shape).total


def test_the_first_santacoder_states_gpt2() -> None:
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadCustomModel"], "n_embd": 32, "n_head": 4, "n_layer": 2}
    config |= {"vocab_size": 96, "n_positions": 64}
    bigcode = {**config, "model_type": "gpt_bigcode", "architectures": ["GPTBigCodeForCausalLM"]}
    for head_type, is_multi_query in (("multiquery", True), ("multihead", False)):
        expected = llmcalc.params({**bigcode, "multi_query": is_multi_query}).total
        assert llmcalc.params({**config, "attention_head_type": head_type}).total == expected


def test_the_class_of_vila_has_its_text_model_with_a_head() -> None:
    """`LlavaLlamaModel` of NVILA-8B; `vision_tower_cfg` describes an encoder, which a remark names."""
    text = {name: value for name, value in shapes_of("qwen2")[0].items() if name != "architectures"}
    config = {"model_type": "llava_llama", "architectures": ["LlavaLlamaModel"], "llm_cfg": text}
    config |= {"vision_tower_cfg": {"model_type": "siglip_vision_model", "hidden_size": 24}}
    description = read_description(config)
    assert description.model["head"]["type"] == "lm"
    assert "vision_tower_cfg: its vision encoder is not counted" in description.notes


def test_the_layers_of_decilm_differ_in_their_heads_of_keys_and_values() -> None:
    """DeciLM-7B: 67 heads of keys and values of 128 in all its layers, each with two matrices of 4096 rows."""
    config = {"model_type": "deci", "architectures": ["DeciLMForCausalLM"], "hidden_size": 4096, "vocab_size": 32000}
    config |= {"intermediate_size": 14336, "num_attention_heads": 32, "num_hidden_layers": 32, "rms_norm_eps": 1e-6}
    config |= {"num_key_value_heads_per_layer": [4] * 6 + [2] * 17 + [1] * 9, "max_position_embeddings": 8192}
    h, f, v, depth = 4096, 14336, 32000, 32
    total = 2 * v * h + depth * (2 * h * h + 3 * h * f + 2 * h) + 67 * 2 * h * 128 + h
    assert llmcalc.params(config).total == total == 7_043_551_232
    with pytest.raises(InputError, match="num_key_value_heads_per_layer: a list; expected 32 values, divisors of 32"):
        llmcalc.params({**config, "num_key_value_heads_per_layer": [3] * 32})


def test_solar_open_2_has_linear_attention_in_three_of_four_layers() -> None:
    """Solar-Open2-250B, whose sizes are the defaults of its class: 320 experts, and gates of rank 128."""
    h, heads, d, v = 4096, 64, 128, 196608
    linear = 4 * h * heads * d + h * heads + 3 * 4 * heads * d + 2 * (h * d + d * heads * d) + heads * d + heads + d
    full = 3 * h * heads * d + 2 * h * 8 * d  # with the output gate
    experts = 321 * 3 * h * 1280 + 320 * h
    total = 2 * v * h + h + 36 * linear + 12 * full + 48 * (experts + 2 * h)
    solar = {"model_type": "solar_open2"}
    assert llmcalc.params(solar).total == total == 250_287_794_944
    assert llmcalc.params({**solar, "gqa_layers": [*range(0, 48, 4)]}).total == total
    with pytest.raises(InputError, match="gqa_layers: a list; expected layers from 0 to 47"):
        llmcalc.params({**solar, "gqa_layers": [48]})


def test_gigachat_3_5_has_a_gate_of_low_rank_on_every_norm() -> None:
    """GigaChat3.5-432B-A28B-Reasoning: its index states 445,994,440,544 bytes.

    Matrices in FP8 have a scale in float32 per block of 128 × 128; each of the three modules of multi-token prediction
    stores copies of embedding and head, in bfloat16 as what remains.
    """
    h, heads, q, latent, v = 7168, 64, 1536, 512, 128256
    config = {"model_type": "gigachat3_5", "full_attention_layers": [*range(3, 40, 4)], "num_nextn_predict_layers": 3}
    full = [(h, q), (q, heads * 192), (h, latent + 64), (latent, heads * 256), (heads * 128, h), (h, heads * 128)]
    linear, ffn, expert = [(h, 2 * 4096 + 2 * 8192), (8192, h)], 3 * [(h, 18432)], 3 * [(h, 2048)]
    matrices = 13 * full + 30 * linear + 6 * ffn + 37 * 257 * expert
    fp8 = sum(rows * columns for rows, columns in matrices)
    scales = sum(-(-rows // 128) * -(-columns // 128) for rows, columns in matrices)
    norms = (4 * 43 + 1 + 9) * 33 * h + 13 * 33 * (q + latent) + 30 * 128
    convolutions = 30 * 4 * (2 * 4096 + 8192)
    rest = norms + 37 * 256 * h + convolutions + 30 * (2 * heads + 2 * heads * h) + 3 * 2 * h * h + 2 * v * h
    answer = llmcalc.params(config, with_mtp=True)
    assert answer.total == fp8 + rest == 432_569_019_904
    assert fp8 + 4 * scales + 2 * (rest + 37 * 256 + 6 * v * h) == 445_994_440_544
    with pytest.raises(InputError, match="full_attention_layers: a list; expected layers from 0 to 39"):
        llmcalc.params({**config, "full_attention_layers": [40]})
    with pytest.raises(InputError, match="linear_gating_type: 'sigmoid_gate'; expected one of"):
        llmcalc.params({**config, "linear_gating_type": "sigmoid_gate"})


def test_iquest_q1_has_a_key_of_each_key_value_head_as_sink() -> None:
    """IQuest-Q1, published as 320B, whose sizes are the defaults of its class: SGLang's models/iquest_q1.py."""
    h, v, experts, width, depth = 3072, 160000, 256, 1536, 88
    attention = 2 * h * 48 * 128 + 2 * h * 8 * 128 + 2 * 128 + 8 * 128  # with the norms of heads and the sinks
    layers = depth * (attention + 3 * h) + 3 * h * 12288 + (depth - 1) * experts * (3 * h * width + h)
    answer = llmcalc.params({"model_type": "iquest_q1"})
    assert answer.total == layers + h + 2 * v * h + h == 320_318_615_552
    cached = llmcalc.kv({"model_type": "iquest_q1"}, seq=8192)
    assert cached.bytes == 2 * 2 * 8 * 128 * (25 * 8192 + 63 * 4096)
    null = ("mlp_only_layers", "rotary_dim", "first_layers_types", "hybrid_layers_types_block", "last_layers_types")
    assert llmcalc.params({"model_type": "iquest_q1", **dict.fromkeys(null)}).total == answer.total
    with pytest.raises(InputError, match="num_hidden_layers: 87; expected the 88 layers that its lists describe"):
        llmcalc.params({"model_type": "iquest_q1", "num_hidden_layers": 87})
    with pytest.raises(InputError, match="last_layers_types: a list; expected full_attention or sliding_attention"):
        llmcalc.params({"model_type": "iquest_q1", "last_layers_types": ["linear_attention"] * 3})


def test_a_deepseek_config_with_gated_attention_is_read_as_instella_moe() -> None:
    """Instella-MoE-16B-A3B: its index has 31,725,581,824 bytes, 1,664 elements of them the routers' corrections."""
    config = {"model_type": "deepseek_v3", "architectures": ["InstellaMoEForCausalLM"], "gated_attention": True}
    config |= {"farskip": True, "hidden_size": 2048, "num_hidden_layers": 27, "num_attention_heads": 16}
    config |= {"num_key_value_heads": 16, "intermediate_size": 10944, "moe_intermediate_size": 1408}
    config |= {"n_routed_experts": 64, "num_experts_per_tok": 6, "n_shared_experts": 2, "first_k_dense_replace": 1}
    config |= {"q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 96, "qk_rope_head_dim": 32}
    config |= {"v_head_dim": 128, "vocab_size": 128896, "max_position_embeddings": 32768, "qk_layernorm": True}
    assert 2 * llmcalc.params(config).total + 4 * 1664 == 31_725_581_824
    assert llmcalc.params({**config, "farskip": False}).total == llmcalc.params(config).total


def test_norms_that_llamas_layers_have_in_published_code_are_counted() -> None:
    """Instella 3B (3.11 B parameters) with norms of queries and keys, and BlueLM 7B with a norm of the embedding."""
    h, f, v, depth = 2560, 6912, 50304, 36
    config = {"hidden_size": h, "intermediate_size": f, "vocab_size": v, "num_hidden_layers": depth}
    config |= {"num_attention_heads": 32, "max_position_embeddings": 4096}
    layer, ends = 4 * h * h + 3 * h * f + 2 * h, 2 * v * h + h
    total = ends + depth * (layer + 2 * h)
    assert llmcalc.params({**config, "model_type": "instella"}).total == total == 3_112_675_840
    assert llmcalc.params({**config, "model_type": "BlueLM"}).total == ends + depth * layer + 2 * h
    assert llmcalc.params({**config, "model_type": "zhinao"}).total == ends + depth * (layer + 3 * h)
    h, f, depth = 5120, 13696, 40  # Talkie 1930 13B: no norm has a weight
    assert llmcalc.params({"model_type": "talkie"}).total == 2 * 65536 * h + depth * (4 * h * h + 3 * h * f)
    h, f, depth = 2560, 6912, 36
    for model_type in ("index", "apriel"):
        assert llmcalc.params({**config, "model_type": model_type}).total == ends + depth * layer


def test_pangu_pro_moe_weighs_the_output_of_each_expert() -> None:
    """Pangu Pro MoE 72B, whose sizes are the defaults of its class; a later model states the same model type."""
    h, kv, f, v = 5120, 8 * 128, 1344, 153376
    attention = 2 * h * h + 2 * h * kv + 2 * h + 2 * kv
    experts = 64 * 3 * h * f + 3 * h * 5376 + 64 * h + 64
    pangu = {"model_type": "PanguProMoE", "architectures": ["PanguProMoEForCausalLM"]}
    assert llmcalc.params(pangu).total == 2 * v * h + h + 48 * (attention + experts + 2 * h) == 71_988_781_056
    with pytest.raises(InputError, match="param_sink_number: 128; expected none"):
        llmcalc.params({**pangu, "param_sink_number": 128})


def test_ovis_2_6_has_the_parts_of_ovis_2_5() -> None:
    config = next(iter(shapes_of("ovis2_5")))
    text = {**shapes_of("qwen3_moe")[0], "hidden_size": config["llm_config"]["hidden_size"]}
    total = llmcalc.params({**config, "llm_config": text}).total
    for model_type, class_name in (("ovis2_6_moe", "Ovis2_6_MoeForCausalLM"), ("ovis2_6", "Ovis2_6ForCausalLM")):
        later = {**config, "llm_config": text, "model_type": model_type, "architectures": [class_name]}
        assert llmcalc.params(later).total == total
        assert not any("no known class" in remark for remark in read_description(later).notes)


def test_models_of_flash_linear_attention_are_counted() -> None:
    """The defaults of fla's classes: 5632 is 2/3 · 4 · 2048, rounded up to a multiple of 256."""
    h, f, v = 2048, 5632, 32000
    ends, ffn = 2 * v * h + h, 3 * h * f + 2 * h
    softmax = 4 * h * h
    assert llmcalc.params({"model_type": "transformer"}).total == ends + 24 * (softmax + ffn) == 1_364_297_728
    keys, values, heads = 6 * 256, 6 * 512, 6
    gated = h * (2 * keys + 3 * values + 2 * heads) + 4 * (2 * keys + values) + 2 * heads + 512
    assert llmcalc.params({"model_type": "gated_deltanet"}).total == ends + 21 * (gated + ffn) == 1_387_348_732
    hybrid = {"model_type": "gated_deltanet", "attn": {"layers": [3, 7], "num_heads": 16, "num_kv_heads": 4}}
    total = ends + 19 * gated + 2 * (2 * h * h + 2 * h * 512) + 21 * ffn
    assert llmcalc.params(hybrid).total == total
    for attn in ({"layers": [21], "num_heads": 16}, [{"layers": [0], "num_heads": 16}] * 2):
        with pytest.raises(InputError, match=r"attn.*\.layers: a list; expected layers from 0 to 20, each once"):
            llmcalc.params({"model_type": "gated_deltanet", "attn": attn})
    with pytest.raises(InputError, match="use_gate: false; expected one of true"):
        llmcalc.params({"model_type": "gated_deltanet", "use_gate": False})


def test_linear_attention_of_flash_linear_attention_is_counted() -> None:
    """The defaults of fla's classes are the sizes of its models of 1.3 B; a gate of GLA has rank 16 and a bias.

    GLA's modules are printed in the library's README, and the config of its 340M in legacy/training/configs.
    """
    h, f, v = 2048, 5632, 32000
    ends, ffn = 2 * v * h + h, 3 * h * f + 2 * h
    delta = 4 * h * h + 16 * h + 3 * 4 * h + 128  # queries, keys, values, output; β; convolutions; norm
    assert llmcalc.params({"model_type": "delta_net"}).total == ends + 24 * (delta + ffn) == 1_365_677_056
    retention = h * (2 * h + 3 * 2 * h) + 512  # values, gate and output are twice as wide
    narrow_ffn = 3 * h * 2816 + 2 * h  # 2/3 · 2 · 2048, rounded up
    assert llmcalc.params({"model_type": "retnet"}).total == ends + 24 * (retention + narrow_ffn) == 1_351_727_104
    gla = h * (2 * 1024 + 3 * h) + 16 * h + 16 * 1024 + 1024 + 512
    assert llmcalc.params({"model_type": "gla"}).total == ends + 24 * (gla + ffn) == 1_365_514_240
    hgrn2 = 4 * h * h + h + h  # the norm, and a row of the table of lower bounds
    assert llmcalc.params({"model_type": "hgrn2"}).total == ends + 24 * (hgrn2 + ffn) == 1_364_396_032
    attended = {"model_type": "hgrn2", "attn": {"layers": [0, 7], "num_heads": 16}}  # a row for each is not counted
    assert llmcalc.params(attended).total == ends + 22 * hgrn2 + 2 * 4 * h * h + 24 * ffn
    assert "not counted: 4,096 parameters" in "".join(read_description(attended).notes)
    kda = (
        4 * h * h + 3 * 4 * h + 2 * (128 * h + 128 * h) + h + 16 * h + 16 + h + 128
    )  # gates of rank 128, one with a bias
    assert llmcalc.params({"model_type": "kda"}).total == ends + 24 * (kda + ffn) == 1_390_941_568
    small: dict[str, Any] = {"model_type": "gla", "hidden_size": 1024, "tie_word_embeddings": True}
    h, f = 1024, 2816
    gla = h * (2 * 512 + 3 * h) + 16 * h + 16 * 512 + 512 + 256
    assert llmcalc.params(small).total == v * h + h + 24 * (gla + 3 * h * f + 2 * h) == 341_707_776
    for model_type in (
        "delta_net",
        "retnet",
        "gla",
        "hgrn2",
        "kda",
    ):  # a state in float32 for each head and layer, no more
        assert llmcalc.kv({"model_type": model_type}, seq=4096).bytes == llmcalc.kv({"model_type": model_type}).bytes


@in_one_test
@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "delta_net", "qk_norm": "sum"}, "qk_norm: 'sum'; expected one of 'l2'"),
        (
            {"model_type": "delta_net", "expand_k": 0.001},
            "expand_k: 0.001; expected a width that is a multiple of num_",
        ),
        ({"model_type": "retnet", "num_kv_heads": 3}, "num_kv_heads: 3; expected a divisor of 8"),
        ({"model_type": "gla", "clamp_min": -1.0}, "clamp_min: -1.0; expected one of null"),
        ({"model_type": "hgrn2", "num_heads": 3}, r"num_heads: 3; expected hidden_size / expand_ratio \(16\)"),
    ],
)
def test_linear_attention_of_flash_linear_attention_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        llmcalc.params(config)


def test_mamba_2_of_flash_linear_attention_has_its_fields() -> None:
    config = {"model_type": "mamba2", "architectures": ["Mamba2ForCausalLM"], "hidden_size": 64, "expand": 2}
    config |= {"head_dim": 16, "num_heads": 8, "n_groups": 1, "state_size": 16, "num_hidden_layers": 2}
    config |= {"vocab_size": 96, "norm_eps": 1e-5}
    of_fla = {**config, "fuse_cross_entropy": True, "rmsnorm": True, "D_has_hdim": False, "dt_limit": [0.0, 10.0]}
    assert not any("unrecognised" in note for note in llmcalc.load(of_fla).notes)
    assert llmcalc.params(of_fla).total == llmcalc.params({**config, "tie_word_embeddings": False}).total
    without_heads = {field: value for field, value in of_fla.items() if field != "num_heads"}
    assert llmcalc.params(without_heads).total == llmcalc.params(of_fla).total
    with pytest.raises(InputError, match="D_has_hdim: true; expected one of false"):
        llmcalc.params({**of_fla, "D_has_hdim": True})


REPLIT: dict[str, Any] = {
    "model_type": "mpt", "architectures": ["MPTForCausalLM"], "d_model": 3072, "n_heads": 24, "n_layers": 32,
    "expansion_ratio": 4, "max_seq_len": 4096, "vocab_size": 32768, "no_bias": True, "learned_pos_emb": True,
    "norm_type": "low_precision_layernorm", "ffn_config": {"ffn_type": "mptmlp"},
    "attn_config": {"attn_type": "grouped_query_attention", "kv_n_heads": 8, "alibi": True, "attn_impl": "triton"},
}  # fmt: skip


def test_mpt_with_fields_of_llm_foundry_is_counted() -> None:
    """replit-code v1.5 (3.3 B) has 8 heads of keys and values of 128."""
    h, depth = 3072, 32
    layer = 2 * h * h + 2 * h * 8 * 128 + 2 * 4 * h * h + 2 * h
    assert llmcalc.params(REPLIT).total == 32768 * h + depth * layer + h == 3_322_088_448
    assert llmcalc.kv(REPLIT, batch=1, seq=1).bytes == 2 * 2 * depth * 8 * 128
    wide = {**REPLIT, "ffn_config": {"ffn_type": "mptmlp", "ffn_hidden_size": 8192}}
    assert llmcalc.params(wide).total == 3_322_088_448 - depth * 2 * h * (4 * h - 8192)
    gated = {**REPLIT, "ffn_config": {"ffn_type": "mptglu", "ffn_hidden_size": 8192}}
    assert llmcalc.params(gated).total == llmcalc.params(wide).total + depth * h * 8192
    with pytest.raises(InputError, match=r"attn_config\.kv_n_heads: 7; expected a divisor of 24"):
        llmcalc.params({**REPLIT, "attn_config": {**REPLIT["attn_config"], "kv_n_heads": 7}})
    with pytest.raises(InputError, match=r"expansion_ratio: 0\.1; expected a multiple of 1 / d_model"):
        llmcalc.params({**REPLIT, "expansion_ratio": 0.1})


def test_mpt_of_7b_is_the_same_with_the_fields_of_later_versions() -> None:
    config: dict[str, Any] = {"model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32, "vocab_size": 50432}
    config |= {"no_bias": True, "architectures": ["MPTForCausalLM"], "attn_config": {"alibi": True}}
    later = {**config, "attn_config": {"alibi": True, "rope": False, "fused_qkv": True}}
    assert llmcalc.params(later).total == llmcalc.params(config).total == 6_649_286_656


def test_samba_has_the_layers_of_mamba_and_of_softmax_attention() -> None:
    """flame's samba_1B: 9 layers of Mamba and 9 with a window of 2,048 tokens, all with an FFN."""
    attn = {"layers": [*range(1, 18, 2)], "num_heads": 18, "num_kv_heads": 18, "window_size": 2048}
    config = {"model_type": "samba", "hidden_size": 2304, "intermediate_size": 4608, "attn": attn}
    h, inner, rank, states, f = 2304, 4608, 144, 16, 6144
    mixer = 2 * h * inner + 5 * inner + inner * (rank + 2 * states) + (rank + 1) * inner + inner * (states + 1)
    layers = 9 * (mixer + inner * h) + 9 * 4 * h * h + 18 * (3 * h * f + 2 * h)
    assert llmcalc.params(config).total == 2 * 32000 * h + layers + h == 1_403_935_488
    assert llmcalc.params({"model_type": "samba"}).total == 1_403_935_488


def test_mamba_of_flash_linear_attention_has_its_defaults() -> None:
    """The library's class has an untied head, and a Δ of its own rank under another name than transformers' class."""
    config = {"model_type": "mamba", "architectures": ["MambaForCausalLM"], "fuse_cross_entropy": True}
    h, inner, rank, states = 2048, 4096, 128, 16
    mixer = 2 * h * inner + 4 * inner + inner + inner * (rank + 2 * states) + (rank + 1) * inner
    layer = mixer + inner * states + inner + inner * h + h
    assert llmcalc.params(config).total == 2 * 32000 * h + 48 * layer + h == 1_400_276_992
    assert llmcalc.params({**config, "dt_rank": 64}).total == 1_400_276_992 - 48 * 64 * 2 * inner


def test_btlm_has_the_layers_of_jais() -> None:
    """BTLM-3B-8K (2.6 B): 32 layers with ALiBi, a gated FFN and biases, and a tied head."""
    config = {"model_type": "btlm", "architectures": ["BTLMLMHeadModel"], "n_embd": 2560, "n_head": 32, "n_layer": 32}
    config |= {"n_inner": 6826, "activation_function": "swiglu", "position_embedding_type": "alibi"}
    config |= {"vocab_size": 50257, "n_positions": 8192, "mup_width_scale": 0.1, "mup_scale_qk_dot_by_d": True}
    h, f = 2560, 6826
    layer = 4 * (h * h + h) + 3 * h * f + 2 * f + h + 4 * h
    assert llmcalc.params(config).total == 50257 * h + 32 * layer + 2 * h == 2_646_255_744


@pytest.mark.parametrize("model_type", ["gsa", "hgrn", "stripedhyena", "evabyte"])
def test_a_type_whose_layers_no_description_has_is_refused_with_their_name(model_type: str) -> None:
    with pytest.raises(
        InputError, match=rf"'{model_type}' is not supported.* which a description in TOML does not have"
    ):
        llmcalc.params({"model_type": model_type, "auto_map": {"AutoModelForCausalLM": "modeling.Model"}})


def test_wedlm_8b_has_the_parameters_of_qwen3_8b() -> None:
    """The headers of its 399 tensors have that sum; its code has biases unless `attention_bias` is false."""
    sizes = {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "vocab_size": 151936}
    heads = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
    wedlm = {
        "model_type": "wedlm",
        **sizes,
        **heads,
        "qk_norm": True,
        "rope_theta": 1e6,
        "max_position_embeddings": 512,
    }
    assert llmcalc.params({**wedlm, "attention_bias": False}).total == 8_190_735_360
    assert llmcalc.params(wedlm).total == 8_190_735_360 + 36 * (32 + 2 * 8) * 128


def test_florence_2_in_its_own_code_has_the_sizes_of_its_class() -> None:
    """microsoft/Florence-2-large: modeling_florence2.py, whose configs call the text model `florence2_language` and
    give the encoder no model type.
    """
    sizes = {
        "vocab_size": 51289, "d_model": 1024, "encoder_layers": 12, "decoder_layers": 12, "encoder_ffn_dim": 4096,
        "decoder_ffn_dim": 4096, "encoder_attention_heads": 16, "decoder_attention_heads": 16,
        "max_position_embeddings": 1024, "scale_embedding": False,
    }  # fmt: skip
    wrapper = {"model_type": "florence2", "architectures": ["Florence2ForConditionalGeneration"], "vocab_size": 51289}
    stages = {
        "depths": [1, 1, 9, 1], "num_heads": [8, 16, 32, 64], "num_groups": [8, 16, 32, 64], "window_size": 12,
        "patch_size": [7, 3, 3, 3], "patch_stride": [4, 2, 2, 2], "patch_padding": [3, 1, 1, 1],
        "patch_prenorm": [False, True, True, True], "projection_dim": 1024,
    }  # fmt: skip
    own_code_vision = {
        "model_type": "davit", "dim_embed": [256, 512, 1024, 2048], **stages, "enable_checkpoint": False,
        "image_feature_source": ["spatial_avg_pool", "temporal_avg_pool"],
        "image_pos_embed": {"type": "learned_abs_2d", "max_pos_embeddings": 50},
        "visual_temporal_embedding": {"type": "COSINE", "max_temporal_embeddings": 100},
    }  # fmt: skip
    class_vision = {"model_type": "florence_vision", "embed_dim": [256, 512, 1024, 2048], **stages}
    heads_of_code = {name: field for name, field in own_code_vision.items() if name not in ("num_heads", "num_groups")}
    widths_of_code = {name: field for name, field in own_code_vision.items() if name != "dim_embed"}
    counts = [
        llmcalc.params(
            {**wrapper, "text_config": {**sizes, "model_type": name}, "vision_config": vision}, with_towers=True
        ).total
        for name, vision in (
            ("bart", class_vision),
            ("florence2_language", own_code_vision),
            ("florence2_language", {**own_code_vision, "model_type": ""}),  # as published
            ("florence2_language", {**heads_of_code, "model_type": ""}),
            ("florence2_language", {**widths_of_code, "model_type": "florence2_vision"}),
        )
    ]
    assert counts == [770_173_952] * 5  # 39 rows of the embedding fewer than florence-community/Florence-2-large-ft
