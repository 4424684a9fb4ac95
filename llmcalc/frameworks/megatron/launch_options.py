"""Replaces arguments of a Megatron-LM launch file by command-line options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...errors import InputError
from ...workload.setting import option
from ..launch.launch_types import Launch, Table
from .launch_file import MEASUREMENT_ARGUMENTS_KEY
from .settings_from_options import FP8_ARGUMENTS, loss_arguments, recompute_arguments_of

MEGATRON_OPTIMIZERS = {"adamw": "adam", "sgd": "sgd", "muon": "dist_muon"}
"""Value of `--optimizer` → Megatron-LM's name of the optimizer."""

RECOMPUTE_ARGUMENTS = ("recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules")
"""Arguments of recomputation, which `--recompute` and `--recompute-activations` replace all at once."""

ARGUMENT_BY_OPTION = {
    "batch": "micro_batch_size",
    "seq": "seq_length",
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size",
    "sequence_parallel": "sequence_parallel",
}
"""Option of llmcalc → Megatron-LM's argument with the same value."""


def _recompute_arguments(option_value: Any) -> dict[str, Any]:
    """Returns Megatron-LM's arguments for a value of `--recompute`, with None for removed arguments."""
    removed_arguments: dict[str, Any] = {**dict.fromkeys(RECOMPUTE_ARGUMENTS), "recompute_activations": None}
    return removed_arguments | recompute_arguments_of("attention" if option_value == "selective" else option_value)


def _optimizer_arguments(optimizer: Any) -> dict[str, Any]:
    if optimizer not in MEGATRON_OPTIMIZERS:
        raise InputError(
            f"--optimizer {optimizer}: Megatron-LM has none of that name; expected {', '.join(MEGATRON_OPTIMIZERS)}"
        )
    return {"optimizer": MEGATRON_OPTIMIZERS[optimizer]}


def _precision_arguments(precision: Any) -> dict[str, Any]:
    known_precisions = ("bf16-master", "fp32", *FP8_ARGUMENTS)
    if precision not in known_precisions:
        raise InputError(
            f"--precision {precision}: not modelled of Megatron-LM; expected one of {', '.join(known_precisions)}"
        )
    fp8_arguments = FP8_ARGUMENTS.get(precision, {"fp8_format": None})
    return {"bf16": None if precision == "fp32" else True, "fp16": None, **fp8_arguments}


def _attention_arguments(option_value: Any) -> dict[str, Any]:
    return {"attention_backend": "unfused" if option_value == "eager" else "flash"}


def _zero_arguments(option_value: Any) -> dict[str, Any]:
    if option_value not in (0, 1):
        raise InputError(f"--zero {option_value}: Megatron-LM has 1, its distributed optimizer; expected 0 or 1")
    return {"use_distributed_optimizer": True if option_value else None}


CONVERTER_BY_OPTION: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "recompute": _recompute_arguments,
    "optimizer": _optimizer_arguments,
    "precision": _precision_arguments,
    "attn_implementation": _attention_arguments,
    "cross_entropy": loss_arguments,
    "zero": _zero_arguments,
}
"""Option of llmcalc → function that converts the option's value to Megatron-LM's arguments."""


def with_options(config: Table, options: Table, launched_run: Launch, name_in_errors: str) -> Table:
    """Returns a file's arguments, with the values of the user's options.

    launched_run: the run of the file as it is.
    Raises `InputError` for an option that Megatron-LM has no argument for.
    """
    changed_values: dict[str, Any] = {}
    for option_name, option_value in options.items():
        if option_name in ARGUMENT_BY_OPTION:
            changed_values[ARGUMENT_BY_OPTION[option_name]] = option_value
        elif option_name in CONVERTER_BY_OPTION:
            changed_values |= CONVERTER_BY_OPTION[option_name](option_value)
        elif option_name == "framework" and option_value == "megatron":
            continue
        elif option_name != "num_microbatches":
            options_text = ", ".join(map(option, (*ARGUMENT_BY_OPTION, *CONVERTER_BY_OPTION, "num_microbatches")))
            raise InputError(
                f"{option(option_name)}: {name_in_errors} runs Megatron-LM, where it is no option; expected one of "
                f"{options_text}, or a change of the file"
            )
    layout = launched_run.layout
    parallel_sizes = {size_name: options.get(size_name, getattr(layout, size_name)) for size_name in ("tp", "pp", "cp")}
    replica_devices = parallel_sizes["tp"] * parallel_sizes["pp"] * parallel_sizes["cp"]
    if "num_microbatches" in options:
        micro_batch_size = options.get("batch", launched_run.settings.get("batch", 1))
        replica_count = max(1, layout.world_size // replica_devices)
        changed_values["global_batch_size"] = micro_batch_size * options["num_microbatches"] * replica_count
    if "seq" in options:
        changed_values["max_position_embeddings"] = max(
            options["seq"], _integer_argument(config, "max_position_embeddings") or 0
        )
    return _with_changed_arguments(config, changed_values)


def _key_and_arguments(config: Table) -> tuple[str, Table]:
    """Returns the table of Megatron-LM's arguments in a file, and the table's key (empty for the whole file)."""
    for table_key in ("MODEL_ARGS", MEASUREMENT_ARGUMENTS_KEY):
        if isinstance(config.get(table_key), Mapping):
            return table_key, config[table_key]
    return "", config


def _argument_name(flag: str) -> str:
    """Returns an argument's name without dashes."""
    return flag.replace("-", "_").lstrip("_")


def _integer_argument(config: Table, argument_name: str) -> int | None:
    """Returns an argument's value as a number; None if it is missing or not a number."""
    argument_value = next(
        (
            written_value
            for flag, written_value in _key_and_arguments(config)[1].items()
            if _argument_name(str(flag)) == argument_name
        ),
        None,
    )
    number_text = str(argument_value)
    return int(number_text) if number_text.isascii() and number_text.isdecimal() and len(number_text) < 12 else None


def _with_changed_arguments(config: Table, argument_changes: Mapping[str, Any]) -> Table:
    """Returns the file's arguments with changed values, without arguments whose new value is None."""
    table_key, argument_table = _key_and_arguments(config)
    dropped_arguments = set(argument_changes) | (
        {"recompute_activations"} if "recompute_granularity" in argument_changes else set()
    )
    arguments = {
        flag: argument_value
        for flag, argument_value in argument_table.items()
        if _argument_name(str(flag)) not in dropped_arguments
    }
    arguments |= {
        f"--{argument_name.replace('_', '-')}": argument_value
        for argument_name, argument_value in argument_changes.items()
        if argument_value is not None
    }
    return {**config, table_key: arguments} if table_key else arguments
