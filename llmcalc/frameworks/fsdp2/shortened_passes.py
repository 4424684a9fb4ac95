"""Derives a pipeline stage's passes with many equal layers from passes recorded with few layers.

The parameters that outlive a pass are those of the layer that was recorded in the place of theirs.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...simulator.event_log import Event
from ...simulator.layer_pattern import RECORDED_REPEATS
from ...simulator.layer_stacks import LayerStack, long_stacks
from ...simulator.record_microbatches import PassOutput, RecordedPass
from ...simulator.repeat_layers import NotRepeatingError
from ...simulator.shortened_passes import ShortenedPasses
from .pipeline import FsdpModelChunk


def repeating_stacks(model_chunk: FsdpModelChunk) -> list[LayerStack]:
    """Returns the only layer stack of a chunk if it has more repeats than are recorded; otherwise an empty list."""
    first_layer_index = model_chunk.lowering.first_layer_index
    return long_stacks(model_chunk.program.root, model_chunk.training_config.layer_period, first_layer_index)


class ShortenedStagePasses(ShortenedPasses):
    """Derives the events of passes with all layers, and the parameters that are gathered after these passes.

    events, passes: of the recorded run.
    recorded_chunks: chunks of the recorded run.
    full_chunks: the same chunks with all layers, after set-up.
    stacks_by_chunk: per chunk, the stack with `RECORDED_REPEATS` recorded repeats; none if all layers were recorded.
    Raises `NotRepeatingError` if the repeats differ.
    """

    def __init__(
        self,
        events: Sequence[Event],
        passes: Sequence[RecordedPass],
        model_chunks: Sequence[FsdpModelChunk],
        full_chunks: Sequence[FsdpModelChunk],
        stacks_by_chunk: Sequence[Sequence[LayerStack]],
    ) -> None:
        super().__init__(events, passes, [layer_stack for stacks in stacks_by_chunk for layer_stack in stacks])
        self.recorded_chunks: Sequence[FsdpModelChunk] = model_chunks
        self.full_chunks: Sequence[FsdpModelChunk] = full_chunks
        self.sources: list[list[tuple[int, int | None]]] = [
            self._recorded_parameters(short_chunk, full_chunk, stacks)
            for short_chunk, full_chunk, stacks in zip(model_chunks, full_chunks, stacks_by_chunk, strict=True)
        ]

    def _recorded_parameters(
        self, model_chunk: FsdpModelChunk, full_chunk: FsdpModelChunk, layer_stacks: Sequence[LayerStack]
    ) -> list[tuple[int, int | None]]:
        """Returns, per gathered parameter of the full chunk, the parameter of the recorded chunk that stands for it.

        It is the parameter's number, and the repeat among the inner ones; None for the parameter of no inner repeat.
        """
        numbers_by_path = {parameter.path: i for i, parameter in enumerate(model_chunk.gathered_parameters())}
        source_numbers: list[tuple[int, int | None]] = []
        for parameter in full_chunk.gathered_parameters():
            parameter_path, inner_repeat = parameter.path, None
            group_key = full_chunk.lowering.group_key_of_parameter(parameter_path)
            for layer_stack in (layer_stack for layer_stack in layer_stacks if layer_stack.path == group_key.path):
                repeat_number = (group_key.layer_index - layer_stack.layers_before) // layer_stack.layer_period
                inner_repeat = repeat_number - 1 if 0 < repeat_number < layer_stack.repeat_count - 1 else None
                skipped_repeats = min(max(repeat_number - 1, 0), layer_stack.repeat_count - RECORDED_REPEATS)
                if inner_repeat is not None:
                    skipped_repeats = inner_repeat
                index_position = parameter_path.index(group_key.layer_index, 1)
                recorded_layer = group_key.layer_index - skipped_repeats * layer_stack.layer_period
                parameter_path = (
                    *parameter_path[:index_position],
                    recorded_layer,
                    *parameter_path[index_position + 1 :],
                )
            if parameter_path not in numbers_by_path:
                raise NotRepeatingError
            source_numbers.append((numbers_by_path[parameter_path], inner_repeat))
        return source_numbers

    def outputs_of_full_pass(self, recorded_pass: RecordedPass, pass_events: Sequence[Event]) -> list[PassOutput]:
        """Returns the tensors that outlive a full pass: its output or gradients, and parameters left gathered."""
        chunk_index, pass_kind, _ = recorded_pass.pass_id
        recorded_chunk, source_numbers = self.recorded_chunks[chunk_index], self.sources[chunk_index]
        outputs_by_number = {i: (template, storage_number) for i, template, storage_number in recorded_pass.outputs}
        if pass_kind == "B":
            received_count = int(bool(recorded_chunk.receive_buffers))
            first_recorded_outputs = [received_count + len(recorded_chunk.parameters)]
            first_full_outputs = [received_count + len(self.full_chunks[chunk_index].parameters)]
            first_recorded_outputs.append(first_recorded_outputs[0] + len(recorded_chunk.gathered_parameters()))
            first_full_outputs.append(first_full_outputs[0] + len(source_numbers))
            allocated_storages = {storage_number for storage_number, nbytes, _ in pass_events if nbytes >= 0}
            if any(
                received_count <= i < first_recorded_outputs[0] and storage_number in allocated_storages
                for i, (_, storage_number) in outputs_by_number.items()
            ):
                raise NotRepeatingError  # the gradient of a shard, which is made between passes
        else:
            received_count, first_recorded_outputs, first_full_outputs = 1, [1], [1]
        full_outputs = [
            (i, outputs_by_number[i][0], self.storage_in_full_pass(outputs_by_number[i][1]))
            for i in range(received_count)
            if i in outputs_by_number
        ]
        for first_recorded_output, first_full_output in zip(first_recorded_outputs, first_full_outputs, strict=True):
            for i, (parameter_number, inner_repeat) in enumerate(source_numbers):
                if first_recorded_output + parameter_number in outputs_by_number:
                    template, storage_number = outputs_by_number[first_recorded_output + parameter_number]
                    full_outputs.append(
                        (first_full_output + i, template, self._storage_in_repeat(storage_number, inner_repeat))
                    )
        return full_outputs

    def _storage_in_repeat(self, storage_number: int, inner_repeat: int | None) -> int:
        """Returns the id of a storage in passes with all layers. storage_number: its id in the recorded pass.

        inner_repeat: the storage's layer repeat; None outside of the inner repeats.
        """
        if inner_repeat is None:
            return self.storage_in_full_pass(storage_number)
        if storage_number not in self.full_run.first_storage_numbers:
            raise NotRepeatingError
        return self.full_run.first_storage_numbers[storage_number] + inner_repeat
