"""Derives the passes of a pipeline stage with many equal layers from passes recorded with few layers.

The recorded stage has four repeats of its pattern of layers. `RepeatAnalysis` checks that the second and the third do
the same, and has the events of every repeat between the first and the last from theirs. The tensors that outlive a pass
are those of the layer that was recorded in the place of theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ...simulator.event_log import Event, RecordedEvents
from ...simulator.layer_loops import LayerStack, program_stacks
from ...simulator.layer_pattern import RECORDED_REPEATS
from ...simulator.record_microbatches import RecordedPass
from ...simulator.repeat_layers import NotRepeating, RepeatAnalysis, RepeatedEvents
from ...simulator.replay_result import PHASES
from .pipeline import ShardedChunk


def repeating_stacks(model_chunk: ShardedChunk) -> list[LayerStack]:
    """Returns the only stack of a chunk if it has more layers than are recorded; otherwise no stack."""
    long_stacks = program_stacks(
        model_chunk.program.root, model_chunk.training.layer_period, model_chunk.lowering.first_layer_index
    )
    return long_stacks if len(long_stacks) == 1 and long_stacks[0].repeats > RECORDED_REPEATS else []


class ShortenedPasses:
    """Derives the events of passes with all layers from recorded passes with few.

    events, passes: of the recorded run.
    chunks: chunks of the recorded run.
    full_chunks: the same chunks with all layers, after set-up.
    stacks: per chunk, its stack of which `RECORDED_REPEATS` repeats were recorded; none where all layers were.
    Raises `NotRepeating` if the repeats differ.
    """

    def __init__(
        self,
        events: Sequence[Event],
        passes: Sequence[RecordedPass],
        model_chunks: Sequence[ShardedChunk],
        full_chunks: Sequence[ShardedChunk],
        stacks: Sequence[Sequence[LayerStack]],
    ) -> None:
        self.passes: Sequence[RecordedPass] = passes
        self.chunks: Sequence[ShardedChunk] = model_chunks
        self.full_chunks: Sequence[ShardedChunk] = full_chunks
        bounds = [
            0,
            *(pass_bound for recorded_pass in passes for pass_bound in (recorded_pass.start, recorded_pass.end)),
            len(events),
        ]
        self.pieces: list[Sequence[Event]] = [events[pass_start:pass_end] for pass_start, pass_end in pairwise(bounds)]
        layer_stacks = [layer_stack for chunk_stacks in stacks for layer_stack in chunk_stacks]
        analysis = RepeatAnalysis(RecordedEvents([], self.pieces, [], PHASES), layer_stacks, range(len(layer_stacks)))
        self.repeated: RepeatedEvents = RepeatedEvents(analysis, {})
        self.sources: list[list[tuple[int, int | None]]] = [
            self._recorded_parameters(short_chunk, full_chunk, chunk_stacks)
            for short_chunk, full_chunk, chunk_stacks in zip(model_chunks, full_chunks, stacks, strict=True)
        ]

    def _recorded_parameters(
        self, model_chunk: ShardedChunk, full_chunk: ShardedChunk, layer_stacks: Sequence[LayerStack]
    ) -> list[tuple[int, int | None]]:
        """Returns, for each gathered parameter of the full chunk, the recorded parameter that represents it.

        It is the parameter's number, and the repeat among the inner ones; None for the parameter of no inner repeat.
        """
        parameter_numbers = {parameter.path: i for i, parameter in enumerate(model_chunk.gathered())}
        source_numbers: list[tuple[int, int | None]] = []
        for parameter in full_chunk.gathered():
            parameter_path, inner_repeat = parameter.path, None
            layer = full_chunk.lowering.parameter_layer(parameter_path)
            for layer_stack in (layer_stack for layer_stack in layer_stacks if layer_stack.path == layer.path):
                repeat_number = (layer.layer_index - layer_stack.before) // layer_stack.period
                inner_repeat = repeat_number - 1 if 0 < repeat_number < layer_stack.repeats - 1 else None
                skipped_repeats = min(max(repeat_number - 1, 0), layer_stack.repeats - RECORDED_REPEATS)
                if inner_repeat is not None:
                    skipped_repeats = inner_repeat
                layer_part = parameter_path.index(layer.layer_index, 1)
                recorded_layer = layer.layer_index - skipped_repeats * layer_stack.period
                parameter_path = (*parameter_path[:layer_part], recorded_layer, *parameter_path[layer_part + 1 :])
            if parameter_path not in parameter_numbers:
                raise NotRepeating
            source_numbers.append((parameter_numbers[parameter_path], inner_repeat))
        return source_numbers

    def unfolded(self) -> tuple[list[Event], list[RecordedPass]]:
        """Returns the events of passes extended to all layers, and the passes."""
        unfolded_events: list[Event] = []
        passes: list[RecordedPass] = []
        for i, trace_piece in enumerate(self.pieces):
            pass_start = len(unfolded_events)
            unfolded_events += self.repeated.events_of_long_run(trace_piece)
            if i % 2:
                passes.append(self._extended_pass(self.passes[i // 2], trace_piece, pass_start, len(unfolded_events)))
        return unfolded_events, passes

    def _extended_pass(
        self, recorded_pass: RecordedPass, pass_events: Sequence[Event], pass_start: int, pass_end: int
    ) -> RecordedPass:
        """Returns a pass extended to all layers.

        pass_events: its recorded events. pass_start, pass_end: indices among the full run's events.
        """
        chunk_index, pass_kind, _ = recorded_pass.pass_id
        recorded_chunk, source_numbers = self.chunks[chunk_index], self.sources[chunk_index]
        outputs_by_number = {i: (template, storage_id) for i, template, storage_id in recorded_pass.outputs}
        if pass_kind == "B":
            received_count = int(bool(recorded_chunk.received))
            recorded_starts = [received_count + len(recorded_chunk.parameters)]
            full_starts = [received_count + len(self.full_chunks[chunk_index].parameters)]
            recorded_starts.append(recorded_starts[0] + len(recorded_chunk.gathered()))
            full_starts.append(full_starts[0] + len(source_numbers))
            allocated_storages = {storage_number for storage_number, nbytes, _ in pass_events if nbytes >= 0}
            if any(
                received_count <= i < recorded_starts[0] and storage_position in allocated_storages
                for i, (_, storage_position) in outputs_by_number.items()
            ):
                raise NotRepeating  # the gradient of a shard, which is made between passes
        else:
            received_count, recorded_starts, full_starts = 1, [1], [1]
        unfolded_outputs = [
            (i, outputs_by_number[i][0], self._full_storage(outputs_by_number[i][1], None))
            for i in range(received_count)
            if i in outputs_by_number
        ]
        for recorded_start, full_start in zip(recorded_starts, full_starts, strict=True):
            for i, (storage_position, inner_repeat) in enumerate(source_numbers):
                if recorded_start + storage_position in outputs_by_number:
                    template, storage_id = outputs_by_number[recorded_start + storage_position]
                    unfolded_outputs.append((full_start + i, template, self._full_storage(storage_id, inner_repeat)))
        stage_input = recorded_pass.input_storage
        return recorded_pass._replace(
            start=pass_start,
            end=pass_end,
            place=self.repeated.place_in_long_run(recorded_pass.place),
            input_storage=None if stage_input is None else self._full_storage(stage_input, None),
            outputs=unfolded_outputs,
        )

    def _full_storage(self, storage_number: int, inner_repeat: int | None) -> int:
        """Returns a storage's number in passes with all layers.

        inner_repeat: its layer repeat; None outside of repeats.
        """
        if inner_repeat is None:
            return self.repeated.numbers.get(storage_number, storage_number)
        if storage_number not in self.repeated.starts:
            raise NotRepeating
        return self.repeated.starts[storage_number] + inner_repeat
