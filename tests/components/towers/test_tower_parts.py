"""Vision and audio encoders as parts: closed forms against their references, and invalid combinations of projectors and
grids.
"""

from __future__ import annotations

import re
from typing import Any, get_args

import pytest
import torch
from pydantic import ValidationError

from llmcalc.api import flops, kv, load, memory, params
from llmcalc.components.base import Component, Context
from llmcalc.components.towers import TOWERS, TowerName
from llmcalc.components.towers.projector import Map, Projector
from llmcalc.components.towers.vision import VisionTower
from llmcalc.model import ModelSpec
from llmcalc.sources.huggingface.registry import read_config
from llmcalc.witnesses.reference import verify_reference
from tests.components.towers.test_towers import wrapped
from tests.components.towers.tower_shapes import WRAPPERS

KINDS: list[Any] = TOWERS.classes()
EXAMPLES = [
    pytest.param(example, id=f"{part.__name__}-{i}") for part in KINDS for i, example in enumerate(part.examples())
]


def beside(**towers: Component) -> ModelSpec:
    """A small decoder with vision or audio encoders."""
    text = load(
        "llama3-8b",
        num_hidden_layers=2,
        hidden_size=24,
        vocab_size=50,
        intermediate_size=20,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return ModelSpec.model_validate(
        {**text.model.model_dump(), "towers": {name: tower.model_dump() for name, tower in towers.items()}}
    )


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_kind_of_tower_agrees_with_its_reference(example: Component) -> None:
    spec, plain = beside(vision_tower=example), beside()
    verdict = verify_reference(spec, batch=2, seq=11)
    assert verdict.ok, verdict.failures
    assert params(spec).total == params(plain).total
    assert flops(spec, seq=11).total == flops(plain, seq=11).total
    assert flops(spec, seq=11, phase="training").total == flops(plain, seq=11, phase="training").total
    assert kv(spec, seq=11).bytes == kv(plain, seq=11).bytes
    left = params(spec).left_out["towers"]
    assert memory(spec, with_towers=True).states.parts["weights"] - memory(spec).states.parts["weights"] == 2 * left > 0


@pytest.mark.parametrize("example", VisionTower.examples())
def test_a_vision_reference_computes_patches(example: VisionTower) -> None:
    """8 × 6 pixels in patches of 2 × 2: every patch's output depends on every pixel, and on its position if positions
    are encoded.
    """
    torch.manual_seed(0)
    net, p = example.reference(Context(24)).eval(), example.patches
    pixels = torch.randn(2, p.num_channels, p.temporal_patch_size, 8, 6)
    changed = pixels.clone()
    changed[:, :, :, -1, -1] += 1
    with torch.no_grad():
        out, other = net(pixels), net(changed)
    assert out.shape == (2, 1 if example.pooling else 12, example.hidden_size)
    assert (out != other).any(-1).all()


def test_a_projector_reference_merges_squares_of_patches() -> None:
    projector = Projector(input_size=3, maps=(Map(size=5),), merge=2, merged="mean")
    net, x = projector.reference(Context(5)), torch.randn(1, 4 * 6, 3)
    square = x.unflatten(1, (4, 6))[:, 2:4, 4:6].flatten(1, 2).mean(1)
    torch.testing.assert_close(net(x, 6)[:, 1 * 3 + 2], net.get_submodule("map_1")(square))


@pytest.mark.parametrize(
    ("kind", "name", "change", "says"),
    [
        (
            "gemma3",
            "multi_modal_projector",
            {"input_size": 25},
            "towers.multi_modal_projector.input_size: 25; expected 24, which vision_tower gives",
        ),
        (
            "llama4",
            "multi_modal_projector",
            {"input_size": 39},
            "input_size: 39; expected 24, which vision_model gives or 40, which vision_adapter gives",
        ),
        ("aya_vision", "multi_modal_projector", {"input_size": 48}, "input_size: 48; expected 24"),
    ],
)
def test_a_projector_reads_what_stands_above_it_gives(kind: str, name: str, change: dict[str, Any], says: str) -> None:
    table = read_config(wrapped(kind, WRAPPERS[kind][2][0]))[0]
    with pytest.raises(ValidationError, match=says):
        ModelSpec.model_validate({**table, "towers": {**table["towers"], name: {**table["towers"][name], **change}}})


def test_a_convolution_over_a_grid_stands_in_towers_alone() -> None:
    table = load("llama3-8b").model.model_dump()
    table["decoder"]["block"]["attention"] = {"type": "short_conv", "grid": True}
    with pytest.raises(ValidationError, match="tokens stand in no grid"):
        ModelSpec.model_validate(table)


def test_names_of_towers_are_no_names_of_modules() -> None:
    """Encoders are submodules of the reference, so their names may not be attributes of a module."""
    pattern = next(m.pattern for field in get_args(TowerName)[1:] for m in field.metadata if hasattr(m, "pattern"))
    assert re.search(pattern, "vision_tower")
    assert not [name for name in dir(torch.nn.Module()) if re.search(pattern, name)]
    with pytest.raises(ValidationError, match="load_state_dict"):
        ModelSpec.model_validate(
            {
                **load("gemma3-27b").model.model_dump(),
                "towers": {"load_state_dict": Projector.examples()[0].model_dump()},
            }
        )
