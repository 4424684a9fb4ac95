"""Which settings a run of Megatron is made of follows from their declarations; every other one is refused."""

from __future__ import annotations

from typing import Any

import pytest

import llmcalc
from llmcalc.device_memory.settings import Settings
from llmcalc.errors import InputError
from llmcalc.frameworks.megatron.parallel_adapters import ADAPTER_SETTINGS
from llmcalc.frameworks.megatron.settings_from_options import KNOWN_VALUES_BY_SETTING
from llmcalc.workload.setting import DeclaredSetting, declarations_of
from tests.samples import in_one_test

SETTINGS = declarations_of(Settings)
TRAINING = {name: found for name, found in SETTINGS.items() if "training" in found.setting.phases and name != "phase"}
VALUES: dict[str, Any] = {
    "source": 64,
    "lora_rank": 8,
    "lora_targets": "q_proj",
    "modules_to_save": "lm_head",
    "dtype": "bf16",
    "optimizer_dtype": "fp32",
    "loss_chunk": 16,
    "cross_entropy": "fused",
    "moe": "dropless",
    "attn_implementation": "flash",
    "grad_dtype": "fp32",
}
"""Values of settings whose first word or example is no choice of Megatron's."""


def value_of(name: str, found: DeclaredSetting) -> Any:
    """A value that the setting takes."""
    if name in KNOWN_VALUES_BY_SETTING:
        return KNOWN_VALUES_BY_SETTING[name][0]
    usual = (
        True
        if found.value_type is bool
        else 2
        if found.value_type is int
        else found.allowed_words[0]
        if found.allowed_words
        else None
    )
    return VALUES.get(name, usual or found.setting.example or "bf16")


def ask(name: str) -> None:
    """Replays a small run with that setting."""
    found = TRAINING[name]
    options: dict[str, Any] = {"seq": 64, name: value_of(name, found)}
    options |= {found.setting.required_setting: 8} if found.setting.required_setting else {}
    options |= {
        "momentum": {"optimizer": "sgd"},
        "loss_chunk": {"cross_entropy": "split"},
        "logits_to_keep": {"cross_entropy": "selective"},
    }.get(name, {})
    llmcalc.memory("mixtral-8x7b", "training", framework="megatron", set="num_hidden_layers=2", **options).report()


@pytest.mark.parametrize(
    "name",
    [name for name, found in TRAINING.items() if found.setting.every_framework or name in KNOWN_VALUES_BY_SETTING],
)
def test_a_setting_of_every_framework_is_taken(name: str) -> None:
    ask(name)


@pytest.mark.parametrize("name", sorted(ADAPTER_SETTINGS))
def test_settings_of_adapters_are_taken(name: str) -> None:
    values = {"lora_rank": 8, "lora_library": "mcore-bridge", "lora_targets": "o_proj", "lora_dtype": "bf16"}
    adapters = {"lora_rank": 8, "lora_library": "mcore-bridge", name: values.get(name, True)}
    small = {"seq": 64, "set": "num_hidden_layers=2", "framework": "megatron"}
    llmcalc.memory("mixtral-8x7b", "training", **small, **adapters).report()


@pytest.mark.parametrize("loss", ["fused", "native", "eager"])
def test_each_loss_of_megatron_core_is_its_own(loss: str) -> None:
    document = llmcalc.memory("gpt2", "training", framework="megatron", seq=1024, cross_entropy=loss).document
    assert document["execution"]["cross_entropy"] == loss
    assert document["execution"]["logits_dtype"] == ("bfloat16" if loss == "fused" else "float32")


@pytest.mark.parametrize("options", [{}, {"framework": "fsdp2", "devices": 2}])
def test_the_loss_of_megatron_core_is_refused_of_others(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"--cross-entropy native: .* no such loss; expected --framework megatron"):
        llmcalc.memory("gpt2", "training", cross_entropy="native", **options)


@in_one_test
@pytest.mark.parametrize(
    "name",
    [
        name
        for name, found in TRAINING.items()
        if not found.setting.every_framework and name not in KNOWN_VALUES_BY_SETTING and name not in ADAPTER_SETTINGS
    ],
)
def test_any_other_is_refused(name: str) -> None:
    with pytest.raises(InputError) as error:
        ask(name)
    if name not in (
        "source",
        "momentum",
        "loss_chunk",
        "logits_to_keep",
        "fused_adapters",
    ):  # refused for what they need, or for any decoder
        assert ": not modelled with --framework megatron; expected no --" in str(error.value)


def test_values_of_megatron_are_words_of_the_settings() -> None:
    for name, values in KNOWN_VALUES_BY_SETTING.items():
        for value in values:
            assert SETTINGS[name].checked_value(value) == value
