"""Finds the reader of a log: the function `read_log` in a program's `log.py`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module

from ...errors import InputError
from .log_contents import ParsedLog
from .log_text import OUT_OF_MEMORY, LogText

LOG_FOLDERS = ("vllm", "sglang", "tensorrt_llm", "llama_cpp", "fsdp2", "megatron", "deepspeed")
"""Folders of programs whose logs are read. If several readers know a log, the one with the most terms is used."""

TORCH_FOLDER = "torch"
"""Folder of the reader for messages of torch, and of the Trainer, which any of these programs may print."""

EXPECTED_LOGS = (
    "a start-up log or an out-of-memory message of vLLM, SGLang, TensorRT-LLM, llama.cpp, Ollama, torch, Megatron-LM, "
    "DeepSpeed, torchtitan, torchtune, LitGPT, axolotl, Unsloth, ms-swift, verl, NeMo, NeMo-Automodel, nanochat, "
    "XTuner, llama-cookbook or the Trainer"
)


_OLLAMA_PS_TABLE = re.compile(
    r"^NAME +ID +SIZE +PROCESSOR(?P<context> +CONTEXT)? +UNTIL *\n(?P<model>[\w./:-]{1,200}) "
    r"[^\n]{0,200}%[^\n]*?(?:GPU|CPU) +(?P<tokens>[0-9]{1,9})?",
    re.MULTILINE,
)
"""Pattern of the table that `ollama ps` prints; the column CONTEXT is missing in earlier versions."""


def _error_of_unknown_log(file_name: str, log_text: LogText) -> InputError:
    """Returns the error for a log that no reader recognizes; for a table of `ollama ps`, with a command to type."""
    table_match = _OLLAMA_PS_TABLE.search(log_text.text)
    if table_match is None and OUT_OF_MEMORY.search(log_text.text) is not None:
        return InputError(
            f"{file_name}: states no size of memory; expected the lines before it too, or llmcalc fit MODEL "
            "--hardware NAME, which says what fits"
        )
    if table_match is None:
        return InputError(f"{file_name}: no line is known; expected {EXPECTED_LOGS}")
    length_flag = f" --num-ctx {table_match['tokens']}" if table_match["context"] and table_match["tokens"] else ""
    return InputError(
        f"{file_name}: the table of ollama ps has one size of a model and no terms; expected the log of ollama serve, "
        f"or llmcalc memory {table_match['model']} --engine ollama{length_flag} --hardware NAME, which counts them"
    )


def read_log(file_name: str, log_text: LogText) -> ParsedLog:
    """Returns the contents of a log. file_name: for errors. Raises `InputError` for an unknown kind of log."""
    parsed_logs = sorted(_parsed_logs(log_text), key=lambda log_reading: -len(log_reading.terms))
    torch_log: ParsedLog | None = import_module(f"..{TORCH_FOLDER}.log", __package__).read_log(log_text)
    if not parsed_logs:
        if torch_log is None:
            raise _error_of_unknown_log(file_name, log_text)
        return torch_log
    chosen_log = parsed_logs[0]
    if torch_log is None or torch_log.kind != "oom":
        return chosen_log
    return replace(
        chosen_log,
        kind="oom",
        terms=(*chosen_log.terms, *torch_log.terms),
        total_bytes=chosen_log.total_bytes or torch_log.total_bytes,
        stop_message=torch_log.stop_message,
        too_large_term=torch_log.too_large_term,
        suggested_flag=torch_log.suggested_flag or chosen_log.memory_saving_flag,
    )


def _parsed_logs(log_text: LogText) -> Iterator[ParsedLog]:
    for framework_folder in LOG_FOLDERS:
        parsed_log: ParsedLog | None = import_module(f"..{framework_folder}.log", __package__).read_log(log_text)
        if parsed_log is not None:
            yield parsed_log
