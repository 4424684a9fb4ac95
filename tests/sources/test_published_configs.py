"""Published configs with fields that their class does not read: they are read, and counted as the class builds them.

`tests/data/published_configs` has their texts, and their sources in its README.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import llmcalc
from llmcalc.costs.params import total_params_of
from llmcalc.errors import InputError
from llmcalc.model import ModelSpec
from llmcalc.sources.huggingface.config_file import describe_config, describe_config_data
from llmcalc.sources.huggingface.description import read_config
from llmcalc.sources.huggingface.registry import family_of, library_classes, model_types
from llmcalc.sources.to_hf.compare import canonical_values
from llmcalc.witnesses.transformers import build_class_model
from tests.families import shapes_of
from tests.samples import in_one_test, with_rest
from tests.witnesses.config_fields import configured

FOLDER = Path(__file__).parents[1] / "data/published_configs"


def published(name: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return config


ADAPTERS = (
    "lora_rank: the adapters of rank 4 for jina-embeddings-v3's tasks are not counted: only its own code has them"
)

READ: dict[str, tuple[dict[str, Any], list[str]]] = {
    "doge-160m": ({}, []),
    "doge-20m-instruct": ({}, []),
    "jina-embeddings-v3": ({}, [ADAPTERS]),
    "reformer-crime-and-punishment": (
        {},
        ["reversible layers: training computes each layer again, which is not counted"],
    ),
    "minimax-m2-awq": (
        {"model_type": "minimax_m2"},
        ["model_type: 'mixtral'; read as 'minimax_m2', for architectures names MiniMaxM2ForCausalLM"],
    ),
    "video-llava-7b": (
        {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
        [
            "mm_hidden_size: the projector from encoders of width 1024 is not counted",
            "mm_image_tower: the image encoder 'LanguageBind/LanguageBind_Image' is not counted",
            "mm_video_tower: the video encoder 'LanguageBind/LanguageBind_Video_merge' is not counted",
        ],
    ),
}
"""Config → (fields that name the class which it is compared with, remarks)."""


@pytest.mark.parametrize("name", READ)
def test_they_are_counted_as_their_class(name: str) -> None:
    config = published(name)
    fields, remarks = READ[name]
    description = describe_config_data(config)
    assert [note for note in description["notes"] if not note.startswith("sizes that")] == remarks
    counted = ModelSpec.model_validate(description["model"]).tree().total(total_params_of)
    model = build_class_model({**config, **fields}, will_run=False)
    assert counted == sum(parameter.numel() for parameter in model.parameters())


LIKE_BERT = {
    "model_type": "bert",
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
}


def test_colbert_projects_the_states_of_bert_with_its_pooler() -> None:
    """colbert-ir/colbertv2.0: `HF_ColBERT` of stanford-futuredata/ColBERT (colbert/modeling/hf_colbert.py).

    It has the model and `linear`, from its width to `dim` = 128 without a bias; bert-base-uncased has 109,482,240
    parameters.
    """
    description = describe_config_data({**LIKE_BERT, "architectures": ["HF_ColBERT"]})
    counted = ModelSpec.model_validate(description["model"]).tree().total(total_params_of)
    assert counted == 109_482_240 + 768 * 128
    assert any(note.startswith("dim: not in the config") for note in description["notes"])


def test_the_size_of_colberts_vectors_stands_beside_its_config(tmp_path: Path) -> None:
    """answerdotai/answerai-colbert-small-v1: `dim` is 96 in its artifact.metadata (ColBERT's ColBERTConfig)."""
    config = {**LIKE_BERT, "hidden_size": 384, "intermediate_size": 1536, "architectures": ["HF_ColBERT"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "artifact.metadata").write_text(json.dumps({"dim": 96, "similarity": "cosine"}))
    description = describe_config(tmp_path / "config.json")[1]
    assert description["model"]["head"] == {"type": "projection", "size": 96}
    assert not any(note.startswith("dim:") for note in description["notes"])
    (tmp_path / "artifact.metadata").write_text(json.dumps({"dim": "96"}))
    with pytest.raises(InputError, match="colbert_dim: '96'; expected a positive whole number"):
        describe_config(tmp_path / "config.json")


QWEN2_VL_2B = {
    "model_type": "qwen2_vl",
    "hidden_size": 1536,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "intermediate_size": 8960,
    "vocab_size": 151936,
    "vision_config": {"depth": 32, "embed_dim": 1280, "hidden_size": 1536, "num_heads": 16, "mlp_ratio": 4},
}
QWEN3_06B = {
    "model_type": "qwen3",
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "vocab_size": 151936,
}
MODERN_VBERT = {
    "model_type": "modernvbert",
    "text_config": {
        "model_type": "modernbert",
        "hidden_size": 768,
        "intermediate_size": 1152,
        "num_hidden_layers": 22,
        "num_attention_heads": 12,
        "vocab_size": 50368,
    },
    "vision_config": {
        "model_type": "siglip_vision_model",
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "image_size": 512,
        "patch_size": 16,
    },
    "pixel_shuffle_factor": 4,
}
CLASS_HEADS: dict[str, tuple[dict[str, Any], int]] = {
    "ColQwen2": (QWEN2_VL_2B, 1536 * 128 + 128),
    "BiQwen2": (QWEN2_VL_2B, 0),
    "JinaVLForRanking": (QWEN2_VL_2B, 1536 * 1536 + 1536 + 1536 + 1),
    "ColQwen3": (QWEN3_06B, 1024 * 320 + 320),
    "JinaEmbeddingsV4Model": ({**QWEN3_06B, "multi_vector_projector_dim": 64}, 1024 * 64 + 64),
    "JinaForRanking": (QWEN3_06B, 1024 * 512 + 512 * 512),
    "Qwen3ForScore": (QWEN3_06B, 0),
    "Qwen3RewardModel": (QWEN3_06B, 0),
    "Qwen3Reranker": (QWEN3_06B, 0),
    "Qwen3Embedder": (QWEN3_06B, 0),
    "ColQwen3MoE": (QWEN3_06B, 0),
    "LowRankQwen3LM": (QWEN3_06B, 1024 * 151936),
    "ColModernVBert": (MODERN_VBERT, 768 * 128 + 128),
    "BiModernVBert": (MODERN_VBERT, 0),
}
"""Class of other code, in the config of a model that it extends → that config, and the parameters of its head.

illuin-tech/colpali (colpali_engine/models); modeling.py of jinaai/jina-reranker-m0 and jina-reranker-v3, and jina_vl.py
and jina.py of vLLM; modeling_jina_embeddings_v4.py of jinaai/jina-embeddings-v4.
"""


@pytest.mark.parametrize("class_name", CLASS_HEADS)
def test_classes_of_other_code_have_a_head_of_theirs_instead_of_logits(class_name: str) -> None:
    config, head_parameters = CLASS_HEADS[class_name]
    untied = {**config, "tie_word_embeddings": False, "architectures": [class_name]}
    without_head = describe_config_data({**untied, "architectures": []}, head="none", allow_unknown=True)["model"]
    base, counted = (
        ModelSpec.model_validate({**fields, "towers": {}}).tree().total(total_params_of)
        for fields in (without_head, describe_config_data(untied)["model"])
    )
    assert counted == base + head_parameters
    if class_name in ("BiQwen2", "BiModernVBert", "ColModernVBert"):
        assert not any("is not supported" in note for note in describe_config_data(untied)["notes"])


def test_a_class_of_scores_without_a_known_head_says_so() -> None:
    """RLHFlow/ArmoRM-Llama3-8B-v0.1: its layers are counted, and neither logits nor its gates."""
    notes = describe_config_data({**QWEN3_06B, "architectures": ["LlamaForRewardModelWithGating"]})["notes"]
    assert any(
        "the head of LlamaForRewardModelWithGating is not supported; no head is counted" in note for note in notes
    )


def test_hidden_states_of_nv_embed_attend_to_latents() -> None:
    """nvidia/NV-Embed-v2: 7.85 B parameters in its index; modeling_nvembed.py, `LatentAttentionModel`.

    Beside Mistral's 7,110,660,096 without its head: 512 latents, queries, keys, values and the output of 8 heads of
    4,096, three norms, and a gated network of four times the width with biases.
    """
    latents = {"num_latents_value": 512, "num_cross_heads": 8, "cross_dim_head": 4096, "latent_dim": 4096}
    config: dict[str, Any] = {
        "model_type": "nvembed",
        "architectures": ["NVEmbedModel"],
        "latent_attention_config": {**latents, "hidden_dim": 4096, "output_normalize": True},
        "text_config": {"model_type": "bidir_mistral", "num_key_value_heads": 8},
    }
    width, heads = 4096, 8 * 4096
    network = width * 8 * width + 8 * width + 4 * width * width + width
    head = 512 * width + 4 * width * heads + 3 * 2 * width + network
    description = describe_config_data(config)
    assert ModelSpec.model_validate(description["model"]).tree().total(total_params_of) == 7_110_660_096 + head
    assert head == 740_356_096
    without_head = describe_config_data(config, head="none")["model"]
    assert ModelSpec.model_validate(without_head).tree().total(total_params_of) == 7_110_660_096
    config["latent_attention_config"]["latent_dim"] = 2048
    with pytest.raises(InputError, match="latent_dim: 2048; expected one of 4096"):
        describe_config_data(config)


@pytest.mark.parametrize(("cls", "patch"), [("ChronosBoltModelForForecasting", 16), ("Chronos2Model", 16)])
def test_patches_of_time_series_are_refused(cls: str, patch: int) -> None:
    """amazon/chronos-bolt-base and amazon/chronos-2 state the model type of T5, and have other inputs and outputs."""
    config = {
        "model_type": "t5",
        "architectures": [cls],
        "d_model": 64,
        "num_layers": 2,
        "num_heads": 4,
        "vocab_size": 2,
    }
    with pytest.raises(InputError, match=r"chronos_config\.input_patch_size: 16; .*patches of a time series"):
        describe_config_data({**config, "chronos_config": {"input_patch_size": patch}})
    assert describe_config_data({**config, "chronos_config": {"n_tokens": 4096}})


def test_a_bias_of_doges_first_code_is_refused() -> None:
    with pytest.raises(InputError, match="hidden_bias: true; expected one of false"):
        read_config({**published("doge-160m"), "hidden_bias": True})


def test_other_classes_under_another_model_type_are_still_two_models() -> None:
    config = {**published("minimax-m2-awq"), "model_type": "qwen3_moe", "num_experts": 8}
    with pytest.raises(InputError, match="MiniMaxM2ForCausalLM is a class of 'minimax_m2', but model_type says"):
        describe_config_data(config)


# --- fields of another family -----------------------------------------------------------------------------------------

UNREAD = [
    ("llama", "sliding_window", 4096),
    ("diffllama", "sliding_window", 4096),
    ("ernie4_5", "sliding_window", 4096),
    ("hunyuan_v1_dense", "sliding_window", 4096),
    ("qwen3_vl_text", "sliding_window", 4096),
    ("modernbert", "head_dim", 16),
    ("modernbert", "num_key_value_heads", 2),
    ("nomic_bert", "num_key_value_heads", 2),
    ("t5", "intermediate_size", 64),
    ("switch_transformers", "head_dim", 16),
    ("distilbert", "intermediate_size", 64),
]


@in_one_test
@pytest.mark.parametrize(("kind", "field", "value"), UNREAD)
def test_a_field_that_the_class_does_not_read_is_unknown(kind: str, field: str, value: int) -> None:
    config = shapes_of(kind)[0]
    with pytest.raises(InputError, match=rf"{field} = {value}: unknown field of a {kind} config"):
        describe_config_data({**config, field: value})
    ignoring = describe_config_data({**config, field: value}, allow_unknown=True)
    assert ignoring["model"] == describe_config_data(config)["model"]
    assert f"unrecognised fields, ignored: {field}" in ignoring["notes"]


def test_layers_without_a_default_in_the_class_are_asked_for() -> None:
    config = {name: value for name, value in shapes_of("deepseek_ocr2_text")[0].items() if name != "mlp_layer_types"}
    with pytest.raises(InputError, match="mlp_layer_types: missing; expected 3 names, one for each layer"):
        describe_config_data(config)


def renamed() -> Iterator[tuple[str, str, str]]:
    """Yields (model type, usual name, the class's own name) of every field that two names have in a class's configs."""
    for kind in model_types():
        for usual_name, class_name in library_classes().names.get(kind, {}).items():
            if family_of(kind).read_model is not None:
                yield kind, usual_name, class_name


SETS_FURTHER_FIELDS = {
    (kind, "num_layers") for kind in ("longt5", "mt5", "pop2piano", "switch_transformers", "t5", "udop", "umt5")
}
"""Own names of a class that set a further field (`num_decoder_layers`), which the usual name does not."""


OVERRIDDEN = {("step3p5", "n_routed_experts")}
"""Own names whose default in the class replaces a value under the usual name."""


def test_every_name_that_a_class_knows_a_field_by_is_read() -> None:
    """transformers sets the own field where a config has the usual name (`attribute_map`)."""
    compared = 0
    for kind, usual, own in renamed():
        shape = next((shape for shape in shapes_of(kind) if own in shape and usual not in shape), None)
        if shape is not None and (kind, own) not in SETS_FURTHER_FIELDS | OVERRIDDEN:
            other = {usual if name == own else name: value for name, value in shape.items()}
            assert read_config(other) == read_config(shape), (kind, usual, own)
            compared += 1
    assert compared > 150


def test_several_kinds_of_layers_are_unknown_to_a_class_with_one() -> None:
    """Phi-3's class has the window in every layer."""
    phi = {**shapes_of("phi3")[0], "sliding_window": 16}
    depth = phi["num_hidden_layers"]
    mixed = {**phi, "layer_types": ["full_attention", *["sliding_attention"] * (depth - 1)]}
    with pytest.raises(InputError, match="layer_types = a list: unknown field of a phi3 config"):
        describe_config_data(mixed)
    alike = {**phi, "layer_types": ["sliding_attention"] * depth}
    for config in (alike, mixed):
        assert describe_config_data(config, allow_unknown=True)["model"] == describe_config_data(phi)["model"]
    assert describe_config_data(alike)["notes"][-1:] == ["unrecognised fields, ignored: layer_types"]


def test_a_mistral_config_with_kinds_of_layers_is_ministrals(tmp_path: Path) -> None:
    """`AutoConfig` of transformers replaces the model type of such a file, as of Ministral 8B."""
    from transformers import AutoConfig

    mistral = {**shapes_of("mistral")[0], "sliding_window": 16, "num_hidden_layers": 3}
    mixed = {**mistral, "layer_types": ["full_attention", "sliding_attention", "full_attention"]}
    (tmp_path / "config.json").write_text(json.dumps(mixed))
    assert AutoConfig.from_pretrained(tmp_path).model_type == "ministral"
    ministral = describe_config_data({**mixed, "model_type": "ministral", "architectures": ["MinistralForCausalLM"]})
    counted, expected, plain = (
        canonical_values(ModelSpec.model_validate(description["model"]))
        for description in (describe_config_data(mixed), ministral, describe_config_data(mistral))
    )
    assert counted == expected != plain
    with pytest.raises(InputError, match="layer_types: a list; expected 3 times"):
        describe_config_data({**mixed, "layer_types": ["full_attention"]})


def test_llamas_cache_has_no_window(run: Any, tmp_path: Path) -> None:
    config = {**shapes_of("llama")[0], "sliding_window": 64}
    (tmp_path / "config.json").write_text(json.dumps(config))
    out = run("kv", str(tmp_path), "--seq", "512", "--allow-unknown", "--format", "json").out
    layers, kv_heads, head_dim = 3, 2, 32 // 4
    assert json.loads(out)["cache"]["bytes"] == layers * 512 * 2 * kv_heads * head_dim * 2


LISTS = [
    ("gemma3_text", "layer_types", ["sliding_attention", "full_attention"]),
    ("qwen2", "layer_types", ["full_attention"]),
    ("bailing_hybrid", "mlp_layer_types", ["dense"]),
]


@pytest.mark.parametrize(("kind", "field", "more"), LISTS)
def test_a_list_of_layers_has_as_many_as_the_model(kind: str, field: str, more: list[str]) -> None:
    """The configuration class raises an error for any other length."""
    config = shapes_of(kind)[0]
    depth = config["num_hidden_layers"]
    kinds = (config.get(field) or more * depth)[:depth]
    config |= {"sliding_window": 8} if "attention" in more[0] else {}
    describe_config_data({**config, field: kinds})
    with pytest.raises(
        InputError, match=rf"{field}: a list; expected {depth} times .*the list has {depth + len(more)}"
    ):
        describe_config_data({**config, field: [*kinds, *more]})
    with pytest.raises(
        InputError,
        match=rf"{field}: a list; expected {depth} times .*the list has {depth - 1}, and num_hidden_layers is {depth}",
    ):
        describe_config_data({**config, field: kinds[:-1]})
    with pytest.raises(InputError, match=rf"{field}: a list; expected {depth} times .*it has 'no_such_kind'"):
        describe_config_data({**config, field: [*kinds[:-1], "no_such_kind"]})


def test_mimos_published_fields_for_sliding_layers_must_be_those_of_the_class() -> None:
    config = next(shape for shape in shapes_of("mimo_v2_flash") if "swa_head_dim" not in shape)
    for field in ("num_attention_heads", "head_dim", "v_head_dim"):
        value = describe_config_data(config)["config"].get(field)
        with pytest.raises(InputError, match=f"swa_{field}: 3; expected one of"):
            describe_config_data({**config, f"swa_{field}": 3})
        if value:
            assert (
                describe_config_data({**config, f"swa_{field}": value})["model"]
                == describe_config_data(config)["model"]
            )
    layers = ModelSpec.model_validate(read_config(config)[0]).stacks()
    assert layers
    with pytest.raises(
        InputError, match="hybrid_layer_pattern: a list; expected 1 for the sliding layers of layer_types"
    ):
        describe_config_data({**config, "hybrid_layer_pattern": [0] * config["num_hidden_layers"]})


# --- configs that a class has saved -----------------------------------------------------------------------------------


WITH_CLASS = [
    kind
    for kind in model_types()
    if family_of(kind).read_model is not None and not family_of(kind).source and kind != "encoder-decoder"
]
SAVED = {
    "few": ["blt", "dbrx", "gpt_bigcode", "inkling_text", "kimi_linear", "llama", "qwen2_moe", "qwen3_moe", "t5gemma"],
    "all": WITH_CLASS,
}


@pytest.mark.parametrize("kinds", with_rest(SAVED, ["few"]))
def test_a_config_is_counted_as_before_when_its_class_has_saved_it(kinds: list[str]) -> None:
    """A fine-tuned model has every attribute of its configuration in its file, also those that the class derives
    (`num_key_value_heads` of StarCoder) or replaces (a window of 0 in Qwen2-MoE's without `use_sliding_window`).
    """
    for kind in kinds:
        shape = shapes_of(kind)[0]
        saved = json.loads(json.dumps(configured(shape).to_dict(), default=str))
        saved |= {"model_type": kind, "architectures": shape["architectures"]}
        descriptions = [describe_config_data(config) for config in (shape, saved)]
        models = [ModelSpec.model_validate(description["model"]) for description in descriptions]
        counts = [model.tree().total(total_params_of) for model in models]
        assert counts[0] == counts[1], kind
        assert not [note for note in descriptions[1]["notes"] if note.startswith("unrecognised fields")], kind


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "qwen2_moe", "qwen3_moe"])
def test_a_window_of_0_is_none_where_no_layer_has_a_window(kind: str) -> None:
    config = {**shapes_of(kind)[0], "use_sliding_window": False, "sliding_window": None}
    assert read_config({**config, "sliding_window": 0}) == read_config(config)
    with pytest.raises(InputError, match="sliding_window: 0; expected a positive whole number"):
        read_config({**config, "sliding_window": 0, "use_sliding_window": True})


# --- classes of other names -------------------------------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize(
    ("class_name", "is_remarked_on"),
    [
        ("LlamaRewardModel", True),
        ("LlamaModel", False),
        ("TFLlamaModel", False),
        ("FlaxLlamaModel", False),
        ("LlamaForCausalLM", False),
    ],
)
def test_a_class_of_an_unknown_name_without_a_head_is_remarked_on(class_name: str, is_remarked_on: bool) -> None:
    """`LlamaRewardModel` of openbmb/UltraRM-13b has a `regression_head` with hidden_size weights."""
    config = {**shapes_of("llama")[0], "architectures": [class_name]}
    remark = (
        f"architectures: {class_name} is no known class of 'llama'; its layers and norms are counted, and no head or "
        "other weights that it may have"
    )
    assert (remark in describe_config_data(config)["notes"]) == is_remarked_on
    assert remark not in describe_config_data(config, head="none")["notes"]


def test_a_class_of_an_unknown_name_with_a_head_is_remarked_on() -> None:
    """Its code may have weights that the model type's class has not, as the first BitNet's under `llama` had."""
    remark = (
        "architectures: {} is no known class of 'llama'; the layers of llama are counted, and no other weights that "
        "its code may have"
    )
    classes = {"DeciCoderForCausalLM": True, "TFLlamaForCausalLM": False, "Llama2ForCausalLM": False}
    for class_name, is_remarked_on in classes.items():
        notes = describe_config_data({**shapes_of("llama")[0], "architectures": [class_name]})["notes"]
        assert (remark.format(class_name) in notes) == is_remarked_on


def test_messages_about_classes_say_nothing_twice() -> None:
    llama = shapes_of("llama")[0]
    for class_name, head_text in (
        ("LlamaForScore", "no head is counted (--head lm for a language-model head)"),
        ("LlamaWithGates", "a language-model head is counted (--head none for none)"),
    ):
        assert describe_config_data({**llama, "architectures": [class_name]})["notes"][0] == (
            f"architectures: the head of {class_name} is not supported; {head_text}"
        )
    bert = {**shapes_of("bert")[0], "architectures": ["NomicBertModel"]}
    with pytest.raises(InputError, match="model_type says 'bert', and these are two models; expected fields that name"):
        describe_config_data(bert)


# --- drafts -----------------------------------------------------------------------------------------------------------

EAGLE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 2048,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 1,
    "rms_norm_eps": 1e-05,
    "tie_word_embeddings": False,
    "vocab_size": 128256,
    "draft_vocab_size": 32000,
}
"""SpecForge's `configs/llama3-8B-eagle3.json` (github.com/sgl-project/SpecForge)."""


@pytest.mark.parametrize(
    ("fields", "sign"),
    [
        ({"architectures": ["LlamaForCausalLMMedusa"], "draft_vocab_size": None}, "LlamaForCausalLMMedusa is a draft"),
        ({"architectures": ["QwenDFlareDraftModel"], "dflash_config": {}}, "QwenDFlareDraftModel is a draft"),
        ({"architectures": [], "draft_vocab_size": None, "medusa_num_heads": 5}, "medusa_num_heads: 5 is a field of"),
        ({"architectures": ["JetSpecDraftModel"]}, "JetSpecDraftModel is a draft model"),
        ({"architectures": ["DFlash2K3DraftModel"], "dflash_config": {}}, "DFlash2K3DraftModel is a draft model"),
        ({"architectures": [], "speculators_model_type": "pard2"}, "speculators_model_type: 'pard2' is a field of"),
    ],
)
def test_a_draft_that_is_not_read_is_refused_with_every_option(
    run: Any, tmp_path: Path, fields: dict[str, Any], sign: str
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**EAGLE, **fields}))
    for option in ((), ("--allow-unknown",), ("--measure",)):
        err = run("params", str(path), *option).error
        assert sign in err
        assert "reads the hidden states of its target model" in err
        assert "expected the config of a whole model, or of a draft of dflash, dflash2, domino" in err
        assert err.count("error:") == 1
    with pytest.raises(InputError, match="draft model"):
        llmcalc.load({**EAGLE, **fields}, allow_unknown=True)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"architectures": ["LlamaForCausalLM"]},
        {"architectures": ["EagleLlamaForCausalLM"], "draft_vocab_size": None},
        {"architectures": ["Eagle3Speculator"], "model_type": None, "speculators_model_type": "eagle3"},
    ],
)
@pytest.mark.parametrize("allow_unknown", [False, True])
def test_a_draft_is_never_read_as_a_llama(fields: dict[str, Any], allow_unknown: bool) -> None:
    """A Llama of these fields has 2 · 128,256 · 4,096 parameters in its embedding and its head alone."""
    model = llmcalc.load({**EAGLE, **fields}, allow_unknown=allow_unknown).model
    assert "embed_tokens" in model.from_target
    assert llmcalc.params(model).total < 2 * 128_256 * 4096


def test_a_class_of_a_draft_cannot_be_measured(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(EAGLE))
    assert "--measure: a draft of eagle3 has no class in transformers" in run("params", str(path), "--measure").err


def test_other_names_are_no_drafts() -> None:
    for name in ("LlamaForCausalLM", "Eagle2_5_VLForConditionalGeneration", "BeagleForCausalLM"):
        assert read_config({**shapes_of("llama")[0], "architectures": [name]})[0]
