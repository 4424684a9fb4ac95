"""Replays inference on one device: allocates weights and cache, runs prompt passes, and one decoding step."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Mapping
from typing import Literal, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

from ..errors import InputError
from ..flow.record import Flow
from ..frozen import frozen
from ..model import ModelSpec
from ..parallel.rank_model import RankModel
from ..parallel.rank_program import RankFlow
from ..simulator.autograd import AutogradGraph
from ..simulator.event_log import EventRecorder, RecordedEvents
from ..simulator.kernel_choices import EAGER_CHOICES, KernelChoices
from ..simulator.layer_pattern import shortened_layers
from ..simulator.meter import AllocationPlace, MemoryAllocator, Meter, NoMeter
from ..simulator.module_frame import ParameterSet
from ..simulator.profiles.dtensor import DTensorKernels
from ..simulator.profiles.eager import EagerKernels
from ..simulator.replay_result import ReplayResult
from ..simulator.tensor import DTYPES, INT64, Storage, Tensor, count_storages_as, empty
from ..workload.execution import Execution, LatentForm
from ..workload.rows import SOURCE_TOKENS, TOKENS
from ..workload.run_config import RunConfig
from ..workload.workload import Phase, Workload

InferencePhase: TypeAlias = Literal["prefill", "decode", "inference"]


@frozen
class InferenceConfig:
    """The configuration of an inference replay, such as number format, kernels and lengths.

    phase: `prefill`, the passes over a prompt; `decode`, one token after `seq` cached ones; or `inference` (default),
        the prefill and then one decoding step. An encoder-only model has a prefill alone, which caches nothing.
    batch: number of sequences, default 1.
    seq: tokens of each prompt, default 2048; in `decode`, the cached tokens.
    source_tokens: tokens that an encoder reads, default `seq`.
    chunk_tokens: tokens of a chunk of the prompt; None (default) for the whole prompt at once.
    dtype: number format of weights and activations, default bfloat16.
    kernel_choices: the kernels that run, default the eager ones.
    latent_form: the form of latent attention, as in `Execution`.
    include: names of the optional parts that run too (`llmcalc.optional`), default none.
    has_paged_cache: whether the cache is a pool of blocks that exists before the passes; default false, where the cache
        grows by concatenation, as the reference's does. New keys, values and states are written into the pool. A replay
        does not count the pool: the caller adds its bytes. Flash attention reads keys and values in place; other
        attention first copies them, in each layer, into tensors of the activations' number format.
    counts_weights: whether the replay counts the weights, default true. Weights with another storage than `dtype`, such
        as quantized ones, are added by the caller.
    """

    phase: InferencePhase = "inference"
    batch: int = 1
    seq: int = 2048
    source_tokens: int | None = None
    chunk_tokens: int | None = None
    dtype: str = "bfloat16"
    kernel_choices: KernelChoices = EAGER_CHOICES
    latent_form: LatentForm = "auto"
    include: frozenset[str] = frozenset()
    has_paged_cache: bool = False
    counts_weights: bool = True


class ServingRankKernels(DTensorKernels):
    """A rank's kernels in serving engines, which divide more modules among ranks than torch's tensor parallelism.

    A rank has a part of each expert, or some of the experts. Key heads are copied where there are fewer of them than
    ranks.
    """

    def check_plan(self, program: RankFlow) -> None:
        """Accepts every compute graph, because serving engines need no tensor-parallel plan."""


class ReplayedPass(NamedTuple):
    """One pass of inference in a replay: the new and the cached tokens per sequence.

    new_tokens: new tokens per sequence.
    cached_tokens: tokens per sequence that earlier passes have cached.
    """

    new_tokens: int
    cached_tokens: int


class InferenceRun:
    """Replays the passes of a model, or of one rank of a layout (`RankModel`).

    A rank runs torch's tensor-parallel kernels. The input from another rank of a pipeline is received into a buffer,
    which is freed after the pass.

    repeats_by_stack: stack → repeats of its pattern that run; other stacks run whole (see `linear_in_layers`).
    workspace_bytes: bytes of the cuBLAS workspace that is allocated at the first product; default 0.
    memory_meter: counts or records the storages; default a meter without a device.
    pass_names: the names of the passes that have run: the phase, with a number where a prompt has several chunks.
    """

    def __init__(
        self,
        spec: ModelSpec,
        inference_config: InferenceConfig,
        repeats_by_stack: Mapping[int, int] | None = None,
        workspace_bytes: int = 0,
        memory_meter: Meter | EventRecorder | None = None,
    ) -> None:
        if spec.one_pass_model_name and inference_config.phase == "decode":
            raise InputError(f"{spec.one_pass_model_name} does not decode: it reads a sequence in one pass")
        self.spec: ModelSpec = spec
        self.inference_config: InferenceConfig = inference_config
        self.repeats_by_stack: dict[int, int] = dict(repeats_by_stack or {})
        self.workspace_bytes: int = workspace_bytes
        self.workspaces: list[Storage] = []
        self.pass_names: list[str] = []
        self.meter: Meter | EventRecorder = Meter() if memory_meter is None else memory_meter
        self.program: Flow = spec.shared_program
        self.caches_keys_and_values: bool = not spec.one_pass_model_name
        self.lowering: EagerKernels = self._create_lowering(AutogradGraph(self.meter))

    def _create_lowering(self, autograd_graph: AutogradGraph) -> EagerKernels:
        """Creates the object that runs the compute graph's operations with the chosen kernels."""
        autograd_graph.is_grad_enabled = False
        inference_config = self.inference_config
        run_config = self._run_config("prefill", ReplayedPass(inference_config.seq, 0))
        is_divided = isinstance(self.spec, RankModel) and self.spec.layout.tp > 1
        profile_class = ServingRankKernels if is_divided else EagerKernels
        lowering = profile_class(
            autograd_graph,
            run_config,
            DTYPES[inference_config.dtype],
            has_trained_weights=False,
            included_parts=inference_config.include,
            choices=inference_config.kernel_choices,
        )
        lowering.run_repeats_by_stack, lowering.has_block_pool = self.repeats_by_stack, inference_config.has_paged_cache
        return lowering

    def _run_config(self, phase: Phase, inference_pass: ReplayedPass) -> RunConfig:
        """Returns a pass's run config; a last prompt chunk of one token counts as a decoding step."""
        config = self.inference_config
        if inference_pass.cached_tokens and inference_pass.new_tokens == 1:
            phase = "decode"
        if not self.caches_keys_and_values:
            phase = "forward"
        source_tokens = config.seq if config.source_tokens is None else config.source_tokens
        workload = Workload(
            config.batch,
            inference_pass.new_tokens,
            context=inference_pass.cached_tokens,
            source=source_tokens,
            phase=phase,
        )
        return RunConfig(workload, execution=Execution(mla=config.latent_form))

    # --- the passes -------------------------------------------------------------------------------------------------

    @property
    def chunk_tokens(self) -> int:
        """The number of tokens per sequence in each prompt pass; the last pass may have fewer."""
        if self.inference_config.chunk_tokens is None or not self.caches_keys_and_values:
            return self.inference_config.seq
        return self.inference_config.chunk_tokens

    @property
    def chunk_count(self) -> int:
        """The number of prompt passes."""
        return -(-self.inference_config.seq // self.chunk_tokens)

    def prompt_chunk_pass(self, chunk_index: int) -> ReplayedPass:
        """Returns the pass over the prompt chunk with this index, which starts at 0."""
        earlier_tokens = chunk_index * self.chunk_tokens
        return ReplayedPass(min(self.chunk_tokens, self.inference_config.seq - earlier_tokens), earlier_tokens)

    def set_up(self) -> None:
        """Allocates the parameters in execution order and, for phase `decode`, the cache of the prompt."""
        self.meter.place = AllocationPlace("set-up")
        if self.inference_config.counts_weights:
            self._allocate_parameters(self.lowering)
        else:
            unmetered_lowering = self._create_lowering(AutogradGraph(NoMeter()))
            self._allocate_parameters(unmetered_lowering)
            self.lowering.weights = unmetered_lowering.weights
        if self.caches_keys_and_values:
            self.lowering.cached_tensors_by_path = {}
        if self.inference_config.phase == "decode":
            self.fill_cache(self.chunk_count)

    def _allocate_parameters(self, lowering: EagerKernels) -> None:
        """Allocates the parameters, which are the same for all sizes of the run."""
        inference_config, parameters_by_name = self.inference_config, _known_parameters.setdefault(self.program, {})
        parameter_key = (
            tuple(self.repeats_by_stack.items()),
            inference_config.dtype,
            inference_config.kernel_choices,
            inference_config.latent_form,
            inference_config.include,
        )
        lowering.known_parameters = parameters_by_name.get(parameter_key)
        lowering.allocate_parameters(self.program)
        assert lowering.known_parameters is not None
        parameters_by_name[parameter_key] = lowering.known_parameters

    def fill_cache(self, chunk_count: int) -> None:
        """Allocates the KV cache of the prompt's first chunks, without running the passes that compute it.

        All chunks between the first and the last run as one pass, which leaves the same cache.

        chunk_count: the number of chunks.
        """
        unmetered_lowering = self._create_lowering(AutogradGraph(NoMeter()))
        unmetered_lowering.weights, unmetered_lowering.cached_tensors_by_path = self.lowering.weights, {}
        first_pass, last_pass = self.prompt_chunk_pass(0), self.prompt_chunk_pass(chunk_count - 1)
        middle_passes = []
        if chunk_count > 2:
            middle_tokens = last_pass.cached_tokens - first_pass.new_tokens
            middle_passes.append(ReplayedPass(middle_tokens, first_pass.new_tokens))
        for prompt_chunk_pass in (first_pass, *middle_passes, *([last_pass] if chunk_count > 1 else [])):
            self._run_lowering(unmetered_lowering, "prefill", prompt_chunk_pass)
        with count_storages_as(self.meter, "cache"):
            self.lowering.cached_tensors_by_path = {}
            for cache_key, tensors in unmetered_lowering.cached_tensors_by_path.items():
                self.meter.parameter_path = cache_key
                self.lowering.cached_tensors_by_path[cache_key] = tuple(
                    tensor
                    if self.inference_config.has_paged_cache
                    else Tensor(tensor.shape, tensor.dtype, Storage(self.meter, tensor.storage.bytes), tensor.strides)
                    for tensor in tensors
                )
            self.meter.parameter_path = None

    def run_passes(self) -> None:
        """Runs the passes of the configured phase: the prompt passes or a decoding step."""
        if self.inference_config.phase != "decode":
            self.prefill()
        if self.inference_config.phase != "prefill" and self.caches_keys_and_values:
            self.decode()

    def prefill(self) -> None:
        """Runs the prompt passes; of more than `MAX_REPLAYED_CHUNKS` chunks, only the first and the last ones.

        A chunk needs more memory than the one before it.
        """
        chunk_count = self.chunk_count
        last_chunks_start = max(1, chunk_count - MAX_REPLAYED_CHUNKS + 1)
        for chunk_index in (0, *range(last_chunks_start, chunk_count)):
            if chunk_index == last_chunks_start > 1:
                self.lowering.cached_tensors_by_path = {}
                self.meter.place = AllocationPlace("between")
                self.fill_cache(chunk_index)
            self.run(
                "prefill",
                self.prompt_chunk_pass(chunk_index),
                f"prefill {chunk_index}" if chunk_count > 1 else "prefill",
            )

    def decode(self) -> None:
        """Runs one decoding step after the prompt."""
        self.run("decode", ReplayedPass(1, self.inference_config.seq))

    def run(self, phase: Literal["prefill", "decode"], inference_pass: ReplayedPass, pass_name: str = "") -> None:
        """Runs one pass, and frees the token ids and logits at the end.

        pass_name: name of the pass in places; default the phase.
        """
        self.pass_names.append(pass_name or phase)
        self.meter.place = AllocationPlace(pass_name or phase)
        if self.workspace_bytes and not self.workspaces:
            with count_storages_as(self.meter, "overhead"):
                self.workspaces.append(Storage(self.meter, self.workspace_bytes))
        self._run_lowering(self.lowering, phase, inference_pass)
        self.meter.place = AllocationPlace("after")

    def _run_lowering(
        self, lowering: EagerKernels, phase: Literal["prefill", "decode"], inference_pass: ReplayedPass
    ) -> None:
        """Replays one pass over new tokens. lowering: the object that runs the graph's operations as kernels."""
        config, inputs, memory_meter = self.inference_config, lowering.inputs, lowering.graph.meter
        lowering.run_config = self._run_config(phase, inference_pass)
        if self.spec.main.stem is None:
            inputs[TOKENS] = token_ids = empty(memory_meter, (config.batch, inference_pass.new_tokens), INT64)
            if self.spec.kind == "encoder":
                inputs[SOURCE_TOKENS] = token_ids
        if self.spec.kind != "decoder" and not inference_pass.cached_tokens:
            lowering.create_input_frames(self.program)
            if self.spec.kind == "encoder-decoder" and self.program.audio_frames is None:
                inputs[SOURCE_TOKENS] = empty(memory_meter, (config.batch, lowering.run_config.workload.source), INT64)
        received_input = lowering.create_stage_input(self.program)
        lowering.run(self.program)
        del received_input
        lowering.further_outputs = []
        inputs.clear()


_known_parameters: WeakKeyDictionary[Flow, dict[Hashable, ParameterSet]] = WeakKeyDictionary()
"""Cache: program → the parameters that its passes read, by the choices on which they depend."""

MAX_REPLAYED_CHUNKS = 4
"""The largest number of prompt chunks that are all replayed; of more chunks only the first and last are."""


def replay_inference(
    spec: ModelSpec,
    inference_config: InferenceConfig,
    device: MemoryAllocator | None = None,
    repeats_by_stack: Mapping[int, int] | None = None,
    workspace_bytes: int = 0,
) -> ReplayResult:
    """Replays the allocation of weights and the passes. Raises `UnsupportedKernel` for an operation without a kernel.

    In the result, `set_up` counts the weights, and the cache of the prompt if only a decoding step runs. `after` counts
    the cache: logits and token ids are freed. `peaks` lists several chunks of a prompt separately;
    `keep_highest_pass_of_phase` joins them.

    repeats_by_stack, workspace_bytes: as in `InferenceRun`.
    """
    memory_meter = Meter(device)
    inference_run = InferenceRun(spec, inference_config, repeats_by_stack, workspace_bytes, memory_meter)
    inference_run.set_up()
    replay_result = ReplayResult(set_up_bytes=memory_meter.live_bytes)
    memory_meter.peaks = {}
    inference_run.run_passes()
    replay_result.peaks = {
        allocation_place: peak
        for allocation_place, peak in memory_meter.peaks.items()
        if allocation_place.phase in inference_run.pass_names
    }
    replay_result.final_bytes = memory_meter.live_bytes
    if device is not None:
        replay_result.read_allocator(device, memory_meter.live_bytes, memory_meter.peak_bytes)
    return replay_result


def recording_key_of_rank(spec: RankModel, repeats_by_stack: Mapping[int, int]) -> Hashable:
    """Returns a cache key that is equal for ranks whose runs allocate the same memory with equal settings.

    repeats_by_stack: as in `InferenceRun`. Ranks whose layers differ in the number of repeats alone are the same, and
    so are the ranks of a tensor-parallel group, unless their parts of the vocabulary differ in length.
    """
    layout, rank_coordinates, program = spec.layout, spec.layout.coordinates(spec.rank), spec.program()
    assert isinstance(program, RankFlow)
    if program.divides_evenly:
        rank_coordinates = rank_coordinates._replace(tp=0, ep=0, etp=0)
    layer_names = [layer_name for _, stack in spec.stacks() for layer_name in stack.layer_names()]
    rank_layers = [sys.intern(layer_names[layer_index]) for layer_index in spec.chunks.layers]
    if len(spec.stacks()) == 1:
        rank_layers = shortened_layers(rank_layers, repeats_by_stack.get(0))
    return (
        *(
            layout.tp,
            layout.ep,
            layout.expert_tp,
            rank_coordinates.tp,
            rank_coordinates.ep,
            rank_coordinates.etp,
            spec.chunks.has_embedding,
            spec.chunks.has_head,
        ),
        *(tuple(repeats_by_stack.items()), *rank_layers),
    )


def record_inference(
    spec: ModelSpec,
    inference_config: InferenceConfig,
    repeats_by_stack: Mapping[int, int] | None = None,
    workspace_bytes: int = 0,
) -> RecordedEvents:
    """Records the allocations of set-up and passes of an `InferenceRun` for `RepeatAnalysis`."""
    memory_meter = EventRecorder()
    inference_run = InferenceRun(spec, inference_config, repeats_by_stack, workspace_bytes, memory_meter)
    inference_run.set_up()
    set_up_events = memory_meter.take_events()
    inference_run.run_passes()
    return RecordedEvents(set_up_events, [], [memory_meter.take_events()], inference_run.pass_names)
