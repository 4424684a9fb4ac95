"""Simulates llama.cpp's --fit, which lowers context, experts and layers on GPUs until each has a free margin.

Source: common/fit.cpp, `common_params_fit_impl`. It searches with the method of false position; as memory grows with
the layers, a search by halves finds the same number.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from ...errors import InputError
from ..engines.engine import HOST_DEVICE
from .placement import LayerDevices, TensorDevices, is_embedding, placed_tensors
from .server import BufferSizes, GgmlServer
from .settings import MIB

HOSTED_PARTS = {"attention": ("gate", "up", "gate_up", "down"), "up": ("gate", "gate_up", "down"), "gate": ("down",)}
"""Parts of a layer on the GPU (attention alone, with `up`, with `up` and `gate`) → expert tensors on the host."""


class FittedServer(NamedTuple):
    """A server as --fit changes it: context, placement, buffers, and notes on the changes."""

    server: GgmlServer
    placement: TensorDevices
    buffers: BufferSizes
    notes: tuple[str, ...] = ()


def host_layers(fitted_server: FittedServer) -> int:
    """Returns the number of layers with tensors on the host, where the output layer counts too."""
    server, placement = fitted_server.server, fitted_server.placement
    layer_count = len(server.model.layers)
    host_layer_count = sum(
        placement.layer_devices.device(layer_index) not in server.devices for layer_index in range(layer_count + 1)
    )
    return host_layer_count + len(placement.host_experts) + len(placement.partial_layers)


def has_all_layers_on_gpus(fitted_server: FittedServer) -> bool:
    """Whether the host holds no cache and no tensors of the model except embeddings."""
    has_tensors_on_host = any(
        device == HOST_DEVICE and not is_embedding(tensor)
        for tensor, device in placed_tensors(fitted_server.server.model, fitted_server.placement)
    )
    return not fitted_server.buffers.cache_bytes.get(HOST_DEVICE, 0) and not has_tensors_on_host


@dataclass(frozen=True)
class _GpuLayers:
    """The number of layers on one GPU, and the number of these whose experts are on the host.

    layers: number of layers.
    layers_with_host_experts: number of last layers with experts on the host.
    partial_layer_parts: of the first hosted layer, the parts that are not on the GPU; empty for all experts.
    """

    layers: int = 0
    layers_with_host_experts: int = 0
    partial_layer_parts: tuple[str, ...] = ()


def fit_server(server: GgmlServer) -> FittedServer:
    """Returns the server with the flags that --fit chooses so that each GPU keeps its free margin."""
    tensor_placement = server.placement
    fitted_server = FittedServer(server, tensor_placement, server.buffers(tensor_placement))
    if not server.is_fit_enabled or not server.devices:
        return fitted_server
    byte_limits = [server.free_bytes - margin_bytes for margin_bytes in free_margins(server)]
    if _keeps_margins(fitted_server, byte_limits):
        return fitted_server
    fitted_server = _with_less_context(fitted_server, byte_limits)
    if fitted_server.notes and len(server.devices) == 1 and _keeps_margins(fitted_server, byte_limits):
        return fitted_server
    fixed_flags = [
        flag_name
        for flag_name in ("override_tensor", "n_cpu_moe", "cpu_moe", "n_cpu_ffn", "tensor_split")
        if server.flags.get(flag_name)
    ]
    if server.has_stated_gpu_layers or fixed_flags:
        fixed_flag = "n_gpu_layers" if server.has_stated_gpu_layers else fixed_flags[0]
        layer_note = f"--fit leaves the layers as --{fixed_flag.replace('_', '-')} places them"
        return fitted_server._replace(notes=(*fitted_server.notes, layer_note))
    return _LayerFit(fitted_server, byte_limits).place_layers()


def free_margins(server: GgmlServer) -> list[int]:
    """Returns the margin that --fit keeps free on each GPU, in bytes (--fit-target, in MiB)."""
    margin_text = str(
        server.flags.get("fit_target", server.flags.get("fit_margin", server.engine_record.fit_margin_mib))
    )
    mib_texts = margin_text.split(",")
    if not all(number_text.strip().isdecimal() and len(number_text) < 10 for number_text in mib_texts):
        raise InputError(f"--fit-target {margin_text[:40]}: expected MiB, with commas for several GPUs")
    margins_mib = [int(number_text) for number_text in mib_texts]
    device_count = len(server.devices)
    return [
        margin_mib * MIB
        for margin_mib in (
            margins_mib * device_count if len(margins_mib) == 1 else [*margins_mib, *[margins_mib[-1]] * device_count]
        )[:device_count]
    ]


def _keeps_margins(fitted_server: FittedServer, byte_limits: list[int]) -> bool:
    used_bytes_by_device = [fitted_server.buffers.bytes_on(device) for device in fitted_server.server.devices]
    return all(
        used_bytes <= byte_limit for used_bytes, byte_limit in zip(used_bytes_by_device, byte_limits, strict=True)
    )


def _used_bytes(fitted_server: FittedServer) -> int:
    return sum(fitted_server.buffers.bytes_on(device) for device in fitted_server.server.devices)


def _with_less_context(fitted_server: FittedServer, byte_limits: list[int]) -> FittedServer:
    """Returns the server with a shorter context, at least --fit-ctx, unless the user set the context."""
    server = fitted_server.server
    longest_context, used_bytes = server.context_tokens, _used_bytes(fitted_server)
    least_context = int(server.flags.get("fit_ctx", server.engine_record.fit_ctx)) * server.stream_count
    if used_bytes <= sum(byte_limits) or not server.has_automatic_context or longest_context <= least_context:
        return fitted_server
    target_bytes, device_count = sum(byte_limits), len(server.devices)
    if device_count > 1:
        layer_bytes = sum(fitted_server.buffers.model_bytes[device] for device in server.devices) // max(
            1, min(server.layers_on_gpus, len(server.model.layers))
        )
        target_bytes -= (
            (device_count + 1) * layer_bytes // (6 if any(layer.expert_count for layer in server.model.layers) else 2)
        )
    least_context_server = _with_context(server, least_context)
    smallest_bytes = _used_bytes(least_context_server)
    if target_bytes <= smallest_bytes:
        return least_context_server
    smaller_context = least_context + (longest_context - least_context) * (target_bytes - smallest_bytes) // (
        used_bytes - smallest_bytes
    )
    context_step = 256 * server.stream_count
    return _with_context(server, max(smaller_context - smaller_context % context_step, least_context))


def _with_context(server: GgmlServer, context_tokens: int) -> FittedServer:
    changed_server = server.with_flags(ctx_size=context_tokens)
    context_note = f"--fit reduces --ctx-size from {server.context_tokens:,} to {context_tokens:,}"
    return FittedServer(changed_server, server.placement, changed_server.buffers(server.placement), (context_note,))


@dataclass
class _LayerFit:
    """The search for the layers of each GPU, as in llama.cpp's --fit.

    fitted_server: the server with its context. byte_limits: byte limit of each GPU.
    """

    fitted_server: FittedServer
    byte_limits: list[int]

    @property
    def server(self) -> GgmlServer:
        return self.fitted_server.server

    def placement_of(self, layers_of_gpus: list[_GpuLayers]) -> TensorDevices:
        """Returns the device of every tensor if each GPU has these layers; the model's last layers are on GPUs."""
        layer_count = len(self.server.model.layers)
        gpu_layer_count = sum(gpu_layers.layers for gpu_layers in layers_of_gpus)
        if gpu_layer_count:
            gpu_shares = tuple(float(gpu_layers.layers) for gpu_layers in layers_of_gpus)
        else:
            gpu_shares = self.server.layer_shares
        layer_devices = LayerDevices(layer_count, self.server.devices, gpu_layer_count, gpu_shares, True)
        hosted_layers: set[int] = set()
        partial_layers: list[tuple[int, tuple[str, ...], str]] = []
        first_gpu_layer = layer_count + 1 - gpu_layer_count
        for gpu_index, gpu_layers in enumerate(layers_of_gpus):
            first_gpu_layer += gpu_layers.layers - gpu_layers.layers_with_host_experts
            for layer_index in range(first_gpu_layer, first_gpu_layer + gpu_layers.layers_with_host_experts):
                if layer_index == first_gpu_layer and gpu_layers.partial_layer_parts:
                    next_device = (
                        self.server.devices[gpu_index + 1] if gpu_index + 1 < len(layers_of_gpus) else HOST_DEVICE
                    )
                    partial_layers.append((layer_index, gpu_layers.partial_layer_parts, next_device))
                else:
                    hosted_layers.add(layer_index)
            first_gpu_layer += gpu_layers.layers_with_host_experts
        return TensorDevices(layer_devices, (), frozenset(hosted_layers), tuple(partial_layers))

    def buffers_of(self, layers_by_gpu: list[_GpuLayers]) -> BufferSizes:
        tensor_placement = self.placement_of(layers_by_gpu)
        layers_on_gpus = sum(gpu_layers.layers for gpu_layers in layers_by_gpu)
        return self.server.with_flags(n_gpu_layers=layers_on_gpus).buffers(tensor_placement)

    def keeps_margins(self, layers_by_gpu: list[_GpuLayers], *gpu_numbers: int) -> bool:
        """Whether the GPUs `gpu_numbers` keep their free margins if each GPU has these layers."""
        buffers = self.buffers_of(layers_by_gpu)
        return all(
            buffers.bytes_on(self.server.devices[gpu_index]) <= self.byte_limits[gpu_index]
            for gpu_index in gpu_numbers
            if gpu_index < len(layers_by_gpu)
        )

    def place_layers(self) -> FittedServer:
        """Fills the GPUs, the last one first, with layers without their experts, then adds experts that fit."""
        layer_count = len(self.server.model.layers)
        has_experts = any(layer.expert_count for layer in self.server.model.layers)
        layers_by_gpu = [_GpuLayers()] * len(self.server.devices)
        for gpu_index in reversed(range(len(layers_by_gpu))):
            unplaced_layer_count = layer_count + 1 - sum(gpu_layers.layers for gpu_layers in layers_by_gpu)
            layers_by_gpu = self._with_most_layers(layers_by_gpu, gpu_index, unplaced_layer_count, has_experts)
        if has_experts and sum(gpu_layers.layers for gpu_layers in layers_by_gpu) == layer_count + 1:
            layers_by_gpu = self._with_experts_on_gpus(layers_by_gpu)
        gpu_layer_count = sum(gpu_layers.layers for gpu_layers in layers_by_gpu)
        placement = self.placement_of(layers_by_gpu)
        server = self.server.with_flags(n_gpu_layers=gpu_layer_count)
        layer_note = f"--fit places {gpu_layer_count} of {layer_count + 1} layers on GPUs (with the output)"
        hosted_layer_count = len(placement.host_experts) + len(placement.partial_layers)
        layer_note += f", the experts of {hosted_layer_count} of them on the host" if hosted_layer_count else ""
        return FittedServer(server, placement, server.buffers(placement), (*self.fitted_server.notes, layer_note))

    def _with_most_layers(
        self, layers_by_gpu: list[_GpuLayers], gpu_number: int, layer_limit: int, has_experts: bool
    ) -> list[_GpuLayers]:
        """Returns the layers per GPU with as many layers without experts on GPU `gpu_number` as fit."""

        def with_layer_count(layer_count: int) -> list[_GpuLayers]:
            hosted_count = max(layer_count - (gpu_number == len(layers_by_gpu) - 1), 0) if has_experts else 0
            return [
                *layers_by_gpu[:gpu_number],
                _GpuLayers(layer_count, hosted_count),
                *layers_by_gpu[gpu_number + 1 :],
            ]

        return with_layer_count(
            largest_number(layer_limit, lambda count: self.keeps_margins(with_layer_count(count), gpu_number))
        )

    def _with_experts_on_gpus(self, layers_by_gpu: list[_GpuLayers]) -> list[_GpuLayers]:
        """Returns the layers per GPU after as many experts as fit have moved from the host, to the first GPU first."""
        for gpu_index in range(len(layers_by_gpu)):
            hosted_layer_count = sum(gpu_layers.layers_with_host_experts for gpu_layers in layers_by_gpu)
            if not hosted_layer_count:
                break
            layers_by_gpu = _with_moved_layers(
                layers_by_gpu, gpu_index, self._most_movable_layers(layers_by_gpu, gpu_index, hosted_layer_count)
            )
            if (
                sum(gpu_layers.layers_with_host_experts for gpu_layers in layers_by_gpu)
                and not layers_by_gpu[gpu_index].partial_layer_parts
            ):
                layers_by_gpu = self._with_partial_layer(layers_by_gpu, gpu_index)
        return layers_by_gpu

    def _most_movable_layers(self, layers_by_gpu: list[_GpuLayers], gpu_number: int, most_layers: int) -> int:
        return largest_number(
            most_layers,
            lambda layer_count: self.keeps_margins(
                _with_moved_layers(layers_by_gpu, gpu_number, layer_count), gpu_number
            ),
        )

    def _with_partial_layer(self, layers_by_gpu: list[_GpuLayers], gpu_number: int) -> list[_GpuLayers]:
        """Returns the layers per GPU after one more layer, with as many parts of its experts as fit, is on a GPU."""
        donor_gpu = next(
            (gpu_index for gpu_index, gpu_layers in enumerate(layers_by_gpu) if gpu_layers.layers_with_host_experts),
            None,
        )
        if donor_gpu is None or donor_gpu < gpu_number:
            return layers_by_gpu
        best_layers = layers_by_gpu
        for expert_parts in ("up", "gate"):
            trial_layers = _with_overflow_layer(layers_by_gpu, donor_gpu, gpu_number, HOSTED_PARTS[expert_parts])
            if not self.keeps_margins(trial_layers, gpu_number, gpu_number + 1):
                break
            best_layers = trial_layers
        if best_layers is layers_by_gpu:
            trial_layers = _with_overflow_layer(layers_by_gpu, donor_gpu, gpu_number, HOSTED_PARTS["attention"])
            best_layers = layers_by_gpu
            if donor_gpu > gpu_number and self.keeps_margins(trial_layers, gpu_number, gpu_number + 1):
                best_layers = trial_layers
        return best_layers


def _with_moved_layers(layers_by_gpu: list[_GpuLayers], gpu_number: int, layer_count: int) -> list[_GpuLayers]:
    """Returns the layers per GPU after `layer_count` layers have moved, with their experts, to GPU `gpu_number`."""
    moved_layers = list(layers_by_gpu)
    remaining_count = layer_count
    for gpu_index, gpu_layers in enumerate(moved_layers):
        removed_count = min(remaining_count, gpu_layers.layers_with_host_experts)
        moved_layers[gpu_index] = replace(
            gpu_layers,
            layers=gpu_layers.layers - removed_count,
            layers_with_host_experts=gpu_layers.layers_with_host_experts - removed_count,
        )
        remaining_count -= removed_count
    moved_layers[gpu_number] = replace(moved_layers[gpu_number], layers=moved_layers[gpu_number].layers + layer_count)
    return moved_layers


def _with_overflow_layer(
    layers_by_gpu: list[_GpuLayers], donor_gpu: int, gpu_number: int, host_parts: tuple[str, ...]
) -> list[_GpuLayers]:
    """Returns the layers per GPU with one more on a GPU, of which `host_parts` stay on the host."""
    changed_gpu_layers = list(layers_by_gpu)
    if donor_gpu != gpu_number:
        changed_gpu_layers[donor_gpu] = replace(
            changed_gpu_layers[donor_gpu],
            layers=changed_gpu_layers[donor_gpu].layers - 1,
            layers_with_host_experts=changed_gpu_layers[donor_gpu].layers_with_host_experts - 1,
        )
        changed_gpu_layers[gpu_number] = replace(
            changed_gpu_layers[gpu_number],
            layers=changed_gpu_layers[gpu_number].layers + 1,
            layers_with_host_experts=changed_gpu_layers[gpu_number].layers_with_host_experts + 1,
        )
    changed_gpu_layers[gpu_number] = replace(changed_gpu_layers[gpu_number], partial_layer_parts=host_parts)
    return changed_gpu_layers


def largest_number(largest_candidate: int, is_possible: Callable[[int], bool]) -> int:
    """Returns the largest number up to `largest_candidate` for which `is_possible`, monotonic, is true; 0 if none."""
    if is_possible(largest_candidate):
        return largest_candidate
    return bisect_left(range(1, largest_candidate), True, key=lambda candidate: not is_possible(candidate))
