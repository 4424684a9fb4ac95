"""The memory of encoder passes over the images and audio of a prompt, by a replay of the encoders' layers.

What a pass takes outside the layers (pixels, the patch embedding, the projector) is not replayed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..components.towers import towers_with_earlier_names
from ..costs.encoders import EncodedInputs
from ..flow.axis import Axis
from ..flow.record import Flow
from ..flow.value import Value
from ..model import ModelSpec
from ..simulator.autograd import AutogradGraph
from ..simulator.kernel_choices import KernelChoices
from ..simulator.meter import AllocationPlace, Meter, NoMeter
from ..simulator.profiles.eager import EagerKernels
from ..simulator.tensor import DTYPES
from ..workload.derived_rows import PATCHES, ExtendedRows, MergedPatchRows
from ..workload.run_config import RunConfig


class EncoderPeak(NamedTuple):
    """The peak memory of an encoder's pass in bytes.

    name: the encoder's name.
    bytes: bytes of activations at the peak, without weights.
    """

    name: str
    bytes: int


def encoder_peaks(
    spec: ModelSpec, encoded_inputs: EncodedInputs, dtype: str, kernel_choices: KernelChoices
) -> list[EncoderPeak]:
    """Returns the peak memory of each encoder that has layers.

    dtype: number format of activations. kernel_choices: kernels to run.
    """
    peaks: list[EncoderPeak] = []
    for encoder_run in encoded_inputs.encoder_runs:
        for node in encoder_run.nodes:
            tower: Any = spec.towers[node.name]
            if not _has_replayable_layers(tower):
                continue
            memory_meter, program = Meter(), _tower_layer_program(tower)
            lowerings = [
                EagerKernels(
                    AutogradGraph(tower_meter),
                    encoder_run.run_config,
                    DTYPES[dtype],
                    has_trained_weights=False,
                    choices=kernel_choices,
                )
                for tower_meter in (memory_meter, NoMeter())
            ]
            for lowering in lowerings:
                lowering.graph.is_grad_enabled = False
            metered_lowering, unmetered_lowering = lowerings
            unmetered_lowering.allocate_parameters(program)
            metered_lowering.weights = unmetered_lowering.weights
            memory_meter.place = AllocationPlace("prefill")
            metered_lowering.create_input_frames(program)
            received_input = metered_lowering.create_stage_input(program)
            del received_input
            metered_lowering.run(program)
            projector_bytes = _bytes_of_earlier_outputs(spec, node.name, encoder_run.run_config, dtype)
            peaks.append(EncoderPeak(node.name, memory_meter.peak_bytes + projector_bytes))
    return peaks


def _bytes_of_earlier_outputs(spec: ModelSpec, encoder_name: str, run_config: RunConfig, dtype: str) -> int:
    """Returns bytes of projector outputs from lower encoder layers, which are still alive in the encoder's last layer.

    encoder_name: the encoder's name.
    """
    encoder: Any = spec.towers[encoder_name]
    output_elements = 0
    for _, tower, readable_towers in towers_with_earlier_names(spec.towers):
        if tower.type != "projector" or tower.lower_layer is None or encoder_name not in readable_towers:
            continue
        if tower.lower_layer < encoder.stack.num_hidden_layers - 1:
            output_elements += (
                run_config.rows(MergedPatchRows(square_side=tower.merge, frames=tower.frames)) * tower.output_width
            )
    return output_elements * DTYPES[dtype].bytes


def unreplayed_encoders(spec: ModelSpec, encoded_inputs: EncodedInputs) -> list[str]:
    """Returns the names of the encoders in use whose layers are not replayed (conformers, SAM)."""
    encoder_names = (node.name for encoder_run in encoded_inputs.encoder_runs for node in encoder_run.nodes)
    return [
        encoder_name
        for encoder_name in encoder_names
        if spec.towers[encoder_name].type != "projector" and not _has_replayable_layers(spec.towers[encoder_name])
    ]


def _has_replayable_layers(tower: Any) -> bool:
    """Whether an encoder's layers can be replayed."""
    return tower.type in ("vision", "audio")


def _tower_layer_program(tower: Any) -> Flow:
    """Returns the compute graph of an encoder's layers, whose input vectors have the encoder's width."""
    program, hidden_vectors = Flow(), Axis("hidden", tower.hidden_size)
    if tower.type == "audio":
        frame_rows = tower.stack.stem.frames_of_recording()
    else:
        frame_rows = Value(
            ExtendedRows(source_rows=PATCHES, extra_rows=tower.prepended_vector_count)
            if tower.prepended_vector_count
            else PATCHES,
            (hidden_vectors,),
        )
        program.stage_input = frame_rows
    with program.separate_stack(causal=False):
        if tower.type == "audio":
            program.result = tower.stack.flow(program, frame_rows, hidden_vectors)
        else:
            program.result = tower.stack.flow(program, frame_rows, keeps_first_input=not tower.frees_first_input)
    return program
