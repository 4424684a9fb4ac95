from __future__ import annotations

from typing import Annotated, Any

import typer

from ..studies.compare import SORT_KEYS
from ..studies.model_selection import ModelFilter
from .hardware import accelerator_option
from .shared_options import CacheDtypeOption, OptionalTargetsArgument, SeqOption, length_option, value_option
from .target_options import OutputOptions, TargetOptions, add_target_options

SORT_HELP = f"Order by a quantity, smallest first: {', '.join(SORT_KEYS)}."


@add_target_options
def command(
    targets: OptionalTargetsArgument = None,
    everything: Annotated[bool, typer.Option("--all", help="Every preset, or those that the filters take.")] = False,
    sort: Annotated[str | None, value_option("--sort", "KEY", SORT_HELP)] = None,
    seq: SeqOption = None,
    kv_dtype: CacheDtypeOption = "bf16",
    hardware: Annotated[
        str | None, accelerator_option(" Adds the time of a token and tokens/s on it.", takes_count=False)
    ] = None,
    users: Annotated[int | None, length_option("--users", help="Sequences at once on --hardware; default 1.")] = None,
    *,
    model_filter: ModelFilter,
    target_options: TargetOptions,
    output_options: OutputOptions,
) -> None:
    """Models side by side: sizes, ratios of sizes, cost per token.
    With more than a few, one row for each model.
    """
    from ..questions.comparisons import ask_compare, check_comparison_options
    from ..questions.listings import select_presets
    from ..reports.compare import LAYOUT_BY_FORMAT
    from ..sources.hardware import find_hardware

    check_comparison_options(bool(targets), everything, model_filter, sort)
    compared_models: list[tuple[Any, Any]] = select_presets(model_filter) if everything else []
    if not everything or target_options.changes_model:  # the filters of --all apply to the models without overrides
        preset_names = [preset.name for preset, _ in compared_models] if everything else targets or []
        compared_models = [(target_options.load(preset_name), None) for preset_name in preset_names]
    accelerator = None if hardware is None else find_hardware(hardware)
    compare_answer = ask_compare(
        compared_models, seq, kv_dtype, sort, LAYOUT_BY_FORMAT[output_options.fmt], accelerator, users
    )
    # every model is printed; a narrow terminal splits them into several tables
    output_options.show_answer(compare_answer, listing=True)
