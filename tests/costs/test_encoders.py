"""The tokens and passes of several images and recordings, and the patches that a projector may merge."""

from __future__ import annotations

from typing import Any

import pytest

import llmcalc
from llmcalc.costs.context_length import learned_positions, too_long_note
from llmcalc.costs.encoders import EncodedInputs, encoded_inputs
from llmcalc.costs.flops import forward_flops_of
from llmcalc.errors import InputError
from llmcalc.model import ModelSpec
from llmcalc.sources.presets import load_preset
from llmcalc.workload.inputs import Inputs
from tests.builders import spec_of
from tests.components.towers.test_towers import wrapped
from tests.components.towers.tower_shapes import WRAPPERS


def wrapper(kind: str) -> ModelSpec:
    return spec_of(wrapped(kind, WRAPPERS[kind][2][0]))


def test_images_are_tokens_of_each_sequence_and_a_batch_of_all() -> None:
    spec = wrapper("qwen2_5_vl")
    encoding = encoded_inputs(spec, Inputs(image="90x64"))
    several = encoded_inputs(spec, Inputs(image="90x64", images=3), batch=2)
    assert (encoding.image_tokens, several.image_tokens, several.audio_tokens) == (88, 3 * 88, 0)
    assert several.added_tokens == 3 * 88
    assert several.total(forward_flops_of) == 6 * encoding.total(forward_flops_of)
    assert several.names == {"visual", "visual_merger"}


def test_text_of_a_default_length_leaves_room_in_learned_positions() -> None:
    """BLIP-2's OPT has a table for 2,048 tokens; the 32 of an image came on top, which it could not run."""
    config = wrapped("blip-2", WRAPPERS["blip-2"][2][0])
    positions = learned_positions(spec_of(config))
    assert positions is not None
    for phase, tokens in (("inference", positions), ("decode", positions - 1)):
        answer = llmcalc.memory(config, phase=phase, with_towers=True, image="24x24")
        assert answer.memory.states.workload.seq == tokens
        assert not too_long_note(spec_of(config), answer.memory.states.workload.seq)
    assert llmcalc.kv(config, image="24x24").bytes == llmcalc.kv(config, seq=positions - 5, image="24x24").bytes
    assert llmcalc.flops(config, image="24x24").total == llmcalc.flops(config, seq=positions - 5, image="24x24").total
    longer = llmcalc.kv(config, seq=positions, image="24x24").bytes
    assert longer > llmcalc.kv(config, image="24x24").bytes


def test_audio_is_tokens_of_each_sequence_and_a_batch_of_all() -> None:
    spec = wrapper("qwen2_audio")
    clip: Any = spec.towers["audio_tower"]
    inputs = Inputs(audio=clip.audio.frames / 100)
    single_encoding, double_encoding = encoded_inputs(spec, inputs), encoded_inputs(spec, inputs, batch=2)
    assert single_encoding.added_tokens == double_encoding.added_tokens == single_encoding.audio_tokens > 0
    assert double_encoding.total(forward_flops_of) == 2 * single_encoding.total(forward_flops_of)
    assert single_encoding.names == {"audio_tower", "multi_modal_projector"}


def test_tokens_outside_the_sequence_add_none() -> None:
    assert EncodedInputs(3, 4, True, ()).added_tokens == 7
    assert EncodedInputs(3, 4, False, ()).added_tokens == 0


def test_an_encoder_of_fixed_length_reads_one_whole_clip() -> None:
    spec = load_preset("whisper-large-v3").model
    assert spec.source_tokens == 1500
    for seconds in (0.5, 30.0):
        clip = encoded_inputs(spec, Inputs(audio=seconds))
        assert (clip.audio_tokens, clip.added_tokens, clip.encoder_runs) == (1500, 0, ())
    with pytest.raises(InputError, match=r"--audio 30\.5: the encoder reads clips of 30 seconds.*at most 30"):
        encoded_inputs(spec, Inputs(audio=30.5))


@pytest.mark.parametrize(("merged", "frames"), [(2, 2), (1, 3)])
def test_patches_that_a_projector_cannot_merge_are_refused(merged: int, frames: int) -> None:
    """An audio encoder has two frames per position: of what it returns, `merge`² × `frames` are merged."""
    spec = wrapper("qwen2_audio")
    audio_tower: Any = spec.towers["audio_tower"]
    positions = audio_tower.audio.frames // 2
    inputs = Inputs(audio=audio_tower.audio.frames / 100)
    projector = spec.towers["multi_modal_projector"].model_copy(update={"merge": merged, "frames": frames})
    changed = spec.model_copy(update={"towers": {**spec.towers, "multi_modal_projector": projector}})
    count = merged**2 * frames
    if positions % count == 0:
        assert encoded_inputs(changed, inputs).audio_tokens > 0
    else:
        with pytest.raises(InputError, match=rf"multi_modal_projector\.merge: {count} patches are merged into one"):
            encoded_inputs(changed, inputs)
