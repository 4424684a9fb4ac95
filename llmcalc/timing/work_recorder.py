"""The work of a rank's pass: sizes of matrix products, bytes of memory traffic, and messages.

This is the walk that places values and finds messages (`parallel/placements.py`); at every step it also records what
the step computes and moves. There is no constant in it and no device: FLOPs equal those of `llmcalc flops`, parameters
and cache those of the counts, messages those of `parallel/messages.py`.

Neighbouring element-wise steps are one kernel where a stack fuses them; products of the same input are one product.
Batch, tokens and the ranks of experts and of sequences may be arrays, with an element per layout.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ..algebra import Number, SizeTrace, exact_div, is_zero, maximum, minimum, traced_numbers
from ..costs.params import total_params_of
from ..costs.recomputation import VERBS_THAT_SAVE_NO_INPUT
from ..flow.program import UNEXECUTED_ROLES, AlternativeBranches, ModuleScope, ProgramItem, Step
from ..flow.tree import Node
from ..flow.value import Value
from ..identity_cache import IdentityCache
from ..model import ModelSpec
from ..ops import AttentionCore, ChunkedScan
from ..parallel.layout import Layout
from ..parallel.placements import FLOAT32_BYTES, Collective, CollectiveKind, PlacementTracker, ProcessGroup
from ..parallel.rank_program import RankFlow, cached_rank_program, is_divided
from ..workload.derived_rows import QueryKeyPairs
from ..workload.rows import LOGITS, NO_ROWS, RoutedRows
from ..workload.run_config import RunConfig
from .eager import eager_kernel_key, eager_kernel_repeats
from .kernels import (
    AFTER_LAYERS,
    BEFORE_LAYERS,
    STATE_BITS,
    Kernel,
    KernelKind,
    LayerKind,
    LayerMessage,
    RankPass,
    RankWork,
    rank_share,
)

VERBS_WITHOUT_KERNEL = frozenset(
    {
        "hold", "keep", "enter", "leave", "add_output", "mask",
        "split", "take", "copies", "positions", "vector", "buffer",
        "unread_table", "received", "zeros", "resumed", "carry", "select", "local_mask", "cache",
    }
)  # fmt: skip
"""Recorder verbs without a separate kernel: views, masks inside of kernels, writes of a few rows."""

IDENTITY_VERBS = frozenset({"dropout", "repeat"})
"""Recorder verbs that return their input: dropout of probability 0, and heads that an attention kernel repeats itself.
"""

VERBS_BEFORE_REDUCTION = frozenset({"combine", "to_tokens", "add", "dropout", "mul"})
"""Verbs that can run on partial sums, which ranks reduce later (`RankPass.adds_experts_before_reduction`).

The other factor of `mul` is whole, such as the gate of a shared expert.
"""

PARTS_IN_16_BITS = frozenset({"lm_head", "router"})
"""Names of modules whose products stay in 16 bits in a run with narrower formats."""

CAST_KERNELS = 2
"""Number of cast kernels around a product with a 4-bit weight: of the float32 input, and of the output to float32."""

CAST_ELEMENTS = 3
"""16-bit elements that a cast between float32 and 16 bits moves per element (6 bytes)."""

VERBS_READING_INPUT_AGAIN = frozenset({"norm", "act", "mul", "rope"})
"""Element-wise verbs whose backward pass reads the input again."""

ROW_COPIES = 3
"""Number of times that a permutation of routed rows moves each row: reads, writes, and sorting."""

SCORE_ELEMENTS = 4
"""16-bit elements per float32 score that a query-key product writes and a selection reads."""

MEASURED_RANKS = 2
"""Number of ranks in a recorded expert or sequence group, from which messages of other group sizes are derived."""


@dataclass
class WorkRecorder(PlacementTracker):
    """Records the kernels and messages of a rank's program. work: the recorded `RankWork`."""

    rank_pass: RankPass = field(default_factory=RankPass)
    work: RankWork = field(init=False)

    def record(self, program: RankFlow) -> RankWork:
        """Records the operations of a rank's forward pass; returns its kernels and messages as `RankWork`."""
        self.work = RankWork(self.rank_pass)
        self.full_run: RunConfig = self.rank_pass.run_config()
        self.layer: int = BEFORE_LAYERS
        self.layers: int = 1
        self.cache_reads: dict[str | int, Number] = {}
        self.aliases: dict[int, Value] = {}
        self.group: list[Step] = []
        self.group_position: tuple[str, Number] = "", 1
        self.shared_inputs: set[tuple[int, int]] = set()
        self.shares_parameters: bool = False
        self.gathering_verb: str = ""
        self.last_product: Step | None = None
        self.is_past_last_product: bool = False
        self.scopes: dict[int, ModuleScope] = {id(scope.items): scope for scope in self._executed_scopes(program.root)}
        self.readers: dict[int, int] = {}
        for operation in self._executed_steps(program.root.items):
            for recorded_value in (
                operation.input_values
                if operation.verb not in VERBS_WITHOUT_KERNEL and operation.verb not in IDENTITY_VERBS
                else ()
            ):
                self._count_reader(recorded_value)
        for scope in self.scopes.values():
            if scope.output is not None and scope.node_fields.get("kind") == "layer":
                self._count_reader(scope.output)
        self.run_program(program)
        self._record_elementwise_group()
        self._record_loss(program)
        return self.work

    def _record_loss(self, program: RankFlow) -> None:
        if program.result is None or program.result.rows is not LOGITS:
            return
        row_count, vocabulary_size = self.run_config.rows(LOGITS), program.result.width
        self.node_path: str = "loss"
        self.repeat_count: int = 1
        self._add_kernel("loss", "loss", m=row_count, n=vocabulary_size, launches=(2, 2))
        if is_divided(program.result.axes) and self.rank_pass.phase == "training":
            message = Collective("loss", "all_reduce", "tp", self.layout.tp, False, row_count * FLOAT32_BYTES, 3)
            self.work.messages.append(LayerMessage(AFTER_LAYERS, message))

    def _count_reader(self, recorded_value: Value) -> None:
        storage_key = id(self._storage_owner(recorded_value))
        self.readers[storage_key] = self.readers.get(storage_key, 0) + 1

    def _storage_owner(self, recorded_value: Value) -> Value:
        """Returns the value that owns a value's memory, found through views and steps that return their input."""
        while id(recorded_value.storage) in self.aliases:
            recorded_value = self.aliases[id(recorded_value.storage)]
        return recorded_value.storage

    # --- the walk ----------------------------------------------------------------------------------------------------

    def _items_of_chosen_branches(self, scope_items: Iterable[ProgramItem]) -> Iterator[Step | ModuleScope]:
        """Returns a scope's items, with each choice of alternative branches replaced by the branch that runs."""
        for scope_item in scope_items:
            if not isinstance(scope_item, AlternativeBranches):
                yield scope_item
                continue
            branch_name = self.full_run.execution.choose_form(scope_item.branches, self.full_run.workload)
            if (
                self.rank_pass.padded_sparse_heads
                and "absorbed" in scope_item.branches
                and _has_key_selection(scope_item.branches["absorbed"])
            ):
                branch_name = "absorbed"
            default_output, chosen_items = (
                next(iter(scope_item.branches.values())).output,
                scope_item.branches[branch_name],
            )
            if (
                chosen_items.output is not None
                and default_output is not None
                and chosen_items.output is not default_output
            ):
                self.aliases[id(default_output.storage)] = chosen_items.output
            yield from self._items_of_chosen_branches(chosen_items.items)

    def _executed_scopes(self, module_scope: ModuleScope) -> Iterator[ModuleScope]:
        """Yields a module scope and all nested scopes that run."""
        yield module_scope
        for scope_item in self._items_of_chosen_branches(module_scope.items):
            if isinstance(scope_item, ModuleScope):
                yield from self._executed_scopes(scope_item)

    def _executed_steps(self, scope_items: Iterable[ProgramItem]) -> Iterator[Step]:
        """Yields every executed step in order, and records which steps return their input unchanged."""
        for scope_item in self._items_of_chosen_branches(scope_items):
            if scope_item.node_fields.get("role") in UNEXECUTED_ROLES or scope_item.node_fields.get(
                "optional", ""
            ) not in ("", *self.included_parts):
                continue
            if isinstance(scope_item, ModuleScope):
                yield from self._executed_steps(scope_item.items)
                continue
            if scope_item.verb in IDENTITY_VERBS and scope_item.input_values:
                self.aliases[id(scope_item.output_values[0].storage)] = scope_item.input_values[0]
            yield scope_item

    def _run_items(self, scope_items: Iterable[ProgramItem], module_path: str, repeat_count: Number) -> None:
        module_scope, shares_parameters = self.scopes.get(id(scope_items)), self.shares_parameters
        scope_attributes = {} if module_scope is None else module_scope.node_fields
        self.shares_parameters = shares_parameters or scope_attributes.get("role") == "shared"
        if scope_attributes.get("kind") == "layer":
            self._record_layer(scope_attributes, scope_items, module_path, repeat_count)
        else:
            self._record_scope(scope_items, module_path, repeat_count)
        self.shares_parameters = shares_parameters

    def _record_scope(self, scope_items: Iterable[ProgramItem], module_path: str, repeat_count: Number) -> None:
        chosen_items = list(self._items_of_chosen_branches(scope_items))
        super()._run_items(chosen_items, module_path, repeat_count)
        for scope_item in chosen_items:  # parameters that this pass does not use
            if scope_item.node_fields.get("role") in UNEXECUTED_ROLES and scope_item.node_fields.get(
                "optional", ""
            ) in ("", *self.included_parts):
                program_node = (
                    scope_item.node()
                    if isinstance(scope_item, ModuleScope)
                    else Node(scope_item.name, scope_item.op, role=scope_item.node_fields["role"])
                )
                self._count_parameters(program_node.total(total_params_of), exact_div(repeat_count, self.layers))

    def _record_layer(
        self, attributes: Mapping[str, Any], scope_items: Iterable[ProgramItem], module_path: str, repeat_count: Number
    ) -> None:
        self._record_elementwise_group()
        layer_indices = attributes.get("indices")
        layer_kind = LayerKind(
            attributes.get("label", ""), tuple(range(repeat_count) if layer_indices is None else layer_indices)
        )
        self.work.layer_kinds.append(layer_kind)
        self.layer, self.layers = len(self.work.layer_kinds) - 1, repeat_count
        self.last_product, self.is_past_last_product = self._last_product(scope_items), False
        self._record_scope(scope_items, module_path, repeat_count)
        self._record_elementwise_group()
        self.last_product, self.is_past_last_product = None, False
        self.layer, self.layers = AFTER_LAYERS, 1

    def _last_product(self, scope_items: Iterable[ProgramItem]) -> Step | None:
        """Returns the last product of a layer after which no tensor is saved; None without one, or with adapters.

        None for routed experts too: Automodel runs shared experts before them, torchtitan after them.
        """
        saving_steps = [
            operation
            for operation in self._executed_steps(scope_items)
            if operation.verb not in VERBS_THAT_SAVE_NO_INPUT
        ]
        is_routed = any(operation.verb == "dispatch" for operation in saving_steps)
        ends_in_product = bool(saving_steps) and saving_steps[-1].verb == "linear" and not is_routed
        return saving_steps[-1] if ends_in_product and self.rank_pass.adapters is None else None

    def _run_step(self, operation: Step) -> None:
        self.gathering_verb = operation.verb
        if self.rank_pass.adds_experts_before_reduction and self._has_partial_sum_output(operation):
            self.placements[id(operation.output_values[0].storage)] = "partial"
        else:
            super()._run_step(operation)
        if operation.verb == "combine" and self._gathers_tokens and self.rank_pass.tp > 1:
            # each rank has the sums of its own experts
            self.placements[id(operation.output_values[0].storage)] = "partial"
        self._count_storage(operation)
        if not self._is_executed(operation):
            return
        if operation.verb in VERBS_WITHOUT_KERNEL or operation.verb in IDENTITY_VERBS:
            if (
                operation.verb == "dropout"
                and operation.options["probability"]
                and not self.rank_pass.fuses_elementwise
                and self.has_gradient
            ):
                self._record_elementwise_group()
                self._add_kernel(
                    "elementwise", "dropout", moved_elements=(2 * self._element_count(operation.output_values[0]),) * 2
                )
            return
        lowering_method = getattr(self, f"_lower_{operation.verb}", None)
        if lowering_method is None and (operation.op is None or "forward_flops" not in operation.op.effects):
            if (
                operation.output_values
                and not operation.output_values[0].is_constant
                and not self._is_inside_attention(operation)
            ):
                self._add_elementwise_step(operation)  # masks and angles are computed once per pass, or inside kernels
            return
        if not self._shares_earlier_kernel(operation):
            self._record_elementwise_group()
        (lowering_method or self._add_operation)(operation)

    def _shares_earlier_kernel(self, operation: Step) -> bool:
        """Whether one kernel computes this product and an earlier one of the same input, as for `up_proj`.

        The element-wise steps around it are then one kernel, such as SiluAndMul (sglang/srt/layers/activation.py).
        """
        is_product = operation.verb in ("linear", "experts") and self.rank_pass.fuses_gates
        return is_product and (id(self._storage_owner(operation.input_values[0])), self.layer) in self.shared_inputs

    def _is_executed(self, operation: Step) -> bool:
        """Whether the pass runs an operation; for example, decoding does not run the encoder again."""
        return not operation.output_values or not self._has_no_rows(operation.output_values[0])

    def _has_no_rows(self, recorded_value: Value) -> bool:
        return recorded_value.rows is not NO_ROWS and is_zero(recorded_value.rows.new_rows(self.run_config.workload))

    def _is_inside_attention(self, operation: Step) -> bool:
        """Whether a step works on query-key pairs that stay inside a fused attention kernel."""
        return self.rank_pass.fuses_elementwise and any(
            isinstance(recorded_value.rows, QueryKeyPairs)
            for recorded_value in (*operation.input_values, *operation.output_values)
        )

    def _has_partial_sum_output(self, operation: Step) -> bool:
        """Whether a step's result is a partial sum over ranks: the step is linear, and an input is a partial sum."""
        if operation.verb not in VERBS_BEFORE_REDUCTION:
            return False
        partial_inputs = list(map(self._is_partial, operation.input_values))
        if operation.verb == "mul":
            return sum(partial_inputs) == 1 and not is_divided(operation.output_values[0].axes)
        return all(partial_inputs if operation.verb == "add" else partial_inputs[:1])

    def _is_partial(self, recorded_value: Value) -> bool:
        return self.placement(recorded_value) == "partial"

    def _count_storage(self, operation: Step) -> None:
        """Adds the parameters and cached elements of a step to the rank's sums."""
        if operation.op is None:
            return
        if (
            "params" in operation.op.effects
            and not self.shares_parameters
            and operation.node_fields.get("role") != "shared"
        ):
            self._count_parameters(operation.op.params(), self._repeats_per_layer(), operation.verb == "experts")
        if "cache_bits" in operation.op.effects:
            element_count = operation.op.cache_bits(self.full_run, 1)  # type: ignore[attr-defined]
            self.work.cached_elements_by_layer[self.layer] = (
                self.work.cached_elements_by_layer.get(self.layer, 0) + element_count * self._repeats_per_layer()
            )
            self.cache_reads[operation.name] = self.cache_reads[self.node_path] = element_count
            self.cache_reads.update(
                (id(cached_value.storage), element_count) for cached_value in operation.output_values
            )

    def _count_parameters(self, parameter_count: Number, repeat_count: Number, is_expert_weight: bool = False) -> None:
        parameter_key = self.layer, is_expert_weight
        self.work.params_by_layer[parameter_key] = (
            self.work.params_by_layer.get(parameter_key, 0) + parameter_count * repeat_count
        )

    def _add_message(
        self,
        collective_kind: CollectiveKind,
        recorded_value: Value,
        process_group: ProcessGroup = "tp",
        is_backward: bool = False,
        element_count: Number = None,
        messages: int = 1,
    ) -> None:
        if self._has_no_rows(recorded_value):
            return
        if process_group == "ep" and self._gathers_tokens:
            self._add_token_gathering(recorded_value, is_backward)
            return
        message_count = len(self.messages)
        super()._add_message(collective_kind, recorded_value, process_group, is_backward, element_count, messages)
        if len(self.messages) == message_count:
            return
        self._record_elementwise_group()
        message = self.messages[-1]
        if message.is_backward and self.rank_pass.phase != "training":
            return
        message = message._replace(repetitions=exact_div(message.repetitions, self.layers))
        routed_rows = recorded_value.rows if isinstance(recorded_value.rows, RoutedRows) else RoutedRows()
        is_dispatch = self.gathering_verb == "dispatch" and process_group == "ep"
        ends_layer = self.is_past_last_product and not message.is_backward
        sized_message = self._with_group_size(message)
        self.work.messages.append(
            LayerMessage(self.layer, sized_message, routed_rows.top_k, routed_rows.groups, is_dispatch, ends_layer)
        )

    @property
    def _gathers_tokens(self) -> bool:
        """Whether expert ranks all-gather all ranks' tokens, instead of an all-to-all of routed rows."""
        return self.rank_pass.gathered_ranks > 0 and self.layout.ep > 1

    def _add_token_gathering(self, routed_value: Value, is_backward: bool) -> None:
        """Adds the all-gather of tokens over attention replicas, or the reduce-scatter of expert outputs.

        routed_value: rows of tokens and experts, before (dispatch) or after the experts (combine).
        """
        replica_count = self.rank_pass.gathered_ranks
        if is_backward or replica_count == 1:
            return
        assert isinstance(routed_value.rows, RoutedRows)
        self._record_elementwise_group()
        gathered_bytes = (
            replica_count
            * self.run_config.rows(routed_value.rows.source_rows)
            * routed_value.width
            * self.element_bytes
        )
        collective_kind: CollectiveKind = "all_gather" if self.gathering_verb == "dispatch" else "reduce_scatter"
        message = Collective(
            self.node_path, collective_kind, "ep", replica_count, False, gathered_bytes, self._repeats_per_layer()
        )
        self.work.messages.append(LayerMessage(self.layer, message))

    def _with_group_size(self, message: Collective) -> Collective:
        """Returns the message for the pass's own group size; it was recorded for a group of `MEASURED_RANKS` ranks."""
        if message.process_group == "ep":
            return message._replace(ranks=self.rank_pass.ep)
        if message.process_group != "cp":
            return message
        rank_count = self.rank_pass.cp
        if message.collective_kind == "send":  # a ring has one send fewer than ranks
            return message._replace(
                ranks=rank_count, repetitions=message.repetitions * (rank_count - 1) // (MEASURED_RANKS - 1)
            )
        if message.collective_kind == "all_to_all":
            return message._replace(ranks=rank_count)
        return message._replace(ranks=rank_count, bytes=message.bytes * rank_count // MEASURED_RANKS)

    # --- sizes -------------------------------------------------------------------------------------------------------

    def _repeats_per_layer(self) -> Number:
        """Returns the number of times that one layer runs the current operation."""
        return exact_div(self.repeat_count, self.layers)

    def _rows_on_rank(self, recorded_value: Value) -> Number:
        """Returns the number of rows of a value on one rank."""
        if recorded_value.rows is NO_ROWS:
            return 1
        row_count = self.run_config.rows(recorded_value.rows)
        if isinstance(recorded_value.rows, RoutedRows):  # expert ranks receive as many rows as they send
            return rank_share(row_count * self.layout.expert_tp, self.layout.tp)
        return rank_share(row_count, self.layout.tp) if self.placement(recorded_value) == "rows" else row_count

    def _element_count(self, recorded_value: Value) -> Number:
        moves_every_row = self.rank_pass.moves_all_rows and isinstance(recorded_value.rows, RoutedRows)
        return self._rows_on_rank(recorded_value) * recorded_value.width * (self.rank_pass.ep if moves_every_row else 1)

    # --- kernels -----------------------------------------------------------------------------------------------------

    def _add_kernel(self, kernel_kind: KernelKind, verb: str, **kernel_sizes: Any) -> Kernel:
        kernel = Kernel(
            self.node_path or verb, kernel_kind, self.layer, self._repeats_per_layer(), verb, **kernel_sizes
        )
        self.work.kernels.append(kernel)
        return kernel

    def _lower_linear(self, operation: Step) -> None:
        x, y = operation.input_values[0], operation.output_values[0]
        has_divided_axes = is_divided(y.axes) or is_divided(x.axes)
        row_count = 1 if y.rows is NO_ROWS else self.run_config.rows(y.rows)
        row_count = (
            rank_share(row_count, self.layout.tp) if self.placement(x) == "rows" and not has_divided_axes else row_count
        )
        joins_gradient = (
            id(self._storage_owner(x)),
            self.layer,
        ) in self.shared_inputs and not self.rank_pass.fuses_elementwise
        shares_input = self._shares_input(x)
        flops = 2 * row_count * y.width * x.width
        has_bias = (
            operation.op is not None and "params" in operation.op.effects and operation.op.params() > y.width * x.width
        )
        extra_launches = joins_gradient + (has_bias and not self.rank_pass.fuses_elementwise)
        constant_rows = 0 if y.rows is NO_ROWS else self.run_config.constant_rows(y.rows)
        gradient_flops = 0 if x.is_constant else 2 * (row_count - constant_rows) * y.width * x.width
        module_name = self.node_path.rpartition(".")[2]
        is_frozen = self.rank_pass.adapters is not None
        self.is_past_last_product |= operation is self.last_product
        is_in_16_bits = not {operation.node_fields.get("kind"), module_name}.isdisjoint(PARTS_IN_16_BITS)
        self._add_kernel(
            "product",
            "linear",
            m=row_count,
            n=y.width,
            k=x.width,
            weight_elements=y.width * x.width,
            flops=(flops, (0 if is_frozen else flops) + gradient_flops if self.has_gradient else 0),
            launches=(0, 0) if shares_input else (1, 1 if is_frozen else 2 + extra_launches),
            in_16_bits=is_in_16_bits,
            is_frozen=is_frozen,
            ends_layer=operation is self.last_product,
        )
        if self.rank_pass.adapters is None:
            return
        if self.rank_pass.adapters.base_bits:
            has_backward = bool(self.has_gradient and gradient_flops)
            self._add_dequantization(row_count, x.width, y.width, is_in_16_bits, has_backward)
        if module_name in self.rank_pass.adapters.target_modules:
            self._add_adapter(self.rank_pass.adapters.rank, row_count, x.width, y.width)

    def _add_dequantization(
        self, row_count: Number, input_width: Number, output_width: Number, is_in_16_bits: bool, has_backward: bool
    ) -> None:
        """Adds the kernels that dequantize a frozen 4-bit weight, or convert a weight that stays in 16 bits.

        A layer in 4 bits casts its input and output if these are in float32. A head or router is in float32 then, too:
        its weight is cast to 16 bits in the forward pass.
        """
        assert self.rank_pass.adapters is not None
        weight_elements = input_width * output_width
        if not is_in_16_bits:
            launch_counts = (1, int(has_backward))
            self._add_kernel("dequantization", "dequantize", weight_elements=weight_elements, launches=launch_counts)
        if not self.rank_pass.adapters.base_inputs_are_fp32:
            return
        cast_elements = weight_elements if is_in_16_bits else row_count * (input_width + output_width)
        casts_gradient = has_backward and not is_in_16_bits
        self._add_kernel(
            "elementwise",
            "cast",
            moved_elements=(CAST_ELEMENTS * cast_elements, CAST_ELEMENTS * cast_elements * casts_gradient),
            launches=(CAST_KERNELS, CAST_KERNELS * has_backward),
        )

    def _add_adapter(self, adapter_rank: int, row_count: Number, input_width: Number, output_width: Number) -> None:
        """Adds a low-rank adapter's products x·Aᵀ·Bᵀ, with the casts of its input and the sum with the output."""
        for output_size, input_size in ((adapter_rank, input_width), (output_width, adapter_rank)):
            flops = 2 * row_count * output_size * input_size
            self._add_kernel(
                "product",
                "adapter",
                m=row_count,
                n=output_size,
                k=input_size,
                weight_elements=output_size * input_size,
                flops=(flops, 2 * flops),
            )
        self._add_kernel("adapter", "adapter", m=row_count, n=output_width, k=input_width, launches=(0, 0))
        adapter_params = adapter_rank * (input_width + output_width) * self._repeats_per_layer()
        self.work.adapter_params_by_layer[self.layer] = (
            self.work.adapter_params_by_layer.get(self.layer, 0) + adapter_params
        )

    def _shares_input(self, x: Value) -> bool:
        """Whether an earlier product of this layer has the same input, so that software may fuse both."""
        input_key = id(self._storage_owner(x)), self.layer
        shares_input = input_key in self.shared_inputs and self.rank_pass.fuses_elementwise
        self.shared_inputs.add(input_key)
        return shares_input

    _lower_again = _lower_linear

    def _lower_absorb(self, operation: Step) -> None:
        x, y, head_count = operation.input_values[0], operation.output_values[0], operation.input_values[0].axes[0].size
        m, n, k = self._rows_on_rank(x), y.width, exact_div(x.width, head_count)
        flops = 2 * m * n * k
        is_frozen = self.rank_pass.adapters is not None
        gradient_flops = flops if is_frozen else 2 * flops
        self._add_kernel(
            "product",
            "absorb",
            m=m,
            n=n,
            k=k,
            weight_elements=n * k,
            flops=(flops, gradient_flops),
            is_frozen=is_frozen,
        )

    def _lower_per_group(self, operation: Step) -> None:
        """Adds a linear layer that has one matrix per group (or block) of inputs, as one kernel."""
        x, y, op, rank_count = operation.input_values[0], operation.output_values[0], operation.op, self.rank_pass.cp
        assert op is not None
        row_count, flops = self._rows_on_rank(x), rank_share(op.forward_flops(self.full_run), rank_count)
        weight_elements = exact_div(flops, 2 * row_count)
        self._add_kernel(
            "product",
            operation.verb,
            m=row_count,
            n=y.width,
            k=exact_div(weight_elements, y.width),
            weight_elements=weight_elements,
            flops=(flops, rank_share(op.backward_flops(self.full_run), rank_count) if self.has_gradient else 0),
            is_frozen=self.rank_pass.adapters is not None,
        )

    _lower_blocks = _lower_per_group

    def _lower_experts(self, operation: Step) -> None:
        x, y, top_k = operation.input_values[0], operation.output_values[0], operation.options["top_k"]
        expert_count, ep = operation.options["experts"].size, self.rank_pass.ep
        row_count = self._rows_on_rank(x)
        flops = 2 * row_count * x.width * y.width
        self._add_kernel(
            "experts",
            "experts",
            m=row_count,
            n=y.width,
            k=x.width,
            weight_elements=x.width * y.width,
            flops=(flops, flops if self.rank_pass.adapters is not None else 2 * flops),
            launches=(0, 0) if self._shares_input(x) else (1, 2),
            is_frozen=self.rank_pass.adapters is not None,
            expert_count=rank_share(expert_count, ep),
            selection_chance=min(1.0, top_k / expert_count),
            routed_tokens=rank_share(row_count * ep, top_k),
        )
        if self.rank_pass.adapters is not None and self.rank_pass.adapters.quantized_experts:
            weight_elements = x.width * y.width * rank_share(expert_count, ep)
            self._add_kernel("dequantization", "dequantize_experts", weight_elements=weight_elements, launches=(1, 0))
        if operation.options["bias"] and self.node_path.endswith("down_proj"):
            self._add_kernel("expert-bias", "expert_bias", m=row_count, n=y.width, launches=(0, 0))

    def _lower_attention(self, operation: Step) -> None:
        op, rank_count, run_config = operation.op, self.rank_pass.cp, self.full_run
        assert isinstance(op, AttentionCore)
        key_count = run_config.available_rows(op.rows if op.keys is None else op.keys)
        key_limits = [
            key_limit
            for key_limit in (op.window if op.window is not None else op.chunk, op.selected_keys)
            if key_limit is not None
        ]
        cache_name = operation.options.get("cache") or ""
        module_path = self.node_path.rpartition(".")[0]
        keys = (
            operation.input_values[1]
            if operation.input_values[1].unrepeated_value is None
            else operation.input_values[1].unrepeated_value
        )  # also of a lower layer
        cache_elements = self.cache_reads.get(
            id(keys.storage), self.cache_reads.get(f"{module_path}.{cache_name}", self.cache_reads.get(cache_name, 0))
        )
        if run_config.phase == "decode" and op.selects_keys:  # of the whole cache, the selected keys
            cache_elements = (
                run_config.batch * exact_div(cache_elements, run_config.batch * key_count) * op.pairs(run_config)
            )
        for verb, option_name in (("softcap", "cap"), ("head_copies", "copies_heads")):
            if operation.options.get(option_name):
                self._add_kernel("elementwise", verb, launches=(0, 0))  # fused software has no kernel of its own for it
        self._add_kernel(
            "attention",
            "attention",
            flops=(
                rank_share(op.forward_flops(run_config), rank_count),
                rank_share(op.backward_flops(run_config), rank_count),
            ),
            cache_elements=cache_elements if self._reads_cache else 0,
            m=rank_share(run_config.rows(op.rows), rank_count),
            n=key_count,
            k=op.v_dim,
            heads=op.heads,
            kv_heads=getattr(operation.options.get("kv_heads"), "size", 1),
            key_width=op.qk_dim,
            keys_per_query=minimum(key_count, key_limits[0]) if key_limits else key_count,
            head_padding_ratio=maximum(1, self.rank_pass.padded_sparse_heads / op.heads)
            if op.selected_keys is not None
            else 1,
        )

    @property
    def _reads_cache(self) -> bool:
        """Whether attention reads tokens of earlier passes from the cache."""
        run_config = self.full_run
        return run_config.phase == "decode" or not is_zero(run_config.workload.context)

    def _lower_scores(self, operation: Step) -> None:
        """Adds a query-key product whose scores are stored, for a separate softmax or for the selection of keys."""
        op, rank_count, run_config = operation.op, self.rank_pass.cp, self.full_run
        assert isinstance(op, AttentionCore)
        query_key_pairs = run_config.batch * op.pairs(run_config)
        backward_flops = op.backward_flops(run_config) if self.has_gradient else 0
        is_fused_attention = self.rank_pass.fuses_elementwise and op.v_dim == op.qk_dim
        moved_elements = sum(
            self._element_count(recorded_value)
            for recorded_value in operation.input_values
            if recorded_value.rows is op.rows
        )
        moved_elements += (
            SCORE_ELEMENTS * query_key_pairs * (1 if self.rank_pass.fuses_elementwise or op.v_dim == 1 else op.heads)
        )
        key_count = (
            exact_div(query_key_pairs, run_config.batch)
            if run_config.phase == "decode"
            else run_config.available_rows(op.rows)
        )
        self._add_kernel(
            "attention" if is_fused_attention else "scores",
            "scores",
            flops=(rank_share(op.forward_flops(run_config), rank_count), rank_share(backward_flops, rank_count)),
            moved_elements=(0, 0) if is_fused_attention else (moved_elements, 2 * moved_elements),
            cache_elements=query_key_pairs * op.qk_dim if self._reads_cache else 0,
            m=rank_share(run_config.rows(op.rows), rank_count),
            n=key_count,
            k=op.qk_dim,
            heads=op.heads,
            key_width=op.qk_dim,
            keys_per_query=key_count if op.window is None else minimum(key_count, op.window),
        )

    def _lower_table(self, operation: Step) -> None:
        if operation.output_values:
            moved_elements = 2 * self._element_count(operation.output_values[0])
            self._add_kernel("look-up", "table", moved_elements=(moved_elements, moved_elements), launches=(1, 1))

    def _lower_dispatch(self, operation: Step) -> None:
        moved_elements = ROW_COPIES * self._element_count(
            operation.output_values[0] if operation.verb == "dispatch" else operation.input_values[0]
        )
        self._add_kernel(
            "permutation", operation.verb, moved_elements=(moved_elements, moved_elements), launches=(3, 4)
        )

    _lower_combine = _lower_dispatch

    def _lower_state(self, operation: Step) -> None:
        if self.rank_pass.phase == "decode":
            total_state_bits = operation.op.cache_bits(self.full_run, STATE_BITS)  # type: ignore[union-attr]
            self._add_kernel("state", "state", cache_elements=rank_share(total_state_bits, STATE_BITS), launches=(0, 0))

    def _add_operation(self, operation: Step) -> None:
        """Adds a kernel with the FLOPs of an operation, such as a convolution or a scan."""
        op = operation.op
        assert op is not None
        moved_elements = sum(
            self._element_count(recorded_value)
            for recorded_value in (*operation.input_values, *operation.output_values)
        )
        forward_flops = op.forward_flops(self.full_run)
        backward_flops = op.backward_flops(self.full_run) if self.has_gradient else 0
        self._add_kernel(
            "scan",
            operation.verb,
            flops=(
                rank_share(forward_flops, self.rank_pass.cp),
                rank_share(backward_flops, self.rank_pass.cp),
            ),
            scan_ratio=op.kernel_flops(self.full_run) / forward_flops if isinstance(op, ChunkedScan) else 1,
            weight_elements=op.params() if "params" in op.effects else 0,
            moved_elements=(moved_elements, 2 * moved_elements),
            launches=(2, 4),
        )

    def _add_elementwise_step(self, operation: Step) -> None:
        """Adds an elementwise step to the group of steps that fused software runs as one kernel."""
        if not self.group:
            self.group_position = self.node_path, self.repeat_count
        self.group.append(operation)
        if not self.rank_pass.fuses_elementwise:
            self._record_elementwise_group()

    def _record_elementwise_group(self) -> None:
        """Adds the collected group of elementwise steps as one kernel.

        It reads the values that come from outside of the group, and writes those that are read outside of it.
        """
        if not self.group:
            return
        elementwise_group, self.group = self.group, []
        group_outputs = {
            id(self._storage_owner(recorded_value))
            for operation in elementwise_group
            for recorded_value in operation.output_values
        }
        reads_in_group: dict[int, int] = {}
        read_values: dict[int, Value] = {}
        written_values: dict[int, Value] = {}
        for operation in elementwise_group:
            for recorded_value in operation.input_values:
                storage_key = id(self._storage_owner(recorded_value))
                reads_in_group[storage_key] = reads_in_group.get(storage_key, 0) + 1
                if storage_key not in group_outputs:
                    read_values[storage_key] = recorded_value
        for operation in elementwise_group:
            for recorded_value in operation.output_values:
                storage_key = id(self._storage_owner(recorded_value))
                if self.readers.get(storage_key, 0) > reads_in_group.get(storage_key, 0):
                    written_values[storage_key] = recorded_value
        read_elements = sum(map(self._element_count, read_values.values()))
        moved_elements = read_elements + sum(map(self._element_count, written_values.values()))
        reread_elements = (
            read_elements if any(operation.verb in VERBS_READING_INPUT_AGAIN for operation in elementwise_group) else 0
        )
        module_path, repeat_count = self.node_path, self.repeat_count
        self.node_path, self.repeat_count = self.group_position
        elements_by_pass = moved_elements, moved_elements + reread_elements
        kernel = self._add_kernel(
            "elementwise", eager_kernel_key(elementwise_group[0]), moved_elements=elements_by_pass, launches=(1, 1)
        )
        kernel.runs_per_layer *= 1 if self.rank_pass.fuses_elementwise else eager_kernel_repeats(elementwise_group[0])
        self.node_path, self.repeat_count = module_path, repeat_count


_shared_work: IdentityCache[RankWork] = IdentityCache(512)
"""The work of passes of models, which all devices and software stacks share."""


def rank_work(spec: ModelSpec, rank_pass: RankPass) -> RankWork:
    """Returns the work of a rank with all layers, for callers that only read it: passes of numbers share it.

    Raises `InputError` for sizes that the layout does not divide.
    """
    if rank_pass.cache_key is None:
        return _record_work(spec, rank_pass)
    return _shared_work.result((spec,), rank_pass.cache_key, lambda: _work_of_sizes(spec, rank_pass))


def _work_of_sizes(spec: ModelSpec, rank_pass: RankPass) -> RankWork:
    """Returns the work of a pass, derived from that of a pass of other sizes where there was one.

    A second pass is recorded with traced sizes; its kernels are those of later passes.
    """
    sizes = {name: getattr(rank_pass, name) for name in LARGEST_UNTRACED_SIZES}
    untraced_sizes = {name: min(number, LARGEST_UNTRACED_SIZES[name] + 1) for name, number in sizes.items()}
    traced_works = _traced_works.result((spec,), (replace(rank_pass, **untraced_sizes),), list)
    for traced_work in filter(None, traced_works):
        work = traced_work.work_of(rank_pass)
        if work is not None:
            return work
    if not traced_works:
        traced_works.append(None)
        return _record_work(spec, rank_pass)
    del traced_works[MAX_TRACED_WORKS:]
    traced_work = TracedWork(spec, rank_pass)
    traced_works.insert(0, traced_work)
    return traced_work.work_of(rank_pass) or _record_work(spec, rank_pass)


LARGEST_UNTRACED_SIZES = {"batch": 0, "seq": 0, "context": 0, "ep": 1, "gathered_ranks": 1}
"""Sizes of a pass that are traced → the largest number with other kernels than those of all larger numbers."""

MAX_TRACED_WORKS = 3
"""The most traced passes of a rank whose kernels differ, as a window's do that is not full."""


class TracedWork:
    """The work of a pass with traced sizes, from which that of passes of other sizes follows. rank_pass: the pass."""

    def __init__(self, spec: ModelSpec, rank_pass: RankPass) -> None:
        self._trace: SizeTrace = SizeTrace()
        self._sizes: dict[str, Any] = {
            name: self._trace.size(number)
            for name, untraced_size in LARGEST_UNTRACED_SIZES.items()
            if (number := getattr(rank_pass, name)) > untraced_size
        }
        self._work: RankWork = _record_work(spec, replace(rank_pass, **self._sizes))
        kernel_fields = [kernel_field.name for kernel_field in fields(Kernel)]
        self._kernels: list[list[Any]] = [
            [getattr(kernel, field_name) for field_name in kernel_fields] for kernel in self._work.kernels
        ]

    def work_of(self, rank_pass: RankPass) -> RankWork | None:
        """Returns the work of a pass of other sizes; None where its kernels are not those of the traced pass."""
        numbers = self._trace.numbers({size.slot: getattr(rank_pass, name) for name, size in self._sizes.items()})
        if numbers is None:
            return None
        work = self._work
        return RankWork(
            rank_pass,
            [Kernel(*traced_numbers(kernel, numbers)) for kernel in self._kernels],
            [
                message._replace(collective=Collective(*traced_numbers(message.collective, numbers)))
                for message in work.messages
            ],
            work.layer_kinds,
            work.params_by_layer,
            dict(
                zip(
                    work.cached_elements_by_layer,
                    traced_numbers(work.cached_elements_by_layer.values(), numbers),
                    strict=True,
                )
            ),
            work.adapter_params_by_layer,
        )


_traced_works: IdentityCache[list[TracedWork | None]] = IdentityCache(64)
"""Traced work of passes, by what is not a size; None stands for a first pass, which is not traced."""


def _record_work(spec: ModelSpec, rank_pass: RankPass) -> RankWork:
    """Records the work of a rank with all layers. Errors are those of `rank_work`."""
    tp, etp, divides_tokens = rank_pass.tp, rank_pass.expert_tp, rank_pass.divides_tokens
    program_layout = Layout(tp=tp, etp=etp, dp=etp, sequence_parallel=divides_tokens)
    layout_of_rank = Layout(
        tp=tp,
        etp=etp,
        ep=_recorded_group_size(rank_pass.ep),
        dp=MEASURED_RANKS * etp,
        cp=_recorded_group_size(rank_pass.cp),
        cp_comm=rank_pass.cp_comm,
        sequence_parallel=divides_tokens,
    )
    work_recorder = WorkRecorder(
        layout_of_rank,
        rank_pass.run_config(rank_pass.cp),
        included_parts=rank_pass.included_parts,
        regathers_inputs=rank_pass.regathers_inputs,
        rank_pass=rank_pass,
    )
    return work_recorder.record(cached_rank_program(spec, program_layout))


def _has_key_selection(branch: ModuleScope) -> bool:
    """Whether attention in a branch reads only the keys that an indexer selects."""
    return any(
        isinstance(scope_item, Step) and getattr(scope_item.op, "selected_keys", None) is not None
        for scope_item in branch.items
    )


def _recorded_group_size(rank_count: Number) -> int:
    """Returns `MEASURED_RANKS` for groups of several ranks, so that one recording serves all group sizes."""
    return MEASURED_RANKS if not isinstance(rank_count, int) or rank_count > 1 else 1
