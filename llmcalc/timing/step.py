"""The time of a training step: a rank's micro-batch, the pipeline, data-parallel messages, and the update.

m · slowest + (p − 1)/v · mean stands for 1F1B and interleaved schedules: equal stages take exactly as long as the
orders of `parallel/schedules.py`, unequal ones up to 9 % more. Which layers a stage has is exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cache, reduce
from itertools import accumulate
from typing import Any, NamedTuple

from ..algebra import Number, ceil_div, choose, maximum, minimum
from ..frozen import frozen
from ..model import ModelSpec
from ..parallel.layout import Layout, Schedule
from ..parallel.layout_search import even_stage_sizes
from ..parallel.placements import CollectiveKind
from ..parallel.schedules import pipeline, timetable
from ..workload.recompute import check_node_names
from .device import Device
from .kernels import AFTER_LAYERS, BEFORE_LAYERS, Adapters, Kernel, LayerKind, RankPass, rank_share
from .time_estimator import NumberFormats, TimedOperation, TimedPass, time_pass
from .timing_constants import SoftwareStack
from .work_recorder import rank_work

PRE_NORMS = "self_attn_pre_norm", "mlp_pre_norm", "mamba_pre_norm"
"""Modules of a layer that Megatron-Core's `--recompute-modules layernorm` recomputes."""

WEIGHT_BYTES = 2.0
"""Bytes per parameter of weights that ranks all-gather."""

FP32_BYTES = 4.0
"""Bytes per element of gradient messages if the weights are in 32 bits."""

PATHS_BY_MODULE: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "core_attn": ((), ()),
    "layernorm": (PRE_NORMS, PRE_NORMS),
    "mla_up_proj": (("self_attn.q_b_proj", "self_attn.kv_b_proj"),) * 2,
    "mlp": (("mlp",), ()),
    "moe": ((), ("mlp",)),
    "moe_act": ((), ()),
    "shared_experts": ((), ("mlp.shared_expert",)),
}
"""Module of Megatron-Core's `--recompute-modules` → its modules below a layer without and with experts.

A layer of experts sends its tokens again, as dispatch and combine are inside of the checkpoint (`custom_forward` of
megatron/core/transformer/moe/moe_layer.py). The core of attention is a kernel; the activation of experts is part of no
module, and takes about 1 % of a layer.
"""

UPDATE_BYTES_PER_PARAMETER = 8.0
"""Bytes per parameter that an update moves in addition to optimizer states: gradients and new 16-bit weights."""

BACKWARD_WORK_SHARE = 0.7
"""Fraction of a step's work during which gradients can be sent: the backward pass."""


@frozen
class StepPlan:
    """The layout of a training step and its micro-batches. Sizes are as in `Layout`.

    micro_batch, micro_batches: sequences of a micro-batch, and micro-batches of a step.
    dtype: number format of products.
    recomputed_share: share of the layers whose forward pass runs again; 0 by default.
    recomputes_attention: whether attention's forward pass runs again.
    recomputed_nodes: paths of modules below a layer whose forward pass runs again.
    recomputed_modules: Megatron-Core's names of such modules (`PATHS_BY_MODULE`), which no layer needs to have.
    stops_early: whether a layer that runs again stops at the last tensor that its backward pass needs.
    zero: ZeRO stage.
    replicas: groups of data-parallel ranks, each with all shards.
    stage_sizes: layers of each stage, for stages that are not even.
    adapters: low-rank adapters that are trained in place of the weights; None (default) for the weights.
    """

    tp: int = 1
    pp: Number = 1
    dp: Number = 1
    cp: Number = 1
    ep: Number = 1
    etp: int | None = None
    vpp: Number = 1
    seq: Number = 4096
    micro_batch: Number = 1
    micro_batches: Number = 1
    dtype: str = "bf16"
    recomputed_share: float = 0.0
    recomputes_attention: bool = False
    recomputed_nodes: frozenset[str] = frozenset()
    recomputed_modules: frozenset[str] = frozenset()
    stops_early: bool = False
    sequence_parallel: bool = False
    zero: int = 0
    replicas: Number = 1
    reshard: bool = True
    cp_comm: Any = "p2p"
    schedule: Schedule = "1f1b"
    stage_sizes: tuple[int, ...] | None = None
    included_parts: frozenset[str] = frozenset()
    adapters: Adapters | None = None

    @classmethod
    def from_layout(
        cls, layout: Layout, micro_batch: Number, micro_batches: int, seq: int, **run_fields: Any
    ) -> StepPlan:
        """Returns the `StepPlan` of a layout. run_fields: fields that are not the layout's, such as recomputation."""
        layout_fields = ("tp", "pp", "dp", "cp", "ep", "etp", "vpp", "sequence_parallel", "zero", "reshard", "cp_comm")
        return cls(
            **{field_name: getattr(layout, field_name) for field_name in layout_fields},
            replicas=layout.hsdp_replicas,
            schedule=layout.schedule,
            stage_sizes=layout.pp_layout,
            micro_batch=micro_batch,
            micro_batches=micro_batches,
            seq=seq,
            **run_fields,
        )

    def rank_pass(self, software_stack: SoftwareStack) -> RankPass:
        """Returns the `RankPass` of one micro-batch."""
        return RankPass(
            self.micro_batch,
            self.seq,
            0,
            "training",
            tp=self.tp,
            etp=self.etp,
            ep=self.ep,
            cp=self.cp,
            cp_comm=self.cp_comm,
            sequence_parallel=self.sequence_parallel,
            fuses_elementwise=software_stack.fuses_elementwise,
            fuses_gates=software_stack.fuses_gates,
            regathers_inputs=software_stack.regathers_inputs,
            included_parts=self.included_parts,
            adapters=self.adapters,
        )

    def recomputes(self, kernel_or_operation: Kernel | TimedOperation, timed_pass: TimedPass) -> bool:
        """Whether a kernel is recomputed in the backward pass, as part of a module or of the attention core."""
        if kernel_or_operation.layer_kind_index < 0:
            return False
        if kernel_or_operation.kind == "attention" and (
            self.recomputes_attention or "core_attn" in self.recomputed_modules
        ):
            return True
        node_paths = set(self.recomputed_nodes)
        for module_name in self.recomputed_modules:
            node_paths.update(
                PATHS_BY_MODULE[module_name][timed_pass.has_experts(kernel_or_operation.layer_kind_index)]
            )
        return any(f".{node_path}." in f".{kernel_or_operation.path}." for node_path in node_paths)

    def repeated_modules(self, timed_pass: TimedPass) -> TimedPass:
        """Returns the kernels of a pass that are recomputed by module; only their forward seconds count."""
        kernels = [kernel for kernel in timed_pass.rank_work.kernels if self.recomputes(kernel, timed_pass)]
        operations = [operation for operation in timed_pass.operations if self.recomputes(operation, timed_pass)]
        return replace(timed_pass, rank_work=replace(timed_pass.rank_work, kernels=kernels), operations=operations)

    @property
    def devices(self) -> Number:
        return self.tp * self.cp * self.dp * self.pp

    @property
    def tokens(self) -> Number:
        """The number of tokens of a micro-batch on one rank."""
        return rank_share(self.micro_batch * self.seq, self.cp)

    @property
    def expert_shards(self) -> Number:
        """The number of adjacent ranks over which the experts are sharded."""
        return self.ep * (self.tp if self.etp is None else self.etp)

    @property
    def expert_replicas(self) -> Number:
        """The number of ranks that have the same shard of the same experts."""
        return maximum(1, self.dp * self.cp * self.tp / self.expert_shards)


@frozen
class StepTime:
    """The estimated seconds of a training step, by part.

    seconds: of the step.
    seconds_by_part: work of the slowest stage, pipeline bubble, data parallelism and update, which add up to it.
    timed_pass: the micro-batch of a rank that has all layers.
    slowest_rank_seconds, mean_rank_seconds: seconds of a micro-batch on the slowest rank of the pipeline, and on
        average.
    """

    seconds: Number
    seconds_by_part: dict[str, Number]
    timed_pass: TimedPass = field(repr=False)
    slowest_rank_seconds: Number = 0.0
    mean_rank_seconds: Number = 0.0


class LayerCosts(NamedTuple):
    """The seconds and parameters of a micro-batch per kind of layer; recomputed forward passes are separate.

    layer_seconds_of_both_passes, recomputed_forward_seconds: seconds of both passes, and of a forward pass that runs
        again, per kind.
    start_seconds, head_seconds: of what runs before the first and after the last layer.
    dense_params, expert_params: parameters per kind; of experts, those of all expert ranks.
    params_outside_layers: parameters before and after the layers.
    adapter_params: parameters of low-rank adapters per kind; empty if the weights are trained.
    """

    layer_kinds: tuple[LayerKind, ...]
    layer_seconds_of_both_passes: list[Number]
    recomputed_forward_seconds: list[Number]
    start_seconds: Number
    head_seconds: Number
    dense_params: list[Number]
    expert_params: list[Number]
    params_outside_layers: Number
    adapter_params: list[Number]

    def at_index(self, array_index: Any) -> LayerCosts:
        """Returns the costs for the step plans at these array indices."""

        def amount_at_index(amount: Number) -> Number:
            return amount[array_index] if getattr(amount, "ndim", 0) else amount

        return LayerCosts(
            self.layer_kinds,
            *(
                list(map(amount_at_index, field_values))
                if isinstance(field_values, list)
                else amount_at_index(field_values)
                for field_values in self[1:]
            ),
        )


def layer_costs(timed_pass: TimedPass, software_stack: SoftwareStack, step_plan: StepPlan) -> LayerCosts:
    """Sums the seconds of a timed micro-batch by kind of layer. step_plan: states the recomputation.

    Raises `InputError` for a recomputed module that no layer has.
    """
    pass_work = timed_pass.rank_work
    kind_indices = range(len(pass_work.layer_kinds))
    layer_wait_seconds = software_stack.layer_wait_seconds if pass_work.rank_pass.tp > 1 else 0.0

    def seconds(kind_index: int, is_backward: bool, skipped_seconds: Number = 0.0) -> Number:
        kernel_seconds = timed_pass.layer_seconds(kind_index, is_backward=is_backward) - skipped_seconds
        return (
            kernel_seconds
            + host_wait(timed_pass, software_stack, kind_index, is_backward, kernel_seconds)
            + layer_wait_seconds
        )

    forward_passes = [seconds(kind_index, is_backward=False) for kind_index in kind_indices]
    both_pass_seconds = [forward_passes[index] + seconds(index, is_backward=True) for index in kind_indices]
    repeated_passes = (
        [seconds(kind_index, False, timed_pass.ending_seconds(kind_index)) for kind_index in kind_indices]
        if step_plan.stops_early
        else forward_passes
    )
    if step_plan.recomputed_nodes:
        check_node_names(step_plan.recomputed_nodes, _layer_module_paths(timed_pass))
    repeated_modules = step_plan.repeated_modules(timed_pass)
    for kind_index in kind_indices:
        module_seconds = repeated_modules.layer_seconds(kind_index, is_backward=False)
        wait_seconds = host_wait(repeated_modules, software_stack, kind_index, False, module_seconds)
        both_pass_seconds[kind_index] = both_pass_seconds[kind_index] + module_seconds + wait_seconds
    return LayerCosts(
        tuple(pass_work.layer_kinds),
        both_pass_seconds,
        repeated_passes,
        timed_pass.layer_seconds(BEFORE_LAYERS),
        timed_pass.layer_seconds(AFTER_LAYERS),
        [pass_work.params_by_layer.get((kind_index, False), 0) for kind_index in kind_indices],
        [pass_work.params_by_layer.get((kind_index, True), 0) for kind_index in kind_indices],
        sum(count for (index, _), count in pass_work.params_by_layer.items() if index < 0),
        [pass_work.adapter_params_by_layer.get(kind_index, 0) for kind_index in kind_indices]
        if pass_work.rank_pass.adapters is not None
        else [],
    )


def _layer_module_paths(timed_pass: TimedPass) -> Iterator[str]:
    """Yields the module paths of a layer's kernels, with the paths of all modules around them."""
    for operation in timed_pass.operations:
        module_names = operation.path.split(".")[1:] if operation.layer_kind_index >= 0 else []
        yield from (".".join(module_names[:name_count]) for name_count in range(1, len(module_names) + 1))


def host_wait(
    timed_pass: TimedPass,
    software_stack: SoftwareStack,
    layer_kind_index: int,
    is_backward: bool,
    kernel_seconds: Number,
) -> Number:
    """Returns the seconds in which the device waits for kernel launches in one pass of a layer.

    kernel_seconds: seconds of the kernels and messages of that direction.
    """
    launch_count = timed_pass.layer_launches(
        layer_kind_index, is_backward, software_stack.launches_by_verb, software_stack.captured_modules
    )
    host_seconds = launch_count * software_stack.host_seconds_per_kernel
    if software_stack.host_seconds_per_expert:
        expert_count = timed_pass.expert_launches(layer_kind_index, is_backward, software_stack.captured_modules)
        seconds_by_format = software_stack.host_seconds_per_expert
        expert_seconds = seconds_by_format.get(timed_pass.product_format, seconds_by_format["bf16"])
        host_seconds = host_seconds + expert_count * expert_seconds
    if software_stack.host_seconds_per_dtensor_operation:
        dtensor_count = timed_pass.dtensor_operations(
            layer_kind_index, is_backward, software_stack.dtensor_operations_by_kind
        )
        host_seconds = host_seconds + dtensor_count * software_stack.host_seconds_per_dtensor_operation
    return maximum(0.0, host_seconds * timed_pass.host_launch - kernel_seconds)


@cache
def rank_layers(
    layer_kinds: tuple[LayerKind, ...], pp: int, vpp: int, layers_of_stages: tuple[int, ...] | None
) -> tuple[tuple[int, ...], ...]:
    """Returns the number of layers of each kind on each pipeline rank.

    layers_of_stages: layers per stage; None for even stages.
    """
    layer_counts = tuple(len(layer_kind.indices) for layer_kind in layer_kinds)
    if pp == 1:
        return (layer_counts,)
    stage_sizes = layers_of_stages or even_stage_sizes(sum(layer_counts), pp * vpp)
    layers_of_stage = [
        range(stage_end - layer_count, stage_end)
        for layer_count, stage_end in zip(stage_sizes, accumulate(stage_sizes), strict=True)
    ]
    return tuple(
        tuple(
            sum(
                layer_index in stage_layers
                for stage_layers in layers_of_stage[rank::pp]
                for layer_index in layer_kind.indices
            )
            for layer_kind in layer_kinds
        )
        for rank in range(pp)
    )


class PipelineRanks(NamedTuple):
    """The seconds of the slowest and of the average pipeline rank, and the most parameters of a rank.

    slowest_rank_seconds, mean_rank_seconds: of a micro-batch on the slowest rank, and on average.
    dense_params, expert_params: parameters of the rank that has most of each.
    mean_layers: layers of a rank, on average.
    adapter_params: parameters of low-rank adapters, of the rank that has most; None if the weights are trained.
    """

    slowest_rank_seconds: Number
    mean_rank_seconds: Number
    dense_params: Number
    expert_params: Number
    mean_layers: Number
    adapter_params: Number | None = None

    def trained_params(self, ep: Number) -> tuple[Number, Number]:
        """Returns a rank's trained parameters: the number outside of experts, and the number in experts."""
        expert_params = rank_share(self.expert_params, ep)
        return (self.dense_params, expert_params) if self.adapter_params is None else (self.adapter_params, 0)


def pipeline_ranks(
    costs: LayerCosts, pp: int, vpp: int, recompute: float = 0.0, stage_sizes: tuple[int, ...] | None = None
) -> PipelineRanks:
    """Computes the seconds of the slowest and of the average pipeline rank, and the most parameters of a rank."""
    layer_counts_by_rank = rank_layers(costs.layer_kinds, pp, vpp, stage_sizes)
    seconds = [
        both_pass_seconds + recompute * repeated_seconds
        for both_pass_seconds, repeated_seconds in zip(
            costs.layer_seconds_of_both_passes, costs.recomputed_forward_seconds, strict=True
        )
    ]
    seconds_of_ranks = [_weighted_sum(layer_counts, seconds) for layer_counts in layer_counts_by_rank]
    seconds_of_ranks[0] = seconds_of_ranks[0] + costs.start_seconds
    seconds_of_ranks[-1] = seconds_of_ranks[-1] + costs.head_seconds

    def largest_rank_sum(values_per_layer: Sequence[Number]) -> Number:
        return reduce(maximum, (_weighted_sum(layer_counts, values_per_layer) for layer_counts in layer_counts_by_rank))

    return PipelineRanks(
        reduce(maximum, seconds_of_ranks),
        sum(seconds_of_ranks) / pp,
        largest_rank_sum(costs.dense_params) + costs.params_outside_layers / min(2, pp),
        largest_rank_sum(costs.expert_params),
        sum(map(sum, layer_counts_by_rank)) / pp,
        largest_rank_sum(costs.adapter_params) if costs.adapter_params else None,
    )


def _weighted_sum(layer_counts: Sequence[int], layer_values: Sequence[Number]) -> Number:
    return sum(layer_count * layer_value for layer_count, layer_value in zip(layer_counts, layer_values, strict=True))


@cache
def idle_micro_batches(schedule: Schedule, pp: int) -> float:
    """Returns the idle time of a rank under a special schedule, in units of one micro-batch's passes."""
    micro_batch_count = 4 * pp
    step_timetable = timetable(pipeline(Layout(pp=pp, schedule=schedule), micro_batch_count))
    return float(step_timetable.total_time) / 3 - micro_batch_count


def training_step(spec: ModelSpec, device: Device, software_stack: SoftwareStack, step_plan: StepPlan) -> StepTime:
    """Estimates the seconds of a training step; only for numbers, not arrays.

    Raises `InputError` for sizes that the layout does not divide, and for parts that it divides in a way that is not
    modelled.
    """
    timed_pass = time_pass(
        rank_work(spec, step_plan.rank_pass(software_stack)), device, software_stack, NumberFormats(step_plan.dtype)
    )
    return step_time_of_pass(
        spec, device, software_stack, step_plan, timed_pass, layer_costs(timed_pass, software_stack, step_plan)
    )


def step_time_of_pass(
    spec: ModelSpec,
    device: Device,
    software_stack: SoftwareStack,
    step_plan: StepPlan,
    timed_pass: TimedPass,
    costs: LayerCosts,
) -> StepTime:
    """Returns the seconds of a training step, from the timed kernels of one micro-batch."""
    rank_costs = pipeline_ranks(costs, step_plan.pp, step_plan.vpp, step_plan.recomputed_share, step_plan.stage_sizes)
    return _step_seconds(spec, device, software_stack, step_plan, rank_costs, timed_pass)


def _step_seconds(
    spec: ModelSpec,
    device: Device,
    software_stack: SoftwareStack,
    step_plan: StepPlan,
    rank_costs: PipelineRanks,
    timed_pass: TimedPass,
) -> StepTime:
    """Returns the seconds of a step: micro-batches, bubble, data-parallel messages and optimizer update."""
    stage_send_seconds, exposed_send_seconds = _stage_send_seconds(spec, device, software_stack, step_plan)
    if step_plan.schedule in ("zb-h1", "dualpipe") and isinstance(step_plan.pp, int) and step_plan.pp > 1:
        idle_seconds = idle_micro_batches(step_plan.schedule, step_plan.pp) * rank_costs.mean_rank_seconds
    else:
        idle_seconds = (step_plan.pp - 1) / step_plan.vpp * rank_costs.mean_rank_seconds
    bubble_seconds = idle_seconds + 2 * stage_send_seconds + exposed_send_seconds
    pipeline_seconds = step_plan.micro_batches * rank_costs.slowest_rank_seconds
    message_seconds, updated_params = _data_parallel_seconds(step_plan, device, software_stack, rank_costs)
    trained_params = sum(rank_costs.trained_params(step_plan.ep))
    update_seconds = (
        software_stack.host_update_seconds_per_parameter * updated_params
        if software_stack.host_update_seconds_per_parameter
        else device.memory_seconds(
            software_stack.optimizer_bytes * updated_params + UPDATE_BYTES_PER_PARAMETER * trained_params
        )
        + software_stack.optimizer_flops * updated_params / device.product_rate("bf16", is_sustained=True)
    )
    part_seconds = {
        "work": pipeline_seconds,
        "bubble": bubble_seconds,
        "data": message_seconds,
        "update": update_seconds,
    }
    return StepTime(
        pipeline_seconds + bubble_seconds + message_seconds + update_seconds,
        part_seconds,
        timed_pass,
        rank_costs.slowest_rank_seconds,
        rank_costs.mean_rank_seconds,
    )


def _stage_send_seconds(
    spec: ModelSpec, device: Device, software_stack: SoftwareStack, step_plan: StepPlan
) -> tuple[Number, Number]:
    """Returns the seconds of sends between stages: of one micro-batch through all stages, and of exposed exchanges.

    The way has one message between each two stages, in one direction; the exchanges are those of a step, while the
    pipeline is full. Stages are the outermost axis of the ranks. So a domain of fast links holds whole stages where
    they are small, and in full domains at most one neighbor of such a stage is in another domain.
    """
    is_divided = step_plan.sequence_parallel or software_stack.scatters_stage_messages
    sent_bytes = 2.0 * step_plan.tokens * spec.hidden_size / (step_plan.tp if is_divided else 1)
    near_send_seconds = device.stage_send_seconds(sent_bytes, 1)
    far_send_seconds = device.stage_send_seconds(sent_bytes, step_plan.devices)
    stage_devices = step_plan.tp * step_plan.cp * step_plan.dp
    stages_per_domain = device.stages_per_domain(step_plan.pp, stage_devices)
    far_send_count = ceil_div(step_plan.pp, stages_per_domain) - 1
    neighbor_count = choose(step_plan.vpp > 1, 2, minimum(2, step_plan.pp - 1))
    far_neighbor_count = choose(stages_per_domain > 1, minimum(1, far_send_count), neighbor_count)
    exchange_seconds = far_neighbor_count * far_send_seconds + (neighbor_count - far_neighbor_count) * near_send_seconds
    chunk_exchange_seconds = choose(far_send_count > 0, far_send_seconds, near_send_seconds)
    return (
        far_send_count * far_send_seconds + (step_plan.pp - 1 - far_send_count) * near_send_seconds,
        exchange_seconds * _exposed_exchange_count(step_plan, software_stack)
        + chunk_exchange_seconds * _filling_exchange_count(step_plan, software_stack),
    )


def _filling_exchange_count(step_plan: StepPlan, software_stack: SoftwareStack) -> Number:
    """Returns the number of exposed exchanges while an interleaved pipeline fills; later ones are hidden.

    The last rank runs (vpp − 1) · pp chunks forward before its first backward pass, and as many backward after its last
    forward pass. After each of them it sends and receives at once, and waits (megatron/core/pipeline_parallel/
    schedules.py, forward_backward_pipelining_with_interleaving without overlap_p2p_comm_warmup_flush, the default).
    """
    if step_plan.schedule in ("zb-h1", "dualpipe") or not software_stack.hides_stage_messages:
        return 0
    filling_chunks = minimum((step_plan.vpp - 1) * step_plan.pp, step_plan.micro_batches * step_plan.vpp)
    return choose(step_plan.pp > 1, 2 * filling_chunks, 0)


def _exposed_exchange_count(step_plan: StepPlan, software_stack: SoftwareStack) -> Number:
    """Returns the number of exchanges with each neighbour that a stage waits for while the pipeline is full.

    An exchange takes as long as one message, or as two where a stage does not send and receive at once. A stage of 1F1B
    sends its output and waits for the gradient, then sends a gradient and waits for the next input
    (megatron/core/pipeline_parallel/schedules.py, send_forward_recv_backward); the first stage has no neighbor before
    it, and the last none after it. Of interleaved stages a stack may hide messages beside other chunks
    (--overlap-p2p-communication); schedules of divided backward passes hide them.
    """
    if step_plan.schedule in ("zb-h1", "dualpipe"):
        return 0
    exposed_chunks = choose(step_plan.vpp > 1, 0, 1) if software_stack.hides_stage_messages else step_plan.vpp
    message_count = 2 if software_stack.sends_before_receiving else 1
    return choose(step_plan.pp > 1, step_plan.micro_batches * exposed_chunks * message_count, 0)


def _data_parallel_seconds(
    step_plan: StepPlan, device: Device, software_stack: SoftwareStack, rank_costs: PipelineRanks
) -> tuple[Number, Number]:
    """Returns the exposed seconds of data-parallel messages, and the parameters that each rank updates.

    ZeRO-3 gathers weights for each micro-batch, and stages 2 and 3 reduce each one's gradients, except in a pipeline
    that keeps both. All else is sent once a step: gradients beside the backward pass of the last micro-batch, weights
    beside the forward pass of the first one, or those of an interleaved stage beside the passes of its other chunks.
    """
    rank_expert_params = rank_share(rank_costs.expert_params, step_plan.ep)
    trained_params, trained_experts = rank_costs.trained_params(step_plan.ep)
    seconds_of_groups = (
        _data_group_seconds(
            step_plan,
            device,
            software_stack,
            step_plan.dp * step_plan.cp,
            step_plan.tp,
            rank_costs.dense_params,
            trained_params,
            rank_costs.mean_layers,
        ),
        _data_group_seconds(
            step_plan,
            device,
            software_stack,
            step_plan.expert_replicas,
            step_plan.expert_shards,
            rank_expert_params,
            trained_experts,
            rank_costs.mean_layers,
        ),
    )
    gather_seconds, reduction_seconds, updated_params = map(sum, zip(*seconds_of_groups, strict=True))
    if step_plan.zero not in software_stack.overlapped_stages:
        return gather_seconds + reduction_seconds, updated_params
    sends_once = _sends_once_per_step(step_plan, software_stack)
    reduced_micro_batches = choose(sends_once, 1, step_plan.micro_batches) if step_plan.zero == 2 else 1
    exposed_seconds = _exposed_seconds_of_chunks(
        gather_seconds,
        (1 - BACKWARD_WORK_SHARE) * rank_costs.slowest_rank_seconds,
        software_stack.hidden_share("weights"),
        step_plan,
    ) + _exposed_seconds_of_chunks(
        reduction_seconds,
        BACKWARD_WORK_SHARE * rank_costs.slowest_rank_seconds,
        software_stack.hidden_share("dp"),
        step_plan,
        reduced_micro_batches,
    )
    if step_plan.zero == 3:
        message_seconds = gather_seconds + reduction_seconds
        exposed_seconds_per_pass = _exposed_seconds(
            message_seconds,
            step_plan.micro_batches * rank_costs.slowest_rank_seconds,
            software_stack.hidden_share("dp"),
        )
        exposed_seconds = choose(sends_once, exposed_seconds, exposed_seconds_per_pass)
    return exposed_seconds, updated_params


def _exposed_seconds_of_chunks(
    message_seconds: Number, pass_seconds: Number, hidden_share: float, step_plan: StepPlan, micro_batches: Number = 1
) -> Number:
    """Returns the seconds of a rank's messages of weights or gradients that its passes do not hide.

    pass_seconds: seconds of one micro-batch in the direction that hides the messages.
    micro_batches: number of micro-batches beside which a stage sends that is not interleaved; default 1.

    An interleaved rank runs as many micro-batches as there are stages through one of its chunks, then through the
    next. It reduces the gradients of a chunk once the last of these has left it, and gathers the weights of a chunk
    while those before it run (Megatron-Core's schedules.py, forward_backward_pipelining_with_interleaving, calls
    `grad_sync_func` and `param_sync_func` by chunk). So a chunk's messages have the passes of a whole group beside
    them, but those of one chunk, after or before which no other runs.
    """
    last_chunk_seconds, other_chunk_seconds = (
        _exposed_seconds(message_seconds, pass_count * pass_seconds, hidden_share)
        for pass_count in (micro_batches, maximum(micro_batches, minimum(step_plan.micro_batches, step_plan.pp)))
    )
    return (last_chunk_seconds + (step_plan.vpp - 1) * other_chunk_seconds) / step_plan.vpp


def _sends_once_per_step(step_plan: StepPlan, software_stack: SoftwareStack) -> Any:
    """Whether data-parallel messages run once per step, because pipeline ranks keep gathered weights until its end."""
    return software_stack.keeps_weights_in_pipelines and step_plan.pp > 1


def _exposed_seconds(message_seconds: Number, product_seconds: Number, hidden_share: float) -> Number:
    """Returns the seconds of messages beyond those that computation hides.

    product_seconds: of the products that run at the same time. hidden_share: of the messages that can run beside them.
    """
    return message_seconds - hidden_share * minimum(message_seconds, product_seconds)


def _data_group_seconds(
    step_plan: StepPlan,
    device: Device,
    software_stack: SoftwareStack,
    rank_count: Number,
    rank_stride: Number,
    parameters: Number,
    trained_params: Number,
    layer_count: Number,
) -> tuple[Number, Number, Number]:
    """Returns the seconds of a group's weight and gradient collectives, and the parameters that each rank updates.

    rank_count, rank_stride: size of a group that replicates the weights, and devices from one rank to the next.
    parameters, trained_params: weights of a rank, and those of them or of their adapters that are trained.
    """
    sends_weight_format = step_plan.dtype == "fp32" and not software_stack.sends_gradient_buffers
    gradient_bytes = (FP32_BYTES if sends_weight_format else software_stack.gradient_bytes) * trained_params
    if software_stack.bucket_parameters == "layer":
        bucket_count = layer_count
    else:
        bucket_count = maximum(
            1,
            trained_params
            / maximum(software_stack.bucket_parameters, software_stack.bucket_parameters_per_rank * rank_count),
        )
    pass_count = choose(_sends_once_per_step(step_plan, software_stack), 1, step_plan.micro_batches)
    reduce_count = pass_count if step_plan.zero >= 2 else 1
    if not step_plan.zero:
        reduce_seconds = device.message_seconds(
            "all_reduce", rank_count, gradient_bytes, rank_stride, message_count=bucket_count
        )
        return 0.0, reduce_seconds, trained_params
    shard_ranks = maximum(1, rank_count / step_plan.replicas)
    weight_bytes = WEIGHT_BYTES * (parameters if step_plan.zero == 3 else trained_params)
    weight_seconds = device.message_seconds(
        "all_gather", shard_ranks, weight_bytes, rank_stride, message_count=bucket_count
    )
    reduction_kind: CollectiveKind = (
        "all_reduce" if software_stack.all_reduces_gradients and step_plan.zero < 3 else "reduce_scatter"
    )
    shard_reduction_seconds = device.message_seconds(
        reduction_kind, shard_ranks, gradient_bytes, rank_stride, message_count=bucket_count
    )
    replica_reduction_seconds = device.message_seconds(
        "all_reduce",
        step_plan.replicas,
        gradient_bytes / shard_ranks,
        shard_ranks * rank_stride,
        message_count=bucket_count,
    )
    gathers_per_pass = choose(_sends_once_per_step(step_plan, software_stack), 1, 2 if step_plan.reshard else 1)
    gather_count = pass_count * gathers_per_pass if step_plan.zero == 3 else 1
    reduction_seconds = reduce_count * (shard_reduction_seconds + replica_reduction_seconds)
    return gather_count * weight_seconds, reduction_seconds, trained_params / shard_ranks


# --- many layouts ----------------------------------------------------------------------------------------------------


class StepTimer:
    """Estimates training steps of one model on one device with one software stack.

    It times each micro-batch once: the kernels of a rank with these tp, ep and cp, number format and recomputation.
    """

    def __init__(self, spec: ModelSpec, device: Device, software_stack: SoftwareStack) -> None:
        self.spec: ModelSpec = spec
        self.device: Device = device
        self.stack: SoftwareStack = software_stack
        self._timed_passes: dict[tuple[Any, ...], tuple[TimedPass, LayerCosts]] = {}

    def step(self, step_plan: StepPlan) -> StepTime:
        """Estimates the seconds of a step plan; the result equals that of `training_step`."""
        timing_key = (
            step_plan.rank_pass(self.stack),
            step_plan.dtype,
            step_plan.recomputes_attention,
            step_plan.recomputed_nodes,
            step_plan.recomputed_modules,
            step_plan.stops_early,
        )
        if timing_key not in self._timed_passes:
            timed_pass = time_pass(
                rank_work(self.spec, timing_key[0]), self.device, self.stack, NumberFormats(step_plan.dtype)
            )
            self._timed_passes[timing_key] = timed_pass, layer_costs(timed_pass, self.stack, step_plan)
        return step_time_of_pass(self.spec, self.device, self.stack, step_plan, *self._timed_passes[timing_key])


def training_steps(
    spec: ModelSpec, device: Device, software_stack: SoftwareStack, step_plan: StepPlan, plan_columns: Mapping[str, Any]
) -> Any:
    """Returns the seconds of steps in many layouts as an array (needs NumPy).

    step_plan: the fields that all layouts have in common. plan_columns: field name → array, for `tp` and any of `pp`,
    `dp`, `cp`, `ep`, `vpp`, `micro_batch`, `micro_batches` and `replicas`.
    """
    import numpy

    step_seconds = numpy.empty(len(plan_columns["tp"]))
    for tp_size in numpy.unique(plan_columns["tp"]):
        has_tp_size = plan_columns["tp"] == tp_size
        sizes_of_runs = {
            column_name: column[has_tp_size].astype(float)
            for column_name, column in plan_columns.items()
            if column_name != "tp"
        }
        plans_of_tp = replace(step_plan, tp=int(tp_size), **sizes_of_runs)
        size_names = [size_name for size_name in ("ep", "cp", "micro_batch") if size_name in sizes_of_runs]
        distinct_sizes, size_index = _distinct_rows([sizes_of_runs[size_name] for size_name in size_names])
        plan_of_sizes = replace(step_plan, tp=int(tp_size), **dict(zip(size_names, distinct_sizes, strict=True)))
        timed_pass = time_pass(
            rank_work(spec, plan_of_sizes.rank_pass(software_stack)),
            device,
            software_stack,
            NumberFormats(step_plan.dtype),
        )
        costs = layer_costs(timed_pass, software_stack, step_plan).at_index(size_index)
        step_seconds[has_tp_size] = _step_seconds(
            spec,
            device,
            software_stack,
            plans_of_tp,
            _pipeline_ranks_of_plans(plans_of_tp, costs, len(size_index)),
            timed_pass,
        ).seconds
    return step_seconds


def _pipeline_ranks_of_plans(step_plan: StepPlan, costs: LayerCosts, plan_count: int) -> PipelineRanks:
    """Returns the `PipelineRanks` of many step plans as arrays; equal pipelines are computed once."""
    import numpy

    pp, vpp = (numpy.broadcast_to(plan_sizes, plan_count) for plan_sizes in (step_plan.pp, step_plan.vpp))
    (pp_sizes, vpp_sizes), size_index_by_plan = _distinct_rows([pp, vpp])
    columns_of_rank_costs = numpy.empty((len(PipelineRanks._fields) - 1, plan_count))
    for size_index, (pp_size, vpp_size) in enumerate(zip(pp_sizes, vpp_sizes, strict=True)):
        plan_indices = numpy.flatnonzero(size_index_by_plan == size_index)
        rank_costs = pipeline_ranks(
            costs.at_index(plan_indices), int(pp_size), int(vpp_size), step_plan.recomputed_share, step_plan.stage_sizes
        )
        for rank_cost_column, plan_sizes in zip(
            columns_of_rank_costs, rank_costs[: len(columns_of_rank_costs)], strict=True
        ):
            rank_cost_column[plan_indices] = plan_sizes
    return PipelineRanks(*columns_of_rank_costs)


def _distinct_rows(plan_columns: Sequence[Any]) -> tuple[Any, Any]:
    """Returns the distinct combinations of the columns' values, and each row's index among them."""
    import numpy

    return numpy.unique(numpy.stack(list(plan_columns)), axis=1, return_inverse=True)
