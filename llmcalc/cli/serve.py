from __future__ import annotations

from ..questions.time_and_cost_options import ServeOptions
from .hardware import AcceleratorOption
from .serve_options import serve_answer
from .setting_options import replace_parameter_by_settings
from .shared_options import TableOption, TargetArgument
from .target_options import OutputOptions, TargetOptions, add_target_options


@replace_parameter_by_settings("options", ServeOptions)
@add_target_options
def command(
    target: TargetArgument,
    hardware: AcceleratorOption,
    options: ServeOptions,
    table: TableOption = None,
    *,
    target_options: TargetOptions,
    writing_file: OutputOptions,
) -> None:
    """Servers under load: TTFT, TPOT, tokens/s and the price of a token.
    Every layout that fits by the engine's own rule, the Pareto front, and the cheapest server that keeps the limits.
    Exit code 1 if none does.
    """
    writing_file.show_answer(serve_answer(target, hardware, options, target_options), table)
