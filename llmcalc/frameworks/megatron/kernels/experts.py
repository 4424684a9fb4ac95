"""Mixtures of experts on a rank: the router, dispatchers, and the networks of the rank's experts.

The router is taken to spread tokens evenly: every expert gets as many rows, or its capacity.

Sources: Megatron-LM, megatron/core/transformer/moe/ (moe_layer.py, router.py, moe_utils.py, token_dispatcher.py,
experts.py); TransformerEngine, transformer_engine/pytorch/module/grouped_linear.py and permutation.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ....algebra import Number
from ....flow.program import Item, Scope, Step
from ....simulator.autograd import record
from ....simulator.tensor import BFLOAT16, BOOL, FLOAT32, INT32, INT64, Dtype, Gradient, Needs, Tensor, empty
from .head import HeadKernels
from .lowering import UncountedMeter


class ExpertKernels(HeadKernels):
    """Experts. The variables of MoELayer's function are those of its frame."""

    def _look_for_readers(self, scope: Scope, module: Scope) -> None:
        """Shared experts run before the router, or, in versions before 2025-10-11, after the rows are sent."""
        shared = _shared(scope)
        if shared:
            rest = [item for item in scope.items if item not in shared]
            position = 0
            if not self.rank_choices.shared_first:
                position = 1 + next(
                    i for i, item in enumerate(rest) if isinstance(item, Step) and item.verb == "dispatch"
                )
            scope.items = [*rest[:position], *shared, *rest[position:]]
        super()._look_for_readers(scope, module)

    # --- the router --------------------------------------------------------------------------------------------------

    @property
    def router_dtype(self) -> Dtype:
        return FLOAT32 if self.rank_choices.router_fp32 else BFLOAT16

    def undivided_linear(self, step: Step, x: Tensor) -> Tensor:
        if step.about.get("kind") == "shared_expert":
            return self.shared_expert_gate(step, x)
        return self.router_linear(step, x) if step.about.get("kind") == "router" else super().undivided_linear(step, x)

    def shared_expert_gate(self, step: Step, x: Tensor) -> Tensor:
        """SharedExpertMLP.forward: torch's product with `gate_weight`, one number for each token."""
        start, (rows, n_in) = len(self.ordered_parameters), x.shape
        weight, _ = self.linear_weights(step, step.outs[0].width, "")
        self.later_parameters += self.ordered_parameters[start:]
        del self.ordered_parameters[start:]
        self.persistent.use_torch_workspace("forward")
        out = self.new(rows, weight.shape[0])

        def backward(saved_tensors: list[Tensor | None], g: Tensor, needs_input_grad: Needs) -> Sequence[Gradient]:
            self.persistent.use_torch_workspace("backward")
            return [self.new(rows, n_in), self.graph.new(weight.shape, BFLOAT16)]

        self.node("linear", (x, weight), [out], backward, x)
        return out

    def router_linear(self, step: Step, x: Tensor) -> Tensor:
        """RouterGatingLinearFunction, by a product of Transformer Engine in any case."""
        weight, bias = self.linear_weights(step, step.outs[0].width, "router")
        dtype, (rows, width) = self.router_dtype, x.shape
        self.persistent.use_engine_workspace()
        out = self.graph.new((rows, weight.shape[0]), dtype)
        wide = dtype is FLOAT32

        def backward(saved_tensors: list[Tensor | None], g: Tensor, needs_input_grad: Needs) -> Sequence[Gradient]:
            graph = self.graph
            copied = graph.new(weight.shape, dtype) if wide else None
            input_gradient = graph.new((rows, width), dtype)
            del copied
            read = graph.new((rows, width), dtype) if wide else None
            weight_gradient = graph.new(weight.shape, dtype)
            del read
            if wide:
                input_gradient = self.t.to(input_gradient, BFLOAT16)
                weight_gradient = self.t.to(weight_gradient, BFLOAT16)
            return [input_gradient, weight_gradient, *([] if bias is None else [graph.new(bias.shape, BFLOAT16)])]

        self.node("router", (x, weight, *([] if bias is None else [bias])), [out], backward, x)
        return out

    def do_buffer(self, step: Step) -> None:
        """A correction of scores, which no gradient reaches: a few bytes an expert."""
        self.bind(step.outs[0], empty(UncountedMeter(), self.shape(step.outs[0]), FLOAT32))

    def do_route(self, step: Step) -> None:
        """topk_routing_with_score_function: probabilities and a mask, of every token and expert."""
        logits, k, graph = self.take(step, step.ins[0]), step.options["top_k"], self.graph
        rows, experts = logits.shape
        dtype = logits.dtype
        chosen = graph.new((rows, k), INT64)
        scores = [graph.new((rows, k), FLOAT32)]
        if step.options["scoring"] != "softmax of chosen":
            scores.append(graph.new((rows, experts), FLOAT32))
        numbers = graph.new((rows, experts), INT32)
        mask = graph.new((rows, experts), BOOL)
        del numbers
        probs = graph.new((rows, experts), dtype)
        saved = [chosen, *scores]
        if self.rank_choices.capacity is not None:
            saved.append(graph.new((rows, experts), BOOL))
            probs = graph.new((rows, experts), dtype)
        if self.rank_choices.aux_loss:
            saved.append(graph.new((rows, experts), FLOAT32))
        if self.rank_choices.z_loss:  # logsumexp
            saved += [logits, graph.new((rows, 1), dtype)]
        aux = self.rank_choices.aux_loss

        def backward(saved_tensors: list[Tensor | None], g: Tensor, needs_input_grad: Needs) -> Sequence[Gradient]:
            aux_gradient = graph.new((rows, experts), FLOAT32) if aux else None
            logits_gradient = graph.new((rows, experts), dtype)
            del aux_gradient
            return [logits_gradient]

        self.node("routing", (logits,), [probs], backward, mask, *saved)
        named = self.frames[-1].named
        named["probs"], named["routing_map"] = probs, mask

    # --- dispatchers -------------------------------------------------------------------------------------------------

    def do_dispatch(self, step: Step) -> None:
        named, x = self.frames[-1].named, self.take(step, step.ins[0])
        self.top_k, self.all_experts = step.options["top_k"], step.options["experts"].size
        dispatch = {
            "allgather": self._all_gather_tokens,
            "alltoall": self._send_rows,
            "hybridep": self._send_rows_by_hybridep,
        }
        sent = dispatch[self.rank_choices.dispatcher](x, named)
        del x
        self.bind(step.outs[0], sent)

    def do_combine(self, step: Step) -> None:
        named, y = self.frames[-1].named, self.take(step, step.ins[0])
        expert_outputs = [y]
        del y
        combine = {
            "allgather": self._reduce_scatter_tokens,
            "alltoall": self._return_rows,
            "hybridep": self._return_rows_by_hybridep,
        }
        combined = combine[self.rank_choices.dispatcher](expert_outputs, named)
        if not self.rank_choices.combined_at_once:
            named["output"] = combined
        self.bind(step.outs[0], combined)

    @property
    def local_experts(self) -> int:
        experts: int = self.all_experts // self.rank_choices.expert
        return experts

    def received_rows(self, rows: Number) -> Number:
        """Rows of this rank's experts, of so many tokens on each rank."""
        return self.sent_rows(rows) * self.rank_choices.expert_tensor

    def sent_rows(self, rows: Number) -> Number:
        if self.rank_choices.capacity is None:
            return rows * self.top_k
        return self.all_experts * math.ceil(rows * self.top_k / self.all_experts * self.rank_choices.capacity)

    def move_rows(self, name: str, x: Tensor, rows: Number) -> Tensor:
        """Rows sent between ranks, or sorted: a copy, and so is the gradient."""
        shape, dtype = x.shape, x.dtype
        out = self.graph.new((rows, *shape[1:]), dtype)
        return record(self.graph, name, (x,), out, lambda g, _: (self.graph.new(shape, dtype),))

    def keep_in_dispatcher(self, *tensors: Tensor) -> None:
        """What the dispatcher of this layer names until its next forward pass."""
        self.persistent.module_tensors[(id(self), *self.module_path())] = [tensor.detached() for tensor in tensors]

    def _all_gather_tokens(self, x: Tensor, named: dict[str, Tensor]) -> Tensor:
        """MoEAllGatherTokenDispatcher: the tokens of all ranks, of which this rank's experts take theirs."""
        choices, graph, (rows, width) = self.rank_choices, self.graph, x.shape
        group, probs, mask = choices.expert * choices.expert_tensor, named["probs"], named["routing_map"]
        all_rows, local, dtype = rows * group, self.local_experts, named["probs"].dtype
        chosen = self.received_rows(rows)
        if group > 1:
            mask = graph.new((all_rows, self.all_experts), BOOL)
            probs = self.move_rows("gather", probs, all_rows)
            self.persistent.grow_gather_buffer(2 * all_rows * width)
            read = Tensor((all_rows, width), x.dtype, self.empty_storage)
            local_shape = x.shape
            self.node(
                "gather", (x,), [read], lambda saved_tensors, g, needs_input_grad: [graph.new(local_shape, g.dtype)]
            )
            x = read
            del read
        local_map = graph.new((all_rows, local), BOOL)
        all_probs_shape = probs.shape
        local_probs = graph.new((all_rows, local), dtype)
        self.node(
            "slice",
            (probs,),
            [local_probs],
            lambda saved_tensors, g, needs_input_grad: [graph.new(all_probs_shape, g.dtype)],
        )
        del probs, mask
        sent, index = self.permute(x, chosen, all_rows, local, None)
        turned = graph.new((local, all_rows), dtype)
        row_probs = graph.new((chosen, 1), dtype)
        shape = local_probs.shape
        self.node(
            "masked_select",
            (local_probs,),
            [row_probs],
            lambda saved_tensors, g, needs_input_grad: [graph.new(shape, g.dtype)],
            turned,
        )
        del turned, local_probs
        self.keep_in_dispatcher(index, local_map, row_probs)
        named["routing_map"] = local_map
        named["index"], named["local_probs"], named["hidden_states"] = index, row_probs, x
        self.row_probs = row_probs
        return sent

    def permute(
        self, x: Tensor, rows: Number, tokens: Number, experts: Number, probs: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The rows of the chosen experts, in their order, and the map of their places."""
        graph, width = self.graph, x.shape[1]
        if self.rank_choices.permute_fusion:
            index = graph.new((tokens, 2 * experts + 1), INT32)
        else:
            turned = graph.new((experts, tokens), BOOL)
            order = graph.new((experts * tokens,), INT64)
            index = graph.new((rows,), INT64)
            del turned, order
        out = graph.new((rows, width), x.dtype)
        shape = x.shape
        if probs is None:
            self.node(
                "permute", (x,), [out], lambda saved_tensors, g, needs_input_grad: [graph.new(shape, g.dtype)], index
            )
            return out, index
        row_probs, probs_shape, dtype = graph.new((rows, 1), probs.dtype), probs.shape, probs.dtype
        self.node(
            "permute",
            (x, probs),
            [out, row_probs],
            lambda saved_tensors, gradients, needs_input_grad: [
                graph.new(shape, BFLOAT16),
                graph.new(probs_shape, dtype),
            ],
            index,
        )
        self.row_probs = row_probs
        return out, index

    def unpermute(self, expert_outputs: list[Tensor], tokens: Number, index: Tensor) -> Tensor:
        """The sum of each token's rows."""
        graph, y = self.graph, expert_outputs.pop()
        shape, dtype = y.shape, y.dtype
        out = graph.new((tokens, shape[1]), dtype)
        if not self.rank_choices.permute_fusion and self.rank_choices.deterministic:
            out = graph.new((tokens, shape[1]), dtype)  # made twice (moe_utils.py, `unpermute`)
        saved = [index, y] if self.rank_choices.deterministic and not self.rank_choices.permute_fusion else [index]
        self.node(
            "unpermute", (y,), [out], lambda saved_tensors, g, needs_input_grad: [graph.new(shape, g.dtype)], *saved
        )
        return out

    def _reduce_scatter_tokens(self, expert_outputs: list[Tensor], named: dict[str, Tensor]) -> Tensor:
        choices, width = self.rank_choices, expert_outputs[0].shape[1]
        x = named["hidden_states"]
        group, all_rows = choices.expert * choices.expert_tensor, x.shape[0]
        del x
        out = self.unpermute(expert_outputs, all_rows, named["index"])
        if group == 1:
            return out
        wide = self.t.to(out, self.router_dtype)
        rows = all_rows // group
        del width
        reduced = self.move_rows("reduce_scatter", wide, rows)
        return self.t.to(reduced, BFLOAT16)

    def _send_rows(self, x: Tensor, named: dict[str, Tensor]) -> Tensor:
        """MoEAlltoAllTokenDispatcher: rows are sorted by expert, sent to the ranks of the experts, and sorted again."""
        choices, (rows, _) = self.rank_choices, x.shape
        probs, mask = named["probs"], named["routing_map"]
        row_count = self.sent_rows(rows)
        sent, index = self.permute(x, row_count, rows, self.all_experts, probs)
        self.keep_in_dispatcher(index, mask, probs)
        named["index"] = index
        named["hidden_states"] = sent
        if choices.expert > 1:
            sent = self.move_rows("all_to_all", sent, row_count)
            self.row_probs = self.move_rows("all_to_all", self.row_probs, row_count)
            named["dispatched_input"] = sent
        if choices.expert_tensor > 1:
            row_count = row_count * choices.expert_tensor
            sent = self.move_rows("gather", sent, row_count)
            self.row_probs = self.move_rows("gather", self.row_probs, row_count)
        if self.local_experts > 1:
            sent = self.move_rows("sort", sent, row_count)
            self.row_probs = self.move_rows("sort", self.row_probs, row_count)
        self.dispatched_tokens = rows
        return sent

    def _send_rows_by_hybridep(self, x: Tensor, named: dict[str, Tensor]) -> Tensor:
        """MoEFlexTokenDispatcher with HybridEP: one kernel sends rows and sorts them by expert. What it sends through
        lies outside of torch's allocator; both directions keep its handle.

        Source: DeepEP, hybrid-ep at 94a9f8f, csrc/hybrid_ep/executor/executor.cu, `metadata_preprocess_core`, and
        hybrid_ep.cu, `dispatch_with_permute`.
        """
        choices, graph, (rows, width) = self.rank_choices, self.graph, x.shape
        ranks, local, probs = choices.expert * choices.expert_tensor, self.local_experts, named["probs"]
        if probs.dtype is not FLOAT32:
            probs = self.t.to(probs, FLOAT32)
        row_count, columns = self.received_rows(rows), self.all_experts * choices.expert_tensor
        if choices.expert_tensor > 1:  # the map and the probabilities, for each rank that divides an expert
            self.keep_in_dispatcher(graph.new((rows, columns), BOOL))
            probs_shape, dtype = probs.shape, probs.dtype
            wide = graph.new((rows, columns), dtype)
            probs = record(graph, "expand", (probs,), wide, lambda g, _: (graph.new(probs_shape, dtype),))
            del wide
        handle = [
            graph.new((rows, ranks), INT32),
            graph.new((rows, 1), BOOL),
            graph.new((rows * ranks, local), BOOL),
            graph.new((rows * ranks, local), INT32),
        ]
        sent, row_probs = graph.new((row_count, width), x.dtype), graph.new((row_count, 1), FLOAT32)
        shape = x.shape

        def backward(
            saved_tensors: list[Tensor | None], gradients: list[Gradient], needs_input_grad: Needs
        ) -> Sequence[Gradient]:
            return [graph.new(shape, BFLOAT16), graph.new((rows, columns), FLOAT32)]

        self.node("dispatch", (x, probs), [sent, row_probs], backward, *handle)
        self.keep_in_dispatcher(named["routing_map"], probs, row_probs)
        turns = [frame.layer_index for frame in self.frames]
        self.persistent.module_tensors[(id(self), "handle", *self.module_path(), *turns)] = (
            handle  # the graph of its probabilities
        )
        named["hidden_states"], named["dispatched_input"] = x, sent
        self.row_probs, self.dispatched_tokens, self.dispatch_handle = row_probs, rows, handle
        return sent

    def _return_rows_by_hybridep(self, expert_outputs: list[Tensor], named: dict[str, Tensor]) -> Tensor:
        graph, y, handle = self.graph, expert_outputs.pop(), self.dispatch_handle
        self.dispatch_handle = []
        shape, dtype = y.shape, y.dtype
        named["output"] = y
        out = graph.new((self.dispatched_tokens, shape[1]), dtype)
        self.node("combine", (y,), [out], lambda saved_tensors, g, needs_input_grad: [graph.new(shape, dtype)], *handle)
        return out

    def _return_rows(self, expert_outputs: list[Tensor], named: dict[str, Tensor]) -> Tensor:
        choices, row_count = self.rank_choices, expert_outputs[0].shape[0]
        if self.local_experts > 1:
            expert_outputs.append(self.move_rows("unsort", expert_outputs[0], row_count))
            expert_outputs.pop(0)
        if choices.expert_tensor > 1:
            row_count = row_count // choices.expert_tensor
            wide = self.t.to(expert_outputs.pop(), named["probs"].dtype)
            expert_outputs.append(self.t.to(self.move_rows("reduce_scatter", wide, row_count), BFLOAT16))
            del wide
        named["output"] = expert_outputs[0]
        if choices.expert > 1:
            expert_outputs.append(self.move_rows("all_to_all", expert_outputs.pop(), row_count))
            if not choices.combined_at_once:  # else the caller's variable still names what came from the experts
                named["output"] = expert_outputs[0]
        return self.unpermute(expert_outputs, self.dispatched_tokens, named["index"])

    # --- experts -----------------------------------------------------------------------------------------------------

    def do_experts(self, step: Step) -> None:
        out = step.outs[0]
        if id(step) in self.pending_outputs:
            self.bind(out, self.pending_outputs.pop(id(step)))
            return
        if self.rank_choices.grouped:
            group = self.fused_expert_steps(step)
            product = self.grouped_linear(
                step, self.take(step, step.ins[0]), sum(reader.outs[0].width for reader in group)
            )
            for reader in group:
                if reader is step:
                    self.bind(out, product)
                else:
                    self.pending_outputs[id(reader)] = product
            return
        raise self.unsupported("no kernels for an expert's layer outside of experts", step.name)

    def whole(self, scope: Scope) -> Callable[[], None] | None:
        """Without grouped products the experts run one after the other (SequentialMLP)."""
        steps = [item for item in scope.items if isinstance(item, Step) and item.verb == "experts"]
        if self.rank_choices.grouped or not steps:
            return super().whole(scope)
        return lambda: self._run_sequential_experts(scope, steps)

    def _run_sequential_experts(self, scope: Scope, steps: list[Step]) -> None:
        graph = self.graph
        first, last = steps[:-1], steps[-1]
        gated = any(isinstance(item, Step) and item.verb == "mul" for item in scope.items)
        experts, width = self.local_experts, sum(one.outs[0].width for one in first)
        inner, outs = last.ins[0].width, last.outs[0].width
        x, probs = self.get(first[0].ins[0]), self.row_probs
        rows = x.shape[0]
        size = rows // experts
        parts = [x] if experts == 1 else self.t.split(x, [size] * experts, 0)
        row_probs = [probs] if experts == 1 else self.t.split(probs, [size] * experts, 0)
        width_in = x.shape[1]
        self.forget(first[0].ins[0].storage)
        del x, probs
        expert_outputs: list[Tensor] = []
        for i, (part, part_probs) in enumerate(zip(parts, row_probs, strict=True)):
            product = self.expert_linear(first[0], part, i, width_in, width, "column")
            if gated:
                if self.rank_choices.bias_activation:
                    activation = self.weighted_glu(product, part_probs, inner)
                else:
                    activation = self.times_probabilities(self.gated_activation(product, None, inner), part_probs)
            else:
                activation = self.times_probabilities(self.activation(product, None), part_probs)
            del product
            expert_outputs.append(self.expert_linear(last, activation, i, inner, outs, "row"))
            del activation
        out = expert_outputs[0]
        if experts > 1:
            shapes = [tensor.shape for tensor in expert_outputs]
            out = record(
                graph,
                "cat",
                expert_outputs,
                graph.new((rows, outs), BFLOAT16),
                lambda g, _: [Tensor(s, g.dtype, g.storage, g.strides) for s in shapes],
            )
        del expert_outputs
        self.bind(last.outs[0], out)

    def expert_linear(self, step: Step, x: Tensor, i: int, ins: Number, outs: Number, role: str) -> Tensor:
        """A linear layer of one expert."""
        before, self.in_expert = self.in_expert, self.rank_choices.expert > 1
        path = (*self.module_path(), i)
        weight = self.with_role(role, lambda: self.weight(f"{step.name}.weight", (outs, ins), path))
        bias = (
            self.with_role(role, lambda: self.weight(f"{step.name}.bias", (outs,), path))
            if step.options["bias"]
            else None
        )
        self.in_expert = before
        engine, rows = self.rank_choices.transformer_engine, x.shape[0]
        self.use_workspace(engine, "forward")
        out = self.new(rows, outs)

        def backward(saved_tensors: list[Tensor | None], g: Tensor, needs_input_grad: Needs) -> Sequence[Gradient]:
            self.use_workspace(engine, "backward")
            input_gradient = self.new(rows, ins)
            weight_gradient = self.weight_gradient(weight)
            if engine:
                saved_tensors[0] = None
            return [input_gradient, weight_gradient]

        self.node("linear", (x, weight), [out], backward, x)
        return out if bias is None else self.with_bias(out, bias)

    def fused_expert_steps(self, step: Step) -> list[Step]:
        readers = self.readers[id(step.ins[0].storage)]
        return [
            reader for reader, where in readers if where is self.module_of_step[id(step)] and reader.verb == "experts"
        ]

    def expert_weights(self, step: Step, ins: Number, outs: Number, role: str) -> tuple[list[Tensor], list[Tensor]]:
        """The weights and biases of this rank's experts."""
        before, self.in_expert = self.in_expert, self.rank_choices.expert > 1
        role_before, self.role = self.role, role
        weights = [self.weight(f"{step.name}.weight{i}", (outs, ins)) for i in range(self.local_experts)]
        biases: list[Tensor] = []
        if step.options["bias"]:
            biases = [self.weight(f"{step.name}.bias{i}", (outs,)) for i in range(self.local_experts)]
        self.in_expert, self.role = before, role_before
        return weights, biases

    def grouped_linear(self, step: Step, x: Tensor, width: Number) -> Tensor:
        """TEGroupedLinear: the rows of each expert by a matrix of its own."""
        rows, n_in = x.shape
        weights, biases = self.expert_weights(step, n_in, width, "expert")
        self.persistent.use_grouped_workspaces()
        out = self.new(rows, width)

        def backward(saved_tensors: list[Tensor | None], g: Tensor, needs_input_grad: Needs) -> Sequence[Gradient]:
            self.persistent.use_grouped_workspaces()
            bias_gradients = [self.graph.new(parameter.shape, g.dtype) for parameter in biases]
            input_gradient = self.new(rows, n_in)
            weight_gradients = [self.weight_gradient(parameter) for parameter in weights]
            saved_tensors[0] = None  # clear_tensor_data(*inputmats)
            return [input_gradient, *weight_gradients, *bias_gradients]

        self.node("grouped_linear", (x, *weights, *biases), [out], backward, x)
        return out

    def do_act(self, step: Step) -> None:
        if not self.is_of_expert_rows(step) or self._is_gate(step.outs[0]):
            super().do_act(step)
            return
        x = self.take(step, step.ins[0])
        if self.rank_choices.weighted_activation:
            self.bind(step.outs[0], self.weighted_glu(x, self.row_probs, step.outs[0].width))
            return
        graph, shape = self.graph, x.shape
        out = graph.new(shape, x.dtype)
        self.node("activation", (x,), [out], lambda saved_tensors, g, needs_input_grad: [graph.new(shape, g.dtype)], x)
        del x
        self.bind(step.outs[0], self.times_probabilities(out, self.row_probs))

    def do_mul(self, step: Step) -> None:
        if step.ins[0].width == 1:  # a number for each token
            logits, y = (self.take(step, value) for value in step.ins)
            self.bind(step.outs[0], self.t.mul(y, self.t.function("sigmoid", logits)))
            return
        if not self.is_of_expert_rows(step):
            super().do_mul(step)
            return
        gate = self.gate_and_up(step)
        width = step.outs[0].width
        if not self.rank_choices.bias_activation:
            activation = self.gated_activation(gate, None, width)
            del gate
            self.bind(step.outs[0], self.times_probabilities(activation, self.row_probs))
            return
        self.bind(step.outs[0], self.weighted_glu(gate, self.row_probs, width))

    def weighted_glu(self, x: Tensor, probs: Tensor, width: Number) -> Tensor:
        """act(gate) · up · probability, by one kernel; without a gate act(x) · probability."""
        graph, shape = self.graph, x.shape
        out, probs_format = graph.new((shape[0], width), x.dtype), (probs.shape, probs.dtype)

        def backward(saved_tensors: list[Tensor | None], g: Tensor, needs_input_grad: Needs) -> Sequence[Gradient]:
            return [graph.new(shape, g.dtype), graph.new(*probs_format)]

        self.node("weighted_glu", (x, probs), [out], backward, x, probs)
        return out

    def is_of_expert_rows(self, step: Step) -> bool:
        """Whether a step computes on rows that were sent to experts."""
        return any(axis.name == "expert_ffn" for axis in step.ins[0].axes)

    def times_probabilities(self, x: Tensor, probs: Tensor) -> Tensor:
        """Rows times their probabilities, in the type of these, and back."""
        graph, shape = self.graph, x.shape
        dtype, probs_shape = probs.dtype, probs.shape
        out = graph.new(shape, dtype)

        def backward(saved_tensors: list[Tensor | None], g: Tensor, needs_input_grad: Needs) -> Sequence[Gradient]:
            x_gradient = graph.new(shape, g.dtype)
            product = graph.new(shape, g.dtype)
            probs_gradient = graph.new(probs_shape, dtype)
            del product
            return [x_gradient, probs_gradient]

        self.node("mul", (x, probs), [out], backward, x, probs)
        return self.t.to(out, BFLOAT16)


def _shared(scope: Scope) -> list[Item]:
    """The shared experts of a scope, with the steps of the gate on their output."""
    items = scope.items
    positions = [
        i for i, item in enumerate(items) if isinstance(item, Scope) and item.about.get("kind") == "shared_expert"
    ]
    if not positions:
        return []
    end = positions[-1] + 1
    gate = [i for i, item in enumerate(items) if isinstance(item, Step) and item.about.get("kind") == "shared_expert"]
    if gate:
        end = 1 + next(i for i in range(gate[0], len(items)) if _verb(items[i]) == "mul")
    return items[positions[0] : end]


def _verb(item: Item) -> str:
    return item.verb if isinstance(item, Step) else ""
