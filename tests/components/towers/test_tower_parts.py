"""Vision and audio encoders as parts: closed forms against their references, and invalid combinations of projectors and
grids.
"""

from __future__ import annotations

import re
from typing import Any, get_args

import pytest
import torch
from pydantic import ValidationError
from torch.utils.flop_counter import FlopCounterMode

from llmcalc import flops, kv, load, memory, params
from llmcalc.components.base import Component, ModelProperties
from llmcalc.components.mixers.attention import Attention
from llmcalc.components.runtime import PassState
from llmcalc.components.towers import TOWERS, TowerName
from llmcalc.components.towers.mobilenet import MobileNet
from llmcalc.components.towers.patch_embedder import PatchEmbedder
from llmcalc.components.towers.projector import Projector, ProjectorLayer
from llmcalc.components.towers.sam import SamEncoder
from llmcalc.components.towers.vision import VisionTower
from llmcalc.costs.flops import forward_flops_of
from llmcalc.model import ModelSpec
from llmcalc.ops import AttentionCore
from llmcalc.sources.huggingface.description import read_config
from llmcalc.witnesses.reference import verify_reference
from llmcalc.workload.inputs import EncoderPass
from llmcalc.workload.run_config import RunConfig
from tests.components.towers.test_towers import wrapped
from tests.components.towers.tower_shapes import WRAPPERS

KINDS: list[Any] = TOWERS.load_component_classes()
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
    net, p = example.reference(ModelProperties(24)).eval(), example.patches
    pixels = torch.randn(2, p.num_channels, p.temporal_patch_size, 8, 6)
    changed = pixels.clone()
    changed[:, :, :, -1, -1] += 1
    with torch.no_grad():
        out, other = net(pixels), net(changed)
    merged = 1 if example.merger is None else example.merger.side**2
    assert out.shape == (2, 1 if example.pooling else 12 // merged, example.hidden_size)
    assert (out != other).any(-1).all()


@pytest.mark.parametrize(
    "example",
    [*VisionTower.examples(), *PatchEmbedder.examples(), *MobileNet.examples(), *SamEncoder.examples()],
)
def test_flops_of_a_vision_encoder_are_those_of_its_reference(
    example: VisionTower | PatchEmbedder | MobileNet | SamEncoder,
) -> None:
    """Two images of 8 × 10 pixels, in patches of `patch_size`."""
    patches = example.patches
    side = patches.patch_size
    rows, columns = max(8 // side, 1) * 2, 6 if isinstance(example, MobileNet) else 5
    if isinstance(example, SamEncoder):
        rows = columns = example.grid
    net = example.reference(ModelProperties(24)).eval().requires_grad_(False)
    pixels = torch.randn(2, patches.num_channels, patches.temporal_patch_size, rows * side, columns * side)
    if (
        not isinstance(example, MobileNet | SamEncoder)
        and example.positions is not None
        and example.positions.rows < rows * columns + 1
    ):
        rows, columns = 2, 3
        pixels = pixels[..., : rows * side, : columns * side]
    with FlopCounterMode(display=False) as counter:
        net(pixels)
    (towers,) = (child for child in beside(vision_tower=example).tree().children if child.name == "towers")
    (node,) = towers.children
    run_config = RunConfig(EncoderPass(batch=2, rows=rows, columns=columns))
    assert node.total(forward_flops_of, run_config) == counter.get_total_flops()


def test_attention_in_squares_sees_its_square_alone() -> None:
    """5 × 4 patches in squares of 3: 3² + 2² by 3² + 1² pairs. A change of one patch reaches its square."""
    attention = Attention(num_attention_heads=2, grid_window=3)
    net, x = attention.reference(ModelProperties(8, is_causal=False)).eval(), torch.randn(1, 20, 8)
    changed = x.clone()
    changed[:, 0] += 1
    with torch.no_grad():
        differs = (
            (net(x, PassState(patch_columns=4)) != net(changed, PassState(patch_columns=4)))
            .any(-1)[0]
            .unflatten(0, (5, 4))
        )
    assert differs.nonzero().tolist() == [[row, column] for row in range(3) for column in range(3)]
    core = AttentionCore(heads=2, qk_dim=4, v_dim=4, causal=False, square_side=3)
    assert core.pairs(RunConfig(EncoderPass(rows=5, columns=4))) == (9 + 4) * (9 + 1)


def test_a_projector_reference_merges_squares_of_patches() -> None:
    projector = Projector(input_size=3, maps=(ProjectorLayer(size=5),), merge=2, merged="mean")
    net, x = projector.reference(ModelProperties(5)), torch.randn(1, 4 * 6, 3)
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
