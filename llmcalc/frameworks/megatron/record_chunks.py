"""Records the passes of each pipeline chunk once for all ranks and layouts with an equal chunk.

The passes of two chunks meet only in tensors that stay allocated after their first use, such as workspaces and dummy
gradients: the first chunk that needs one allocates it. So a chunk is recorded alone, and its passes beside other chunks
are those without the allocations that other chunks have made before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from itertools import accumulate, chain
from operator import or_
from typing import TypeAlias

from ...frozen import frozen
from ...model import ModelSpec
from ...parallel.rank_program import RankFlow, stage_program_key
from ...simulator.event_log import WORKSPACE_EVENT, EventRecorder
from ...simulator.layer_pattern import RECORDED_REPEATS, shortened_layers
from ...simulator.layer_stacks import LayerStack, long_stacks
from ...simulator.pass_trace import PassGroup, PassTrace
from ...simulator.record_microbatches import RecordedPasses
from ...simulator.repeat_layers import NotRepeatingError
from ...simulator.shortened_passes import ShortenedPasses
from ...simulator.simulated_work import SIMULATED_WORK
from ...simulator.strides import Shape
from ...simulator.tensor import empty
from .kernels import GATHER_BUFFER_KEY, Parameter
from .kernels.lowering import UncountedMeter
from .rank_run import ModelChunk, RankRun
from .record_passes import record_passes, recorded_step_microbatches
from .settings import MegatronSettings

SharedTensorKeys: TypeAlias = frozenset[str | Shape]
"""Keys in `PersistentTensors.shared_block_by_key`."""


@frozen
class RecordedChunk:
    """The recorded memory events of one pipeline chunk's passes, which ranks with an equal chunk can reuse.

    program: the program of its layers.
    layers_before: the layers before it.
    parameters: parameters of the chunk, in the order in which Megatron creates them.
    recorded_passes: passes of the chunk, with 0 as the chunk's number.
    storage_ids_by_name: name of a tensor that stays allocated → the storages that it has had.
    storage_bytes_by_name: name of such a tensor → bytes of its first and of its last storage.
    recording_units: work of the recording, in units of `SimulatedWork`.
    """

    program: RankFlow
    layers_before: int
    parameters: list[Parameter]
    recorded_passes: RecordedPasses
    storage_ids_by_name: Mapping[str | Shape, tuple[int, ...]]
    storage_bytes_by_name: Mapping[str | Shape, tuple[int, int]]
    recording_units: int
    _traces: dict[SharedTensorKeys, dict[PassGroup, PassTrace] | None] = field(default_factory=dict, init=False)

    @property
    def remaining_tensor_names(self) -> SharedTensorKeys:
        """The names of tensors still allocated after the forward and backward passes."""
        return frozenset(self.storage_ids_by_name)

    @cached_property
    def names_allocated_in_forward(self) -> SharedTensorKeys:
        """The names of remaining tensors that the forward pass allocated."""
        forward_storages = _storages_allocated_in_forward(self.recorded_passes)
        return frozenset(
            tensor_name
            for tensor_name, storage_ids in self.storage_ids_by_name.items()
            if storage_ids[0] in forward_storages
        )

    def traces(
        self, chunk_number: int, names_before_forward: SharedTensorKeys, names_before_backward: SharedTensorKeys
    ) -> dict[PassGroup, PassTrace]:
        """Returns the memory events of each kind of pass, for a chunk with the number `chunk_number`.

        names_before_forward, names_before_backward: tensors that earlier chunks have allocated.
        Raises `NotRepeatingError` if passes that should be alike are not.
        """
        names_allocated_before = (names_before_forward & self.names_allocated_in_forward) | (
            (names_before_backward & self.remaining_tensor_names) - self.names_allocated_in_forward
        )
        if names_allocated_before not in self._traces:
            self._traces[names_allocated_before] = self._read_traces(names_allocated_before)
        pass_traces = self._traces[names_allocated_before]
        if pass_traces is None:
            raise NotRepeatingError
        return {
            (chunk_number, *pass_group): _renumber_trace(pass_trace, chunk_number)  # type: ignore[misc]
            for (_, *pass_group), pass_trace in pass_traces.items()
        }

    def _read_traces(self, names_allocated_before: SharedTensorKeys) -> dict[PassGroup, PassTrace] | None:
        try:
            return self.recorded_passes.traces(
                {
                    storage_id
                    for tensor_name in names_allocated_before
                    for storage_id in self.storage_ids_by_name[tensor_name]
                }
            )
        except NotRepeatingError:
            return None


def _renumber_trace(pass_trace: PassTrace, chunk_number: int) -> PassTrace:
    """Returns a pass's memory events, which were recorded for chunk 0, with `chunk_number` as the number."""
    if not chunk_number or not pass_trace.releases_of_other_passes:
        return pass_trace
    renumbered_releases = {
        (chunk_number, *pass_key): release_steps
        for (_, *pass_key), release_steps in pass_trace.releases_of_other_passes.items()
    }
    return replace(pass_trace, releases_of_other_passes=renumbered_releases)  # type: ignore[arg-type]


def record_chunks(
    spec: ModelSpec, settings: MegatronSettings, rank: int, is_last_stage: bool, distinguishes_previous_pass: bool
) -> tuple[Mapping[PassGroup, PassTrace], Sequence[RecordedChunk]] | None:
    """Records the memory events of each model chunk of a rank by kind of pass; returns traces and chunks.

    None if the weight gradients of several chunks are deferred together, so that they cannot be recorded separately.

    is_last_stage, distinguishes_previous_pass: as in `record_passes`.
    Raises `NotRepeatingError` if passes that should be alike are not.
    """
    rank_run = RankRun(spec, settings, rank, EventRecorder())
    if rank_run.rank_choices.wgrad_deferral_limit is not None:  # the end of a step has gradients of all chunks
        return None
    first_rank = rank_run.layout.rank(pp=rank_run.coordinates.pp)
    if rank != first_rank and rank_run.spec.vocab_size % rank_run.layout.tp == 0:  # every other axis is divided evenly
        rank, rank_run = first_rank, RankRun(spec, settings, first_rank, EventRecorder())
    chunk_count = len(rank_run.chunks)
    recorded_chunks = [
        _cached_chunk(
            spec,
            settings,
            rank,
            rank_run,
            chunk_number,
            is_last_stage and chunk_number == chunk_count - 1,
            distinguishes_previous_pass,
        )
        for chunk_number in range(chunk_count)
    ]
    if chunk_count > 1 and _replaces_gather_buffer(recorded_chunks):
        return None
    empty_names: SharedTensorKeys = frozenset()
    tensor_names_before_forward = list(
        accumulate(
            (recorded_chunk.names_allocated_in_forward for recorded_chunk in recorded_chunks), or_, initial=empty_names
        )
    )
    tensor_names_before_backward = list(
        accumulate(
            (recorded_chunk.remaining_tensor_names for recorded_chunk in reversed(recorded_chunks)),
            or_,
            initial=tensor_names_before_forward[chunk_count],
        )
    )
    pass_traces: dict[PassGroup, PassTrace] = {}
    for chunk_number, chunk in enumerate(recorded_chunks):
        pass_traces |= chunk.traces(
            chunk_number,
            tensor_names_before_forward[chunk_number],
            tensor_names_before_backward[chunk_count - 1 - chunk_number],
        )
    return pass_traces, recorded_chunks


_chunk_cache: dict[tuple[object, ...], RecordedChunk] = {}
"""Cache: everything that determines the passes of a chunk → the recorded chunk."""

_shortened_chunk_cache: dict[tuple[object, ...], tuple[ModelSpec, LayerStack, RecordedChunk]] = {}
"""Cache of chunks recorded with `RECORDED_REPEATS` repeats of their stack, for stacks with more repeats. It keeps the
model so that no other model gets the same id.
"""

MAX_CACHED_CHUNKS = 256
"""Largest number of chunks in a cache."""


def _cached_chunk(
    spec: ModelSpec,
    settings: MegatronSettings,
    rank: int,
    rank_run: RankRun,
    chunk_number: int,
    is_interleaved: bool,
    distinguishes_previous_pass: bool,
) -> RecordedChunk:
    """Returns a recorded chunk of a rank, from a cache. is_interleaved: whether passes alternate."""
    model_chunk = rank_run.chunks[chunk_number]
    layers_before = model_chunk.lowering.first_layer_index if any(rank_run.rank_choices.bf16_layer_counts) else 0
    workspace_bytes = rank_run.persistent.cublas_workspace_bytes, rank_run.persistent.engine_workspace_bytes
    chunk_settings = rank_run.rank_choices, rank_run.run_config, model_chunk.lowering.included_parts
    chunk_key = (
        id(model_chunk.program),
        chunk_settings,
        workspace_bytes,
        layers_before,
        is_interleaved,
        distinguishes_previous_pass,
    )
    cache_key = recorded_step_microbatches(rank_run.microbatches, distinguishes_previous_pass), chunk_key
    if cache_key not in _chunk_cache:
        if len(_chunk_cache) >= MAX_CACHED_CHUNKS:
            _chunk_cache.clear()

        def record_chunk(layer_stack: LayerStack | None) -> RecordedChunk:
            recording_run = RankRun(spec, settings, rank, EventRecorder())
            return _record_chunk(recording_run, chunk_number, layer_stack, is_interleaved, distinguishes_previous_pass)

        for layer_stack in [*repeating_stacks(rank_run, model_chunk), None]:
            try:
                if layer_stack is None:
                    _chunk_cache[cache_key] = record_chunk(None)
                else:
                    program_key = _shortened_program_key(rank_run, model_chunk, layer_stack)
                    shortened_chunk, recorded_stack = _shortened_chunk(
                        (program_key, cache_key[0], *chunk_key[1:]), rank_run.spec, layer_stack, record_chunk
                    )
                    full_stack = replace(recorded_stack, repeat_count=layer_stack.repeat_count)
                    _chunk_cache[cache_key] = _chunk_with_all_layers(shortened_chunk, model_chunk.program, full_stack)
                break
            except NotRepeatingError:
                if layer_stack is None:
                    raise
    stage = model_chunk.stage
    counted_key = (
        () if stage is None else stage_program_key(rank_run.spec, stage),
        model_chunk.program.rank_axes.coordinates,
        replace(model_chunk.program.rank_axes.layout, pp=1),
        cache_key[0],
        *chunk_key[1:],
    )
    SIMULATED_WORK.use_recording(hash(counted_key), _chunk_cache[cache_key].recording_units)
    return _chunk_cache[cache_key]


def repeating_stacks(rank_run: RankRun, model_chunk: ModelChunk) -> list[LayerStack]:
    """Returns a chunk's only layer stack if a few recorded repeats can represent the stack; otherwise no stack."""
    kernel_choices = rank_run.rank_choices
    if kernel_choices.recompute == "block" or any(kernel_choices.bf16_layer_counts):  # the number of a layer matters
        return []
    recompute_interval = kernel_choices.recompute_layer_count if kernel_choices.recompute == "uniform" else 1
    return long_stacks(model_chunk.program.root, recompute_interval, model_chunk.lowering.first_layer_index)


def _shortened_chunk(
    cache_key: tuple[object, ...],
    spec: ModelSpec,
    layer_stack: LayerStack,
    record_chunk: Callable[[LayerStack | None], RecordedChunk],
) -> tuple[RecordedChunk, LayerStack]:
    """Returns a recorded chunk with few repeats of its layer stack, and that shortened stack."""
    if cache_key not in _shortened_chunk_cache:
        if len(_shortened_chunk_cache) >= MAX_CACHED_CHUNKS:
            _shortened_chunk_cache.clear()
        _shortened_chunk_cache[cache_key] = spec, layer_stack, record_chunk(layer_stack)
    _, recorded_stack, shortened_chunk = _shortened_chunk_cache[cache_key]
    return shortened_chunk, recorded_stack


def _shortened_program_key(rank_run: RankRun, model_chunk: ModelChunk, layer_stack: LayerStack) -> tuple[object, ...]:
    """Returns a key that is equal for chunks whose programs differ only in the repeats of their stack."""
    stage, program = model_chunk.stage, model_chunk.program
    if stage is None:
        return (id(program),)
    layer_names = rank_run.spec.main.layer_names()[stage.layers.start : stage.layers.stop]
    recorded_repeats = layer_stack.repeats_of_layer_types(RECORDED_REPEATS)
    layers_before = layer_stack.layers_before - model_chunk.lowering.first_layer_index
    return (
        id(rank_run.spec),
        replace(layer_stack, layers_before=layers_before, repeat_count=RECORDED_REPEATS),
        tuple(shortened_layers(list(layer_names), recorded_repeats)),
        stage.has_embedding,
        stage.has_head,
        program.rank_axes.coordinates,
        replace(program.rank_axes.layout, pp=1),
    )


def _record_chunk(
    rank_run: RankRun,
    chunk_number: int,
    layer_stack: LayerStack | None,
    is_interleaved: bool,
    distinguishes_previous_pass: bool,
) -> RecordedChunk:
    """Records the memory events of a pipeline chunk's passes. rank_run: a run that has not begun.

    layer_stack: the stack of which only `RECORDED_REPEATS` repeats run and are in the recorded chunk; None for all
        layers.
    """
    model_chunk, effort_before = rank_run.chunks[chunk_number], SIMULATED_WORK.units
    rank_run.chunks, model_chunk.chunk_index = [model_chunk], 0
    recorder = rank_run.meter
    assert isinstance(recorder, EventRecorder)
    rank_run.set_up_rope_tables()
    model_chunk.lowering.run_repeats_by_stack = (
        {} if layer_stack is None else {0: layer_stack.repeats_of_layer_types(RECORDED_REPEATS)}
    )
    model_chunk.parameters = model_chunk.lowering.parameters_of(model_chunk.program)
    recorded_passes = record_passes(rank_run, recorder, is_interleaved, distinguishes_previous_pass)
    shared_block_by_key = rank_run.persistent.shared_block_by_key
    return RecordedChunk(
        model_chunk.program,
        model_chunk.lowering.first_layer_index,
        model_chunk.parameters,
        recorded_passes,
        {tensor_name: tuple(block.handle for block in blocks) for tensor_name, blocks in shared_block_by_key.items()},
        {tensor_name: (blocks[0].bytes, blocks[-1].bytes) for tensor_name, blocks in shared_block_by_key.items()},
        SIMULATED_WORK.subtract_work_since(effort_before),
    )


def _chunk_with_all_layers(shortened_chunk: RecordedChunk, program: RankFlow, layer_stack: LayerStack) -> RecordedChunk:
    """Returns a chunk with all repeats of its stack, derived from the chunk with `RECORDED_REPEATS` repeats.

    program: the program with all layers.
    Raises `NotRepeatingError` if the repeats differ.
    """
    recorded_passes = shortened_chunk.recorded_passes
    shortened_passes = ShortenedPasses(recorded_passes.events, recorded_passes.passes, [layer_stack])
    return replace(
        shortened_chunk,
        program=program,
        parameters=_parameters_of_all_repeats(shortened_chunk.parameters, layer_stack),
        recorded_passes=RecordedPasses(*shortened_passes.extended_passes()),
        storage_ids_by_name={
            tensor_name: tuple(map(shortened_passes.storage_in_full_pass, storage_ids))
            for tensor_name, storage_ids in shortened_chunk.storage_ids_by_name.items()
        },
    )


def _parameters_of_all_repeats(parameters: Sequence[Parameter], layer_stack: LayerStack) -> list[Parameter]:
    """Returns the parameters of all repeats of a stack, from a stack with only `RECORDED_REPEATS` repeats.

    Raises `NotRepeatingError` if the repeats have different parameters.
    """
    layers_per_repeat, first_layer = layer_stack.layer_period, layer_stack.layers_before
    recorded_repeats: list[list[Parameter]] = [[] for _ in range(RECORDED_REPEATS)]
    parameters_before: list[Parameter] = []
    parameters_after: list[Parameter] = []
    for parameter in parameters:
        layer_index = _layer_index_in_stack(parameter, layer_stack)
        repeat_number = -1 if layer_index is None else (layer_index - first_layer) // layers_per_repeat
        if 0 <= repeat_number < RECORDED_REPEATS:
            recorded_repeats[repeat_number].append(parameter)
        elif repeat_number >= RECORDED_REPEATS:
            skipped_layers = (layer_stack.repeat_count - RECORDED_REPEATS) * layers_per_repeat
            parameters_after.append(_parameter_of_later_layer(parameter, layer_stack, skipped_layers))
        elif any(recorded_repeats):
            parameters_after.append(parameter)
        else:
            parameters_before.append(parameter)
    first_repeat = recorded_repeats[0]
    repeated_parameters = [
        [
            _parameter_of_later_layer(parameter, layer_stack, repeat_index * layers_per_repeat)
            for parameter in first_repeat
        ]
        for repeat_index in range(layer_stack.repeat_count)
    ]
    for recorded_repeat, copied_repeat in zip(recorded_repeats, repeated_parameters, strict=False):
        if [_parameter_description(parameter) for parameter in recorded_repeat] != list(
            map(_parameter_description, copied_repeat)
        ):
            raise NotRepeatingError
    return [*parameters_before, *chain.from_iterable(repeated_parameters), *parameters_after]


def _layer_index_in_stack(parameter: Parameter, layer_stack: LayerStack) -> int | None:
    """Returns the index of a parameter's layer in a stack; None outside of the stack."""
    layer_index_position = len(layer_stack.path.split(".")) + 1
    is_in_stack = ".".join(map(str, parameter.path[1:layer_index_position])) == layer_stack.path
    return parameter.path[layer_index_position] if is_in_stack else None


def _parameter_of_later_layer(parameter: Parameter, layer_stack: LayerStack, added_layers: int) -> Parameter:
    """Returns an equal parameter of a later layer of a stack."""
    layer_index_position, tensor = len(layer_stack.path.split(".")) + 1, parameter.tensor
    shifted_path = list(parameter.path)
    shifted_path[layer_index_position] += added_layers
    return parameter._replace(
        path=tuple(shifted_path), tensor=empty(UncountedMeter(), tensor.shape, tensor.dtype, is_leaf=tensor.is_leaf)
    )


def _parameter_description(parameter: Parameter) -> tuple[object, ...]:
    """Returns a parameter's fields and its tensor's shape and format, for comparisons."""
    tensor = parameter.tensor
    return parameter.path, *parameter[2:], tensor.shape, tensor.dtype, tensor.is_leaf


def _storages_allocated_in_forward(recorded_passes: RecordedPasses) -> Collection[int]:
    """Returns the ids of the storages that forward passes allocate."""
    memory_events = recorded_passes.events
    forward_passes = (recorded_pass for recorded_pass in recorded_passes.passes if recorded_pass.pass_id[1] != "B")
    forward_events = (
        event
        for recorded_pass in forward_passes
        for event in memory_events[recorded_pass.first_event_index : recorded_pass.end_event_index]
    )
    return {
        storage_id
        for storage_id, storage_bytes, _ in forward_events
        if storage_bytes > 0 or storage_bytes == WORKSPACE_EVENT
    }


def _replaces_gather_buffer(recorded_chunks: Sequence[RecordedChunk]) -> bool:
    """Whether a chunk replaces another chunk's gather buffer with a larger buffer."""
    chunks_with_gather_buffer = [
        recorded_chunk
        for recorded_chunk in recorded_chunks
        if GATHER_BUFFER_KEY in recorded_chunk.names_allocated_in_forward
    ]
    chunks_with_gather_buffer += [
        recorded_chunk
        for recorded_chunk in reversed(recorded_chunks)
        if GATHER_BUFFER_KEY in recorded_chunk.remaining_tensor_names
    ]
    buffer_sizes = [
        recorded_chunk.storage_bytes_by_name[GATHER_BUFFER_KEY] for recorded_chunk in chunks_with_gather_buffer
    ]
    return bool(buffer_sizes) and max(end_size for _, end_size in buffer_sizes) > buffer_sizes[0][0]
