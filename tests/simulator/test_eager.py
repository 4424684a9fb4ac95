"""The eager profile holds what torch holds, to the byte, for every part's examples in a small model."""

from __future__ import annotations

import pytest

from llmcalc.components.mixers.attention import Attention
from llmcalc.model import ModelSpec
from llmcalc.simulator.lowering import UnsupportedKernel
from tests.comparisons import compares, of_run
from tests.contracts.test_parts import around_a_model
from tests.simulator.compare import differences, examples, examples_of_each_field, sampled_examples
from tests.simulator.models import by_torch, without_values

PUBLISHED = {
    "GatedLinearAttention-0",
    "GatedLinearAttention-1",
    "Retention-0",
    "Retention-1",
    "HGRN2-0",
    "HGRN2-1",
    "HGRN2-2",
    "DeltaNet-0",
    "DeltaNet-1",
    "GatedDeltaNet-0",
    "GatedDeltaNet-1",
    "GatedDeltaNet-2",
    "Mamba-0",
    "Mamba-1",
    "Mamba-2",
    "Mamba-3",
    "Mamba-4",
    "Mamba2-0",
    "Mamba2-1",
    "Mamba2-2",
    "Mamba2-3",
    "KimiDeltaAttention-0",
    "KimiDeltaAttention-1",
    "KimiDeltaAttention-2",
    "KimiDeltaAttention-3",
    "KimiDeltaAttention-4",
    "JetBlock-0",
    "JetBlock-1",
    "RGLRU-0",
    "RGLRU-1",
    "RwkvTimeMix-0",
    "RwkvTimeMix-1",
    "ShortConv-0",
    "LightningAttention-0",
    "LightningAttention-1",
    "LightningAttention-2",
    "MLSTM-0",
    "HybridBlock-0",
    "HybridBlock-1",
    "ZambaLayer-0",
    "ZambaLayer-1",
    "ZambaLayer-2",
    "ZambaLayer-3",
}
"""Examples of recurrent parts. The reference's PyTorch holds other tensors than the published kernels that people train
with, which the profile runs; `tests/simulator/published` compares those with their own code.
"""

SAVED_TABLES = {"Retention-0", "Retention-1"}
"""Examples that save tensors for the backward pass that an earlier pass has made: the tables of rotary positions."""

REFUSED = {"MLSTM-1", "MLSTM-2"}
"""Examples whose published kernel does not run at their sizes."""

EXAMPLES = examples()


@compares(lambda name: of_run(around_a_model(EXAMPLES[name])))
@pytest.mark.parametrize("name", examples_of_each_field([name for name in EXAMPLES if name not in PUBLISHED | REFUSED]))
def test_a_part_holds_what_torch_holds(name: str) -> None:
    spec = around_a_model(EXAMPLES[name])
    assert without_values(spec) == by_torch(spec), "\n".join(differences(EXAMPLES[name]))


@pytest.mark.parametrize("name", sampled_examples(sorted(PUBLISHED)))
def test_a_part_runs_published_kernels(name: str) -> None:
    """Its gradients are those of the reference's parameters; what it holds differs from the reference."""
    spec = around_a_model(EXAMPLES[name])
    ours, theirs = without_values(spec), by_torch(spec)
    assert 0 < ours.live <= min(ours.forward, ours.backward)
    assert 0 < ours.saved <= ours.live or name in SAVED_TABLES
    assert ours.after == theirs.after
    assert ours != theirs


def with_attention(name: str) -> ModelSpec:
    """A model around a recurrent part, with another mixer in its place."""
    field = "attention" if name.startswith("Zamba") else "state_space"
    return around_a_model(EXAMPLES[name].model_copy(update={field: Attention(num_attention_heads=4)}))


@compares(lambda name: of_run(with_attention(name)))
@pytest.mark.parametrize("name", [name for name in EXAMPLES if name.startswith(("HybridBlock", "ZambaLayer"))])
def test_what_is_around_a_recurrent_part_holds_what_torch_holds(name: str) -> None:
    spec = with_attention(name)
    assert without_values(spec) == by_torch(spec)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_part_is_refused_where_its_kernel_does_not_run(name: str) -> None:
    with pytest.raises(UnsupportedKernel, match="has no kernel for chunks"):
        without_values(around_a_model(EXAMPLES[name]))


def test_what_is_left_is_known() -> None:
    assert not (PUBLISHED | REFUSED) - set(EXAMPLES)
