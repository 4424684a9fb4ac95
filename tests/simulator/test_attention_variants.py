"""Attention variants hold what torch holds at other lengths, under autocast, and with layers that run again."""

from __future__ import annotations

from typing import Any

import pytest

from llmcalc.components.base import Component
from llmcalc.device_memory.estimate import memory
from llmcalc.device_memory.settings import Settings
from llmcalc.simulator.kernel_choices import KernelChoices
from llmcalc.simulator.module_frame import UnsupportedKernel
from llmcalc.workload.recompute import RECOMPUTE_MODES
from tests.builders import with_other_causes
from tests.contracts.test_parts import around_a_model
from tests.simulator.compare import examples
from tests.simulator.models import by_torch, without_values

BIASED = ("Attention-2", "Attention-9", "Attention-11", "RelativeBias-0", "RelativeEmbedding-0", "RelativeAttention-0")
MASKED = ("Attention-10", "DynamicMaskAttention-1", "LocalAttention-1", "MLA-3", "MergedAttention-1")
OTHERS = ("CompressedAttention-2", "CompressedConvAttention-1", "DifferentialAttention-1", "SideConvolution-1")
ALL = (*BIASED, *MASKED, *OTHERS)

EXAMPLES = examples()


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(("batch", "seq"), [(1, 33), (3, 2)])
def test_any_length_holds_what_torch_holds(name: str, batch: int, seq: int) -> None:
    spec = around_a_model(EXAMPLES[name])
    assert without_values(spec, batch, seq) == by_torch(spec, batch, seq)


@pytest.mark.parametrize("name", ALL)
def test_autocast_holds_what_torch_holds(name: str) -> None:
    spec = around_a_model(EXAMPLES[name])
    assert without_values(spec, autocast=True) == by_torch(spec, autocast=True)


@pytest.mark.parametrize("name", [name for name in ALL if name != "MergedAttention-1"])
def test_layers_that_run_again_hold_what_torch_holds(name: str) -> None:
    """What all layers add to their scores is computed before the first of them, which a checkpoint requires."""
    spec = around_a_model(EXAMPLES[name])
    what = RECOMPUTE_MODES["full"]
    assert without_values(spec, recompute=what) == by_torch(spec, recompute=what)


SELECTING = [
    name
    for name in EXAMPLES
    if name.startswith(("CompressedAttention", "DynamicMask")) or name in ("MLA-3", "MLA-8", "MLA-9", "MLA-10")
]


@pytest.mark.parametrize("name", SELECTING)
def test_keys_are_selected_from_the_mask_of_visible_keys(name: str) -> None:
    """Also where plain attention adds the mask of the classes of transformers, [batch, 1, queries, keys]."""
    spec = around_a_model(EXAMPLES[name])
    as_class = without_values(spec, batch=3, choices=KernelChoices(matches_transformers=True))
    assert as_class == without_values(spec, batch=3)


def causes(example: Component) -> set[Any]:
    """The part, and each of its optional fields that an example states."""
    part = type(example)
    return {part, *((part, name) for name in example.model_fields_set if not part.model_fields[name].is_required())}


SAMPLED = with_other_causes(EXAMPLES, lambda name: causes(EXAMPLES[name]))
"""Examples that state every optional field of each part between them."""


@pytest.mark.parametrize(
    "names", [SAMPLED, pytest.param(list(EXAMPLES), marks=pytest.mark.exhaustive)], ids=["sample", "all"]
)
def test_training_of_every_part_is_answered(names: list[str]) -> None:
    """With the settings that hold where none is given: those of the classes of transformers, on a GPU."""
    for name in names:
        try:
            device = memory(around_a_model(EXAMPLES[name]), Settings(phase="training", seq=12, batch=3)).device
        except UnsupportedKernel:
            continue
        except Exception as error:
            error.add_note(name)
            raise
        assert device.peak_bytes > 0, name
