"""Vision and audio encoders of a multimodal model, and projectors to the text model's width.

Their parameters are counted, and their FLOPs for the images and the audio that a question gives.

An encoder may be changed without reading the text model: what it gives to the model is its projector's output. How many
patches or frames it reads is decided in `components/inputs`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, TypeAlias

from pydantic import Field

from ...algebra import are_equal
from ...flow.record import Flow
from ...flow.value import Value
from ..base import Part
from ..part_choice import PartChoice

if TYPE_CHECKING:
    from .audio import AudioTower
    from .conformer import Conformer
    from .convnext import ConvNextEncoder
    from .ctc_conformer import CtcConformer
    from .davit import DaVit
    from .diarized import DiarizedEncoder
    from .image_tokenizer import ImageTokenizer
    from .mobilenet import MobileNet
    from .patch_embedder import PatchEmbedder
    from .projector import Projector
    from .sam import SamEncoder
    from .san_m import SanMEncoder
    from .swin import Swin
    from .vision import VisionTower

TOWERS = PartChoice(
    "vision",
    {
        "vision": "towers.vision:VisionTower",
        "audio": "towers.audio:AudioTower",
        "conformer": "towers.conformer:Conformer",
        "convnext": "towers.convnext:ConvNextEncoder",
        "ctc_conformer": "towers.ctc_conformer:CtcConformer",
        "davit": "towers.davit:DaVit",
        "diarized": "towers.diarized:DiarizedEncoder",
        "image_tokenizer": "towers.image_tokenizer:ImageTokenizer",
        "mobilenet": "towers.mobilenet:MobileNet",
        "patches": "towers.patch_embedder:PatchEmbedder",
        "projector": "towers.projector:Projector",
        "sam": "towers.sam:SamEncoder",
        "san_m": "towers.san_m:SanMEncoder",
        "swin": "towers.swin:Swin",
    },
)

if TYPE_CHECKING:
    VisionEncoder: TypeAlias = VisionTower | DaVit | ImageTokenizer | MobileNet | PatchEmbedder | SamEncoder | Swin
    AudioEncoder: TypeAlias = AudioTower | Conformer | ConvNextEncoder | CtcConformer | DiarizedEncoder | SanMEncoder
    Tower: TypeAlias = VisionEncoder | AudioEncoder | Projector
else:
    Tower = Annotated[Part, TOWERS]
    """A vision encoder, an audio encoder or a projector, chosen by `type`."""

NAME_PATTERN = (
    r"^([a-z0-9]+_)*(vision|visual|image|video|audio|aligner|modal|mm|projector|resampler|connector)(_[a-z0-9]+)*$"
)

TowerName: TypeAlias = Annotated[str, Field(pattern=NAME_PATTERN, max_length=60)]
"""The name of an encoder or projector, as in its `transformers` class: `vision_tower`, `multi_modal_projector`."""


def towers_with_earlier_names(towers: Mapping[str, Tower]) -> Iterator[tuple[str, Tower, list[str]]]:
    """Yields each tower (encoder or projector) with the names of the earlier towers that the tower may read.

    A projector reads the encoder before it, or the projector just before it, or with `encoders` several encoders before
    it, each with the projectors after it. Other towers read none.
    """
    earlier_towers: list[str] = []
    encoder_outputs: list[str] = []
    for tower_name, tower in towers.items():
        if tower.type != "projector" or tower.raw:
            yield tower_name, tower, []
            earlier_towers = [tower_name]
            encoder_outputs.append(tower_name)
        else:
            yield tower_name, tower, earlier_towers if tower.encoders == 1 else encoder_outputs[-tower.encoders :]
            earlier_towers = [*earlier_towers[:1], tower_name]
            encoder_outputs[-1:] = [tower_name]


def check_projector_widths(towers: Mapping[str, Tower]) -> None:
    """Raises `ValueError` if a projector's input width differs from the output widths of all towers it may read.

    It may be the output width of the encoder before it, or of the projector just before it.
    """
    for reader_name, tower, readable_towers in towers_with_earlier_names(towers):
        input_widths = {tower_name: towers[tower_name].output_width for tower_name in readable_towers}
        if tower.type == "projector" and tower.encoders > 1:
            if len(input_widths) < tower.encoders or sum(input_widths.values()) != tower.input_size:
                raise ValueError(
                    f"towers.{reader_name}.input_size: {tower.input_size}; expected {sum(input_widths.values())}, the "
                    f"widths of the {tower.encoders} encoders before it together"
                )
        elif tower.type == "projector" and input_widths:
            candidate_widths = {
                earlier_tower_name: tower.encoder_layers * input_width
                for earlier_tower_name, input_width in input_widths.items()
            }
            if tower.input_size in candidate_widths.values():
                continue
            expected_text = " or ".join(
                f"{input_width}, which {tower_name} gives" for tower_name, input_width in candidate_widths.items()
            )
            raise ValueError(f"towers.{reader_name}.input_size: {tower.input_size}; expected {expected_text}")


def record_towers(recorder: Flow, towers: Mapping[str, Tower]) -> dict[str, Value]:
    """Records the operations of every encoder and projector, and returns their outputs keyed by name."""
    outputs_by_tower: dict[str, Value] = {}
    frames_of_model = recorder.audio_frames
    for tower_name, tower, readable_towers in towers_with_earlier_names(towers):
        default_input = tower.input_value()
        is_joined = tower.type == "projector" and max(tower.encoders, tower.encoder_layers) > 1
        tower_input = None
        if not is_joined:
            tower_input = _matching_tower_output(
                default_input, [outputs_by_tower[input_tower_name] for input_tower_name in readable_towers]
            )
        if tower_input is None:
            tower_input = default_input
        else:
            reads_class_embedding = tower.type == "projector" and tower.reads_class_embedding
            input_rows = default_input.rows if reads_class_embedding else tower_input.rows
            tower_input = tower_input.view(*default_input.axes, new_rows=input_rows)
        outputs_by_tower[tower_name] = recorder.part(tower_name, tower, tower_input)
    recorder.audio_frames = frames_of_model  # not those that the stem of an audio encoder reads
    return outputs_by_tower


def _matching_tower_output(default_input: Value, tower_outputs: list[Value]) -> Value | None:
    """Returns the first tower output with the input's width; the first output if none is known to have that width."""
    values_of_width = (output for output in tower_outputs if are_equal(output.width, default_input.width))
    return next(values_of_width, tower_outputs[0] if tower_outputs else None)


__all__ = ["TOWERS", "Tower", "TowerName", "check_projector_widths", "record_towers"]
