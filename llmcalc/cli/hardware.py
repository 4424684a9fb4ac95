from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, TypeAlias

import typer

from .shared_options import shell_completion_of, value_option
from .target_options import OutputOptions, add_target_options


def _hardware_names() -> Iterable[str]:
    from ..sources.hardware import hardware_names

    return hardware_names()


complete_name = shell_completion_of(_hardware_names)


def accelerator_option(default_text: str = "", takes_count: bool = True) -> Any:
    """Returns the option `--hardware` for one kind of accelerator.

    default_text: the help's sentence on the default. takes_count: whether `2x3090` is two devices.
    """
    names_text = "h100, m4-max-64gb" + ", 2x3090" * takes_count
    return value_option(
        "--hardware",
        "NAME",
        f"The accelerator: a name ({names_text}), a memory size (24GiB) or a .toml file.{default_text}",
        completion=complete_name,
    )


AcceleratorOption: TypeAlias = Annotated[str, accelerator_option()]

HardwareNamesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NAME",
        help="Accelerators to show in full: a name or alias, a memory size such as 24GiB, or a .toml file of your own; "
        "default: a list of all.",
        autocompletion=complete_name,
        show_default=False,
    ),
]


@add_target_options
def command(names: HardwareNamesArgument = None, *, output_options: OutputOptions) -> None:
    """Accelerators: memory, bandwidths, dense peak FLOP/s.
    With names: every figure, and where each one is from.
    """
    from ..questions.listings import ask_hardware

    output_options.show_answer(ask_hardware(names or ()), notes=bool(names), listing=True)
