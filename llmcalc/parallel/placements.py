"""The DTensor-like placement of each tensor over ranks, and the collectives where placements change.

Ranks of one sequence exchange keys and values: in a ring (Liu 2023, arXiv:2310.01889; TransformerEngine, `cp_comm_type`
"p2p"), all at once (Llama 3, arXiv:2407.21783, §3.3.2; "all_gather"), or they exchange tokens for heads (Jacobs 2023,
arXiv:2309.14509; "a2a").

A value is whole on every rank, split by tokens, divided along an axis, or a partial sum. A product over a divided axis
gives a partial sum; a product that gives a divided axis reads its input whole. These rules hold for every part. The
backward pass sends the transposed messages of the forward pass: an all-gather becomes a reduce-scatter, and the
reverse. A layer's input and output have the same placement.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from ..algebra import Number, exact_div, times
from ..errors import InputError
from ..flow.program import UNEXECUTED_ROLES, AlternativeBranches, ModuleScope, ProgramItem, Step
from ..flow.value import Value
from ..workload.recompute import NO_RECOMPUTATION, Recompute
from ..workload.rows import NO_ROWS, SEQUENCES, RoutedRows, Rows, SourceTokenRows, TokenRows
from ..workload.run_config import RunConfig
from .layout import Layout
from .rank_program import RankFlow, has_equal_shards, is_divided

Placement: TypeAlias = Literal["whole", "rows", "divided", "partial"]

CollectiveKind: TypeAlias = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"]

ProcessGroup: TypeAlias = Literal[
    "tp", "cp", "ep", "etp", "dp", "replicas", "expert dp", "expert replicas", "pp", "embedding"
]

FLOAT32_BYTES = 4

VERBS_THAT_MIX_ROWS = frozenset(
    {
        "attention",
        "scores",
        "weighted",
        "conv",
        "shift",
        "delayed",
        "padded",
        "scan",
        "merge",
        "in_blocks",
        "windows",
        "weighted_mean",
        "at_distance",
        "state",
    }
)
"""Recorder verbs whose result for a token depends on other tokens, in addition to the ops in `SCAN_OP_NAMES`."""

VERBS_THAT_SAVE_NOTHING = frozenset({"add", "sub", "dropout", "hold", "keep", "enter", "leave", "split", "take"})
"""Recorder verbs that save no tensor for the backward pass."""

SCAN_OP_NAMES = (
    "SelectiveScan", "HeadScan", "ChunkedScan", "DeltaRule", "DecayScan", "LightningAttentionCore", "MatrixMemory",
    "BlockSumMatmul", "TransitionScan", "ProjectedHeadScan", "ProjectedChunkedScan", "LinearAttentionCore",
)  # fmt: skip
"""Ops of recurrent and scan kernels, whose result for a token depends on other tokens."""


class Collective(NamedTuple):
    """A collective operation or a point-to-point message of one rank.

    node_path: the node of the model that causes it.
    collective_kind: the operation.
    process_group: the group of ranks.
    ranks: size of the group.
    is_backward: whether it runs in the backward pass.
    bytes: bytes of the whole tensor for a collective, of the sent tensor for a send.
    repetitions: how often it runs in one pass of one micro-batch.
    """

    node_path: str
    collective_kind: CollectiveKind
    process_group: ProcessGroup
    ranks: int
    is_backward: bool
    bytes: Number
    repetitions: Number = 1

    @property
    def wire_bytes(self) -> Number:
        """Bytes that a rank sends per operation in a ring: (n − 1)/n of the tensor, twice as many for an all-reduce."""
        if self.collective_kind == "send":
            return self.bytes
        ring_bytes = self.bytes * (self.ranks - 1) // self.ranks
        return 2 * ring_bytes if self.collective_kind == "all_reduce" else ring_bytes


@dataclass
class PlacementTracker:
    """Derives the placement of each value of a rank's program.

    layout: the layout.
    run_config: the run, with the tokens of one rank of a sequence.
    element_bytes: bytes per element.
    included_parts: optional parts of the model that run, none by default.
    regathers_inputs: whether a product gathers its input tokens again in its backward pass instead of saving the
        gathered tensor (Korthikanti 2022, §4.2.2; Megatron-LM); false by default.
    recompute: the recomputation in the backward pass, whose messages are sent again; none by default.
    placements: id of a storage → its placement, where it differs from the default.
    gathered_values: values that were made whole: id of the storage, whether the value is a view, whether it has a
        gradient.
    messages: the collectives so far.
    """

    layout: Layout
    run_config: RunConfig
    element_bytes: int = 2
    included_parts: frozenset[str] = frozenset()
    regathers_inputs: bool = False
    recompute: Recompute = NO_RECOMPUTATION
    placements: dict[int, Placement] = field(default_factory=dict)
    gathered_values: set[tuple[int, bool, bool]] = field(default_factory=set)
    messages: list[Collective] = field(default_factory=list)

    def run_program(self, program: RankFlow) -> list[Collective]:
        """Derives the placements of a program's values in order, and returns the rank's collectives.

        Raises `InputError` for a part that the layout divides in a way that is not modelled.
        """
        self.node_path: str = ""
        self.repeat_count: int = 1
        self.has_gradient: bool = True
        self.messages_before_last_saved: int = 0
        self._run_items(program.root.items, "", 1)
        return self.messages

    @property
    def default_placement(self) -> Placement:
        """Returns the placement of values between tensor-parallel linear layers."""
        return "rows" if self.layout.sequence_parallel and self.layout.tp > 1 else "whole"

    def placement(self, recorded_value: Value) -> Placement:
        """Returns the placement of a value over the ranks."""
        if is_divided(recorded_value.axes):
            return "divided"
        return self.placements.get(
            id(recorded_value.storage), self.default_placement if has_tokens(recorded_value.rows) else "whole"
        )

    def _run_items(self, program_items: Iterable[ProgramItem], module_path: str, repeat_count: Number) -> None:
        """Derives placements and messages of a module's operations, in order. repeat_count: runs of the module."""
        for program_item in program_items:
            if isinstance(program_item, AlternativeBranches):
                self._run_items(next(iter(program_item.branches.values())).items, module_path, repeat_count)
                continue
            item_attributes = program_item.node_fields
            if item_attributes.get("role") in UNEXECUTED_ROLES or (
                item_attributes.get("optional") and item_attributes["optional"] not in self.included_parts
            ):
                continue
            item_path = (
                f"{module_path}.{program_item.name}"
                if module_path and program_item.name
                else module_path or program_item.name
            )
            self.node_path, self.repeat_count = item_path or getattr(program_item, "verb", ""), repeat_count
            if isinstance(program_item, Step):
                self._run_step(program_item)
                if program_item.verb not in VERBS_THAT_SAVE_NOTHING:
                    self.messages_before_last_saved = len(self.messages)
                continue
            scope_repeats, has_gradient = times(repeat_count, item_attributes.get("repeat", 1)), self.has_gradient
            self.has_gradient = has_gradient and item_attributes.get("role") != "no_grad"
            if program_item.first_input is not None:
                self._reduce_partial_sum(program_item.first_input)
            first_message_index = len(self.messages)
            self._run_items(program_item.items, item_path, scope_repeats)
            self.has_gradient = has_gradient
            self.node_path, self.repeat_count = item_path, scope_repeats
            if program_item.first_input is not None and program_item.output is not None:
                self._reduce_partial_sum(program_item.output)
            if item_attributes.get("kind") == "layer":
                self._repeat_recomputed_messages(first_message_index, program_item)

    def _repeat_recomputed_messages(self, first_message_index: int, layer: ModuleScope) -> None:
        """Adds the messages that a recomputed layer repeats before the backward pass.

        first_message_index: number of messages before the layer. The newer form of checkpointing stops at the last
        step that saves a tensor for the backward pass; the reduction of the last product's output comes after it.
        Messages of attention's core alone are added beside it. Raises `InputError` for other recomputation of a layer
        that sends anything.
        """
        recompute = self.recompute
        forward_messages = [message for message in self.messages[first_message_index:] if not message.is_backward]
        if not forward_messages or recompute == NO_RECOMPUTATION or recompute.core:
            return
        if recompute.saved_operations or recompute.nodes:
            raise InputError(
                f"--recompute: what ranks send again in {self.node_path} is modelled of whole layers alone; expected "
                "--recompute none or full"
            )
        end_message_index = len(self.messages) if recompute.reentrant else self.messages_before_last_saved
        layer_indices, layer_repeats = layer.node_fields["indices"], layer.node_fields["repeat"]
        recomputed_count = layer_repeats if layer_indices is None else sum(map(recompute.includes_layer, layer_indices))
        for message in self.messages[first_message_index:end_message_index]:
            if not message.is_backward:
                repetitions = exact_div(times(message.repetitions, recomputed_count), layer_repeats)
                self.messages.append(message._replace(is_backward=True, repetitions=repetitions))

    def _add_message(
        self,
        collective_kind: CollectiveKind,
        recorded_value: Value,
        process_group: ProcessGroup = "tp",
        is_backward: bool = False,
        element_count: Number = None,
        message_count: int = 1,
    ) -> None:
        """Adds the collective message for a tensor.

        element_count: elements per row, by default those of the value.
        message_count: number of equal messages, 1 by default.
        """
        if is_backward and not self.has_gradient:
            return
        rank_count = {"ep": self.layout.ep, "etp": self.layout.expert_tp, "cp": self.layout.cp}.get(
            process_group, self.layout.tp
        )
        element_count = recorded_value.width if element_count is None else element_count
        message_bytes = self.run_config.rows(recorded_value.rows) * element_count * self.element_bytes
        if process_group == "etp" and self.default_placement == "rows":  # the tokens of all ranks that divide an expert
            message_bytes = exact_div(message_bytes * rank_count, self.layout.tp)
        repetitions = times(self.repeat_count, message_count)
        self.messages.append(
            Collective(
                self.node_path, collective_kind, process_group, rank_count, is_backward, message_bytes, repetitions
            )
        )

    def _gather_whole_value(self, recorded_value: Value, process_group: ProcessGroup = "tp") -> None:
        """All-gathers a sharded tensor, once for all operations that read it."""
        if self.placement(recorded_value) == "partial":
            self._reduce_partial_sum(recorded_value)
        gather_key = id(recorded_value.storage), recorded_value.view_source is not None, self.has_gradient
        if (
            self.placement(recorded_value) == "divided"
            or gather_key in self.gathered_values
            or recorded_value.is_constant
            or recorded_value.rows is NO_ROWS
        ):
            return
        self.gathered_values.add(gather_key)
        if self.placement(recorded_value) == "rows":
            self._add_message("all_gather", recorded_value, process_group)
            if self.regathers_inputs:
                self._add_message("all_gather", recorded_value, process_group, is_backward=True)
            self._add_message("reduce_scatter", recorded_value, process_group, is_backward=True)
        else:
            self._add_message("all_reduce", recorded_value, process_group, is_backward=True)

    def _reduce_partial_sum(self, recorded_value: Value) -> None:
        """Reduces a partial sum to the default placement, by a reduce-scatter or an all-reduce."""
        if self.placement(recorded_value) != "partial":
            return
        process_group: ProcessGroup = "etp" if isinstance(recorded_value.rows, RoutedRows) else "tp"
        self.placements[id(recorded_value.storage)] = (
            self.default_placement if has_tokens(recorded_value.rows) else "whole"
        )
        if self.placement(recorded_value) == "rows":
            self._add_message("reduce_scatter", recorded_value, process_group)
            self._add_message("all_gather", recorded_value, process_group, is_backward=True)
        else:
            self._add_message("all_reduce", recorded_value, process_group)

    def _run_step(self, operation: Step) -> None:
        """Assigns a placement to each output of an operation, and adds the operation's messages."""
        if operation.verb in ("hold", "keep", "cache", "mask", "enter", "leave") or not operation.output_values:
            return
        output_value, weight = operation.output_values[0], operation.weight
        is_output_divided = is_divided(output_value.axes)
        # a table has no input
        input_axes = (
            operation.input_values[0].axes if operation.input_values else () if weight is None else weight.input_axes
        )
        has_weight_product = weight is not None and operation.verb in ("linear", "experts", "table", "conv")
        splits_channels = operation.verb == "conv" and is_output_divided
        if has_weight_product and is_divided(input_axes) and not splits_channels:
            self.placements[id(output_value.storage)] = "partial"
        elif is_output_divided:
            for recorded_value in operation.input_values:
                self._gather_whole_value(recorded_value, "etp" if operation.verb == "experts" else "tp")
        else:
            for recorded_value in operation.input_values:
                self._reduce_partial_sum(recorded_value)
            self._inherit_placement(operation)
        if (
            operation.verb == "norm"
            and is_divided(operation.options["over"])
            and not _has_undivided_norm_groups(operation)
        ):
            elements_per_mean = (
                exact_div(FLOAT32_BYTES, self.element_bytes) if self.element_bytes < FLOAT32_BYTES else 1
            )
            for is_backward in (False, True):  # all-reduces of the mean squares, and of the means
                elements_per_row = (
                    elements_per_mean if operation.options["spec"].type == "rmsnorm" else 2 * elements_per_mean
                )
                self._add_message("all_reduce", output_value, is_backward=is_backward, element_count=elements_per_row)
        if self.layout.cp > 1:
            self._exchange_tokens(operation)
        if operation.verb in ("dispatch", "combine") and self.layout.ep > 1:
            token_value = operation.output_values[0] if operation.verb == "dispatch" else operation.input_values[0]
            token_ranks = self.layout.tp if self.default_placement == "rows" else 1  # each rank sends its own tokens
            for is_backward in (False, True):
                self._add_message(
                    "all_to_all", token_value, "ep", is_backward, exact_div(token_value.width, token_ranks)
                )

    def _exchange_tokens(self, operation: Step) -> None:
        """Adds the messages of context parallelism for an operation that reads all tokens of a sequence.

        An attention core that runs again in the backward pass sends again what its forward pass sends.
        Raises `InputError` for a step other than attention.
        """
        if operation.verb not in VERBS_THAT_MIX_ROWS and type(operation.op).__name__ not in SCAN_OP_NAMES:
            return
        vector_widths = self._mamba_exchange_widths(operation) if self.regathers_inputs else None
        if vector_widths is not None:
            for is_backward in (False, True):
                for vector_width in vector_widths:
                    self._add_message(
                        "all_to_all", Value(operation.input_values[0].rows, ()), "cp", is_backward, vector_width
                    )
            return
        q, k, v = operation.input_values[:3] if operation.verb == "attention" else (None, None, None)
        if (
            q is None
            or k is None
            or v is None
            or operation.options["biased"]
            or not has_tokens(k.rows)
            or k.rows != q.rows
        ):
            raise InputError(
                f"--cp {self.layout.cp}: {self.node_path} reads the tokens of all ranks of a sequence, which is not "
                "modelled; expected --cp 1"
            )
        key_width, value_width = (
            recorded_value.width if recorded_value.unrepeated_value is None else recorded_value.unrepeated_value.width
            for recorded_value in (k, v)
        )
        rank_count, exchange_kind, row_value = self.layout.cp, self.layout.cp_comm, Value(q.rows, ())
        first_message_index = len(self.messages)
        if exchange_kind == "a2a":
            output_width = operation.output_values[0].width
            for is_backward in (False, True):
                for vector_width in (q.width, key_width, value_width, output_width):
                    self._add_message("all_to_all", row_value, "cp", is_backward, vector_width)
        elif exchange_kind == "allgather":
            for vector_width in (key_width, value_width):
                self._add_message("all_gather", row_value, "cp", False, vector_width * rank_count)
                self._add_message("all_gather", row_value, "cp", True, vector_width * rank_count)
                self._add_message("reduce_scatter", row_value, "cp", True, vector_width * rank_count)
        else:
            for is_backward, pair_count in ((False, 1), (True, 2)):  # keys and values; then their gradients too
                self._add_message(
                    "send", row_value, "cp", is_backward, key_width + value_width, (rank_count - 1) * pair_count
                )
        if self.recompute.core and self.has_gradient:
            self.messages += [
                message._replace(is_backward=True)
                for message in self.messages[first_message_index:]
                if not message.is_backward
            ]

    def _mamba_exchange_widths(self, operation: Step) -> list[Number] | None:
        """Returns the widths of tensors that Megatron-LM exchanges in a Mamba-2 mixer; None for other operations.

        Context parallelism divides the heads of Mamba-2. Exchanged are the convolution's input, the gate, the time
        steps and the output (core/ssm/mamba_context_parallel.py).
        """
        if operation.verb == "conv":
            return [operation.input_values[0].width]
        if type(operation.op).__name__ == "ChunkedScan":
            return [operation.output_values[0].width, operation.input_values[1].width, operation.output_values[0].width]
        return [] if operation.verb == "state" else None

    def _inherit_placement(self, operation: Step) -> None:
        """Sets the placement of an operation's outputs to that of its inputs, if no axis is sharded.

        Raises `InputError` for a step that needs the tokens of other ranks.
        """
        row_values = [
            recorded_value for recorded_value in operation.input_values if self.placement(recorded_value) == "rows"
        ]
        if row_values and not self.has_gradient:
            for recorded_value in row_values:
                self._gather_whole_value(recorded_value)
            row_values = []
        if row_values and operation.input_values[0].rows is SEQUENCES:
            for (
                recorded_value
            ) in row_values:  # every rank reads a token that one has (Megatron-LM, language_model.py, `Pooler`)
                self._add_message("all_gather", recorded_value.storage)
            row_values = []
        if row_values and (operation.verb in VERBS_THAT_MIX_ROWS or type(operation.op).__name__ in SCAN_OP_NAMES):
            raise InputError(
                f"--sequence-parallel: {self.node_path} reads the tokens of several ranks and is not divided by --tp, "
                "which is not modelled; expected no --sequence-parallel"
            )
        if operation.input_values and not all(
            is_divided(recorded_value.axes) for recorded_value in operation.input_values
        ):
            for output_value in operation.output_values:
                self.placements[id(output_value.storage)] = "rows" if row_values else "whole"


def _has_undivided_norm_groups(operation: Step) -> bool:
    """Whether every group of a grouped norm is completely on one rank."""
    group_axis = operation.options.get("groups")
    return group_axis is not None and is_divided((group_axis,)) and not has_equal_shards((group_axis,))


def has_tokens(row_axis: Rows) -> bool:
    """Whether a tensor's rows are tokens, which sequence parallelism shards."""
    return isinstance(row_axis, (TokenRows, SourceTokenRows)) or (
        isinstance(row_axis, RoutedRows) and has_tokens(row_axis.source_rows)
    )
