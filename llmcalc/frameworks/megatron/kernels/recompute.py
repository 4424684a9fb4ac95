"""Parts of a layer whose outputs are freed once they have been read, and recomputed in the backward pass.

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
from .lowering import UncountedMeter
from .sparse_attention import SparseKernels

Part: TypeAlias = Callable[[Sequence[Tensor]], list[Tensor]]

DOWN = ("q_a_proj", "kv_a_proj", "q_a_norm", "kv_a_norm")
"""Steps of latent attention that run before its latents are projected up."""


class DiscardedOutputs:
    """A part whose outputs are freed, and recomputed from its arguments.

    storages: storages of the outputs until they are recomputed.
    reads: the storage of the value that the part read.
    recomputed: the recomputed outputs.
    argument_gradients: argument → its gradient.
    """

    def __init__(
        self, graph: Graph, run: Part, arguments: Sequence[Tensor], outs: Sequence[Tensor], reads: int
    ) -> None:
        self.graph, self.run, self.reads = graph, run, reads
        self.arguments, self.storages = list(arguments), [out.storage for out in outs]
        self.recomputed: list[Tensor] = []
        self.argument_gradients: dict[int, Tensor] = {}

    def recompute(self) -> None:
        """Runs the part again with its graph; the recomputed tensors take the place of its outputs."""
        graph, argument_gradients = self.graph, self.argument_gradients
        enabled, graph.enabled = graph.enabled, True
        place = graph.meter.place
        self.recomputed = self.run([_argument(graph, argument_gradients, i, x) for i, x in enumerate(self.arguments)])
        graph.enabled, graph.meter.place = enabled, place
        for storage, new in zip(self.storages, self.recomputed, strict=True):
            storage.share(new.storage)
        self.storages = []

    def backward(
        self, saved_tensors: list[Tensor | None], gradients: Gradient | list[Gradient], needs_input_grad: Needs
    ) -> Sequence[Gradient]:
        """Runs the backward pass of the recomputed graph."""
        graph, argument_gradients = self.graph, self.argument_gradients
        enabled, graph.enabled = graph.enabled, True
        place = graph.meter.place
        output_gradients = gradients if isinstance(gradients, list) else [gradients]
        end = empty(UncountedMeter(), (1,), BFLOAT16)
        end.node = Node(graph, "outputs", tuple(self.recomputed), lambda g, needs_input_grad: output_gradients)
        self.recomputed = []
        backward(graph, end, empty(UncountedMeter(), (1,), BFLOAT16))
        del end
        graph.enabled, graph.meter.place = enabled, place
        return [argument_gradients.get(i) for i in range(len(saved_tensors))]


def _argument(graph: Graph, argument_gradients: dict[int, Tensor], i: int, x: Tensor) -> Tensor:
    """Returns an argument without its history, whose gradient is put into `argument_gradients`."""
    argument = x.detached()

    def arrived(g: Tensor, needs_input_grad: Needs) -> Sequence[Gradient]:
        argument_gradients[i] = g
        return (None,)

    argument.node = Node(graph, "argument", (empty(UncountedMeter(), (), BFLOAT16, leaf=True),), arrived)
    return argument


class DiscardedKernels(SparseKernels):
    """Recomputed norms, activations of experts, and projections of latents."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.discarded_norms: dict[int, DiscardedOutputs] = {}
        self.discarded_activation: DiscardedOutputs | None = None

    def run_discardable(
        self, run: Part, arguments: Sequence[Tensor], reads: int = 0
    ) -> tuple[list[Tensor], DiscardedOutputs | None]:
        """Runs a part and saves its arguments alone. Returns its outputs, and what frees and recomputes them."""
        graph = self.graph
        if not recorded(graph, arguments):
            return run(arguments), None
        with graph.no_grad():
            outs = run(arguments)
        discarded = DiscardedOutputs(graph, run, arguments, outs, reads)
        self.node("checkpoint", arguments, outs, discarded.backward, *arguments)
        return outs, discarded

    def discard_outputs(self, hook: Tensor, discarded: DiscardedOutputs) -> Tensor:
        """Frees the outputs of a part; they are recomputed when `hook` gets its gradient."""
        for storage in discarded.storages:
            storage.release()
        passed = Tensor(hook.shape, hook.dtype, hook.storage, hook.strides)

        def backward(saved_tensors: list[Tensor | None], g: Tensor, needs_input_grad: Needs) -> Sequence[Gradient]:
            discarded.recompute()
            return [g]

        self.node("recompute", (hook,), [passed], backward)
        return passed

    # --- shared experts ----------------------------------------------------------------------------------------------

    def _look_for_readers(self, scope: Scope, module: Scope) -> None:
        """Gives recomputed shared experts an input and an output of their own."""
        for item in scope.items if "shared_expert" in self.rank_choices.recompute_kinds else ():
            if isinstance(item, Scope) and item.about.get("kind") == "shared_expert":
                steps = [step for step in item.items if isinstance(step, Step)]
                item.reads, item.gives = steps[0].ins[0], steps[-1].outs[0]
        super()._look_for_readers(scope, module)

    # --- norms of a layer --------------------------------------------------------------------------------------------

    def do_norm(self, step: Step) -> None:
        """Runs a norm; before a sublayer it is recomputed for the backward pass, unless a product has it."""
        readers = [reader for reader, _ in self.readers.get(id(step.outs[0].storage), ())]
        fused = self.rank_choices.transformer_engine and readers and all(map(self.has_norm_before, readers))
        if not self.rank_choices.recompute_norms or fused or not self._is_of_layer():
            super().do_norm(step)
            return
        value, module = step.ins[0], self.module_path()
        x = self.take(step, value)
        count = x.shape[0] * (value.width // self.extent(step.options["over"]))
        outs, discarded = self.run_discardable(
            lambda xs: [self.norm(xs[0], step, module, count)], [x], reads=id(value.storage)
        )
        del x
        if discarded is not None:
            self.discarded_norms[id(self.frames[-2])] = discarded
        self.bind(step.outs[0], outs[0])

    def _is_of_layer(self) -> bool:
        """Whether the norm that runs stands before a sublayer."""
        return self.frames[-1].scope.name.endswith("_pre_norm")

    def do_add(self, step: Step) -> None:
        discarded = self.discarded_norms.pop(id(self.frames[-1]), None)
        if discarded is not None:
            out_value = next(value for value in step.ins if id(value.storage) != discarded.reads)
            self.bind(out_value, self.discard_outputs(self.get(out_value), discarded))
        super().do_add(step)

    # --- activations of experts --------------------------------------------------------------------------------------

    def _recomputes_activation(self, step: Step) -> bool:
        return self.rank_choices.recompute_activation and self.rank_choices.grouped and self.is_of_expert_rows(step)

    def do_act(self, step: Step) -> None:
        if not self._recomputes_activation(step) or self._is_gate(step.outs[0]):
            super().do_act(step)
            return
        width = step.outs[0].width

        def run(xs: Sequence[Tensor]) -> list[Tensor]:
            x, probs = xs
            if self.rank_choices.weighted_activation:
                return [self.weighted_glu(x, probs, width)]
            return [self.times_probabilities(self.activation(x, None), probs)]

        self._run_discardable_activation(step, run, self.take(step, step.ins[0]))

    def do_mul(self, step: Step) -> None:
        if not self._recomputes_activation(step):
            super().do_mul(step)
            return
        gate = self.gate_and_up(step)
        width = step.outs[0].width

        def run(xs: Sequence[Tensor]) -> list[Tensor]:
            x, probs = xs
            if self.rank_choices.bias_activation:
                return [self.weighted_glu(x, probs, width)]
            return [self.times_probabilities(self.gated_activation(x, None, width), probs)]

        self._run_discardable_activation(step, run, gate)

    def _run_discardable_activation(self, step: Step, run: Part, x: Tensor) -> None:
        outs, self.discarded_activation = self.run_discardable(run, [x, self.row_probs])
        self.bind(step.outs[0], outs[0])

    def do_experts(self, step: Step) -> None:
        discarded = self.discarded_activation
        x = self.values.get(id(step.ins[0]))
        reads_discarded = discarded is not None and x is not None and x.storage is discarded.storages[0]
        del x
        super().do_experts(step)
        if reads_discarded and discarded is not None:
            self.discarded_activation = None
            self.bind(step.outs[0], self.discard_outputs(self.get(step.outs[0]), discarded))

    # --- projections of latents --------------------------------------------------------------------------------------

    def items(self, items: Sequence[Item]) -> None:
        alternatives = [item for item in items if isinstance(item, Alternatives)]
        names = {item.name for item in items if isinstance(item, Step)}
        if not (self.rank_choices.recompute_up and self.graph.enabled and alternatives and "kv_a_proj" in names):
            super().items(items)
            return
        form_position = items.index(alternatives[0])
        inside = self.branch(alternatives[0]).items
        core = next(i for i, item in enumerate(inside) if isinstance(item, Step) and item.verb == "attention")
        attention = inside[core]
        assert isinstance(attention, Step)
        first = [item for item in items[:form_position] if isinstance(item, Step)]
        down = [
            step for step in first if step.name in DOWN or (step.verb == "split" and self._splits_latent(step, first))
        ]
        up = [step for step in (*first, *inside[:core]) if isinstance(step, Step) and step not in down]
        made_storages: set[int] = set()
        read: dict[int, Value] = {}
        for step in up:
            read |= {id(value): value for value in step.ins if id(value.storage) not in made_storages}
            made_storages |= {id(out.storage) for out in step.outs}
        early_values = {key: self.values[key] for key in read if key in self.values}
        super().items(down)
        inputs = [(value, early_values.get(key) or self.get(value)) for key, value in read.items()]
        early_values.clear()
        values, tensors = [value for value, _ in inputs], [tensor for _, tensor in inputs]
        del inputs
        above = [Frame(outer.scope, layer_index=outer.layer_index, owner=outer.owner) for outer in self.frames]
        wanted = attention.ins[:3]

        def run(xs: Sequence[Tensor]) -> list[Tensor]:
            before = self.values, self.bound, self.frames, self.memo
            bound = {id(value): x for value, x in zip(values, xs, strict=True)}
            self.values, self.bound, self.frames, self.memo = bound, {}, list(above), {}
            try:
                for step in up:
                    self.step(step)
                return [self.get(value) for value in wanted]
            finally:
                self.values, self.bound, self.frames, self.memo = before

        outs, discarded = self.run_discardable(run, tensors)
        del tensors
        for value in values:
            self.forget(value.storage)
        for value, out in zip(wanted, outs, strict=True):
            self.bind(value, out)
        del outs
        self.step(attention)
        if discarded is not None:
            end = attention.outs[0]
            self.bind(end, self.discard_outputs(self.get(end), discarded))
        super().items([*inside[core + 1 :], *items[form_position + 1 :]])

    def _splits_latent(self, step: Step, steps: list[Step]) -> bool:
        """Whether a step splits what the projection to latents makes."""
        down = next(earlier for earlier in steps if earlier.name == "kv_a_proj")
        return step.ins[0] is down.outs[0]
