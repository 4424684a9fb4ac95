"""Replays the training steps of one FSDP2 rank.

Parameters are sharded in one number format, and gathered in another in which modules compute (`MixedPrecisionPolicy`):
in torchtitan float32 and bfloat16, with gradients summed in float32. The optimizer updates the rank's own rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from itertools import pairwise
from typing import Literal

from ...device_memory.estimate import Memory
from ...device_memory.optimizers.record import Optimizer
from ...device_memory.optimizers.registry import optimizer, optimizers
from ...device_memory.training import TrainingConfig, TrainingRun, record_two_steps, repeat_steps
from ...errors import InputError
from ...frozen import frozen
from ...model import ModelSpec
from ...parallel.layout import Layout
from ...parallel.rank_program import RankFlow
from ...simulator.event_log import EventRecorder, RecordedEvents
from ...simulator.layer_stacks import layer_stacks
from ...simulator.meter import AllocationPlace, Meter
from ...simulator.profiles.context_parallel import ContextParallelRing
from ...simulator.tensor import DTYPES
from .lowering import EMBEDDING_GROUP, HEAD_GROUP, MODEL_GROUP, FsdpProfile, ParamGroupKey, groups_of_layer
from .param_groups import CommunicationState, FsdpSharding, ParamGroup
from .settings import Float8Settings, OuterGroups, TitanSettings
from .with_tensor_parallel import FsdpTensorParallelProfile


@frozen
class FsdpSettings:
    """How a trainer calls `fully_shard` (FSDP2): number formats, parameter groups and prefetching.

    dtype: number format of shards, of their gradients and of the optimizer's states.
    reduction_format: number format in which gradients are reduced over ranks.
    keeps_last_layer_gathered: whether the last layer stays gathered between forward and backward pass, as in torchtitan
        before 2025-07-28.
    reduces_each_microbatch: whether every micro-batch reduces its gradients, as in torchtitan. Otherwise only the last
        one of a step does (`set_requires_gradient_sync`).
    outer_groups: the groups of parameters outside the layers: `separate` as in torchtitan since 2025-07-28, `embedding`
        as in verl. By default `together`: one group, whose gradients are reduced at the end of the backward pass.
    float8: the linear layers that run in 8 bits; None (default) for none.
    uses_loss_parallel: with tensor parallelism, whether the loss is computed on divided logits (`loss_parallel`), as in
        torchtitan; true by default.
    prefetched_layer_count: layers that each layer gathers ahead, in both passes; 0 (default) for torch's order, which
        gathers one layer ahead in the backward pass. The last (in the backward pass, the first)
        `prefetched_layer_count` layers gather none, as in PyTorch's example (distributed/FSDP2/example.py).
    frozen_dtype: number format of the shards of frozen parameters; empty (default) for `dtype`.
    copies_gathered_tokens: with tensor parallelism, whether gathered tokens of one sequence are copied; false by
        default.
    overlaps_products: with tensor parallelism, whether it is asynchronous in compiled layers; false by default.
    offloads_to_host: whether shards, gradients and optimizer states are on the host (`CPUOffloadPolicy`); false by
        default.
    wraps_whole_experts: whether experts that no other rank has a part of are in a group, too, as in torchtitan; true by
        default.
    """

    dtype: str = "float32"
    reduction_format: str = "float32"
    keeps_last_layer_gathered: bool = True
    reduces_each_microbatch: bool = True
    outer_groups: OuterGroups = "together"
    float8: Float8Settings | None = None
    uses_loss_parallel: bool = True
    prefetched_layer_count: int = 0
    frozen_dtype: str = ""
    copies_gathered_tokens: bool = False
    overlaps_products: bool = False
    offloads_to_host: bool = False
    wraps_whole_experts: bool = True

    @property
    def outer_group_keys(self) -> tuple[ParamGroupKey, ...]:
        """The keys of the parameter groups outside the layers, without the whole model's own group."""
        return {"separate": (EMBEDDING_GROUP, HEAD_GROUP), "embedding": (EMBEDDING_GROUP,), "together": ()}[
            self.outer_groups
        ]


TORCHTITAN_FSDP_SETTINGS = FsdpSettings()
"""The arguments of torchtitan before 2025-07-28."""

SEPARATE_HEAD_SINCE = date(2025, 7, 28)
"""Date since which torchtitan has groups for embedding and head, and frees the last layer (commit 83e694105)."""

DATE_OF_2024_JOBS = date(2024, 12, 26)
"""Default date of a job in the form of 2024 (commit 9dec370)."""

DEFAULT_TITAN_SETTINGS = TitanSettings()
"""The torchtitan settings of a run without a job file."""

EAGER_LOSS_DATES = date(2024, 12, 18), date(2025, 4, 2)
"""Start and end of the period in which torchtitan compiled layers but not the loss (commits e8977b007, bbb1b616e)."""


GATHERS_IN_PLACE_SINCE = date(2025, 12, 2)
"""Date since which torch does not copy the gathered tokens of a single sequence (pull request 169404)."""


def torchtitan_date(torchtitan_version: date | None, settings: TitanSettings) -> date | None:
    """Returns a date of torchtitan, from the version or else the job's format; None for the newest."""
    return DATE_OF_2024_JOBS if torchtitan_version is None and settings.is_2024_form else torchtitan_version


def torchtitan_config_and_settings(
    spec: ModelSpec,
    training_config: TrainingConfig,
    version: date | None = None,
    settings: TitanSettings = DEFAULT_TITAN_SETTINGS,
) -> tuple[TrainingConfig, FsdpSettings]:
    """Returns the training settings and the FSDP settings that torchtitan uses at a version.

    The shards are the master weights. Gradients are reduced in float32, unless they have a format of their own.
    Adapters are sharded in their own format, and gathered in that of the weights.

    training_config: the same training on one device.
    version: the date of torchtitan; None (default) for the newest.
    settings: settings of a job; the defaults of torchtitan by default.
    Raises `InputError` for frozen weights under version 1 of FSDP.
    """
    check_optimizer(training_config, settings.fsdp_version)
    version = torchtitan_date(version, settings)
    dtype, frozen_format = "float32" if training_config.has_master_weights else training_config.dtype, ""
    reduction_format = settings.reduction_format or (
        "float32" if training_config.gradient_dtype is None else training_config.gradient_dtype.name
    )
    has_separate_head = version is None or version >= SEPARATE_HEAD_SINCE
    has_eager_loss = version is not None and EAGER_LOSS_DATES[0] <= version < EAGER_LOSS_DATES[1]
    if settings.compiles_loss is not None:
        has_eager_loss = not settings.compiles_loss
    kernel_choices = replace(training_config.kernel_choices, joins_rope_halves=True)
    training_config = replace(
        training_config, has_master_weights=False, gradient_dtype=None, kernel_choices=kernel_choices
    )
    if settings.has_flat_parameters and (
        training_config.adapters is not None or training_config.first_trained_layer is not None
    ):
        raise InputError(
            "fsdp_version 1: beside frozen weights it is not modelled, as its flat gradients hold those of frozen "
            "weights too; expected fsdp_version 2"
        )
    if training_config.adapters is not None:
        frozen_format, dtype = dtype, training_config.adapters.dtype.name
        training_config = replace(
            training_config, adapters=replace(training_config.adapters, dtype=DTYPES[training_config.dtype])
        )
    if has_eager_loss:
        training_config = replace(
            training_config, kernel_choices=replace(training_config.kernel_choices, compiled_loss=False)
        )
    has_head_group = has_separate_head and no_head_group_reason(spec, training_config) == ""
    return training_config, FsdpSettings(
        dtype,
        reduction_format,
        keeps_last_layer_gathered=not has_separate_head,
        reduces_each_microbatch=settings.reduces_each_microbatch,
        outer_groups=settings.outer_groups if has_head_group else "together",
        float8=settings.float8,
        uses_loss_parallel=settings.uses_loss_parallel,
        frozen_dtype=frozen_format,
        copies_gathered_tokens=version is not None and version < GATHERS_IN_PLACE_SINCE,
        overlaps_products=settings.async_tensor_parallel,
        offloads_to_host=settings.offloads_to_host,
        wraps_whole_experts=settings.wraps_whole_experts,
    )


def check_run(memory_estimate: Memory, version_text: str) -> None:
    """Raises `InputError` for a run that is not modelled with FSDP2 in any layout."""
    check_training(memory_estimate.training(), fsdp_version=2)


def check_optimizer(training_config: TrainingConfig, fsdp_version: Literal[1, 2] | None = None) -> None:
    """Raises `InputError` for an optimizer that cannot update shards.

    fsdp_version: version of FSDP, whose shards are ranges of a flat tensor in 1 and rows of each tensor (DTensor) in 2;
        None (default) for either.
    """

    def runs_on_shards(optimizer_record: Optimizer) -> bool:
        """Whether an optimizer can update a rank's shard alone: rows of a tensor, or a range of its elements."""
        return (
            optimizer_record.supports_element_shards
            or (optimizer_record.supports_row_shards and fsdp_version != 1)
            or (optimizer_record.supports_flat_shards and fsdp_version != 2)
        )

    if not runs_on_shards(optimizer(training_config.optimizer)):
        names_text = " or ".join(
            known_optimizer.name for known_optimizer in optimizers() if runs_on_shards(known_optimizer)
        )
        raise InputError(
            f"--optimizer {training_config.optimizer}: on shards it is not modelled; expected {names_text}, or whole "
            "replicas with --framework torch"
        )


def check_training(training_config: TrainingConfig, fsdp_version: Literal[1, 2] | None = None) -> None:
    """Raises `InputError` for training that is not modelled with FSDP2 in any layout.

    fsdp_version: as of `check_optimizer`.
    """
    check_optimizer(training_config, fsdp_version)
    adapters = training_config.adapters
    _refuse_unmodelled(
        (
            adapters is not None and adapters.base_storage == "int8",
            "adapters over weights in 8 bits",
            "--base nf4 or none",
        ),
        (training_config.autocast, "autocast beside its own mixed precision", "--precision bf16-master or bf16"),
        (training_config.optimizer_in_backward, "the optimizer in the backward pass", "none"),
        (training_config.keeps_gradients, "gradients that are set to zero", "--zero-grad none"),
    )


def _refuse_unmodelled(*conditions: tuple[bool, str, str]) -> None:
    """Raises `InputError` for the first unmodelled feature whose condition is true.

    conditions: each (whether it is true, what is not modelled in words, what is expected).
    """
    for is_unmodelled, problem_text, expected_value in conditions:
        if is_unmodelled:
            raise InputError(f"FSDP2 with {problem_text} is not modelled; expected {expected_value}")


def sharding_of_rank(
    training_config: TrainingConfig, layout: Layout, rank: int, fsdp_settings: FsdpSettings = TORCHTITAN_FSDP_SETTINGS
) -> FsdpSharding:
    """Returns how a rank's parameters are sharded.

    Raises `InputError` for a layout that divides more than parameters, for a rank that it does not have, and for
    training that FSDP2 is not modelled with.
    """
    if layout.ep > 1 and (layout.tp > 1 or layout.pp > 1):
        other_option = f"--tp {layout.tp}" if layout.tp > 1 else f"--pp {layout.pp}"
        raise InputError(f"--ep {layout.ep}: with FSDP2 and {other_option} it is not modelled; expected one of the two")
    if not 0 <= rank < layout.world_size:
        raise InputError(
            f"--rank {rank}: the layout has {layout.world_size} ranks; expected one from 0 to {layout.world_size - 1}"
        )
    check_training(training_config)
    for format_name in (fsdp_settings.dtype, fsdp_settings.reduction_format):
        if format_name not in DTYPES:
            raise InputError(f"FSDP2 in {format_name} is not modelled; expected one of {', '.join(DTYPES)}")
    adapters, is_float8 = training_config.adapters, fsdp_settings.float8 is not None
    _refuse_unmodelled(
        (
            adapters is not None and layout.dp < layout.world_size,
            "adapters in a layout that divides more",
            "--fsdp N alone",
        ),
        (adapters is not None and layout.ep > 1, "adapters where ranks divide the experts", "--ep 1"),
        (adapters is not None and is_float8, "adapters beside products in 8 bits", "one of the two"),
        (
            training_config.first_trained_layer is not None and layout.dp < layout.world_size,
            "frozen layers in a layout that divides more",
            "--fsdp N alone",
        ),
        (training_config.has_master_weights, "master weights beside shards in fp32", "--precision bf16-master"),
        (training_config.gradient_dtype is not None, "sums of gradients in another format", "no --grad-dtype"),
        (fsdp_settings.offloads_to_host and layout.pp > 1, "shards on the host in a pipeline", "--pp 1"),
        (
            fsdp_settings.offloads_to_host and is_float8,
            "shards on the host beside products in 8 bits",
            "one of the two",
        ),
    )
    number_formats = DTYPES[fsdp_settings.dtype], DTYPES[training_config.dtype], DTYPES[fsdp_settings.reduction_format]
    coordinates, ranks_per_replica = layout.coordinates(rank), layout.dp // layout.hsdp_replicas
    shard_index = coordinates.dp % ranks_per_replica * layout.cp + coordinates.cp  # the mesh `dp_shard_cp`
    frozen_dtype = DTYPES[fsdp_settings.frozen_dtype] if fsdp_settings.frozen_dtype else None
    rank_sharding = FsdpSharding(
        layout.shard_count,
        shard_index,
        layout.hsdp_replicas,
        *number_formats,
        fsdp_settings.float8,
        layout.tp,
        fsdp_settings.uses_loss_parallel,
        frozen_dtype,
        fsdp_settings.copies_gathered_tokens,
        fsdp_settings.overlaps_products,
        fsdp_settings.offloads_to_host,
    )
    if layout.ep == 1:
        return rank_sharding
    expert_shards = layout.expert_shard_count
    is_wrapped = (
        fsdp_settings.wraps_whole_experts
        or expert_shards * layout.hsdp_replicas > 1
        or rank_sharding.dtype is not rank_sharding.gathered_dtype
    )
    moe_sharding = replace(
        rank_sharding,
        shard_count=expert_shards,
        shard_index=coordinates.edp % expert_shards,
        is_expert_sharding=True,
        is_wrapped=is_wrapped,
    )
    return replace(rank_sharding, expert_sharding=moe_sharding)


class FsdpRun(TrainingRun):
    """Replays the training steps of one FSDP2 rank.

    communication_state: the communication state of its groups, with their collectives.
    program: the program of a rank of tensor parallelism; by default that of the whole model.
    context_parallel_ring: the ranks that share each sequence, of which this rank trains on its tokens; None by default.
    """

    profile: type[FsdpProfile] = FsdpProfile
    lowering: FsdpProfile

    def __init__(
        self,
        spec: ModelSpec,
        training_config: TrainingConfig,
        fsdp_sharding: FsdpSharding,
        fsdp_settings: FsdpSettings = TORCHTITAN_FSDP_SETTINGS,
        reshards: bool = True,
        layers: Mapping[int, int] | None = None,
        workspace_bytes: int = 0,
        memory_meter: Meter | EventRecorder | None = None,
        program: RankFlow | None = None,
        context_parallel_ring: ContextParallelRing | None = None,
    ) -> None:
        if program is not None and program.rank_axes.layout.tp > 1:
            self.profile = FsdpTensorParallelProfile
        super().__init__(spec, training_config, layers, workspace_bytes, memory_meter, program)
        self.fsdp_settings: FsdpSettings = fsdp_settings
        self.reshard: bool = reshards
        self.lowering.ring = context_parallel_ring
        self.communication_state: CommunicationState = CommunicationState(self.graph, fsdp_sharding)
        self.stacks: list[str] = [layer_stack.path for layer_stack in layer_stacks(spec)]
        if fsdp_settings.outer_group_keys and (refusal_reason := no_head_group_reason(spec, training_config)):
            raise InputError(f"FSDP2 with groups of their own for embedding and head: {refusal_reason}")
        self.lowering.shard(self.communication_state, self.stacks, fsdp_settings.outer_group_keys)

    @property
    def has_equal_shards(self) -> bool:
        """Whether ranks' shards of every parameter are equally large; known after the set-up."""
        return all(
            parameter.shard_elements * parameter_group.sharding.shard_count == parameter.unsharded_param.numel
            for parameter_group in self.lowering.groups.values()
            for parameter in parameter_group.parameters
        )

    def set_up(self) -> None:
        """Allocates the parameters' shards, and sets which groups reshard and prefetch."""
        super().set_up()
        set_resharding_and_prefetch(self.lowering.groups, self.stacks, self.fsdp_settings, self.reshard)

    def run_micro_batches(self) -> None:
        """Replays at most three micro-batches of a step, since further ones would allocate the same."""
        reduces_each_micro_batch = self.fsdp_settings.reduces_each_microbatch
        microbatch_count = min(self.training_config.microbatches, 2 if reduces_each_micro_batch else 3)
        for i in range(microbatch_count):
            if i:
                self.replace_batch()
            self.communication_state.reduces_gradients = reduces_each_micro_batch or i == microbatch_count - 1
            self.forward_and_backward()

    def update(self) -> None:
        """Replays the optimizer's step, without device allocations if shards are on the host."""
        if not self.communication_state.sharding.offloads_to_host:
            super().update()

    def finish_communication(self) -> None:
        """Ends the communication of all FSDP groups after a backward pass."""
        self.meter.place = AllocationPlace("backward")
        self.communication_state.finish(list(self.lowering.groups.values()))


def set_resharding_and_prefetch(
    group_by_key: Mapping[ParamGroupKey, ParamGroup],
    stack_paths: Sequence[str],
    fsdp_settings: FsdpSettings,
    reshards: bool,
) -> None:
    """Sets, for each FSDP group, whether the forward pass reshards it and which groups it prefetches.

    stack_paths: per stack, the path of its layers.
    """
    last_layer_key = max(
        (
            group_key
            for group_key in group_by_key
            if group_key.path == stack_paths[-1] and not group_key.is_experts_group
        ),
        default=MODEL_GROUP,
    )
    for group_key, parameter_group in group_by_key.items():
        is_last_layer = group_key[:2] == last_layer_key[:2]
        stays_gathered = group_key in (MODEL_GROUP, HEAD_GROUP) or (
            fsdp_settings.keeps_last_layer_gathered and is_last_layer
        )
        parameter_group.reshards_after_forward = reshards and not stays_gathered
    if any(group_key.is_experts_group for group_key in group_by_key):
        _set_prefetch_with_expert_groups(group_by_key, stack_paths)
    elif fsdp_settings.prefetched_layer_count:
        for stack_path in stack_paths:
            _set_prefetch(
                [group_by_key[group_key] for group_key in sorted(group_by_key) if group_key.path == stack_path],
                fsdp_settings.prefetched_layer_count,
            )


def _set_prefetch(layer_groups: Sequence[ParamGroup], prefetched_layers: int) -> None:
    """Sets which layers each layer prefetches. prefetched_layers: how many."""
    for i, parameter_group in enumerate(layer_groups):
        if i + prefetched_layers < len(layer_groups):
            parameter_group.forward_prefetch = layer_groups[i + 1 : i + 1 + prefetched_layers]
        if i >= prefetched_layers:
            parameter_group.backward_prefetch = layer_groups[i - prefetched_layers : i][::-1]


def _set_prefetch_with_expert_groups(
    group_by_key: Mapping[ParamGroupKey, ParamGroup], stack_paths: Sequence[str]
) -> None:
    """Makes each layer prefetch all groups of the next layer, in forward and backward passes.

    Source: torchtitan, distributed/fsdp.py, `apply_fsdp_to_decoder`, where ranks divide the experts.
    """
    dense_layer_keys = [
        layer_key
        for stack_path in stack_paths
        for layer_key in sorted(group_by_key)
        if layer_key.path == stack_path and not layer_key.is_experts_group
    ]
    group_order = [
        layer_key for layer_key in (EMBEDDING_GROUP, *dense_layer_keys, HEAD_GROUP) if layer_key in group_by_key
    ]
    groups_by_order = [groups_of_layer(group_by_key, layer_key) for layer_key in group_order]
    for parameter_group in group_by_key.values():
        parameter_group.prefetches_previous = False
    for earlier_layer, later_layer in pairwise(groups_by_order):
        earlier_layer[-1].forward_prefetch = later_layer
        later_layer[-1].backward_prefetch = earlier_layer[::-1]


def no_head_group_reason(spec: ModelSpec, training_config: TrainingConfig) -> str:
    """Returns the reason why embedding and head have no FSDP groups of their own; empty if they can have them."""
    if spec.kind != "decoder" or spec.tie_word_embeddings or spec.head.type != "lm":
        return "the model is no decoder with an untied language-model head"
    if training_config.include:
        return "other parts of the model are trained too"
    return ""


def record_fsdp_run(create_run: Callable[[EventRecorder], FsdpRun]) -> RecordedEvents:
    """Records a rank's set-up and two training steps. create_run: returns a new run on a meter."""
    training_run = create_run(memory_meter := EventRecorder())
    training_run.set_up()
    set_up_events = memory_meter.take_events()
    training_run.replace_batch()
    batch_events = memory_meter.take_events()
    training_run.run_micro_batches()
    recorded_run = repeat_steps(training_run, memory_meter, set_up_events, batch_events, memory_meter.take_events())
    recorded_run = recorded_run or record_two_steps(create_run(memory_meter := EventRecorder()), memory_meter)
    return replace(recorded_run, depends_on_shard=not training_run.has_equal_shards)
