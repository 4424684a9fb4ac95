"""Reads Megatron-LM's logs: the estimated memory (training/theoretical_memory_usage.py) and `report_memory`."""

from __future__ import annotations

from fractions import Fraction

from ..logs.log_contents import MEMORY_AMOUNT, LogTerm, LogValues, ParsedLog, line_pattern
from ..logs.log_text import LogText

_MB = r"[0-9]{1,12}(?:\.[0-9]{1,15})?"

PATTERNS = (
    line_pattern("Total number of parameters in billions: ", r": (?P<billions>[0-9]{1,6}\.[0-9]{1,6})"),
    line_pattern("weight and optimizer=", rf"=(?P<weight_and_optimizer>{MEMORY_AMOUNT})"),
    line_pattern("activation=", rf"=(?P<activation>{MEMORY_AMOUNT})"),
    line_pattern("memory (MB) | allocated: ", rf"allocated: (?P<allocated>{_MB})"),
    line_pattern("| max allocated: ", rf"allocated: (?P<peak_allocated>{_MB})"),
    line_pattern("| reserved: ", rf"reserved: (?P<reserved>{_MB})"),
    line_pattern("| max reserved: ", rf"reserved: (?P<peak_reserved>{_MB})"),
)

BILLION = 10**9


def read_log(log_text: LogText) -> ParsedLog | None:
    """Returns the estimated and the measured memory that a log prints, of the largest rank; None for other logs."""
    log_values = LogValues(log_text, PATTERNS)
    for statistic_name in ("allocated", "peak_allocated", "reserved", "peak_reserved"):
        if statistic_name in log_values:
            log_values.values[statistic_name] = [f"{megabytes} MB" for megabytes in log_values.values[statistic_name]]
    memory_terms = log_values.largest_terms(
        "weight_and_optimizer", "activation", "allocated", "peak_allocated", "reserved", "peak_reserved"
    )
    if not memory_terms:
        return None
    if "billions" in log_values:
        parameter_count = round(Fraction(log_values.last_text("billions")) * BILLION)
        memory_terms.insert(0, LogTerm("params", parameter_count, "parameters", bytes_per_parameter=Fraction(1)))
    return ParsedLog("megatron", "Megatron-LM", tuple(memory_terms), memory_saving_flag="--micro-batch-size")
