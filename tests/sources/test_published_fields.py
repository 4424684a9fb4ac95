"""Fields of published configs that are not fields of their class: they change no count and give no warning.

Each is added to every shape of its family. Values that would contradict the count are errors.
"""

from __future__ import annotations

from typing import Any

import pytest

from llmcalc import params
from llmcalc.errors import InputError
from llmcalc.model import ModelSpec
from llmcalc.sources.huggingface.description import read_config
from llmcalc.sources.huggingface.parts import EARLIER_LAYER_TYPES
from llmcalc.sources.huggingface.text_section import with_text_section
from tests.builders import spec_of
from tests.families import shapes_of
from tests.samples import in_one_test

ANY = {
    "bos_token": "<s>",
    "custom_pipelines": {"text-generation": {}},
    "eos_token": "</s>",
    "gradient_checkpointing": False,
    "language": "english",
    "license": "CC-BY-NC-SA 4.0",
    "mask_token": "<mask>",
    "max_sequence_length": 2048,
    "name": "a model",
    "name_or_path": "org/model",
    "pad_token": "<pad>",
    "sentence_transformers": {"version": "5.0"},
    "unk_token_id": 0,
}
"""Fields that occur in configs of any family."""

PUBLISHED: dict[str, dict[str, Any]] = {
    "bert": {
        "directionality": "bidi",
        "pooler_fc_size": 768,
        "pooler_num_attention_heads": 12,
        "pooler_num_fc_layers": 3,
        "pooler_size_per_head": 128,
        "pooler_type": "first_token_transform",
    },
    "ernie": {"enable_recompute": False, "fuse": False, "pool_act": "tanh", "task_type_vocab_size": 3},
    "megatron-bert": {"tokenizer_type": "BertWordPieceLowerCase"},
    "esm": {"esmfold_config": None, "hidden_act": "gelu", "is_folding_model": False, "vocab_list": None},
    "fsmt": {
        "decoder": {"bos_token_id": 2, "model_type": "fsmt_decoder", "vocab_size": 31640},
        "early_stopping": False,
        "langs": ["ru", "en"],
    },
    "glm5_next_text": {
        "first_k_dense_replace": 3,
        "index_kpool_compress": True,
        "index_share_for_mtp_iteration": True,
        "indexer_rope_interleave": True,
        "mhc": True,
        "mla_use_nope": True,
        "moe_router_dtype": "float32",
    },
    "step3p5": {"first_k_dense_replace": 3, "scoring_func": "sigmoid"},
    "xlnet": {"end_n_top": 5, "reuse_len": None, "start_n_top": 5, "untie_r": True},
    "rembert": {"embedding_size": 256},
    "albert": {"layers_to_keep": []},
    "blenderbot": {"extra_layer_norm": False, "variant": "prelayernorm"},
    "llama": {
        "activation": "swiglu",
        "is_llama_config": True,
        "rope_interleaved": False,
        "pixel_shuffle_factor": 4,
        "use_resampler": False,
    },
    "qwen2": {"dual_chunk_attention_config": {"chunk_size": 262144}, "is_causal": False, "use_mrope": False},
    "qwen3_moe": {"qkv_bias": False, "shared_expert_intermediate_size": 0, "use_qk_norm": True},
    "gemma2": {"sliding_window_size": 4096, "num_image_tokens": 256},
    "gemma4_text": {"expert_intermediate_size": None},
    "qwen3_5_text": {"mlp_only_layers": [], "output_gate_type": "swish"},
    "falcon_h1": {"mlp_expansion_factor": 8},
    "jamba": {"n_ctx": 262144},
    "nemotron": {"layernorm_type": "layernorm1p"},
    "nemotron_h": {"mamba_d_state": 128},
    "zamba2": {"hybrid_layer_ids": [5, 11], "use_shared_attention_lora": True},
    "laguna": {
        "decoder_sparse_step": 1,
        "mlp_only_layers": [0],
        "norm_topk_prob": True,
        "use_bidirectional_attention": False,
    },
    "minimax": {"shared_intermediate_size": 0, "shared_moe_mode": "sigmoid"},
    "minimax_m2": {"layernorm_full_attention_beta": 1.0, "mlp_intermediate_size": 8192, "sliding_window": None},
    "minimax_m3_vl_text": {
        "attention_output_gate": False,
        "n_shared_experts": 1,
        "qk_norm_type": "per_head",
        "scoring_func": "sigmoid",
        "use_gemma_norm": True,
        "use_qk_norm": True,
        "use_routing_bias": True,
    },
    "stablelm": {"rotary_scaling_factor": 1.0},
    "gpt2": {"apply_query_key_layer_scaling": True, "normalize_attention_scores": True},
    "glm4v_text": {"attention_bias": True},
    "glm4v_moe_text": {"use_qk_norm": False},
    "starcoder2": {"attention_softmax_in_fp32": True, "scale_attention_softmax_in_fp32": True},
    "cohere2": {"use_qk_norm": False},
    "cohere2_moe": {"use_qk_norm": False},
    "modernbert-decoder": {"causal_mask": True, "is_causal": True},
    "mimo_v2_flash": {"hybrid_block_size": None, "layernorm_epsilon": 1e-5},
    "hy_v3": {"use_grouped_mm": False},
    "exaone_moe": {"first_last_k_dense_replace": 1},
    "bailing_hybrid": {
        "gated_attention_proj_granularity_type": "head_wise",
        "no_kda_lora": True,
        "partial_rotary_factor": 0.5,
        "rotary_dim": 64,
        "score_function": "sigmoid",
        "use_qk_norm": True,
    },
    "glm4_moe_lite": {"partial_rotary_factor": 1.0},
    "deepseek_v3": {"partial_rotary_factor": 0.5},
    "zaya": {"rope_scaling": False},
    "mellum": {"max_window_layers": 0, "use_sliding_window": True},
    "diffllama": {"mlp_bias": False},
    "switch_transformers": {
        "num_sparse_encoder_layers": 6,
        "num_sparse_decoder_layers": 6,
        "encoder_sparse_step": 2,
        "decoder_sparse_step": 2,
    },
    "xlstm": {
        "add_embedding_dropout": False,
        "add_qk_norm": False,
        "forward_backend_name": "chunkwise--triton_limit_chunk",
        "gate_linears": "single",
    },
}

CONTRADICTIONS = [
    ("glm5_next_text", {"mhc": False}),
    ("glm_moe_dsa", {"num_experts": 3}),
    ("minimax_m3_vl_text", {"moe_intermediate_size": 3}),
    ("step3p5", {"scoring_func": "softmax"}),
    ("qwen3_moe", {"shared_expert_intermediate_size": 64}),
    ("qwen3_moe", {"qkv_bias": True}),
    ("minimax", {"shared_intermediate_size": 64}),
    ("minimax_m3_vl_text", {"n_shared_experts": 2}),
    ("cohere2", {"use_qk_norm": True}),
    ("laguna", {"gating_types": ["per_nothing"]}),
    ("exaone_moe", {"is_moe_layer": [True]}),
    ("zaya", {"zaya_mlp_expansion": 256, "router_hidden_size": None}),
]


@in_one_test
@pytest.mark.parametrize("kind", PUBLISHED)
def test_published_fields_change_nothing_and_warn_of_nothing(kind: str) -> None:
    shapes = shapes_of(kind)
    assert shapes
    for shape in shapes:
        given = {
            **shape,
            **{k: v for k, v in PUBLISHED[kind].items() if k.endswith("_sparse_step")},
        }  # fields that only say which layers a switch applies to
        expected_table, notes_without = read_config(given)
        class_notes = [
            note for note in notes_without if note.startswith(("not counted of the class", "cross-attention:"))
        ]
        assert read_config({**ANY, **PUBLISHED[kind], **given}) == (expected_table, class_notes)
        ModelSpec.model_validate(expected_table)


def test_a_field_that_nobody_knows_is_warned_of() -> None:
    (shape, *_) = shapes_of("llama")
    assert read_config({**shape, **ANY, "author": "somebody"})[1] == ["unrecognised fields, ignored: author"]


@in_one_test
@pytest.mark.parametrize(("kind", "fields"), CONTRADICTIONS)
def test_a_published_field_that_says_otherwise_is_an_error(kind: str, fields: dict[str, Any]) -> None:
    (shape, *_) = shapes_of(kind)
    with pytest.raises(InputError, match=next(iter(fields))):
        read_config({**shape, **fields})


NOMIC = {"n_embd": 768, "n_head": 12, "n_layer": 12, "n_inner": 3072, "n_positions": 8192, "vocab_size": 30528}
"""Sizes of nomic-embed-text-v1.5 as published: GPT-2's names, which the class of transformers does not read."""


def test_nomics_names_must_have_the_values_that_the_class_builds() -> None:
    """The class has other names, whose defaults are nomic-embed-text's sizes."""
    nomic = {"model_type": "nomic_bert", "architectures": ["NomicBertModel"]}
    table, _ = read_config({**nomic, **NOMIC, "activation_function": "swiglu", "layer_norm_epsilon": 1e-12})
    assert table == read_config(nomic)[0]
    assert read_config({**nomic, **NOMIC, "n_inner": 64, "intermediate_size": 64})[0] != table
    with pytest.raises(InputError, match="n_inner: 4096; expected 3072, which is intermediate_size: the class "):
        read_config({**nomic, **NOMIC, "n_inner": 4096})
    with pytest.raises(InputError, match="n_inner: 3072; expected 1024, which is intermediate_size"):
        read_config({**nomic, **NOMIC, "intermediate_size": 1024})
    with pytest.raises(InputError, match="activation_function: 'gelu'; expected the activation of hidden_act"):
        read_config({**nomic, **NOMIC, "activation_function": "gelu"})


def test_earlier_names_of_layers_are_those_of_transformers() -> None:
    from transformers import configuration_utils

    assert EARLIER_LAYER_TYPES == configuration_utils._LEGACY_LAYER_TYPE_REMAP


@pytest.mark.parametrize(
    ("kind", "earlier"),
    [("glm5_next_text", "deepseek_sparse_attention"), ("qwen4_exp_text", "qwen_sparse_attention")],
)
def test_layers_may_have_the_names_of_the_published_config(kind: str, earlier: str) -> None:
    """GLM-5.3-Flash and Qwen3.8-Flash-Next name their layers with an indexer by earlier names."""
    (shape, *_) = shapes_of(kind)
    names = shape.get("layer_types") or ["linear_attention", "indexed_attention"] * shape["num_hidden_layers"]
    names = names[: shape["num_hidden_layers"]]
    renamed = [earlier if name in ("indexed_attention", "full_attention") else name for name in names]
    assert earlier in renamed
    assert read_config({**shape, "layer_types": renamed})[0] == read_config({**shape, "layer_types": names})[0]


@pytest.mark.parametrize(("name", "kind"), [("glm53_flash", "glm5_next"), ("qwen3_8_flash_next", "qwen4_exp")])
def test_other_names_of_engines_are_read_as_the_model_type_of_transformers(name: str, kind: str) -> None:
    """vLLM and TokenSpeed call the two models by their marketed names."""
    (text, *_) = shapes_of(f"{kind}_text")
    wrapper = {"model_type": kind, "text_config": text, "architectures": ["ForConditionalGeneration"]}
    renamed = {**wrapper, "model_type": name, "text_config": {**text, "model_type": f"{name}_text"}}
    renamed["vision_config"] = {"model_type": f"{name}_vision" if "glm" in name else name}
    assert read_config(renamed)[0] == read_config({**wrapper, "vision_config": {}})[0]
    assert read_config(renamed)[0]["towers"]


def test_glm_5_3_flash_has_the_published_321_billion_parameters() -> None:
    """321B-A18B counts the layer of multi-token prediction, whose experts and attention are those of another layer."""
    config = {"model_type": "glm5_next_text", "architectures": ["Glm5NextForCausalLM"], "index_kpool": 4}
    experts, attention = 289 * 3 * 4096 * 2048, 4096 * (1536 + 512) + 64 * (1536 * 256 + 512 * 512 + 256 * 4096)
    prediction = experts + attention + 2 * 4096 * 4096  # the last product: of the token's embedding and the state
    assert round((params(spec_of(config)).total + prediction) / 1e9) == 321


def test_zamba2s_hybrid_layers_stand_in_order() -> None:
    """In another order its class gives a layer the adapters of another one."""
    config = shapes_of("zamba2")[0]
    hybrids = [i for i, kind in enumerate(config["layers_block_type"]) if kind == "hybrid"]
    assert len(hybrids) > 1
    assert read_config({**config, "hybrid_layer_ids": hybrids})[0] == read_config(config)[0]
    with pytest.raises(InputError, match="hybrid_layer_ids: a list; expected ascending numbers of layers"):
        read_config({**config, "hybrid_layer_ids": hybrids[::-1]})


def test_a_wrapper_of_another_structure_is_refused() -> None:
    """BLIP for questions has a second text model (transformers: models/blip `BlipForQuestionAnswering`)."""
    with pytest.raises(InputError, match="architectures: BlipForQuestionAnswering has other modules"):
        read_config({"model_type": "blip", "architectures": ["BlipForQuestionAnswering"], "text_config": {}})
    text = shapes_of("diffusion_gemma_text")[0]
    for class_name, has_denoiser in (("DiffusionGemmaModel", True), ("DiffusionGemmaEncoderModel", False)):
        wrapper = {"model_type": "diffusion_gemma", "architectures": [class_name], "text_config": text}
        assert ("streams" in read_config(wrapper)[0]["decoder"]) == has_denoiser
    with pytest.raises(InputError, match="DiffusionGemmaDecoderModel has other modules"):
        read_config({**wrapper, "architectures": ["DiffusionGemmaDecoderModel"]})
    biased = {**wrapper, "architectures": ["DiffusionGemmaModel"], "text_config": {**text, "attention_bias": True}}
    with pytest.raises(InputError, match="attention_bias: true; expected one of false"):  # its class has them twice
        read_config(biased)


def test_the_text_encoder_of_blip_has_a_pooler() -> None:
    """transformers: models/blip `BlipTextModel`, with `add_pooling_layer` by default."""
    shape = shapes_of("blip_text_model")[0]
    plain, pooled = ({**shape, "architectures": [name]} for name in ("BlipTextLMHeadModel", "BlipTextModel"))
    assert ["pooler" in read_config(config)[0] for config in (plain, pooled)] == [False, True]


@pytest.mark.parametrize("text_type", ["gemma", "gemma2"])
def test_paligemma_has_a_cache_as_transformers_saves_it(text_type: str) -> None:
    """transformers: models/paligemma `PaliGemmaConfig` sets the field of the text model; the answer is causal."""
    text = {"model_type": text_type, "use_bidirectional_attention": True}
    config = {"model_type": "paligemma", "architectures": ["PaliGemmaForConditionalGeneration"]}
    assert "decoder" in read_config({**config, "text_config": text})[0]


@in_one_test
@pytest.mark.parametrize(
    ("model_type", "class_name", "advice"),
    [
        ("clip", "CLIPVisionModel", "expected model_type clip_vision_model .* vision_config, and --measure"),
        ("clip", "CLIPVisionModelWithProjection", "expected model_type clip_vision_model"),
        ("clip", "CLIPTextModelWithProjection", "expected model_type clip_text_model .* of text_config$"),
        ("siglip", "SiglipVisionModel", "expected model_type siglip_vision_model"),
        ("siglip2", "Siglip2TextModel", "expected model_type siglip2_text_model"),
        ("metaclip_2", "MetaClip2VisionModel", "expected model_type metaclip_2_vision_model"),
        ("blip", "BlipTextModel", "expected model_type blip_text_model"),
        ("blip", "BlipTextLMHeadModel", "expected model_type blip_text_model"),
        ("blip", "BlipVisionModel", "expected model_type blip_vision_model"),
        ("blip", "BlipForImageTextRetrieval", "expected --measure of llmcalc params"),
        ("clip", "CLIPForImageClassification", "expected --measure of llmcalc params"),
    ],
)
def test_an_encoder_alone_is_not_counted_as_both(model_type: str, class_name: str, advice: str) -> None:
    """transformers: each of these classes builds one encoder, of one section of the config."""
    config = {"model_type": model_type, "architectures": [class_name], "text_config": {}, "vision_config": {}}
    with pytest.raises(InputError, match=f"architectures: {class_name} has other modules.*; {advice}"):
        read_config(config)


@pytest.mark.parametrize("section", [{}, {"architectures": None}, {"architectures": []}])
def test_a_dual_encoder_without_a_class_has_projections_and_scale(section: dict[str, Any]) -> None:
    """transformers: `CLIPModel` and `SiglipModel` have the numbers of their similarity, whatever the config names."""
    for model_type, numbers in (("clip", 1), ("siglip", 2)):
        config = {"model_type": model_type, **section, "text_config": {}, "vision_config": {}}
        assert read_config(config)[0]["head"]["similarity_numbers"] == numbers


def test_weights_that_may_be_untied_are_named() -> None:
    """transformers 5 saves `tie_word_embeddings: true` beside the text section of Ministral 3 8B, and for T5 1.1."""
    text = {"model_type": "ministral3", "tie_word_embeddings": False}
    wrapper = {"model_type": "mistral3", "architectures": ["Mistral3ForConditionalGeneration"], "text_config": text}
    t5 = {"model_type": "t5", "tie_word_embeddings": True, "scale_decoder_outputs": False}
    for config in ({**wrapper, "tie_word_embeddings": True}, t5):
        table, notes = read_config(config)
        assert table["tie_word_embeddings"]
        assert sum("loaded untied" in note for note in notes) == 1
    for model_type, prefix in (("t5", "T5"), ("mt5", "MT5"), ("umt5", "UMT5")):
        saved = {**t5, "model_type": model_type, "scale_decoder_outputs": model_type != "t5"}
        for class_name, is_named in ((f"{prefix}ForConditionalGeneration", True), (f"{prefix}EncoderModel", False)):
            notes = read_config({**saved, "architectures": [class_name]})[1]
            assert any("loaded untied" in note for note in notes) == is_named


def test_the_class_of_the_wrapper_decides_the_head() -> None:
    """The section may name the class of the text model alone, or null; the classifier of tokens has a bias."""
    for inner in (["Qwen3_5ForCausalLM"], None):
        text = {"model_type": "qwen3_5_text", "architectures": inner}
        config = {"model_type": "qwen3_5", "architectures": ["Qwen3_5ForTokenClassification"], "text_config": text}
        assert read_config(config)[0]["head"]["bias"]


def test_older_sections_of_clip_replace_the_others() -> None:
    """`text_config_dict` of CLIP ViT-L/14's config (427,616,513 parameters as published)."""
    config = {
        "model_type": "clip",
        "architectures": ["CLIPModel"],
        "projection_dim": 768,
        "text_config": {"hidden_size": 512},
        "text_config_dict": {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12},
        "vision_config_dict": {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16}
        | {"num_hidden_layers": 24, "patch_size": 14},
    }
    spec = ModelSpec.model_validate(read_config(with_text_section(config)[0])[0])
    assert params(spec, with_towers=True).total == 427_616_513
