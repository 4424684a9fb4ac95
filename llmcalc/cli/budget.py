from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .output import check_writable, open_atomic_output
from .shared_options import JunitOption, OfflineOption
from .target_options import OutputOptions, add_target_options


@add_target_options
def command(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The budget: a TOML file with a table [[model]] for each model.")
    ] = Path("llmcalc.toml"),
    junit_file: JunitOption = None,
    skip_missing: Annotated[
        bool, typer.Option("--skip-missing", help="Without the file, print a notice and exit with 0, as hooks need.")
    ] = False,
    offline: OfflineOption = False,
    *,
    output_options: OutputOptions,
) -> None:
    """Check bounds on what models cost, for CI.
    On parameters, FLOPs, KV cache, memory; exit code 1 if a bound is broken.
    """
    from ..questions.witnesses import ask_budget
    from ..reports.budget import junit

    if junit_file is not None:
        check_writable(junit_file, "--junit")
    budget_answer = ask_budget(file, skip_missing)
    if junit_file is not None:
        with open_atomic_output(junit_file, "--junit") as output_stream:
            output_stream.write(junit(file.name, budget_answer.result))
    output_options.show_answer(budget_answer)
