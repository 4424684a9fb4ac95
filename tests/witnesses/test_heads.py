"""Every head that `transformers` has for the supported families is counted as its class builds it, or rejected by name.

The classes are listed automatically (sources/test_classes.py), so heads of new versions are included. There are three
labels, because two would hide a class that always scores the two ends of an answer.
"""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from typing import Any, get_args

import pytest

from llmcalc.components.choices import HEADS
from llmcalc.components.head_kind import HeadKind
from llmcalc.costs.flops import forward_flops_of
from llmcalc.costs.params import total_params_of
from llmcalc.errors import InputError
from llmcalc.model import VECTOR_HEADS, ModelSpec
from llmcalc.sources.huggingface.description import read_config
from llmcalc.sources.huggingface.registry import FILE_BY_TYPE, family_of, library_class_names, model_types
from llmcalc.witnesses.checks import Verdict
from llmcalc.witnesses.deviations import total_cost_in_class
from llmcalc.witnesses.module_measurements import count_flops, parameter_counts_by_path
from llmcalc.witnesses.reference import LEAST_SEQ
from llmcalc.witnesses.transformers import build_class_model, uncounted_parameters, verify_config
from llmcalc.witnesses.transformers_class import class_model_type
from tests.builders import family_shapes, run_config, spec_of
from tests.families import shapes_of
from tests.samples import sampled

SHAPED = {(config["architectures"][0], config["model_type"]) for _, config in family_shapes()}
"""Classes of which test_families.py compares small configs, each with its model type."""

LABELS = {"id2label": {"0": "a", "1": "b", "2": "c"}}


@cache
def _classes() -> dict[str, list[str]]:
    """transformers model type → its classes with a head, as test_classes.py finds them in the library."""
    return {
        kind: [name for name in names if "For" in name.replace("Former", "") or name.endswith("DoubleHeadsModel")]
        for kind, names in library_class_names().items()
    }


KINDS = [
    kind
    for kind in model_types()
    if family_of(kind).read_model is not None and class_model_type(kind) == kind and not family_of(kind).source
]


def _read(config: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """Returns the description of a config, or the reason for its rejection."""
    try:
        return read_config(config)[0], ""
    except InputError as error:
        return None, str(error)


def _verified(spec: ModelSpec, config: dict[str, Any]) -> Verdict | None:
    """Returns the comparison with the class; None if the class rejects the config."""
    try:
        return verify_config(spec, config, seq=LEAST_SEQ)
    except ValueError:
        return None


PARAMETERS_ALONE = {
    "LongformerForMultipleChoice": "its class wants separator tokens among the ids",
    "LongformerForQuestionAnswering": "its class wants three separator tokens among the ids",
    "LongformerForSequenceClassification": "its class gives the first token global attention",
    "MoshiForConditionalGeneration": "its class wants tokens of audio beside those of the text",
}
"""Classes whose parameters alone are compared, with the reason."""


def heads_of(kind: str) -> set[tuple[str, str]]:
    """What reads a model type's heads, and each of them: its lineage, and how the class's name ends."""
    ends = {name[name.find("For") :] if "For" in name else "DoubleHeadsModel" for name in _classes().get(kind, [])}
    return {(FILE_BY_TYPE[kind].partition(".")[0], end) for end in ends}


@pytest.mark.parametrize("kind", sampled({kind: kind for kind in KINDS}, heads_of))
def test_every_head_is_counted_as_its_class_has_it(kind: str) -> None:
    for name in _classes().get(kind, []):
        config = deepcopy({**shapes_of(kind)[0], "architectures": [name], **LABELS})
        table, refusal = _read(config)
        if table is None:
            assert refusal.startswith("architectures: "), name
            continue
        if (name, kind) in SHAPED and table["head"] == read_config({**config, **dict.fromkeys(LABELS)})[0]["head"]:
            continue  # labels change nothing: test_families.py compares it
        if name in PARAMETERS_ALONE:
            spec = ModelSpec.model_validate(table)
            model = build_class_model(config)
            uncounted = sum(uncounted_parameters(config, model).values())
            assert (
                total_cost_in_class(kind, "parameters", total_params_of, spec)
                == parameter_counts_by_path(model)[""] - uncounted
            ), name
            continue
        verdict = _verified(ModelSpec.model_validate(table), config)
        if verdict is None:
            assert "ForQuestionAnswering" in name, name  # question answering requires two labels
            continue
        assert verdict.ok, (name, [(c.node, c.quantity, c.closed_form, c.measured_value) for c in verdict.failures])
        assert {"parameters", "forward_flops"} <= {c.quantity for c in verdict.checks if c.node == "model"}, name


@pytest.mark.parametrize("seed", range(4))
def test_experts_of_a_class_that_drops_tokens_run_on_all_of_them(seed: int) -> None:
    """The choice of a random router changes no count, although Switch's experts have a capacity."""
    import torch

    torch.manual_seed(seed)
    name = "SwitchTransformersForConditionalGeneration"
    config = {**shapes_of("switch_transformers")[0], "architectures": [name], "expert_capacity": 2}
    verdict = verify_config(spec_of(config), config, seq=LEAST_SEQ)
    assert verdict.ok, [(c.node, c.quantity, c.closed_form, c.measured_value) for c in verdict.failures]


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "electra", "albert", "mpnet"])
def test_a_choice_between_sequences_costs_what_its_class_does(kind: str) -> None:
    """A multiple-choice class takes several sequences per question; each counts as one of the batch."""
    import torch

    name = next(name for name in _classes()[kind] if name.endswith("ForMultipleChoice"))
    config = {**shapes_of(kind)[0], "architectures": [name]}
    model, tree = build_class_model(config), spec_of(config).tree()
    ids = torch.empty(2, 3, 12, dtype=torch.long, device="meta")
    forward, _ = count_flops(model, lambda: model(input_ids=ids))
    assert tree.total(forward_flops_of, run_config(batch=6, seq=12)) == forward[""]


def test_a_class_that_is_named_by_itself_counts_as_one_in_a_list() -> None:
    config, name = shapes_of("qwen2")[0], "Qwen2ForSequenceClassification"
    assert read_config({**config, "architectures": name}) == read_config({**config, "architectures": [name]})


def test_a_head_of_an_unknown_name_is_said() -> None:
    config = shapes_of("qwen2")[0]
    assert "ForImageText" in read_config({**config, "architectures": ["Qwen2ForImageText"]})[1][0]
    assert not read_config({**config, "architectures": ["Qwen2Model"]})[1]


@pytest.mark.parametrize("kind", ["bert", "nomic_bert", "albert"])
def test_a_classifier_asked_for_is_that_of_sequences(kind: str) -> None:
    """`--head classification` also counts the pooler below it, whatever head the config names."""
    config = {k: v for k, v in shapes_of(kind)[0].items() if k != "architectures"}
    for named in ({}, {"architectures": ["XForMaskedLM"]}, {"architectures": ["XForSequenceClassification"]}):
        table, _ = read_config({**config, **named}, "classification")
        assert table["pooler"] == {"dense": True}
        assert table["head"]["num_labels"] == 2


def test_a_choice_of_a_family_without_one_is_refused() -> None:
    with pytest.raises(InputError, match="architectures: 'LlamaForMultipleChoice'; expected a class of llama"):
        read_config({**shapes_of("llama")[0], "architectures": ["LlamaForMultipleChoice"]})


def test_the_kinds_of_head_are_the_types_of_head() -> None:
    """A projection and learned latents are parts of the classes that have them, which no other class can be given."""
    assert {*get_args(HeadKind), *VECTOR_HEADS} == set(HEADS.class_paths)
