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
from .lowering import Apart


class ExpertKernels(HeadKernels):
    """Experts. The variables of MoELayer's function are those of its frame."""

    def _look_for_readers(self, scope: Scope, module: Scope) -> None:
        """Shared experts run before the router, or, in versions before 2025-10-11, after the rows are sent."""
        shared = _shared(scope)
        if shared:
            rest = [item for item in scope.items if item not in shared]
            at = 0
            if not self.how.shared_first:
                at = 1 + next(i for i, item in enumerate(rest) if isinstance(item, Step) and item.verb == "dispatch")
            scope.items = [*rest[:at], *shared, *rest[at:]]
        super()._look_for_readers(scope, module)

    # --- the router --------------------------------------------------------------------------------------------------

    @property
    def router_dtype(self) -> Dtype:
        return FLOAT32 if self.how.router_fp32 else BFLOAT16

    def plain(self, step: Step, x: Tensor) -> Tensor:
        if step.about.get("kind") == "shared_expert":
            return self.gate_of_shared(step, x)
        return self.router(step, x) if step.about.get("kind") == "router" else super().plain(step, x)

    def gate_of_shared(self, step: Step, x: Tensor) -> Tensor:
        """SharedExpertMLP.forward: torch's product with `gate_weight`, one number for each token."""
        start, (rows, n_in) = len(self.made), x.shape
        weight, _ = self.weights_of(step, step.outs[0].width, "")
        self.last_made += self.made[start:]
        del self.made[start:]
        self.stays.product("forward")
        out = self.new(rows, weight.shape[0])

        def back(kept: list[Tensor | None], g: Tensor, needs: Needs) -> Sequence[Gradient]:
            self.stays.product("backward")
            return [self.new(rows, n_in), self.graph.new(weight.shape, BFLOAT16)]

        self.node("linear", (x, weight), [out], back, x)
        return out

    def router(self, step: Step, x: Tensor) -> Tensor:
        """RouterGatingLinearFunction, by a product of Transformer Engine in any case."""
        weight, bias = self.weights_of(step, step.outs[0].width, "router")
        dtype, (rows, width) = self.router_dtype, x.shape
        self.stays.engine_product()
        out = self.graph.new((rows, weight.shape[0]), dtype)
        wide = dtype is FLOAT32

        def back(kept: list[Tensor | None], g: Tensor, needs: Needs) -> Sequence[Gradient]:
            graph = self.graph
            copied = graph.new(weight.shape, dtype) if wide else None
            given = graph.new((rows, width), dtype)
            del copied
            read = graph.new((rows, width), dtype) if wide else None
            of_weight = graph.new(weight.shape, dtype)
            del read
            if wide:
                given, of_weight = self.t.to(given, BFLOAT16), self.t.to(of_weight, BFLOAT16)
            return [given, of_weight, *([] if bias is None else [graph.new(bias.shape, BFLOAT16)])]

        self.node("router", (x, weight, *([] if bias is None else [bias])), [out], back, x)
        return out

    def do_buffer(self, step: Step) -> None:
        """A correction of scores, which no gradient reaches: a few bytes an expert."""
        self.bind(step.outs[0], empty(Apart(), self.shape(step.outs[0]), FLOAT32))

    def do_route(self, step: Step) -> None:
        """topk_routing_with_score_function: probabilities and a mask, of every token and expert."""
        logits, k, graph = self.taken(step, step.ins[0]), step.options["top_k"], self.graph
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
        if self.how.capacity is not None:
            saved.append(graph.new((rows, experts), BOOL))
            probs = graph.new((rows, experts), dtype)
        if self.how.aux_loss:
            saved.append(graph.new((rows, experts), FLOAT32))
        if self.how.z_loss:  # logsumexp
            saved += [logits, graph.new((rows, 1), dtype)]
        aux = self.how.aux_loss

        def back(kept: list[Tensor | None], g: Tensor, needs: Needs) -> Sequence[Gradient]:
            of_aux = graph.new((rows, experts), FLOAT32) if aux else None
            made = graph.new((rows, experts), dtype)
            del of_aux
            return [made]

        self.node("routing", (logits,), [probs], back, mask, *saved)
        named = self.frames[-1].named
        named["probs"], named["routing_map"] = probs, mask

    # --- dispatchers -------------------------------------------------------------------------------------------------

    def do_dispatch(self, step: Step) -> None:
        named, x = self.frames[-1].named, self.taken(step, step.ins[0])
        self.top_k, self.all_experts = step.options["top_k"], step.options["experts"].size
        send = {"allgather": self._gathered_rows, "alltoall": self._sent_rows, "hybridep": self._fused_rows}
        sent = send[self.how.dispatcher](x, named)
        del x
        self.bind(step.outs[0], sent)

    def do_combine(self, step: Step) -> None:
        named, y = self.frames[-1].named, self.taken(step, step.ins[0])
        given = [y]
        del y
        back = {"allgather": self._scattered_rows, "alltoall": self._returned, "hybridep": self._fused_return}
        made = back[self.how.dispatcher](given, named)
        if not self.how.combined_at_once:
            named["output"] = made
        self.bind(step.outs[0], made)

    @property
    def local_experts(self) -> int:
        experts: int = self.all_experts // self.how.expert
        return experts

    def received_rows(self, rows: Number) -> Number:
        """Rows of this rank's experts, of so many tokens on each rank."""
        return self.sent_rows(rows) * self.how.expert_tensor

    def sent_rows(self, rows: Number) -> Number:
        if self.how.capacity is None:
            return rows * self.top_k
        return self.all_experts * math.ceil(rows * self.top_k / self.all_experts * self.how.capacity)

    def moved(self, name: str, x: Tensor, rows: Number) -> Tensor:
        """Rows sent between ranks, or sorted: a copy, and so is the gradient."""
        shape, dtype = x.shape, x.dtype
        out = self.graph.new((rows, *shape[1:]), dtype)
        return record(self.graph, name, (x,), out, lambda g, _: (self.graph.new(shape, dtype),))

    def kept_by_dispatcher(self, *tensors: Tensor) -> None:
        """What the dispatcher of this layer names until its next forward pass."""
        self.stays.named[(id(self), *self.module_path())] = [one.detached() for one in tensors]

    def _gathered_rows(self, x: Tensor, named: dict[str, Tensor]) -> Tensor:
        """MoEAllGatherTokenDispatcher: the tokens of all ranks, of which this rank's experts take theirs."""
        how, graph, (rows, width) = self.how, self.graph, x.shape
        group, probs, mask = how.expert * how.expert_tensor, named["probs"], named["routing_map"]
        all_rows, local, dtype = rows * group, self.local_experts, named["probs"].dtype
        chosen = self.received_rows(rows)
        if group > 1:
            mask = graph.new((all_rows, self.all_experts), BOOL)
            probs = self.moved("gather", probs, all_rows)
            self.stays.gathered(2 * all_rows * width)
            read = Tensor((all_rows, width), x.dtype, self.nothing)
            own = x.shape
            self.node("gather", (x,), [read], lambda kept, g, needs: [graph.new(own, g.dtype)])
            x = read
            del read
        local_map = graph.new((all_rows, local), BOOL)
        whole = probs.shape
        local_probs = graph.new((all_rows, local), dtype)
        self.node("slice", (probs,), [local_probs], lambda kept, g, needs: [graph.new(whole, g.dtype)])
        del probs, mask
        sent, index = self.permuted(x, chosen, all_rows, local, None)
        turned = graph.new((local, all_rows), dtype)
        of_rows = graph.new((chosen, 1), dtype)
        shape = local_probs.shape
        self.node(
            "masked_select", (local_probs,), [of_rows], lambda kept, g, needs: [graph.new(shape, g.dtype)], turned
        )
        del turned, local_probs
        self.kept_by_dispatcher(index, local_map, of_rows)
        named["routing_map"] = local_map
        named["index"], named["local_probs"], named["hidden_states"] = index, of_rows, x
        self.row_probs = of_rows
        return sent

    def permuted(
        self, x: Tensor, rows: Number, tokens: Number, experts: Number, probs: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The rows of the chosen experts, in their order, and the map of their places."""
        graph, width = self.graph, x.shape[1]
        if self.how.permute_fusion:
            index = graph.new((tokens, 2 * experts + 1), INT32)
        else:
            turned = graph.new((experts, tokens), BOOL)
            order = graph.new((experts * tokens,), INT64)
            index = graph.new((rows,), INT64)
            del turned, order
        out = graph.new((rows, width), x.dtype)
        shape = x.shape
        if probs is None:
            self.node("permute", (x,), [out], lambda kept, g, needs: [graph.new(shape, g.dtype)], index)
            return out, index
        of_rows, of_probs, dtype = graph.new((rows, 1), probs.dtype), probs.shape, probs.dtype
        self.node(
            "permute",
            (x, probs),
            [out, of_rows],
            lambda kept, came, needs: [graph.new(shape, BFLOAT16), graph.new(of_probs, dtype)],
            index,
        )
        self.row_probs = of_rows
        return out, index

    def unpermuted(self, given: list[Tensor], tokens: Number, index: Tensor) -> Tensor:
        """The sum of each token's rows."""
        graph, y = self.graph, given.pop()
        shape, dtype = y.shape, y.dtype
        out = graph.new((tokens, shape[1]), dtype)
        if not self.how.permute_fusion and self.how.deterministic:
            out = graph.new((tokens, shape[1]), dtype)  # made twice (moe_utils.py, `unpermute`)
        saved = [index, y] if self.how.deterministic and not self.how.permute_fusion else [index]
        self.node("unpermute", (y,), [out], lambda kept, g, needs: [graph.new(shape, g.dtype)], *saved)
        return out

    def _scattered_rows(self, given: list[Tensor], named: dict[str, Tensor]) -> Tensor:
        how, width = self.how, given[0].shape[1]
        x = named["hidden_states"]
        group, all_rows = how.expert * how.expert_tensor, x.shape[0]
        del x
        out = self.unpermuted(given, all_rows, named["index"])
        if group == 1:
            return out
        wide = self.t.to(out, self.router_dtype)
        rows = all_rows // group
        del width
        made = self.moved("reduce_scatter", wide, rows)
        return self.t.to(made, BFLOAT16)

    def _sent_rows(self, x: Tensor, named: dict[str, Tensor]) -> Tensor:
        """MoEAlltoAllTokenDispatcher: rows are sorted by expert, sent to the ranks of the experts, and sorted again."""
        how, (rows, _) = self.how, x.shape
        probs, mask = named["probs"], named["routing_map"]
        n = self.sent_rows(rows)
        sent, index = self.permuted(x, n, rows, self.all_experts, probs)
        self.kept_by_dispatcher(index, mask, probs)
        named["index"] = index
        named["hidden_states"] = sent
        if how.expert > 1:
            sent = self.moved("all_to_all", sent, n)
            self.row_probs = self.moved("all_to_all", self.row_probs, n)
            named["dispatched_input"] = sent
        if how.expert_tensor > 1:
            n = n * how.expert_tensor
            sent = self.moved("gather", sent, n)
            self.row_probs = self.moved("gather", self.row_probs, n)
        if self.local_experts > 1:
            sent = self.moved("sort", sent, n)
            self.row_probs = self.moved("sort", self.row_probs, n)
        self.tokens = rows
        return sent

    def _fused_rows(self, x: Tensor, named: dict[str, Tensor]) -> Tensor:
        """MoEFlexTokenDispatcher with HybridEP: one kernel sends rows and sorts them by expert. What it sends through
        lies outside of torch's allocator; both directions keep its handle.

        Source: DeepEP, hybrid-ep at 94a9f8f, csrc/hybrid_ep/executor/executor.cu, `metadata_preprocess_core`, and
        hybrid_ep.cu, `dispatch_with_permute`.
        """
        how, graph, (rows, width) = self.how, self.graph, x.shape
        ranks, local, probs = how.expert * how.expert_tensor, self.local_experts, named["probs"]
        if probs.dtype is not FLOAT32:
            probs = self.t.to(probs, FLOAT32)
        n, columns = self.received_rows(rows), self.all_experts * how.expert_tensor
        if how.expert_tensor > 1:  # the map and the probabilities, for each rank that divides an expert
            self.kept_by_dispatcher(graph.new((rows, columns), BOOL))
            own, dtype = probs.shape, probs.dtype
            wide = graph.new((rows, columns), dtype)
            probs = record(graph, "expand", (probs,), wide, lambda g, _: (graph.new(own, dtype),))
            del wide
        handle = [
            graph.new((rows, ranks), INT32),
            graph.new((rows, 1), BOOL),
            graph.new((rows * ranks, local), BOOL),
            graph.new((rows * ranks, local), INT32),
        ]
        sent, of_rows = graph.new((n, width), x.dtype), graph.new((n, 1), FLOAT32)
        shape = x.shape

        def back(kept: list[Tensor | None], came: list[Gradient], needs: Needs) -> Sequence[Gradient]:
            return [graph.new(shape, BFLOAT16), graph.new((rows, columns), FLOAT32)]

        self.node("dispatch", (x, probs), [sent, of_rows], back, *handle)
        self.kept_by_dispatcher(named["routing_map"], probs, of_rows)
        turns = [frame.turn for frame in self.frames]
        self.stays.named[(id(self), "handle", *self.module_path(), *turns)] = handle  # the graph of its probabilities
        named["hidden_states"], named["dispatched_input"] = x, sent
        self.row_probs, self.tokens, self.handle = of_rows, rows, handle
        return sent

    def _fused_return(self, given: list[Tensor], named: dict[str, Tensor]) -> Tensor:
        graph, y, handle = self.graph, given.pop(), self.handle
        self.handle = []
        shape, dtype = y.shape, y.dtype
        named["output"] = y
        out = graph.new((self.tokens, shape[1]), dtype)
        self.node("combine", (y,), [out], lambda kept, g, needs: [graph.new(shape, dtype)], *handle)
        return out

    def _returned(self, given: list[Tensor], named: dict[str, Tensor]) -> Tensor:
        how, n = self.how, given[0].shape[0]
        if self.local_experts > 1:
            given.append(self.moved("unsort", given[0], n))
            given.pop(0)
        if how.expert_tensor > 1:
            n = n // how.expert_tensor
            wide = self.t.to(given.pop(), named["probs"].dtype)
            given.append(self.t.to(self.moved("reduce_scatter", wide, n), BFLOAT16))
            del wide
        named["output"] = given[0]
        if how.expert > 1:
            given.append(self.moved("all_to_all", given.pop(), n))
            if not how.combined_at_once:  # else the caller's variable still names what came from the experts
                named["output"] = given[0]
        return self.unpermuted(given, self.tokens, named["index"])

    # --- experts -----------------------------------------------------------------------------------------------------

    def do_experts(self, step: Step) -> None:
        out = step.outs[0]
        if id(step) in self.pending:
            self.bind(out, self.pending.pop(id(step)))
            return
        if self.how.grouped:
            group = self.reading_the_same(step)
            made = self.grouped(step, self.taken(step, step.ins[0]), sum(one.outs[0].width for one in group))
            for one in group:
                if one is step:
                    self.bind(out, made)
                else:
                    self.pending[id(one)] = made
            return
        raise self.unsupported("no kernels for an expert's layer outside of experts", step.name)

    def whole(self, scope: Scope) -> Callable[[], None] | None:
        """Without grouped products the experts run one after the other (SequentialMLP)."""
        steps = [item for item in scope.items if isinstance(item, Step) and item.verb == "experts"]
        if self.how.grouped or not steps:
            return super().whole(scope)
        return lambda: self._one_by_one(scope, steps)

    def _one_by_one(self, scope: Scope, steps: list[Step]) -> None:
        graph = self.graph
        first, last = steps[:-1], steps[-1]
        gated = any(isinstance(item, Step) and item.verb == "mul" for item in scope.items)
        n, width = self.local_experts, sum(one.outs[0].width for one in first)
        inner, outs = last.ins[0].width, last.outs[0].width
        x, probs = self.get(first[0].ins[0]), self.row_probs
        rows = x.shape[0]
        size = rows // n
        parts = [x] if n == 1 else self.t.split(x, [size] * n, 0)
        of_rows = [probs] if n == 1 else self.t.split(probs, [size] * n, 0)
        width_in = x.shape[1]
        self.forget(first[0].ins[0].storage)
        del x, probs
        made: list[Tensor] = []
        for i, (part, of_part) in enumerate(zip(parts, of_rows, strict=True)):
            u = self.of_one(first[0], part, i, width_in, width, "column")
            if gated:
                if self.how.bias_activation:
                    v = self.weighted_glu(u, of_part, inner)
                else:
                    v = self.weighted(self.gated(u, None, inner), of_part)
            else:
                v = self.weighted(self.activated(u, None), of_part)
            del u
            made.append(self.of_one(last, v, i, inner, outs, "row"))
            del v
        out = made[0]
        if n > 1:
            shapes = [one.shape for one in made]
            out = record(
                graph,
                "cat",
                made,
                graph.new((rows, outs), BFLOAT16),
                lambda g, _: [Tensor(s, g.dtype, g.storage, g.strides) for s in shapes],
            )
        del made
        self.bind(last.outs[0], out)

    def of_one(self, step: Step, x: Tensor, i: int, ins: Number, outs: Number, role: str) -> Tensor:
        """A linear layer of one expert."""
        before, self.of_expert = self.of_expert, self.how.expert > 1
        path = (*self.module_path(), i)
        weight = self.named(role, lambda: self.weight(f"{step.name}.weight", (outs, ins), path))
        bias = (
            self.named(role, lambda: self.weight(f"{step.name}.bias", (outs,), path)) if step.options["bias"] else None
        )
        self.of_expert = before
        engine, rows = self.how.transformer_engine, x.shape[0]
        self.product_of(engine, "forward")
        out = self.new(rows, outs)

        def back(kept: list[Tensor | None], g: Tensor, needs: Needs) -> Sequence[Gradient]:
            self.product_of(engine, "backward")
            given = self.new(rows, ins)
            of_weight = self.weight_gradient(weight)
            if engine:
                kept[0] = None
            return [given, of_weight]

        self.node("linear", (x, weight), [out], back, x)
        return out if bias is None else self.with_bias(out, bias)

    def reading_the_same(self, step: Step) -> list[Step]:
        readers = self.readers[id(step.ins[0].storage)]
        return [one for one, where in readers if where is self.within[id(step)] and one.verb == "experts"]

    def expert_weights(self, step: Step, ins: Number, outs: Number, role: str) -> tuple[list[Tensor], list[Tensor]]:
        """The weights and biases of this rank's experts."""
        before, self.of_expert = self.of_expert, self.how.expert > 1
        role_before, self.role = self.role, role
        weights = [self.weight(f"{step.name}.weight{i}", (outs, ins)) for i in range(self.local_experts)]
        biases: list[Tensor] = []
        if step.options["bias"]:
            biases = [self.weight(f"{step.name}.bias{i}", (outs,)) for i in range(self.local_experts)]
        self.of_expert, self.role = before, role_before
        return weights, biases

    def grouped(self, step: Step, x: Tensor, width: Number) -> Tensor:
        """TEGroupedLinear: the rows of each expert by a matrix of its own."""
        rows, n_in = x.shape
        weights, biases = self.expert_weights(step, n_in, width, "expert")
        self.stays.grouped_product()
        out = self.new(rows, width)

        def back(kept: list[Tensor | None], g: Tensor, needs: Needs) -> Sequence[Gradient]:
            self.stays.grouped_product()
            of_biases = [self.graph.new(one.shape, g.dtype) for one in biases]
            given = self.new(rows, n_in)
            of_weights = [self.weight_gradient(one) for one in weights]
            kept[0] = None  # clear_tensor_data(*inputmats)
            return [given, *of_weights, *of_biases]

        self.node("grouped_linear", (x, *weights, *biases), [out], back, x)
        return out

    def do_act(self, step: Step) -> None:
        if not self.of_rows(step) or self._is_gate(step.outs[0]):
            super().do_act(step)
            return
        x = self.taken(step, step.ins[0])
        if self.how.weighted_activation:
            self.bind(step.outs[0], self.weighted_glu(x, self.row_probs, step.outs[0].width))
            return
        graph, shape = self.graph, x.shape
        out = graph.new(shape, x.dtype)
        self.node("activation", (x,), [out], lambda kept, g, needs: [graph.new(shape, g.dtype)], x)
        del x
        self.bind(step.outs[0], self.weighted(out, self.row_probs))

    def do_mul(self, step: Step) -> None:
        if step.ins[0].width == 1:  # a number for each token
            logits, y = (self.taken(step, value) for value in step.ins)
            self.bind(step.outs[0], self.t.mul(y, self.t.function("sigmoid", logits)))
            return
        if not self.of_rows(step):
            super().do_mul(step)
            return
        gate = self.of_one_product(step)
        width = step.outs[0].width
        if not self.how.bias_activation:
            made = self.gated(gate, None, width)
            del gate
            self.bind(step.outs[0], self.weighted(made, self.row_probs))
            return
        self.bind(step.outs[0], self.weighted_glu(gate, self.row_probs, width))

    def weighted_glu(self, x: Tensor, probs: Tensor, width: Number) -> Tensor:
        """act(gate) · up · probability, by one kernel; without a gate act(x) · probability."""
        graph, shape = self.graph, x.shape
        out, of_probs = graph.new((shape[0], width), x.dtype), (probs.shape, probs.dtype)

        def back(kept: list[Tensor | None], g: Tensor, needs: Needs) -> Sequence[Gradient]:
            return [graph.new(shape, g.dtype), graph.new(*of_probs)]

        self.node("weighted_glu", (x, probs), [out], back, x, probs)
        return out

    def of_rows(self, step: Step) -> bool:
        """Whether a step computes on rows that were sent to experts."""
        return any(axis.name == "expert_ffn" for axis in step.ins[0].axes)

    def weighted(self, x: Tensor, probs: Tensor) -> Tensor:
        """Rows times their probabilities, in the type of these, and back."""
        graph, shape = self.graph, x.shape
        dtype, of_probs = probs.dtype, probs.shape
        out = graph.new(shape, dtype)

        def back(kept: list[Tensor | None], g: Tensor, needs: Needs) -> Sequence[Gradient]:
            made = graph.new(shape, g.dtype)
            product = graph.new(shape, g.dtype)
            given = graph.new(of_probs, dtype)
            del product
            return [made, given]

        self.node("mul", (x, probs), [out], back, x, probs)
        return self.t.to(out, BFLOAT16)


def _shared(scope: Scope) -> list[Item]:
    """The shared experts of a scope, with the steps of the gate on their output."""
    items = scope.items
    found = [i for i, item in enumerate(items) if isinstance(item, Scope) and item.about.get("kind") == "shared_expert"]
    if not found:
        return []
    end = found[-1] + 1
    gate = [i for i, item in enumerate(items) if isinstance(item, Step) and item.about.get("kind") == "shared_expert"]
    if gate:
        end = 1 + next(i for i in range(gate[0], len(items)) if _verb(items[i]) == "mul")
    return items[found[0] : end]


def _verb(item: Item) -> str:
    return item.verb if isinstance(item, Step) else ""
