"""Wrappers whose encoders are not counted: their text models against the rest of the class."""

from __future__ import annotations

from typing import Any

import pytest

from llmcalc.costs.cache import cache_bits_cost_by_name
from llmcalc.costs.flops import forward_flops_of
from llmcalc.costs.params import total_params_of
from llmcalc.errors import InputError
from llmcalc.model import ModelSpec
from llmcalc.sources.huggingface.description import read_config, text_model_of
from llmcalc.sources.huggingface.registry import FILE_BY_TYPE, family_of, model_types
from llmcalc.sources.huggingface.towers import sections_of
from llmcalc.units import bits_to_bytes
from llmcalc.witnesses.deviations import total_cost_in_class
from llmcalc.witnesses.module_measurements import parameter_counts_by_path
from llmcalc.witnesses.reference import LEAST_SEQ
from llmcalc.witnesses.transformers import build_class_model, meta_device_quirks, run_forward
from tests.builders import run_config
from tests.components.towers.test_towers import held, wrapped
from tests.families.multimodal.uncounted import UNBUILT, WRAPPERS
from tests.samples import sampled

NO_TIES = {"bart", "musicgen_melody_decoder", "pp_formulanet_text"}
"""Text models whose wrapper's class does not say which modules are tied, or has several heads."""


def _config(kind: str) -> dict[str, Any]:
    return wrapped(kind, {"architectures": [WRAPPERS[kind].class_name], **WRAPPERS[kind].fields})


def files_of(kind: str) -> set[str]:
    """What reads a wrapper and its text model."""
    return {FILE_BY_TYPE[kind], FILE_BY_TYPE.get(family_of(kind).text_type or "", "")}


@pytest.mark.parametrize("kind", sampled({kind: kind for kind in WRAPPERS}, files_of))
def test_a_text_model_is_its_class_without_the_encoders(kind: str) -> None:
    config = _config(kind)
    table, notes = read_config(config)
    spec, model = ModelSpec.model_validate(table), build_class_model(config)
    text_type = text_model_of(config)[2]
    encoders = held(model, WRAPPERS[kind].modules)
    assert encoders
    assert (
        total_cost_in_class(text_type, "parameters", total_params_of, spec)
        == parameter_counts_by_path(model)[""] - encoders
    )
    if WRAPPERS[kind].runs:
        _compare_passes(kind, text_type, spec, model)
    assert [note for note in notes if "is not counted" in note] == [
        f"its encoder is not counted: {section}: '{encoder}' is not supported"
        for section, encoder in sorted(
            family_of(kind).uncounted_encoders.items(), key=lambda item: not item[0].startswith(("vision", "audio"))
        )
        if section not in sections_of(kind, family_of(kind).tower_file)
    ]


def _compare_passes(kind: str, text_type: str, spec: ModelSpec, model: Any) -> None:
    """Compares FLOPs and cache with those of a pass of the class over tokens."""
    measured = run_forward(
        spec,
        model.get_submodule(WRAPPERS[kind].text_model),
        1,
        LEAST_SEQ,
        meta_device_quirks({"model_type": text_type}),
    )
    run = run_config(seq=LEAST_SEQ)
    assert total_cost_in_class(text_type, "forward_flops", forward_flops_of, spec, run) == measured.flops_by_path[""]
    if spec.kind == "encoder":
        assert measured.cache_bytes is None
        return
    assert measured.cache_bytes is not None
    assert (
        bits_to_bytes(total_cost_in_class(text_type, "cache_bytes", cache_bits_cost_by_name("bfloat16"), spec, run))
        == measured.cache_bytes
    )


def rules_of(kind: str) -> set[Any]:
    """What decides whether a wrapper's head is tied: its own rules, and the file that reads its text model."""
    family = family_of(kind)
    return {
        FILE_BY_TYPE.get(family.text_type or ""),
        ("ties", family.tying_source),
        ("generates", family.generates_text),
    }


@pytest.mark.parametrize(
    ("outer", "inner"),
    [(True, False), pytest.param(False, True, marks=pytest.mark.exhaustive), (None, True), (None, False)],
)
@pytest.mark.parametrize(
    "kind", sampled({kind: kind for kind in WRAPPERS if family_of(kind).text_type not in NO_TIES}, rules_of)
)
def test_the_head_is_tied_where_the_class_ties_it(kind: str, outer: bool | None, inner: bool) -> None:
    """Without a value in the wrapper the text model's counts, unless the class ties nothing."""
    config, section = _config(kind), family_of(kind).text_section
    tied_in = config
    if "text_config" in config[section]:  # a wrapper of a wrapper ties where that one does
        tied_in, section = config[section], "text_config"
    tied_in.pop("tie_word_embeddings")
    tied_in[section] = {**tied_in[section], "tie_word_embeddings": inner}
    if outer is None:
        text = read_config(tied_in[section])[0]["tie_word_embeddings"]
        assert read_config(config)[0]["tie_word_embeddings"] == (text and family_of(kind).tying_source != "never")
        return
    tied_in["tie_word_embeddings"] = outer
    model: Any = build_class_model(config, will_run=False).get_submodule(WRAPPERS[kind].text_model)
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert read_config(config)[0]["tie_word_embeddings"] == tied


SMALL = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
CROSSES = {"is_decoder": True, "add_cross_attention": True}
DECODERS: list[dict[str, Any]] = [
    {"model_type": "bert", **SMALL, "intermediate_size": 48, **CROSSES},
    {"model_type": "roberta", **SMALL, "intermediate_size": 48, **CROSSES, "tie_word_embeddings": False},
    {"model_type": "gpt2", "vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, **CROSSES},
    {"model_type": "trocr", "vocab_size": 96, "d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 4}
    | {"decoder_ffn_dim": 48, "cross_attention_hidden_size": 24},
    {"model_type": "mbart", "vocab_size": 96, "d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 4}
    | {"decoder_ffn_dim": 48, **CROSSES, "architectures": None},
]


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: decoder["model_type"])
@pytest.mark.parametrize("kind", ["vision-encoder-decoder", "speech-encoder-decoder"])
def test_the_decoder_of_an_encoder_decoder_has_its_cross_attention(kind: str, decoder: dict[str, Any]) -> None:
    config = {**_config(kind), "decoder": decoder}
    table, notes = read_config(config)
    spec, model = ModelSpec.model_validate(table), build_class_model(config)
    text_type = text_model_of(config)[2]
    assert table["decoder"]["block"]["idle_cross_attention"]
    uncounted = held(model, WRAPPERS[kind].modules)
    assert (
        total_cost_in_class(text_type, "parameters", total_params_of, spec)
        == parameter_counts_by_path(model)[""] - uncounted
    )
    _compare_passes(kind, text_type, spec, model)
    assert [note for note in notes if "not counted" not in note] == []


def test_a_decoder_without_a_causal_class_is_refused() -> None:
    config = {**_config("vision-encoder-decoder"), "decoder": {"model_type": "distilbert"}}
    with pytest.raises(InputError, match=r"decoder\.model_type: 'distilbert' has no class for causal language models"):
        read_config(config)


def test_every_wrapper_with_uncounted_encoders_is_compared() -> None:
    wrappers = [
        kind for kind in model_types() if family_of(kind).text_type is not None
    ]  # of the others, test_families.py
    uncounted = {kind for kind in wrappers if family_of(kind).uncounted_encoders}
    assert uncounted == {*WRAPPERS, *UNBUILT}
