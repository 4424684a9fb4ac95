from __future__ import annotations

from dataclasses import replace

import typer

from ...device_memory.settings import Settings
from ...optional import included
from ...parallel.layout_request import LayoutRequest
from ...plots.pictures import roofline_phases, roofline_picture
from ..layout_options import takes_layout
from ..options import TargetOrNone, WithMtp
from ..run_options import takes_settings
from ..target_options import Reading, takes_target
from ..time_options import TimeValues, takes_time, time_ask, timed_question
from .files import Picture, write


@takes_settings
@takes_layout
@takes_time
@takes_target
def command(
    context: typer.Context,
    output: Picture,
    settings: Settings,
    layout_request: LayoutRequest,
    values: TimeValues,
    target: TargetOrNone = None,
    with_mtp: WithMtp = False,
    *,
    reading: Reading,
) -> None:
    """The products of a prompt and of a token under the roof of an accelerator.
    The options of a run are those of llmcalc time; --phase draws one of the two.
    """
    question = timed_question(context, target, settings, layout_request, values, with_mtp, reading)
    ask = time_ask(context, values, included(with_mtp), reading)
    phases = roofline_phases(question.preset.model.kind, question.settings.phase)
    picture = roofline_picture(
        lambda phase: ask(replace(question, settings=question.settings.with_(phase=phase))), phases
    )
    write(picture, output)
