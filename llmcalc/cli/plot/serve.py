from __future__ import annotations

from ...plots.pictures import serve_picture
from ..options import Target
from ..serve_options import ServerValues, serve_answer, takes_server
from ..target_options import TargetOptions, takes_target
from .files import PaperColumns, PictureFile, write_picture


@takes_server
@takes_target
def command(
    target: Target,
    output_file: PictureFile,
    values: ServerValues,
    columns: PaperColumns = None,
    *,
    target_options: TargetOptions,
) -> None:
    """Servers under load: the Pareto front of TPOT and tokens/s, and TPOT by the users, with its range.
    The options of a server are those of llmcalc serve; --output is the tokens of an answer.
    """
    write_picture(serve_picture(lambda: serve_answer(target, values, target_options)), output_file, "--output-file")
