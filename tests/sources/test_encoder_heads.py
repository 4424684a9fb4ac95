"""Presets of encoders count the head of their config's class, as the config itself is counted.

An encoder's checkpoint can have a masked-language-model head, a classifier or none, and the class in `architectures` of
its published `config.json` says which.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llmcalc.costs.params import params
from llmcalc.errors import InputError
from llmcalc.model import ModelSpec
from llmcalc.sources.huggingface.description import read_config
from llmcalc.sources.huggingface.registry import model_type_of_class_name
from llmcalc.sources.presets import load_preset, model_names
from llmcalc.sources.to_hf import to_config
from tests.samples import in_one_test

CASES = Path(__file__).parents[1] / "data/cases"

NAMED = {
    "AlbertForMaskedLM": ["albert-base-v2"],
    "BertForMaskedLM": ["bert-base", "bert-base-cased", "bert-large", "bert-large-cased", "bert-multilingual"],
    "BigBirdForPreTraining": ["bigbird-roberta-base"],
    "BertModel": [
        "all-minilm-l12-v2", "all-minilm-l6-v2", "bge-base-en-v1.5", "bge-large-en-v1.5", "bge-small-en-v1.5",
        "e5-base-v2", "e5-large-v2", "multilingual-e5-small", "multilingual-minilm-l12-v2", "mxbai-embed-large-v1",
    ],
    "CamembertForMaskedLM": ["camembert-base"],
    "DistilBertForMaskedLM": ["distilbert-base-cased", "distilbert-base-uncased", "distilbert-multilingual"],
    "ElectraForPreTraining": ["electra-base", "electra-large", "electra-small"],
    "EsmForMaskedLM": ["esm2-8m", "esm2-35m", "esm2-150m", "esm2-650m", "esm2-3b", "esm2-15b"],
    "EuroBertForMaskedLM": ["eurobert-2.1b", "eurobert-210m", "eurobert-610m"],
    "JinaEmbeddingsV3Model": ["jina-embeddings-v3"],
    "ModernBertForMaskedLM": ["modernbert-base", "modernbert-large"],
    "ModernBertModel": ["gte-modernbert-base"],
    "MPNetForMaskedLM": ["all-mpnet-base-v2"],
    "NomicBertModel": ["nomic-embed-text-v1", "nomic-embed-text-v1.5"],
    "RobertaForMaskedLM": ["distilroberta-base", "roberta-base", "roberta-large"],
    "Gemma3TextModel": ["embeddinggemma-300m"],
    "XLMRobertaForMaskedLM": ["xlm-roberta-base", "xlm-roberta-large"],
    "XLMRobertaForSequenceClassification": ["bge-reranker-large", "bge-reranker-v2-m3"],
    "XLMRobertaModel": ["bge-m3", "multilingual-e5-base", "multilingual-e5-large"],
}  # fmt: skip
"""Class in `architectures` of the published config → presets. Each preset's source `config` is that file."""

UNNAMED = [
    "bert-medium", "bert-mini", "bert-small", "bert-tiny", "deberta-base", "deberta-v2-xlarge", "deberta-v2-xxlarge",
    "deberta-v3-base", "deberta-v3-large", "deberta-v3-small", "deberta-v3-xsmall", "mdeberta-v3-base",
]  # fmt: skip
"""Presets whose published config has no `architectures`; then the language-model head counts."""

PAIRS = [(name, cls) for cls, names in NAMED.items() for name in names]
CHECKED = {"bert-base": "bert-base-uncased", "modernbert-base": "modernbert-base", "roberta-base": "roberta-base"}
"""Preset → its published config in `tests/data/cases`."""


def config_of(name: str, cls: str) -> dict[str, Any]:
    """Returns a preset's config as its publisher writes it: with this class, or with none if it is empty."""
    config = {key: value for key, value in to_config(load_preset(name).model).items() if key != "architectures"}
    return {**config, "architectures": [cls], "model_type": model_type_of_class_name(cls)} if cls else config


def test_every_encoder_is_here() -> None:
    encoders = {name for name in model_names() if load_preset(name).model.kind == "encoder"}
    assert encoders == {*UNNAMED, *(name for name, _ in PAIRS)}


@in_one_test
@pytest.mark.parametrize(("name", "cls"), [*PAIRS, *((name, "") for name in UNNAMED)])
def test_a_preset_has_the_head_of_its_config(name: str, cls: str) -> None:
    model = load_preset(name).model
    counted = ModelSpec.model_validate(read_config(config_of(name, cls))[0])
    assert counted.head.type == model.head.type
    assert params(counted).total == params(model).total


@pytest.mark.parametrize("name", CHECKED)
def test_the_classes_are_those_of_the_published_configs(name: str) -> None:
    config = json.loads((CASES / CHECKED[name] / "config.json").read_text())
    assert config["architectures"] == [dict(PAIRS)[name]]
    assert params(ModelSpec.model_validate(read_config(config)[0])).total == params(load_preset(name).model).total


def test_eurobert_says_that_its_head_is_not_in_the_published_figure() -> None:
    eurobert = load_preset("eurobert-210m")
    head = 128256 * 768  # the masked-language-model head: an untied projection without a bias
    assert params(eurobert.model).total == 310_266_624 == 211_766_016 + head
    assert "EuroBertForMaskedLM" in (eurobert.published.parameters_note or "")


@pytest.mark.parametrize(
    ("kind", "tied", "remarks"), [("bert", False, 1), ("bert", True, 0), ("convbert", False, 0), ("t5", False, 0)]
)
def test_a_second_bias_of_an_untied_head_is_named(kind: str, tied: bool, remarks: int) -> None:
    """`BertLMPredictionHead` has a bias of its own beside that of its decoder, which nothing adds.

    `T5ForConditionalGeneration` ties the head, so that it has fewer parameters, and none that are not counted.
    """
    notes = read_config({"model_type": kind, "tie_word_embeddings": tied})[1]
    assert len([note for note in notes if note.startswith("not counted of the class")]) == remarks


@in_one_test
@pytest.mark.parametrize("ending", ["ForPreTraining", "ForXVector"])
def test_layers_after_an_encoder_of_sound_that_are_not_counted_are_named(ending: str) -> None:
    config = {"model_type": "wav2vec2", "architectures": [f"Wav2Vec2{ending}"]}
    description, notes = read_config(config)
    assert f"architectures: the layers of Wav2Vec2{ending} after the encoder are not counted" in notes
    assert params(ModelSpec.model_validate(description)).total == 94_371_712  # Wav2Vec2Model of its defaults on meta


@in_one_test
@pytest.mark.parametrize("ending", ["ForSequenceClassification", "ForAudioFrameClassification"])
def test_a_classifier_of_the_weighted_sum_of_all_layers_is_refused(ending: str) -> None:
    config = {"model_type": "wav2vec2", "architectures": [f"Wav2Vec2{ending}"], "use_weighted_layer_sum": True}
    with pytest.raises(InputError, match="use_weighted_layer_sum"):
        read_config(config)
