"""Names of adapted modules in launch files, as PEFT takes them: lists, paths and regular expressions."""

from __future__ import annotations

from dataclasses import replace

import pytest

import llmcalc
from llmcalc.errors import InputError
from llmcalc.frameworks.launch.adapter_targets import LONGEST_PATTERN, translate_adapter_targets
from llmcalc.frameworks.launch.launch_types import Launch, OptionOverride
from llmcalc.frameworks.launch.read_launch_file import read_launch
from tests.samples import in_one_test

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def targets_of(*names: str, model: str = "llama3.2-1b") -> tuple[set[str], tuple[str, ...]]:
    launch = Launch("f.yaml", "axolotl", "torch", settings={"lora_rank": 4, "lora_targets": names})
    known = translate_adapter_targets(launch, llmcalc.load(model).model)
    return set(known.settings["lora_targets"]), known.notes


@in_one_test
@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (("q_proj", "v_proj"), ("q_proj", "v_proj")),
        ((r"model.language_model.layers.[\d]+.(mlp|self_attn).(up|down|gate|q|k|v|o)_proj",), PROJECTIONS),
        ((r"model.layers.[\d]+.(_checkpoint_wrapped_module.)?(mlp|self_attn).(up|q)_proj",), ("q_proj", "up_proj")),
        ((r".*\.layers\.(3|7)\.self_attn\.(q|k)_proj|.*\.mlp\.down_proj$",), ("q_proj", "k_proj", "down_proj")),
        ((r"layers\.\d+\.(self_attn.(q_proj|o_proj)|mlp.(shared.)?up_proj)",), ("q_proj", "o_proj", "up_proj")),
        ((r"(model\.layers\.\d+\.mlp\.up_proj|model\.visual\.layers\.\d+\.q_proj)",), ("up_proj",)),
        (("self_attn.q_proj", "self_attn.o_proj"), ("q_proj", "o_proj")),
        (("query_key_value", "dense_h_to_4h"), ("q_proj", "k_proj", "v_proj", "up_proj")),
        (("q_proj", "experts_proj"), ("q_proj",)),  # PEFT skips what the model does not have
    ],
)
def test_the_layers_that_names_stand_for(names: tuple[str, ...], wanted: tuple[str, ...]) -> None:
    found, notes = targets_of(*names)
    assert found == set(wanted)
    assert bool(notes) == (set(names) != set(wanted))


def test_names_without_any_layer_are_left_for_the_error() -> None:
    """No expression is run; one such as (a+)+ would take for ever."""
    nested = ("(" * 180 + ")" * 180, "(a+)+" * 60, "((a|b)|" * 50, "|" * LONGEST_PATTERN)
    for name in ("wrong_proj", "(((", "x" * (LONGEST_PATTERN + 1), ".*_proj", "(a|b)" * 60, "[ab]" * 60, *nested):
        assert targets_of(name) == ({name}, ())


def test_layers_of_experts_have_no_adapters_of_their_own() -> None:
    found, notes = targets_of(*PROJECTIONS, model="gpt-oss-20b")
    assert found == {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert any("gate_proj: the language model has no such linear layer" in note for note in notes)


def test_adapters_of_the_output_head_are_refused_or_noted() -> None:
    """TRL 1.10, trainer/sft_trainer.py, where `chunked_nll` is the default; all-linear leaves the head out in PEFT."""
    command = "trl sft --model_name_or_path gpt2 --use_peft --max_length 64 --lora_target_modules"
    for targets in ("q_proj lm_head", r"'.*\.(q_proj|lm_head)'", "embed_out"):
        with pytest.raises(InputError, match="lora_target_modules: TRL refuses adapters of the output head"):
            read_launch(f"{command} {targets}")
        assert read_launch(f"{command} {targets} --loss_type nll").settings["lora_rank"] == 16
    assert read_launch(f"{command} all-linear").settings["cross_entropy"] == "recomputed"
    _, notes = targets_of("q_proj", "lm_head")
    assert notes == ("adapters of lm_head, and their product as wide as the logits, are not counted",)


def test_modules_that_are_trained_in_full_have_the_names_of_a_class() -> None:
    """modal-labs/llm-finetuning, config/pythia.yml: GPT-NeoX calls its table embed_in, and its head embed_out."""
    settings = {"lora_rank": 4, "lora_targets": ("q_proj",), "modules_to_save": ("embed_in", "embed_out", "other")}
    launch = Launch("f.yaml", "axolotl", "torch", settings=settings)
    known = translate_adapter_targets(launch, llmcalc.load("pythia-1.4b").model)
    assert known.settings["modules_to_save"] == ("embed_tokens", "lm_head", "other")


def test_a_typed_option_stays() -> None:
    launch = Launch("f.yaml", "axolotl", "torch", settings={"lora_rank": 4, "lora_targets": ("wrong",)})
    typed = replace(launch, option_overrides={"lora_targets": OptionOverride(("wrong",), None)})
    assert translate_adapter_targets(typed, llmcalc.load("llama3.2-1b").model) is typed
