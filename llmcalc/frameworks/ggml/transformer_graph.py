"""Builds the compute graph of one micro-batch as llama.cpp and ik_llama.cpp do, to compute its buffers.

Sources: src/llama-graph.cpp and src/models/*.cpp of llama.cpp, src/llama.cpp of ik_llama.cpp (`llm_build_context`).
Operations on a few bytes per token (the choice of experts, positions) are left out or merged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from ..engines.engine import HOST_DEVICE
from .compute_graph import ComputeGraph, Tensor
from .gguf_model import OUTPUT_TENSOR, DeltaNetSizes, LayerShape

F32_BYTES, F16_BYTES, I32_BYTES, I64_BYTES = 4, 2, 4, 8

MASK_ROW_MULTIPLE = 64
"""Masks are padded to a multiple of this number of rows (GGML_KQ_MASK_PAD)."""

MIB = 2**20

SMALLEST_ROTATION_ROWS = 64
"""Number of rows of the smallest matrix that rotates heads before a quantized cache."""

GraphStyle: TypeAlias = Literal["ik", "glu", "silu"]
"""How networks and norms are computed.

ik: norms and gates are one operation each, experts are summed at once. glu: gates are one operation, experts are summed
one by one. silu: activation and product are two operations, in place.
"""


@dataclass(frozen=True)
class GraphRules:
    """The rules for compute graphs in a version of an engine; `presets/engines/llama_cpp.toml` explains the fields."""

    style: GraphStyle
    mask_f16: bool = False
    store_rows: bool = False
    pad_mask: bool = True
    vector_input: bool = False
    least_moved_tokens: int = 32
    moves_by_expert: bool = False
    fused_delta_net: bool = False
    rotates_vectors: bool = False

    def is_product_moved(self, token_count: int) -> bool:
        """Whether a matrix product with a weight on the host is computed on a GPU for this number of tokens."""
        return token_count >= self.least_moved_tokens

    def are_experts_moved(self, token_count: int, layer: LayerShape) -> bool:
        """Whether products with experts on the host are computed on a GPU for this number of tokens."""
        moves_whole_experts = token_count * layer.top_k >= self.least_moved_tokens * layer.expert_count
        return self.is_product_moved(token_count) and (moves_whole_experts or not self.moves_by_expert)


@dataclass(frozen=True)
class GraphSettings:
    """The settings of a server that determine its compute graph.

    tokens: tokens of a micro-batch. logit_rows: rows of logits. stream_count: caches with sequences of their own.
    cells_by_window: cells of the cache by window (None: full layers).
    uses_flash_attention: whether attention is one operation.
    cache_bytes_of_layer: a layer → the bytes of its keys and of its values.
    key_type_bytes, value_type_bytes: bytes of 256 cached keys, and of 256 values.
    latent_mode: 0 where latent attention is expanded; ik's mode of it.
    attention_batch_mib: ik's bound on one product of latent attention, 0 for none. fused_experts: ik's -fmoe.
    has_gpus: whether there is a GPU at all. keeps_attention: whether attention is where its layer is.
    is_fully_offloaded: whether all layers and the output are on GPUs. may_move_weights: whether products of weights on
        the host may run on a GPU.
    """

    tokens: int
    logit_rows: int
    cells_by_window: Mapping[int | None, int]
    uses_flash_attention: bool
    cache_bytes_of_layer: Callable[[LayerShape], tuple[int, int]]
    key_type_bytes: int = 512
    value_type_bytes: int = 512
    stream_count: int = 1
    sequence_count: int = 1
    latent_mode: int = 0
    attention_batch_mib: int = 0
    fused_experts: bool = False
    has_gpus: bool = True
    keeps_attention: bool = True
    is_fully_offloaded: bool = True
    may_move_weights: bool = True
    mtp_draft_tokens: int = 0
    has_query_gates: bool = False
    is_mtp_module: bool = False

    @property
    def key_type_is_f16(self) -> bool:
        return self.key_type_bytes == 512


@dataclass
class ModelGraph:
    """Builds the compute graph of one micro-batch of a model.

    hidden_size, vocab_size: the model's hidden size, and the entries of its vocabulary.
    layers: the layers that are laid out, by their index. layer_count: layers of the model.
    device_of_layer: index of a layer → its device; the index after the last one is the output's.
    weight_location: name of a tensor → its bytes and its device; None if the model has no such tensor.
    """

    rules: GraphRules
    settings: GraphSettings
    hidden_size: int
    vocab_size: int
    layers: Mapping[int, LayerShape]
    layer_count: int
    device_of_layer: Callable[[int], str]
    weight_location: Callable[[str], tuple[int, str] | None]
    graph: ComputeGraph = field(default_factory=ComputeGraph)
    _masks: dict[int | None, Tensor] = field(default_factory=dict)
    _mask_inputs: dict[int | None, Tensor] = field(default_factory=dict)
    _rotations: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        token_count = self.settings.tokens
        self.positions = Tensor(token_count * I32_BYTES, operation_name="input", dimensions=(token_count,))
        self.row_numbers = Tensor(token_count * I64_BYTES, operation_name="input", dimensions=(token_count, 8))

    # -- primitives ----------------------------------------------------------------------------------------------

    def _weight(self, weight_name: str, layer_index: int | None) -> Tensor:
        bytes_and_device = self.weight_location(weight_name)
        device = HOST_DEVICE if layer_index is None else self.device_of_layer(layer_index)
        tensor_bytes, weight_device = bytes_and_device if bytes_and_device is not None else (0, device)
        return Tensor(tensor_bytes, operation_name="weight", device=weight_device)

    def _new_tensor(
        self,
        dimensions: tuple[int, ...],
        *source_tensors: Tensor,
        element_bytes: int = F32_BYTES,
        may_move: bool = False,
    ) -> Tensor:
        tensor_bytes = element_bytes
        for dimension in dimensions:
            tensor_bytes *= dimension
        return Tensor(tensor_bytes, source_tensors, "new", (*dimensions, element_bytes), may_move=may_move)

    def _new_tensor_in_format(self, dimensions: tuple[int, ...], block_bytes: int, *source_tensors: Tensor) -> Tensor:
        """Adds a tensor in a number format that takes `block_bytes` bytes per 256 elements."""
        tensor_bytes = block_bytes
        for dimension in dimensions:
            tensor_bytes *= dimension
        return Tensor(tensor_bytes // 256, source_tensors)

    def _inplace_result(self, replaced_tensor: Tensor, *source_tensors: Tensor, may_move: bool = False) -> Tensor:
        return Tensor(replaced_tensor.nbytes, source_tensors, "inplace", replaced_tensor.dimensions, may_move=may_move)

    def _view(self, input_tensor: Tensor, dimensions: tuple[int, ...] | None, has_offset: bool = False) -> Tensor:
        """Returns a view of a tensor. has_offset: whether it begins after the tensor's first element."""
        layout = (
            None
            if dimensions is None
            else (*dimensions, input_tensor.dimensions[-1] if input_tensor.dimensions else F32_BYTES)
        )
        return Tensor(input_tensor.nbytes, (input_tensor,), "view", layout, has_offset=has_offset)

    def matmul(
        self, weight_name: str, layer_index: int | None, output_width: int, input_tensor: Tensor, token_count: int
    ) -> Tensor:
        weight = self._weight(weight_name, layer_index)
        return self._new_tensor((output_width, token_count), weight, input_tensor, may_move=self._is_moved(token_count))

    def _is_moved(self, token_count: int) -> bool:
        """Whether an operation with a weight on the host is computed on a GPU for this many tokens (`offload_op`)."""
        return self.rules.is_product_moved(token_count) and self.settings.may_move_weights

    def norm(self, weight_name: str, layer_index: int | None, input_tensor: Tensor) -> Tensor:
        weight = self._weight(weight_name, layer_index)
        token_count = input_tensor.dimensions[-2] if input_tensor.dimensions else 0
        may_move = self._is_moved(token_count)
        if self.rules.style == "ik":
            return Tensor(
                input_tensor.nbytes, (input_tensor, weight), "new", input_tensor.dimensions, may_move=may_move
            )
        normed_tensor = self._inplace_result(input_tensor, input_tensor)
        if layer_index is not None and self.settings.is_fully_offloaded:
            normed_tensor.device = self.device_of_layer(layer_index)
        return self._inplace_result(normed_tensor, normed_tensor, weight, may_move=may_move)

    def mask(self, window: int | None) -> Tensor:
        """Returns the attention mask for layers with this window, in 16 bits for flash attention."""
        if window not in self._masks:
            token_count = self.settings.tokens // self.settings.stream_count
            padded_rows = (
                -(-token_count // MASK_ROW_MULTIPLE) * MASK_ROW_MULTIPLE if self.rules.pad_mask else token_count
            )
            mask_cells = self.settings.cells_by_window[window] * self.settings.stream_count
            uses_flash_attention = self.settings.uses_flash_attention
            element_bytes = F16_BYTES if uses_flash_attention and self.rules.mask_f16 else F32_BYTES
            mask_input = Tensor(
                mask_cells * padded_rows * element_bytes,
                operation_name="input",
                dimensions=(mask_cells, padded_rows, element_bytes),
            )
            self._mask_inputs[window] = mask_input
            is_converted = uses_flash_attention and not self.rules.mask_f16
            if is_converted:
                self._masks[window] = self._new_tensor((mask_cells, padded_rows), mask_input, element_bytes=F16_BYTES)
            else:
                self._masks[window] = mask_input
        return self._masks[window]

    def rotation_matrix(self, head_size: int, type_bytes: int, column_limit: int = 0) -> Tensor | None:
        """Returns the matrix that rotates heads before a block-quantized cache (src/llama-kv-cache.cpp), or None.

        head_size: elements of a head. type_bytes: bytes of 256 cached elements. column_limit: 0 for any.
        """
        if not self.rules.rotates_vectors or type_bytes >= F16_BYTES * 256 or head_size % SMALLEST_ROTATION_ROWS:
            return None
        matrix_size = SMALLEST_ROTATION_ROWS
        while head_size % (2 * matrix_size) == 0 and (not column_limit or 2 * matrix_size <= column_limit):
            matrix_size *= 2
        return self._rotations.setdefault(
            (matrix_size, column_limit), Tensor(matrix_size * matrix_size * F32_BYTES, operation_name="input")
        )

    def apply_rotation(self, input_tensor: Tensor, dimensions: tuple[int, ...], matrix: Tensor | None) -> Tensor:
        """Returns the product of heads and a rotation matrix; the heads unchanged if the matrix is None."""
        if matrix is None:
            return input_tensor
        return self._view(self._new_tensor(dimensions, matrix, self._view(input_tensor, None)), dimensions)

    # -- attention -----------------------------------------------------------------------------------------------

    def _store_in_cache(self, cache: Tensor, input_tensor: Tensor) -> Tensor:
        row_numbers = (self.row_numbers,) if self.rules.store_rows else ()
        return Tensor(0, (input_tensor, *row_numbers, cache), "store")

    def attention(self, layer_index: int, layer: LayerShape, normed_input: Tensor) -> Tensor:
        """Adds the attention of layer `layer_index`: projections, cache, attention and output projection."""
        settings, token_count = self.settings, self.settings.tokens
        cache_device = self.device_of_layer(layer_index) if settings.keeps_attention else HOST_DEVICE
        key_cache, value_cache = (
            Tensor(cache_bytes, operation_name="cache", device=cache_device)
            for cache_bytes in settings.cache_bytes_of_layer(layer)
        )
        head_dim, head_count = layer.head_dim, layer.head_count
        key_head_count = max(1, layer.key_width // head_dim) if head_dim else 1
        value_dim = layer.value_width // key_head_count
        gate_width = layer.attention_gate_width if settings.has_query_gates else 0
        query_and_gate = self.matmul(
            f"blk.{layer_index}.attn_q.weight",
            layer_index,
            head_count * head_dim + gate_width,
            normed_input,
            token_count,
        )
        if not layer.key_width:
            return self._attention_over_shared_cache(layer_index, layer, query_and_gate, key_cache, value_cache)
        key = self.matmul(f"blk.{layer_index}.attn_k.weight", layer_index, layer.key_width, normed_input, token_count)
        value = self.matmul(
            f"blk.{layer_index}.attn_v.weight", layer_index, layer.value_width, normed_input, token_count
        )
        query = self._view(query_and_gate, (head_dim, head_count, token_count))
        key = self._view(key, (head_dim, key_head_count, token_count))
        if gate_width:
            query = self._new_tensor(
                (head_dim, head_count, token_count), query
            )  # its norm, out of place beside the gate
        if self.weight_location(f"blk.{layer_index}.attn_q_norm.weight") is not None:
            query = self.norm(f"blk.{layer_index}.attn_q_norm.weight", layer_index, query)
            key = self.norm(f"blk.{layer_index}.attn_k_norm.weight", layer_index, key)
        query = self._inplace_result(query, query, self.positions)
        key = self._inplace_result(key, key, self.positions)
        key_rotation = self.rotation_matrix(head_dim, settings.key_type_bytes)
        value_rotation = self.rotation_matrix(value_dim, settings.value_type_bytes, column_limit=SMALLEST_ROTATION_ROWS)
        query = self.apply_rotation(query, (head_dim, head_count, token_count), key_rotation)
        key = self.apply_rotation(key, (head_dim, key_head_count, token_count), key_rotation)
        value = self.apply_rotation(value, (value_dim, key_head_count, token_count), value_rotation)
        self.graph.add_operations(query, *((value, key) if self.rules.store_rows else (key, value)))
        self.graph.add_operations(self._store_in_cache(key_cache, key))
        if not settings.uses_flash_attention:
            value = self._view(value, None)
        self.graph.add_operations(self._store_in_cache(value_cache, value))
        heads_output = self._attend(
            self._view(query, None), key_cache, value_cache, head_count, value_dim, layer.window
        )
        self.graph.add_operations(heads_output)
        heads_output = self.apply_rotation(heads_output, (value_dim * head_count, token_count), value_rotation)
        if gate_width:
            gate = self._new_tensor((gate_width, token_count), self._view(query_and_gate, None, has_offset=True))
            heads_output = self._inplace_result(heads_output, heads_output, self._inplace_result(gate, gate))
        return self.matmul(
            f"blk.{layer_index}.attn_output.weight", layer_index, self.hidden_size, heads_output, token_count
        )

    def _attention_over_shared_cache(
        self, layer_index: int, layer: LayerShape, query: Tensor, key_cache: Tensor, value_cache: Tensor
    ) -> Tensor:
        """Adds attention of a layer that reads an earlier layer's cache (Gemma 3n, Gemma 4 E2B)."""
        token_count, head_dim, head_count = self.settings.tokens, layer.head_dim, layer.head_count
        query = self.norm(
            f"blk.{layer_index}.attn_q_norm.weight", layer_index, self._view(query, (head_dim, head_count, token_count))
        )
        query = self._inplace_result(query, query, self.positions)
        query = self.apply_rotation(
            query, (head_dim, head_count, token_count), self.rotation_matrix(head_dim, self.settings.key_type_bytes)
        )
        value_rotation = self.rotation_matrix(
            head_dim, self.settings.value_type_bytes, column_limit=SMALLEST_ROTATION_ROWS
        )
        self.graph.add_operations(query)
        heads_output = self._attend(self._view(query, None), key_cache, value_cache, head_count, head_dim, layer.window)
        self.graph.add_operations(heads_output)
        heads_output = self.apply_rotation(heads_output, (head_dim * head_count, token_count), value_rotation)
        return self.matmul(
            f"blk.{layer_index}.attn_output.weight", layer_index, self.hidden_size, heads_output, token_count
        )

    def _attend(
        self,
        query: Tensor,
        cached_keys: Tensor,
        cached_values: Tensor,
        head_count: int,
        value_dim: int,
        window_size: int | None,
    ) -> Tensor:
        """Adds attention to cached keys and values: one flash operation, or scores, softmax and weighted sums."""
        settings, token_count = self.settings, self.settings.tokens
        cache_cells = settings.cells_by_window[window_size]
        if settings.uses_flash_attention:
            weighted_values = self._new_tensor(
                (value_dim, head_count, token_count), query, cached_keys, cached_values, self.mask(window_size)
            )
            return self._view(weighted_values, (value_dim * head_count, token_count))
        scores = self._new_tensor((cache_cells, token_count, head_count), cached_keys, query)
        scores = self._inplace_result(scores, scores, self.mask(window_size))
        weighted_values = self._new_tensor((value_dim, token_count, head_count), cached_values, scores)
        merged_heads = self._new_tensor((value_dim * head_count, token_count), self._view(weighted_values, None))
        if not settings.keeps_attention:
            merged_heads.device = HOST_DEVICE
        return merged_heads

    def latent_attention(self, layer_index: int, layer: LayerShape, layer_input: Tensor) -> Tensor:
        """Adds multi-head latent attention: expands keys and values from latents, or absorbs the products (-mla)."""
        assert layer.latent_sizes is not None
        settings, token_count, latent_sizes = self.settings, self.settings.tokens, layer.latent_sizes
        latent_rank, rope_dim, nope_dim, _, q_lora_rank = latent_sizes
        head_count, head_dim = layer.head_count, nope_dim + rope_dim
        cache_device = self.device_of_layer(layer_index) if settings.keeps_attention else HOST_DEVICE
        cache = Tensor(settings.cache_bytes_of_layer(layer)[0], operation_name="cache", device=cache_device)
        query_source = layer_input
        if q_lora_rank:
            query_source = self.norm(
                f"blk.{layer_index}.attn_q_a_norm.weight",
                layer_index,
                self.matmul(f"blk.{layer_index}.attn_q_a.weight", layer_index, q_lora_rank, layer_input, token_count),
            )
        query = self.matmul(
            f"blk.{layer_index}.attn_q_b.weight" if q_lora_rank else f"blk.{layer_index}.attn_q.weight",
            layer_index,
            head_count * head_dim,
            query_source,
            token_count,
        )
        query_nope = self._view(query, None)
        query_rope = self._new_tensor(
            (rope_dim, head_count, token_count), self._view(query, None, has_offset=True), self.positions
        )
        compressed_latent = self.matmul(
            f"blk.{layer_index}.attn_kv_a_mqa.weight", layer_index, latent_rank + rope_dim, layer_input, token_count
        )
        key_rope = self._new_tensor(
            (rope_dim, token_count), self._view(compressed_latent, None, has_offset=True), self.positions
        )
        normed_latent = self._new_tensor(
            (latent_rank, token_count),
            self._view(compressed_latent, None),
            self._weight(f"blk.{layer_index}.attn_kv_a_norm.weight", layer_index),
        )
        if settings.latent_mode == 0:
            head_values = self._attend_expanded(
                layer_index, layer, normed_latent, key_rope, query_nope, query_rope, cache_device
            )
        else:
            cached_latent = self._new_tensor((latent_rank + rope_dim, token_count), key_rope, normed_latent)
            self.graph.add_operations(self._store_in_cache(cache, cached_latent))
            if (
                self.rules.style == "ik"
                and settings.latent_mode > 1
                and settings.uses_flash_attention
                and token_count >= 128
            ):
                head_values = self._attend_by_head_groups(layer_index, layer, cache, query_nope, query_rope)
            else:
                head_values = self._attend_absorbed(layer_index, layer, cache, query_nope, query_rope)
        self.graph.add_operations(head_values)
        return self.matmul(
            f"blk.{layer_index}.attn_output.weight", layer_index, self.hidden_size, head_values, token_count
        )

    def _attend_expanded(
        self,
        layer_index: int,
        layer: LayerShape,
        normed_latent: Tensor,
        key_rope: Tensor,
        query_nope: Tensor,
        query_rope: Tensor,
        cache_device: str,
    ) -> Tensor:
        """Adds latent attention to a cache that holds the expanded keys and values of every head."""
        assert layer.latent_sizes is not None
        token_count, (_, rope_dim, nope_dim, value_dim, _) = self.settings.tokens, layer.latent_sizes
        head_count = layer.head_count
        key_cache, value_cache = (
            Tensor(cache_bytes, operation_name="cache", device=cache_device)
            for cache_bytes in self.settings.cache_bytes_of_layer(layer)
        )
        keys_and_values = self.matmul(
            f"blk.{layer_index}.attn_kv_b.weight",
            layer_index,
            head_count * (nope_dim + value_dim),
            normed_latent,
            token_count,
        )
        value = self._new_tensor(
            (value_dim, head_count, token_count), self._view(keys_and_values, None, has_offset=True)
        )
        query = self._new_tensor((nope_dim + rope_dim, head_count, token_count), query_nope, query_rope)
        repeated_key_rope = self._new_tensor((rope_dim, head_count, token_count), key_rope, query_rope)
        key = self._new_tensor(
            (nope_dim + rope_dim, head_count, token_count), self._view(keys_and_values, None), repeated_key_rope
        )
        value = self._view(value, (value_dim * head_count, token_count))
        self.graph.add_operations(query, key, value, self._store_in_cache(key_cache, key))
        self.graph.add_operations(
            self._store_in_cache(value_cache, value if self.settings.uses_flash_attention else self._view(value, None))
        )
        return self._attend(self._view(query, None), key_cache, value_cache, head_count, value_dim, layer.window)

    def _attend_by_head_groups(
        self, layer_index: int, layer: LayerShape, cache: Tensor, query_nope: Tensor, query_rope: Tensor
    ) -> Tensor:
        """Adds latent attention that expands cached latents for one group of heads at a time (-mla 2 and 3).

        -amb bounds the MiB of the expanded keys and values of one group of heads.
        """
        assert layer.latent_sizes is not None
        settings, token_count = self.settings, self.settings.tokens
        _, rope_dim, nope_dim, value_dim, _ = layer.latent_sizes
        cell_count, head_count = settings.cells_by_window[layer.window], layer.head_count
        heads_per_group, key_value_mib = head_count, head_count * (nope_dim + value_dim) * cell_count * F32_BYTES // MIB
        memory_limit_mib = settings.attention_batch_mib
        while memory_limit_mib and key_value_mib > memory_limit_mib and heads_per_group % 2 == 0:
            heads_per_group, key_value_mib = heads_per_group // 2, key_value_mib // 2
        copy_type_bytes = F16_BYTES * 256 if settings.has_gpus else settings.key_type_bytes
        rotated_keys: Tensor = self._view(cache, None)
        if not settings.key_type_is_f16 and settings.has_gpus:
            rotated_keys = self._new_tensor((rope_dim, cell_count), rotated_keys, element_bytes=F16_BYTES)
        rotated_keys = self._new_tensor_in_format(
            (rope_dim, cell_count, heads_per_group), copy_type_bytes, rotated_keys
        )
        query = self._new_tensor((nope_dim + rope_dim, head_count, token_count), query_rope, query_nope)
        self.graph.add_operations(query)
        merged_output: Tensor | None = None
        for _ in range(head_count // heads_per_group):
            weight = self._weight(f"blk.{layer_index}.attn_kv_b.weight", layer_index)
            keys_and_values = self._new_tensor(
                (heads_per_group * (nope_dim + value_dim), cell_count), weight, self._view(cache, None)
            )
            value = self._new_tensor_in_format(
                (value_dim, cell_count, heads_per_group),
                copy_type_bytes,
                self._view(keys_and_values, None, has_offset=True),
            )
            key_nope = self._new_tensor_in_format(
                (nope_dim, cell_count, heads_per_group), copy_type_bytes, self._view(keys_and_values, None)
            )
            self.graph.add_operations(key_nope, value)
            key = self._new_tensor_in_format(
                (nope_dim + rope_dim, cell_count, heads_per_group), copy_type_bytes, rotated_keys, key_nope
            )
            self.graph.add_operations(key)
            weighted_values = self._new_tensor(
                (value_dim, heads_per_group, token_count), self._view(query, None), key, value, self.mask(layer.window)
            )
            merged_heads = self._view(weighted_values, (value_dim * heads_per_group, token_count))
            output_width = (
                0 if merged_output is None or merged_output.dimensions is None else merged_output.dimensions[0]
            )
            merged_output = (
                merged_heads
                if merged_output is None
                else self._new_tensor(
                    (output_width + value_dim * heads_per_group, token_count), merged_output, merged_heads
                )
            )
        assert merged_output is not None
        return merged_output

    def _attend_absorbed(
        self, layer_index: int, layer: LayerShape, cache: Tensor, query_nope: Tensor, query_rope: Tensor
    ) -> Tensor:
        """Adds latent attention to the cached latents themselves, with absorbed products."""
        assert layer.latent_sizes is not None
        settings, token_count = self.settings, self.settings.tokens
        latent_rank, rope_dim, _, value_dim, _ = layer.latent_sizes
        cell_count, head_count = settings.cells_by_window[layer.window], layer.head_count
        up_projection = self._weight(f"blk.{layer_index}.attn_kv_b.weight", layer_index)
        absorbed_query = self._new_tensor((latent_rank, token_count, head_count), up_projection, query_nope)
        if self.rules.style == "ik":
            query = self._new_tensor(
                (latent_rank + rope_dim, token_count, head_count), self._view(query_rope, None), absorbed_query
            )
        else:
            query = self._new_tensor(
                (latent_rank + rope_dim, head_count, token_count), self._view(absorbed_query, None), query_rope
            )
        uses_flash = settings.uses_flash_attention and (self.rules.style != "ik" or settings.latent_mode in (1, 3))
        if uses_flash:
            weighted_latents = self._new_tensor(
                (latent_rank, head_count, token_count), query, cache, self.mask(layer.window)
            )
        else:
            latents: Tensor = cache
            if self.rules.style != "ik" or settings.latent_mode > 1:
                latents = self._new_tensor(
                    (cell_count, latent_rank),
                    self._view(cache, None),
                    element_bytes=F16_BYTES if settings.key_type_is_f16 else F32_BYTES,
                )
            weighted_latents = self._attend_with_scores(
                query, cache, latents, cell_count, head_count, latent_rank, layer.window
            )
        head_values = self._new_tensor(
            (value_dim, token_count, head_count),
            self._weight(f"blk.{layer_index}.attn_kv_b.weight", layer_index),
            weighted_latents,
        )
        return self._new_tensor((value_dim * head_count, token_count), self._view(head_values, None))

    def _attend_with_scores(
        self,
        query: Tensor,
        cache: Tensor,
        cached_values: Tensor,
        cell_count: int,
        head_count: int,
        latent_rank: int,
        window_size: int | None,
    ) -> Tensor:
        """Adds scores and weighted sums of latents; ik's -amb limits the MiB of scores per group of heads."""
        token_count, mib_limit = self.settings.tokens, self.settings.attention_batch_mib
        scores_mib = cell_count * token_count * head_count * F32_BYTES // MIB
        step_count = 1 if not mib_limit or mib_limit >= scores_mib else min(-(-scores_mib // mib_limit), head_count)
        group_size, attention_output, finished_head_count = -(-head_count // step_count), None, 0
        while finished_head_count < head_count:
            group_head_count = min(group_size, head_count - finished_head_count)
            query_group = query if step_count == 1 else self._view(query, None, has_offset=True)
            scores = self._new_tensor((cell_count, token_count, group_head_count), cache, query_group)
            scores = self._inplace_result(scores, scores, self.mask(window_size))
            weighted_latents = self._new_tensor((latent_rank, token_count, group_head_count), cached_values, scores)
            finished_head_count += group_head_count
            attention_output = (
                weighted_latents
                if attention_output is None
                else self._new_tensor(
                    (latent_rank, token_count, finished_head_count), attention_output, weighted_latents
                )
            )
            if step_count > 1:
                self.graph.add_operations(attention_output)
        assert attention_output is not None
        return attention_output

    # -- networks ------------------------------------------------------------------------------------------------

    def apply_gate(self, gate: Tensor, up_output: Tensor) -> Tensor:
        if self.rules.style == "silu":
            activated_gate = self._inplace_result(gate, gate)
            return self._inplace_result(activated_gate, activated_gate, up_output)
        return Tensor(up_output.nbytes, (gate, up_output), "new", up_output.dimensions)

    def network(
        self,
        layer_index: int,
        name_suffix: str,
        inner_width: int,
        is_gated: bool,
        input_tensor: Tensor,
        token_count: int,
    ) -> Tensor:
        up_output = self.matmul(
            f"blk.{layer_index}.ffn_up{name_suffix}.weight", layer_index, inner_width, input_tensor, token_count
        )
        if is_gated:
            up_output = self.apply_gate(
                self.matmul(
                    f"blk.{layer_index}.ffn_gate{name_suffix}.weight",
                    layer_index,
                    inner_width,
                    input_tensor,
                    token_count,
                ),
                up_output,
            )
        else:
            up_output = self._inplace_result(up_output, up_output)
        return self.matmul(
            f"blk.{layer_index}.ffn_down{name_suffix}.weight", layer_index, self.hidden_size, up_output, token_count
        )

    def experts(self, layer_index: int, layer: LayerShape, input_tensor: Tensor, token_count: int) -> Tensor:
        """Adds the router, the routed experts, and the sum of the experts' outputs for layer `layer_index`."""
        expert_count, top_k, expert_width = layer.expert_count, layer.top_k, layer.expert_width
        may_move = self.rules.are_experts_moved(token_count, layer) and self.settings.may_move_weights

        def expert_product(weight_name: str, input_row_count: int, *source_tensors: Tensor) -> Tensor:
            return self._new_tensor(
                (input_row_count, top_k, token_count),
                self._weight(f"blk.{layer_index}.{weight_name}.weight", layer_index),
                *source_tensors,
                may_move=may_move,
            )

        logits = self.matmul(
            f"blk.{layer_index}.ffn_gate_inp.weight", layer_index, expert_count, input_tensor, token_count
        )
        router_probs = self._inplace_result(logits, logits)
        sorted_experts = self._new_tensor((expert_count, token_count), router_probs, element_bytes=I32_BYTES)
        chosen_experts = self._view(sorted_experts, None)
        expert_weights = self._new_tensor(
            (1, top_k, token_count), self._view(router_probs, (1, expert_count, token_count)), chosen_experts
        )
        if self.rules.store_rows:
            self.graph.add_operations(expert_weights)
        input_rows = self._view(input_tensor, (self.hidden_size, 1, token_count))
        if self.rules.style == "ik" and self.settings.fused_experts and layer.is_gated:
            gate_weight = self._weight(f"blk.{layer_index}.ffn_gate_exps.weight", layer_index)
            inner_states = expert_product("ffn_up_exps", expert_width, gate_weight, input_rows, chosen_experts)
        else:
            up_output = expert_product("ffn_up_exps", expert_width, input_rows, chosen_experts)
            inner_states = (
                self.apply_gate(expert_product("ffn_gate_exps", expert_width, input_rows, chosen_experts), up_output)
                if layer.is_gated
                else self._inplace_result(up_output, up_output)
            )
        down_product = expert_product("ffn_down_exps", self.hidden_size, inner_states, chosen_experts)
        down_product = self._inplace_result(down_product, down_product, expert_weights)
        if self.rules.style == "ik" or top_k == 1:
            return self._new_tensor((self.hidden_size, token_count), self._view(down_product, None))
        summed_output = self._new_tensor(
            (self.hidden_size, token_count),
            self._view(down_product, None),
            self._view(down_product, None, has_offset=True),
        )
        for _ in range(top_k - 2):
            summed_output = self._inplace_result(
                summed_output, summed_output, self._view(down_product, None, has_offset=True)
            )
        return summed_output

    def recurrence(self, layer_index: int, layer: LayerShape, normed_input: Tensor) -> Tensor:
        """Adds a recurrent layer: the input projection, the recurrence on its states, and the output projection."""
        token_count = self.settings.tokens
        projection_width = max(self.hidden_size, 2 * layer.head_count * layer.head_dim)
        state_cache = Tensor(0, operation_name="cache", device=self.device_of_layer(layer_index))
        projected_input = self.matmul(
            f"blk.{layer_index}.ssm_in.weight", layer_index, 2 * projection_width, normed_input, token_count
        )
        recurrence_output = self._new_tensor((projection_width, token_count), projected_input, state_cache)
        self.graph.add_operations(recurrence_output, self._store_in_cache(state_cache, recurrence_output))
        return self.matmul(
            f"blk.{layer_index}.ssm_out.weight", layer_index, self.hidden_size, recurrence_output, token_count
        )

    def delta_net(self, layer_index: int, net_sizes: DeltaNetSizes, normed_input: Tensor) -> Tensor:
        """Adds a Gated DeltaNet, whose recurrence is one operation (src/models/delta-net-base.cpp)."""
        token_count, sequence_count, head_count = (
            self.settings.tokens,
            self.settings.sequence_count,
            net_sizes.value_head_count,
        )
        cached_inputs = (net_sizes.convolution_kernel_size - 1) * net_sizes.channels
        state_elements = head_count * net_sizes.key_dim * net_sizes.value_dim
        value_shape = (net_sizes.value_dim, head_count, token_count)
        input_cache, state_cache = (
            Tensor(0, operation_name="cache", device=self.device_of_layer(layer_index)) for _ in range(2)
        )
        conv_inputs = self._new_tensor((cached_inputs, sequence_count), input_cache)
        self.graph.add_operations(normed_input, conv_inputs)
        qkv = self.matmul(
            f"blk.{layer_index}.attn_qkv.weight", layer_index, net_sizes.channels, normed_input, token_count
        )
        conv_inputs = self._new_tensor(
            (token_count * net_sizes.channels + cached_inputs * sequence_count,), conv_inputs, self._view(qkv, None)
        )
        # a copy on another device keeps the rows' distances, so that it is as large as all inputs
        self.graph.add_operations(self._store_in_cache(input_cache, self._view(conv_inputs, None, has_offset=True)))
        recurrent_state = self._new_tensor((state_elements, sequence_count), state_cache)
        self.graph.add_operations(recurrent_state)
        may_move = self._is_moved(token_count)
        conv_weight = self._weight(f"blk.{layer_index}.ssm_conv1d.weight", layer_index)
        conv_qkv = self._new_tensor((net_sizes.channels, token_count), conv_inputs, conv_weight, may_move=may_move)
        conv_qkv = self._inplace_result(conv_qkv, conv_qkv)
        query = self._new_tensor((net_sizes.key_width, token_count), self._view(conv_qkv, None))
        key = self._new_tensor((net_sizes.key_width, token_count), self._view(conv_qkv, None, has_offset=True))
        value = self._view(conv_qkv, None, has_offset=True)
        decay = self.matmul(f"blk.{layer_index}.ssm_alpha.weight", layer_index, head_count, normed_input, token_count)
        for operand_name in ("ssm_dt.bias", "", "ssm_a.weight"):  # sum, softplus and product
            operand_weights = (self._weight(f"blk.{layer_index}.{operand_name}", layer_index),) if operand_name else ()
            decay = self._inplace_result(decay, decay, *operand_weights, may_move=may_move)
        beta = self.matmul(f"blk.{layer_index}.ssm_beta.weight", layer_index, head_count, normed_input, token_count)
        beta = self._inplace_result(beta, beta)
        state_count = sequence_count * (1 + self.settings.mtp_draft_tokens)
        result_shape = (head_count * net_sizes.value_dim * token_count + state_elements * state_count,)
        recurrence_output = self._new_tensor(result_shape, query, key, value, decay, beta, recurrent_state)
        states_view = Tensor(state_elements * state_count * F32_BYTES, (recurrence_output,), "view", has_offset=True)
        self.graph.add_operations(self._store_in_cache(state_cache, states_view))
        value_bytes = head_count * net_sizes.value_dim * token_count * F32_BYTES
        output_values = Tensor(value_bytes, (recurrence_output,), "view", (*value_shape, F32_BYTES))
        normed_output = self.norm(f"blk.{layer_index}.ssm_norm.weight", layer_index, output_values)
        gate = self.matmul(
            f"blk.{layer_index}.attn_gate.weight",
            layer_index,
            head_count * net_sizes.value_dim,
            normed_input,
            token_count,
        )
        gate = self._view(gate, value_shape)
        normed_output = self._inplace_result(normed_output, normed_output, self._inplace_result(gate, gate))
        return self.matmul(
            f"blk.{layer_index}.ssm_out.weight",
            layer_index,
            self.hidden_size,
            self._view(normed_output, None),
            token_count,
        )

    # -- the model -----------------------------------------------------------------------------------------------

    def build_graph(self) -> ComputeGraph:
        """Builds the micro-batch's compute graph and returns it, with operations in execution order."""
        token_count = self.settings.tokens
        token_ids = Tensor(token_count * I32_BYTES, operation_name="input", dimensions=(token_count,))
        output_rows = Tensor(
            self.settings.logit_rows * I32_BYTES, operation_name="input", dimensions=(self.settings.logit_rows,)
        )
        embedding_table = Tensor(0, operation_name="weight", device=HOST_DEVICE)
        if self.rules.vector_input and not self.settings.is_mtp_module:
            self.graph.unread_inputs.append(Tensor(self.hidden_size * token_count * F32_BYTES, operation_name="input"))
        residual_stream = self._new_tensor((self.hidden_size, token_count), embedding_table, token_ids)
        if self.settings.is_mtp_module:
            residual_stream = self._mtp_input(residual_stream)
        keeps_all_tokens = self.settings.is_mtp_module or self.settings.mtp_draft_tokens > 0
        per_layer_vectors = self._per_layer_vectors(residual_stream)
        for layer_index, layer in self.layers.items():
            residual = residual_stream
            layer_output = self._mixer_output(layer_index, layer, residual_stream)
            if layer_index == self.layer_count - 1 and not keeps_all_tokens:
                token_count = self.settings.logit_rows
                layer_output = (
                    None
                    if layer_output is None
                    else self._new_tensor((self.hidden_size, token_count), layer_output, output_rows)
                )
                residual = self._new_tensor((self.hidden_size, token_count), residual, output_rows)
            residual_stream = (
                residual if layer_output is None else self._inplace_result(layer_output, layer_output, residual)
            )
            residual_stream = self._with_feed_forward(layer_index, layer, residual_stream, token_count)
            if per_layer_vectors is not None:
                layer_vectors = Tensor(
                    layer.per_layer_width * self.settings.tokens * F32_BYTES,
                    (per_layer_vectors,),
                    "view",
                    has_offset=layer_index > 0,
                )
                if token_count != self.settings.tokens:
                    layer_vectors = self._new_tensor((layer.per_layer_width, token_count), layer_vectors, output_rows)
                residual_stream = self._with_layer_vectors(
                    layer_index, layer, residual_stream, layer_vectors, token_count
                )
        normed_output = self.norm("output_norm.weight", None, residual_stream)
        if keeps_all_tokens:
            token_count = self.settings.logit_rows
            normed_output = self._new_tensor((self.hidden_size, token_count), normed_output, output_rows)
        self.graph.add_operations(
            self.matmul(OUTPUT_TENSOR, self.layer_count, self.vocab_size, normed_output, token_count)
        )
        return self.graph

    def _mtp_input(self, embeddings: Tensor) -> Tensor:
        """Adds a module's input projection of token embeddings and the model's hidden states (multi-token prediction).

        Source: `graph_mtp` of src/models/qwen35.cpp.
        """
        token_count, layer_index = self.settings.tokens, min(self.layers)
        model_states = Tensor(
            self.hidden_size * token_count * F32_BYTES,
            operation_name="input",
            dimensions=(self.hidden_size, token_count, F32_BYTES),
        )
        normed_states = self.norm(f"blk.{layer_index}.nextn.hnorm.weight", layer_index, model_states)
        embeddings = self.norm(f"blk.{layer_index}.nextn.enorm.weight", layer_index, embeddings)
        concatenated_states = self._new_tensor((2 * self.hidden_size, token_count), embeddings, normed_states)
        return self.matmul(
            f"blk.{layer_index}.nextn.eh_proj.weight", layer_index, self.hidden_size, concatenated_states, token_count
        )

    def _per_layer_vectors(self, embeddings: Tensor) -> Tensor | None:
        """Adds the vectors that each layer reads in addition (Gemma 3n and 4): table rows plus projected embeddings.

        None in a model without any.

        Source: `project_per_layer_inputs` of src/models/gemma4.cpp.
        """
        token_count, vector_width = self.settings.tokens, max(layer.per_layer_width for layer in self.layers.values())
        if not vector_width:
            return None
        vectors_shape = vector_width * self.layer_count, token_count
        token_ids = Tensor(token_count * I32_BYTES, operation_name="input", dimensions=(token_count,))
        embedding_vectors = self._new_tensor(
            vectors_shape, self._weight("per_layer_token_embd.weight", None), token_ids
        )
        embedding_vectors = self._inplace_result(embedding_vectors, embedding_vectors)
        self.graph.add_operations(embedding_vectors)
        projection = self.matmul("per_layer_model_proj.weight", None, vectors_shape[0], embeddings, token_count)
        projection = self.norm("per_layer_proj_norm.weight", None, self._inplace_result(projection, projection))
        summed_vectors = self._inplace_result(projection, projection, embedding_vectors)
        return self._new_tensor(vectors_shape, self._view(self._inplace_result(summed_vectors, summed_vectors), None))

    def _with_layer_vectors(
        self, layer_index: int, layer: LayerShape, residual_stream: Tensor, layer_vectors: Tensor, token_count: int
    ) -> Tensor:
        """Adds a layer's gated vector to the residual stream, and returns the sum."""
        gate = self.matmul(
            f"blk.{layer_index}.inp_gate.weight", layer_index, layer.per_layer_width, residual_stream, token_count
        )
        gated_vectors = self._inplace_result(gate, self._inplace_result(gate, gate), layer_vectors)
        layer_output = self.matmul(
            f"blk.{layer_index}.proj.weight", layer_index, self.hidden_size, gated_vectors, token_count
        )
        layer_output = self.norm(f"blk.{layer_index}.post_norm.weight", layer_index, layer_output)
        return self._inplace_result(residual_stream, residual_stream, layer_output)

    def _mixer_output(self, layer_index: int, layer: LayerShape, residual_stream: Tensor) -> Tensor | None:
        """Adds a layer's attention or recurrence and returns its output; None for a layer with neither."""
        if not layer.head_count and not layer.state_elements:
            return None
        normed_input = self.norm(f"blk.{layer_index}.attn_norm.weight", layer_index, residual_stream)
        if layer.latent_sizes is not None:
            attention_output = self.latent_attention(layer_index, layer, normed_input)
        elif layer.head_count:
            attention_output = self.attention(layer_index, layer, normed_input)
        elif layer.delta_net is not None and self.rules.fused_delta_net:
            attention_output = self.delta_net(layer_index, layer.delta_net, normed_input)
        else:
            attention_output = self.recurrence(layer_index, layer, normed_input)
        if self.weight_location(f"blk.{layer_index}.post_attention_norm.weight") is not None:
            attention_output = self.norm(f"blk.{layer_index}.post_attention_norm.weight", layer_index, attention_output)
        return attention_output

    def _with_feed_forward(
        self, layer_index: int, layer: LayerShape, residual_stream: Tensor, token_count: int
    ) -> Tensor:
        """Adds layer `layer_index`'s feed-forward network or experts to the residual stream, and returns the sum."""
        if not layer.feed_forward_width and not layer.expert_count:
            return residual_stream
        normed_input = self.norm(f"blk.{layer_index}.ffn_norm.weight", layer_index, residual_stream)
        if (
            layer.expert_count and layer.feed_forward_width
        ):  # Gemma 4 26B-A4B: a dense network beside the experts, each with its norms
            dense_output = self.network(
                layer_index, "", layer.feed_forward_width, layer.is_gated, normed_input, token_count
            )
            dense_output = self.norm(f"blk.{layer_index}.post_ffw_norm_1.weight", layer_index, dense_output)
            normed_input = self.norm(f"blk.{layer_index}.pre_ffw_norm_2.weight", layer_index, residual_stream)
            network_output = self.norm(
                f"blk.{layer_index}.post_ffw_norm_2.weight",
                layer_index,
                self.experts(layer_index, layer, normed_input, token_count),
            )
            network_output = self._inplace_result(dense_output, dense_output, network_output)
        elif layer.expert_count:
            network_output = self.experts(layer_index, layer, normed_input, token_count)
            if layer.shared_width:
                shared_output = self.network(
                    layer_index, "_shexp", layer.shared_width, layer.is_gated, normed_input, token_count
                )
                network_output = self._inplace_result(network_output, network_output, shared_output)
        else:
            network_output = self.network(
                layer_index, "", layer.feed_forward_width, layer.is_gated, normed_input, token_count
            )
        if self.weight_location(f"blk.{layer_index}.post_ffw_norm.weight") is not None:
            network_output = self.norm(f"blk.{layer_index}.post_ffw_norm.weight", layer_index, network_output)
        return self._inplace_result(network_output, network_output, residual_stream)
