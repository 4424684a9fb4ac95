from __future__ import annotations

from dataclasses import replace

from ...plots.pictures import roofline_phases, roofline_picture
from ..time_options import TimedRunOptions, add_timed_run_options
from .files import PaperColumnsOption, PictureOption, write_picture


@add_timed_run_options
def command(output: PictureOption, timed_run: TimedRunOptions, columns: PaperColumnsOption = None) -> None:
    """Matrix products of a prompt and of a token under an accelerator's roofline.
    The options of a run are those of llmcalc time; --phase draws one of the two.
    """
    run_question = timed_run.run_question()
    drawn_phases = roofline_phases(not run_question.preset.model.model_without_tokens, run_question.settings.phase)
    picture = roofline_picture(
        lambda phase: timed_run.ask(replace(run_question, settings=run_question.settings.with_changes(phase=phase))),
        drawn_phases,
    )
    write_picture(picture, output)
