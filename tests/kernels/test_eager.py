"""The eager profile holds what torch holds, to the byte, for every part's examples in a small model."""

from __future__ import annotations

import pytest

from tests.contracts.test_parts import around_a_model
from tests.kernels.compare import differences, examples
from tests.kernels.models import by_torch, without_values

WITHOUT = {
    "Attention-10",
    "MLA-3",
    "GatedDeltaNet-0",
    "GatedDeltaNet-1",
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
    "RGLRU-0",
    "RGLRU-1",
    "RwkvTimeMix-0",
    "RwkvTimeMix-1",
    "ShortConv-0",
    "ShortConv-1",
    "CompressedConvAttention-0",
    "CompressedConvAttention-1",
    "CompressedConvAttention-2",
    "CompressedAttention-0",
    "CompressedAttention-1",
    "CompressedAttention-2",
    "LightningAttention-0",
    "LightningAttention-1",
    "MLSTM-0",
    "MLSTM-1",
    "MLSTM-2",
    "LocalAttention-0",
    "LocalAttention-1",
    "LocalAttention-2",
    "DynamicMaskAttention-0",
    "DynamicMaskAttention-1",
    "DynamicMaskAttention-2",
    "MergedAttention-0",
    "MergedAttention-1",
    "MergedAttention-2",
    "RwkvChannelMix-0",
    "RelativeBias-1",
    "HybridBlock-0",
    "HybridBlock-1",
    "ZambaLayer-0",
    "ZambaLayer-1",
    "ZambaLayer-2",
    "ZambaLayer-3",
}
"""Examples that the profile does not run as torch does yet: it refuses them by the name of the step."""

EXAMPLES = examples()


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in WITHOUT])
def test_a_part_holds_what_torch_holds(name: str) -> None:
    spec = around_a_model(EXAMPLES[name])
    assert without_values(spec) == by_torch(spec), "\n".join(differences(EXAMPLES[name]))


def test_what_is_left_is_known() -> None:
    assert not WITHOUT - set(EXAMPLES)
