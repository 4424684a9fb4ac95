"""Classes of `transformers` save what llmcalc counts and the named differences, to the byte.

All families are in `tests/data/class_memory.json`; a sample of them is measured again here.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from llmcalc.device_memory.settings import Settings
from llmcalc.device_memory.simulated_run import default_attention
from llmcalc.simulator.sdpa import CPU_CAPABILITY
from llmcalc.sources.huggingface.registry import family_of
from tests.builders import spec_of
from tests.families import shapes_of
from tests.samples import in_one_test
from tests.simulator.models import without_values
from tests.simulator.witness import measured
from tests.witnesses.class_memory import (
    BATCH,
    FAMILIES,
    classes_table,
    config_of,
    explained,
    in_training,
    kernels_of,
    record,
    recorded,
)
from tests.witnesses.class_memory import measured as both
from tests.witnesses.class_step import AllReal, class_memory, class_to_train, held_by

SAMPLE = (
    "llama-3.1-8b",
    "olmo-2-7b",
    "command-r-v01",
    "gemma-2-9b",
    "gpt2-medium",
    "mpt-7b",
    "falcon-7b",
    "bert-base-uncased",
    "t5-11b",
    "whisper-large-v3",
    "deepseek-v3",
    "gpt-oss-120b",
    "mamba2-2.7b",
)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_class_saves_what_is_recorded(name: str) -> None:
    assert record(name) == recorded()[name], "run python -m tests.witnesses.class_memory"


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gemma-2-9b", "mpt-7b", "t5-11b", "deepseek-v3", "gpt-oss-120b"])
def test_the_differences_are_those_of_other_lengths_too(name: str) -> None:
    _, _, theirs, ours = both(name, batch=3, seq=200)
    assert theirs.saved - ours.saved == sum(explained(name, batch=3, seq=200).values())


@pytest.mark.parametrize(
    "name",
    [
        "llama-3.1-8b",
        "gpt2-medium",
        "opt-6.7b",
        "xglm-564m",
        "pythia-160m",
        "falcon-7b",
        "mpt-7b",
        "starcoder2-15b",
        "phi-2",
        "bert-base-uncased",
        "albert-base-v2",
        "modernbert-base",
        "t5-11b",
        "bart-base",
        "whisper-large-v3",
        "lfm2-1.2b",
    ],
)
def test_a_class_in_training_keeps_the_same_of_dropout(name: str) -> None:
    """A class whose softmax is in bfloat16 keeps it, and after dropout a second tensor in bfloat16; the reference keeps
    both, too, the first one in float32.
    """
    _, _, theirs, ours = both(name, dropout=0.1)
    named = explained(name)
    if "attention" in family_of(config_of(name)["model_type"]).dropout_fields:
        named["softmax in bfloat16"] = named.get("softmax in bfloat16", 0) // 2
    assert theirs.saved - ours.saved == sum(named.values())


@pytest.mark.parametrize(
    ("probability", "of_gpu", "megabytes"), [(0.0, True, 69.2), (0.1, True, 108.5), (0.1, False, 122.7)]
)
def test_a_layer_of_gpt2_keeps_more_in_training(probability: float, of_gpu: bool, megabytes: float) -> None:
    """docs/memory.md: 1,024 tokens in bfloat16; off a GPU the mask has the number format of the activations."""

    def saved(layers: int) -> int:
        config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": layers, "vocab_size": 512}
        config |= dict.fromkeys(("attn_pdrop", "resid_pdrop", "embd_pdrop"), probability)
        model = class_to_train(config)
        with in_training(model) if of_gpu else nullcontext(model.train()):
            return held_by(spec_of(config), model, 1, 1024).saved

    assert round((saved(3) - saved(2)) / 1e6, 1) == megabytes


@in_one_test
@pytest.mark.parametrize("name", FAMILIES)
def test_all_differences_are_named(name: str) -> None:
    family, found = FAMILIES[name], recorded()[name]
    theirs, ours = found["saved"]
    assert found["differences"] == explained(name)
    if family.reason:
        assert not family.differences
        assert theirs != ours
    else:
        assert theirs - ours == sum(found["differences"].values())
        assert all(found["differences"].values())  # each is needed


def test_most_families_add_up() -> None:
    """Of 76 families, 64 do; the others run recurrences step by step, or every expert."""
    assert sum(not family.reason for family in FAMILIES.values()) == 64
    assert len(FAMILIES) == len(recorded()) == len(classes_table().splitlines()) - 2 == 76


@pytest.mark.parametrize("family", ["axk2", "deepseek_v32", "glm_moe_dsa"])
def test_a_class_with_an_indexer_gives_the_selection_to_sdpa_as_its_mask(family: str) -> None:
    """On meta, torch's math runs, as on a CPU. The sizes of the experts are those that its grouped products take."""
    sizes = {"moe_intermediate_size": 16, "hidden_size": 64, "n_routed_experts": 8}
    config = shapes_of(family)[0] | sizes | ({"num_local_experts": 8} if family == "axk2" else {})
    spec, model = spec_of(config), class_to_train(config)
    model.config._attn_implementation = default_attention(Settings("training"), spec)
    choices = replace(kernels_of(model), attention="sdpa", compute_capability=CPU_CAPABILITY, matches_transformers=True)
    assert held_by(spec, model, BATCH, 64) == without_values(spec, BATCH, 64, choices=choices)


def test_a_class_that_is_given_labels_keeps_them_shifted() -> None:
    config = shapes_of("llama")[0]
    spec, seq = spec_of(config), 16
    model = class_to_train(config)
    ids = torch.empty(BATCH, seq, dtype=torch.int64, device="meta")
    outside = [*model.parameters(), *model.buffers(), ids]
    measured_bytes = measured(lambda: model(input_ids=ids, labels=ids).loss, outside, tracker_class=AllReal)
    assert measured_bytes.saved == class_memory(spec, config, BATCH, seq).saved + BATCH * seq * 8


def test_a_head_without_logits_runs_up_to_its_result() -> None:
    config = next(shape for shape in shapes_of("bert") if shape["architectures"] == ["BertForSequenceClassification"])
    held = class_memory(spec_of(config), config, BATCH, 8)
    assert 0 < held.saved < held.live
