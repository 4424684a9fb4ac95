"""Where each value of a rank's program lies, and what ranks of a layer send each other where placements meet.

Ranks of one sequence exchange keys and values: in a ring (Liu 2023, arXiv:2310.01889; TransformerEngine, `cp_comm_type`
"p2p"), all at once (Llama 3, arXiv:2407.21783, §3.3.2; "all_gather"), or they exchange tokens for heads (Jacobs 2023,
arXiv:2309.14509; "a2a").

A value is whole on every rank, split by tokens, divided along an axis, or a partial sum. A product over a divided axis
gives a partial sum; one that makes a divided axis reads its input whole. Nothing else is known of any part. What the
backward pass sends is what the forward pass sends, transposed: a gather becomes a scattered sum, and the reverse. What
goes round a loop of layers has one placement at both of its ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from ..algebra import Number, exact_div, times
from ..errors import InputError
from ..flow.program import NEVER_RUN, Alternatives, Item, Scope, Step
from ..flow.value import Value
from ..workload.recompute import NONE, Recompute
from ..workload.rows import ONCE, SEQUENCES, Routed, Rows, Source, Tokens
from ..workload.run_config import RunConfig
from .layout import Layout
from .rank_program import RankFlow, is_divided

Placement: TypeAlias = Literal["whole", "rows", "divided", "partial"]

CollectiveKind: TypeAlias = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"]

Group: TypeAlias = Literal["tp", "cp", "ep", "etp", "dp", "replicas", "expert dp", "expert replicas", "pp", "embedding"]

FLOAT32 = 4

MIXES_ROWS = frozenset(
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
"""Verbs of the recorder whose result for a token depends on other tokens. Cores do too, if they keep a state."""

KEEPS_NOTHING = frozenset({"add", "sub", "dropout", "hold", "keep", "enter", "leave", "split", "take"})
"""Verbs of the recorder that keep nothing for the backward pass."""

SCANS = (
    "SelectiveScan", "HeadScan", "ChunkedScan", "DeltaRule", "DecayScan", "LightningCore", "MatrixMemory", "BlockSums",
)  # fmt: skip
"""The ops of cores whose result for a token depends on other tokens."""


class Collective(NamedTuple):
    """What a rank takes part in.

    node: where. group: with whom. ranks: how many they are. backward: whether it is of the backward pass.
    bytes: of the whole tensor that is summed, gathered or scattered, or of what a rank sends. times: how often in one
    pass of one micro-batch.
    """

    node: str
    kind: CollectiveKind
    group: Group
    ranks: int
    backward: bool
    bytes: Number
    times: Number = 1

    @property
    def wire_bytes(self) -> Number:
        """The bytes that a rank sends each time, with rings: (n − 1)/n of the tensor, twice for a sum on all ranks."""
        if self.kind == "send":
            return self.bytes
        each = self.bytes * (self.ranks - 1) // self.ranks
        return 2 * each if self.kind == "all_reduce" else each


@dataclass
class Placements:
    """Follows the values of a rank's program.

    layout: the layout. run_config: the run, with the tokens of one rank of a sequence. width: bytes of an element.
    include: the optional parts of the model that run, none by default.
    regathers: whether a product that read gathered tokens gathers them again in its backward pass, instead of keeping
        them (Korthikanti 2022, §4.2.2; Megatron-LM); false by default.
    recompute: what runs again in the backward pass, and sends again what it sends; nothing by default.
    """

    layout: Layout
    run_config: RunConfig
    width: int = 2
    include: frozenset[str] = frozenset()
    regathers: bool = False
    recompute: Recompute = NONE
    placed: dict[int, Placement] = field(default_factory=dict)
    entered: set[tuple[int, bool, bool]] = field(default_factory=set)
    told: list[Collective] = field(default_factory=list)

    def run(self, program: RankFlow) -> list[Collective]:
        """Follows the program, and returns what its rank sends to the tensor group and to that of experts.

        Raises `InputError` for a part that the layout would divide in a way that no rule knows.
        """
        self.where, self.repeats, self.graded, self.needed = "", 1, True, 0
        self._inside(program.root.items, "", 1)
        return self.told

    @property
    def home(self) -> Placement:
        """Where the values between the divided products lie."""
        return "rows" if self.layout.sequence_parallel and self.layout.tp > 1 else "whole"

    def of(self, value: Value) -> Placement:
        """Where a value lies."""
        if is_divided(value.axes):
            return "divided"
        return self.placed.get(id(value.storage), self.home if by_tokens(value.rows) else "whole")

    def _inside(self, items: Iterable[Item], path: str, repeats: Number) -> None:
        for item in items:
            if isinstance(item, Alternatives):
                self._inside(next(iter(item.branches.values())).items, path, repeats)
                continue
            about = item.about
            if about.get("role") in NEVER_RUN or (about.get("optional") and about["optional"] not in self.include):
                continue
            where = f"{path}.{item.name}" if path and item.name else path or item.name
            self.where, self.repeats = where or getattr(item, "verb", ""), repeats
            if isinstance(item, Step):
                self._step(item)
                self.needed = self.needed if item.verb in KEEPS_NOTHING else len(self.told)
                continue
            inside, graded = times(repeats, about.get("repeat", 1)), self.graded
            self.graded = graded and about.get("role") != "no_grad"
            self._loop(item.takes)
            start = len(self.told)
            self._inside(item.items, where, inside)
            self.graded = graded
            self.where, self.repeats = where, inside
            self._loop(item.gives if item.takes is not None else None)
            if about.get("kind") == "layer":
                self._again(start, item)

    def _again(self, start: int, layer: Scope) -> None:
        """What a layer sends again when it runs again, before its backward pass.

        start: how many messages there were before the layer. The newer form of checkpointing ends with the last step
        that keeps something for the backward pass; the sum of a last product's output comes after it.
        Raises `InputError` for other recomputation of a layer that sends anything.
        """
        how = self.recompute
        sent = [one for one in self.told[start:] if not one.backward]
        if not sent or how == NONE or (how.core and self.layout.cp == 1):
            return
        if how.core or how.kept or how.nodes:
            raise InputError(
                f"--recompute: what ranks send again in {self.where} is modelled of whole layers alone; expected "
                "--recompute none or full"
            )
        last = len(self.told) if how.reentrant else self.needed
        indices, repeat = layer.about["indices"], layer.about["repeat"]
        again = repeat if indices is None else sum(i % how.every == 0 for i in indices)
        for one in self.told[start:last]:
            if not one.backward:
                number = exact_div(times(one.times, again), repeat)
                self.told.append(one._replace(backward=True, times=number))

    def _loop(self, value: Value | None) -> None:
        """What goes round a loop lies in the same place at both of its ends."""
        if value is not None:
            self._settled(value)

    def _tell(
        self,
        kind: CollectiveKind,
        value: Value,
        group: Group = "tp",
        backward: bool = False,
        elements: Number = None,
        messages: int = 1,
    ) -> None:
        """elements: per row, those of the value by default. messages: how many equal ones there are."""
        if backward and not self.graded:
            return
        ranks = {"ep": self.layout.ep, "etp": self.layout.expert_tp, "cp": self.layout.cp}.get(group, self.layout.tp)
        elements = value.width if elements is None else elements
        bytes = self.run_config.rows(value.rows) * elements * self.width
        if group == "etp" and self.home == "rows":  # a rank's tokens, of as many ranks as divide an expert
            bytes = exact_div(bytes * ranks, self.layout.tp)
        times_in_all = times(self.repeats, messages)
        self.told.append(Collective(self.where, kind, group, ranks, backward, bytes, times_in_all))

    def _whole(self, value: Value, group: Group = "tp") -> None:
        """Before products that make a divided axis: the value, whole, once for all that read it."""
        if self.of(value) == "partial":
            self._settled(value)
        key = id(value.storage), value.of is not None, self.graded
        if self.of(value) == "divided" or key in self.entered or value.fixed or value.rows is ONCE:
            return
        self.entered.add(key)
        if self.of(value) == "rows":
            self._tell("all_gather", value, group)
            if self.regathers:
                self._tell("all_gather", value, group, backward=True)
            self._tell("reduce_scatter", value, group, backward=True)
        else:
            self._tell("all_reduce", value, group, backward=True)

    def _settled(self, value: Value) -> None:
        """A partial sum is summed where it goes back among the values between the products."""
        if self.of(value) != "partial":
            return
        group: Group = "etp" if isinstance(value.rows, Routed) else "tp"
        self.placed[id(value.storage)] = self.home if by_tokens(value.rows) else "whole"
        if self.of(value) == "rows":
            self._tell("reduce_scatter", value, group)
            self._tell("all_gather", value, group, backward=True)
        else:
            self._tell("all_reduce", value, group)

    def _step(self, step: Step) -> None:
        if step.verb in ("hold", "keep", "cache", "mask", "enter", "leave") or not step.outs:
            return
        out, weight = step.outs[0], step.weight
        made = is_divided(out.axes)
        read = step.ins[0].axes if step.ins else () if weight is None else weight.ins  # a table has no input
        summed = weight is not None and step.verb in ("linear", "experts", "table", "conv") and is_divided(read)
        summed = summed and not (step.verb == "conv" and made)  # by channels
        if summed:
            self.placed[id(out.storage)] = "partial"
        elif made:
            for value in step.ins:
                self._whole(value, "etp" if step.verb == "experts" else "tp")
        else:
            for value in step.ins:
                self._settled(value)
            self._undivided(step)
        if step.verb == "norm" and is_divided(step.options["over"]) and not _by_groups(step):
            width = exact_div(FLOAT32, self.width) if self.width < FLOAT32 else 1
            for backward in (False, True):  # ranks add up their squares, and their means
                sums = width if step.options["spec"].type == "rmsnorm" else 2 * width
                self._tell("all_reduce", out, backward=backward, elements=sums)
        if self.layout.cp > 1:
            self._exchanged(step)
        if step.verb in ("dispatch", "combine") and self.layout.ep > 1:
            sent = step.outs[0] if step.verb == "dispatch" else step.ins[0]
            each = self.layout.tp if self.home == "rows" else 1  # each rank sends its own tokens
            for backward in (False, True):
                self._tell("all_to_all", sent, "ep", backward, exact_div(sent.width, each))

    def _exchanged(self, step: Step) -> None:
        """What ranks of one sequence exchange for a step that reads the tokens of all of them.

        Raises `InputError` for a step other than attention.
        """
        if step.verb not in MIXES_ROWS and type(step.op).__name__ not in SCANS:
            return
        widths = self._by_heads(step) if self.regathers else None
        if widths is not None:
            for backward in (False, True):
                for width in widths:
                    self._tell("all_to_all", Value(step.ins[0].rows, ()), "cp", backward, width)
            return
        q, k, v = step.ins[:3] if step.verb == "attention" else (None, None, None)
        if q is None or k is None or v is None or step.options["biased"] or not by_tokens(k.rows) or k.rows != q.rows:
            raise InputError(
                f"--cp {self.layout.cp}: {self.where} reads the tokens of all ranks of a sequence, which is not "
                "modelled; expected --cp 1"
            )
        keys, values = (one.width if one.once is None else one.once.width for one in (k, v))
        ranks, how, rows = self.layout.cp, self.layout.cp_comm, Value(q.rows, ())
        if how == "a2a":
            out = step.outs[0].width
            for backward in (False, True):
                for width in (q.width, keys, values, out):
                    self._tell("all_to_all", rows, "cp", backward, width)
        elif how == "allgather":
            for width in (keys, values):
                self._tell("all_gather", rows, "cp", False, width * ranks)
                self._tell("all_gather", rows, "cp", True, width * ranks)
                self._tell("reduce_scatter", rows, "cp", True, width * ranks)
        else:
            for backward, tensors in ((False, 1), (True, 2)):  # keys and values; then their gradients too
                self._tell("send", rows, "cp", backward, keys + values, (ranks - 1) * tensors)

    def _by_heads(self, step: Step) -> list[Number] | None:
        """What Megatron-LM sends for Mamba-2, whose heads the ranks of a sequence divide: what the convolution reads,
        the gate, the steps and the output (core/ssm/mamba_context_parallel.py); None for another step.
        """
        if step.verb == "conv":
            return [step.ins[0].width]
        if type(step.op).__name__ == "ChunkedScan":
            return [step.outs[0].width, step.ins[1].width, step.outs[0].width]
        return [] if step.verb == "state" else None

    def _undivided(self, step: Step) -> None:
        """A step whose result has no divided axis. It lies where what it is made of lies.

        Raises `InputError` for a step that needs the tokens of other ranks.
        """
        by_rows = [value for value in step.ins if self.of(value) == "rows"]
        if by_rows and not self.graded:
            for value in by_rows:
                self._whole(value)
            by_rows = []
        if by_rows and step.ins[0].rows is SEQUENCES:
            for value in by_rows:  # every rank reads a token that one has (Megatron-LM, language_model.py, `Pooler`)
                self._tell("all_gather", value.storage)
            by_rows = []
        if by_rows and (step.verb in MIXES_ROWS or type(step.op).__name__ in SCANS):
            raise InputError(
                f"--sequence-parallel: {self.where} reads the tokens of several ranks and is not divided by --tp, "
                "which is not modelled; expected no --sequence-parallel"
            )
        if step.ins and not all(is_divided(value.axes) for value in step.ins):
            for out in step.outs:
                self.placed[id(out.storage)] = "rows" if by_rows else "whole"


def _by_groups(step: Step) -> bool:
    """Whether a norm is over parts of which a rank has some whole."""
    groups = step.options.get("groups")
    return groups is not None and is_divided((groups,))


def by_tokens(rows: Rows) -> bool:
    """Whether sequence parallelism divides the rows: those of a sequence, its own or an encoder's."""
    return isinstance(rows, (Tokens, Source)) or (isinstance(rows, Routed) and by_tokens(rows.of))
