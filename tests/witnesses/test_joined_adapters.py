"""Adapters of classes that compute several projections as one layer, beside the bytes of those classes."""

from __future__ import annotations

from dataclasses import replace

import pytest

import llmcalc
from llmcalc.costs.adapter_targets import layers_of_projections
from llmcalc.errors import InputError
from llmcalc.simulator.adapters import Adapters
from llmcalc.sources.huggingface.checkpoint import checkpoint_of
from llmcalc.witnesses.kernel_variants import attach_adapters
from tests.builders import spec_of
from tests.simulator.models import without_values
from tests.witnesses.class_memory import BATCH, FAMILIES, config_of, explained, kernels_of
from tests.witnesses.class_step import class_to_train, held_by

RANK, SEQ = 8, 64


@pytest.mark.parametrize("name", ["pythia-160m", "bloom-560m", "phi-4", "glm-4-32b-0414"])
def test_a_joined_layer_has_one_adapter(name: str) -> None:
    """What remains is what the class saves otherwise without adapters, too (`FAMILIES`)."""
    config = config_of(name)
    spec, checkpoint = spec_of(config), checkpoint_of(config)
    layers = layers_of_projections(spec.tree(), frozenset(), checkpoint.names(spec.tree(), spec.kind))
    joined_layers = {(layer.module, layer.projection): layer.layer for layer in layers if layer.is_joined}
    assert joined_layers
    model = class_to_train(config)
    choices = replace(kernels_of(model), matches_transformers=False)
    attach_adapters(model, Adapters(RANK, frozenset(layer.layer for layer in layers)), "meta")
    saved_by_class = held_by(spec, model, BATCH, SEQ)
    adapters = Adapters(RANK, frozenset(layer.projection for layer in layers), joined_layers=joined_layers)
    counted = without_values(spec, BATCH, SEQ, choices=choices, adapters=adapters)
    assert FAMILIES[name].differences
    assert saved_by_class.saved - counted.saved == sum(explained(name, BATCH, SEQ).values())
    assert saved_by_class.after == counted.after


def adapter_parameters(target: str, *names: str) -> int:
    """The numbers that adapters of rank 8 train, which have a gradient of 4 bytes each."""
    answer = llmcalc.memory(target, lora_rank=RANK, lora_targets=names or None, seq=128)
    gradient_bytes: int = answer.document["memory"]["by_phase"]["step"]["gradients"]
    return gradient_bytes // 4


@pytest.mark.parametrize(
    ("target", "names", "parameters"),
    [
        ("gpt2", ("all-linear",), 12 * RANK * (768 + 2304 + 2 * 768 + 2 * (768 + 3072))),
        ("gpt2", (), 12 * RANK * (768 + 2304)),
        ("gpt2", ("c_attn",), 12 * RANK * (768 + 2304)),
        ("phi3-mini", ("qkv_proj", "gate_up_proj"), 32 * RANK * (3072 + 9216 + 3072 + 16384)),
        ("phi3-mini", ("q_proj", "v_proj"), 32 * RANK * 4 * 3072),
        ("llama3.2-1b", ("q_proj", "v_proj"), 16 * RANK * (2 * 2048 + 2048 + 512)),
    ],
)
def test_parameters_of_adapters(target: str, names: tuple[str, ...], parameters: int) -> None:
    """Names of the class mean its layer; names of projections mean a class that has them apart (Unsloth's Phi-3)."""
    assert adapter_parameters(target, *names) == parameters


def test_an_unknown_layer_is_refused_with_the_names_of_the_class() -> None:
    with pytest.raises(
        InputError, match=r"--lora-targets wqkv_proj: no linear layer has that name; expected .*qkv_proj"
    ):
        llmcalc.memory("phi3-mini", lora_rank=8, lora_targets=("wqkv_proj",))


def test_a_model_without_the_default_layers_needs_targets() -> None:
    with pytest.raises(InputError, match=r"--lora-targets: missing; the model has no q_proj and no v_proj, which"):
        llmcalc.memory("mamba-130m", lora_rank=8)


def test_a_model_with_some_of_the_default_layers_has_adapters_there() -> None:
    """DeepSeek-V2-Lite has q_proj and no v_proj; PEFT adapts the modules that match (tuners_utils.py, inject_adapter:
    it raises an error only if none does).
    """
    assert adapter_parameters("deepseek-v2-lite") == 27 * RANK * (2048 + 16 * 192)
    note = "adapters of q_proj alone: the model has no v_proj"
    for answer in (
        llmcalc.memory("deepseek-v2-lite", lora_rank=RANK, seq=64),
        llmcalc.time("deepseek-v2-lite", "h100", "training", lora_rank=RANK, seq=64),
    ):
        assert any(text.startswith(note) for text in answer.document["notes"])
