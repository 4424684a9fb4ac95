"""Whether passes without gradients fit on so many accelerators: which layout of a replica does, and how much of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..accelerator import Fit, Hardware
from ..device_memory.estimate import Memory
from ..errors import InputError
from ..frameworks.inference_rank import check_serving, rank_memory, rank_of
from ..frameworks.registry import framework_of, layout_of
from ..parallel.divisors import divisors
from ..parallel.layout import ImpossibleLayout, Layout
from ..parallel.layout_request import LayoutRequest
from ..parallel.rank_model import model_axes
from ..parallel.search import HEADS, WIDTHS, even_stage_sizes, refusal
from .fit import Change, Fitting, fit

NODE = 8
"""The most ranks of a tensor group that are tried: devices that share the fastest link."""

MOST = 2**10
"""The most accelerators that are tried."""


@dataclass(frozen=True)
class Replica:
    """A layout, and what its worst rank requires. rank: that rank."""

    layout: Layout
    rank: int
    fit: Fit


@dataclass(frozen=True)
class ServingFitting:
    """Whether passes fit.

    one: the model and how it runs. tried: every layout of the devices, those with most replicas first. best: of those
    that fit the one with most replicas; without any, the one that requires least. needed: the fewest accelerators of
    one replica that fits; None if not even the most that are tried suffice. fewest: its layout.
    fitting: the worst rank of the best layout, with the most users and the longest sequences that fit on all ranks.
    """

    one: Memory
    tried: tuple[Replica, ...]
    best: Replica
    needed: int | None
    fewest: Layout | None
    fitting: Fitting


def fit_serving(one: Memory, hardware: Hardware, asked: LayoutRequest) -> ServingFitting:
    """Whether passes fit on `asked.devices` accelerators with some layout. asked: sizes of groups that are given hold.

    Raises `InputError` where no layout can be tried at all.
    """
    assert asked.devices is not None
    tried = tuple(_replica(one, hardware, layout) for layout in _layouts(one, asked, asked.devices))
    if not tried:
        raise ImpossibleLayout(f"--devices {asked.devices}: no layout of these is possible")
    fitting = [each for each in tried if each.fit.verdict != "no"]
    best = fitting[0] if fitting else min(tried, key=lambda each: each.fit.needed)
    fewest = best.layout if fitting else _more(one, hardware, asked)
    ranks = {best.rank, *_ends(best.layout)}
    found = {rank: fit(rank_of(one, best.layout, rank, one.runtime), hardware) for rank in ranks}
    worst = found[best.rank]
    batch, seq = (min(getattr(each, name) for each in found.values()) for name in ("batch", "seq"))
    changes = worst.changes
    if not fitting and fewest is not None:
        more = _replica(one, hardware, fewest)
        changes = (Change(f"--devices {fewest.world} {fewest.options()}", more.fit), *changes)
    return ServingFitting(
        one,
        tried,
        best,
        None if fewest is None else fewest.tp * fewest.pp,
        fewest,
        replace(worst, batch=batch, seq=seq, changes=changes),
    )


def _layouts(one: Memory, asked: LayoutRequest, devices: int) -> Iterator[Layout]:
    """The layouts of so many devices, those with most replicas first, and of those the ones with the fewest stages."""
    spec = one.spec
    layers, axes = sum(stack.num_hidden_layers for _, stack in spec.stacks()), model_axes(spec)
    stages = divisors(devices, layers) if asked.pp is None else [asked.pp]
    tensors = divisors(devices, NODE) if asked.tp is None else [asked.tp]
    replicas = sorted((tp * pp, pp, tp) for pp in stages for tp in tensors if devices % (tp * pp) == 0)
    for each, pp, tp in replicas:
        dp = devices // each
        if pp > layers or asked.dp not in (None, dp):
            continue
        split = asked.pp_layout or (None if layers % pp == 0 else even_stage_sizes(layers, pp))
        try:
            given = replace(asked, devices=devices, tp=tp, pp=pp, dp=dp, pp_layout=split)
            layout = layout_of(given)
            check_serving(layout, framework_of(asked))
        except ImpossibleLayout:
            continue
        if refusal(axes, layout, layers, 1) not in (HEADS, WIDTHS) and _has_program(one, layout):
            yield layout


def _has_program(one: Memory, layout: Layout) -> bool:
    try:
        for rank in _ends(layout):
            rank_of(one, layout, rank, one.runtime)
    except InputError:
        return False
    return True


def _ends(layout: Layout) -> tuple[int, ...]:
    """A rank of the first stage, and of the last: others have neither the embedding nor the head."""
    return (0,) if layout.pp == 1 else (0, layout.rank(pp=layout.pp - 1))


def _replica(one: Memory, hardware: Hardware, layout: Layout) -> Replica:
    """The rank of a layout that requires most."""
    sizes = {rank: rank_memory(rank_of(one, layout, rank, one.runtime)).device_bytes for rank in _ends(layout)}
    rank = max(sizes, key=lambda rank: (sizes[rank], -rank))
    return Replica(layout, rank, Fit(hardware, sizes[rank]))


def _more(one: Memory, hardware: Hardware, asked: LayoutRequest) -> Layout | None:
    """The first layout that fits on twice as many accelerators, or on four times as many, and so on."""
    assert asked.devices is not None
    devices = 2 * asked.devices
    while devices <= MOST:
        for layout in _layouts(one, replace(asked, dp=None), devices):
            if layout.dp == 1 and _replica(one, hardware, layout).fit.verdict != "no":
                return layout
        devices *= 2
    return None
