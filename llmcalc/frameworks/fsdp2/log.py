"""Reads torchtitan's logs (train.py and components/metrics.py): reserved memory after loading and per step."""

from __future__ import annotations

from fractions import Fraction

from ..logs.log_contents import MEMORY_AMOUNT, WHOLE_NUMBER, LogTerm, LogValues, ParsedLog, line_pattern
from ..logs.log_text import LogText

PATTERNS = (
    line_pattern(" GPU capacity: ", rf"capacity: (?P<gpu>.{{1,80}}?) \([0-9]{{1,3}}\) with (?P<total>{MEMORY_AMOUNT})"),
    line_pattern(
        "CUDA capacity: ", rf"capacity: (?P<gpu>.{{1,80}}?) \([0-9]{{1,3}}\)? with (?P<total>{MEMORY_AMOUNT})"
    ),
    line_pattern("Model ", rf"Model (?P<model>.{{1,80}}?) size: (?P<params>{WHOLE_NUMBER}) total parameters"),
    line_pattern("memory usage for model: ", rf": (?P<after_model>{MEMORY_AMOUNT})"),
    line_pattern("  memory: ", rf": +(?P<peak_reserved>{MEMORY_AMOUNT})\("),
)


def read_log(log_text: LogText) -> ParsedLog | None:
    """Returns torchtitan's memory measurements from a log; None for a log without any."""
    log_values = LogValues(log_text, PATTERNS)
    memory_terms = log_values.largest_terms("after_model", "peak_reserved")
    if not memory_terms:
        return None
    if "params" in log_values:
        parameter_count = log_values.whole_numbers("params")[-1]
        memory_terms.insert(0, LogTerm("params", parameter_count, "parameters", bytes_per_parameter=Fraction(1)))
    return ParsedLog(
        "torchtitan",
        "torchtitan",
        tuple(memory_terms),
        model=log_values.last_text("model"),
        device=log_values.last_text("gpu"),
        total_bytes=log_values.last_size("total"),
        memory_saving_flag="--training.local_batch_size",
    )
