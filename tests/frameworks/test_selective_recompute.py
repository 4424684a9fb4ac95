"""`--recompute selective` is the mode that each framework calls so."""

from __future__ import annotations

from typing import Any

import pytest

import llmcalc

SMALL = "gpt2?num_hidden_layers=2"

STANDS_FOR: dict[str, tuple[dict[str, Any], str]] = {
    "megatron": ({"framework": "megatron", "tp": 2}, "attention"),  # --recompute-activations: the attention's core
    "fsdp2": ({"fsdp": 2}, "selective-op"),  # torchtitan, activation_checkpoint.py, `_apply_op_sac`
    "deepspeed": ({"framework": "deepspeed", "dp": 2, "zero": 1}, "attention"),
    "torch": ({"framework": "torch", "dp": 2}, "attention"),
    "no framework": ({}, "attention"),
}


@pytest.mark.parametrize("name", STANDS_FOR)
def test_selective_is_the_frameworks_own(name: str, run: Any) -> None:
    layout, mode = STANDS_FOR[name]

    def document(recompute: str) -> Any:
        options = {"seq": 4096, "recompute": recompute, "attn_implementation": "flash", "optimizer": "adamw"}
        options |= {} if name != "megatron" else {"attn_implementation": "eager"}
        return llmcalc.memory(f"{SMALL}&max_position_embeddings=4096", "training", **options, **layout).document

    selective = document("selective")
    assert selective == document(mode)
    assert selective["memory"] != document("none" if mode == "attention" and name == "megatron" else "full")["memory"]
    if name != "no framework":  # the command line is the same for all
        return
    words = [f"--{key.replace('_', '-')}={value}" for key, value in layout.items()]
    common = ("memory", SMALL, "--phase", "training", "--seq", "512", *words, "--format", "json", "--recompute")
    assert run(*common, "selective").document == run(*common, mode).document


@pytest.mark.parametrize(
    ("ask", "framework", "mode"),
    [
        (llmcalc.fit, "fsdp2", "selective-op"),
        pytest.param(llmcalc.plan, None, "attention", marks=pytest.mark.exhaustive),  # the names are read as for fit
    ],
    ids=["fit", "plan"],
)
def test_plans_and_fits_read_it_too(ask: Any, framework: str | None, mode: str) -> None:
    """Without a framework's name plans are Megatron's."""
    options: dict[str, Any] = {"hardware": "24GiB", "devices": 2, "seq": 256}
    selective, other = (
        ask(SMALL, framework=framework, recompute=word, **options).document for word in ("selective", mode)
    )
    assert selective == other


def test_counts_without_a_framework_read_attention() -> None:
    selective, attention = (
        llmcalc.flops("gpt2", phase="training", recompute=mode).total for mode in ("selective", "attention")
    )
    assert selective == attention
