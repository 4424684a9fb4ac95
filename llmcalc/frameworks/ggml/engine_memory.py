"""Converts a llama.cpp server's buffers into `EngineMemory`, which all serving engines have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ...costs.quantization.schemes_by_name import DYNAMIC_FILES_DIFFER
from ..engines.engine import HOST_DEVICE, EngineMemory, MemoryTerm
from .encoder import encoder_device
from .server import BufferSizes, GgmlServer
from .settings import GIB, VULKAN_DEVICE


class NoteTexts(NamedTuple):
    """The notes whose texts differ between llama.cpp, ik_llama.cpp and Ollama.

    unquantized_note: on a model whose checkpoint has no number format of ggml; empty for none.
    encoder_note: on a server with an encoder of images whose compute buffer is not counted.
    encoder_start_note: on a server with an encoder whose images may be larger than the warm-up image, with its `side`.
    """

    unquantized_note: str
    encoder_note: str
    encoder_start_note: str


NOTE_TEXTS = NoteTexts(
    "no --quantize: the weights are counted in bf16; a GGUF file as TARGET has its own types",
    "the compute buffer of the encoder of images (--mmproj) is not modelled; it takes more",
    "the compute buffer of the encoder (--mmproj) is for the image at start, {side} x {side} pixels; "
    "it grows with a larger image",
)
"""Texts of notes, in terms of llama-server's flags."""


def engine_memory(
    server: GgmlServer, buffers: BufferSizes, memory_notes: Iterable[str] = (), note_texts: NoteTexts = NOTE_TEXTS
) -> EngineMemory:
    """Returns the memory of a server's devices and host."""
    version_rules, engine_record, model = server.rules, server.engine_record, server.model
    memory_terms = []
    device_names = (*server.devices, HOST_DEVICE)
    tensors_text = "tensors, as llama-quantize chooses their types"
    if model.gguf_file is not None or model.listed_bytes:
        tensors_text = "tensors of the file" if model.gguf_file is not None else "size of the file in Ollama's library"
    for device in device_names:
        memory_terms.append(
            MemoryTerm(
                "model_buffer",
                buffers.model_bytes.get(device, 0),
                "source" if model.substitute_mix is None and server.has_exact_modules_file else "estimate",
                tensors_text,
                _model_origin(server, device),
                device,
            )
        )
    for device in device_names:
        cache_bytes = buffers.cache_bytes.get(device, 0)
        if cache_bytes or device != HOST_DEVICE:
            memory_terms.append(
                MemoryTerm(
                    "kv_buffer", cache_bytes, "source", version_rules.source_location, _cache_origin(server), device
                )
            )
    for device in device_names:
        compute_source = f"{engine_record.compute_logs} logs compared"
        compute_origin = f"graph of {server.micro_batch_tokens:,} tokens"
        if server.encoder_buffers.get(device):
            compute_origin += "; with the encoder's"
        memory_terms.append(
            MemoryTerm(
                "compute_buffer",
                buffers.compute_bytes.get(device, 0),
                "estimate",
                compute_source,
                compute_origin,
                device,
            )
        )
    startup_error = _startup_error(server, buffers)
    total_bytes = sum(buffers.bytes_on(device) for device in device_names)
    request_length = server.longest_request
    return EngineMemory(
        terms=tuple(memory_terms),
        kv_tokens=server.cache_cells,
        block_count=server.cache_cells,
        max_concurrency=float(server.stream_count) if server.stream_count > 1 else server.cache_cells / request_length,
        can_start=not startup_error,
        startup_error=startup_error,
        max_model_len=request_length,
        devices=max(1, len(server.devices)),
        block_size=1,
        assumed_flags=server.assumed_flags,
        settings=server.settings,
        notes=tuple(
            filter(
                None,
                (
                    _wired_limit_note(server, buffers),
                    _context_note(server, buffers) if startup_error else "",
                    server.version.note,
                    *memory_notes,
                    *_server_notes(server, note_texts),
                ),
            )
        ),
        host={
            "ram_bytes": buffers.bytes_on(HOST_DEVICE),
            "disk_bytes": server.file_bytes,
            "mmap": server.is_memory_mapped,
            "share": round(buffers.bytes_on(HOST_DEVICE) / total_bytes, 4) if total_bytes else 0.0,
        },
    )


def _model_origin(server: GgmlServer, device: str) -> str:
    """Returns a text on the weights of a device: their format, and whether draft model or encoder are included."""
    substitute_mix = server.model.substitute_mix
    scheme_text = (server.model.scheme if substitute_mix is None else f"{substitute_mix} for {server.model.scheme}") + (
        f", with {server.draft_server.preset.name} that drafts" if server.draft_server else ""
    )
    if server.modules_file is not None:
        scheme_text += f", with a file of modules that draft in {server.modules_file.quantize}"
    elif server.is_drafting_with_mtp:
        scheme_text += ", with modules that draft"
    if server.encoder_bytes and device == encoder_device(server.flags, server.devices):
        scheme_text += "; with the encoder of images"
    return f"{scheme_text}; with token embeddings" if device == HOST_DEVICE else scheme_text


def _cache_origin(server: GgmlServer) -> str:
    type_names = server.key_type if server.key_type == server.value_type else f"{server.key_type}, {server.value_type}"
    return f"{server.cache_cells:,} cells of {type_names}"


def _startup_error(server: GgmlServer, device_buffers: BufferSizes) -> str:
    """Returns llama.cpp's error message for the first GPU that is too small; empty if everything fits.

    On a processor all buffers are in its memory; what does not fit there is swapped. So it is with the buffers of GPU
    and host where both have one memory.
    """
    host_bytes = device_buffers.bytes_on(HOST_DEVICE)
    if server.hardware.is_processor and host_bytes > server.free_bytes:
        return f"the processor needs {host_bytes / GIB:.2f} GiB and has {server.free_bytes / GIB:.2f} GiB of memory"
    for device in server.devices:
        device_bytes = device_buffers.bytes_on(device)
        if device_bytes > server.free_bytes:
            messages = server.engine_record.messages
            error_text = messages.get(f"no_memory_{device.rstrip('0123456789')}", messages["no_memory"])
            free_gib = server.free_bytes / GIB
            return f"{error_text}: {device} needs {device_bytes / GIB:.2f} GiB and has {free_gib:.2f} GiB free"
    total_bytes = sum(device_buffers.bytes_on(device) for device in (*server.devices, HOST_DEVICE))
    memory_bytes = server.hardware.memory_bytes
    if server.hardware.unified_memory and total_bytes > memory_bytes:
        return f"GPU and host need {total_bytes / GIB:.2f} GiB and have {memory_bytes / GIB:.2f} GiB of memory in all"
    return ""


def _wired_limit_note(server: GgmlServer, buffers: BufferSizes) -> str:
    """Returns a note for Macs on which a higher GPU memory limit lets the server start; empty for others.

    server: a server whose buffers are placed. buffers: the sizes of its buffers.
    """
    needed_gpu_bytes = max((buffers.bytes_on(device) for device in server.devices), default=0)
    needed_bytes = sum(buffers.bytes_on(device) for device in (*server.devices, HOST_DEVICE))
    memory_bytes, limit_bytes = server.hardware.memory_bytes, server.hardware.capacity_bytes
    limit_mib = server.hardware.wired_limit_mib(needed_gpu_bytes, needed_bytes - needed_gpu_bytes)
    if limit_mib is None:
        return ""
    older_macos_limit = memory_bytes * 2 // 3 if memory_bytes <= 32 * GIB else memory_bytes * 3 // 4
    if needed_gpu_bytes > server.free_bytes:
        return (
            f"macOS lets the GPU use {limit_bytes / GIB:.2f} GiB by default: "
            f"sudo sysctl iogpu.wired_limit_mb={limit_mib} would let it start"
        )
    if server.hardware.like is None and needed_gpu_bytes > older_macos_limit - server.reserved_bytes:
        return (
            f"macOS before 26: sudo sysctl iogpu.wired_limit_mb={limit_mib} (default {older_macos_limit / GIB:.2f} GiB)"
        )
    return ""


SMALL_GPU_CONTEXTS = 8
"""Largest memory of a small GPU, in CUDA contexts of large ones (4 GiB)."""


def _context_note(server: GgmlServer, buffers: BufferSizes) -> str:
    """Returns a note that a GPU may suffice because small GPUs have a smaller CUDA context; empty if not needed."""
    needed_on_gpu = max((buffers.bytes_on(device) for device in server.devices), default=server.hardware.memory_bytes)
    is_small_gpu = server.hardware.capacity_bytes <= SMALL_GPU_CONTEXTS * server.cuda_context_bytes
    if not is_small_gpu or needed_on_gpu > server.free_bytes + server.cuda_context_bytes:
        return ""
    return (
        f"{server.engine_record.context.mib} MiB are counted for CUDA's context, as on large GPUs; a small one takes "
        "less and may start it (a GeForce 940M had 948 of 1,024 MiB free)"
    )


def _server_notes(server: GgmlServer, note_texts: NoteTexts) -> list[str]:
    """Returns notes on the weights, cache and default flags of a server."""
    server_remarks = []
    if server.model.substitute_mix is not None:
        server_remarks.append(
            f"Unsloth chooses the types of its dynamic files tensor by tensor: counted as "
            f"{server.model.substitute_mix}; "
            f"files of Qwen3.8 27B have {DYNAMIC_FILES_DIFFER}. The .gguf file as TARGET or with -m is exact"
        )
    if server.model.gguf_file is None and server.model.scheme == "bf16":
        server_remarks.append(note_texts.unquantized_note)
    if not server.has_exact_modules_file:
        file_gib = sum(tensor.nbytes for tensor in server.module_tensors) / GIB
        server_remarks.append(
            f"the file of modules that draft is counted as llama-quantize makes it, {file_gib:.2f} GiB; published "
            "files in 4 bits have other mixes too, some a third smaller"
        )
    if server.encoder_bytes and server.flags.get("mmproj_auto"):
        server_remarks.append("the encoder beside -hf is counted in F16; --no-mmproj leaves it out")
    if server.encoder_bytes and server.encoder_shape is None:
        server_remarks.append(note_texts.encoder_note)
    elif server.encoder_shape is not None and not server.encoder_shape.is_largest_image:
        server_remarks.append(note_texts.encoder_start_note.format(side=server.encoder_shape.image_side))
    elif not server.encoder_bytes and server.preset.model.towers and server.flags.get("mmproj_auto") is not False:
        server_remarks.append(
            "the encoder of images (--mmproj) is a file of its own and is not counted; llama-server -hf loads it too: "
            "--mmproj F16 counts it"
        )
    if any(layer.compressed_caches or layer.index_width for layer in server.model.layers):
        server_remarks.append(
            "the graph of an indexer or of compressed entries is not modelled: compute buffers take more"
        )
    if any(device.startswith(VULKAN_DEVICE) for device in server.devices):
        server_remarks.append(
            "compute buffers are those of CUDA's graph; Vulkan's differ by build and driver (some hold more)"
        )
    if server.is_memory_mapped and not server.is_memory_locked:
        server_remarks.append("the host's model buffer is mapped from the file (mmap): the system may drop its pages")
    return server_remarks
