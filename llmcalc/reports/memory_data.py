"""The JSON document of `llmcalc memory`: bytes as exact integers, and the settings for which they are counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..accelerator import MemoryFit
from ..device_memory.device_memory import DeviceMemory
from ..device_memory.encoders import unreplayed_encoders
from ..device_memory.estimate import Memory
from ..device_memory.optimizers.record import OptimizerState
from ..device_memory.simulated_run import cache_block_tokens, kernel_choices, optimizer_implementation, prompt_chunk
from ..device_memory.static import StaticMemory
from ..optional import TOWERS
from ..sources.preset import Preset
from ..workload.execution import AttentionImplementation
from .summary import model_data


def memory_data(preset: Preset, run_memory: Memory, accelerator_fits: Sequence[MemoryFit]) -> dict[str, Any]:
    """Returns the JSON document of the memory of one device. Bytes are exact integers."""
    memory_use = run_memory.states
    return {
        "model": model_data(preset),
        "workload": workload_data(run_memory),
        "execution": execution_data(run_memory),
        "memory": {
            **device_data(run_memory.device),
            "total_bytes": memory_use.total_bytes,
            "parameters": memory_use.parameter_count.total,
            "trained_parameters": memory_use.trained_parameters,
            **memory_use.parts,
            **_quantized_data(memory_use),
            "optimizer": _optimizer_data(memory_use.optimizer),
            "not_counted": uncounted_tensors_note(memory_use),
        },
        **host_data(run_memory.device),
        "fits": verdicts_data(accelerator_fits),
    }


def host_data(device: DeviceMemory) -> dict[str, Any]:
    """Returns the bytes of host memory by term; empty if nothing is on the host."""
    if not device.host_terms:
        return {}
    host_terms = [
        {
            "name": memory_term.name,
            "bytes": memory_term.bytes,
            "status": memory_term.status,
            "witness": memory_term.witness,
        }
        for memory_term in device.host_terms
    ]
    return {"host_bytes": device.host_bytes, "host": host_terms}


def verdicts_data(accelerator_fits: Sequence[MemoryFit]) -> list[dict[str, Any]]:
    """Returns for each accelerator whether the run fits, as plain data."""
    return [
        {
            "hardware": accelerator_fit.hardware.name,
            "memory_bytes": accelerator_fit.hardware.memory_bytes,
            "usable_memory_bytes": accelerator_fit.hardware.usable_memory_bytes,
            "usable_bytes": accelerator_fit.capacity_bytes,
            "device_bytes": accelerator_fit.needed_bytes,
            "left_bytes": accelerator_fit.left_bytes,
            "verdict": accelerator_fit.verdict,
            "engine": accelerator_fit.engine_name or None,
        }
        for accelerator_fit in accelerator_fits
    ]


def workload_data(run_memory: Memory) -> dict[str, Any]:
    """Returns the workload: phase, sizes and number formats."""
    memory_use, run_settings = run_memory.states, run_memory.settings
    return {
        "phase": run_settings.phase,
        "batch": memory_use.workload.batch,
        "seq": memory_use.workload.seq,
        "source": memory_use.workload.source if run_memory.spec.kind == "encoder-decoder" else None,
        "num_microbatches": (run_settings.num_microbatches or 1) if run_settings.phase == "training" else None,
        "dtype": memory_use.dtype,
        "kv_dtype": memory_use.kv_dtype or None,
        "grad_dtype": memory_use.grad_dtype or None,
        "precision": memory_use.precision or None,
    }


def execution_data(run_memory: Memory, attention_kernel: AttentionImplementation | None = None) -> dict[str, Any]:
    """Returns the choices of kernels and optimizer that change the memory of a workload.

    attention_kernel: the implementation of attention; default that of the simulated run.
    """
    attention_kernel = run_memory.attention if attention_kernel is None else attention_kernel
    memory_use = run_memory.states
    run_settings = run_memory.settings
    is_training = run_memory.settings.phase == "training"
    kernel_options = kernel_choices(run_settings, run_memory.spec, attention_kernel)
    adapters = memory_use.adapters
    execution_entry: dict[str, Any] = {"attn_implementation": attention_kernel, "norm": kernel_options.norm}
    if is_training:
        cross_entropy = kernel_options.cross_entropy
        execution_entry |= {
            "cross_entropy": cross_entropy,
            "logits_dtype": kernel_options.logits_dtype
            or ("float32" if cross_entropy == "eager" and kernel_options.float32_loss else memory_use.dtype),
            "recompute": run_settings.recompute or "none",
            "dropout": {} if run_memory.spec.dropout is None else run_memory.spec.dropout.probabilities(),
            "compile": bool(run_settings.compile),
            "optimizer": None if memory_use.optimizer is None else memory_use.optimizer.name,
            "optimizer_impl": optimizer_implementation(run_settings, memory_use),
            "zero_grad": run_settings.zero_grad or "none",
            "moe": run_settings.moe or "dropless",
            **({} if run_settings.fake_quantize is None else {"fake_quantize": run_settings.fake_quantize}),
            "lora": None
            if adapters is None
            else {
                "rank": adapters.rank,
                "targets": sorted(adapters.target_names),
                "dtype": memory_use.adapter_dtype,
                "dropout": bool(run_settings.lora_dropout),
                "base": adapters.base_format,
            },
        }
    else:
        execution_entry |= {
            "chunk": prompt_chunk(run_settings, memory_use),
            "kv_block": cache_block_tokens(run_settings, memory_use) or None,
            "mla": run_settings.mla or "auto",
        }
    allocator_name = "expandable" if run_memory.cuda_runtime.has_expandable_segments else "segments"
    return {**execution_entry, "allocator": allocator_name}


def device_data(device: DeviceMemory) -> dict[str, Any]:
    """Returns the bytes of a device by kind of memory, by phase and by module, as plain data."""
    return {
        "exact_bytes": device.exact_bytes,
        "peak_bytes": device.peak_bytes,
        "after_step_bytes": device.after_step_bytes,
        "reserved_bytes": device.reserved_bytes,
        "device_bytes": device.device_bytes,
        "peak_at": {"phase": device.peak_at.phase, "node": device.peak_at.module_path},
        "by_kind": dict(device.by_kind),
        "by_phase": {phase: dict(bytes_by_kind) for phase, bytes_by_kind in device.moments.items()},
        "timeline": [
            {"phase": memory_point.phase, "node": memory_point.module_path, "bytes": memory_point.bytes}
            for memory_point in device.timeline
        ],
        "terms": [
            {
                "name": memory_term.name,
                "bytes": memory_term.bytes,
                "status": memory_term.status,
                "witness": memory_term.witness,
                "versions": memory_term.versions or None,
            }
            for memory_term in device.terms
        ],
    }


def _quantized_data(memory_use: StaticMemory) -> dict[str, Any]:
    """Returns the quantization scheme and the weight bytes by part; None for unquantized weights."""
    quantized_size = memory_use.quantized_size
    if quantized_size is None:
        return {"quantization": None, "weights_by_part": None, "weights_by_component": None}
    scheme = quantized_size.scheme
    return {
        "quantization": {"scheme": scheme.label, "source": scheme.source, "unconverted_dtype": quantized_size.dtype},
        "weights_by_part": quantized_size.by_part.data(),
        "weights_by_component": {
            component_name: component_bytes.data()
            for component_name, component_bytes in quantized_size.by_component.items()
        },
    }


def _optimizer_data(optimizer_state: OptimizerState | None) -> dict[str, Any]:
    if optimizer_state is None:
        return {"name": None, "bytes": 0, "dtype": None, "states": {}}
    return {
        "name": optimizer_state.name,
        "bytes": optimizer_state.bytes,
        "dtype": optimizer_state.dtype or None,
        "states": optimizer_state.states,
    }


def uncounted_tensors_note(memory_use: StaticMemory) -> list[str]:
    """Returns a note on the tensors that the answer does not count."""
    uncounted_texts = list(memory_use.uncounted_memory_notes)
    if TOWERS.name in memory_use.parameter_count.include:
        encoded_inputs = memory_use.encoded_inputs
        runs_encoders = encoded_inputs is not None and bool(encoded_inputs.encoder_runs)
        if encoded_inputs is not None:
            encoder_names = unreplayed_encoders(memory_use.parameter_count.spec, encoded_inputs)
            uncounted_texts += [
                f"activations of {encoder_name}, whose layers are not replayed" for encoder_name in encoder_names
            ]
        uncounted_texts.append(
            "pixels, patch embeddings and projectors of the encoders' passes"
            if runs_encoders
            else f"activations of the {TOWERS.title}"
        )
    return uncounted_texts
