"""`llmcalc plot`: every picture, from models that have been read and settings that have been checked.

Each function raises `MissingExtra` without matplotlib, before anything is computed, and returns a figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from ..costs.context_length import usual_sequence
from ..errors import InputError
from ..sources.preset import Preset, about
from ..studies.selection import EVERY_MODEL, Selection
from .figure import needs_matplotlib

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..parallel.layout import Layout
    from ..parallel.schedules import Timetable
    from ..questions.runs import RunQuestion

Picture: TypeAlias = Literal["memory", "schedule", "params", "kv", "flops", "shape", "aspect"]

MOST_PASSES = 100_000
"""Forward passes of micro-batches through stages, so that a schedule is drawn within seconds."""


def params_picture(models: Sequence[Preset], include: frozenset[str] = frozenset()) -> Figure:
    """Where the parameters are: a bar for each model, by component."""
    needs_matplotlib()
    from ..costs.params import params
    from .params import params as picture

    return picture([(preset.display, params(preset.model, include)) for preset in models])


def kv_picture(models: Sequence[Preset], kv_dtype: str = "bfloat16") -> Figure:
    """The KV cache of one sequence against its tokens."""
    needs_matplotlib()
    from ..costs.cache import kv
    from .context import cache

    for preset in models:
        with about(preset):
            kv(preset.model, dtype_name=kv_dtype)
    return cache(models, kv_dtype)


def flops_picture(models: Sequence[Preset]) -> Figure:
    """The FLOPs of one more token against the context before it."""
    needs_matplotlib()
    from .context import work

    return work(models)


def shape_picture(
    models: Sequence[Preset], rows: int = 24, seq: int | None = None, kv_dtype: str = "bfloat16"
) -> Figure:
    """Shapes with as many parameters, deep to wide. rows: shapes of each model."""
    needs_matplotlib()
    from ..studies.shape import budget_for, family, study
    from .shapes import shape

    found = []
    for preset in models:
        with about(preset):
            tokens = usual_sequence(preset.model) if seq is None else seq
            budget = budget_for(preset.model, seq=tokens)
            members = family(preset.model)
            found.append((preset.display, study(members, budget, preset.model, rows, seq=tokens, dtype=kv_dtype)))
    return shape(found)


def aspect_picture(selection: Selection = EVERY_MODEL) -> Figure:
    """h/L and d_ff/h of presets, by size and year."""
    needs_matplotlib()
    from ..questions.listings import select_presets
    from ..studies.compare import quantities
    from .shapes import aspect

    return aspect(
        [
            (preset, quantities(preset.model, usual_sequence(preset.model), "bfloat16", count))
            for preset, count in select_presets(selection)
        ]
    )


def memory_picture(question: RunQuestion) -> Figure:
    """What fills the memory of one device, phase by phase, with the capacity of the accelerators of the question."""
    needs_matplotlib()
    from ..accelerator import Fit
    from .memory import memory as picture

    with about(question.preset):
        found = question.on_one_device()
        fits = [Fit(hardware, found.device.device_bytes) for hardware in question.accelerators]
        return picture(question.preset.display, found, fits)


def schedule_timetable(layout: Layout, num_microbatches: int) -> Timetable:
    """What each rank of a pipeline runs, and when. Raises `InputError` for more passes than can be drawn."""
    from ..parallel.schedules import pipeline, timetable

    most = MOST_PASSES // (layout.pp * layout.vpp)
    if num_microbatches > most:
        fewer = f"at most {most}" if most else "fewer stages"
        raise InputError(
            f"--num-microbatches: {num_microbatches} on {layout.pp * layout.vpp} stages are more than can be drawn; "
            f"expected {fewer}"
        )
    return timetable(pipeline(layout, num_microbatches))


def schedule_picture(layout: Layout, timetable: Timetable) -> Figure:
    """A timetable as a picture."""
    needs_matplotlib()
    from .schedule import schedule as picture

    return picture(layout, timetable)
