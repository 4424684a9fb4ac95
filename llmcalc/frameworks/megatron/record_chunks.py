"""Records the passes of each pipeline chunk once for all ranks and layouts with an equal chunk.

The passes of two chunks meet only in tensors that stay allocated after their first use, such as workspaces and dummy
gradients: the first chunk that needs one allocates it. So a chunk is recorded alone, and its passes beside other chunks
are those without the allocations that other chunks have made before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace
from itertools import accumulate
from operator import or_
from typing import TypeAlias

from ...frozen import frozen
from ...model import ModelSpec
from ...parallel.rank_program import RankFlow
from ...simulator.event_log import TAKEN, EventRecorder
from ...simulator.pass_trace import PassCase, PassTrace
from ...simulator.record_microbatches import RecordedPasses
from ...simulator.repeat_layers import NotRepeating
from ...simulator.strides import Shape
from .kernels import GATHER_BUFFER, Parameter
from .rank_run import Chunk, RankRun
from .record_passes import record_passes, recorded_steps
from .settings import MegatronSettings

Names: TypeAlias = frozenset[str | Shape]
"""Keys of `PersistentTensors.shared`."""


@frozen
class RecordedChunk:
    """The passes of a pipeline chunk, recorded separately.

    program: the program of its layers.
    layers_before: the layers before it.
    parameters: its parameters, in the order in which Megatron creates them.
    passes: its passes, with 0 for the number of the chunk.
    storages: name of a tensor that stays allocated → the storages that it has had.
    sizes: name of such a tensor → bytes of its first and of its last storage.
    in_forward: such tensors that a forward pass allocates.
    """

    program: RankFlow
    layers_before: int
    parameters: list[Parameter]
    passes: RecordedPasses
    storages: Mapping[str | Shape, tuple[int, ...]]
    sizes: Mapping[str | Shape, tuple[int, int]]
    in_forward: Names
    _traces: dict[Names, dict[PassCase, PassTrace] | None] = field(default_factory=dict)

    @property
    def names(self) -> Names:
        """The names of tensors still allocated after the forward and backward passes."""
        return frozenset(self.storages)

    def traces(
        self, chunk_number: int, names_before_forward: Names, names_before_backward: Names
    ) -> dict[PassCase, PassTrace]:
        """Returns the memory events of each kind of pass, renumbered for chunk `chunk_number`.

        names_before_forward, names_before_backward: tensors that earlier chunks have allocated.
        Raises `NotRepeating` if passes that should be alike are not.
        """
        allocated_before = (names_before_forward & self.in_forward) | (
            (names_before_backward & self.names) - self.in_forward
        )
        if allocated_before not in self._traces:
            self._traces[allocated_before] = self._read_traces(allocated_before)
        pass_traces = self._traces[allocated_before]
        if pass_traces is None:
            raise NotRepeating
        return {
            (chunk_number, *pass_case): _renumber_trace(pass_trace, chunk_number)  # type: ignore[misc]
            for (_, *pass_case), pass_trace in pass_traces.items()
        }

    def _read_traces(self, allocated_before: Names) -> dict[PassCase, PassTrace] | None:
        try:
            return self.passes.traces(
                {storage for tensor_name in allocated_before for storage in self.storages[tensor_name]}
            )
        except NotRepeating:
            return None


def _renumber_trace(pass_trace: PassTrace, chunk_number: int) -> PassTrace:
    """Returns a trace that was recorded for chunk 0, renumbered for chunk `chunk_number`."""
    if not chunk_number or not pass_trace.releases_of_other_passes:
        return pass_trace
    renumbered_releases = {
        (chunk_number, *pass_key): release_steps
        for (_, *pass_key), release_steps in pass_trace.releases_of_other_passes.items()
    }
    return replace(pass_trace, releases_of_other_passes=renumbered_releases)  # type: ignore[arg-type]


def record_chunks(
    spec: ModelSpec, settings: MegatronSettings, rank: int, is_last_stage: bool, by_previous: bool
) -> tuple[Mapping[PassCase, PassTrace], Sequence[RecordedChunk]] | None:
    """Returns the memory events of each kind of pass, and the rank's chunks; None if chunks must be recorded together.

    is_last_stage, by_previous: as in `record_passes`.
    Raises `NotRepeating` if passes that should be alike are not.
    """
    rank_run = RankRun(spec, settings, rank, EventRecorder())
    if rank_run.rank_choices.wgrad_deferral_limit is not None:  # the end of a step has gradients of all chunks
        return None
    if rank_run.spec.vocab_size % rank_run.layout.tp == 0:  # every other axis is divided evenly
        rank = rank_run.layout.rank(pp=rank_run.coordinates.pp)
        rank_run = RankRun(spec, settings, rank, EventRecorder())
    count = len(rank_run.chunks)
    chunks = [
        _recorded_chunk(
            spec, settings, rank, rank_run, chunk_number, is_last_stage and chunk_number == count - 1, by_previous
        )
        for chunk_number in range(count)
    ]
    if count > 1 and _replaces_gather_buffer(chunks):
        return None
    empty_names: Names = frozenset()
    forward_names = list(accumulate((model_chunk.in_forward for model_chunk in chunks), or_, initial=empty_names))
    backward_names = list(
        accumulate((model_chunk.names for model_chunk in reversed(chunks)), or_, initial=forward_names[count])
    )
    pass_traces: dict[PassCase, PassTrace] = {}
    for chunk_number, chunk in enumerate(chunks):
        pass_traces |= chunk.traces(chunk_number, forward_names[chunk_number], backward_names[count - 1 - chunk_number])
    return pass_traces, chunks


_chunks: dict[tuple[object, ...], RecordedChunk] = {}
"""Recorded chunks by everything that determines their passes."""

MAX_CHUNKS = 256
"""Number of chunks that are kept."""


def _recorded_chunk(
    spec: ModelSpec,
    settings: MegatronSettings,
    rank: int,
    rank_run: RankRun,
    chunk_number: int,
    is_interleaved: bool,
    by_previous: bool,
) -> RecordedChunk:
    """Returns a recorded chunk of a rank, from a cache. is_interleaved: whether passes alternate."""
    chunk = rank_run.chunks[chunk_number]
    layers_before = chunk.lowering.first_layer_index if any(rank_run.rank_choices.bf16_layers) else 0
    workspace_bytes = rank_run.persistent.cublas_bytes, rank_run.persistent.engine_bytes
    chunk_settings = rank_run.rank_choices, rank_run.run_config, chunk.lowering.include
    chunk_key = id(chunk.program), chunk_settings, workspace_bytes, layers_before, is_interleaved, by_previous
    cache_key = recorded_steps(rank_run.microbatches, by_previous), chunk_key
    if cache_key not in _chunks:
        if len(_chunks) >= MAX_CHUNKS:
            _chunks.clear()
        chunk_run = RankRun(spec, settings, rank, EventRecorder())
        _chunks[cache_key] = _record_chunk(chunk_run, chunk_run.chunks[chunk_number], is_interleaved, by_previous)
    return _chunks[cache_key]


def _record_chunk(rank_run: RankRun, model_chunk: Chunk, is_interleaved: bool, by_previous: bool) -> RecordedChunk:
    """Records the passes of a chunk of a run that has not begun."""
    rank_run.chunks, model_chunk.number = [model_chunk], 0
    recorder = rank_run.meter
    assert isinstance(recorder, EventRecorder)
    rank_run.set_up_tables()
    model_chunk.parameters = model_chunk.lowering.parameters_of(model_chunk.program)
    recorded_passes = record_passes(rank_run, recorder, is_interleaved, by_previous)
    shared_blocks, layers_before = rank_run.persistent.shared, model_chunk.lowering.first_layer_index
    forward_storages = _allocated_in_forward(recorded_passes)
    return RecordedChunk(
        model_chunk.program,
        layers_before,
        model_chunk.parameters,
        recorded_passes,
        {name: tuple(block.handle for block in named_blocks) for name, named_blocks in shared_blocks.items()},
        {name: (named_blocks[0].bytes, named_blocks[-1].bytes) for name, named_blocks in shared_blocks.items()},
        frozenset(name for name, named_blocks in shared_blocks.items() if named_blocks[0].handle in forward_storages),
    )


def _allocated_in_forward(recorded_passes: RecordedPasses) -> Collection[int]:
    """Returns the numbers of the storages that forward passes allocate."""
    memory_events = recorded_passes.events
    forward_passes = (recorded_pass for recorded_pass in recorded_passes.passes if recorded_pass.pass_id[1] != "B")
    in_forward = (
        event for recorded_pass in forward_passes for event in memory_events[recorded_pass.start : recorded_pass.end]
    )
    return {storage for storage, storage_bytes, _ in in_forward if storage_bytes > 0 or storage_bytes == TAKEN}


def _replaces_gather_buffer(recorded_chunks: Sequence[RecordedChunk]) -> bool:
    """Whether a chunk replaces another chunk's gather buffer with a larger buffer."""
    users = [model_chunk for model_chunk in recorded_chunks if GATHER_BUFFER in model_chunk.in_forward]
    users += [model_chunk for model_chunk in reversed(recorded_chunks) if GATHER_BUFFER in model_chunk.names]
    buffer_sizes = [chunk.sizes[GATHER_BUFFER] for chunk in users]
    return bool(buffer_sizes) and max(last_size for _, last_size in buffer_sizes) > buffer_sizes[0][0]
