"""Where each value of a rank's program lies, and what ranks of a layer send each other where placements meet.

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
from ..flow.program import NEVER_RUN, Alternatives, Item, Step
from ..flow.value import Value
from ..run.layout import Layout
from ..run.rows import ONCE, Routed, Rows, Tokens
from ..run.sight import Sight
from .rank import RankFlow, is_divided

Placement: TypeAlias = Literal["whole", "rows", "divided", "partial"]

CollectiveKind: TypeAlias = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"]

Group: TypeAlias = Literal["tp", "cp", "ep", "dp", "expert dp", "pp", "embedding"]

FLOAT32 = 4


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

    layout: the layout. sight: the run, with the tokens of one rank of a sequence. width: bytes of an element.
    """

    layout: Layout
    sight: Sight
    width: int = 2
    include: frozenset[str] = frozenset()
    placed: dict[int, Placement] = field(default_factory=dict)
    entered: set[tuple[int, bool]] = field(default_factory=set)
    told: list[Collective] = field(default_factory=list)

    def run(self, program: RankFlow) -> list[Collective]:
        """Follows the program, and returns what its rank sends to the tensor group and to that of experts.

        Raises `InputError` for a part that the layout would divide in a way that no rule knows.
        """
        self.where, self.repeats = "", 1
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
        return self.placed.get(id(value.storage), self.home if _by_tokens(value.rows) else "whole")

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
                continue
            inside = times(repeats, about.get("repeat", 1))
            self._loop(item.takes)
            self._inside(item.items, where, inside)
            self.where, self.repeats = where, inside
            self._loop(item.gives if item.takes is not None else None)

    def _loop(self, value: Value | None) -> None:
        """What goes round a loop lies in the same place at both of its ends."""
        if value is not None:
            self._settled(value)

    def _tell(
        self,
        kind: CollectiveKind,
        rows: Rows,
        width: Number,
        group: Group = "tp",
        backward: bool = False,
        size: int = 0,
    ) -> None:
        ranks = self.layout.ep if group == "ep" else self.layout.tp
        bytes = self.sight.rows(rows) * width * (size or self.width)
        self.told.append(Collective(self.where, kind, group, ranks, backward, bytes, self.repeats))

    def _whole(self, value: Value) -> None:
        """Before products that make a divided axis: the value, whole, once for all that read it."""
        if self.of(value) == "partial":
            self._settled(value)
        key = id(value.storage), value.of is not None
        if self.of(value) == "divided" or key in self.entered or value.fixed or value.rows is ONCE:
            return
        self.entered.add(key)
        if self.of(value) == "rows":
            self._tell("all_gather", value.rows, value.width)
            self._tell("reduce_scatter", value.rows, value.width, backward=True)
        elif self.layout.tp > 1:
            self._tell("all_reduce", value.rows, value.width, backward=True)

    def _settled(self, value: Value) -> None:
        """A partial sum is summed where it goes back among the values between the products."""
        if self.of(value) != "partial":
            return
        self.placed[id(value.storage)] = self.home if _by_tokens(value.rows) else "whole"
        if self.of(value) == "rows":
            self._tell("reduce_scatter", value.rows, value.width)
            self._tell("all_gather", value.rows, value.width, backward=True)
        else:
            self._tell("all_reduce", value.rows, value.width)

    def _step(self, step: Step) -> None:
        if step.verb in ("hold", "keep", "cache", "mask", "enter", "leave") or not step.outs:
            return
        out, weight = step.outs[0], step.weight
        made = is_divided(out.axes)
        read = step.ins[0].axes if step.ins else () if weight is None else weight.ins  # a table has no input
        summed = weight is not None and step.verb in ("linear", "experts", "table", "conv") and is_divided(read)
        summed = summed and not (step.verb == "conv" and made)  # by channels
        if summed:
            self._partial(step, out)
        elif made:
            for value in step.ins:
                self._whole(value)
        else:
            for value in step.ins:
                self._settled(value)
            if step.ins:
                self._follows(step, out)
        if step.verb == "norm" and is_divided(step.how["over"]):
            for backward in (False, True):  # ranks add up their squares, and their means
                sums = 1 if step.how["spec"].type == "rmsnorm" else 2
                self._tell("all_reduce", out.rows, sums, backward=backward, size=FLOAT32)
        if step.verb in ("dispatch", "combine") and self.layout.ep > 1:
            sent = step.outs[0] if step.verb == "dispatch" else step.ins[0]
            each = self.layout.tp if self.home == "rows" else 1  # each rank sends its own tokens
            for backward in (False, True):
                self._tell("all_to_all", sent.rows, exact_div(sent.width, each), "ep", backward)

    def _partial(self, step: Step, out: Value) -> None:
        """The result of a product over a divided axis."""
        self.placed[id(out.storage)] = "partial"

    def _follows(self, step: Step, out: Value) -> None:
        """The result lies where what it is made of lies."""
        first = step.ins[0]
        if not is_divided(first.axes):
            self.placed[id(out.storage)] = self.of(first)


def _by_tokens(rows: Rows) -> bool:
    return isinstance(rows, Tokens) or (isinstance(rows, Routed) and _by_tokens(rows.of))
