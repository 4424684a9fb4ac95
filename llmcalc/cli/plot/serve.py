from __future__ import annotations

from ...plots.pictures import serve_picture
from ...questions.time_and_cost_options import ServeOptions
from ..hardware import AcceleratorOption
from ..serve_options import serve_answer
from ..setting_options import replace_parameter_by_settings
from ..shared_options import TargetArgument
from ..target_options import TargetOptions, add_target_options
from .files import PaperColumnsOption, PictureFileOption, write_picture


@replace_parameter_by_settings("options", ServeOptions)
@add_target_options
def command(
    target: TargetArgument,
    output_file: PictureFileOption,
    hardware: AcceleratorOption,
    options: ServeOptions,
    columns: PaperColumnsOption = None,
    *,
    target_options: TargetOptions,
) -> None:
    """Servers under load: the Pareto front of TPOT and tokens/s, and TPOT by the users, with its range.
    The options of a server are those of llmcalc serve; --output is the tokens of an answer.
    """
    picture = serve_picture(lambda: serve_answer(target, hardware, options, target_options))
    write_picture(picture, output_file, "--output-file")
