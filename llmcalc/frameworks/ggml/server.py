"""The buffers that a llama.cpp server allocates on each device and on the host, in bytes."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

from ...algebra import round_up
from ...frozen import frozen
from ...sources.checkpoints.gguf import GGML_TYPES
from ..engines.engine import HOST_DEVICE
from .compute_graph import buffer_sizes
from .encoder import encoder_device
from .encoder_graph import EncoderShape, encoder_buffers, encoder_shape
from .gguf_model import GgufTensor, LayerShape
from .layer_runs import layers_with_graphs
from .placement import EXPERT_TENSORS, LayerDevices, TensorDevices, TensorOverride, placed_tensors, read_overrides
from .settings import GgmlSettings
from .speculation import draft_flags
from .transformer_graph import GraphSettings, ModelGraph

IK_CACHE_TYPES = {"q6_0": (32, 26), "q8_kv": (32, 34)}
"""Cache type that only ik_llama.cpp has → elements and bytes of a block."""

CACHE_BLOCKS = {
    ggml_type.lower(): (block_elements, block_bytes) for ggml_type, block_elements, block_bytes in GGML_TYPES.values()
} | IK_CACHE_TYPES
"""Cache type → elements and bytes of a block."""


def cache_bytes(type_name: str, element_count: int) -> int:
    """Returns the bytes of `element_count` cached elements in a ggml number format."""
    block_elements, block_bytes = CACHE_BLOCKS[type_name]
    return -(-element_count // block_elements) * block_bytes


class BufferSizes(NamedTuple):
    """The bytes of a server's tensors, caches and compute buffers by device, including the host."""

    model_bytes: Mapping[str, int]
    cache_bytes: Mapping[str, int]
    compute_bytes: Mapping[str, int]

    def bytes_on(self, device: str) -> int:
        """Returns the bytes of all buffers of a device."""
        return sum(bytes_by_device.get(device, 0) for bytes_by_device in self)

    def with_added_buffers(self, further_buffers: BufferSizes) -> BufferSizes:
        """Returns the buffer sizes plus those of further buffers, such as a draft model's."""

        def add_sizes(bytes_by_device: Mapping[str, int], further_sizes: Mapping[str, int]) -> dict[str, int]:
            return {
                device: bytes_by_device.get(device, 0) + further_sizes.get(device, 0)
                for device in {**bytes_by_device, **further_sizes}
            }

        return BufferSizes(*map(add_sizes, self, further_buffers))


@frozen(eq=False)
class GgmlServer(GgmlSettings):
    """A server of a model and optionally a draft model, and the buffers that it allocates on each device."""

    @cached_property
    def draft_server(self) -> GgmlServer | None:
        """The draft model as a server with the same context; None without a draft model."""
        if self.draft_model is None:
            return None
        flags = draft_flags(self.flags, self.context_tokens, self.slot_count, self.has_unified_cache)
        draft_server = replace(self, preset=self.draft_model.preset, flags=flags)
        draft_server.__dict__["model"] = self.draft_model
        return draft_server

    @cached_property
    def overrides(self) -> tuple[TensorOverride, ...]:
        """The rules of --override-tensor: patterns for tensor names, each with a device."""
        override_text = self.flags.get("override_tensor")
        return () if override_text is None else read_overrides(str(override_text), self.devices)

    @cached_property
    def placement(self) -> TensorDevices:
        """The device of each tensor by the flags, without the changes that --fit makes."""
        layer_devices = LayerDevices(
            len(self.model.layers), self.devices, self.layers_on_gpus, self.layer_shares, self.rules.output_counts_first
        )
        layer_count = len(self.model.layers)
        host_expert_layer_count = layer_count if self.flags.get("cpu_moe") else int(self.flags.get("n_cpu_moe", 0))
        host_dense_layer_count = int(self.flags.get("n_cpu_ffn", 0))
        return TensorDevices(
            layer_devices,
            self.overrides,
            host_experts=frozenset(range(min(host_expert_layer_count, layer_count))),
            host_networks=frozenset(range(min(host_dense_layer_count, layer_count))),
        )

    @cached_property
    def encoder_shape(self) -> EncoderShape | None:
        """The properties of the image encoder that determine its graph; None if its graph is not known."""
        if not self.encoder_bytes or not self.counts_encoder_graph or self.rules.encoder == "none":
            return None
        return encoder_shape(self.preset.model.towers)

    @cached_property
    def encoder_buffers(self) -> Mapping[str, int]:
        """The bytes by device of the image encoder's compute buffer, for the warm-up image."""
        if self.encoder_shape is None:
            return {}
        has_flash_attention = self.rules.encoder == "flash" and self.uses_flash_attention
        return encoder_buffers(self.encoder_shape, encoder_device(self.flags, self.devices), has_flash_attention)

    def model_buffers(self, tensor_placement: TensorDevices) -> dict[str, int]:
        """Returns the bytes of tensors by device, including those of an image encoder."""
        bytes_by_device: dict[str, int] = {HOST_DEVICE: 0, **dict.fromkeys(self.devices, 0)}
        for tensor, device in placed_tensors(self.model, tensor_placement):
            bytes_by_device[device] += tensor.nbytes
        bytes_by_device[encoder_device(self.flags, self.devices)] += self.encoder_bytes
        return bytes_by_device

    def cache_bytes_of_layer(self, layer: LayerShape) -> tuple[int, int]:
        """Returns the bytes of a layer's cached keys and values over all streams; recurrent states count as keys.

        Keys of an indexer, and entries for several tokens, count as keys too.
        """
        index_key_bytes, index_value_bytes = self._indexer_cache(layer)
        if layer.latent_sizes is not None:
            key_bytes, value_bytes = self._latent_cache(layer)
            return key_bytes + index_key_bytes, value_bytes
        stream_count = self.slot_count if layer.compressed_caches else self.stream_count
        cell_count = self.window_cells(layer.window) * stream_count
        if layer.compressed_caches:
            index_key_bytes += self._entry_cache(layer)
        key_bytes = cell_count * cache_bytes(self.key_type, layer.key_width) if layer.key_width else 0
        value_bytes = cell_count * cache_bytes(self.value_type, layer.value_width) if layer.value_width else 0
        state_bytes = (
            layer.state_elements * self.slot_count * (1 + (self.drafted_tokens if self.is_drafting_with_mtp else 0))
        )
        return key_bytes + index_key_bytes + 4 * state_bytes, value_bytes + index_value_bytes

    def _indexer_cache(self, layer: LayerShape) -> tuple[int, int]:
        """Returns the bytes of an indexer's cached keys, and of values that are allocated beside them.

        Sources: src/llama-kv-cache-dsa.cpp, src/llama-kv-cache-msa.cpp (with values), src/llama-memory-hybrid-idx.cpp;
        ik_llama.cpp: src/llama.cpp, `kr_l`.
        """
        if not layer.index_width or not self.rules.caches_indexers:
            return 0, 0
        index_type = "f16" if self.rules.style == "ik" else self.key_type
        has_states = any(other_layer.state_elements for other_layer in self.model.layers)
        index_values = 0 if has_states else layer.index_value_width
        return (
            self.cache_cells * cache_bytes(index_type, layer.index_width),
            self.cache_cells * cache_bytes(self.value_type, index_values) if index_values else 0,
        )

    def _entry_cache(self, layer: LayerShape) -> int:
        """Returns the bytes of cached compressed vectors, and of float32 states for tokens not yet compressed.

        Every sequence has its own (src/llama-kv-cache-dsv4.cpp).
        """
        cell_padding = self.rules.cell_padding
        vector_bytes: int = sum(
            round_up(-(-self.sequence_cells // compressed_cache.tokens_per_entry), cell_padding)
            * cache_bytes(self.key_type, compressed_cache.width)
            + 4 * compressed_cache.state_elements
            for compressed_cache in layer.compressed_caches
        )
        return vector_bytes * self.slot_count

    def _latent_cache(self, layer: LayerShape) -> tuple[int, int]:
        assert layer.latent_sizes is not None
        cell_count, (latent_rank, rope_dim, nope_dim, value_dim, _) = self.cache_cells, layer.latent_sizes
        if self.latent_mode == 0:
            key_bytes = cell_count * cache_bytes(self.key_type, layer.head_count * (nope_dim + rope_dim))
            return key_bytes, cell_count * cache_bytes(self.value_type, layer.head_count * value_dim)
        keeps_latents_alone = self.rules.latent_cache != "modes" or self.uses_flash_attention or self.latent_mode == 1
        key_bytes = cell_count * cache_bytes(
            self.key_type if keeps_latents_alone else self.value_type, latent_rank + rope_dim
        )
        has_values = self.rules.latent_cache == "keys and values" or (
            self.rules.latent_cache == "modes" and self.latent_mode == 1 and not self.uses_flash_attention
        )
        return key_bytes, cell_count * cache_bytes(self.value_type, latent_rank) if has_values else 0

    def cache_buffers(self, tensor_placement: TensorDevices) -> dict[str, int]:
        """Returns the bytes of caches by device; a layer's cache is on the layer's device."""
        bytes_by_device: dict[str, int] = {}
        for layer_index, layer in enumerate(self.model.layers):
            device = (
                tensor_placement.layer_devices.device(layer_index) if self.is_cache_on_layer_device else HOST_DEVICE
            )
            bytes_by_device[device] = bytes_by_device.get(device, 0) + sum(self.cache_bytes_of_layer(layer))
        return bytes_by_device

    def compute_buffers(self, tensor_placement: TensorDevices) -> dict[str, int]:
        """Returns the bytes by device of the compute buffers for one micro-batch."""
        return self.graph_buffers(tensor_placement, dict(enumerate(self.model.layers)))

    def graph_buffers(
        self,
        tensor_placement: TensorDevices,
        layers: Mapping[int, LayerShape],
        other_tensors: Iterable[GgufTensor] = (),
    ) -> dict[str, int]:
        """Returns the bytes by device of these layers' compute buffers. other_tensors: further loaded tensors."""
        size_and_device_by_name = {
            tensor.name: (tensor.nbytes, device) for tensor, device in placed_tensors(self.model, tensor_placement)
        } | {tensor.name: (tensor.nbytes, tensor_placement.device(tensor)) for tensor in other_tensors}
        version_rules, layer_count = self.rules, len(self.model.layers)
        output_rows = self.slot_count * (1 + self.drafted_tokens)
        logit_rows = (
            self.micro_batch_tokens if version_rules.outputs == "tokens" else min(self.micro_batch_tokens, output_rows)
        )
        window_sizes = {layer.window for layer in layers.values()}
        graph_settings = GraphSettings(
            tokens=self.micro_batch_tokens,
            logit_rows=logit_rows,
            cells_by_window={window_size: self.window_cells(window_size) for window_size in window_sizes},
            uses_flash_attention=self.uses_flash_attention,
            cache_bytes_of_layer=self.cache_bytes_of_layer,
            key_type_bytes=cache_bytes(self.key_type, 256),
            value_type_bytes=cache_bytes(self.value_type, 256),
            stream_count=self.stream_count,
            sequence_count=self.slot_count,
            latent_mode=self.latent_mode,
            attention_batch_mib=int(self.flags.get("attention_max_batch", version_rules.attention_max_batch)),
            fused_experts=bool(self.flags.get("fused_moe", version_rules.fused_moe)),
            has_gpus=bool(self.devices),
            keeps_attention=self.is_cache_on_layer_device,
            is_fully_offloaded=self.layers_on_gpus > layer_count,
            may_move_weights=not self.flags.get("no_op_offload") and not self.flags.get("run_time_repack"),
            mtp_draft_tokens=self.drafted_tokens if self.is_drafting_with_mtp else 0,
            has_query_gates=any(layer.delta_net is not None for layer in self.model.layers),
            is_mtp_module=min(layers) >= layer_count,
        )
        moved_tokens = graph_settings.tokens if graph_settings.may_move_weights and self.devices else 0
        layer_keys = self._layer_keys(tensor_placement, size_and_device_by_name, moved_tokens, layers)
        graph_indices = [list(layers)[layer_index] for layer_index in layers_with_graphs(layer_keys)]
        model_graph = ModelGraph(
            version_rules.graph_rules,
            graph_settings,
            self.model.hidden_size,
            self.model.vocab_size,
            {layer_index: layers[layer_index] for layer_index in graph_indices},
            max(layers) + 1,
            tensor_placement.layer_devices.device,
            size_and_device_by_name.get,
        )
        is_pipelined = (
            len(self.devices) > 1
            and self.layers_on_gpus > layer_count
            and self.flags.get("split_mode", "layer") == "layer"
            and self.is_cache_on_layer_device
            and not tensor_placement.has_overrides
        )
        return buffer_sizes(model_graph.build_graph(), self.devices, is_pipelined)

    def _layer_keys(
        self,
        tensor_placement: TensorDevices,
        size_and_device_by_name: Mapping[str, tuple[int, str]],
        moved_tokens: int,
        layers: Mapping[int, LayerShape],
    ) -> list[Hashable]:
        """Returns the key of each layer; layers with equal keys have equal compute graphs.

        The bytes of a weight are part of it only where an operation may copy the weight to another device.
        moved_tokens: tokens of a micro-batch, 0 where no operation moves to a GPU.
        """
        version_rules = self.rules.graph_rules
        tensors_by_layer: dict[int, list[GgufTensor]] = {}
        for tensor in self.model.tensors:
            if tensor.layer_index is not None:
                tensors_by_layer.setdefault(tensor.layer_index, []).append(tensor)
        layer_keys: list[Hashable] = []
        for layer_index, layer in layers.items():
            layer_tensors = tensors_by_layer.get(layer_index, ())
            expert_devices = {
                size_and_device_by_name[tensor.name][1] for tensor in layer_tensors if EXPERT_TENSORS.match(tensor.name)
            }
            weight_keys = []
            for tensor in layer_tensors:
                tensor_bytes, device = size_and_device_by_name[tensor.name]
                if EXPERT_TENSORS.match(tensor.name):
                    copies_experts = len(expert_devices) > 1 or (
                        device == HOST_DEVICE and version_rules.are_experts_moved(moved_tokens, layer)
                    )
                else:
                    copies_experts = device == HOST_DEVICE and version_rules.is_product_moved(moved_tokens)
                weight_keys.append(
                    (tensor.name.partition(f"blk.{layer_index}.")[2], device, tensor_bytes if copies_experts else 0)
                )
            layer_keys.append((id(layer), tensor_placement.layer_devices.device(layer_index), tuple(weight_keys)))
        return layer_keys

    def buffers(self, tensor_placement: TensorDevices) -> BufferSizes:
        """Returns the bytes of tensors, caches and compute buffers by device."""
        buffers = BufferSizes(
            self.model_buffers(tensor_placement),
            self.cache_buffers(tensor_placement),
            self.compute_buffers(tensor_placement),
        )
        if self.encoder_buffers:
            buffers = buffers.with_added_buffers(BufferSizes({}, {}, self.encoder_buffers))
        if self.is_drafting_with_mtp:
            buffers = buffers.with_added_buffers(self.module_buffers(tensor_placement))
        if self.draft_server is None:
            return buffers
        return buffers.with_added_buffers(self.draft_server.buffers(self.draft_server.placement))

    @property
    def file_bytes(self) -> int:
        """The bytes of the tensors in all files: those of the model, the draft model and the image encoder."""
        total_bytes = self.model.file_bytes + self.encoder_bytes
        if self.modules_file is not None or (self.is_drafting_with_mtp and self.model.gguf_file is None):
            total_bytes += sum(tensor.nbytes for tensor in self.module_tensors)
        return total_bytes + (0 if self.draft_server is None else self.draft_server.model.file_bytes)

    @cached_property
    def module_tensors(self) -> tuple[GgufTensor, ...]:
        """The tensors of multi-token-prediction modules, which are in a separate file or in the model's file."""
        if self.modules_file is None:
            return self.model.mtp_tensors
        shared_tensors = (tensor for tensor in self.modules_file.tensors if tensor.layer_index is None)
        return (*self.modules_file.mtp_tensors, *shared_tensors)

    def module_buffers(self, tensor_placement: TensorDevices) -> BufferSizes:
        """Returns the buffers for multi-token-prediction modules, which are additional layers after the decoder's.

        They have a cache of the draft's types and a graph that returns the logits of one token of each slot.
        """
        layer_count, mtp_modules = len(self.model.layers), self.model.mtp_modules
        cache_types = {
            f"cache_type_{key_or_value}": self.flags.get(f"cache_type_{key_or_value}_draft", "f16")
            for key_or_value in "kv"
        }
        module_server = self.with_flags(**cache_types, spec_type="none")
        tensor_sizes: dict[str, int] = {}
        for tensor in self.module_tensors:
            device = tensor_placement.device(tensor)
            tensor_sizes[device] = tensor_sizes.get(device, 0) + tensor.nbytes
        cache_device = (
            tensor_placement.layer_devices.device(layer_count) if self.is_cache_on_layer_device else HOST_DEVICE
        )
        cache_sizes = {
            cache_device: sum(sum(module_server.cache_bytes_of_layer(module_shape)) for module_shape in mtp_modules)
        }
        module_layers = {
            layer_count + module_index: module_shape for module_index, module_shape in enumerate(mtp_modules)
        }
        return BufferSizes(
            tensor_sizes,
            cache_sizes,
            module_server.graph_buffers(tensor_placement, module_layers, (self.modules_file or self.model).mtp_tensors),
        )

    def with_flags(self, **changed_flags: Any) -> GgmlServer:
        """Returns the server with changed flags, which shares the model."""
        return self.reuse_model_of(replace(self, flags={**self.flags, **changed_flags}))

    def reuse_model_of(self, other_server: GgmlServer) -> GgmlServer:
        """Gives another server this server's model, so that it is read only once, and returns the other server."""
        other_server.__dict__["model"] = self.model
        other_server.__dict__["draft_model"] = self.draft_model
        other_server.__dict__["encoder_bytes"] = self.encoder_bytes
        if (self.flags.get("override_tensor"), self.devices) == (
            other_server.flags.get("override_tensor"),
            other_server.devices,
        ):
            other_server.__dict__["overrides"] = self.overrides
        return other_server
