"""Reads logs of llama.cpp and ik_llama.cpp (load_tensors, llama_kv_cache, llama_context) and Ollama.

Buffers of recurrent states (`RS`) count as cache, as they do where they are computed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..logs.log_contents import MEMORY_AMOUNT, LogTerm, LogValues, ParsedLog, line_pattern, parse_bytes
from ..logs.log_text import LogText

_BUFFER_SIZE = re.compile(
    r"\b(?P<device>[A-Za-z][A-Za-z0-9_]{0,30}) +(?P<kind>model |KV |RS |compute |output |)buffer size *= *"
    rf"(?P<size>{MEMORY_AMOUNT})"
)
_OLLAMA_BUFFER = re.compile(
    r'msg="(?P<kind>model weights|kv cache|compute graph)" (?:device|buffer|backend)='
    r'"?(?P<device>[A-Za-z][A-Za-z0-9_]{0,30})"? (?:buffer_type=[A-Za-z0-9_]{1,30} )?'
    rf'size="(?P<size>{MEMORY_AMOUNT})'
)
_OLLAMA_NAMES = {"model weights": "model_buffer", "kv cache": "kv_buffer", "compute graph": "compute_buffer"}
_TERM_NAMES = {"model": "model_buffer", "": "model_buffer", "KV": "kv_buffer", "RS": "kv_buffer"}

PATTERNS = (
    line_pattern("general.name", r"general\.name +(?:str +)?= (?P<model>.{1,200})"),
    line_pattern("n_ctx ", r"n_ctx += (?P<ctx_size>[0-9]{1,12})"),
    line_pattern("n_batch ", r"n_batch += (?P<batch_size>[0-9]{1,12})"),
    line_pattern("n_ubatch ", r"n_ubatch += (?P<ubatch_size>[0-9]{1,12})"),
    line_pattern("n_seq_max ", r"n_seq_max += (?P<parallel>[0-9]{1,4})\b"),
    line_pattern("kv_unified ", r"kv_unified += (?P<kv_unified>true|false)\b"),
    line_pattern("flash_attn ", r"flash_attn += (?P<flash_attn>[a-z0-9]{1,9})\b"),
    line_pattern("build", r"build(?:_info)?(?:: | = )b?(?P<build>[0-9]{4,6})\b"),
    # ik_llama.cpp
    line_pattern("mla_attn ", r"mla_attn += (?P<mla_use>[0-3])\b"),
    line_pattern("attn_max_b ", r"attn_max_b += (?P<attention_max_batch>[0-9]{1,6})\b"),
    line_pattern("fused_moe ", r"fused_moe += (?P<fused_moe>[01])\b"),
    line_pattern("offloaded ", r"offloaded (?P<n_gpu_layers>[0-9]{1,6})/"),
    line_pattern("ftype ", r"ftype += (?P<file_type>[A-Z][A-Z0-9_]{1,12}(?: - [A-Z])?)"),
    line_pattern("file type ", r"file type += (?P<file_type>[A-Z][A-Z0-9_]{1,12}(?: - [A-Z])?)"),
    line_pattern("Device 0: ", r"Device 0: (?P<gpu>[^,]{1,80}),"),
    line_pattern(", VRAM: ", r": (?P<vram>[0-9]{3,9} MiB)"),
    line_pattern("found ", r"found (?P<devices>[0-9]{1,3}) [A-Za-z]{2,9} devices"),
    line_pattern("llama_kv_cache: size = ", rf"size = +(?P<layers_cache>{MEMORY_AMOUNT})"),
    line_pattern("KV self size ", rf"size += +(?P<layers_cache>{MEMORY_AMOUNT})"),
    line_pattern("K (", r"K \((?P<key_format>[a-z0-9_]{1,10})\).{0,40}V \((?P<value_format>[a-z0-9_]{1,10})\)"),
    line_pattern("out of memory", r"(?P<stop>out of memory)"),
    line_pattern("failed to allocate", r"(?P<stop>failed to allocate)"),
    line_pattern("allocating ", rf"allocating (?P<requested>{MEMORY_AMOUNT}) on device"),
    line_pattern(
        "model requires more system memory",
        rf"(?P<stop>more system memory) \((?P<requested>{MEMORY_AMOUNT})\) than is available"
        rf"(?: \((?P<free>{MEMORY_AMOUNT})\))?",
    ),
    line_pattern(" buffer of size ", r"size (?P<requested_bytes>[0-9]{4,18})\b"),
    # Ollama
    line_pattern("memory.weights.total=", rf'="(?P<model_buffer>{MEMORY_AMOUNT})'),
    line_pattern("memory.required.kv=", rf'="(?P<kv_buffer>{MEMORY_AMOUNT})'),
    line_pattern("memory.graph.full=", rf'="(?P<compute_buffer>{MEMORY_AMOUNT})'),
    line_pattern(" KvSize:", r":(?P<ctx_size>[0-9]{1,12})"),
    line_pattern(" BatchSize:", r":(?P<ubatch_size>[0-9]{1,12})"),
    line_pattern(" Parallel:", r":(?P<parallel>[0-9]{1,4})\b"),
    line_pattern("--parallel ", r"parallel (?P<parallel>[0-9]{1,4})\b"),
    line_pattern(" architecture=", r'file_type="?(?P<file_type>[A-Z][A-Z0-9_]{1,12})\b'),
    line_pattern(" architecture=", r' name="?(?P<model>[^"=]{2,200}?)"? description='),
    line_pattern("--ctx-size ", r"size (?P<ctx_size>[0-9]{1,12})"),
    line_pattern("clip_model_loader: model size:", rf"size: +(?P<encoder>{MEMORY_AMOUNT})"),
    line_pattern("CLIP using ", r"using (?P<encoder_device>[A-Za-z][A-Za-z0-9_]{0,30}) backend"),
    line_pattern("ollama", r"(?P<ollama>ollama)"),
    line_pattern("model requires more system memory", r"(?P<ollama>model)"),
)

LOGGED_FLAGS = ("ctx_size", "batch_size", "ubatch_size", "n_gpu_layers", "parallel")
"""Flags whose values llama.cpp's logs print."""

LOGGED_IK_FLAGS = ("mla_use", "attention_max_batch", "fused_moe")
"""Flags of ik_llama.cpp whose values only its logs print."""

FAILURE_TEXTS = {
    "compute_buffer": ("failed to allocate compute",),
    "kv_buffer": ("failed to allocate buffer for kv cache",),
    "model_buffer": ("error loading model: unable to allocate", "unable to allocate backend buffer"),
}
"""Name of a buffer → parts of the messages printed when the buffer cannot be allocated."""

STOP_HINTS = ("out of memory", "failed to allocate", "requires more system memory")
"""Parts of the line that a program prints before it stops for lack of memory."""

BUFFER_FLAGS = {"compute_buffer": "--ubatch-size", "model_buffer": "--n-gpu-layers"}
OLLAMA_OPTIONS = {"compute_buffer": "num_batch", "model_buffer": "num_gpu"}
"""Name of a buffer → Ollama's option that changes its size. The cache's size follows the context length."""

OLLAMA_PLAN_NOTE = (
    "msg=offload is what Ollama reckoned before it loaded the model: its weights lack the input embedding and have the "
    "cache in some versions, and its graphs are a rule of thumb; the cache is compared"
)
"""Note that explains the numbers of Ollama's own memory plan."""

MAX_DEVICES = 16
"""Largest number of devices in a log over which layers are divided."""

FLASH_ATTENTION_VALUES = {"1": "on", "enabled": "on", "0": "off", "disabled": "off"}
"""Value of `flash_attn` in a log → value of the flag."""

LONGEST_PREFIX = 600
"""Number of characters at the start of a line in which a buffer's name is searched."""

PLAIN_FORMATS = {"f16": "float16", "f32": "float32", "bf16": "bfloat16"}
"""Unquantized number format of the cache, as a log names it → torch's name."""


def read_log(log_text: LogText) -> ParsedLog | None:
    """Returns the buffer sizes that llama.cpp or Ollama printed in a log; None for a log without buffer sizes."""
    log_values = LogValues(log_text, PATTERNS, _is_slot_line)
    buffer_sizes = _buffer_sizes(log_text)
    memory_terms = tuple(
        LogTerm(term_name, buffer_bytes, device=device) for (term_name, device), buffer_bytes in buffer_sizes.items()
    )
    if not memory_terms and "layers_cache" in log_values:  # an excerpt; full layers and those with a window
        memory_terms = (LogTerm("kv_buffer", sum(log_values.byte_sizes("layers_cache"))),)
    has_planned_sizes = not memory_terms
    is_ollama = has_planned_sizes or "ollama" in log_values
    if has_planned_sizes:
        buffer_names = ("model_buffer", "kv_buffer", "compute_buffer")
        memory_terms = tuple(
            LogTerm(buffer_name, log_values.byte_sizes(buffer_name)[-1])
            for buffer_name in buffer_names
            if buffer_name in log_values
        )
    if is_ollama:
        memory_terms = tuple(_with_encoder(memory_term, log_values) for memory_term in memory_terms)
    is_out_of_memory = "stop" in log_values
    requested_bytes = log_values.last_size("requested") or next(
        iter(log_values.whole_numbers("requested_bytes")[-1:]), 0
    )
    if is_out_of_memory and requested_bytes:
        is_ollama = "ollama" in log_values
        memory_terms = (*memory_terms, LogTerm("requested", requested_bytes))
        free_bytes = log_values.last_size("free")
        if free_bytes:
            memory_terms = (*memory_terms, LogTerm("free", free_bytes))
    if not memory_terms:
        return None
    failed_buffer = ""
    if is_out_of_memory:
        failed_buffer = next(
            (
                buffer_name
                for buffer_name, failure_hints in FAILURE_TEXTS.items()
                if log_text.lines_with(*failure_hints)
            ),
            "",
        )
        failed_buffer = failed_buffer or _largest_buffer(memory_terms)
    cache_formats = {
        PLAIN_FORMATS.get(log_values.last_text(buffer_name), "") for buffer_name in ("key_format", "value_format")
    }
    is_ik_fork = not is_ollama and any(term_name in log_values for term_name in LOGGED_IK_FLAGS)
    program_name = "ollama" if is_ollama else "ik_llama.cpp" if is_ik_fork else "llama.cpp"
    build_text = "" if is_ollama else log_values.last_text("build")
    return ParsedLog(
        program=program_name,
        title="Ollama" if is_ollama else program_name,
        terms=memory_terms,
        kind="oom" if is_out_of_memory else "startup",
        version=f"b{build_text}" if build_text and not is_ik_fork else build_text,
        model=log_values.last_text("model"),
        device=log_values.last_text("gpu"),
        total_bytes=next(iter(_device_memory_sizes(log_values)), None),
        flags=_ollama_flags(log_values) if is_ollama else _llama_server_flags(log_values, memory_terms),
        scheme=log_values.last_text("file_type").lower().replace(" - ", "_"),
        stop_message=next((log_line.strip() for log_line in log_text.lines_with(*STOP_HINTS)), ""),
        note=OLLAMA_PLAN_NOTE if has_planned_sizes and memory_terms else "",
        too_large_term=failed_buffer,
        suggested_flag=(OLLAMA_OPTIONS if is_ollama else BUFFER_FLAGS).get(
            failed_buffer, "num_ctx" if is_ollama else "--ctx-size"
        )
        if is_out_of_memory
        else "",
        memory_saving_flag="num_ctx" if is_ollama else "--ctx-size",
        cache_tokens=max(log_values.whole_numbers("ctx_size"), default=0),
        cache_dtype=cache_formats.pop() if len(cache_formats) == 1 else "",
    )


def _is_slot_line(log_line: str) -> bool:
    """Whether a line is about one server slot, which has only a part of the server's context."""
    return _SLOT_LINE.search(log_line[:LONGEST_PREFIX]) is not None


_SLOT_LINE = re.compile(r"\bslot +\w+: +id ")


def _device_memory_sizes(log_values: LogValues) -> list[int]:
    """Returns the memory of each device in bytes, from the log's last list of devices; empty if there is none."""
    device_bytes = log_values.byte_sizes("vram")
    return device_bytes[-min(len(device_bytes), max(1, int(log_values.last_text("devices") or 1))) :]


def _llama_server_flags(log_values: LogValues, memory_terms: Sequence[LogTerm]) -> dict[str, str]:
    """Returns the flags of llama-server that the log states, with the cache's number formats.

    An excerpt without the list of devices has those of its buffers (CUDA0, CUDA1, …).

    Layers are divided over several devices by their memory, which stands for what of it was free.
    """
    numbered_devices = {term.device for term in memory_terms if re.fullmatch(r"[A-Za-z]+[0-9]{1,3}", term.device or "")}
    device_count = int(log_values.last_text("devices") or len(numbered_devices) or 1)
    device_bytes = _device_memory_sizes(log_values)
    if len(device_bytes) == device_count:
        tensor_split = [str(buffer_bytes >> 20) for buffer_bytes in device_bytes]
    else:
        tensor_split = ["1"] * device_count
    flags = {"tensor_split": ",".join(tensor_split)} if 1 < device_count <= MAX_DEVICES else {}
    flags |= log_values.stated_numbers(*LOGGED_FLAGS, *LOGGED_IK_FLAGS, "kv_unified")
    if "fused_moe" in flags:
        flags["fused_moe"] = {"0": "false", "1": "true"}[flags["fused_moe"]]
    if log_values.last_text("flash_attn") in FLASH_ATTENTION_VALUES:
        flags["flash_attn"] = FLASH_ATTENTION_VALUES[log_values.last_text("flash_attn")]
    for group_name, flag_field in (("key_format", "cache_type_k"), ("value_format", "cache_type_v")):
        if group_name in log_values:
            flags[flag_field] = log_values.last_text(group_name)
    return flags


def _ollama_flags(log_values: LogValues) -> dict[str, str]:
    """Returns Ollama's options from the log, where all requests share the context equally."""
    parallel_requests = max(1, int(log_values.last_text("parallel") or 1))
    option_texts = {
        "num_batch": log_values.last_text("ubatch_size"),
        "OLLAMA_NUM_PARALLEL": log_values.last_text("parallel"),
    }
    if "ctx_size" in log_values:
        option_texts["num_ctx"] = str(int(log_values.last_text("ctx_size")) // parallel_requests)
    return {option_name: option_text for option_name, option_text in option_texts.items() if option_text}


def _with_encoder(memory_term: LogTerm, log_values: LogValues) -> LogTerm:
    """Returns the term of a device's model buffer plus the image encoder that Ollama's log lists separately."""
    if (memory_term.name, memory_term.device) != ("model_buffer", log_values.last_text("encoder_device")):
        return memory_term
    return memory_term._replace(value=memory_term.value + (log_values.last_size("encoder") or 0))


def _largest_buffer(memory_terms: Sequence[LogTerm]) -> str:
    """Returns the name of the largest buffer that llama.cpp's flags can shrink: the cache or the compute buffer."""
    changeable_terms = [
        memory_term for memory_term in memory_terms if memory_term.name in ("kv_buffer", "compute_buffer")
    ] or list(memory_terms)
    return max(changeable_terms, key=lambda memory_term: memory_term.value).name


def _buffer_sizes(log_text: LogText) -> dict[tuple[str, str], int]:
    """Returns (buffer name, device) → bytes. A recreated context replaces its buffers."""
    bytes_by_buffer: dict[tuple[str, str], int] = {}
    for log_line in log_text.lines_with(*(f'msg="{buffer_kind}"' for buffer_kind in _OLLAMA_NAMES)):
        buffer_match = _OLLAMA_BUFFER.search(log_line[:LONGEST_PREFIX])
        if buffer_match is not None:
            bytes_by_buffer[_OLLAMA_NAMES[buffer_match["kind"]], buffer_match["device"]] = parse_bytes(
                buffer_match["size"]
            )
    for log_line in log_text.lines_with("n_ctx ", "buffer size"):
        if "n_ctx " in log_line and "=" in log_line and not _is_slot_line(log_line):
            bytes_by_buffer = {
                known_key: buffer_bytes
                for known_key, buffer_bytes in bytes_by_buffer.items()
                if known_key[0] == "model_buffer"
            }
        if "buffer size" not in log_line:
            continue
        buffer_match = _BUFFER_SIZE.search(log_line[:LONGEST_PREFIX])
        if buffer_match is None:
            continue
        buffer_kind = buffer_match["kind"].strip()
        buffer_key = (
            _TERM_NAMES.get(buffer_kind, "compute_buffer" if buffer_kind == "compute" else "output_buffer"),
            buffer_match["device"],
        )
        buffer_bytes = parse_bytes(buffer_match["size"])
        # full layers, layers with a window, and recurrent states
        adds_to_buffer = buffer_key[0] == "kv_buffer" and buffer_key in bytes_by_buffer
        bytes_by_buffer[buffer_key] = bytes_by_buffer[buffer_key] + buffer_bytes if adds_to_buffer else buffer_bytes
    return bytes_by_buffer
