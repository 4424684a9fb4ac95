"""Derives passes with all of a stack's equal layers from passes recorded with few layers.

The recorded passes have four repeats of each stack's pattern of layers. `RepeatAnalysis` checks that the second and the
third do the same, and has the events of every repeat between the first and the last from theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from .event_log import Event, RecordedEvents
from .layer_stacks import LayerStack
from .record_microbatches import PassOutput, RecordedPass
from .repeat_layers import FullRunEvents, RepeatAnalysis
from .replay_result import STEP_PHASES


class ShortenedPasses:
    """Derives the memory events of passes with all layers from passes recorded with few layers.

    memory_events, recorded_passes: those of the recorded run.
    layer_stacks: the stacks of which `RECORDED_REPEATS` repeats were recorded.
    Raises `NotRepeatingError` if the repeats differ.
    """

    def __init__(
        self,
        memory_events: Sequence[Event],
        recorded_passes: Sequence[RecordedPass],
        layer_stacks: Sequence[LayerStack],
    ) -> None:
        self.passes: Sequence[RecordedPass] = recorded_passes
        boundary_indices = [
            0,
            *(
                boundary_index
                for recorded_pass in recorded_passes
                for boundary_index in (recorded_pass.first_event_index, recorded_pass.end_event_index)
            ),
            len(memory_events),
        ]
        self.event_sections: list[Sequence[Event]] = [
            memory_events[section_start:section_end] for section_start, section_end in pairwise(boundary_indices)
        ]
        repeat_analysis = RepeatAnalysis(
            RecordedEvents([], self.event_sections, [], STEP_PHASES), layer_stacks, range(len(layer_stacks))
        )
        self.full_run: FullRunEvents = FullRunEvents(repeat_analysis, {})

    def extended_passes(self) -> tuple[list[Event], list[RecordedPass]]:
        """Returns the memory events of all passes with all layers, and the passes, which refer to these events."""
        full_run_events: list[Event] = []
        recorded_passes: list[RecordedPass] = []
        for section_index, section_events in enumerate(self.event_sections):
            first_event_index = len(full_run_events)
            full_run_events += self.full_run.events_of_full_run(section_events)
            if section_index % 2:
                recorded_passes.append(
                    self._extended_pass(
                        self.passes[section_index // 2], section_events, first_event_index, len(full_run_events)
                    )
                )
        return full_run_events, recorded_passes

    def _extended_pass(
        self, recorded_pass: RecordedPass, pass_events: Sequence[Event], first_event_index: int, end_event_index: int
    ) -> RecordedPass:
        """Returns a recorded pass extended to all layers, with its indices in the extended events.

        pass_events: its recorded events. first_event_index, end_event_index: indices among the full run's events.
        """
        input_storage = recorded_pass.input_storage
        return recorded_pass._replace(
            first_event_index=first_event_index,
            end_event_index=end_event_index,
            start_place=self.full_run.place_in_full_run(recorded_pass.start_place),
            input_storage=None if input_storage is None else self.storage_in_full_pass(input_storage),
            outputs=self.outputs_of_full_pass(recorded_pass, pass_events),
        )

    def outputs_of_full_pass(self, recorded_pass: RecordedPass, pass_events: Sequence[Event]) -> list[PassOutput]:
        """Returns the tensors that outlive a pass with all layers; inner layers allocate none of them."""
        return [
            (output_number, shape_template, self.storage_in_full_pass(storage_number))
            for output_number, shape_template, storage_number in recorded_pass.outputs
        ]

    def storage_in_full_pass(self, storage_number: int) -> int:
        """Returns the number that a storage of the recorded passes has in the passes with all layers."""
        return self.full_run.storage_numbers.get(storage_number, storage_number)
