"""The images and audio of a prompt: FLOPs of the encoder passes, and the number of tokens in the text model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ..algebra import Number
from ..components.inputs.base import InputSizes
from ..errors import InputError
from ..flow.tree import Cost, Node
from ..frozen import frozen
from ..model import ModelSpec
from ..workload.inputs import EncoderPass, Inputs
from ..workload.run_config import RunConfig


@frozen(slots=True)
class EncoderRun:
    """The forward passes of one encoder and its projectors over the images or audio of all sequences.

    nodes: the encoder and its projectors.
    run_config: the pass, whose batch is all images, tiles or clips.
    """

    nodes: tuple[Node, ...]
    run_config: RunConfig

    def total(self, cost_function: Cost) -> Number:
        """Returns the sum of a cost function over the encoder and the projectors."""
        return sum(node.total(cost_function, self.run_config) for node in self.nodes)


@frozen(slots=True)
class EncodedInputs:
    """The images and audio of all sequences: the passes of the encoders, and the tokens in the text model.

    image_tokens, audio_tokens: the tokens of one sequence that they become; 0 without.
    extends_sequence: whether these tokens are part of the text model's sequence; false where a decoder attends to them.
    encoder_runs: the passes of the encoders.
    """

    image_tokens: int
    audio_tokens: int
    extends_sequence: bool
    encoder_runs: tuple[EncoderRun, ...]

    @property
    def names(self) -> set[str]:
        """The names of the encoders and projectors in use."""
        return {node.name for encoder_run in self.encoder_runs for node in encoder_run.nodes}

    @property
    def added_tokens(self) -> int:
        """The number of tokens that images and audio add to each sequence."""
        return self.image_tokens + self.audio_tokens if self.extends_sequence else 0

    def total(self, cost_function: Cost) -> Number:
        """Returns the value of a cost function, summed over the passes of all encoders."""
        return sum(encoder_run.total(cost_function) for encoder_run in self.encoder_runs)


def encoded_inputs(spec: ModelSpec, input_settings: Inputs, batch: int = 1) -> EncodedInputs:
    """Returns the encoder passes and the text-model tokens of the images and audio of `batch` sequences.

    Raises `InputError` for a model that reads none, or whose processor's rule is not known.
    """
    if input_settings.audio is not None and spec.source_tokens is not None and input_settings.image is None:
        return _fixed_audio_inputs(spec, input_settings.audio)
    image_tokens = audio_tokens = 0
    encoder_runs: list[EncoderRun] = []
    if input_settings.image is not None:
        image_count, (image_height, image_width) = input_settings.images or 1, input_settings.height_and_width
        encoder_name, processor_rule = _encoder_name_and_input_rule(spec, "image", "images")
        tower: Any = spec.towers[encoder_name]
        processor_rule = processor_rule if image_count == 1 else processor_rule.rule_for_several_images()
        encoded_input = processor_rule.input_sizes(image_height, image_width, tower.patches.patch_size)
        image_tokens = image_count * encoded_input.tokens
        encoder_runs += _encoder_runs(spec, encoder_name, encoded_input, batch * image_count)
    if input_settings.audio is not None:
        encoder_name, processor_rule = _encoder_name_and_input_rule(spec, "audio", "audio")
        encoded_input = processor_rule.input_sizes(input_settings.audio)
        audio_tokens = encoded_input.tokens
        encoder_runs += _encoder_runs(
            spec, encoder_name, encoded_input, batch, has_images=input_settings.image is not None
        )
    return EncodedInputs(image_tokens, audio_tokens, True, tuple(encoder_runs))


def _fixed_audio_inputs(spec: ModelSpec, seconds: float) -> EncodedInputs:
    """Returns the audio inputs for a model whose encoder reads a fixed number of frames per clip (Whisper)."""
    from ..components.inputs.audio_clips import FRAME_SAMPLES, SAMPLE_RATE

    assert spec.source_tokens is not None
    longest_seconds = 2 * spec.source_tokens * FRAME_SAMPLES // SAMPLE_RATE
    if seconds > longest_seconds:
        raise InputError(
            f"--audio {seconds:g}: the encoder reads clips of {longest_seconds} seconds, each in a pass; expected at "
            f"most {longest_seconds}"
        )
    return EncodedInputs(0, spec.source_tokens, False, ())


def _encoder_name_and_input_rule(spec: ModelSpec, rule_field: str, input_name: str) -> tuple[str, Any]:
    """Returns the name of the image or audio encoder, and the rule that cuts its inputs into patches or frames.

    rule_field: the encoder's field with the rule, which is the option's name. input_name: what it reads, in words.
    Raises `InputError` where there is none.
    """
    encoder_names = [
        tower_name
        for tower_name, tower in spec.towers.items()
        if hasattr(tower, rule_field) and (tower.type != "projector" or tower.raw)
    ]
    encoder_name = next((name for name in encoder_names if getattr(spec.towers[name], rule_field) is not None), None)
    if encoder_name is not None:
        return encoder_name, getattr(spec.towers[encoder_name], rule_field)
    if encoder_names:
        tokens_option = "--source" if spec.kind == "encoder-decoder" else "--seq"
        raise InputError(
            f"--{rule_field}: how the model's processor cuts {input_name} is not known; expected no --{rule_field}, "
            f"and its tokens in {tokens_option}"
        )
    raise InputError(
        f"--{rule_field}: no encoder of {input_name} is counted beside the text model; expected no --{rule_field}"
    )


def _encoder_runs(
    spec: ModelSpec, encoder_name: str, encoded_input: InputSizes, input_count: int, has_images: bool = True
) -> Iterator[EncoderRun]:
    """Yields the passes of an encoder and of its projectors.

    input_count: images or recordings of all sequences. has_images: whether the prompts have images.
    """
    (towers_node,) = (child_node for child_node in spec.tree().children if child_node.name == "towers")
    towers_by_name = {node.name: node for node in towers_node.children}
    batch = input_count * encoded_input.tile_or_clip_count * spec.towers[encoder_name].frames_per_image
    workload = EncoderPass(batch=batch, rows=encoded_input.rows, columns=encoded_input.columns)
    part_names = list(_with_projectors(spec, encoder_name, has_images))
    _check_merged_patches(spec, part_names, encoded_input)
    encoder_pass, merged_patches = workload, 1
    for part_name in part_names:
        tower: Any = spec.towers[part_name]
        if tower.type == "projector" and encoder_pass is workload and encoded_input.projector_patches is not None:
            encoder_pass = replace(workload, batch=input_count, rows=encoded_input.projector_patches, columns=1)
        if tower.type == "projector":
            merged_patches *= tower.merge**2
        further_patches = 0
        if tower.type == "projector" and tower.frames > 1 and encoded_input.reads_image_per_frame:
            further_patches = (tower.frames - 1) * encoder_pass.rows * encoder_pass.columns
        if tower.type == "projector" and tower.input_marks and encoded_input.line_end_marks:
            further_patches = (encoded_input.line_end_marks - tower.input_marks) * merged_patches
        if further_patches:
            patch_count = encoder_pass.rows * encoder_pass.columns + further_patches
            encoder_pass = replace(encoder_pass, rows=patch_count, columns=1)
        yield EncoderRun((towers_by_name[part_name],), RunConfig(encoder_pass))


def _check_merged_patches(spec: ModelSpec, part_names: list[str], encoded_input: InputSizes) -> None:
    """Raises `InputError` if a projector merges more patches than the encoder returns."""
    patch_count = (
        encoded_input.rows * encoded_input.columns
        if encoded_input.projector_patches is None
        else encoded_input.projector_patches
    )
    for part_name in part_names:
        tower: Any = spec.towers[part_name]
        merged_patches = tower.merge**2 * tower.frames if tower.type == "projector" else 1
        if tower.type == "projector" and patch_count // _patches_per_position(spec, part_names) % merged_patches:
            raise InputError(
                f"towers.{part_name}.merge: {merged_patches} patches are merged into one, and the processor gives "
                f"{patch_count}; expected a divisor of them"
            )


def _patches_per_position(spec: ModelSpec, part_names: list[str]) -> int:
    """Returns the number of audio frames that make up one encoder position; 1 for an image encoder."""
    return 2 if spec.towers[part_names[0]].type == "audio" else 1


def _with_projectors(spec: ModelSpec, encoder_name: str, has_images: bool) -> Iterator[str]:
    """Yields the encoder's name, then the names of its projectors for prompts with (or without) images."""
    encoder_names = list(spec.towers)
    yield encoder_name
    for projector_name in encoder_names[encoder_names.index(encoder_name) + 1 :]:
        tower: Any = spec.towers[projector_name]
        if tower.type != "projector" or tower.raw:
            return
        if tower.with_images in (None, has_images):
            yield projector_name
