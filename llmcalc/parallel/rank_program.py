"""The program of one rank: the model's flow, recorded with the rank's sizes and the stage's layers.

A layout divides axes by their names. Parts compute with the rank's part of a divided axis, so parameters, FLOPs,
caches and kernels of a rank follow from its program as those of the model follow from the model's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, wraps
from typing import Any, TypeVar

from .. import ops
from ..algebra import Number
from ..components.towers import record_towers
from ..errors import InputError
from ..flow.axis import Axis, JoinedShapes, Shape
from ..flow.program import AlternativeBranches, ModuleScope, ProgramItem, Step
from ..flow.record import Flow
from ..flow.value import Value, Weight
from ..flow.verbs.weights import IndexSource
from ..frozen import frozen
from ..identity_cache import IdentityCache
from ..model import ModelSpec
from ..optional import TOWERS
from ..workload.rows import TOKENS, Rows
from .divisors import divisors
from .layout import ONE_DEVICE, Coordinates, ImpossibleLayout, Layout, RankChunks, Stage, check_divided_heads

TENSOR_PARALLEL_AXES = frozenset(
    {"heads", "kv_heads", "key_heads", "block_index_heads", "ffn", "vocab", "groups", "output_groups", "inner"}
)
"""Names of the axes that tensor parallelism divides."""

COPIED_AXES = frozenset({"kv_heads", "block_index_heads"})
"""Axes of heads that ranks replicate if there are more ranks than heads: each has the heads that its queries read
(vLLM, `QKVParallelLinear`, `MinimaxM3QKVParallelLinearWithIndexer`).
"""

FIELD_OF_AXIS = {
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "key_heads": "linear_num_key_heads",
    "ffn": "intermediate_size",
    "expert_ffn": "the intermediate_size of an expert",
    "vocab": "vocab_size",
    "experts": "num_experts",
    "block_index_heads": "index_n_heads",
    "groups": "n_groups",
    "output_groups": "o_groups",
}
"""Name of an axis → the config field with its length."""

VERBS_WITHOUT_OPERATION = frozenset({"hold", "keep", "enter", "leave", "add_output"})
"""Recorder verbs that compute nothing."""

SUMMING_VERBS = frozenset({"linear", "experts", "again"})
"""Recorder verbs whose output is a sum over the axes of the input."""

UNEVEN_AXES = frozenset({"vocab"})
"""Names of axes whose last shard may be shorter than the others."""


@frozen(slots=True)
class AxisShard(Axis):
    """One rank's shard of an axis. full_size: the length before sharding. rank_count: the number of ranks."""

    full_size: Number = None
    rank_count: int = 1


def axes_with_concatenated_parts(shape: Shape) -> Iterator[Axis]:
    """Yields every axis of a shape; in place of concatenated axes, the axes of their parts."""
    for axis in shape:
        if isinstance(axis, JoinedShapes):
            for axis_part in axis.shapes:
                yield from axes_with_concatenated_parts(axis_part)
        else:
            yield axis


def has_equal_shards(shape: Shape) -> bool:
    """Whether several ranks have the same shard, because an axis has fewer parts than there are ranks."""
    return any(
        isinstance(axis, AxisShard) and isinstance(axis.size, int) and axis.size * axis.rank_count > axis.full_size
        for axis in axes_with_concatenated_parts(shape)
        if axis.name not in UNEVEN_AXES
    )


def is_divided(shape: Shape) -> bool:
    """Whether ranks divide an axis of the shape."""
    for axis in shape:
        if isinstance(axis, JoinedShapes):
            if any(map(is_divided, axis.shapes)):
                return True
        elif isinstance(axis, AxisShard) and axis.rank_count > 1:
            return True
    return False


@frozen
class RankAxes:
    """Computes the lengths of axes on one rank. coordinates: the rank's index in each parallel group."""

    layout: Layout
    coordinates: Coordinates

    @property
    def has_shards(self) -> bool:
        """Whether any axis except the experts' is sharded."""
        return self.layout.tp > 1 or self.layout.expert_tp > 1

    def degree(self, axis_name: str) -> int:
        """Returns the number of ranks that divide an axis of this name."""
        if axis_name == "expert_ffn":
            return self.layout.expert_tp
        return self.layout.tp if axis_name in TENSOR_PARALLEL_AXES else 1

    def axis_on_rank(self, axis: Axis) -> Axis:
        """Returns the rank's part of an axis. Raises `InputError` for a length that the layout does not divide."""
        if isinstance(axis, AxisShard):
            return axis
        rank_index = self.coordinates.etp if axis.name == "expert_ffn" else self.coordinates.tp
        return self.axis_part(axis, self.degree(axis.name), rank_index)

    def expert_axis(self, axis: Axis) -> Axis:
        """Returns the rank's part of an axis of experts, or of heads with separate weights."""
        if isinstance(axis, AxisShard) or axis.name != "experts":
            return self.axis_on_rank(axis)
        return self.axis_part(axis, self.layout.ep, self.coordinates.ep)

    def axis_part(self, axis: Axis, degree: int, part_index: int) -> Axis:
        """Returns part number `part_index` of an axis that is divided into `degree` parts."""
        axis_size = axis.size
        if degree == 1 or not isinstance(axis_size, int):
            return axis if degree == 1 else AxisShard(axis.name, axis_size / degree, axis_size, degree)
        if axis.name in UNEVEN_AXES:
            part_length = -(-axis_size // degree)
            return AxisShard(
                axis.name, max(0, min(part_length, axis_size - part_length * part_index)), axis_size, degree
            )
        # vLLM, mamba_utils.py, `extra_groups_for_head_shards`
        is_single_group = axis.name == "groups" and axis_size == 1
        if is_single_group or (axis.name in COPIED_AXES and degree > axis_size and degree % axis_size == 0):
            return AxisShard(axis.name, 1, axis_size, degree)
        if axis_size % degree:
            option_name = {"experts": "--ep", "expert_ffn": "--etp"}.get(axis.name, "--tp")
            expected_degrees = ", ".join(map(str, divisors(axis_size, 4 * degree)))
            field_name = FIELD_OF_AXIS.get(axis.name, axis.name)
            raise ImpossibleLayout(
                f"{option_name} {degree}: does not divide {field_name} {axis_size}; expected one of {expected_degrees}"
            )
        return AxisShard(axis.name, axis_size // degree, axis_size, degree)


def divides_state_space_groups(axes: Iterable[Axis], layout: Layout) -> bool:
    """Whether all tensor-parallel ranks get different groups of state-space heads, as in training.

    Inference engines give every rank a copy of a single group; training frameworks do not (Megatron-LM,
    core/ssm/mamba_mixer.py, `ngroups`).
    """
    return not any(axis.name == "groups" and isinstance(axis.size, int) and axis.size % layout.tp for axis in axes)


Verb = TypeVar("Verb", bound=Callable[..., Any])


def _with_rank_axes(verb: Verb) -> Verb:
    """Wraps a recording function so that the rank's shard replaces each axis, shape or weight among its arguments."""

    @wraps(verb)
    def record_on_rank(self: RankFlow, *args: Any, **options: Any) -> Any:
        argument_on_rank = self.argument_on_rank
        return verb(
            self,
            *map(argument_on_rank, args),
            **{option_name: argument_on_rank(argument) for option_name, argument in options.items()},
        )

    return record_on_rank  # type: ignore[return-value]


class RankFlow(Flow):
    """Records a model's operations with one rank's sizes.

    rank_axes: the rank's part of each axis.
    stage: the stage whose layers are recorded; None for all layers.
    stage_input: the input of the stage's first layer, which another rank sends.
    exit: the output of the stage's last layer.
    layer_items: the program items of the stage's layers.
    path: names of the modules around the current position.
    tables: id of an embedding table → this stage's copy of it.
    whole_towers: whether every rank has the whole encoders of images and audio, as engines run those whose heads the
        ranks do not divide.
    """

    def __init__(
        self, rank_axes: RankAxes, stage: Stage | RankChunks | None, has_undivided_towers: bool = False
    ) -> None:
        super().__init__()
        self.whole_towers: bool = has_undivided_towers
        self.rank_axes: RankAxes = rank_axes
        self.stage: Stage | RankChunks | None = stage
        self.exit: Value | None = None
        self.layer_items: range = range(0)
        self.path: list[str] = []
        self.tables: dict[int, Weight] = {}
        self.has_output: bool = stage is None or stage.has_head

    @cached_property
    def divides_evenly(self) -> bool:
        """Whether the ranks of a tensor-parallel group have shards of equal length."""
        divided_axes: set[Axis] = set()
        for operation in self.root.steps():
            weight = () if operation.weight is None else (operation.weight.output_axes, operation.weight.input_axes)
            for shape in (
                *weight,
                *(recorded_value.axes for recorded_value in (*operation.input_values, *operation.output_values)),
            ):
                divided_axes.update(axes_with_concatenated_parts(shape))
        row_axes = [axis for axis in divided_axes if isinstance(axis, AxisShard) and axis.name in UNEVEN_AXES]
        return all(axis.size * axis.rank_count == axis.full_size for axis in row_axes)

    def argument_on_rank(self, argument: Any) -> Any:
        """Returns the rank's shard of an axis, a shape or a weight; other arguments stay unchanged."""
        if isinstance(argument, Axis):
            return self.rank_axes.axis_on_rank(argument)
        if isinstance(argument, JoinedShapes):
            return JoinedShapes(tuple(self.argument_on_rank(axis_part) for axis_part in argument.shapes), argument.name)
        if type(argument) is tuple and argument and all(isinstance(axis, (Axis, JoinedShapes)) for axis in argument):
            return tuple(map(self.argument_on_rank, argument))
        if isinstance(argument, Weight):
            argument.output_axes = tuple(map(self.argument_on_rank, argument.output_axes))
        return argument

    @contextmanager
    def scope(self, scope_name: str, *, is_counted_whole: bool = False, **node_fields: Any) -> Iterator[ModuleScope]:
        self.path.append(scope_name)
        rank_axes = self.rank_axes
        if self.whole_towers and node_fields.get("optional") == TOWERS.name:
            self.rank_axes = replace(rank_axes, layout=ONE_DEVICE)
        try:
            with super().scope(scope_name, is_counted_whole=is_counted_whole, **node_fields) as scope:
                yield scope
        finally:
            self.path.pop()
            self.rank_axes = rank_axes

    def record(
        self,
        verb: str,
        node_name: str,
        input_values: tuple[Value, ...],
        output_values: tuple[Value, ...] = (),
        op: ops.Op | None = None,
        weight: Weight | None = None,
        node_fields: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        if self.rank_axes.has_shards and verb not in VERBS_WITHOUT_OPERATION:
            self._check_step(verb, node_name, input_values, output_values)
        super().record(verb, node_name, input_values, output_values, op, weight, node_fields, **options)

    def _check_step(self, verb: str, step_name: str, inputs: tuple[Value, ...], outputs: tuple[Value, ...]) -> None:
        """Raises `InputError` for an operation that is not modelled for a single rank."""
        shard_degrees: dict[str, int] = {}
        for recorded_value in (*inputs, *outputs):
            is_view = recorded_value.view_source is not None
            if is_view and is_divided(recorded_value.axes) != is_divided(recorded_value.storage.axes):
                raise self._unmodelled_error(verb, step_name, "groups values across the parts of ranks")
            for axis in axes_with_concatenated_parts(recorded_value.axes):
                shard_degree = axis.rank_count if isinstance(axis, AxisShard) else 1
                if shard_degrees.setdefault(axis.name, shard_degree) != shard_degree:
                    axis_label = FIELD_OF_AXIS.get(axis.name, axis.name)
                    raise self._unmodelled_error(verb, step_name, f"joins a part of {axis_label} with all of it")
        if verb in SUMMING_VERBS and inputs and is_divided(inputs[0].axes) and is_divided(outputs[0].axes):
            raise self._unmodelled_error(verb, step_name, "reads divided values and makes divided ones")

    def _unmodelled_error(self, verb: str, step_name: str, refusal_reason: str) -> InputError:
        """Creates the error for an unmodelled operation. refusal_reason: the verb phrase after the operation's path."""
        step_path = ".".join(path_part for path_part in (*self.path, step_name or verb) if path_part)
        return InputError(
            f"--tp {self.rank_axes.layout.tp}: {step_path} {refusal_reason}, which is not modelled; expected --tp 1"
        )

    def repeat(self, x: Value, heads: Axis, tiled: bool = False) -> Value:
        heads = self.argument_on_rank(heads)
        if is_divided(x.axes[:1]) != is_divided((heads,)):
            raise self._unmodelled_error("repeat", "", "repeats undivided heads for divided ones")
        return super().repeat(x, heads, tiled)

    def absorb(self, node_name: str, x: Value, weight: Weight, *output: Axis | JoinedShapes) -> Value:
        return super().absorb(node_name, x, self.argument_on_rank(weight), *map(self.argument_on_rank, output))

    def linear(self, node_name: str, x: Value, *output: Axis | JoinedShapes, **options: Any) -> Value:
        if options.get("weight") is not None:
            undivided_weight = options["weight"]
            options["weight"] = weight = self._stage_copy(undivided_weight)
            # the stage's head is a matrix of its own, transposed
            if weight is not undivided_weight and not weight.is_counted:
                weight.output_axes, weight.input_axes = undivided_weight.input_axes, undivided_weight.output_axes
        return super().linear(node_name, x, *map(self.argument_on_rank, output), **options)

    def look_up(self, weight: Weight, output_rows: Rows = TOKENS, index_source: IndexSource = "ids") -> Value:
        table_weight = self._stage_copy(weight)
        if not table_weight.is_counted:
            self._record_copy(table_weight)
        return super().look_up(table_weight, output_rows, index_source)

    def _record_copy(self, table_weight: Weight) -> None:
        """Records in the program a pipeline stage's own copy of the embedding, before the module that reads it."""
        copy_scope = self.root.items[-1]
        scope_attributes = (
            {}
            if isinstance(copy_scope, AlternativeBranches)
            else {"optional": copy_scope.node_fields.get("optional", "")}
        )
        embedding_op = ops.Embedding(table_weight.input_axes[0].size, self.element_count(table_weight.output_axes))
        self.root.items.insert(
            -1,
            Step(
                "unread_table",
                table_weight.name,
                (),
                (),
                embedding_op,
                table_weight,
                None,
                {"kind": "embedding", **scope_attributes},
            ),
        )
        table_weight.is_counted = True

    def table(
        self, node_name: str, table_axis: Axis, *vector_axes: Axis | JoinedShapes, **options: Any
    ) -> tuple[Value, Weight]:
        embeddings, weight = super().table(
            node_name, self.argument_on_rank(table_axis), *map(self.argument_on_rank, vector_axes), **options
        )
        if not self.path:
            self.tables[id(weight)] = weight
        return embeddings, weight

    def _stage_copy(self, weight: Weight) -> Weight:
        """Returns this stage's copy of a table of the first stage; other weights stay unchanged."""
        self.argument_on_rank(weight)
        if self.stage is None or self.stage.has_embedding or id(weight) not in self.tables:
            return weight
        if self.tables[id(weight)] is weight:
            self.tables[id(weight)] = Weight(weight.name, weight.output_axes, weight.input_axes)
        return self.tables[id(weight)]

    def experts(
        self, node_name: str, x: Value, experts: Axis, top_k: Number, *output: Axis | JoinedShapes, **options: Any
    ) -> Value:
        return super().experts(
            node_name, x, self.rank_axes.expert_axis(experts), top_k, *map(self.argument_on_rank, output), **options
        )

    def layers(
        self,
        x: Value,
        record_layer: Callable[[Value], Value],
        repeat: Number,
        indices: Sequence[int] | None,
        layers_name: str = "layers",
        **node_fields: Any,
    ) -> Value:
        if self.stage is None or layers_name != "layers" or self.path:
            return super().layers(x, record_layer, repeat, indices, layers_name, **node_fields)
        layer_indices = range(repeat) if indices is None else indices
        stage_layers = frozenset(self.stage.layers)
        stage_layer_indices = [layer_index for layer_index in layer_indices if layer_index in stage_layers]
        first_item_index = self.layer_items.start if self.layer_items.stop else len(self.root.items)
        if self.stage_input is None and not self.stage.has_embedding:
            x = self.stage_input = Value(x.rows, x.axes)
        self.exit = (
            super().layers(x, record_layer, len(stage_layer_indices), stage_layer_indices, layers_name, **node_fields)
            if stage_layer_indices
            else x
        )
        self.layer_items = range(first_item_index, len(self.root.items))
        return self.exit

    def remove_other_stages(self) -> None:
        """Removes the operations of other pipeline stages from the program.

        The first stage has the embedding and the encoders of images and audio. The last stage has the items after the
        layers. Raises `InputError` if the stage reads a value that only another stage computes.
        """
        if self.stage is None or (self.stage.has_embedding and self.stage.has_head):
            return
        layers_start_index, layers_end_index = self.layer_items.start, self.layer_items.stop
        items_before_layers, layer_items, items_after_layers = (
            self.root.items[:layers_start_index],
            self.root.items[layers_start_index:layers_end_index],
            self.root.items[layers_end_index:],
        )
        tower_scopes = [
            scope_item
            for scope_item in items_after_layers
            if isinstance(scope_item, ModuleScope) and scope_item.node_fields.get("optional") == TOWERS.name
        ]
        items_before_layers = (
            [*items_before_layers, *tower_scopes]
            if self.stage.has_embedding
            else [scope_item for scope_item in items_before_layers if _is_function_boundary(scope_item)]
        )
        items_after_layers = [
            scope_item
            for scope_item in items_after_layers
            if scope_item not in tower_scopes and (self.stage.has_head or _is_function_boundary(scope_item))
        ]
        self.root.items = [*items_before_layers, *layer_items, *items_after_layers]
        if not self.stage.has_head:
            self.result = self.exit
        computed_storage_ids = {
            id(scope.first_layer_output) for scope in self.root.scopes() if scope.first_layer_output is not None
        } | {id(self.stage_input)}
        for operation in self.root.steps(includes_idle=False):
            for recorded_value in operation.input_values:
                if (
                    id(recorded_value.storage) not in computed_storage_ids
                    and not recorded_value.storage.is_constant
                    and operation.verb not in VERBS_WITHOUT_OPERATION
                ):
                    pp, step_name = self.rank_axes.layout.pp, operation.name or operation.verb
                    raise InputError(
                        f"--pp {pp}: {step_name} in layers after the first stage reads what only the first stage "
                        "computes, which is not modelled; expected --pp 1"
                    )
            computed_storage_ids |= {id(recorded_value.storage) for recorded_value in operation.output_values}


VERBS_WITH_AXES = (
    "unread_table",
    "norm",
    "normalized",
    "conv",
    "vector",
    "buffer",
    "state",
    "core",
    "per_group",
    "blocks",
    "split",
    "take",
    "flat",
    "copies",
    "received",
    "cat",
    "sum",
    "joint_softmax",
    "sinusoids",
    "added_sinusoids",
)
"""Further verbs of the recorder with axes among their arguments."""

for _name in VERBS_WITH_AXES:
    setattr(RankFlow, _name, _with_rank_axes(getattr(Flow, _name)))


def _is_function_boundary(scope_item: ProgramItem) -> bool:
    """Whether a program item only marks the start or end of a function in the forward pass."""
    return isinstance(scope_item, Step) and scope_item.verb in ("enter", "leave")


def rank_program(spec: ModelSpec, layout: Layout, rank: int = 0, stage: Stage | RankChunks | None = None) -> RankFlow:
    """Records the operations and messages that one rank of a layout runs, and returns them.

    stage: the stage whose layers are recorded; None (default) for the whole model.
    Raises `InputError` for sizes that the layout does not divide, and for what is not modelled.
    """
    return _record_program(spec, RankAxes(layout, layout.coordinates(rank)), stage)


def _record_program(spec: ModelSpec, rank_axes: RankAxes, stage: Stage | RankChunks | None) -> RankFlow:
    if stage is not None and not (stage.has_embedding and stage.has_head) and (reason := no_pipeline_reason(spec)):
        raise InputError(f"--pp {rank_axes.layout.pp}: {reason}; expected --pp 1")
    check_experts(spec, rank_axes.layout.ep)
    rank_flow = RankFlow(rank_axes, stage, has_whole_towers(spec, rank_axes))
    spec.program(rank_flow)
    rank_flow.remove_other_stages()
    return rank_flow


def model_axes(spec: ModelSpec) -> list[Axis]:
    """Returns all axes of a model's tensors in order, without encoders' axes.

    Ranks that do not divide an encoder of images or audio have it whole.
    """
    program_root = spec.shared_program.root
    encoder_scopes = [scope for scope in program_root.scopes() if scope.node_fields.get("optional") == TOWERS.name]
    encoder_operations = {id(operation) for module_scope in encoder_scopes for operation in module_scope.steps()}
    main_operations = (operation for operation in program_root.steps() if id(operation) not in encoder_operations)
    return list(
        dict.fromkeys(
            axis
            for operation in main_operations
            for recorded_value in operation.output_values
            for axis in axes_with_concatenated_parts(recorded_value.axes)
        )
    )


def check_exchanged_heads(spec: ModelSpec, layout: Layout) -> None:
    """Raises `InputError` if `cp` does not divide a rank's heads in the all-to-all exchange of context parallelism."""
    if layout.cp == 1 or layout.cp_comm != "a2a":
        return
    for operation in spec.shared_program.root.steps():
        if operation.verb != "attention":
            continue
        source_values = [
            recorded_value if recorded_value.unrepeated_value is None else recorded_value.unrepeated_value
            for recorded_value in operation.input_values[:2]
        ]
        head_counts = [
            axis.size
            for source_value in source_values
            for axis in axes_with_concatenated_parts(source_value.axes)
            if "heads" in axis.name
        ]
        known_counts = [head_count for head_count in head_counts if isinstance(head_count, int)]
        check_divided_heads(known_counts, layout.tp, layout.cp, ("--cp-comm", "--cp"))


def has_whole_towers(spec: ModelSpec, rank_axes: RankAxes) -> bool:
    """Whether the model has encoders of images or audio whose sizes the ranks do not divide."""
    if not (spec.towers and rank_axes.has_shards):
        return False
    try:
        record_towers(RankFlow(rank_axes, None), spec.towers)
    except ImpossibleLayout:
        return True
    return False


_shared_programs: IdentityCache[RankFlow] = IdentityCache(512)
"""Cache of the recorded programs of ranks, by model."""


def cached_rank_program(
    spec: ModelSpec, layout: Layout, rank: int = 0, stage: Stage | RankChunks | None = None
) -> RankFlow:
    """Returns the program of one rank; layouts with equal shard sizes share one recording.

    It is for callers that only read it. Its layout has the groups that divide sizes; replicas are left out.
    Arguments and errors are those of `rank_program`.
    """
    expert_ranks, coordinates = layout.ep * layout.expert_tp, layout.coordinates(rank)
    layout_of_sizes = Layout(
        tp=layout.tp,
        pp=layout.pp,
        cp=layout.cp,
        dp=expert_ranks,
        ep=layout.ep,
        etp=layout.expert_tp,
        sequence_parallel=layout.sequence_parallel,
        cp_comm=layout.cp_comm,
    )
    rank_axes = RankAxes(layout_of_sizes, Coordinates(coordinates.tp, 0, 0, 0, coordinates.etp, coordinates.ep, 0))
    layout_without_stages = replace(layout_of_sizes, pp=1)  # the number of stages is in errors alone
    stage_key = stage and (stage.layers, stage.has_embedding, stage.has_head)
    program_key = layout_without_stages, rank_axes.coordinates, stage_key
    return _shared_programs.result((spec,), program_key, lambda: _record_program(spec, rank_axes, stage))


_representative_stages: IdentityCache[Stage] = IdentityCache(1024)
"""Cache of pipeline stages by model: the first stage of each kind."""


def representative_stage(spec: ModelSpec, stage: Stage) -> Stage:
    """Returns one stage as the representative of all stages with the same layer types, to share a program.

    Their programs differ in nothing but the indices of their layers, so callers that do not read those share one.
    """
    return _representative_stages.result((spec,), stage_program_key(spec, stage), lambda: stage)


def stage_program_key(spec: ModelSpec, stage: Stage) -> tuple[object, ...]:
    """Returns a key that is equal for stages whose programs differ only in layer indices."""
    return stage.has_embedding, stage.has_head, *spec.main.layer_names()[stage.layers.start : stage.layers.stop]


def check_experts(spec: ModelSpec, ep: int) -> None:
    """Raises `InputError` for ranks that divide the experts of a model without any. ep: ranks that divide them."""
    if ep > 1 and not spec.routed_experts:
        raise InputError(f"--ep {ep}: the model has no routed experts to divide; remove it")


def check_stages(spec: ModelSpec, pp: int) -> None:
    """Raises `ImpossibleLayout` for more pipeline stages than layers. pp: stages."""
    layer_count = spec.layer_count
    if pp > layer_count:
        raise ImpossibleLayout(f"--pp {pp}: more stages than the {layer_count} layers")


def no_pipeline_reason(spec: ModelSpec) -> str:
    """Returns the reason why pipelines of a model are not modelled; empty if they are."""
    if spec.kind == "encoder-decoder":
        return "a pipeline of an encoder-decoder is not modelled"
    if spec.main.shared_layers:
        return "a pipeline of layers that share parameters is not modelled"
    shared_field = next(filter(None, (layer.dependency_field() for layer in spec.main.layers_by_kind().values())), "")
    if shared_field:
        return f"a pipeline of layers with {shared_field}, which need what is computed outside of them, is not modelled"
    return ""
