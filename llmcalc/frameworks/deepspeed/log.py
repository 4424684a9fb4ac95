"""Reads from a log DeepSpeed's estimates of model states and the measurements of `see_memory_usage`."""

from __future__ import annotations

import re
from fractions import Fraction

from ..logs.log_contents import MEMORY_AMOUNT, LogTerm, LogValues, ParsedLog, line_pattern, parse_bytes
from ..logs.log_text import LogText

PATTERNS = (
    line_pattern("MA ", rf"\bMA (?P<allocated>{MEMORY_AMOUNT}) +Max_MA (?P<peak_allocated>{MEMORY_AMOUNT})"),
    line_pattern("Max_MA ", rf"\bCA (?P<reserved>{MEMORY_AMOUNT}) +Max_CA (?P<peak_reserved>{MEMORY_AMOUNT})"),
    line_pattern("SW: Model with ", r"with (?P<params>[0-9]{1,9})M total params"),
    line_pattern("total params, ", r", (?P<largest_layer>[0-9]{1,9})M largest"),
    line_pattern("HW: Setup with ", r"with (?P<nodes>[0-9]{1,6}) nodes?, (?P<devices>[0-9]{1,6}) GPUs? per node"),
    line_pattern("DeepSpeed info: version=", r"=(?P<version>[0-9]{1,4}(?:\.[0-9]{1,4}){1,3})"),
)

_OFFLOAD_OPTION = re.compile(
    rf"(?P<host>{MEMORY_AMOUNT}) *\| *(?P<device>{MEMORY_AMOUNT}) *\| *(?P<options>[a-z_=., A-Z0-9]{{1,160}})"
)

MILLION = 10**6


def read_log(log_text: LogText) -> ParsedLog | None:
    """Returns DeepSpeed's memory estimates and measurements in a log; None if there are none."""
    log_values = LogValues(log_text, PATTERNS)
    figure_names = ("allocated", "peak_allocated", "reserved", "peak_reserved")
    memory_terms = [*_model_state_estimates(log_text, log_values), *log_values.largest_terms(*figure_names)]
    if not memory_terms:
        return None
    return ParsedLog(
        "deepspeed",
        "DeepSpeed",
        tuple(memory_terms),
        version=log_values.last_text("version"),
        memory_saving_flag="train_micro_batch_size_per_gpu",
    )


def _model_state_estimates(log_text: LogText, log_values: LogValues) -> list[LogTerm]:
    """Returns the parameter count and DeepSpeed's estimate of the model states per device without offloading."""
    if "params" not in log_values:
        return []
    memory_terms = [
        LogTerm(
            "params", log_values.whole_numbers("params")[-1] * MILLION, "parameters", bytes_per_parameter=Fraction(1)
        )
    ]
    device_count = 1
    if "nodes" in log_values:
        device_count = max(1, log_values.whole_numbers("nodes")[-1] * log_values.whole_numbers("devices")[-1])
    for log_line in log_text.lines_with("offload_optimizer=none"):
        option_match = _OFFLOAD_OPTION.search(log_line)
        if option_match is None or "offload_param=cpu" in option_match["options"]:
            continue
        if "offload_param" in option_match["options"]:
            largest_layer_bytes = 4 * MILLION * max(log_values.whole_numbers("largest_layer"), default=0)
            states_term = LogTerm(
                "states", 0, bytes_per_parameter=Fraction(18, device_count), constant_bytes=largest_layer_bytes
            )
        else:
            states_term = LogTerm("states", 0, bytes_per_parameter=4 + Fraction(16, device_count))
        memory_terms.append(states_term._replace(value=parse_bytes(option_match["device"])))
        break
    return memory_terms
