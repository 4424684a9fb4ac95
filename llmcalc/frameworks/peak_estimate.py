"""What a rank of a layout needs, without an allocator: what a micro-batch keeps in a stage, and the most of each pass.

A stage of many equal layers is measured with a few, since bytes are linear in their number (`fold`); stages that only
differ in it, and layouts that only differ in how experts or replicas are divided, share a measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import NamedTuple, TypeAlias

from ..algebra import Number, ceil_div, exact_div, times
from ..costs.params import total_of
from ..costs.trained_tensors import bytes_of, in_a_layer
from ..device_memory.estimate import Memory
from ..device_memory.optimizers.registry import optimizer
from ..device_memory.training import Training
from ..flow.program import Scope
from ..flow.tree import Use
from ..model import ModelSpec
from ..ops import ExpertLinear
from ..parallel.layout import Layout, Stage, stages
from ..parallel.rank_program import rank_program
from ..parallel.schedules import Pipeline, pipeline
from ..parallel.search import routed_experts
from ..simulator.event_log import Recorder
from ..simulator.layer_loops import SHORT_RUN_REPEATS
from ..simulator.layer_pattern import find_pattern, layer_kinds
from ..simulator.meter import Meter
from ..simulator.profiles.context_parallel import RingAttention, part_of_sequence, ring_of
from ..simulator.profiles.dtensor import Divided
from .torch.pipeline import Chunk
from .transient_bytes import Arounds, Elements, nothing

STACKS = "encoder", "decoder"
"""The parts of an encoder-decoder that have layers."""


def in_layers(path: str) -> bool:
    """Whether a module of that path is in a layer, or is one."""
    return "layers" in path.split(".")


class Most(NamedTuple):
    """The most bytes of a pass, by the path of the module that ran.

    In more layers each grows by itself: the highest of few need not be that of many.
    """

    by_path: Mapping[str, int]

    @staticmethod
    def of(meter: Meter, before: int) -> Most:
        """Since the meter's last restart, over what was there before."""
        found: dict[str, int] = {}
        for place, peak in meter.peaks.items():
            found[place.path] = max(found.get(place.path, 0), peak.bytes - before)
        return Most(found)

    @property
    def bytes(self) -> int:
        return max(self.by_path.values())

    def grown(self, more: Most, times: int) -> Most:
        """As of `Passes`."""
        grown = {path: bytes + times * (more.by_path.get(path, bytes) - bytes) for path, bytes in self.by_path.items()}
        return Most(grown)

    def over(self, bytes: int) -> Most:
        """With so many bytes more throughout."""
        return Most({path: most + bytes for path, most in self.by_path.items()})


class Passes(NamedTuple):
    """Bytes of a micro-batch in a stage.

    saved: between its passes. forward, backward: the most beside what stays. received: what stays for it from the first
    step on, into which other ranks send. whole: elements that gradients have more than their weights.
    """

    saved: int
    forward: Most
    backward: Most
    received: int = 0
    whole: int = 0

    @property
    def most(self) -> int:
        """The most of both passes."""
        return max(self.early, self.late)

    @property
    def early(self) -> int:
        """The most before any parameter has its gradient."""
        return max(self.upwards, self.loss)

    @property
    def late(self) -> int:
        """The most from then on."""
        return max(self.layer, self.head, self.root)

    @property
    def upwards(self) -> int:
        """The most of a layer's forward pass."""
        return max((bytes for path, bytes in self.forward.by_path.items() if in_layers(path)), default=0)

    @property
    def loss(self) -> int:
        """The most around the loss: of the forward pass after the layers or before them, and of the loss's backward."""
        outside = (bytes for path, bytes in self.forward.by_path.items() if not in_layers(path))
        return max(self.backward.by_path.get("loss", 0), *outside, 0)

    @property
    def between(self) -> int:
        """What is kept when the layers have run and the head has not, or no longer."""
        return min(self.saved, self.forward.by_path.get("norm", self.saved))

    @property
    def head(self) -> int:
        """The most of the backward pass in the modules around the layers, but for the loss."""
        items = self.backward.by_path.items()
        return max((bytes for path, bytes in items if path not in ("", "loss") and not in_layers(path)), default=0)

    @property
    def root(self) -> int:
        """The most of the backward pass outside of modules, where the embedding gets its gradient."""
        return self.backward.by_path.get("", 0)

    @property
    def layer(self) -> int:
        """The most of a layer's backward pass."""
        return max((bytes for path, bytes in self.backward.by_path.items() if in_layers(path)), default=0)

    def grown(self, more: Passes, times: int) -> Passes:
        """With `times` more layers than this has; `more` has one more."""
        return Passes(
            self.saved + times * (more.saved - self.saved),
            self.forward.grown(more.forward, times),
            self.backward.grown(more.backward, times),
            self.received + times * (more.received - self.received),
            self.whole + times * (more.whole - self.whole),
        )


class BytesPerParameter(NamedTuple):
    """Bytes of each parameter: of the weights, the gradients and the optimizer.

    others: of the optimizer, how many more a parameter has that is no matrix in a layer (Muon leaves these to AdamW).
    """

    weights: float
    gradients: float
    optimizer: float
    others: float = 0


def padded(shards: int, use: Use) -> Number:
    """Cost: parameters with every tensor's rows rounded up to a multiple of the shards."""
    count = use.params()
    if not count:
        return 0
    rest = ((tensor, ceil_div(tensor.shape[0], shards) * shards) for tensor in use.tensors() if tensor.shape)
    return count + sum(exact_div(times(tensor.size, rows - tensor.shape[0]), tensor.shape[0]) for tensor, rows in rest)


def alike(layout: Layout, micro_batches: int) -> int:
    """So many micro-batches that any further ones are run as the last of them."""
    enough = 2 * layout.pp * layout.vpp
    return micro_batches if micro_batches <= enough else enough + micro_batches % layout.pp


Measure: TypeAlias = Callable[[Layout, Stage, Sequence[int | None]], Sequence[Passes]]
"""What a micro-batch takes in a stage of a layout, for several numbers of repeats of its layers' pattern. The most come
first; None is for all.
"""


@dataclass
class PeakEstimate:
    """Walks the ranks of layouts of one model.

    each: bytes of each parameter. measure: how its passes are measured. include: optional parts that it has.
    beside: what each rank holds beside, such as workspaces. around: what it holds in the optimizer's step, in sums over
    replicas, and of gathered parameters; nothing by default.
    pads: whether shards are equally many rows of every tensor, rounded up (FSDP2); false by default.
    """

    spec: ModelSpec
    each: BytesPerParameter
    measure: Measure
    include: frozenset[str] = frozenset()
    beside: int = 0
    around: Arounds = nothing
    frees_gradients: bool = False
    pads: bool = False
    _measured: dict[tuple[object, ...], tuple[Passes, ...]] = field(default_factory=dict)
    _elements: dict[tuple[object, ...], Elements] = field(default_factory=dict)

    @cached_property
    def layers(self) -> int:
        return sum(stack.num_hidden_layers for _, stack in self.spec.stacks())

    @cached_property
    def kinds(self) -> list[Scope]:
        """The kind of each layer, of an encoder first."""
        root = self.spec.program().root
        parents = [root, *(item for item in root.items if isinstance(item, Scope) and item.name in STACKS)]
        stacks = [[item for item in of.items if isinstance(item, Scope) and item.name == "layers"] for of in parents]
        return [kind for stack in stacks if stack for kind in layer_kinds(stack)]

    @cached_property
    def experts(self) -> int:
        """The routed experts of the layer that has the most; 0 without any."""
        return routed_experts(self.spec)

    def needed(self, layout: Layout, micro_batches: int) -> tuple[int, int]:
        """The bytes of the rank that needs most, and where it stands in the pipeline."""
        by_stage = self.by_stage(layout, micro_batches)
        worst = max(range(layout.pp), key=lambda stage: (by_stage[stage], -stage))
        return by_stage[worst], worst

    def by_stage(self, layout: Layout, micro_batches: int) -> list[int]:
        """The bytes of the first rank at each place of the pipeline."""
        order = pipeline(layout, alike(layout, micro_batches))
        own: list[list[Stage]] = [[] for _ in range(layout.pp)]
        for stage in stages(layout, self.layers):
            own[stage.rank].append(stage)
        if order.two_way:  # the other half of the micro-batches enters at the last rank
            own = [[*of, *own[layout.pp - 1 - rank]] for rank, of in enumerate(own)]
        return [self._rank(layout, order, rank, of, micro_batches) for rank, of in enumerate(own)]

    def _rank(self, layout: Layout, order: Pipeline, rank: int, own: list[Stage], micro_batches: int) -> int:
        passes = [self.passes(layout, stage) for stage in own]
        most, flying = order.peak_in_flight(rank, [one.saved for one in passes])
        elements = [self.elements(layout, at)._replace(whole=one.whole) for at, one in zip(own, passes, strict=True)]
        around = self.around(layout, elements)
        again = around.again if micro_batches > 1 else 0

        def early(one: Passes) -> int:
            return max(one.upwards, one.loss + around.loss, one.between + around.gathers)

        def head(one: Passes) -> int:
            at_root = one.root + around.outside + around.root
            return max(one.head + around.outside, at_root, one.between + around.sums) + around.late

        def layer(one: Passes, stage: Stage) -> int:
            left = max(0, around.before - one.saved // max(1, len(stage.layers)))  # when its own tensors are gone
            return one.layer + around.layer + max(left, around.last) + around.late

        all_fly = flying.whole == (micro_batches,) and (layout.pp == 1 or layout.zero == 0)
        if self.frees_gradients and all_fly:  # the first backward pass makes all gradients
            ((stage,), (one,), (of,)) = own, passes, elements
            without, of_layer = self.static(layout, stage, gradients_only=True), layer(one, stage)
            # Those of the head come first, of the first layer last.
            first = round(without * min(of.root, of.largest) / (of.dense + of.experts))
            from_here = max(head(one), of_layer) - without + first
            last = max(early(one) - without, from_here, of_layer - one.saved) - one.saved
        else:
            last = max(
                max(early(one) + again, head(one), layer(one, stage)) - one.saved
                for one, stage, count in zip(passes, own, flying.whole, strict=True)
                if count
            )
        stays = sum(self.static(layout, stage) for stage in own) + micro_batches * sum(one.received for one in passes)
        before = most - min(one.saved for one in passes)
        after = max(around.after, around.begin)
        moments = most + last + around.passes, before + after, around.end, around.step
        return self.beside + stays + around.stays + max(moments)

    def static(self, layout: Layout, stage: Stage, gradients_only: bool = False) -> int:
        """Bytes of weights, gradients and optimizer states of a stage."""
        elements = self.elements(layout, stage)
        weights, gradients, optimizer, others = self.each
        if gradients_only:
            weights = optimizer = others = 0
        total = others * (elements.root + elements.experts)
        for n, shards in ((elements.dense, layout.shards), (elements.experts, layout.expert_shards)):
            total += n * weights / (shards if layout.zero == 3 else 1)
            total += n * gradients / (shards if layout.zero >= 2 else 1)
            total += n * optimizer / (shards if layout.zero >= 1 else 1)
        return round(total)

    def elements(self, layout: Layout, stage: Stage) -> Elements:
        """Parameters of a stage."""
        etp = layout.expert_tp
        shards = layout.shards if self.pads and layout.zero == 3 else 1
        key = (layout.tp, etp, shards, self._kinds_of(stage), stage.first, stage.last)
        if key not in self._elements:
            whole = replace(layout, dp=etp, cp=1, ep=1, etp=etp, zero=0, hsdp_replicas=1)
            tree, size = (
                rank_program(self.spec, whole, 0, stage).node(),
                partial(padded, shards) if shards > 1 else total_of,
            )
            places = [one for one in tree.walk() if not one.optional or one.optional in self.include]
            layers = [one for one in places if one.node.name == "layers"]
            inner = [one for one in places if in_a_layer(one)]
            total = tree.total(size, include=self.include)
            in_layers = sum(one.total(size, self.include) for one in layers)
            self._elements[key] = Elements(
                total,
                sum(times(one.own(size), one.times) for one in places if isinstance(one.node.op, ExpertLinear)),
                total - in_layers,
                max((one.each(size, self.include) for one in layers), default=0),
                max(one.own(size) for one in places),
                max((one.own(size) for one in inner), default=0),
                max((one.own(size) for one in inner if not isinstance(one.node.op, ExpertLinear)), default=0),
            )
        found = self._elements[key]
        return found._replace(dense=found.dense - found.experts, experts=found.experts // layout.ep)

    def _kinds_of(self, stage: Stage) -> tuple[object, ...]:
        """The kinds of a stage's layers, as runs of equal ones."""
        runs: list[list[int]] = []
        for i in stage.layers:
            kind = id(self.kinds[i])
            if runs and runs[-1][0] == kind:
                runs[-1][1] += 1
            else:
                runs.append([kind, 1])
        return tuple(map(tuple, runs))

    def passes(self, layout: Layout, stage: Stage) -> Passes:
        """Passes of a micro-batch through a stage."""
        start, end, repeats = self._window(stage)
        shape = (layout.tp, layout.cp, layout.cp_comm, layout.sequence_parallel)
        key = (*shape, tuple(map(id, self.kinds[start:end])), stage.first, stage.last)
        if key not in self._measured:
            alone, alike = self._alone(layout, start, end, stage)
            counts = [None] if repeats is None else [SHORT_RUN_REPEATS + 1, SHORT_RUN_REPEATS]
            # In a shorter run layers have other numbers: where kinds differ, parameters that a longer one has not met.
            each = [counts] if len(set(map(id, self.kinds[start:end]))) == 1 else [[count] for count in counts]
            self._measured[key] = tuple(found for of in each for found in self.measure(alone, alike, of))
        found = self._measured[key]
        return found[0] if repeats is None else found[1].grown(found[0], repeats - SHORT_RUN_REPEATS)

    def _window(self, stage: Stage) -> tuple[int, int, int | None]:
        """Layers that are measured for a stage: from, to, and how many equal ones they stand for; None for themselves.

        Of equal layers, `SHORT_RUN_REPEATS` + 2 stand for any number.
        """
        start, end = stage.layers.start, stage.layers.stop
        wanted, kinds = SHORT_RUN_REPEATS + 2, self.kinds
        if end == start or any(kinds[i] is not kinds[start] for i in range(start, end)):
            found = find_pattern([kinds[i] for i in range(start, end)])  # two numbers of it are measured, each alone
            return start, end, found.repeats if found.repeats > SHORT_RUN_REPEATS + SHORT_RUN_REPEATS + 1 else None
        count = end - start
        while end - start > wanted:
            start, end = (start + 1, end) if stage.last else (start, end - 1)
        while end - start < wanted and not stage.last and end < len(kinds) and kinds[end] is kinds[start]:
            end += 1
        while end - start < wanted and not stage.first and start > 0 and kinds[start - 1] is kinds[start]:
            start -= 1
        return start, end, count if end - start == wanted else None

    def _alone(self, layout: Layout, start: int, end: int, stage: Stage) -> tuple[Layout, Stage]:
        """A layout with a stage of these layers, whose ranks have two experts: how many there are changes no pass."""
        count, ep = self.layers, max(1, self.experts // 2)
        sizes: tuple[int, ...]
        if stage.first and stage.last:
            sizes, rank = (end,), 0
        elif stage.first:
            sizes, rank = (end, count - end), 0
        elif stage.last:
            sizes, rank = (start, count - start), 1
        else:
            sizes, rank = (start, end - start, count - end), 1
        alone = replace(
            layout,
            pp=len(sizes),
            vpp=1,
            schedule="1f1b",
            pp_layout=sizes if len(sizes) > 1 else None,
            dp=ep,
            zero=0,
            hsdp_replicas=1,
            ep=ep,
            etp=1 if ep > 1 else None,
        )
        return alone, list(stages(alone, count))[rank]


class DividedInRing(Divided, RingAttention):
    """Divided products, and attention in a ring."""


class RingChunk(Chunk):
    """The layers of one stage, with the part of each sequence that a rank of a ring has."""

    profiles = RingAttention, DividedInRing
    lowering: RingAttention

    def __init__(
        self, spec: ModelSpec, training: Training, layout: Layout, rank: int, stage: Stage, meter: Meter | Recorder
    ) -> None:
        super().__init__(
            spec, replace(training, seq=part_of_sequence(layout, training.seq)), layout, rank, stage, meter
        )
        self.lowering.ring = ring_of(layout, rank)


def torch_passes(spec: ModelSpec, training: Training) -> Measure:
    """Measures passes of torch's own kernels. Raises `Unsupported` for kernels that are not in a ring."""

    def measured(layout: Layout, stage: Stage, repeats: Sequence[int | None]) -> list[Passes]:
        meter = Meter()
        chunk = RingChunk(spec, training, layout, 0, stage, meter)
        found: list[Passes] = []
        for count in (repeats[0], *repeats):  # the second time gradients are there already
            chunk.lowering.run_only = {} if count is None else {0: count}
            if not found:
                chunk.set_up()
                base = meter.now
            before = meter.now
            meter.restart()
            flight = chunk.forward_of()
            saved, forward = meter.now - before, Most.of(meter, before)
            meter.restart()
            chunk.backward_of(flight)
            backward = Most.of(meter, before)
            del flight
            gradients = [(weight.grad, weight) for weight in chunk.parameters if weight.grad is not None]
            if not found:  # what is named until the next micro-batch, and tables that stay
                left = meter.now - base - sum(grad.bytes for grad, _ in gradients)
            more = sum(grad.bytes - weight.bytes for grad, weight in gradients)  # some are whole
            if more and len(repeats) > 1:  # those of as many layers
                return [one for count in repeats for one in measured(layout, stage, [count])]
            whole = sum(grad.count - weight.count for grad, weight in gradients)
            found.append(Passes(saved, forward.over(more + left), backward.over(more + left), whole=whole))
        return found[1:]

    return measured


THREADS = 2
"""The forward thread and that of the backward pass: each has a cuBLAS workspace."""


def bytes_per_parameter(memory: Memory, flat: bool = False) -> BytesPerParameter:
    """Bytes of each parameter where weights, gradients and states are kept as on one device.

    flat: whether a rank's part of all parameters is one tensor without rows, so that Adafactor keeps it whole.
    """
    use, n = memory.states, memory.states.count.total
    if use.optimizer is not None and memory.settings.lora_rank is None:
        counts = optimizer(use.optimizer.name).per_element(flat)
        if counts is not None:
            of_matrix, more = (count * bytes_of(1, use.optimizer.dtype) for count in counts)
            master = use.master_weights / n
            return BytesPerParameter(use.weights / n, use.gradients / n, of_matrix + master, more)
    states = 0 if use.optimizer is None else use.optimizer.bytes
    return BytesPerParameter(use.weights / n, use.gradients / n, (states + use.master_weights) / n)


def estimate_with_torch_kernels(
    memory: Memory, each: BytesPerParameter, computing: Training, transient: Arounds, pads: bool = False
) -> PeakEstimate:
    """The estimate of a framework whose modules run torch's own kernels.

    each: bytes of each parameter. computing: the training that its modules compute. transient: the bytes that a rank
    has beside its passes. pads: whether shards are equally many rows of every tensor, rounded up.
    """
    beside = memory.runtime.context + THREADS * memory.runtime.workspace
    passes = torch_passes(memory.spec, computing)
    frees = not memory.training().keeps_gradients
    return PeakEstimate(memory.spec, each, passes, memory.states.count.include, beside, transient, frees, pads)
