"""Reads logs of SGLang (model_executor/model_runner.py and mem_cache/memory_pool.py), whose GB are GiB."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ..logs.log_contents import (
    MEMORY_AMOUNT,
    VERSION_NUMBER,
    WHOLE_NUMBER,
    LogTerm,
    LogValues,
    ParsedLog,
    argument_pairs,
    line_pattern,
    ranks_by_group,
    sizes_of_groups,
)
from ..logs.log_text import LogText
from .flags import flags
from .versions import sglang_record

PATTERNS = (
    line_pattern("sglang", rf"sglang(?:\[all\])?(?:==| version:? | v)(?P<version>{VERSION_NUMBER})"),
    line_pattern("Load weight begin.", rf"avail mem=(?P<free>{MEMORY_AMOUNT})"),
    line_pattern("Load weight end.", rf"mem usage=(?P<weights>{MEMORY_AMOUNT})"),
    line_pattern("Load weight end.", rf"avail mem=(?P<left>{MEMORY_AMOUNT})"),
    line_pattern("KV Cache is allocated.", rf"#tokens: (?P<tokens>{WHOLE_NUMBER})"),
    line_pattern(
        "KV Cache is allocated.", rf"\bK size: (?P<keys>{MEMORY_AMOUNT}), V size: (?P<values>{MEMORY_AMOUNT})"
    ),
    line_pattern("KV Cache is allocated.", rf"\bKV size: (?P<latents>{MEMORY_AMOUNT})"),
    line_pattern("Capture cuda graph end.", rf"mem usage=(?P<cuda_graphs>{MEMORY_AMOUNT})"),
    line_pattern("max_total_num_tokens=", rf"=(?P<max_total_num_tokens>{WHOLE_NUMBER})"),
    line_pattern("context_len=", rf"=(?P<context_length>{WHOLE_NUMBER})"),
)

NO_CACHE_AFTER_WEIGHTS = "Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static"
"""Error of a server without memory for its cache, in builds of mid-2026 (mem_cache/kv_cache_configurator.py)."""

RUNNER_BYTES = 2**30
"""Most bytes of a draft's runner before loading: a log has 0.20 GiB (index:70986240392). A cache is larger."""

RANK_HINTS = ("Load weight ", "KV Cache is allocated.", "max_total_num_tokens=")
"""Parts of the log lines by which a log's first rank is found."""

_RANK = re.compile(r"\bTP([0-9]{1,4})\b")


def read_log(log_text: LogText) -> ParsedLog | None:
    """Returns the memory sizes that SGLang printed in a log; None for a log without memory sizes."""
    logged_ranks = [
        int(flag_match[1])
        for rank_line in log_text.lines_with(*RANK_HINTS)
        if (flag_match := _RANK.search(rank_line[:120]))
    ]
    first_rank = min(logged_ranks, default=0)
    log_values = LogValues(log_text, PATTERNS, lambda log_line: _is_of_another_rank(log_line, first_rank))
    logged_flags: dict[str, Any] = {}
    for log_line in log_text.lines_with("ServerArgs("):
        logged_flags |= argument_pairs(log_line[log_line.index("ServerArgs(") :])
    layout_flags, layout_note = _flags_and_ranks_note(log_text)
    message_texts = sglang_record().messages
    refusal_message = next(
        iter(log_text.lines_with(message_texts["no_cache"], message_texts["no_states"], NO_CACHE_AFTER_WEIGHTS)), ""
    )
    model_loads = _model_loads(log_values)
    free_bytes = model_loads[-1].free_bytes if model_loads else log_values.last_size("free")
    memory_terms = tuple(_memory_terms(log_values, logged_flags, model_loads, free_bytes))
    if not memory_terms and not refusal_message:
        return None
    known_fields = {flag.field_name for flag in flags() if not flag.is_memory_neutral and not flag.refusal_reason}
    return ParsedLog(
        program="sglang",
        title="SGLang",
        terms=memory_terms,
        version=log_values.version,
        free_bytes=free_bytes,
        model=str(logged_flags.get("model_path", "")),
        flags=log_values.stated_numbers("context_length")
        | ({} if logged_flags else layout_flags)
        | {flag_field: flag_value for flag_field, flag_value in logged_flags.items() if flag_field in known_fields},
        has_complete_arguments=bool(logged_flags),
        stop_message=refusal_message.strip(),
        refused_to_start=bool(refusal_message),
        suggested_flag="--mem-fraction-static" if refusal_message else "",
        memory_saving_flag="--mem-fraction-static",
        layout_note="" if logged_flags else layout_note,
    )


def _flags_and_ranks_note(log_text: LogText) -> tuple[dict[str, Any], str]:
    """Returns parallel sizes read from process names in a log (`DP1 TP3`), and a note on these sizes.

    With replicas of attention each rank of tensor parallelism is in one replica; replicas of the model have all ranks.
    """
    process_names = {log_line[:120].partition("]")[0] for log_line in log_text.lines_with(*RANK_HINTS)}
    group_sizes, layout_note = sizes_of_groups(sorted(process_names))
    layout_flags: dict[str, Any] = {
        flag_field: group_sizes[group_name]
        for group_name, flag_field in (("TP", "tp_size"), ("PP", "pp_size"), ("DP", "dp_size"))
        if group_name in group_sizes
    }
    named_ranks = [ranks_by_group(process_name) for process_name in process_names]
    replicas_and_ranks = {
        (process_ranks["DP"], process_ranks["TP"])
        for process_ranks in named_ranks
        if {"DP", "TP"} <= process_ranks.keys()
    }
    if "DP" in group_sizes and "TP" in group_sizes:
        tensor_ranks = [tensor_rank for _, tensor_rank in replicas_and_ranks]
        layout_flags["enable_dp_attention"] = len(tensor_ranks) == len(set(tensor_ranks))
    return layout_flags, layout_note


def _is_of_another_rank(log_line: str, first_rank: int) -> bool:
    """Whether a line is from a rank other than the log's first one; all ranks log the same lines."""
    rank_match = _RANK.search(log_line[:120])
    return rank_match is not None and int(rank_match[1]) != first_rank


class ModelLoad(NamedTuple):
    """A loading of weights in a log: free bytes before, weight bytes, and remaining bytes.

    free_bytes: free bytes before loading. weight_bytes: bytes that loading took. remaining_bytes: free bytes after it.
    """

    free_bytes: int
    weight_bytes: int
    remaining_bytes: int


def _model_loads(log_values: LogValues) -> list[ModelLoad]:
    """Returns the model loads of a log's first rank, one per start; none if the log omits some of the sizes.

    A draft, or each of several, is loaded into what was left before. Up to 0.5.13 that is after the cache is allocated,
    which leaves less.
    """
    size_lists = [log_values.byte_sizes(group_name) for group_name in ("free", "weights", "left")]
    model_loads: list[ModelLoad] = []
    if len({len(byte_sizes) for byte_sizes in size_lists}) != 1:
        return []
    for free_bytes, weight_bytes, remaining_bytes in zip(*size_lists, strict=True):
        last_load = model_loads[-1] if model_loads else None
        if last_load is None or free_bytes > last_load.free_bytes - last_load.weight_bytes // 2:
            model_loads.append(ModelLoad(free_bytes, weight_bytes, remaining_bytes))
        elif free_bytes >= last_load.remaining_bytes - RUNNER_BYTES:
            model_loads[-1] = ModelLoad(last_load.free_bytes, last_load.weight_bytes + weight_bytes, remaining_bytes)
    return model_loads


def _memory_terms(
    log_values: LogValues, logged_flags: dict[str, Any], model_loads: Sequence[ModelLoad], free_bytes: int | None
) -> Iterator[LogTerm]:
    """Yields the memory sizes that an SGLang log states, each with its name.

    free_bytes: the bytes that were free before the last start loaded its model; None if the log does not say.
    """
    memory_fraction = str(logged_flags.get("mem_fraction_static", ""))
    if free_bytes is not None and re.fullmatch(r"0?\.[0-9]{1,12}|1(\.0)?", memory_fraction):
        yield LogTerm("budget", int(free_bytes * float(memory_fraction)))
    if model_loads:
        yield LogTerm("weights", max(model_load.weight_bytes for model_load in model_loads))
    yield from log_values.largest_terms("cuda_graphs", *(() if model_loads else ("weights",)))
    remaining_bytes = log_values.last_size("left")
    if "weights" not in log_values and free_bytes is not None and remaining_bytes is not None:  # before 0.4.4
        yield LogTerm("weights", free_bytes - remaining_bytes)
    cache_bytes = sum(sum(log_values.byte_sizes(term_name)) for term_name in ("keys", "values", "latents"))
    if cache_bytes:
        yield LogTerm("kv_cache", cache_bytes)
    for term_name in ("max_total_num_tokens", "tokens"):
        if term_name in log_values:
            yield LogTerm("kv_tokens", max(log_values.whole_numbers(term_name)), "tokens")
            return
