"""The devices on which llama.cpp places tensors: layers by -ngl and -ts, then exceptions by -ot and -ncmoe.

Source: src/llama-model.cpp (`load_tensors`), src/llama-model-loader.cpp (`create_tensor`), common/arg.cpp.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from ...errors import InputError, short_repr
from ...identity_cache import IdentityCache
from ..engines.engine import HOST_DEVICE
from .gguf_model import EMBEDDING_TENSOR, GgufModel, GgufTensor
from .patterns import NamePattern

EXPERT_TENSORS = re.compile(r"blk\.([0-9]{1,6})\.ffn_(?:up|down|gate|gate_up)_(?:ch)?exps")
"""Suffixes of the tensors that -ncmoe moves to the host."""

NETWORK_TENSORS = re.compile(r"blk\.([0-9]{1,6})\.ffn_(?:up|down|gate)\.")
"""Suffixes of the tensors that -ncffn moves to the host."""

MAX_OVERRIDES = 4_096
"""Largest number of overrides in `--override-tensor`."""


@dataclass(frozen=True)
class TensorOverride:
    """A rule of --override-tensor: tensors whose names match its pattern are placed on its device."""

    pattern: NamePattern
    device: str


def read_overrides(override_text: str, device_names: Sequence[str]) -> tuple[TensorOverride, ...]:
    """Returns the rules in `pattern=device,…`. Raises `InputError` for an invalid pattern or an unknown device."""
    tensor_overrides = []
    override_parts = override_text.split(",")
    if len(override_parts) > MAX_OVERRIDES:
        raise InputError(f"--override-tensor: {len(override_parts):,} patterns; expected at most {MAX_OVERRIDES:,}")
    pending_text = ""
    for text_part in override_parts:
        pending_text = f"{pending_text},{text_part}" if pending_text else text_part
        name_pattern, equals_sign, device = pending_text.rpartition("=")
        if not equals_sign:  # a comma within a pattern, such as {1,2}
            continue
        device_name = device.strip().upper().removesuffix("_HOST")
        devices_by_name = {known_device.upper(): known_device for known_device in device_names} | {
            HOST_DEVICE: HOST_DEVICE
        }
        device_name = HOST_DEVICE if device.strip().upper().endswith("_HOST") else device_name
        if device_name not in devices_by_name:
            devices_text = ", ".join(devices_by_name.values())
            raise InputError(
                f"--override-tensor {short_repr(pending_text)}: no device {short_repr(device)}; expected one of "
                f"{devices_text}"
            )
        tensor_overrides.append(
            TensorOverride(NamePattern(name_pattern, "--override-tensor"), devices_by_name[device_name])
        )
        pending_text = ""
    if pending_text:
        raise InputError(
            f"--override-tensor {short_repr(pending_text)}: expected a pattern and a device, such as exps=CPU"
        )
    return tuple(tensor_overrides)


@dataclass(frozen=True)
class LayerDevices:
    """The device of every layer: -ngl says how many are on GPUs, and -ts divides these among the GPUs.

    layer_count: the model's layers. devices: GPUs. gpu_layer_count: GPU layers plus the output layer.
    gpu_shares: the share of each GPU. is_output_first: whether the output is the first of the layers on GPUs.
    """

    layer_count: int
    devices: tuple[str, ...]
    gpu_layer_count: int
    gpu_shares: tuple[float, ...]
    is_output_first: bool

    @cached_property
    def _gpu_layers(self) -> range:
        """The layers on GPUs, where the output layer is the one after the last."""
        layers_on_gpus = min(self.gpu_layer_count, self.layer_count + 1) if self.devices else 0
        first_gpu_layer = max(self.layer_count + self.is_output_first - self.gpu_layer_count, 0)
        return range(first_gpu_layer, first_gpu_layer + layers_on_gpus)

    @cached_property
    def _cumulative_shares(self) -> list[float]:
        """The share of each GPU and of those before it."""
        total_share = sum(self.gpu_shares)
        return [cumulative_share / total_share for cumulative_share in accumulate(self.gpu_shares)]

    def device(self, layer_index: int) -> str:
        """Returns the device of a layer; the index after the last layer stands for the output layer."""
        gpu_layers = self._gpu_layers
        if layer_index not in gpu_layers:
            return HOST_DEVICE
        device_index = bisect_right(self._cumulative_shares, (layer_index - gpu_layers.start) / len(gpu_layers))
        return self.devices[min(device_index, len(self.devices) - 1)]


def is_embedding(tensor: GgufTensor) -> bool:
    """Whether a tensor is an embedding table, which by default is on the host."""
    return tensor.layer_index is None and (tensor.name == EMBEDDING_TENSOR or "embd" in tensor.name)


@dataclass(frozen=True)
class TensorDevices:
    """The devices of all tensors. overrides: rules of --override-tensor. host_experts: layers with experts on the host.

    host_networks: layers whose dense networks are on the host.
    partial_layers: layers of which only some experts' tensors are on the host: layer → the parts that are
        (`up`, `gate`, `down`), and the device that has them.
    """

    layer_devices: LayerDevices
    overrides: tuple[TensorOverride, ...] = ()
    host_experts: frozenset[int] = frozenset()
    partial_layers: tuple[tuple[int, tuple[str, ...], str], ...] = ()
    host_networks: frozenset[int] = frozenset()

    def device(self, tensor: GgufTensor) -> str:
        """Returns the device on which a tensor is placed."""
        for tensor_override in self.overrides:
            if tensor_override.pattern.matches(tensor.name):
                return tensor_override.device
        if tensor.layer_index is not None:
            if tensor.layer_index in self.host_experts and EXPERT_TENSORS.match(tensor.name):
                return HOST_DEVICE
            if tensor.layer_index in self.host_networks and NETWORK_TENSORS.match(tensor.name):
                return HOST_DEVICE
            for layer_index, expert_parts, device in self.partial_layers:
                if layer_index == tensor.layer_index and any(
                    re.match(rf"blk\.{layer_index}\.ffn_{expert_part}(_|\.)", tensor.name)
                    for expert_part in expert_parts
                ):
                    return device
            return self.layer_devices.device(tensor.layer_index)
        return HOST_DEVICE if is_embedding(tensor) else self.layer_devices.device(self.layer_devices.layer_count)

    @property
    def has_overrides(self) -> bool:
        """Whether flags place any tensor on another device than its layer's, which disables pipeline parallelism."""
        return bool(self.overrides or self.host_experts or self.host_networks or self.partial_layers)


_placed_tensors: IdentityCache[list[tuple[GgufTensor, str]]] = IdentityCache(32)
"""Placed tensors of models, which servers of other numbers of users and tokens share."""


def placed_tensors(model: GgufModel, tensor_placement: TensorDevices) -> list[tuple[GgufTensor, str]]:
    """Returns a model's tensors, each with the device on which it is placed."""
    return _placed_tensors.result(
        (model,),
        (tensor_placement,),
        lambda: [(tensor, tensor_placement.device(tensor)) for tensor in model.tensors],
    )
