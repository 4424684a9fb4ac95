"""The memory of a llama.cpp server, flag changes that free GPU memory, and placements with more devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from ...errors import InputError
from ...sources.preset import Preset
from ..engines.engine import HOST_DEVICE, EngineMemory
from .engine_memory import engine_memory
from .layer_fit import fit_server, has_all_layers_on_gpus
from .server import BufferSizes, GgmlServer
from .settings import MAX_DEVICES, SINGLE_GPU_VENDOR

SMALL_CACHE_TYPE = "q8_0"
"""Number format of the KV cache in the flag change that shrinks the cache."""

SMALL_MICRO_BATCH = 128
"""Tokens of a micro-batch in the flag change that shrinks compute buffers."""


def memory(server: GgmlServer) -> EngineMemory:
    """Returns the memory of a llama.cpp server after `--fit` has lowered its context or moved layers to the host."""
    fitted_server = fit_server(server)
    fitted_memory = engine_memory(fitted_server.server, fitted_server.buffers, fitted_server.notes)
    fitted_memory = replace(fitted_memory, has_all_layers_on_devices=has_all_layers_on_gpus(fitted_server))
    if not fitted_server.notes:
        return fitted_memory
    assumed_flags = {**engine_memory(server, fitted_server.buffers).assumed_flags}
    if "--ctx-size" in assumed_flags:
        assumed_flags["--ctx-size"] = fitted_server.server.context_tokens
    return replace(fitted_memory, assumed_flags=assumed_flags)


def _fewest_free_bytes(server: GgmlServer) -> int:
    """Returns the free bytes of the fullest GPU, or of the processor's memory; negative if buffers do not fit.

    The graphs are laid out only where tensors and caches alone leave room.
    """
    tensor_placement = server.placement
    device_buffers = BufferSizes(server.model_buffers(tensor_placement), server.cache_buffers(tensor_placement), {})
    least_free = _free_bytes_of_fullest_gpu(server, device_buffers)
    return least_free if least_free < 0 else _free_bytes_of_fullest_gpu(server, server.buffers(tensor_placement))


def _free_bytes_of_fullest_gpu(server: GgmlServer, device_buffers: BufferSizes) -> int:
    devices = (HOST_DEVICE,) if server.hardware.is_processor else server.devices
    return min((server.free_bytes - device_buffers.bytes_on(device) for device in devices), default=0)


def _server_with_fit_off(server: GgmlServer, **added_flags: Any) -> GgmlServer:
    """Returns the server without `--fit`, and with all layers on GPUs unless a flag states their number.

    The context stays the server's: a default one is a slot's times the slots with --fit, and that of all without.
    """
    layer_flags = {} if server.has_stated_gpu_layers or not server.devices else {"n_gpu_layers": "all"}
    context_flags = {"ctx_size": server.context_tokens} if server.has_automatic_context else {}
    return server.with_flags(fit="off", **(context_flags | layer_flags | added_flags))


def _largest_fitting_value(least_value: int, largest_value: int, free_bytes_of: Callable[[int], int]) -> int | None:
    """Returns the largest value at which `free_bytes_of`, a decreasing function, is at least 0; None if there is none.

    Room is nearly linear, so a guess is a linear interpolation; half the interval where that gains too little.
    """
    fitting_value, failing_value = least_value, largest_value
    free_bytes, lacking_bytes = free_bytes_of(fitting_value), -free_bytes_of(failing_value)
    if free_bytes < 0:
        return None
    if lacking_bytes <= 0:
        return largest_value
    bisects_interval = False
    while failing_value - fitting_value > 1:
        interval_length = failing_value - fitting_value
        guessed_value = fitting_value + (
            interval_length // 2
            if bisects_interval
            else min(max(interval_length * free_bytes // (free_bytes + lacking_bytes), 1), interval_length - 1)
        )
        guessed_free_bytes = free_bytes_of(guessed_value)
        if guessed_free_bytes < 0:
            failing_value, lacking_bytes = guessed_value, -guessed_free_bytes
        else:
            fitting_value, free_bytes = guessed_value, guessed_free_bytes
        bisects_interval = not bisects_interval and failing_value - fitting_value > interval_length // 2
    return fitting_value


def fewest_host_expert_layers(server: GgmlServer) -> int | None:
    """Returns the least -ncmoe (number of layers with experts on the host) with which the rest fits on the GPUs."""
    layer_count = len(server.model.layers)
    if not any(layer.expert_count for layer in server.model.layers):
        return None
    layers_on_gpus = _largest_fitting_value(
        0, layer_count, lambda layers: _fewest_free_bytes(_server_with_fit_off(server, n_cpu_moe=layer_count - layers))
    )
    return None if layers_on_gpus is None else layer_count - layers_on_gpus


def most_layers(server: GgmlServer) -> int | None:
    """Returns the largest -ngl (number of layers on GPUs, the output layer included) that fits."""
    return _largest_fitting_value(
        0,
        len(server.model.layers) + 1,
        lambda layers: _fewest_free_bytes(_server_with_fit_off(server, n_gpu_layers=layers)),
    )


def longest_context(server: GgmlServer) -> int | None:
    """Returns the longest context (-c) in tokens, a multiple of 256, for which everything fits."""
    step_count = max(1, server.context_tokens // 256)
    fitting_step_count = _largest_fitting_value(
        1,
        step_count,
        lambda context_step: _fewest_free_bytes(_server_with_fit_off(server, ctx_size=256 * context_step)),
    )
    return None if fitting_step_count is None else 256 * fitting_step_count


def flag_changes(server: GgmlServer) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields flag changes that free memory on GPUs or the processor, cheapest first, as (typed text, values).

    They are tried with all layers on the GPUs, where there are any and the user does not say how many.
    """
    cache_flags = {"cache_type_k": SMALL_CACHE_TYPE, "cache_type_v": SMALL_CACHE_TYPE, "flash_attn": "on"}
    places_all_layers = server.devices and not server.has_stated_gpu_layers
    layer_flags, typed_layer_flag = ({"n_gpu_layers": "all"}, "-ngl all ") if places_all_layers else ({}, "")
    has_free_memory = _fewest_free_bytes(_server_with_fit_off(server)) >= 0
    if server.micro_batch_tokens > SMALL_MICRO_BATCH and not has_free_memory:
        yield f"{typed_layer_flag}-ub {SMALL_MICRO_BATCH}", layer_flags | {"ubatch_size": SMALL_MICRO_BATCH}
    if server.key_type in ("f16", "bf16", "f32"):
        yield f"{typed_layer_flag}-ctk {SMALL_CACHE_TYPE} -ctv {SMALL_CACHE_TYPE} -fa on", layer_flags | cache_flags
    if has_free_memory:
        return
    fitting_context = longest_context(server)
    if fitting_context is not None and fitting_context < server.context_tokens:
        yield f"{typed_layer_flag}-c {fitting_context}", layer_flags | {"ctx_size": fitting_context}
    if not server.devices:
        return
    host_expert_layers = fewest_host_expert_layers(server)
    if host_expert_layers:
        yield f"{typed_layer_flag}-ncmoe {host_expert_layers}", layer_flags | {"n_cpu_moe": host_expert_layers}
    gpu_layers = most_layers(server)
    if gpu_layers is not None and gpu_layers <= len(server.model.layers):
        yield f"-ngl {gpu_layers}", {"n_gpu_layers": gpu_layers}
    if server.hardware.vendor == SINGLE_GPU_VENDOR:
        return
    tensor_split = ",".join(["1"] * 2 * len(server.devices))
    yield f"{typed_layer_flag}-ts {tensor_split}", layer_flags | {"tensor_split": tensor_split}


def larger_layouts(server: GgmlServer, most_devices: int) -> Iterator[tuple[dict[str, Any], EngineMemory]]:
    """Yields (flags, server memory) for placements on more devices, in order of the number of devices.

    The numbers of devices are 1, 2, 4, … and `most_devices`. Of as many devices: everything on GPUs, a smaller cache,
    experts on the host, layers on the host. A placement that the user's flags fix is the only one. A Mac has one GPU.
    """
    fixed_flags = [flag_name for flag_name in ("tensor_split", "device") if flag_name in server.flags]
    has_chosen_placement = server.has_stated_gpu_layers or any(
        flag_name in server.flags for flag_name in ("n_cpu_moe", "cpu_moe", "n_cpu_ffn", "override_tensor", "fit")
    )
    if fixed_flags:
        device_counts = [len(server.devices)]
    elif not server.devices or server.hardware.vendor == SINGLE_GPU_VENDOR:
        device_counts = [1]
    else:
        largest_count = min(most_devices, MAX_DEVICES)
        device_counts = sorted({min(2**i, largest_count) for i in range(largest_count.bit_length() + 1)})
    for device_count in device_counts:
        if device_count > most_devices:
            return
        split_flags = {} if fixed_flags or device_count == 1 else {"tensor_split": ",".join(["1"] * device_count)}
        server_on_devices = server.with_flags(**split_flags)
        if has_chosen_placement:
            yield split_flags, memory(server_on_devices)
        else:
            yield from _offload_flags_with_memory(server_on_devices, split_flags)


def _offload_flags_with_memory(
    server: GgmlServer, split_flags: Mapping[str, Any]
) -> Iterator[tuple[dict[str, Any], EngineMemory]]:
    """Yields (flags, server memory) of ways to place a model on the devices; all layers on GPUs come first."""
    flag_sets: list[dict[str, Any]] = [{"n_gpu_layers": "all"} if server.devices else {}]
    if _fewest_free_bytes(_server_with_fit_off(server)) < 0:
        if server.key_type == "f16" and "cache_type_v" not in server.flags:
            flag_sets.append(
                flag_sets[0] | {"cache_type_k": SMALL_CACHE_TYPE, "cache_type_v": SMALL_CACHE_TYPE, "flash_attn": "on"}
            )
        host_expert_layers = fewest_host_expert_layers(server) if server.devices else None
        flag_sets += [flag_sets[0] | {"n_cpu_moe": host_expert_layers}] if host_expert_layers else []
        gpu_layers = most_layers(server) if server.devices else None
        flag_sets += [{"n_gpu_layers": gpu_layers}] if gpu_layers is not None else []
    for trial_flags in flag_sets:
        try:
            if server.has_automatic_context and (
                server.with_flags(fit="off").context_tokens != server.context_tokens
                or _has_shortened_context(server.with_flags(**trial_flags))
            ):
                trial_flags = trial_flags | {"ctx_size": server.context_tokens}
            yield {**split_flags, **trial_flags}, memory(server.with_flags(fit="off", **trial_flags))
        except InputError:  # a type that the model's widths do not have
            continue


def _has_shortened_context(server: GgmlServer) -> bool:
    """Whether --fit shortens the context, because no flag states it."""
    return fit_server(server).server.context_tokens < server.context_tokens


def serving_flags(preset: Preset, flags: Mapping[str, Any], user_count: int, seq: int | None) -> dict[str, Any]:
    """Returns the flags of a server with one slot per user and `seq` tokens per slot.

    Raises `InputError` for flags that say another context, or fewer slots.
    """
    server_flags = dict(flags)
    if flags.get("parallel", user_count) < user_count:
        raise InputError(f"--users {user_count}: --parallel says {flags['parallel']}; expected at least {user_count}")
    if user_count > 1 and "parallel" not in flags:
        server_flags |= {"parallel": user_count}
    if seq is not None:
        if flags.get("ctx_size", seq * user_count) != seq * user_count:
            raise InputError(f"--seq {seq}: --ctx-size says {flags['ctx_size']}; expected one of the two")
        server_flags["ctx_size"] = seq * user_count
    return server_flags
