from __future__ import annotations

from ...plots.pictures import serve_picture
from ...questions.options import ServeOptions
from ..hardware import OneAccelerator
from ..options import Target
from ..serve_options import serve_answer
from ..setting_options import add_declared_options
from ..target_options import TargetOptions, add_target_options
from .files import PaperColumns, PictureFile, write_picture


@add_declared_options("options", ServeOptions)
@add_target_options
def command(
    target: Target,
    output_file: PictureFile,
    hardware: OneAccelerator,
    options: ServeOptions,
    columns: PaperColumns = None,
    *,
    target_options: TargetOptions,
) -> None:
    """Servers under load: the Pareto front of TPOT and tokens/s, and TPOT by the users, with its range.
    The options of a server are those of llmcalc serve; --output is the tokens of an answer.
    """
    picture = serve_picture(lambda: serve_answer(target, hardware, options, target_options))
    write_picture(picture, output_file, "--output-file")
