"""Reads logs of vLLM's engines V0 (worker.py) and V1 (gpu_worker.py, kv_cache_utils.py), of all versions."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from ..engines.versions import parse_version, ranges_with_version
from ..logs.log_contents import (
    MEMORY_AMOUNT,
    VERSION_NUMBER,
    WHOLE_NUMBER,
    LogTerm,
    LogValues,
    ParsedLog,
    argument_pairs,
    line_pattern,
    sizes_of_groups,
)
from ..logs.log_text import LogText
from .compilation import CACHE_VARIABLE
from .flashinfer_sampler import SAMPLER_VARIABLE
from .versions import vllm_record

GIB = 2**30

PATTERNS = (
    line_pattern("vLLM API server version", rf"version (?P<version>{VERSION_NUMBER})"),
    line_pattern("LLM engine (v", rf"\((?P<version>{VERSION_NUMBER})"),
    line_pattern("█  version", rf"version (?P<version>{VERSION_NUMBER})"),
    line_pattern("Starting to load model ", r"model (?P<model>[^ ]{1,300}?)\.\.\."),
    line_pattern("odel loading took", rf"took (?P<weights>{MEMORY_AMOUNT})"),
    line_pattern("oading model weights took", rf"took (?P<weights>{MEMORY_AMOUNT})"),
    # 0.6.4, in one line
    line_pattern("total_gpu_memory=", rf"=(?P<total>{MEMORY_AMOUNT})"),
    line_pattern("peak_torch_memory=", rf"=(?P<peak>{MEMORY_AMOUNT})"),
    line_pattern("non_torch_memory=", rf"=(?P<non_torch>{MEMORY_AMOUNT})"),
    line_pattern("kv_cache_size=", rf"=(?P<kv_cache>{MEMORY_AMOUNT})"),
    # 0.6.5 to 0.10 (V0)
    line_pattern("total_gpu_memory (", rf"\((?P<total>{MEMORY_AMOUNT})"),
    line_pattern(
        "gpu_memory_utilization (", rf"\((?P<gpu_memory_utilization>[0-9.]{{1,9}})\) = (?P<budget>{MEMORY_AMOUNT})"
    ),
    line_pattern("model weights take ", rf"take (?P<weights>{MEMORY_AMOUNT})"),
    line_pattern("non_torch_memory takes ", rf"takes (?P<non_torch>{MEMORY_AMOUNT})"),
    line_pattern("activation peak memory takes ", rf"takes (?P<profile_run>{MEMORY_AMOUNT})"),
    line_pattern("reserved for KV Cache is ", rf"is (?P<kv_cache>{MEMORY_AMOUNT})"),
    line_pattern(" GPU blocks: ", rf": (?P<blocks>{WHOLE_NUMBER})"),
    line_pattern(" cuda blocks: ", rf": (?P<blocks>{WHOLE_NUMBER})"),
    line_pattern(" CUDA blocks: ", rf": (?P<blocks>{WHOLE_NUMBER})"),
    # V1
    line_pattern(
        "Requested memory: ", rf": (?P<gpu_memory_utilization>[0-9.]{{1,9}}) \(util\), (?P<budget>{MEMORY_AMOUNT})"
    ),
    line_pattern("torch peak memory increase: ", rf": (?P<profile_run>{MEMORY_AMOUNT})"),
    line_pattern("non-torch forward increase memory: ", rf": (?P<non_torch>{MEMORY_AMOUNT})"),
    line_pattern("weights memory: ", rf": (?P<weights>{MEMORY_AMOUNT})"),
    line_pattern("Available KV cache memory: ", rf": (?P<kv_cache>{MEMORY_AMOUNT})"),
    line_pattern("Current kv cache memory in use is ", rf"is (?P<kv_cache>{MEMORY_AMOUNT})"),
    line_pattern("GPU KV cache size: ", rf": (?P<kv_tokens>{WHOLE_NUMBER}) tokens"),
    line_pattern("Estimated CUDA graph memory: ", rf": (?P<estimated_graphs>{MEMORY_AMOUNT})"),
    line_pattern("CUDA graph pool memory: ", rf", (?P<estimated_graphs>{MEMORY_AMOUNT}) \(estimated\)"),
    line_pattern("Graph capturing finished in ", rf" took (?P<cuda_graphs>{MEMORY_AMOUNT})"),
    line_pattern("The current --gpu-memory-utilization=", r"=(?P<gpu_memory_utilization>[0-9]\.[0-9]{1,9})"),
    line_pattern("Maximum concurrency for ", rf"for (?P<max_model_len>{WHOLE_NUMBER}) tokens"),
    line_pattern("Using max model len ", rf"len (?P<max_model_len>{WHOLE_NUMBER})"),
    line_pattern("max_num_batched_tokens=", rf"=(?P<max_num_batched_tokens>{WHOLE_NUMBER})"),
    line_pattern("Free memory on device", r"/(?P<total_gib>[0-9.]{1,9}) ?GiB\)"),
    line_pattern("total consumed (from mem_get_info): ", rf": (?P<consumed>{MEMORY_AMOUNT})"),
    # what a running engine says that it took (compile_or_warm_up_model)
    line_pattern(
        "Desired GPU memory utilization is (",
        rf"\((?P<gpu_memory_utilization>[0-9.]{{1,9}}), (?P<budget>{MEMORY_AMOUNT})",
    ),
    line_pattern("Actual usage is ", rf"is (?P<weights>{MEMORY_AMOUNT}) for weight,"),
    line_pattern("Actual usage is ", rf"is (?P<consumed>{MEMORY_AMOUNT}) for consumed memory"),
    line_pattern(
        "Actual usage is ", rf", (?P<profile_run>{MEMORY_AMOUNT}) for peak activation, {MEMORY_AMOUNT} for non-torch"
    ),
    line_pattern(
        "Actual usage is ", rf"consumed memory[^,]{{0,60}}, (?P<peak_with_graphs>{MEMORY_AMOUNT}) for peak activation"
    ),
    line_pattern("for peak activation, ", rf", (?P<non_torch>{MEMORY_AMOUNT}) for non-torch memory"),
    line_pattern("for peak activation, ", rf" and (?P<cuda_graphs>{MEMORY_AMOUNT}) for CUDAGraph memory"),
)

TOO_LITTLE_FREE = "is less than desired GPU memory utilization"
"""Part of vLLM's error message if other programs, or the program that just ended, occupy memory of the budget."""

ADVISED_FLAGS = {
    TOO_LITTLE_FREE: "--gpu-memory-utilization",
    "No available memory for the cache blocks": "--gpu-memory-utilization",
    "To serve at least one request with the model": "--max-model-len",
    "is larger than the maximum number of tokens that can be stored in KV": "--max-model-len",
    "exceeds available Mamba cache blocks": "--max-num-seqs",
    "In Mamba cache align mode, block_size": "--max-num-batched-tokens",
}
"""Part of an error message of a start of any vLLM version → the flag that the message advises to change."""

REFUSAL_MESSAGES = (
    *ADVISED_FLAGS,
    "is less than the engine's budget after excluding",
    "exceed the desired GPU memory utilization",
)
"""Parts of all error messages with which vLLM refuses to start, of all versions."""

SAMPLER_MESSAGE = "CUDA out of memory occurred when warming up sampler with"
"""Part of vLLM's error message if the sampler finds no memory after cache and graphs (`_dummy_sampler_run`)."""

ARGUMENT_LINES = ("non-default args: ", "args: Namespace(")
"""Prefixes of the log lines that repeat the user's arguments."""

CONFIG_FIELDS = {
    "model": "model",
    "max_seq_len": "max_model_len",
    "tensor_parallel_size": "tensor_parallel_size",
    "pipeline_parallel_size": "pipeline_parallel_size",
    "data_parallel_size": "data_parallel_size",
    "enforce_eager": "enforce_eager",
    "kv_cache_dtype": "kv_cache_dtype",
    "quantization": "quantization",
    "dtype": "dtype",
    "enable_prefix_caching": "enable_prefix_caching",
}
"""Field of the engine's printed configuration → name of the flag."""


COMPILATION_LINES = ("Compiling a graph for compile range", "Compiling a graph for dynamic shape")
"""Parts of the log lines of a start without a cache of compiled graphs (compilation/backends.py)."""

SAMPLER_LINES = (
    ("Using FlashInfer for top-p & top-k sampling", 1),
    ("Falling back to the PyTorch-native implementation of top-p & top-k", 0),
)
"""Lines that name the sampler → the value of the variable that chooses it (v1/sample/ops/topk_topp_sampler.py)."""

FIRST_START_NOTE = f"the log is of a first start, which compiled the model: computed with {CACHE_VARIABLE}=1"
"""Note on a start without a cache of compiled graphs (vLLM issues 54122, 54383)."""


def read_log(log_text: LogText) -> ParsedLog | None:
    """Returns the memory sizes that vLLM printed in a log; None for a log without any."""
    log_values = LogValues(log_text, PATTERNS)
    memory_terms = tuple(_memory_terms(log_values))
    refusal_line = next(iter(log_text.lines_with(*REFUSAL_MESSAGES)), "")
    sampler_message = next(iter(log_text.lines_with(SAMPLER_MESSAGE)), "")
    startup_error_line = refusal_line or sampler_message
    is_out_of_memory = bool(sampler_message) and not refusal_line
    logged_flags = _flags_in_log(log_text)
    has_program_name = "version" in log_values or any(term_name in log_values for term_name in ("kv_tokens", "budget"))
    if not (
        startup_error_line or (memory_terms and (has_program_name or len(memory_terms) > 1 or "weights" in log_values))
    ):
        return None
    model_name = str(logged_flags.pop("model", "")) or log_values.last_text("model")
    utilization_text = log_values.last_text("gpu_memory_utilization")
    total_bytes = log_values.last_size("total")
    if total_bytes is None and "total_gib" in log_values:
        total_bytes = round(float(log_values.last_text("total_gib").rstrip(".") or 0) * GIB)
    if total_bytes is None and "budget" in log_values and utilization_text and float(utilization_text or 0) > 0:
        total_bytes = round(log_values.byte_sizes("budget")[-1] / float(utilization_text))
    stated_values: dict[str, Any] = {"gpu_memory_utilization": utilization_text} if utilization_text else {}
    stated_values |= log_values.stated_numbers("max_model_len", "max_num_batched_tokens")
    has_complete_arguments = bool(log_text.lines_with(*ARGUMENT_LINES))
    layout_flags, layout_note = _flags_of_workers(log_text)
    is_layout_shown = has_complete_arguments or "tensor_parallel_size" in logged_flags
    if is_layout_shown:  # the printed configuration of the engine has the sizes, but not whether ranks divide experts
        is_divided = EXPERT_FLAG in layout_flags and not has_complete_arguments
        layout_flags = {EXPERT_FLAG: True} if is_divided else {}
    is_compiled = bool(log_text.lines_with(*COMPILATION_LINES))
    stated_values |= {CACHE_VARIABLE: 1} if is_compiled else {}
    stated_values |= _sampler_in_log(log_text, log_values.version)
    return ParsedLog(
        program="vllm",
        title="vLLM",
        terms=memory_terms,
        version=log_values.version,
        model=model_name,
        total_bytes=total_bytes,
        flags=stated_values | layout_flags | logged_flags,
        has_complete_arguments=has_complete_arguments,
        stop_message=startup_error_line.strip(),
        refused_to_start=bool(refusal_line),
        kind="oom" if is_out_of_memory else "startup",
        too_large_term="profile_run" if is_out_of_memory else "budget" if TOO_LITTLE_FREE in refusal_line else "",
        suggested_flag="--max-num-seqs" if is_out_of_memory else _advised_flag(refusal_line),
        memory_saving_flag="--max-num-seqs",
        note=FIRST_START_NOTE if is_compiled else "",
        layout_note="" if is_layout_shown else layout_note,
    )


def _sampler_in_log(log_text: LogText, version: str) -> dict[str, Any]:
    """Returns the environment variable that selects the sampler named in a log, with its value; empty if unmodelled."""
    chosen_values = [value for line_text, value in SAMPLER_LINES if log_text.lines_with(line_text)]
    is_modelled = not version or bool(ranges_with_version(vllm_record().flashinfer_sampler, parse_version(version)))
    return {SAMPLER_VARIABLE: chosen_values[0]} if chosen_values and is_modelled else {}


def _advised_flag(refusal_line: str) -> str:
    """Returns the flag that an error message advises to change, with the free fraction of memory if it is stated."""
    advised_flag = next((flag for refusal_text, flag in ADVISED_FLAGS.items() if refusal_text in refusal_line), "")
    free_memory = _FREE_OF_TOTAL.search(refusal_line) if TOO_LITTLE_FREE in refusal_line else None
    if free_memory is None or not float(free_memory["total"]):
        return advised_flag
    free_share = math.floor(100 * float(free_memory["free"]) / float(free_memory["total"])) / 100
    return f"{advised_flag} {free_share:.2f}" if free_share else advised_flag


_FREE_OF_TOTAL = re.compile(r"\((?P<free>[0-9]{1,6}\.?[0-9]{0,4})/(?P<total>[0-9]{1,6}\.?[0-9]{0,4}) GiB\)")


_WORKER = re.compile(
    r"\((?:(?:Worker|EngineCore(?!_DP0 ))(?P<ranks>(?:_[A-Z]{2,3}[0-9]{1,4}){1,6})"
    r"|VllmWorker rank=(?P<rank>[0-9]{1,4})) pid="
)
"""Pattern of the name of a process: a worker, another replica's engine, or before 0.10 a tensor-parallel worker."""

RANK_FLAGS = {"TP": "tensor_parallel_size", "PP": "pipeline_parallel_size", "DP": "data_parallel_size"}
"""Parallel group in the name of a worker → the flag for the group's size."""

EXPERT_FLAG = "enable_expert_parallel"
"""Flag with which ranks divide the experts of a layer (`_EP` in the name of a worker)."""


def _flags_of_workers(log_text: LogText) -> tuple[dict[str, Any], str]:
    """Returns the parallel sizes in the names of workers, such as `(Worker_PP0_TP1 pid=9)`, and a note on the sizes."""
    named_lines = log_text.lines_with("(Worker_", "(EngineCore_DP", "(VllmWorker rank=")
    worker_matches = [worker_match for log_line in named_lines if (worker_match := _WORKER.search(log_line[:200]))]
    worker_names = {worker_match["ranks"] or f"_TP{worker_match['rank']}" for worker_match in worker_matches}
    group_sizes, layout_note = sizes_of_groups(sorted(worker_names))
    flags: dict[str, Any] = {RANK_FLAGS[group_name]: group_size for group_name, group_size in group_sizes.items()}
    if any("_EP" in worker_name for worker_name in worker_names):
        flags[EXPERT_FLAG] = True
    return flags, layout_note


def _memory_terms(log_values: LogValues) -> Iterator[LogTerm]:
    """Yields each logged memory size: the largest of all ranks, and for the KV cache the smallest."""
    yield from log_values.largest_terms("budget", "weights")
    if "peak" in log_values and "weights" in log_values:
        yield LogTerm("profile_run", max(log_values.byte_sizes("peak")) - max(log_values.byte_sizes("weights")))
    if "peak_with_graphs" in log_values:  # from 0.27 on the printed peak has the estimate of the graphs in it (#57936)
        graph_estimates = log_values.byte_sizes("estimated_graphs") or [0]
        yield LogTerm("profile_run", max(log_values.byte_sizes("peak_with_graphs")) - max(graph_estimates))
    yield from log_values.largest_terms("profile_run", "non_torch")
    if "consumed" in log_values and "weights" in log_values and "non_torch" not in log_values:
        yield LogTerm(
            "non_torch", max(0, max(log_values.byte_sizes("consumed")) - max(log_values.byte_sizes("weights")))
        )
    graph_size_name = "estimated_graphs" if "estimated_graphs" in log_values else "cuda_graphs"
    if graph_size_name in log_values:
        yield LogTerm("cuda_graphs", max(log_values.byte_sizes(graph_size_name)))
    if "kv_cache" in log_values:
        yield LogTerm("kv_cache", min(log_values.byte_sizes("kv_cache")))
    if "blocks" in log_values:
        yield LogTerm("blocks", min(log_values.whole_numbers("blocks")), "blocks")
    if "kv_tokens" in log_values:
        yield LogTerm("kv_tokens", min(log_values.whole_numbers("kv_tokens")), "tokens")


def _flags_in_log(log_text: LogText) -> dict[str, Any]:
    """Returns the model and the flags in a log, from the printed command line or the engine's configuration."""
    logged_flags: dict[str, Any] = {}
    for log_line in log_text.lines_with("LLM engine (v", "LLM engine with config"):
        for field_name, field_value in argument_pairs(log_line.partition("config:")[2]).items():
            if field_name in CONFIG_FIELDS:
                logged_flags[CONFIG_FIELDS[field_name]] = (
                    str(field_value).removeprefix("torch.") if field_name == "dtype" else field_value
                )
    for log_line in log_text.lines_with(*ARGUMENT_LINES):
        typed_arguments = argument_pairs(log_line[log_line.index("args: ") + len("args: ") :])
        logged_flags |= {"model": typed_arguments["model_tag"]} if "model_tag" in typed_arguments else {}
        logged_flags |= typed_arguments
    return logged_flags
