"""The notes of `llmcalc memory`: the run in words, the evidence for each memory term, and the uncounted tensors."""

from __future__ import annotations

from .. import units
from ..accelerator import Hardware, MemoryFit
from ..components.base import TokenMixer
from ..components.evidence import nested_components
from ..costs.adapter_targets import has_weight_read_by_scan, linear_layers
from ..device_memory.device_memory import DeviceMemory, MemoryTerm
from ..device_memory.estimate import Memory
from ..device_memory.settings import SERVING_PHASES
from ..device_memory.simulated_run import cache_block_tokens, optimizer_implementation, prompt_chunk
from ..device_memory.static import StaticMemory
from ..errors import InputError
from ..optional import TOWERS
from ..sources.preset import Preset
from ..sources.presets import LIBRARY_ENGINE, is_library_tag
from ..workload.execution import AttentionImplementation
from ..workload.lora import SCAN_OUTPUT_PROJECTION
from .memory_data import execution_data, uncounted_tensors_note
from .notes import binary_unit_note, counted_noun, gguf_tag_notes, relative_error_text

STATUS_TEXTS = {
    "exact": "equal to the byte to torch",
    "source": "from the source code of a library, not run",
    "estimate": "estimate",
}
"""Verification status of a term → its text in a note; untested terms have a warning instead."""

ZERO_BYTES_PER_PARAMETER = 16
"""Bytes per parameter of mixed-precision training with Adam: ZeRO, arXiv:1910.02054, §3.1."""

TERM_NAMES = {"free blocks": "fragmentation"}
"""Name of a memory term → its name in tables, if different."""


def displayed_term_name(memory_term: MemoryTerm) -> str:
    """Returns the displayed name of a memory term."""
    return TERM_NAMES.get(memory_term.name, memory_term.name)


def run_text(memory_use: StaticMemory) -> str:
    """Returns a run's phase, tokens and precision or adapters as text: `training of 2,048 tokens (bf16-master)`."""
    workload = memory_use.workload
    batch_text = "" if workload.batch == 1 else f"{workload.batch:,} × "
    weights_text = _adapters_text(memory_use) or memory_use.precision
    precision_text = f" ({weights_text})" if weights_text else ""
    preposition = "after" if memory_use.phase == "decode" else "of"
    return f"{memory_use.phase} {preposition} {batch_text}{counted_noun(workload.seq, 'token')}{precision_text}"


def _adapters_text(memory_use: StaticMemory) -> str:
    """Returns a text on the low-rank adapters and the format of the frozen weights, empty without adapters."""
    adapters = memory_use.adapters
    if adapters is None:
        return ""
    return f"{'DoRA' if adapters.has_dora_magnitudes else 'LoRA'} of rank {adapters.rank}" + (
        f" on {adapters.base_format}" if adapters.base_format != "none" else ""
    )


PRECISION_TEXTS = {
    "bf16": "pure bf16",
    "bf16-master": "bf16 with fp32 master weights",
    "fp16": "pure fp16",
    "fp16-master": "fp16 with fp32 master weights",
    "autocast": "autocast to bf16",
    "fp8": "fp8 products, fp32 master weights",
    "mxfp8": "mxfp8 products, fp32 master weights",
    "nvfp4": "nvfp4 products, fp32 master weights",
}
"""Training precision → its text in a heading."""


def settings_text(run_memory: Memory, attention_kernel: AttentionImplementation) -> str:
    """Returns a run and its assumed settings as text: `training of 2,048 tokens: sdpa, fused adamw, pure bf16`."""
    memory_use = run_memory.states
    if memory_use.phase != "training":
        return run_text(memory_use)
    precision_text = _adapters_text(memory_use) or PRECISION_TEXTS.get(memory_use.precision or "", memory_use.precision)
    optimizer_state, optimizer_kernel = memory_use.optimizer, optimizer_implementation(run_memory.settings, memory_use)
    optimizer_text = "" if optimizer_state is None else f"{optimizer_kernel} {optimizer_state.name}"
    run_title = run_text(memory_use).partition(" (")[0]
    quantization_scheme = run_memory.settings.fake_quantize
    rounding_text = "" if quantization_scheme is None else f"fake quantization {quantization_scheme}"
    trained_layers = run_memory.settings.trainable_layers
    trained_layers_text = "" if trained_layers is None else f"the last {counted_noun(trained_layers, 'layer')} alone"
    setting_texts = (attention_kernel, optimizer_text, precision_text, trained_layers_text, rounding_text)
    return f"{run_title}: " + ", ".join(setting_text for setting_text in setting_texts if setting_text)


def untested_notes(device: DeviceMemory) -> list[str]:
    """Returns one warning per memory measurement that does not exist, with the memory terms that depend on it."""
    terms_by_reason: dict[str, list[str]] = {}
    for memory_term in device.terms:
        if memory_term.status == "untested":
            terms_by_reason.setdefault(memory_term.witness, []).append(memory_term.name)
    return [
        f"untested: {', '.join(term_names)} ({missing_measurement})"
        for missing_measurement, term_names in terms_by_reason.items()
    ]


def stored_weights_notes(preset: Preset, memory_use: StaticMemory) -> list[str]:
    """Returns a warning if training is counted in a format other than the format of the checkpoint's weights."""
    quantization_method = str((preset.storage_table or {}).get("quant_method", ""))[:40]
    frozen_base = "none" if memory_use.adapters is None else memory_use.adapters.base_format
    if (
        memory_use.phase != "training"
        or not quantization_method
        or quantization_method in (*CONVERTED_METHODS, "bitsandbytes")
    ):
        return []
    if frozen_base != "none":
        return [
            f"the checkpoint is quantized by {quantization_method}; its frozen weights are counted as {frozen_base}, "
            "which differs in scales"
        ]
    return [
        f"the checkpoint is quantized by {quantization_method}; its training is counted over {memory_use.dtype} weights"
    ]


CONVERTED_METHODS = ("fp8", "mxfp4")
"""Methods of checkpoints whose weights trainers convert to 16 bits (transformers' `Mxfp4Config(dequantize=True)`)."""


def host_notes(device: DeviceMemory, rank_count: int = 1) -> list[str]:
    """Returns a note on the terms of host memory, with bytes and sources; empty without such terms.

    rank_count: the ranks per host, each with these terms; default 1.
    """
    if not device.host_terms:
        return []
    terms_text = ", ".join(f"{units.memory(memory_term.bytes)} {memory_term.name}" for memory_term in device.host_terms)
    term_sources = dict.fromkeys(
        f"{STATUS_TEXTS.get(host_term.status, host_term.status)} ({host_term.witness})"
        for host_term in device.host_terms
    )
    ranks_note = f"; each of {rank_count} ranks has as much" if rank_count > 1 else ""
    return [f"host: {terms_text}{ranks_note}; {'; '.join(term_sources)}"]


def has_fragmented_segments(run_memory: Memory) -> bool:
    """Whether the allocator's segments reserve over 2 % more than the peak, which expandable segments would avoid."""
    device_memory = run_memory.device
    return (
        not run_memory.cuda_runtime.has_expandable_segments
        and 50 * (device_memory.reserved_bytes - device_memory.peak_bytes) > device_memory.peak_bytes
    )


def _experts_note(run_memory: Memory) -> str:
    """Returns a note on unquantized routed experts in a model with frozen weights of 4 or 8 bits; else empty."""
    settings = run_memory.settings
    if settings.base in (None, "none") or settings.quantized_experts or not run_memory.spec.has_experts:
        return ""
    if not settings.keeps_experts_in_16_bits:
        return (
            "routed experts are counted in 16 bits, as in transformers' fused tensors; in 8 bits they are not modelled"
        )
    return (
        "routed experts stay in 16 bits: transformers holds them in fused tensors, which bitsandbytes does not "
        "convert; --quantized-experts counts them in 4 bits, as axolotl's quantize_moe_experts"
    )


def llama_cpp_note(
    run_memory: Memory, target: str, hardware: Hardware | None, engine_fit: MemoryFit | None = None
) -> str:
    """Returns a note if `fit` counts the buffers of llama.cpp, for a GGUF file or for an accelerator; else empty.

    hardware: the accelerator, if a single one was named. engine_fit: the verdict by these buffers; default unknown.
    """
    if run_memory.settings.phase not in SERVING_PHASES or run_memory.spec.kind != "decoder":
        return ""
    runs_llama_cpp = run_memory.has_gguf_weights
    if hardware is not None:
        from ..studies.decoding import LLAMA_CPP_STACK, usual_stack

        runs_llama_cpp = usual_stack(hardware, run_memory) == LLAMA_CPP_STACK
    if not runs_llama_cpp:
        return ""
    engine_name = LIBRARY_ENGINE if is_library_tag(target) else "llama.cpp"
    if engine_fit is None:
        return f"llama.cpp's buffers are others: llmcalc fit, and --engine {engine_name}, count them"
    return f"required: llama.cpp's buffers, as llmcalc fit has them; --engine {engine_name} lists them"


def _notes_on_scans(memory_use: StaticMemory) -> list[str]:
    """Returns notes on adapters or quantization of a projection whose weight the state-space scan reads directly."""
    adapters, parameter_count = memory_use.adapters, memory_use.parameter_count
    if adapters is None or not any(
        has_weight_read_by_scan(node_position)
        for node_position, _ in linear_layers(parameter_count.tree, parameter_count.include)
    ):
        return []
    notes = []
    if SCAN_OUTPUT_PROJECTION in adapters.target_names:
        notes.append(
            f"the adapter of {SCAN_OUTPUT_PROJECTION} has no gradient, since the kernel of the scan reads the weight "
            f"itself; PEFT raises an error for {SCAN_OUTPUT_PROJECTION} in target_modules of Falcon-H1, Mamba and "
            "Nemotron-H"
        )
    if adapters.base_format != "none":
        notes.append(
            f"{SCAN_OUTPUT_PROJECTION} is counted in 16 bits, since the kernel of the scan reads the weight itself: "
            "llm_int8_skip_modules has to name it"
        )
    return notes


def uncounted_memory_notes(preset: Preset, run_memory: Memory, *, has_engine_buffers: bool) -> list[str]:
    """Returns notes on uncounted modules and tensors, or that the vision encoder of a GGUF tag is counted.

    has_engine_buffers: whether bytes are those of an engine's buffers, with the encoder of the tag.
    """
    uncounted_texts = uncounted_tensors_note(run_memory.states)
    if has_engine_buffers and is_library_tag(preset.target):
        from ..frameworks.engines.registry import engine

        flags_of_tag = engine(LIBRARY_ENGINE).tag_flags
        uncounted_texts = [text for text in uncounted_texts if not text.startswith(TOWERS.name)]
        if flags_of_tag is not None and "mmproj" in flags_of_tag(preset):
            return ["with the encoder of images or sound, which comes with the tag"]
    return [f"not counted: {'; '.join(uncounted_texts)}"] if uncounted_texts else []


def memory_notes(
    preset: Preset, run_memory: Memory, assumed_accelerator: str, engine_note: str, *, has_engine_buffers: bool = False
) -> list[str]:
    """Returns the notes of a memory answer. Last two parameters: see `llama_cpp_note`, `uncounted_memory_notes`."""
    memory_use, run_settings = run_memory.states, run_memory.settings
    notes = [_pure_bf16_note(run_memory), _experts_note(run_memory), _execution_note(run_memory)]
    if run_settings.has_kbit_base and run_settings.recompute == "full":
        notes.append(
            f"with --base {run_settings.base} every layer is recomputed by default, as by PEFT's "
            "prepare_model_for_kbit_training; --recompute none counts it without"
        )
    notes += _notes_on_scans(memory_use)
    flash_attention_bytes = run_memory.flash_bytes
    if flash_attention_bytes is not None and flash_attention_bytes < run_memory.device.device_bytes:
        notes.append(
            "eager attention computes all scores; --attn-implementation flash requires "
            f"{units.memory(flash_attention_bytes)}"
        )
    if (
        run_settings.phase == "training"
        and run_settings.attn_implementation is None
        and run_memory.attention == "eager"
    ):
        notes.append(
            "counted with eager attention: scaled_dot_product_attention takes no sinks and no soft cap, and biases and "
            "selections per head are not modelled with it"
        )
    if run_settings.phase == "training" and has_fragmented_segments(run_memory):
        notes.append(
            "fragmentation: segments of freed activations too small for the optimizer's tensors stay reserved; "
            "--allocator expandable reuses them"
        )
    notes[:0] = [*gguf_tag_notes(preset, run_settings.quantize), engine_note, concatenation_note(run_memory)]
    notes.append(_kernels_note(run_memory))
    notes += [
        *uncounted_memory_notes(preset, run_memory, has_engine_buffers=has_engine_buffers),
        binary_unit_note(units.GIB),
    ]
    notes += host_notes(run_memory.device)
    terms_with_status = [
        memory_term for memory_term in run_memory.device.terms if memory_term.bytes and memory_term.status != "untested"
    ]
    notes += [
        f"{STATUS_TEXTS[memory_term.status]}: {displayed_term_name(memory_term)} ({memory_term.witness})"
        for memory_term in terms_with_status
    ]
    if assumed_accelerator:
        notes.append(f"runtime of an {assumed_accelerator} (--hardware)")
    if memory_use.quantized_size is not None:
        notes += memory_use.quantized_size.scheme.notes()
    elif units.dtype(preset.dtype) != memory_use.dtype:
        notes.append(
            f"published in {units.short_dtype(preset.dtype)}, counted in {units.short_dtype(memory_use.dtype)}"
        )
    if memory_use.kv_dtype:
        notes += [
            _cache_note(memory_use, cache_block_tokens(run_settings, memory_use)),
            _chunked_prefill_note(run_memory),
        ]
    return notes + (_training_notes(memory_use) if memory_use.phase == "training" else [])


def concatenation_note(run_memory: Memory) -> str:
    """Returns a note on the free blocks that a KV cache leaves as it grows by concatenation; empty for other runs."""
    memory_use = run_memory.states
    is_cache_concatenated = bool(memory_use.kv_dtype) and not cache_block_tokens(run_memory.settings, memory_use)
    if run_memory.settings.phase != "decode" or not is_cache_concatenated or not has_fragmented_segments(run_memory):
        return ""
    free_bytes = run_memory.device.reserved_bytes - run_memory.device.peak_bytes
    return (
        f"fragmentation: {units.memory(free_bytes)}, since torch concatenates each layer's cache with a token into a "
        "new tensor; a server pages its cache, which --kv-block 16 or the default --phase inference counts"
    )


def _pure_bf16_note(run_memory: Memory) -> str:
    """Returns a text on the tensors that pure bf16 stores in 16 bits, empty for other precisions."""
    if run_memory.states.precision != "bf16-master":
        return ""
    try:
        pure_bf16_bytes = run_memory.with_changes(precision="bf16").states.total_bytes
    except InputError:
        return ""
    saved_bytes = run_memory.states.total_bytes - pure_bf16_bytes
    return (
        "in pure bf16, as transformers trains a bf16 checkpoint, weights, gradients and states are "
        f"{units.memory(pure_bf16_bytes)}, {units.memory(saved_bytes)} less (--precision bf16)"
    )


def _execution_note(run_memory: Memory) -> str:
    """Returns a note on the kernels with which a run is counted, each with the option that changes it."""
    execution_entry = execution_data(run_memory)
    kernel_texts = [
        f"{run_memory.attention} attention (--attn-implementation)",
        f"{execution_entry['norm']} norms (--norm)",
    ]
    if run_memory.settings.phase == "training":
        kernel_texts.append(f"{execution_entry['cross_entropy']} cross-entropy (--cross-entropy)")
        kernel_texts.append(f"recompute {execution_entry['recompute']} (--recompute)")
        if execution_entry["dropout"]:
            dropouts_text = ", ".join(
                f"{probability:g} ({dropout_place})"
                for dropout_place, probability in execution_entry["dropout"].items()
            )
            kernel_texts.append(f"dropout {dropouts_text} (--dropout)")
        kernel_texts.append(f"{execution_entry['optimizer']} {execution_entry['optimizer_impl']} (--optimizer-impl)")
    return f"runs with {', '.join(kernel_texts)}"


def _kernels_note(run_memory: Memory) -> str:
    """Returns a note on the packages whose kernels are assumed for recurrent layers; empty without recurrent layers."""
    if run_memory.settings.phase == "decode":
        return ""
    mixers = (model_part for model_part in nested_components(run_memory.spec) if isinstance(model_part, TokenMixer))
    kernel_packages = list(
        dict.fromkeys(kernel_package for mixer in mixers for kernel_package in mixer.kernel_packages)
    )
    if not kernel_packages:
        return ""
    return (
        f"recurrent layers are counted with the kernels of {' and '.join(kernel_packages)}; where they are not "
        "installed, transformers runs loops of torch, which took up to 2.1 times as much on an H200"
    )


def _chunked_prefill_note(run_memory: Memory) -> str:
    """Returns a note on the chunk length of a chunked prefill; empty if prompts are not chunked."""
    chunk_tokens, sequence_tokens = prompt_chunk(run_memory.settings, run_memory.states), run_memory.states.workload.seq
    if run_memory.settings.phase == "decode" or chunk_tokens is None or chunk_tokens >= sequence_tokens:
        return ""
    return f"prompts are read {counted_noun(chunk_tokens, 'token')} of each sequence at a time (--chunk)"


def _cache_note(memory_use: StaticMemory, block_tokens: int) -> str:
    tokens_text = counted_noun(memory_use.workload.seq, "token")
    sequences_text = counted_noun(memory_use.workload.batch, "sequence")
    note_text = f"KV cache: keys, values and any recurrent state of {sequences_text} of {tokens_text} (--batch, --seq)"
    if block_tokens:
        block_text = counted_noun(block_tokens, "token")
        return f"{note_text}, in blocks of {block_text} (--kv-block); no prefix is shared between sequences"
    return f"{note_text}; a new token is concatenated, which copies a layer's keys and values"


def _training_notes(memory_use: StaticMemory) -> list[str]:
    optimizer_state, trained_parameters = memory_use.optimizer, memory_use.parameter_count.total
    notes = [
        "by default gradients have the dtype of the weights; optimizer states have the dtype of the weights being "
        "updated, as in torch"
    ]
    if optimizer_state is not None and optimizer_state.split_note:
        notes.append(f"{optimizer_state.name}: {optimizer_state.split_note}")
    if memory_use.adapters is not None:
        return [*memory_use.adapters.notes(), *notes]
    bytes_by_rule = ZERO_BYTES_PER_PARAMETER * trained_parameters
    rule_error_text = relative_error_text(bytes_by_rule / memory_use.total_bytes - 1, "what stays in memory")
    master_weights_hint = ""
    if not memory_use.has_master_weights and memory_use.dtype in ("bfloat16", "float16"):
        master_weights_hint = "; --master-weights fp32 counts that"
    notes.append(
        f"rule of thumb: {ZERO_BYTES_PER_PARAMETER} bytes per parameter (bf16 weights and gradients, fp32 master "
        "weights and Adam "
        f"states) = {units.GIB.write(bytes_by_rule)} {units.GIB.name}, {rule_error_text}{master_weights_hint}"
    )
    return notes
