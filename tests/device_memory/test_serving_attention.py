"""Inference by default makes no tensor of all scores: what a server needs beside weights and cache is small."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from llmcalc.device_memory.estimate import memory
from llmcalc.device_memory.settings import Settings
from llmcalc.flow.program import Step, all_steps
from llmcalc.model import ModelSpec
from llmcalc.simulator.kernel_choices import KernelChoices
from llmcalc.sources.presets import load_preset, model_names
from tests.builders import with_other_causes
from tests.contracts.test_parts import around_a_model
from tests.simulator.compare import examples
from tests.simulator.models import without_values

GIB = 2**30

LARGEST = 12 * GIB
"""Most bytes beside weights and cache: DeepSeek-V3 computes the keys and values of all heads from 32,768 latents."""

FREE_SHARE = 400
"""Of so many bytes of weights one is free in the allocator's blocks: 11 GiB of the 5.1 TiB of Kimi K3 in 16 bits."""

WITHOUT_AN_ENGINE = ("at_distance", "local_mask")
"""Verbs of attention that no inference engine has a kernel for: disentangled attention (DeBERTa), Transformer-XL's
scores by distance (Gopher, Chinchilla) and LongT5's blocks. transformers runs them step by step.
"""


def steps(spec: ModelSpec) -> list[Step]:
    return list(all_steps(spec.program().root.items))


def of_every_kind() -> list[str]:
    """Presets with every kind of model and of mixer; of several, the widest."""
    specs = {name: load_preset(name).model for name in model_names()}
    widest = sorted(specs, key=lambda name: specs[name].hidden_size, reverse=True)
    return with_other_causes(widest, lambda name: mixers_of(specs[name]))


def mixers_of(spec: ModelSpec) -> set[str]:
    """What attention a model has, if any."""
    mixers = [getattr(layer, "attention", layer) for _, stack in spec.stacks() for _, layer, *_ in stack.layer_groups()]
    return {spec.kind, *(type(mixer).__name__ for mixer in mixers)}


@pytest.mark.parametrize(
    "names", [of_every_kind, pytest.param(model_names, marks=pytest.mark.exhaustive)], ids=["of every kind", "all"]
)
def test_no_preset_needs_much_more_than_weights_and_cache(names: Callable[[], Iterable[str]]) -> None:
    """Printed with `-s`: the presets that need most."""
    beside: dict[str, int] = {}
    eager: list[str] = []
    for name in names():
        run = memory(load_preset(name).model, Settings())
        device = run.device
        weights = device.by_kind["weights"]
        beside[name] = device.device_bytes - weights - weights // FREE_SHARE - device.by_kind["cache"]
        if run.attention == "eager":
            eager.append(name)
    largest = sorted(beside, key=lambda name: beside[name], reverse=True)
    for name in largest[:20]:
        print(f"{name}: {beside[name] / GIB:.2f} GiB")
    assert len(largest) > 10
    assert {name: beside[name] for name in largest if beside[name] > LARGEST} == {}
    assert [name for name in eager if not has_no_engine(load_preset(name).model)] == []


def has_no_engine(spec: ModelSpec) -> bool:
    return any(step.verb in WITHOUT_AN_ENGINE for step in steps(spec))


CHANGED = ("Attention-2", "RelativeBias-0", "MLA-3", "MLA-4", "CompressedAttention-2", "MergedAttention-1")
"""Attention with a bias, with sinks, with selected keys, and with one softmax over several kinds of keys."""


@pytest.mark.parametrize("name", CHANGED)
@pytest.mark.parametrize("phase", ["prefill", "decode", "inference"])
def test_a_server_runs_it_without_scores(name: str, phase: str) -> None:
    spec = around_a_model(examples()[name])
    run = memory(spec, Settings(phase=phase, seq=256, attn_implementation="flash"))  # type: ignore[arg-type]
    assert run.device.exact_bytes > 0
    eager = memory(spec, Settings(phase=phase, seq=256, attn_implementation="eager"))  # type: ignore[arg-type]
    assert run.device.exact_bytes <= eager.device.exact_bytes


def test_what_changes_scores_grows_with_the_tokens_alone() -> None:
    """gpt-oss-20b, prefill in one pass: twice the tokens need twice the temporary bytes, and not four times them."""
    spec = load_preset("gpt-oss-20b").model
    short, long = (
        memory(spec, Settings(phase="prefill", seq=seq, chunk=seq, norm="fused", attn_implementation="flash"))
        for seq in (4096, 8192)
    )
    assert long.device.by_kind["temporary"] < 2.01 * short.device.by_kind["temporary"]


def test_sinks_are_saved_and_get_a_gradient() -> None:
    """4 heads: the backward pass of flash attention reads the sinks, which are parameters."""
    from llmcalc.components.mixers.attention import Attention

    plain, sunk = (
        without_values(around_a_model(Attention(num_attention_heads=4, sinks=sinks)), choices=KernelChoices("flash"))
        for sinks in (False, True)
    )
    assert sunk.saved == plain.saved
    assert sunk.after > plain.after
