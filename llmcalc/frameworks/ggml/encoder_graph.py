"""Builds an image encoder's compute graph for one image, as llama.cpp's `clip_graph` does, for its buffer size.

Sources: tools/mtmd/clip.cpp (`build_vit`, `build_attn`, `build_ffn`, `warmup`) and tools/mtmd/models (siglip.cpp,
llava.cpp, pixtral.cpp, qwen2vl.cpp, qwen3vl.cpp). A server allocates the buffer when it starts, for a square image of
a fixed size (`warmup_image_size`). An encoder with another graph has no `EncoderShape`. The buffer is within 4 % of
logged ones, but for Qwen2-VL's with flash attention (15 % above) and Qwen2.5-VL's (6 % below).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

from ...components.inputs.fixed_size import FixedSize
from ...components.inputs.longest_edge import LongestEdge
from ...components.inputs.smart_resize import SmartResize
from ...components.layers.block import Block
from ...components.mixers.attention import Attention
from ...components.networks.feed_forward import FeedForward
from ...components.norm import Norm
from ...components.towers.base import TowerPart
from ...components.towers.projector import Projector
from ...components.towers.vision import VisionTower
from ..engines.engine import HOST_DEVICE
from .compute_graph import ComputeGraph, Tensor, buffer_sizes
from .layer_runs import layers_with_graphs
from .transformer_graph import F16_BYTES, F32_BYTES, I32_BYTES

GraphKind: TypeAlias = Literal["siglip", "llava", "pixtral", "qwen"]
"""Kind of an encoder's graph, by files of tools/mtmd/models; qwen: qwen2vl.cpp, or qwen3vl.cpp with a patch bias."""

TOKENS_PER_SIDE: Mapping[GraphKind, int] = {"qwen": 46, "pixtral": 16}
"""Kind of graph → tokens per side of the warm-up image, for images of any size (`set_warmup_n_tokens` in clip.cpp)."""


class EncoderShape(NamedTuple):
    """The properties of an image encoder that determine its compute graph.

    graph_kind: the kind of its compute graph.
    tower: the encoder.
    projector: the layers that compute tokens from its patches.
    deepstack: projectors that read earlier layers.
    grid_side: patches per side of the warm-up image.
    """

    graph_kind: GraphKind
    tower: VisionTower
    projector: Projector
    deepstack: tuple[Projector, ...]
    grid_side: int

    @property
    def image_side(self) -> int:
        """Pixels per side of the warm-up image."""
        return self.grid_side * self.tower.patches.patch_size

    @property
    def is_largest_image(self) -> bool:
        """Whether the warm-up image has as many patches as the largest image."""
        return self.graph_kind not in TOKENS_PER_SIDE


def encoder_shape(towers: Mapping[str, TowerPart]) -> EncoderShape | None:
    """Returns the properties of a model's only encoder; None if its compute graph is not known."""
    tower, projector, *deepstack_projectors = [*towers.values(), None, None][: max(2, len(towers))]
    if not isinstance(tower, VisionTower) or not isinstance(projector, Projector):
        return None
    if not all(
        isinstance(any_projector, Projector) and _is_plain_projector(any_projector)
        for any_projector in (projector, *deepstack_projectors)
    ):
        return None
    graph_kind = _graph_kind(tower, projector)
    if graph_kind is None or (deepstack_projectors and (graph_kind != "qwen" or not tower.patches.bias)):
        return None
    patch_size = tower.patches.patch_size
    if isinstance(tower.image, FixedSize):
        grid_side = tower.image.size // patch_size
    else:
        grid_side = TOKENS_PER_SIDE[graph_kind] * projector.merge
    return EncoderShape(
        graph_kind,
        tower,
        projector,
        tuple(any_projector for any_projector in deepstack_projectors if isinstance(any_projector, Projector)),
        grid_side,
    )


def _graph_kind(tower: VisionTower, projector: Projector) -> GraphKind | None:
    """Returns the name of an encoder's type of compute graph, by its components; None if it is not known."""
    stack = tower.stack
    if (
        tower.image is None
        or tower.registers
        or tower.merger is not None
        or tower.pooling is not None
        or tower.standardize
        or tower.clamps
        or not all(_is_plain_layer(layer) for layer in (stack.block, *stack.variants.values()))
    ):
        return None
    has_rope = isinstance(stack.block.attention, Attention) and stack.block.attention.position is not None
    has_position_table = tower.positions is not None and tower.positions.axes == 1
    image_input, has_mean_pooling = tower.image, projector.merged == "mean" and projector.merge > 1
    if isinstance(image_input, FixedSize) and has_position_table and not has_rope:
        if tower.class_embedding and projector.merge == 1:
            return "llava"
        return "siglip" if has_mean_pooling and not tower.class_embedding else None
    if tower.class_embedding or not has_rope or has_mean_pooling:
        return None
    if isinstance(image_input, LongestEdge) and tower.positions is None:
        return "pixtral"
    is_qwen = isinstance(image_input, SmartResize) and tower.patches.temporal_patch_size == 2 and projector.merge == 2
    return "qwen" if is_qwen and has_position_table == tower.patches.bias else None


def _is_plain_projector(projector: Projector) -> bool:
    return not (
        projector.resampler is not None
        or projector.stack is not None
        or projector.vocab_size
        or projector.frames > 1
        or projector.out_norm is not None
        or len(projector.maps) > 3
        or any(projector_map.gated for projector_map in projector.maps)
    )


def _is_plain_layer(layer: object) -> bool:
    return (
        isinstance(layer, Block)
        and layer.norm_placement == "pre"
        and layer.parallel is None
        and not layer.residual_scale
        and isinstance(layer.attention, Attention)
        and layer.attention.qk_norm is None
        and layer.attention.num_key_value_heads in (None, layer.attention.num_attention_heads)
        and isinstance(layer.feed_forward, FeedForward)
    )


def encoder_buffers(shape: EncoderShape, device: str, uses_flash_attention: bool) -> dict[str, int]:
    """Returns the bytes by device of the compute buffer of an encoder on `device`.

    uses_flash_attention: whether attention is one operation, else its scores are stored.
    """
    return buffer_sizes(
        _EncoderGraph(shape, device, uses_flash_attention).build_graph(), [] if device == HOST_DEVICE else [device]
    )


class _EncoderGraph:
    """The compute graph of an image encoder for the warm-up image.

    shape: the encoder. device: where its weights are. uses_flash_attention: whether attention is one operation.
    """

    def __init__(self, shape: EncoderShape, device: str, uses_flash: bool) -> None:
        self.shape, self.uses_flash_attention = shape, uses_flash
        self.hidden_size = shape.tower.hidden_size
        self.patch_count = shape.grid_side**2
        self.row_count = self.patch_count + shape.tower.prepended_vector_count
        self.graph = ComputeGraph()
        self.weight = Tensor(0, operation_name="weight", device=device)
        position_count = self.row_count * (4 if shape.graph_kind == "qwen" else 1)
        self.positions, self.columns = (
            Tensor(position_count * I32_BYTES, operation_name="input", dimensions=(position_count, I32_BYTES))
            for _ in range(2)
        )

    # -- primitives ----------------------------------------------------------------------------------------------

    @staticmethod
    def _new_tensor(dimensions: tuple[int, ...], *source_tensors: Tensor, element_bytes: int = F32_BYTES) -> Tensor:
        tensor_bytes = element_bytes
        for dimension in dimensions:
            tensor_bytes *= dimension
        return Tensor(tensor_bytes, source_tensors, "new", (*dimensions, element_bytes))

    @staticmethod
    def _inplace_result(replaced_tensor: Tensor, *source_tensors: Tensor) -> Tensor:
        return Tensor(replaced_tensor.nbytes, source_tensors, "inplace", replaced_tensor.dimensions)

    @staticmethod
    def _view(tensor: Tensor, dimensions: tuple[int, ...] | None, has_offset: bool = False) -> Tensor:
        layout = None if dimensions is None else (*dimensions, F32_BYTES)
        return Tensor(tensor.nbytes, (tensor,), "view", layout, has_offset=has_offset)

    def _linear(self, output_width: int, row_count: int, x: Tensor, has_bias: bool) -> Tensor:
        product = self._new_tensor((output_width, row_count), self.weight, x)
        return self._inplace_result(product, product, self.weight) if has_bias else product

    def _norm(self, norm: Norm, x: Tensor) -> Tensor:
        """Adds a norm; LayerNorm allocates its output, scale and bias work in place (`ggml_op_can_inplace`)."""
        if norm.type == "rmsnorm":
            normed_x = self._inplace_result(x, x)
            return self._inplace_result(normed_x, normed_x, self.weight)
        normed_x = Tensor(x.nbytes, (x,), "new", x.dimensions)
        scaled_x = self._inplace_result(normed_x, normed_x, self.weight)
        return self._inplace_result(scaled_x, scaled_x, self.weight)

    # -- parts ---------------------------------------------------------------------------------------------------

    def _convolution(self, pixels: Tensor) -> Tensor:
        """Adds the patch embedding (`ggml_conv_2d`) and returns it: im2col in F16, a matrix product and a copy."""
        patches = self.shape.tower.patches
        values_per_patch = patches.num_channels * patches.patch_size**2
        patch_columns = self._new_tensor(
            (values_per_patch, self.patch_count), self.weight, pixels, element_bytes=F16_BYTES
        )
        product = self._new_tensor((self.patch_count, self.hidden_size), self._view(patch_columns, None), self.weight)
        return self._new_tensor((self.patch_count, self.hidden_size), self._view(product, None))

    def _patch_vectors(self) -> Tensor:
        """Adds patch and position embeddings, and returns the vectors of all patches."""
        tower = self.shape.tower
        pixel_count = tower.patches.num_channels * tower.patches.patch_size**2 * self.patch_count
        pixels = Tensor(pixel_count * F32_BYTES, operation_name="input", dimensions=(pixel_count,))
        vectors_shape = (self.hidden_size, self.patch_count)
        if self.shape.graph_kind == "qwen":
            frame_vectors = [self._convolution(pixels) for _ in range(tower.patches.temporal_patch_size)]
            vectors = self._order_by_square(self._inplace_result(frame_vectors[0], *frame_vectors))
        else:
            vectors = self._new_tensor(vectors_shape, self._view(self._convolution(pixels), None))
        if tower.patches.bias:
            vectors = self._inplace_result(vectors, vectors, self.weight)
        if tower.class_embedding:
            vectors = self._new_tensor((self.hidden_size, self.row_count), vectors, self.weight)
        if tower.positions is None:
            return vectors
        if self.shape.graph_kind == "qwen":
            resized_table = self._new_tensor((self.patch_count, self.hidden_size), self._view(self.weight, None))
            return self._inplace_result(
                vectors,
                vectors,
                self._order_by_square(self._new_tensor(vectors_shape, self._view(resized_table, None))),
            )
        position_table = self.weight
        if tower.class_embedding:
            position_table = self._new_tensor((self.hidden_size, self.row_count), self.weight, self.positions)
        return self._inplace_result(vectors, vectors, position_table)

    def _order_by_square(self, x: Tensor) -> Tensor:
        """Adds two copies that reorder patches, so that patches which are merged into one token are adjacent."""
        patch_pairs = self._new_tensor((self.hidden_size, self.patch_count), self._view(x, None))
        return self._new_tensor((self.hidden_size, self.patch_count), self._view(patch_pairs, None))

    def _rotated_heads(self, head_vectors: Tensor, dimensions: tuple[int, ...]) -> Tensor:
        """Adds RoPE and returns the rotated heads; pixtral rotates each half of a head by another axis."""
        if self.shape.graph_kind != "pixtral":
            return self._inplace_result(head_vectors, head_vectors, self.positions)
        head_dim, *other_dimensions = dimensions
        rotated_halves = [
            self._new_tensor(
                (head_dim // 2, *other_dimensions), self._view(head_vectors, None, has_offset=bool(i)), positions
            )
            for i, positions in enumerate((self.positions, self.columns))
        ]
        return self._new_tensor(dimensions, *rotated_halves)

    def _attention(self, attention: Attention, x: Tensor, mask: Tensor | None) -> Tensor:
        heads = attention.num_attention_heads
        head_dim = attention.head_dim or self.hidden_size // heads
        attention_width, dimensions = heads * head_dim, (head_dim, heads, self.row_count)
        has_biases = (attention.q_bias, attention.k_bias, attention.v_bias)
        if (
            self.shape.graph_kind == "qwen" and self.shape.tower.patches.bias
        ):  # one product for queries, keys and values
            product = self._linear(3 * attention_width, self.row_count, x, attention.q_bias)
            query, key, value = (self._view(product, None, has_offset=bool(i)) for i in range(3))
            query, key = (self._new_tensor(dimensions, projection, self.positions) for projection in (query, key))
        else:
            query, key, value = (
                self._view(self._linear(attention_width, self.row_count, x, has_bias), dimensions)
                for has_bias in has_biases
            )
            if attention.position is not None:
                query, key = self._rotated_heads(query, dimensions), self._rotated_heads(key, dimensions)
        self.graph.add_operations(query, key, value)
        query, key, value = (self._view(projection, None) for projection in (query, key, value))
        masks = () if mask is None else (mask,)
        if self.uses_flash_attention:
            key, value = (
                self._new_tensor(dimensions, projection, element_bytes=F16_BYTES) for projection in (key, value)
            )
            merged_vectors = self._view(
                self._new_tensor(dimensions, query, key, value, *masks), (attention_width, self.row_count)
            )
        else:
            value = self._new_tensor((self.row_count, head_dim, heads), value)
            attention_scores = self._new_tensor((self.row_count, self.row_count, heads), key, query)
            weighted_values = self._new_tensor(
                (head_dim, self.row_count, heads),
                value,
                self._inplace_result(attention_scores, attention_scores, *masks),
            )
            merged_vectors = self._new_tensor((attention_width, self.row_count), self._view(weighted_values, None))
        return self._linear(self.hidden_size, self.row_count, merged_vectors, attention.o_bias)

    def _feed_forward(self, network: FeedForward, x: Tensor) -> Tensor:
        inner_width = network.intermediate_size
        inner_vectors = self._linear(inner_width, self.row_count, x, network.up_bias)
        if network.gated:
            gate = self._linear(inner_width, self.row_count, x, network.gate_bias)
            inner_vectors = self._new_tensor((inner_width, self.row_count), gate, inner_vectors)
        else:
            inner_vectors = self._inplace_result(inner_vectors, inner_vectors)
        return self._linear(self.hidden_size, self.row_count, inner_vectors, network.down_bias)

    def _project(self, projector: Projector, x: Tensor) -> Tensor:
        """Adds a projector and returns the tokens that it computes from the patches."""
        token_count = self.patch_count // projector.merge**2
        if self.shape.graph_kind == "siglip":
            transposed_x = self._new_tensor((self.patch_count, self.hidden_size), self._view(x, None))
            pooled_patches = self._new_tensor((token_count, self.hidden_size), transposed_x)
            x = self._new_tensor((self.hidden_size, token_count), self._view(pooled_patches, None))
        elif self.shape.tower.class_embedding:
            x = self._new_tensor((self.hidden_size, self.patch_count), x, self.positions)
        if projector.norm is not None:
            x = self._norm(projector.norm, x)
        for projector_map in projector.maps:
            x = self._linear(projector_map.size, token_count, x, projector_map.bias)
            if projector_map.hidden_act != "identity":
                x = self._inplace_result(x, x)
        return x

    # -- the encoder ---------------------------------------------------------------------------------------------

    def build_graph(self) -> ComputeGraph:
        """Builds the encoder's compute graph and returns it, with operations in execution order."""
        tower = self.shape.tower
        stack = tower.stack
        x = self._patch_vectors()
        if stack.embedding_norm is not None:
            x = self._norm(stack.embedding_norm, x)
        layer_names = stack.layer_names()
        layers = stack.layers_by_kind()
        windowed_mask = (
            self._window_mask() if any(self._is_windowed(layers[layer_name]) for layer_name in layer_names) else None
        )
        if windowed_mask is not None:
            x = self._new_tensor((self.hidden_size, self.row_count), self._view(x, None), self.positions)
        projectors_by_layer = self._deepstack_layers(len(layer_names))
        features: Tensor | None = None
        for i in layers_with_graphs(
            [(layer_name, i in projectors_by_layer) for i, layer_name in enumerate(layer_names)]
        ):
            layer = layers[layer_names[i]]
            assert isinstance(layer.attention, Attention)
            assert isinstance(layer.feed_forward, FeedForward)
            mask = windowed_mask if self._is_windowed(layer) else None
            attention_output = self._attention(layer.attention, self._norm(layer.norm, x), mask)
            x = self._inplace_result(attention_output, attention_output, x)
            x = self._inplace_result(x, x, self._feed_forward(layer.feed_forward, self._norm(layer.norm, x)))
            if i in projectors_by_layer:
                layer_features = self._project(projectors_by_layer[i], x)
                features = layer_features if features is None else self._concatenation(features, layer_features)
        if stack.final_norm is not None and self.shape.graph_kind != "llava":
            x = self._norm(stack.final_norm, x)
        embeddings = self._project(self.shape.projector, x)
        self.graph.add_operations(embeddings if features is None else self._concatenation(embeddings, features))
        return self.graph

    def _deepstack_layers(self, layer_count: int) -> dict[int, Projector]:
        """Returns the deepstack projector of each layer that has one; evenly spread if the config names no layers."""
        projectors = self.shape.deepstack
        return {
            layer_count * (i + 1) // (len(projectors) + 1)
            if layer_projector.lower_layer is None
            else layer_projector.lower_layer: layer_projector
            for i, layer_projector in enumerate(projectors)
        }

    @staticmethod
    def _concatenation(first_tensor: Tensor, second_tensor: Tensor) -> Tensor:
        return Tensor(first_tensor.nbytes + second_tensor.nbytes, (first_tensor, second_tensor))

    @staticmethod
    def _is_windowed(layer: object) -> bool:
        return isinstance(layer, Block) and isinstance(layer.attention, Attention) and bool(layer.attention.grid_window)

    def _window_mask(self) -> Tensor:
        """The mask for attention within windows: an F32 input, converted to F16 for flash attention."""
        mask_input = Tensor(
            self.row_count**2 * F32_BYTES,
            operation_name="input",
            dimensions=(self.row_count, self.row_count, F32_BYTES),
        )
        return (
            self._new_tensor((self.row_count, self.row_count), mask_input, element_bytes=F16_BYTES)
            if self.uses_flash_attention
            else mask_input
        )
