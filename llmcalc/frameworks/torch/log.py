"""Reads torch's out-of-memory messages (c10/cuda/CUDACachingAllocator.cpp), and trainers' allocator statistics.

The trainers are transformers' Trainer, torchtune (training/memory.py, `log_memory_stats`, and each step's metrics),
axolotl (core/trainers/base.py, `log`; before 2025 utils/bench.py, `log_gpu_memory_usage`), verl (in GiB,
workers/fsdp_workers.py and megatron_workers.py), NeMo 2 (in bytes), LitGPT (its recipes, in units of 10^9 bytes),
NeMo-Automodel (in GiB, recipes/llm/train_ft.py), ms-swift, nanochat (scripts/base_train.py), XTuner
(v1/train/trainer.py), llama-cookbook (in whole GiB, utils/memory_utils.py) and Unsloth's notebooks.

A message says what was requested, what the device has and what is free, each process's memory, and what of this
process's memory torch has allocated, and has reserved without a use.
"""

from __future__ import annotations

from fractions import Fraction

from ..logs.log_contents import MEMORY_AMOUNT, WHOLE_NUMBER, LogTerm, LogValues, ParsedLog, line_pattern
from ..logs.log_text import LogText

OUT_OF_MEMORY = "out of memory. Tried to allocate"

ALLOCATION_FAILURE = "memory allocation failed with OOM on device"
"""Warning that torch 2.14 prints before its message, with the requested bytes and the device's bytes."""

PATTERNS = (
    line_pattern(ALLOCATION_FAILURE, r"trying to allocate (?P<requested_number>[0-9]{1,18}) bytes"),
    line_pattern(ALLOCATION_FAILURE, r"\(free: (?P<free_number>[0-9]{1,18}), total: (?P<total_number>[0-9]{1,18})\)"),
    line_pattern(OUT_OF_MEMORY, rf"allocate (?P<requested>{MEMORY_AMOUNT})"),
    line_pattern(" total capacity of ", rf"of (?P<total>{MEMORY_AMOUNT})"),
    line_pattern(" total capacty of ", rf"of (?P<total>{MEMORY_AMOUNT})"),
    line_pattern(" of which ", rf"which (?P<free>{MEMORY_AMOUNT}) is free"),
    line_pattern("this process has ", rf"has (?P<process>{MEMORY_AMOUNT})"),
    line_pattern("Of the allocated memory ", rf"memory (?P<allocated>{MEMORY_AMOUNT})"),
    line_pattern("is allocated by PyTorch, with ", rf"with (?P<private_pools>{MEMORY_AMOUNT}) allocated in private"),
    line_pattern("is allocated by PyTorch, and ", rf"and (?P<unallocated>{MEMORY_AMOUNT}) is reserved"),
    line_pattern("private pools (e.g., CUDA Graphs), and ", rf"and (?P<unallocated>{MEMORY_AMOUNT}) is reserved"),
    # torch 2.0 and older: GPU 0; 15.78 GiB total capacity; 14.56 GiB already allocated; …
    line_pattern("(GPU ", rf"\(GPU [0-9]{{1,3}}; (?P<total>{MEMORY_AMOUNT}) total capacity"),
    line_pattern(" total capacity; ", rf"; (?P<allocated>{MEMORY_AMOUNT}) already allocated"),
    line_pattern(" already allocated; ", rf"; (?P<free>{MEMORY_AMOUNT}) free"),
    line_pattern(" free; ", rf"; (?P<reserved>{MEMORY_AMOUNT}) reserved"),
)

TRAINER_PATTERNS = (
    line_pattern("before_init_mem_gpu", rf"gpu[\" ]*[=:|] *(?P<before_init>{MEMORY_AMOUNT}|[0-9]{{1,15}})"),
    line_pattern("init_mem_gpu_alloc_delta", rf"delta[\" ]*[=:|] *(?P<init_allocated>{MEMORY_AMOUNT}|[0-9]{{1,15}})"),
    line_pattern("train_mem_gpu_alloc_delta", rf"delta[\" ]*[=:|] *(?P<train_allocated>{MEMORY_AMOUNT}|[0-9]{{1,15}})"),
    line_pattern("train_mem_gpu_peaked_delta", rf"delta[\" ]*[=:|] *(?P<train_peak>{MEMORY_AMOUNT}|[0-9]{{1,15}})"),
    line_pattern("Number of trainable parameters = ", rf"= (?P<trainable>{WHOLE_NUMBER})"),
)

_NUMBER = r"[0-9]{1,9}(\.[0-9]{1,18})?"

PEAK_PATTERNS = (
    line_pattern("GPU peak memory allocation: ", rf": (?P<torchtune_peak_allocated>{MEMORY_AMOUNT})"),
    line_pattern("GPU peak memory reserved: ", rf": (?P<torchtune_peak_reserved>{MEMORY_AMOUNT})"),
    line_pattern("GPU memory usage while training: ", rf": (?P<axolotl_allocated>{MEMORY_AMOUNT})"),
    line_pattern("GPU memory usage while training: ", rf"\(\+(?P<axolotl_unallocated>{MEMORY_AMOUNT}) cache"),
    line_pattern("Peak reserved memory = ", rf"= (?P<unsloth_peak_reserved>{MEMORY_AMOUNT})"),
    line_pattern("Memory used: ", r": (?P<litgpt_peak_allocated>[0-9]{1,9}\.[0-9]{2}) GB"),
    line_pattern("'memory(GiB)': ", rf": (?P<swift_peak_reserved>{_NUMBER})"),
    # a table of Python or JSON, with quoted numbers from transformers 5 on
    line_pattern(
        "memory/max_allocated (GiB)", rf"max_allocated \(GiB\)['\": ]{{1,6}}(?P<step_peak_allocated>{_NUMBER})"
    ),
    line_pattern(
        "memory/device_reserved (GiB)", rf"device_reserved \(GiB\)['\": ]{{1,6}}(?P<step_peak_reserved>{_NUMBER})"
    ),
    line_pattern(
        "memory/max_mem_allocated(gib)", rf"mem_allocated\(gib\)['\": ]{{1,6}}(?P<step_peak_allocated>{_NUMBER})"
    ),
    line_pattern(
        "memory/device_mem_reserved(gib)", rf"mem_reserved\(gib\)['\": ]{{1,6}}(?P<step_peak_reserved>{_NUMBER})"
    ),
    line_pattern("perf/max_memory_allocated_gb:", rf"allocated_gb: ?(?P<verl_peak_allocated>{_NUMBER})"),
    line_pattern("perf/max_memory_reserved_gb:", rf"reserved_gb: ?(?P<verl_peak_reserved>{_NUMBER})"),
    line_pattern("max memory allocated (GB): ", rf"\): (?P<verl_peak_allocated>{_NUMBER})"),
    line_pattern("max memory reserved (GB): ", rf"\): (?P<verl_peak_reserved>{_NUMBER})"),
    line_pattern("Max CUDA memory allocated was ", rf"was (?P<cookbook_peak_allocated>{_NUMBER}) GB"),
    line_pattern("Max CUDA memory reserved was ", rf"was (?P<cookbook_peak_reserved>{_NUMBER}) GB"),
    line_pattern("Peak memory usage: ", rf"(?m:^)Peak memory usage: (?P<nanochat_peak_allocated>{_NUMBER}MiB)(?=\s*$)"),
    line_pattern(
        " max_memory: ",
        rf" max_memory: (?P<xtuner_peak_allocated>{MEMORY_AMOUNT})"
        rf" reserved_memory: (?P<xtuner_peak_reserved>{MEMORY_AMOUNT}) tgs: ",
    ),
    line_pattern(" | mem ", rf"mem (?P<automodel_peak_allocated>{_NUMBER}) GiB"),
    line_pattern("| max_memory_allocated: ", r"allocated: (?P<nemo_peak_allocated>[0-9]{1,15})\b"),
    line_pattern("| max_memory_reserved: ", r"reserved: (?P<nemo_peak_reserved>[0-9]{1,15})\b"),
    line_pattern(" peak_memory_alloc:", rf"peak_memory_alloc:(?P<metrics_peak_allocated>{_NUMBER})"),
    line_pattern(" peak_memory_reserved:", rf"peak_memory_reserved:(?P<metrics_peak_reserved>{_NUMBER})"),
)

PEAK_TERMS = {
    "torchtune": ("torchtune", 0, "batch_size"),
    "axolotl": ("axolotl", 0, "micro_batch_size"),
    "unsloth": ("Unsloth", 0, "per_device_train_batch_size"),
    "litgpt": ("LitGPT", 10**9, "--train.micro_batch_size"),
    "swift": ("ms-swift", 2**30, "--per_device_train_batch_size"),
    "step": ("axolotl", 2**30, "micro_batch_size"),
    "verl": ("verl", 2**30, "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"),
    "nemo": ("NeMo", 1, "micro_batch_size"),
    "automodel": ("NeMo-Automodel", 2**30, "step_scheduler.local_batch_size"),
    "metrics": ("torchtune", 2**30, "batch_size"),
    "cookbook": ("llama-cookbook", 2**30, "--batch_size_training"),
    "nanochat": ("nanochat", 0, "--device-batch-size"),
    "xtuner": ("XTuner", 0, "pack_max_length"),
}
"""Prefix of regex group names → program, bytes per printed unit (0 if printed), and argument for the batch size."""

EXPANDABLE_SEGMENTS_SETTING = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
"""Setting with which torch's segments grow instead of leaving gaps."""


def read_log(log_text: LogText) -> ParsedLog | None:
    """Returns the sizes in torch's last out-of-memory message, or in the Trainer's metrics; None if there are none."""
    trainer_log = _read_trainer_metrics(log_text) or _read_peaks(log_text)
    error_messages = log_text.lines_with(OUT_OF_MEMORY) or log_text.lines_with(ALLOCATION_FAILURE)
    if not error_messages:
        return trainer_log
    log_values = LogValues(LogText(error_messages[-1]), PATTERNS)
    other_process_bytes = sum(
        LogValues(_with_process_lines(error_messages[-1]), (PROCESS_PATTERN,)).byte_sizes("process_has")
    )
    bytes_by_term = {
        size_name: log_values.last_size(size_name)
        for size_name in ("requested", "free", "process", "allocated", "unallocated")
    }
    bytes_by_term |= {term_name: log_values.last_size(term_name) for term_name in ("private_pools", "reserved")}
    for term_name in ("requested", "free"):
        if f"{term_name}_number" in log_values:
            bytes_by_term[term_name] = log_values.whole_numbers(f"{term_name}_number")[-1]
    if bytes_by_term["process"] is None and other_process_bytes:  # this process is the only one of the list
        bytes_by_term["process"], other_process_bytes = other_process_bytes, 0
    if bytes_by_term["reserved"] is not None and bytes_by_term["allocated"] is not None:
        bytes_by_term["unallocated"] = bytes_by_term["reserved"] - bytes_by_term["allocated"]
    memory_terms = [
        LogTerm(term_name, term_bytes)
        for term_name, term_bytes in bytes_by_term.items()
        if term_bytes is not None and term_name != "reserved"
    ]
    memory_terms += [LogTerm("other_processes", other_process_bytes)] if other_process_bytes else []
    total_bytes = log_values.last_size("total")
    if "total_number" in log_values:
        total_bytes = log_values.whole_numbers("total_number")[-1]
    term_at_fault, suggested_flag = _largest_term_and_advice(
        {term.name: term.value for term in memory_terms}, total_bytes or 0
    )
    return ParsedLog(
        program="torch" if trainer_log is None else trainer_log.program,
        title="torch" if trainer_log is None else trainer_log.title,
        terms=(*(trainer_log.terms if trainer_log else ()), *memory_terms),
        kind="oom",
        total_bytes=total_bytes,
        stop_message=error_messages[-1].strip(),
        too_large_term=term_at_fault,
        suggested_flag=suggested_flag or ("" if trainer_log is None else trainer_log.memory_saving_flag),
    )


PROCESS_PATTERN = line_pattern("Process ", rf"Process [0-9]{{1,12}} has (?P<process_has>{MEMORY_AMOUNT}) memory in use")


def _with_process_lines(error_message: str) -> LogText:
    """Returns the out-of-memory message, split into a line for each `Process N has …`."""
    return LogText(error_message.replace("Process ", "\nProcess "))


def _largest_term_and_advice(bytes_by_term: dict[str, int], total_bytes: int) -> tuple[str, str]:
    """Returns the largest named size in a device's exhausted memory, and a change that reduces this size.

    Gaps of less than 2 % of the device are those of a device that tensors fill: without them the next requests fail.
    """
    requested_bytes = bytes_by_term.get("requested", 0)
    if bytes_by_term.get("other_processes", 0) > max(requested_bytes, total_bytes // 20):
        return "other_processes", "CUDA_VISIBLE_DEVICES"
    if bytes_by_term.get("unallocated", 0) >= max(requested_bytes, total_bytes // 50):
        return "unallocated", EXPANDABLE_SEGMENTS_SETTING
    return "allocated", ""


def _read_trainer_metrics(log_text: LogText) -> ParsedLog | None:
    """Returns the memory metrics that the Trainer printed (trainer_utils.py, `TrainerMemoryTracker`)."""
    log_values = LogValues(log_text, TRAINER_PATTERNS)
    metric_names = ("before_init", "init_allocated", "train_allocated", "train_peak")
    memory_terms = [
        LogTerm(metric_name, log_values.byte_sizes(metric_name)[-1])
        for metric_name in metric_names
        if metric_name in log_values
    ]
    if "trainable" in log_values:
        memory_terms.append(LogTerm("trainable", log_values.whole_numbers("trainable")[-1], "parameters"))
    if not memory_terms:
        return None
    return ParsedLog("trainer", "Trainer", tuple(memory_terms), memory_saving_flag="--per_device_train_batch_size")


def _read_peaks(log_text: LogText) -> ParsedLog | None:
    """Returns the highest allocator statistics that a trainer printed; None for a log without statistics."""
    log_values = LogValues(log_text, PEAK_PATTERNS)
    for term_prefix, (title, unit_bytes, batch_argument) in PEAK_TERMS.items():
        memory_terms: list[LogTerm] = []
        for group_name in (value_name for value_name in log_values.values if value_name.startswith(f"{term_prefix}_")):
            if unit_bytes:
                sizes_in_bytes = [int(Fraction(size_text) * unit_bytes) for size_text in log_values.values[group_name]]
            else:
                sizes_in_bytes = log_values.byte_sizes(group_name)
            memory_terms.append(LogTerm(group_name.removeprefix(f"{term_prefix}_"), max(sizes_in_bytes)))
        if memory_terms:
            return ParsedLog(title.lower(), title, tuple(memory_terms), memory_saving_flag=batch_argument)
    return None
