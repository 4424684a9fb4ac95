"""The memory of each rank of a layout, and the rank that needs the most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import Any

from ..components.evidence import evidence_of_parts
from ..device_memory.cuda_runtime import CudaRuntime
from ..device_memory.device_memory import DeviceMemory, MemoryTerm, memory_with_evidence
from ..device_memory.estimate import Memory
from ..device_memory.host_memory import host_terms, paged_bytes
from ..device_memory.settings import Settings
from ..device_memory.simulated_run import default_attention
from ..errors import InputError
from ..evidence import Evidence
from ..frozen import frozen
from ..model import ModelSpec
from ..parallel.layout import Layout, stages
from ..parallel.messages import Message, rank_messages
from ..units import DTYPE_BITS
from ..workload.execution import AttentionImplementation
from ..workload.loaded_encoders import LoadedEncoders
from .framework import Framework, RunOnRanks
from .frozen_model import EncoderBytes, FrozenModel, SecondLoss, encoders_on_rank
from .inference_rank import check_inference_layout, inference_rank, rank_memory
from .nccl import with_nccl_buffers
from .registry import framework as framework_named

MAX_PASSES_OF_ALL_STAGES = 2560
"""Most layers times micro-batches for which a rank of every stage is replayed, if each pass is replayed."""

MAX_LAYERS_OF_ALL_STAGES = 256
"""Largest number of layers of a pipeline for which one rank of every stage is replayed."""


@frozen
class RankMemory:
    """The device memory of one rank of a layout.

    rank: number of the rank. stage: pipeline stage of the rank. device: memory of the rank's accelerator.
    """

    rank: int
    stage: int
    device: DeviceMemory


@frozen
class Cluster:
    """The memory of a model on the ranks of a parallel layout, under one framework."""

    run: RunOnRanks
    framework: Framework
    _replayed_ranks: dict[tuple[int, CudaRuntime], RankMemory] = field(default_factory=dict, repr=False, compare=False)
    _inference_ranks: dict[int, Memory] = field(default_factory=dict, repr=False, compare=False)

    @staticmethod
    def with_framework(
        memory_estimate: Memory,
        layout: Layout,
        framework: Framework | str,
        framework_version: str = "",
        framework_settings: Any = None,
        frozen_model: FrozenModel | SecondLoss | None = None,
        *,
        encoders: LoadedEncoders | None = None,
    ) -> Cluster:
        """Returns the memory of a layout's devices. framework: record or name.

        framework: a record or its name; other arguments as in `RunOnRanks`.
        """
        selected_framework = framework if isinstance(framework, Framework) else framework_named(framework)
        return Cluster(
            RunOnRanks(memory_estimate, layout, framework_version, framework_settings, frozen_model, encoders),
            selected_framework,
        )

    @property
    def memory(self) -> Memory:
        return self.run.memory

    @property
    def layout(self) -> Layout:
        return self.run.layout

    @property
    def version(self) -> str:
        return self.run.version

    @property
    def framework_settings(self) -> Any:
        """The framework-specific settings from a launch file; None without one."""
        return self.run.framework_settings

    @property
    def spec(self) -> ModelSpec:
        return self.memory.spec

    @property
    def settings(self) -> Settings:
        return self.memory.settings

    @property
    def trains(self) -> bool:
        """Whether the run is a training run."""
        return self.settings.phase == "training"

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """One rank of every pipeline stage and the last rank, or in a long pipeline the ranks that may need the most.

        A pipeline is long if its layers are more than `MAX_LAYERS_OF_ALL_STAGES`, or the passes of all its stages more
        than `MAX_PASSES_OF_ALL_STAGES` and each of them is replayed.
        """
        layer_count = self.spec.layer_count
        replayed_batches = self.micro_batches if self.framework.replays_every_micro_batch else 1
        is_long_replay = (
            layer_count > MAX_LAYERS_OF_ALL_STAGES or layer_count * replayed_batches > MAX_PASSES_OF_ALL_STAGES
        )
        return self.ranks_that_may_need_most if self.trains and is_long_replay else self._rank_of_each_stage

    @property
    def _rank_of_each_stage(self) -> tuple[int, ...]:
        """One rank of every pipeline stage, and the last of all ranks."""
        return tuple(
            sorted(
                {
                    *(self.layout.rank(pp=stage_index) for stage_index in range(self.layout.pp)),
                    self.layout.world_size - 1,
                }
            )
        )

    @property
    def unlisted_stages(self) -> list[int]:
        """The pipeline stages without a rank in `ranks`, which need no more memory than a listed stage."""
        listed_stages = {self.layout.coordinates(rank).pp for rank in self.ranks}
        return [stage_number for stage_number in range(self.layout.pp) if stage_number not in listed_stages]

    @cached_property
    def ranks_that_may_need_most(self) -> tuple[int, ...]:
        """The numbers of the ranks that may need the most device memory.

        A rank that comes later in the pipeline has no more micro-batches in flight than an earlier one. So apart from
        the first and the last of all, it needs no more than an earlier one with the same layers in each of its chunks,
        or with further ones. Under DualPipe micro-batches enter at both ends, so every rank may need the most.
        """
        if self.layout.is_bidirectional:
            return self._rank_of_each_stage
        layer_names = [layer_name for _, layer_stack in self.spec.stacks() for layer_name in layer_stack.layer_names()]
        layers: list[list[Counter[str]]] = [[] for _ in range(self.layout.pp)]
        for stage in stages(self.layout, len(layer_names)):
            layers[stage.pipeline_rank].append(Counter(layer_names[layer_index] for layer_index in stage.layers))
        middle_stages: list[int] = []
        for pp in range(1, self.layout.pp - 1):
            if not any(_covers_all_layers(layers[earlier_stage], layers[pp]) for earlier_stage in middle_stages):
                middle_stages.append(pp)
        rank_numbers = {self.layout.rank(pp=pp) for pp in (0, *middle_stages, self.layout.pp - 1)}
        return tuple(sorted({*rank_numbers, self.layout.world_size - 1}))

    def memory_of_ranks(self, cuda_runtime: CudaRuntime) -> tuple[RankMemory, ...]:
        """Returns the memory of each rank in `ranks` on an accelerator with a CUDA runtime.

        Raises `InputError` for what the framework does not have or is not modelled.
        """
        return tuple(self.rank_memory(rank, cuda_runtime) for rank in self.ranks)

    def rank_memory(self, rank: int, cuda_runtime: CudaRuntime) -> RankMemory:
        """Returns the memory of one rank, from a cached replay."""
        if (rank, cuda_runtime) not in self._replayed_ranks:
            self._replayed_ranks[rank, cuda_runtime] = self._replay(rank, cuda_runtime)
        return self._replayed_ranks[rank, cuda_runtime]

    def tensor_bytes(self, rank: int, cuda_runtime: CudaRuntime) -> int:
        """Returns a rank's tensor bytes at the peak in training; 0 if only a replay can compute them."""
        framework = self.framework
        return framework.tensor_bytes(self.run, rank, cuda_runtime) if self.trains and framework.tensor_bytes else 0

    def inference_rank(self, rank: int) -> Memory:
        """Returns the memory of one rank of an inference run, on the run's accelerator, from a cache.

        Raises `InputError` as `inference_rank.inference_rank` does.
        """
        if rank not in self._inference_ranks:
            self._inference_ranks[rank] = inference_rank(self.memory, self.layout, rank, self.memory.cuda_runtime)
        return self._inference_ranks[rank]

    def _replay(self, rank: int, cuda_runtime: CudaRuntime) -> RankMemory:
        """Returns the memory of one rank by a replay, plus NCCL's buffers and models that do not train."""
        if self.trains:
            memory = self.framework.rank_memory(self.run, rank, cuda_runtime)
            memory = replace(memory, host_terms=(*memory.host_terms, *self._host_terms))
        else:
            check_inference_layout(self.layout, self.framework)
            memory = rank_memory(replace(self.inference_rank(rank), cuda_runtime=cuda_runtime))
        memory = with_nccl_buffers(memory, self.layout, self.framework, cuda_runtime, self.settings.torch or "")
        memory = memory_with_evidence(memory, self.evidence)
        stage_index, run_memory = self.layout.coordinates(rank).pp, memory
        added_parts: list[FrozenModel | SecondLoss | EncoderBytes] = (
            [] if self.run.frozen_model is None else [*self.run.frozen_model.parts]
        )
        if self.trains and stage_index == 0:
            added_parts += encoders_on_rank(self.memory, self.layout, self.run.encoders, self.run.frozen_model)
        for added_part in added_parts:
            memory = _with_added_bytes(memory, added_part, added_part.additional_bytes(self.memory, run_memory))
        return RankMemory(rank, stage_index, memory)

    @cached_property
    def _host_terms(self) -> tuple[MemoryTerm, ...]:
        """The host memory of a run with data parallelism alone, such as offloaded activations."""
        has_host_memory = self.settings.offload_activations or paged_bytes(self.memory.states)
        if self.layout.dp < self.layout.world_size or not has_host_memory:
            return ()
        training_config = self.memory.training()
        host_memory_terms = host_terms(self.spec, self.memory.states, training_config, training_config.layer_period)
        if self.layout.world_size == 1:
            return host_memory_terms
        return host_memory_terms[: int(training_config.offloads_activations)]

    @cached_property
    def evidence(self) -> list[Evidence]:
        """The tests and measurements behind the results: of the run's components, kernels, settings and framework."""
        memory_use = self.memory.states
        framework_evidence = self.framework.evidence_for(self.layout, self.trains)
        optimizer_name = None if memory_use.optimizer is None else memory_use.optimizer.name
        evidence = framework_evidence.run(
            evidence_of_parts(self.spec, memory_use.parameter_count.include), optimizer_name
        )
        return evidence if framework_evidence.has_own_kernels else [*evidence, *self.memory.evidence(self.attention)]

    @property
    def by_rank(self) -> tuple[RankMemory, ...]:
        """The memory of each rank in `ranks` on the run's accelerator."""
        return self.memory_of_ranks(self.memory.cuda_runtime)

    @property
    def device_rank(self) -> RankMemory:
        """The rank that needs the most device memory."""
        return rank_with_most_memory(self.by_rank)

    @property
    def peak_rank(self) -> RankMemory:
        """The rank with the largest peak of allocated bytes, which may reserve fewer bytes than another rank."""
        return max(self.by_rank, key=lambda rank: (rank.device.peak_bytes, -rank.rank))

    @cached_property
    def reserved_bytes_range(self) -> tuple[int, int] | None:
        """The reserved bytes of the largest rank, without and with expandable segments of the allocator.

        None where the allocator's setting is given.
        """
        if self.settings.allocator is not None:
            return None
        expandable_rank = self.rank_memory(
            self.device_rank.rank, replace(self.memory.cuda_runtime, has_expandable_segments=True)
        )
        return self.device_rank.device.reserved_bytes, expandable_rank.device.reserved_bytes

    @property
    def attention(self) -> AttentionImplementation:
        """The name of the attention implementation."""
        if self.trains:
            return attention_implementation_of(self.memory, self.framework)
        return self.inference_rank(0).attention

    @property
    def micro_batches(self) -> int:
        """The number of micro-batches in a training step of one replica."""
        microbatches_of_file = getattr(self.framework_settings, "microbatches", None)
        return microbatches_of_file or self.settings.num_microbatches or 1

    @cached_property
    def messages(self) -> list[Message] | None:
        """The collective messages of the largest rank in a training step; None if messages are not modelled."""
        if not self.trains:
            return None
        try:
            return self.messages_of_rank(self.device_rank.rank)
        except InputError:
            return None

    def messages_of_rank(self, rank: int) -> list[Message]:
        """Returns the collective messages of a rank in a step. Raises `InputError` for a run that is not modelled."""
        if self.framework.messages_of_rank is not None:
            messages = self.framework.messages_of_rank(self.run, rank)
            if messages is not None:
                return messages
        gradient_rules, memory_use = self.framework.gradient_rules(), self.memory.states
        return rank_messages(
            self.spec,
            self.layout,
            memory_use.workload,
            gradient_rules,
            self.micro_batches,
            rank,
            element_bytes=DTYPE_BITS[memory_use.dtype] // 8,
            extra_parts=memory_use.parameter_count.include,
            recompute=self.settings.recompute_choice(),
        )


def _with_added_bytes(
    device_memory: DeviceMemory, frozen_model: FrozenModel | SecondLoss | EncoderBytes, frozen_bytes: int
) -> DeviceMemory:
    """Returns a device's memory plus the bytes of a frozen model or an encoder, added at every point in time."""

    def with_frozen_bytes(bytes_by_kind: Mapping[str, int]) -> dict[str, int]:
        return {**bytes_by_kind, frozen_model.kind: bytes_by_kind.get(frozen_model.kind, 0) + frozen_bytes}

    tensors_term, *other_terms = device_memory.terms
    return replace(
        device_memory,
        exact_bytes=device_memory.exact_bytes + frozen_bytes,
        peak_bytes=device_memory.peak_bytes + frozen_bytes,
        after_step_bytes=device_memory.after_step_bytes + frozen_bytes,
        reserved_bytes=device_memory.reserved_bytes + frozen_bytes,
        device_bytes=device_memory.device_bytes + frozen_bytes,
        peak_at=device_memory.peak_at._replace(bytes=device_memory.peak_at.bytes + frozen_bytes),
        by_kind=with_frozen_bytes(device_memory.by_kind),
        timeline=tuple(
            timeline_point._replace(bytes=timeline_point.bytes + frozen_bytes)
            for timeline_point in device_memory.timeline
        ),
        moments={
            moment_name: with_frozen_bytes(bytes_by_kind)
            for moment_name, bytes_by_kind in device_memory.moments.items()
        },
        terms=(
            tensors_term,
            MemoryTerm(frozen_model.name, frozen_bytes, "estimate", frozen_model.source),
            *other_terms,
        ),
    )


def _covers_all_layers(layers_by_chunk: list[Counter[str]], smaller_chunks: list[Counter[str]]) -> bool:
    """Whether every pipeline chunk contains the layers of the chunk with its index in `smaller_chunks`."""
    return all(layers >= smaller_layers for layers, smaller_layers in zip(layers_by_chunk, smaller_chunks, strict=True))


def attention_implementation_of(memory_estimate: Memory, framework: Framework) -> AttentionImplementation:
    """Returns the attention implementation: the requested one, or the framework's default."""
    requested_attention = memory_estimate.settings.attn_implementation
    return (
        requested_attention
        or framework.default_attention
        or default_attention(memory_estimate.settings, memory_estimate.spec)
    )


def rank_with_most_memory(rank_memories: Sequence[RankMemory]) -> RankMemory:
    """Returns the memory of the first rank that needs the most device memory."""
    return max(rank_memories, key=lambda rank: (rank.device.device_bytes, -rank.rank))
