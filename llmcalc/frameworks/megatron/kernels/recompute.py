"""Parts of a layer whose outputs are given back once they have been read, and made again in the backward pass.

Sources: Megatron-LM, megatron/core/tensor_parallel/random.py, `CheckpointWithoutOutput`, and in core/transformer
transformer_layer.py (`layernorm`), moe/experts.py (`moe_act`) and multi_latent_attention.py (`mla_up_proj`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from ....flow.program import Alternatives, Item, Scope, Step
from ....flow.value import Value
from ....simulator.autograd import Graph, backward, recorded
from ....simulator.lowering import Frame
from ....simulator.tensor import BFLOAT16, Gradient, Needs, Node, Tensor, empty
from .lowering import Apart
from .sparse_attention import SparseKernels

Part: TypeAlias = Callable[[Sequence[Tensor]], list[Tensor]]

DOWN = ("q_a_proj", "kv_a_proj", "q_a_norm", "kv_a_norm")
"""Steps of latent attention that run before its latents are projected up."""


class Discarded:
    """A part whose outputs are given back, and made again from its arguments.

    storages: of its outputs, until they are made again. reads: the storage of the value that it read.
    """

    def __init__(
        self, graph: Graph, run: Part, arguments: Sequence[Tensor], outs: Sequence[Tensor], reads: int
    ) -> None:
        self.graph, self.run, self.reads = graph, run, reads
        self.arguments, self.storages = list(arguments), [out.storage for out in outs]
        self.made: list[Tensor] = []
        self.found: dict[int, Tensor] = {}

    def again(self) -> None:
        """Runs the part, with its graph; what it makes stands for its outputs."""
        graph, found = self.graph, self.found
        enabled, graph.enabled = graph.enabled, True
        place = graph.meter.place
        self.made = self.run([_argument(graph, found, i, x) for i, x in enumerate(self.arguments)])
        graph.enabled, graph.meter.place = enabled, place
        for storage, new in zip(self.storages, self.made, strict=True):
            storage.share(new.storage)
        self.storages = []

    def back(self, kept: list[Tensor | None], came: Gradient | list[Gradient], needs: Needs) -> Sequence[Gradient]:
        """The backward pass of the graph that was made again."""
        graph, found = self.graph, self.found
        enabled, graph.enabled = graph.enabled, True
        place = graph.meter.place
        given = came if isinstance(came, list) else [came]
        end = empty(Apart(), (1,), BFLOAT16)
        end.node = Node(graph, "outputs", tuple(self.made), lambda g, needs: given)
        self.made = []
        backward(graph, end, empty(Apart(), (1,), BFLOAT16))
        del end
        graph.enabled, graph.meter.place = enabled, place
        return [found.get(i) for i in range(len(kept))]


def _argument(graph: Graph, found: dict[int, Tensor], i: int, x: Tensor) -> Tensor:
    """An argument without its history, whose gradient stays in `found`."""
    one = x.detached()

    def arrived(g: Tensor, needs: Needs) -> Sequence[Gradient]:
        found[i] = g
        return (None,)

    one.node = Node(graph, "argument", (empty(Apart(), (), BFLOAT16, leaf=True),), arrived)
    return one


class DiscardedKernels(SparseKernels):
    """Norms, activations of experts, and projections of latents that run again by themselves."""

    def __init__(self, *given: object) -> None:
        super().__init__(*given)  # type: ignore[arg-type]
        self.norms: dict[int, Discarded] = {}
        self.active: Discarded | None = None

    def without_output(
        self, run: Part, arguments: Sequence[Tensor], reads: int = 0
    ) -> tuple[list[Tensor], Discarded | None]:
        """Runs a part whose arguments alone are kept. Returns its outputs, and what gives them back."""
        graph = self.graph
        if not recorded(graph, arguments):
            return run(arguments), None
        with graph.no_grad():
            outs = run(arguments)
        what = Discarded(graph, run, arguments, outs, reads)
        self.node("checkpoint", arguments, outs, what.back, *arguments)
        return outs, what

    def discarded(self, hook: Tensor, what: Discarded) -> Tensor:
        """Gives the outputs of a part back; when the gradient of `hook` is there, they are made again."""
        for storage in what.storages:
            storage.release()
        passed = Tensor(hook.shape, hook.dtype, hook.storage, hook.strides)

        def back(kept: list[Tensor | None], g: Tensor, needs: Needs) -> Sequence[Gradient]:
            what.again()
            return [g]

        self.node("recompute", (hook,), [passed], back)
        return passed

    # --- shared experts ----------------------------------------------------------------------------------------------

    def _look_for_readers(self, scope: Scope, module: Scope) -> None:
        """Shared experts that run again by themselves are modules with an input and an output."""
        for item in scope.items if "shared_expert" in self.how.recompute_kinds else ():
            if isinstance(item, Scope) and item.about.get("kind") == "shared_expert":
                own = [step for step in item.items if isinstance(step, Step)]
                item.reads, item.gives = own[0].ins[0], own[-1].outs[0]
        super()._look_for_readers(scope, module)

    # --- norms of a layer --------------------------------------------------------------------------------------------

    def do_norm(self, step: Step) -> None:
        """The norm before a sublayer, unless it is one module with a product, runs again after the sublayer's."""
        readers = [reader for reader, _ in self.readers.get(id(step.outs[0].storage), ())]
        fused = self.how.transformer_engine and readers and all(map(self.norms_its_input, readers))
        if not self.how.recompute_norms or fused or not self._is_of_layer():
            super().do_norm(step)
            return
        value, module = step.ins[0], self.module_path()
        x = self.taken(step, value)
        count = x.shape[0] * (value.width // self.extent(step.options["over"]))
        outs, what = self.without_output(
            lambda xs: [self.normed(xs[0], step, module, count)], [x], reads=id(value.storage)
        )
        del x
        if what is not None:
            self.norms[id(self.frames[-2])] = what
        self.bind(step.outs[0], outs[0])

    def _is_of_layer(self) -> bool:
        """Whether the norm that runs stands before a sublayer."""
        return self.frames[-1].scope.name.endswith("_pre_norm")

    def do_add(self, step: Step) -> None:
        what = self.norms.pop(id(self.frames[-1]), None)
        if what is not None:
            made = next(value for value in step.ins if id(value.storage) != what.reads)
            self.bind(made, self.discarded(self.get(made), what))
        super().do_add(step)

    # --- activations of experts --------------------------------------------------------------------------------------

    def _runs_again(self, step: Step) -> bool:
        return self.how.recompute_activation and self.how.grouped and self.of_rows(step)

    def do_act(self, step: Step) -> None:
        if not self._runs_again(step) or self._is_gate(step.outs[0]):
            super().do_act(step)
            return
        width = step.outs[0].width

        def run(xs: Sequence[Tensor]) -> list[Tensor]:
            x, probs = xs
            if self.how.weighted_activation:
                return [self.weighted_glu(x, probs, width)]
            return [self.weighted(self.activated(x, None), probs)]

        self._activated_again(step, run, self.taken(step, step.ins[0]))

    def do_mul(self, step: Step) -> None:
        if not self._runs_again(step):
            super().do_mul(step)
            return
        gate = self.of_one_product(step)
        width = step.outs[0].width

        def run(xs: Sequence[Tensor]) -> list[Tensor]:
            x, probs = xs
            if self.how.bias_activation:
                return [self.weighted_glu(x, probs, width)]
            return [self.weighted(self.gated(x, None, width), probs)]

        self._activated_again(step, run, gate)

    def _activated_again(self, step: Step, run: Part, x: Tensor) -> None:
        outs, self.active = self.without_output(run, [x, self.row_probs])
        self.bind(step.outs[0], outs[0])

    def do_experts(self, step: Step) -> None:
        what = self.active
        x = self.values.get(id(step.ins[0]))
        here = what is not None and x is not None and x.storage is what.storages[0]
        del x
        super().do_experts(step)
        if here and what is not None:
            self.active = None
            self.bind(step.outs[0], self.discarded(self.get(step.outs[0]), what))

    # --- projections of latents --------------------------------------------------------------------------------------

    def items(self, items: Sequence[Item]) -> None:
        forms = [item for item in items if isinstance(item, Alternatives)]
        names = {item.name for item in items if isinstance(item, Step)}
        if not (self.how.recompute_up and self.graph.enabled and forms and "kv_a_proj" in names):
            super().items(items)
            return
        at = items.index(forms[0])
        inside = self.branch(forms[0]).items
        core = next(i for i, item in enumerate(inside) if isinstance(item, Step) and item.verb == "attention")
        attention = inside[core]
        assert isinstance(attention, Step)
        first = [item for item in items[:at] if isinstance(item, Step)]
        down = [one for one in first if one.name in DOWN or (one.verb == "split" and self._splits_latent(one, first))]
        up = [one for one in (*first, *inside[:core]) if isinstance(one, Step) and one not in down]
        made: set[int] = set()
        read: dict[int, Value] = {}
        for one in up:
            read |= {id(value): value for value in one.ins if id(value.storage) not in made}
            made |= {id(out.storage) for out in one.outs}
        ahead = {key: self.values[key] for key in read if key in self.values}
        super().items(down)
        given = [(value, ahead.get(key) or self.get(value)) for key, value in read.items()]
        ahead.clear()
        values, tensors = [value for value, _ in given], [tensor for _, tensor in given]
        del given
        above = [Frame(one.scope, turn=one.turn, owner=one.owner) for one in self.frames]
        wanted = attention.ins[:3]

        def run(xs: Sequence[Tensor]) -> list[Tensor]:
            before = self.values, self.bound, self.frames, self.memo
            bound = {id(value): x for value, x in zip(values, xs, strict=True)}
            self.values, self.bound, self.frames, self.memo = bound, {}, list(above), {}
            try:
                for one in up:
                    self.step(one)
                return [self.get(value) for value in wanted]
            finally:
                self.values, self.bound, self.frames, self.memo = before

        outs, what = self.without_output(run, tensors)
        del tensors
        for value in values:
            self.forget(value.storage)
        for value, out in zip(wanted, outs, strict=True):
            self.bind(value, out)
        del outs
        self.step(attention)
        if what is not None:
            end = attention.outs[0]
            self.bind(end, self.discarded(self.get(end), what))
        super().items([*inside[core + 1 :], *items[at + 1 :]])

    def _splits_latent(self, step: Step, steps: list[Step]) -> bool:
        """Whether a step splits what the projection to latents makes."""
        down = next(one for one in steps if one.name == "kv_a_proj")
        return step.ins[0] is down.outs[0]
