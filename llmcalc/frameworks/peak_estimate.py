"""Estimates a rank's peak memory from a micro-batch's saved activations and peaks, without an allocator.

A stage of many equal layers is measured with a few, since bytes are linear in their number. Stages that differ only in
this number share a measurement, and so do layouts that divide experts or replicas in other ways.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import NamedTuple, TypeAlias

from ..algebra import Number, ceil_div, exact_div, times
from ..costs.params import total_params_of
from ..costs.trained_tensors import is_in_layer, packed_bytes
from ..device_memory.estimate import Memory
from ..device_memory.optimizers.registry import optimizer
from ..errors import InputError
from ..flow.program import ModuleScope
from ..flow.tree import CountedOp, NodePosition
from ..frozen import frozen
from ..model import ModelSpec
from ..ops import ExpertLinear
from ..parallel.layout import Layout, Stage, stages
from ..parallel.rank_program import cached_rank_program, representative_stage
from ..parallel.schedule_formulas import peak_in_flight
from ..parallel.schedules import check_micro_batches
from ..simulator.layer_pattern import find_layer_pattern, types_of_layers
from ..simulator.layer_stacks import SHORT_RUN_REPEATS
from .transient_bytes import StageParameterCounts, TransientBytes, TransientBytesOfRank, no_transient_bytes

STACK_NAMES = "encoder", "decoder"
"""Names of the two layer stacks of an encoder-decoder."""


def is_layer_path(module_path: str) -> bool:
    """Whether a module is a layer of the model or inside a layer. module_path: the module's path."""
    return "layers" in module_path.split(".")


class PeakByPath(NamedTuple):
    """The peak bytes of a forward or backward pass, by the path of the running module.

    With more layers each peak grows by itself: the highest peak of a short run need not be that of a long one.
    """

    bytes_by_path: Mapping[str, int]

    def with_more_layers(self, longer_peak: PeakByPath, added_layers: int) -> PeakByPath:
        """Extrapolates the peak bytes to `added_layers` more layers. longer_peak: peak bytes with one more layer."""
        bytes_by_path = longer_peak.bytes_by_path
        return PeakByPath(
            {
                module_path: peak + added_layers * (bytes_by_path.get(module_path, peak) - peak)
                for module_path, peak in self.bytes_by_path.items()
            }
        )

    def plus_bytes(self, added_bytes: int) -> PeakByPath:
        """Returns the peak bytes after adding the same number of bytes to every module's peak."""
        return PeakByPath({module_path: peak + added_bytes for module_path, peak in self.bytes_by_path.items()})


@frozen
class MicroBatchBytes:
    """The saved and peak bytes of one micro-batch's passes through a pipeline stage.

    saved_bytes: bytes saved between the forward and the backward pass.
    forward_peaks: peaks of the forward pass.
    backward_peaks: peaks of the backward pass.
    received_bytes: receive buffers of the micro-batch, which stay from the first step on.
    extra_gradient_elements: elements by which whole gradients exceed their divided weights.
    """

    saved_bytes: int
    forward_peaks: PeakByPath
    backward_peaks: PeakByPath
    received_bytes: int = 0
    extra_gradient_elements: int = 0

    @cached_property
    def layer_forward_peak(self) -> int:
        """The peak bytes of the layers' forward pass."""
        return max(
            (peak for module_path, peak in self.forward_peaks.bytes_by_path.items() if is_layer_path(module_path)),
            default=0,
        )

    @cached_property
    def loss_peak(self) -> int:
        """The peak bytes around the loss: in the forward pass outside the layers, and in the loss's backward pass."""
        peaks_outside_layers = (
            peak for module_path, peak in self.forward_peaks.bytes_by_path.items() if not is_layer_path(module_path)
        )
        return max(self.backward_peaks.bytes_by_path.get("loss", 0), *peaks_outside_layers, 0)

    @cached_property
    def bytes_saved_between_layers_and_head(self) -> int:
        """Bytes saved between the last layer and the output head, in the forward or the backward pass."""
        return min(self.saved_bytes, self.forward_peaks.bytes_by_path.get("norm", self.saved_bytes))

    @cached_property
    def head_backward_peak(self) -> int:
        """The peak bytes of the backward pass in modules outside the layers, without the loss."""
        peaks_by_path = self.backward_peaks.bytes_by_path.items()
        return max(
            (
                peak
                for module_path, peak in peaks_by_path
                if module_path not in ("", "loss") and not is_layer_path(module_path)
            ),
            default=0,
        )

    @cached_property
    def backward_peak_outside_modules(self) -> int:
        """The peak bytes of the backward pass outside all modules, as for the embedding's gradient."""
        return self.backward_peaks.bytes_by_path.get("", 0)

    @cached_property
    def layer_backward_peak(self) -> int:
        """The peak bytes of the layers' backward pass."""
        return max(
            (peak for module_path, peak in self.backward_peaks.bytes_by_path.items() if is_layer_path(module_path)),
            default=0,
        )

    def with_more_layers(self, longer_run: MicroBatchBytes, added_layers: int) -> MicroBatchBytes:
        """Extrapolates a micro-batch's bytes to `added_layers` more layers. longer_run: bytes with one more layer."""
        return MicroBatchBytes(
            self.saved_bytes + added_layers * (longer_run.saved_bytes - self.saved_bytes),
            self.forward_peaks.with_more_layers(longer_run.forward_peaks, added_layers),
            self.backward_peaks.with_more_layers(longer_run.backward_peaks, added_layers),
            self.received_bytes + added_layers * (longer_run.received_bytes - self.received_bytes),
            self.extra_gradient_elements
            + added_layers * (longer_run.extra_gradient_elements - self.extra_gradient_elements),
        )


class BytesPerParameter(NamedTuple):
    """Bytes per parameter of weights, gradients and optimizer states.

    weights: of the weights.
    gradients: of the gradients.
    optimizer: of the master weights and the optimizer states.
    adamw_extra_bytes: with Muon, how many more bytes of states a parameter has that AdamW updates, since it is no
        matrix in a layer; 0 by default.
    """

    weights: float
    gradients: float
    optimizer: float
    adamw_extra_bytes: float = 0


def padded_parameter_count(shard_count: int, counted_op: CountedOp) -> Number:
    """Returns the number of parameters, with rows padded to a multiple of the shards."""
    parameter_count = counted_op.params()
    if not parameter_count:
        return 0
    padded_tensors = (
        (tensor, ceil_div(tensor.shape[0], shard_count) * shard_count)
        for tensor in counted_op.tensors()
        if tensor.shape
    )
    return parameter_count + sum(
        exact_div(times(tensor.size, padded_rows - tensor.shape[0]), tensor.shape[0])
        for tensor, padded_rows in padded_tensors
    )


def distinct_micro_batch_count(layout: Layout, micro_batch_count: int) -> int:
    """Returns a small number of micro-batches with the same peak, since the pipeline schedule repeats."""
    schedule_period = 2 * layout.pp * layout.vpp
    return (
        micro_batch_count if micro_batch_count <= schedule_period else schedule_period + micro_batch_count % layout.pp
    )


FEWEST_EXTRAPOLATED = 2 * SHORT_RUN_REPEATS + 2
"""Fewest repeats of a mixed layer pattern that two shorter runs represent; fewer repeats are all run.

Stages with more repeats are measured as a stage with so many, where the repeats are at its open end.
"""

MeasurePasses: TypeAlias = Callable[[Layout, Stage, Sequence[int | None]], Sequence[MicroBatchBytes]]
"""Measures a micro-batch's passes through a stage, once per number of repeats of the stage's layer pattern.

The largest number comes first; None stands for all layers of the stage.
"""


class PassMeasurements(NamedTuple):
    """Measured bytes of passes, which an equal `PeakEstimate` in another process can take over.

    passes_by_key: key of a stage → the bytes of its passes.
    saved_bytes_by_layer: kind of a layer → the bytes that a micro-batch saves there.
    """

    passes_by_key: dict[tuple[object, ...], tuple[MicroBatchBytes, ...]]
    saved_bytes_by_layer: dict[tuple[object, ...], int]


@dataclass
class PeakEstimate:
    """Estimates the peak bytes of ranks in parallel layouts of one model.

    spec: the model.
    bytes_per_parameter: bytes per parameter.
    measure_passes: measures the passes of a micro-batch.
    included_parts: optional parts of the model that the run has; none by default.
    fixed_bytes: bytes of every rank, such as the CUDA context and workspaces; 0 by default.
    transient_bytes: counts gathered parameters, reduction buffers and the optimizer's step; none by default.
    frees_gradients: whether gradients are freed between steps; false by default.
    pads_shards: whether shards are equally many rows of every tensor, rounded up (FSDP2); false by default.
    """

    spec: ModelSpec
    bytes_per_parameter: BytesPerParameter
    measure_passes: MeasurePasses
    included_parts: frozenset[str] = frozenset()
    fixed_bytes: int = 0
    transient_bytes: TransientBytesOfRank = no_transient_bytes
    frees_gradients: bool = False
    pads_shards: bool = False
    _passes_by_key: dict[tuple[object, ...], tuple[MicroBatchBytes, ...]] = field(default_factory=dict)
    _parameters_by_stage: dict[tuple[object, ...], StageParameterCounts] = field(default_factory=dict)
    _parameters_by_layer: dict[tuple[object, ...], StageParameterCounts] = field(default_factory=dict)
    _bytes_of_stages: dict[tuple[object, ...], MicroBatchBytes] = field(default_factory=dict)
    _saved_bytes_by_layer: dict[tuple[object, ...], int] = field(default_factory=dict)
    _layer_runs_by_stage: dict[range, tuple[object, ...]] = field(default_factory=dict)
    _static_bytes_by_layout: dict[Layout, list[int]] = field(default_factory=dict)
    _layout_of_peaks: tuple[Layout, int] | None = None
    _peaks_by_rank: dict[int, int] = field(default_factory=dict)

    @cached_property
    def layer_count(self) -> int:
        """Number of layers in all stacks of the model."""
        return self.spec.layer_count

    @cached_property
    def layer_kinds(self) -> list[ModuleScope]:
        """The type of each layer of the model, the encoder's layers first."""
        root = self.spec.shared_program.root
        parent_scopes = [
            root,
            *(
                root_item
                for root_item in root.items
                if isinstance(root_item, ModuleScope) and root_item.name in STACK_NAMES
            ),
        ]
        stack_layers = [
            [
                root_item
                for root_item in stack_scope.items
                if isinstance(root_item, ModuleScope) and root_item.name == "layers"
            ]
            for stack_scope in parent_scopes
        ]
        return [layer_kind for scopes in stack_layers if scopes for layer_kind in types_of_layers(scopes)]

    def take_over_parameter_counts(self, other_estimate: PeakEstimate) -> None:
        """Takes over the counted parameters and static bytes of another `PeakEstimate` for the same model."""
        if self.spec is other_estimate.spec and (self.bytes_per_parameter, self.included_parts, self.pads_shards) == (
            other_estimate.bytes_per_parameter,
            other_estimate.included_parts,
            other_estimate.pads_shards,
        ):
            self._parameters_by_stage = other_estimate._parameters_by_stage
            self._parameters_by_layer = other_estimate._parameters_by_layer
            self._static_bytes_by_layout = other_estimate._static_bytes_by_layout

    def measurements(self) -> PassMeasurements:
        """Returns a copy of all measurements so far."""
        return PassMeasurements(dict(self._passes_by_key), dict(self._saved_bytes_by_layer))

    def measurements_since(self, earlier_measurements: PassMeasurements) -> PassMeasurements:
        """Returns the measurements made since `earlier_measurements`, a copy of this estimate's measurements."""
        return PassMeasurements(
            {
                measurement_key: micro_batch_bytes
                for measurement_key, micro_batch_bytes in self._passes_by_key.items()
                if measurement_key not in earlier_measurements.passes_by_key
            },
            {
                layer_kind: saved_bytes
                for layer_kind, saved_bytes in self._saved_bytes_by_layer.items()
                if earlier_measurements.saved_bytes_by_layer.get(layer_kind) != saved_bytes
            },
        )

    def add_measurements(self, measurements: PassMeasurements) -> None:
        """Adds the measurements that a copy of this estimate has made in another process."""
        self._passes_by_key |= measurements.passes_by_key
        self._saved_bytes_by_layer |= measurements.saved_bytes_by_layer

    def lower_bound_bytes(self, layout: Layout, micro_batch_count: int = 0) -> int:
        """Returns a lower bound of the largest rank's bytes: weights, gradients and optimizer states.

        micro_batch_count: micro-batches of a step; the first rank also saves layers whose bytes are already measured.
            0 (default) for bytes of any run.
        """
        bytes_by_rank = self._static_bytes_of_pipeline_ranks(layout)
        first_rank_bytes = bytes_by_rank[0]
        if micro_batch_count and not self.frees_gradients and layout.schedule in ("1f1b", "interleaved"):
            first_rank_stages = [stage for stage in stages(layout, self.layer_count) if stage.pipeline_rank == 0]
            saved_bytes = [self._saved_bytes_lower_bound(layout, stage) for stage in first_rank_stages]
            if any(saved_bytes):
                distinct_microbatch_count = distinct_micro_batch_count(layout, micro_batch_count)
                first_rank_bytes += peak_in_flight(layout, distinct_microbatch_count, 0, saved_bytes)[0]
        return self.fixed_bytes + max(first_rank_bytes, *bytes_by_rank)

    def _static_bytes_of_pipeline_ranks(self, layout: Layout) -> list[int]:
        """Returns the bytes of weights, gradients and optimizer states of each rank of a pipeline."""
        if layout not in self._static_bytes_by_layout:
            rank_bytes, bytes_by_stage_kind = [0] * layout.pp, dict[tuple[object, ...], int]()
            for stage in stages(layout, self.layer_count):
                stage_kind = self._layer_kind_runs(stage), stage.has_embedding, stage.has_head
                if stage_kind not in bytes_by_stage_kind:
                    bytes_by_stage_kind[stage_kind] = self.static_bytes(layout, stage)
                rank_bytes[stage.pipeline_rank] += bytes_by_stage_kind[stage_kind]
            self._static_bytes_by_layout[layout] = rank_bytes
        return self._static_bytes_by_layout[layout]

    def _saved_bytes_lower_bound(self, layout: Layout, stage: Stage) -> int:
        """Returns a lower bound of the bytes that a micro-batch saves in a stage, from already measured layers."""
        activation_shape = _activation_shape(layout)
        return sum(
            self._saved_bytes_by_layer.get((*activation_shape, id(self.layer_kinds[layer_index])), 0)
            for layer_index in stage.layers
        )

    def largest_rank_bytes(self, layout: Layout, micro_batch_count: int) -> int:
        """Returns the peak bytes of the rank that needs the most memory."""
        return max(self.peaks_by_stage(layout, micro_batch_count))

    def exceeds(self, layout: Layout, micro_batch_count: int, is_too_large: Callable[[int], bool]) -> bool:
        """Whether the peak bytes of any rank are too large. Measures no more stages than the answer needs.

        Ranks whose stages are measured already come first.
        """
        sorted_ranks = sorted(
            self._distinct_ranks(layout, micro_batch_count).items(),
            key=lambda rank_and_stages: any(
                self._measurement_key(layout, stage) not in self._passes_by_key for stage in rank_and_stages[1]
            ),
        )
        return any(
            is_too_large(self._rank_peak(layout, rank_and_stages, rank_stages, micro_batch_count))
            for rank_and_stages, rank_stages in sorted_ranks
        )

    def peaks_by_stage(self, layout: Layout, micro_batch_count: int) -> list[int]:
        """Returns the peak bytes of the first rank of each pipeline stage.

        A rank with the layers of the rank before has no more micro-batches in flight. In a schedule with one direction
        it has that rank's peak here, which is no smaller than its own.
        """
        distinct_ranks, stage_peaks = self._distinct_ranks(layout, micro_batch_count), list[int]()
        for rank in range(layout.pp):
            rank_stages = distinct_ranks.get(rank)
            stage_peaks.append(
                stage_peaks[-1]
                if rank_stages is None
                else self._rank_peak(layout, rank, rank_stages, micro_batch_count)
            )
        return stage_peaks

    def _distinct_ranks(self, layout: Layout, micro_batch_count: int) -> dict[int, list[Stage]]:
        """Returns pipeline rank → stages, without ranks whose peak equals the previous rank's."""
        check_micro_batches(layout, distinct_micro_batch_count(layout, micro_batch_count))
        stages_by_rank: list[list[Stage]] = [[] for _ in range(layout.pp)]
        for stage in stages(layout, self.layer_count):
            stages_by_rank[stage.pipeline_rank].append(stage)
        if layout.is_bidirectional:  # the second half of the micro-batches enters at the last rank
            stages_by_rank = [
                [*rank_stages, *stages_by_rank[layout.pp - 1 - rank]] for rank, rank_stages in enumerate(stages_by_rank)
            ]
        distinct_ranks: dict[int, list[Stage]] = {}
        previous_key: tuple[object, ...] = ()
        for rank, rank_stages in enumerate(stages_by_rank):
            are_all_in_flight = micro_batch_count <= layout.pp - rank
            rank_key = (
                are_all_in_flight,
                *((self._layer_kind_runs(stage), stage.has_embedding, stage.has_head) for stage in rank_stages),
            )
            if rank_key != previous_key or layout.schedule not in ("1f1b", "interleaved"):
                distinct_ranks[rank] = rank_stages
            previous_key = rank_key
        return distinct_ranks

    def _measurement_key(self, layout: Layout, stage: Stage) -> tuple[object, ...]:
        """Returns the cache key of a stage's measured bytes; stages with the same key have the same bytes."""
        first_layer, end_layer, _ = self._measured_layers(stage)
        return (
            *_activation_shape(layout),
            tuple(map(id, self.layer_kinds[first_layer:end_layer])),
            stage.has_embedding,
            stage.has_head,
        )

    def _rank_peak(self, layout: Layout, rank: int, rank_stages: list[Stage], micro_batch_count: int) -> int:
        """Returns the peak bytes of a rank, cached until another layout is estimated."""
        layout_run = layout, micro_batch_count
        if layout_run != self._layout_of_peaks:
            self._layout_of_peaks, self._peaks_by_rank = layout_run, {}
        if rank not in self._peaks_by_rank:
            self._peaks_by_rank[rank] = self._compute_rank_peak(layout, rank, rank_stages, micro_batch_count)
        return self._peaks_by_rank[rank]

    def _compute_rank_peak(self, layout: Layout, rank: int, rank_stages: list[Stage], micro_batch_count: int) -> int:
        """Returns the peak bytes of a rank: the largest of four moments of a training step.

        The moments are the peak of a pass, the end of a backward pass, the reduction of gradients and the optimizer's
        step. The peak of a pass comes with the most micro-batches in flight, whose saved bytes include its own.
        """
        bytes_by_chunk = [self.micro_batch_bytes(layout, stage) for stage in rank_stages]
        saved_bytes, in_flight_counts = peak_in_flight(
            layout,
            distinct_micro_batch_count(layout, micro_batch_count),
            rank,
            [chunk_bytes.saved_bytes for chunk_bytes in bytes_by_chunk],
        )
        stage_parameters = [
            self.stage_parameters(layout, stage)._replace(extra_gradient_elements=chunk_bytes.extra_gradient_elements)
            for stage, chunk_bytes in zip(rank_stages, bytes_by_chunk, strict=True)
        ]
        transient_bytes = self.transient_bytes(layout, stage_parameters, micro_batch_count)
        chunk_peaks = [
            _pass_peaks(chunk_bytes, stage, transient_bytes, micro_batch_count)
            for chunk_bytes, stage in zip(bytes_by_chunk, rank_stages, strict=True)
        ]
        keeps_all_microbatches = in_flight_counts.awaiting_backward == (micro_batch_count,) and (
            layout.pp == 1 or layout.zero == 0
        )
        if self.frees_gradients and keeps_all_microbatches:
            pass_peak = self._first_backward_peak(layout, rank_stages[0], bytes_by_chunk[0], chunk_peaks[0])
        else:
            pass_peak = max(
                max(stage_peaks) - chunk_bytes.saved_bytes
                for stage_peaks, chunk_bytes, in_flight_count in zip(
                    chunk_peaks, bytes_by_chunk, in_flight_counts.awaiting_backward, strict=True
                )
                if in_flight_count
            )
        static_bytes = self._static_bytes_of_pipeline_ranks(layout)[rank]
        if layout.is_bidirectional:
            static_bytes += self._static_bytes_of_pipeline_ranks(layout)[layout.pp - 1 - rank]
        received_bytes = micro_batch_count * sum(chunk_bytes.received_bytes for chunk_bytes in bytes_by_chunk)
        bytes_by_moment = (
            saved_bytes + pass_peak + transient_bytes.during_passes,
            saved_bytes
            - min(chunk_bytes.saved_bytes for chunk_bytes in bytes_by_chunk)
            + max(transient_bytes.backward_end, transient_bytes.forward_start),
            transient_bytes.gradient_reduction,
            transient_bytes.optimizer_step,
        )
        return self.fixed_bytes + static_bytes + received_bytes + transient_bytes.whole_step + max(bytes_by_moment)

    def _first_backward_peak(
        self, layout: Layout, stage: Stage, pass_bytes: MicroBatchBytes, pass_peaks: tuple[int, int, int]
    ) -> int:
        """Returns the peak bytes of the first backward pass of a step, which starts without gradients.

        The gradients of the head come first, those of the first layer last.
        """
        parameters, (forward_peak, head_peak, layer_peak) = self.stage_parameters(layout, stage), pass_peaks
        gradient_bytes = self.static_bytes(layout, stage, counts_only_gradients=True)
        head_elements = min(parameters.outside_layers, parameters.largest_tensor)
        head_gradient_bytes = round(gradient_bytes * head_elements / parameters.total)
        first_layer_peak = layer_peak - pass_bytes.saved_bytes
        last_layer_peak = max(head_peak, layer_peak) - gradient_bytes + head_gradient_bytes
        return max(forward_peak - gradient_bytes, last_layer_peak, first_layer_peak) - pass_bytes.saved_bytes

    def static_bytes(self, layout: Layout, stage: Stage, counts_only_gradients: bool = False) -> int:
        """Returns a stage's bytes of weights, gradients and optimizer states, or of the gradients alone."""
        parameters = self.stage_parameters(layout, stage)
        weight_bytes, gradient_bytes, optimizer_bytes, adamw_extra_bytes = self.bytes_per_parameter
        if counts_only_gradients:
            weight_bytes = optimizer_bytes = adamw_extra_bytes = 0
        static_bytes = adamw_extra_bytes * (parameters.outside_layers + parameters.experts)
        for parameter_count, shard_count in (
            (parameters.dense, layout.shard_count),
            (parameters.experts, layout.expert_shard_count),
        ):
            static_bytes += parameter_count * weight_bytes / (shard_count if layout.zero == 3 else 1)
            static_bytes += parameter_count * gradient_bytes / (shard_count if layout.zero >= 2 else 1)
            static_bytes += parameter_count * optimizer_bytes / (shard_count if layout.zero >= 1 else 1)
        return round(static_bytes)

    def stage_parameters(self, layout: Layout, stage: Stage) -> StageParameterCounts:
        """Returns the parameter counts of a pipeline stage on one rank."""
        expert_tp = layout.expert_tp
        shard_count = layout.shard_count if self.pads_shards and layout.zero == 3 else 1
        cache_key = (
            layout.tp,
            expert_tp,
            shard_count,
            self._layer_kind_runs(stage),
            stage.has_embedding,
            stage.has_head,
        )
        if cache_key not in self._parameters_by_stage:
            expert_layout = replace(layout, dp=expert_tp, cp=1, ep=1, etp=expert_tp, zero=0, hsdp_replicas=1)
            self._parameters_by_stage[cache_key] = self._count_parameters(expert_layout, stage, shard_count)
        parameter_counts = self._parameters_by_stage[cache_key]
        return parameter_counts._replace(
            dense=parameter_counts.dense - parameter_counts.experts, experts=parameter_counts.experts // layout.ep
        )

    def _count_parameters(self, layout: Layout, stage: Stage, shard_count: int) -> StageParameterCounts:
        """Counts a pipeline stage's parameters; the count `dense` includes the routed experts.

        Layers of one kind have equal counts, so one of each kind is recorded, and one with each end of the model.
        """
        if (stage.has_embedding and stage.has_head) or len(stage.layers) < 2:
            return self._count_recorded_parameters(layout, stage, shard_count)
        end_layer = stage.layers[-1] if stage.has_head else stage.layers[0]
        counts_and_layers = [(self._count_layer(layout, stage, end_layer, shard_count), 1)]
        other_kinds = Counter(
            id(self.layer_kinds[layer_index]) for layer_index in stage.layers if layer_index != end_layer
        )
        middle_stage = stage._replace(has_embedding=False, has_head=False)
        for layer_index in stage.layers:
            layer_count = other_kinds.pop(id(self.layer_kinds[layer_index]), 0)
            if layer_count:
                counts_and_layers.append(
                    (self._count_layer(layout, middle_stage, layer_index, shard_count), layer_count)
                )
        return StageParameterCounts(
            dense=sum(layer_count * parameter_counts.dense for parameter_counts, layer_count in counts_and_layers),
            experts=sum(layer_count * parameter_counts.experts for parameter_counts, layer_count in counts_and_layers),
            outside_layers=counts_and_layers[0][0].outside_layers,
            largest_layer=max(parameter_counts.largest_layer for parameter_counts, _ in counts_and_layers),
            largest_tensor=max(parameter_counts.largest_tensor for parameter_counts, _ in counts_and_layers),
            largest_layer_tensor=max(
                parameter_counts.largest_layer_tensor for parameter_counts, _ in counts_and_layers
            ),
            largest_dense_layer_tensor=max(
                parameter_counts.largest_dense_layer_tensor for parameter_counts, _ in counts_and_layers
            ),
        )

    def _count_layer(self, layout: Layout, stage: Stage, layer_index: int, shard_count: int) -> StageParameterCounts:
        """Counts the parameters of one layer, and of the embedding or the head if the pipeline stage has them."""
        layer_kind = self.layer_kinds[layer_index]
        cache_key = layout.tp, layout.expert_tp, shard_count, id(layer_kind), stage.has_embedding, stage.has_head
        if cache_key not in self._parameters_by_layer:
            layer_stage = stage._replace(layers=range(layer_index, layer_index + 1))
            self._parameters_by_layer[cache_key] = self._count_recorded_parameters(layout, layer_stage, shard_count)
        return self._parameters_by_layer[cache_key]

    def _count_recorded_parameters(self, layout: Layout, stage: Stage, shard_count: int) -> StageParameterCounts:
        """Counts a stage's parameters in its recorded program; same result as `_count_parameters`."""
        node_tree = cached_rank_program(self.spec, layout, 0, representative_stage(self.spec, stage)).node()
        count_parameters = partial(padded_parameter_count, shard_count) if shard_count > 1 else total_params_of
        tree_nodes = [
            counted_node
            for counted_node in node_tree.walk()
            if not counted_node.optional_part or counted_node.optional_part in self.included_parts
        ]
        layers = [tree_node for tree_node in tree_nodes if tree_node.node.name == "layers"]
        layer_nodes = [tree_node for tree_node in tree_nodes if is_in_layer(tree_node)]
        parameter_count = node_tree.total(count_parameters, include=self.included_parts)
        return StageParameterCounts(
            dense=parameter_count,
            experts=sum(
                times(tree_node.cost_of_operation(count_parameters), tree_node.copies)
                for tree_node in tree_nodes
                if _has_routed_experts(tree_node)
            ),
            outside_layers=parameter_count
            - sum(counted_node.total(count_parameters, self.included_parts) for counted_node in layers),
            largest_layer=max(
                (counted_node.cost_per_repeat(count_parameters, self.included_parts) for counted_node in layers),
                default=0,
            ),
            largest_tensor=max(tree_node.cost_of_operation(count_parameters) for tree_node in tree_nodes),
            largest_layer_tensor=max(
                (counted_node.cost_of_operation(count_parameters) for counted_node in layer_nodes), default=0
            ),
            largest_dense_layer_tensor=max(
                (
                    counted_node.cost_of_operation(count_parameters)
                    for counted_node in layer_nodes
                    if not _has_routed_experts(counted_node)
                ),
                default=0,
            ),
        )

    def _layer_kind_runs(self, stage: Stage) -> tuple[object, ...]:
        """Returns a pipeline stage's layers as runs of equal layers: (type of the layers, number of layers)."""
        if stage.layers in self._layer_runs_by_stage:
            return self._layer_runs_by_stage[stage.layers]
        kind_runs: list[list[int]] = []
        for i in stage.layers:
            layer_type = id(self.layer_kinds[i])
            if kind_runs and kind_runs[-1][0] == layer_type:
                kind_runs[-1][1] += 1
            else:
                kind_runs.append([layer_type, 1])
        return self._layer_runs_by_stage.setdefault(stage.layers, tuple(map(tuple, kind_runs)))

    def micro_batch_bytes(self, layout: Layout, stage: Stage) -> MicroBatchBytes:
        """Returns the saved and peak bytes of a micro-batch's passes through a pipeline stage."""
        activation_shape = _activation_shape(layout)
        cache_key = (*activation_shape, stage.layers, stage.has_embedding, stage.has_head)
        if cache_key not in self._bytes_of_stages:
            self._bytes_of_stages[cache_key] = self._micro_batch_bytes(layout, stage, activation_shape)
        return self._bytes_of_stages[cache_key]

    def _micro_batch_bytes(self, layout: Layout, stage: Stage, activation_shape: tuple[object, ...]) -> MicroBatchBytes:
        first_layer, end_layer, repeats_per_layer = self._measured_layers(stage)
        cache_key = self._measurement_key(layout, stage)
        if cache_key not in self._passes_by_key:
            measured_layout, measured_stage = self._layout_of_layers(layout, first_layer, end_layer, stage)
            run_repeats = [None] if repeats_per_layer is None else [SHORT_RUN_REPEATS + 1, SHORT_RUN_REPEATS]
            self._passes_by_key[cache_key] = tuple(self.measure_passes(measured_layout, measured_stage, run_repeats))
        pass_bytes = self._passes_by_key[cache_key]
        if repeats_per_layer is None:
            return pass_bytes[0]
        longer_run, shorter_run = pass_bytes
        if len(set(map(id, self.layer_kinds[first_layer:end_layer]))) == 1:
            self._saved_bytes_by_layer[(*activation_shape, id(self.layer_kinds[first_layer]))] = (
                longer_run.saved_bytes - shorter_run.saved_bytes
            )
        return shorter_run.with_more_layers(longer_run, repeats_per_layer - SHORT_RUN_REPEATS)

    def _measured_layers(self, stage: Stage) -> tuple[int, int, int | None]:
        """Returns start and end of a stage's measured layers, and the number of repeats per measured layer.

        The repeats are None where all layers of the stage are measured.
        `SHORT_RUN_REPEATS` + 2 equal layers stand for any number of them.
        """
        start_layer, end_layer = stage.layers.start, stage.layers.stop
        measured_layer_count, layer_kinds = SHORT_RUN_REPEATS + 2, self.layer_kinds
        stage_kinds = layer_kinds[start_layer:end_layer]
        if not stage_kinds or any(layer_kind is not stage_kinds[0] for layer_kind in stage_kinds):
            first_layer, pattern_length, pattern_repeats = find_layer_pattern(stage_kinds)
            if pattern_repeats < FEWEST_EXTRAPOLATED:
                return self._measured_layers_with_longer_end(stage) or (start_layer, end_layer, None)
            skipped_layer_count = (pattern_repeats - FEWEST_EXTRAPOLATED) * pattern_length
            if start_layer + first_layer + pattern_repeats * pattern_length == end_layer and not stage.has_head:
                end_layer -= skipped_layer_count
            elif not first_layer and not stage.has_embedding:
                start_layer += skipped_layer_count
            return start_layer, end_layer, pattern_repeats
        while end_layer - start_layer > measured_layer_count:
            start_layer, end_layer = (start_layer + 1, end_layer) if stage.has_head else (start_layer, end_layer - 1)
        while (
            end_layer - start_layer < measured_layer_count
            and not stage.has_head
            and end_layer < len(layer_kinds)
            and layer_kinds[end_layer] is layer_kinds[start_layer]
        ):
            end_layer += 1
        while (
            end_layer - start_layer < measured_layer_count
            and not stage.has_embedding
            and start_layer > 0
            and layer_kinds[start_layer - 1] is layer_kinds[start_layer]
        ):
            start_layer -= 1
        if end_layer - start_layer < measured_layer_count:
            return stage.layers.start, stage.layers.stop, None
        return start_layer, end_layer, len(stage.layers)

    def _measured_layers_with_longer_end(self, stage: Stage) -> tuple[int, int, int] | None:
        """Returns `_measured_layers` of a stage with more equal layers at its end.

        So stages of a model's first layers share a measurement, as deeper ones do; None for other stages.
        """
        start_layer, end_layer, layer_kinds = stage.layers.start, stage.layers.stop, self.layer_kinds
        first_equal_layer = end_layer - 1
        while first_equal_layer > start_layer and layer_kinds[first_equal_layer - 1] is layer_kinds[end_layer - 1]:
            first_equal_layer -= 1
        equal_layers, longer_end = end_layer - first_equal_layer, first_equal_layer + FEWEST_EXTRAPOLATED
        if stage.has_head or equal_layers <= SHORT_RUN_REPEATS or longer_end > len(layer_kinds):
            return None
        if find_layer_pattern(layer_kinds[start_layer:longer_end]) != (
            first_equal_layer - start_layer,
            1,
            FEWEST_EXTRAPOLATED,
        ):
            return None
        return start_layer, longer_end, equal_layers

    def _layout_of_layers(self, layout: Layout, start_layer: int, end_layer: int, stage: Stage) -> tuple[Layout, Stage]:
        """Returns a one-stage layout of the layers from `start_layer` to `end_layer`, with two experts per rank."""
        layer_count, ep = self.layer_count, max(1, self.spec.routed_experts // 2)
        stage_sizes: tuple[int, ...]
        if stage.has_embedding and stage.has_head:
            stage_sizes, rank = (end_layer,), 0
        elif stage.has_embedding:
            stage_sizes, rank = (end_layer, layer_count - end_layer), 0
        elif stage.has_head:
            stage_sizes, rank = (start_layer, layer_count - start_layer), 1
        else:
            stage_sizes, rank = (start_layer, end_layer - start_layer, layer_count - end_layer), 1
        layout_of_layers = replace(
            layout,
            pp=len(stage_sizes),
            vpp=1,
            schedule="1f1b",
            pp_layout=stage_sizes if len(stage_sizes) > 1 else None,
            dp=ep,
            zero=0,
            hsdp_replicas=1,
            ep=ep,
            etp=1 if ep > 1 else None,
        )
        return layout_of_layers, list(stages(layout_of_layers, layer_count))[rank]


def _pass_peaks(
    pass_bytes: MicroBatchBytes, stage: Stage, transient_bytes: TransientBytes, micro_batch_count: int
) -> tuple[int, int, int]:
    """Returns a stage's peak bytes before the first gradient, in the head's and in the layers' backward pass."""
    forward_peak = max(
        pass_bytes.layer_forward_peak,
        pass_bytes.loss_peak + transient_bytes.around_loss,
        pass_bytes.bytes_saved_between_layers_and_head + transient_bytes.before_head,
    )
    if micro_batch_count > 1:
        forward_peak += transient_bytes.later_micro_batches
    head_peak = max(
        pass_bytes.head_backward_peak + transient_bytes.outside_layers,
        pass_bytes.backward_peak_outside_modules + transient_bytes.outside_layers + transient_bytes.outside_modules,
        pass_bytes.bytes_saved_between_layers_and_head + transient_bytes.after_head,
    )
    saved_per_layer = pass_bytes.saved_bytes // max(1, len(stage.layers))  # freed when the next layer's pass begins
    bytes_from_other_module = max(0, transient_bytes.from_previous_layer - saved_per_layer, transient_bytes.from_head)
    layer_index = pass_bytes.layer_backward_peak + transient_bytes.in_layer_backward + bytes_from_other_module
    return (
        forward_peak,
        head_peak + transient_bytes.from_first_gradient,
        layer_index + transient_bytes.from_first_gradient,
    )


def _activation_shape(layout: Layout) -> tuple[object, ...]:
    """Returns the settings of a layout that determine the sizes of a rank's activations."""
    return layout.tp, layout.cp, layout.cp_comm, layout.sequence_parallel


def _has_routed_experts(tree_node: NodePosition) -> bool:
    """Whether a module has weights of routed experts."""
    return isinstance(tree_node.node.op, ExpertLinear)


def bytes_per_parameter(memory_estimate: Memory, has_flat_parameters: bool = False) -> BytesPerParameter:
    """Returns the bytes per parameter of weights, gradients and optimizer states, stored as on one device.

    has_flat_parameters: whether a rank's part of all parameters is one flat tensor, which Adafactor does not factor.
    """
    memory_use, parameter_count = memory_estimate.states, memory_estimate.states.parameter_count.total
    if memory_use.first_trained_layer is not None:
        raise InputError(
            "--trainable-layers: plans and times are of runs that train whole models or adapters; expected none, or "
            "llmcalc memory"
        )
    if memory_use.optimizer is not None and memory_estimate.settings.lora_rank is None:
        states_per_parameter = optimizer(memory_use.optimizer.name).states_per_element(has_flat_parameters)
        if states_per_parameter is not None:
            bytes_per_matrix_element, adamw_extra_bytes = (
                states_count * packed_bytes(1, memory_use.optimizer.dtype) for states_count in states_per_parameter
            )
            master_bytes = memory_use.master_weights / parameter_count
            return BytesPerParameter(
                memory_use.weights / parameter_count,
                memory_use.gradients / parameter_count,
                bytes_per_matrix_element + master_bytes,
                adamw_extra_bytes,
            )
    state_bytes = 0 if memory_use.optimizer is None else memory_use.optimizer.bytes
    return BytesPerParameter(
        memory_use.weights / parameter_count,
        memory_use.gradients / parameter_count,
        (state_bytes + memory_use.master_weights) / parameter_count,
    )
