"""A model as llama.cpp loads it: the tensors of its GGUF file in bytes, and the sizes of its layers.

Names: gguf-py/gguf/tensor_mapping.py. Types: those of a GGUF file's header, else those that llama-quantize chooses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from ...costs.context_length import longest_sequence
from ...costs.quantization.base import WeightTensor, weight_tensors_of
from ...costs.quantization.gguf import GGUFMix
from ...costs.quantization.schemes_by_name import nearest_gguf_mix, scheme_named, with_published_experts
from ...errors import InputError
from ...flow.tree import NodePosition
from ...identity_cache import IdentityCache
from ...ops import (
    AttentionCore,
    CompressedKVAttentionCore,
    CompressedKVCache,
    Conv1d,
    DeltaRule,
    ExpertLinear,
    KVCache,
    Linear,
    State,
)
from ...optional import MTP
from ...sources.checkpoints.read import read_checkpoint
from ...sources.library_tags import USUAL_SCHEME
from ...sources.preset import Preset
from ...sources.presets import larger_file_gigabytes
from ...units import DTYPE_BITS
from ..engines.rank import INDEXER_KIND, architectures
from .encoder import encoder_bytes, has_encoder
from .windows import without_ignored_windows

MXFP4_SCHEME = "mxfp4-moe"
"""Scheme of llama.cpp's files of models published in MXFP4: all other weights in Q8_0."""

MXFP4_AS_PUBLISHED = "mxfp4 experts, the rest in 16 bits"
"""Name of the format of an MXFP4 model whose other weights stay as published."""

UNQUANTIZED_LIBRARY_PATHS = ("per_layer_embedding.embed",)
"""Ends of the paths of modules that Ollama leaves in 16 bits (server/quantization.go, `llamaQuantizeArgs`). Its file
gemma4:e4b has 9.6 GB; in Q8_0 throughout it would have 12 GB.
"""

QAT_SCHEME = "q4_0"
"""Scheme of Google's quantized files (`-qat`), also for `UNQUANTIZED_LIBRARY_PATHS`: gemma4:e4b-it-qat has 6.1 GB."""

QAT_CLASSES_WITH_WIDE_EMBEDDINGS = ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration")
"""Classes whose files by Google have embeddings in F16: gemma3:12b-it-qat has 8.9 GB, and 8.1 GB in q4_k_m."""

EMBEDDING_TENSOR, OUTPUT_TENSOR = "token_embd.weight", "output.weight"
"""Names of the tensors of token embeddings and of the output matrix."""

TENSOR_NAMES = {
    "embed_tokens": "token_embd",
    "embed_positions": "position_embd",
    "norm": "output_norm",
    "lm_head": "output",
    "per_layer_embedding.embed": "per_layer_token_embd",
    "per_layer_embedding.projection": "per_layer_model_proj",
    "per_layer_embedding.norm": "per_layer_proj_norm",
}
"""Path of a module outside the layers → name of its GGUF tensor."""

LAYER_TENSOR_NAMES = {
    "self_attn_pre_norm": "attn_norm",
    "linear_attn_pre_norm": "attn_norm",
    "self_attn_post_norm": "post_attention_norm",
    "mlp_pre_norm": "ffn_norm",
    "mlp_post_norm": "post_ffw_norm",
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_output",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "sinks": "attn_sinks",
    "q_a_proj": "attn_q_a",
    "q_a_norm": "attn_q_a_norm",
    "q_b_proj": "attn_q_b",
    "kv_a_proj": "attn_kv_a_mqa",
    "kv_a_norm": "attn_kv_a_norm",
    "kv_b_proj": "attn_kv_b",
    "per_layer_input.gate": "inp_gate",
    "per_layer_input.projection": "proj",
    "per_layer_input.norm": "post_norm",
    "dense.gate_proj": "ffn_gate",
    "dense.up_proj": "ffn_up",
    "dense.down_proj": "ffn_down",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.router": "ffn_gate_inp",
    "experts.gate_proj": "ffn_gate_exps",
    "experts.up_proj": "ffn_up_exps",
    "experts.down_proj": "ffn_down_exps",
    "shared_expert.gate_proj": "ffn_gate_shexp",
    "shared_expert.up_proj": "ffn_up_shexp",
    "shared_expert.down_proj": "ffn_down_shexp",
    "shared_expert_gate": "ffn_gate_inp_shexp",
    "linear_attn.q_proj": "attn_q",
    "linear_attn.k_proj": "attn_k",
    "linear_attn.v_proj": "attn_v",
    "linear_attn.g_proj": "attn_gate",
    "linear_attn.o_proj": "ssm_out",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.a_proj": "ssm_alpha",
    "linear_attn.b_proj": "ssm_beta",
    "linear_attn.dt_bias": "ssm_dt",
    "linear_attn.norm": "ssm_norm",
    "conv1d": "ssm_conv1d",
    "A_log": "ssm_a",
    "D": "ssm_d",
    "in_proj": "ssm_in",
    "x_proj": "ssm_x",
    "dt_proj": "ssm_dt",
    "out_proj": "ssm_out",
}
"""End of a module's path within a layer → name of its GGUF tensor; the longest matching end applies."""


class GgufTensor(NamedTuple):
    """A tensor of a GGUF file. layer_index: the index of its layer; None if it is outside the layers."""

    name: str
    nbytes: int
    layer_index: int | None


class LatentSizes(NamedTuple):
    """The sizes of latent attention (MLA). q_lora_rank: 0 if the query is not compressed."""

    kv_lora_rank: int
    rope_dim: int
    nope_dim: int
    value_dim: int
    q_lora_rank: int


class DeltaNetSizes(NamedTuple):
    """The sizes of a Gated DeltaNet. key_width: width of all query heads."""

    value_head_count: int
    key_dim: int
    value_dim: int
    key_width: int
    convolution_kernel_size: int

    @property
    def channels(self) -> int:
        """The number of channels of the convolution, which are those of queries, keys and values."""
        return 2 * self.key_width + self.value_head_count * self.value_dim


class CompressedEntries(NamedTuple):
    """A cache that compresses the keys and values of `tokens_per_entry` tokens to one vector.

    width: elements of an entry. pending_token_width: elements of a token that is not in an entry yet.
    """

    tokens_per_entry: int
    width: int
    pending_token_width: int

    @property
    def state_elements(self) -> int:
        """The number of stored elements for tokens that do not yet fill an entry; doubled if entries overlap."""
        return (
            self.pending_token_width * self.tokens_per_entry * (2 if self.pending_token_width > 2 * self.width else 1)
        )


@dataclass
class LayerShape:
    """The sizes of a layer that determine its compute graph and its cache.

    head_count: query heads. key_width, value_width: cached elements of a token, over all heads. window: tokens that it
    attends to; None for all. latent_sizes: the sizes of latent attention.
    state_elements: elements of its recurrent states and of the inputs that its convolutions keep.
    delta_net: the sizes of a Gated DeltaNet. attention_gate_width: width of a gate of attention's output.
    feed_forward_width: width of a dense network. is_gated: whether networks have a gate.
    expert_count, top_k, expert_width, shared_width: experts, how many a token uses, their width, and that of the shared
        one.
    index_width, index_value_width: cached elements of a token's keys for an indexer, and of the values beside them that
    nothing reads. compressed_caches: caches with one entry for several tokens.
    per_layer_width: width of the layer's vector of each token (Gemma 4 E2B), 0 without one.
    """

    head_count: int = 0
    head_dim: int = 0
    key_width: int = 0
    value_width: int = 0
    window: int | None = None
    latent_sizes: LatentSizes | None = None
    state_elements: int = 0
    delta_net: DeltaNetSizes | None = None
    attention_gate_width: int = 0
    feed_forward_width: int = 0
    is_gated: bool = False
    expert_count: int = 0
    top_k: int = 0
    expert_width: int = 0
    shared_width: int = 0
    index_width: int = 0
    index_value_width: int = 0
    compressed_caches: tuple[CompressedEntries, ...] = ()
    per_layer_width: int = 0


@dataclass(frozen=True, eq=False)
class GgufModel:
    """A model as llama.cpp loads it, with the tensors of its file.

    quantize: llmcalc's scheme; None for the format of the file or checkpoint.
    is_library_file: whether the file is that of a tag of Ollama's library, in which a model with experts published in
      MXFP4 has its other matrices in 16 bits, not in Q8_0 as in llama.cpp's own files, and per-layer embeddings are in
      16 bits.
    """

    preset: Preset
    quantize: str | None = None
    is_library_file: bool = False

    @classmethod
    def from_quantize_flag(cls, preset: Preset, quantize: str | None, *, is_library_file: bool = False) -> GgufModel:
        """Returns a model in the format of `--quantize`, or for None or `none` in the file's or checkpoint's format.

        Servers that differ in other flags share it, with the tensors that it has listed.
        """
        scheme = None if quantize is not None and quantize.strip().lower() == "none" else quantize
        return _shared_models.result((preset,), (scheme, is_library_file), lambda: cls(preset, scheme, is_library_file))

    def __post_init__(self) -> None:
        """Raises `InputError` for a quantization scheme that does not exist in GGUF files."""
        if self.quantize is not None and self._gguf_mix is None:
            raise InputError(
                f"--quantize {self.quantize}: is not a format of GGUF; expected one such as q4_k_m or q8_0"
            )

    @property
    def hidden_size(self) -> int:
        return int(self.preset.model.hidden_size)

    @property
    def vocab_size(self) -> int:
        return int(self.preset.model.vocab_size)

    @property
    def trained_context(self) -> int:
        """The context length in tokens that the model was trained for; 0 if unknown."""
        return int(longest_sequence(self.preset.model) or 0)

    @cached_property
    def gguf_file(self) -> Path | None:
        """The GGUF file that the user typed as the model; None if the model is something else."""
        gguf_path = Path(self.preset.target.partition("?")[0])
        return gguf_path if gguf_path.suffix == ".gguf" else None

    @property
    def _gguf_mix(self) -> GGUFMix | None:
        named_scheme = None if self.quantize is None else scheme_named(self.substitute_mix or self.quantize)
        published_config = self.preset.quantization_config
        scheme = None if named_scheme is None else with_published_experts(named_scheme, published_config)
        return scheme if isinstance(scheme, GGUFMix) else None

    @property
    def substitute_mix(self) -> str | None:
        """The llama.cpp mix that is counted in place of an Unsloth dynamic quantization; None for other formats."""
        return None if self.quantize is None else nearest_gguf_mix(self.quantize)

    @property
    def scheme(self) -> str:
        """The name of the weights' number format or mix."""
        if self.quantize is not None:
            return self.quantize
        if self.gguf_file is not None:
            return "as in the file"
        if DTYPE_BITS[self.preset.dtype] != 4:
            return "bf16"
        return MXFP4_AS_PUBLISHED if self.is_library_file else MXFP4_SCHEME

    @cached_property
    def layers(self) -> tuple[LayerShape, ...]:
        """The sizes of every decoder layer, in order."""
        layers_by_index: dict[int, LayerShape] = {}
        model = without_ignored_windows(self.preset.model, self.preset.config)
        for tree_node in _layer_group_nodes(model.tree().root_position()):
            layer_shape = _layer_shape(tree_node)
            for i in tree_node.node.indices or ():
                layers_by_index[i] = layer_shape
        return tuple(layers_by_index[i] for i in sorted(layers_by_index))

    @cached_property
    def stored_tensors(self) -> tuple[GgufTensor, ...]:
        """The tensors in the GGUF file."""
        if self.gguf_file is None or self.quantize is not None:
            return tuple(self._loaded_tensors())
        return tuple(
            GgufTensor(file_tensor.name, file_tensor.nbytes, _layer_index_of(file_tensor.name))
            for shard_path in _file_shards(self.gguf_file)
            for file_tensor in read_checkpoint(shard_path).tensors
        )

    @cached_property
    def tensors(self) -> tuple[GgufTensor, ...]:
        """The tensors that llama.cpp loads; a tied output is a second copy of the embedding, with the output layer.

        Modules of multi-token prediction, which files have as further layers, are left in the file.
        """
        layer_count = len(self.layers)
        loaded_tensors = tuple(
            tensor for tensor in self.stored_tensors if tensor.layer_index is None or tensor.layer_index < layer_count
        )
        if any(tensor.name == OUTPUT_TENSOR for tensor in loaded_tensors):
            return loaded_tensors
        return (
            *loaded_tensors,
            *(tensor._replace(name=OUTPUT_TENSOR) for tensor in loaded_tensors if tensor.name == EMBEDDING_TENSOR),
        )

    @cached_property
    def mtp_modules(self) -> tuple[LayerShape, ...]:
        """The sizes of multi-token-prediction modules, which files store as layers after the decoder's; or empty."""
        module_shapes: list[LayerShape] = []
        for tree_node in self.preset.model.tree().root_position().children():
            if tree_node.node.optional == MTP.name and tree_node.node.indices:
                module_shapes += [_layer_shape(tree_node)] * len(tree_node.node.indices)
        return tuple(module_shapes)

    @cached_property
    def mtp_tensors(self) -> tuple[GgufTensor, ...]:
        """The tensors of multi-token-prediction modules, in the formats that further decoder layers would have."""
        layer_count = len(self.layers)
        if self.gguf_file is not None and self.quantize is None:
            return tuple(
                tensor
                for tensor in self.stored_tensors
                if tensor.layer_index is not None and tensor.layer_index >= layer_count
            )
        all_weights = weight_tensors_of(self.preset.model.tree(), frozenset({MTP.name}))
        mtp_weights = [
            replace(weight_tensor, optional_part="", layer_index=layer_count + (weight_tensor.layer_index or 0))
            for weight_tensor in all_weights
            if weight_tensor.optional_part == MTP.name
        ]
        weight_sizes = self._weight_sizes([*weight_tensors_of(self.preset.model.tree()), *mtp_weights])[
            -len(mtp_weights) :
        ]
        return tuple(
            GgufTensor(_gguf_name(weight), tensor_bytes, weight.layer_index) for weight, tensor_bytes in weight_sizes
        )

    @property
    def file_bytes(self) -> int:
        """The bytes of all tensors in the GGUF file."""
        return sum(tensor.nbytes for tensor in self.stored_tensors)

    @property
    def _paths_in_16_bits(self) -> tuple[str, ...]:
        """The paths of modules that files of Ollama's library store in 16 bits; empty for other files."""
        if not self.is_library_file:
            return ()
        if self.quantize != QAT_SCHEME:
            return UNQUANTIZED_LIBRARY_PATHS
        has_wide_embeddings = not {*architectures(self.preset)}.isdisjoint(QAT_CLASSES_WITH_WIDE_EMBEDDINGS)
        return ("embed_tokens",) if has_wide_embeddings and self.preset.target.lower().endswith("-qat") else ()

    @property
    def listed_bytes(self) -> int:
        """The bytes that Ollama's library lists for a file with more bits than its scheme; 0 for others."""
        is_whole_tag = self.is_library_file and self.quantize == USUAL_SCHEME and "?" not in self.preset.target
        gigabytes = larger_file_gigabytes(self.preset.target) if is_whole_tag else None
        if gigabytes is None:
            return 0
        encoder_flags = {"mmproj": "F16"} if has_encoder(self.preset) else {}
        return round(gigabytes * 10**9) - encoder_bytes(encoder_flags, self.preset)

    def _loaded_tensors(self) -> Iterator[GgufTensor]:
        """Yields the tensors in the formats that llama-quantize chooses, or in the published format.

        The bytes by which a library's file is larger are divided over the tensors of the layers, because the formats
        of these tensors are not published.
        """
        weight_sizes = self._weight_sizes(list(weight_tensors_of(self.preset.model.tree())))
        layer_bytes = sum(tensor_bytes for weight, tensor_bytes in weight_sizes if weight.layer_index is not None)
        added_bytes = max(0, self.listed_bytes - sum(tensor_bytes for _, tensor_bytes in weight_sizes))
        for weight, tensor_bytes in weight_sizes:
            added_share = 0 if weight.layer_index is None else tensor_bytes * added_bytes // layer_bytes
            yield GgufTensor(_gguf_name(weight), tensor_bytes + added_share, weight.layer_index)

    def _weight_sizes(self, weight_tensors: list[WeightTensor]) -> list[tuple[WeightTensor, int]]:
        """Returns each weight with its bytes."""
        model = self.preset.model
        is_published_mxfp4 = self.scheme in (MXFP4_SCHEME, MXFP4_AS_PUBLISHED)
        scheme = self._gguf_mix or (scheme_named(MXFP4_SCHEME) if is_published_mxfp4 else None)

        def unquantized_bytes(weight: WeightTensor) -> int:  # convert_hf_to_gguf.py has 16 bits for float32 too
            return int(weight.tensor.size) * (2 if weight.tensor.role in ("matrix", "table") else 4)

        if scheme is None:
            return [(weight, unquantized_bytes(weight)) for weight in weight_tensors]
        has_rest_in_16_bits = self.scheme == MXFP4_AS_PUBLISHED
        paths_in_16_bits = self._paths_in_16_bits
        return [
            (
                weight,
                unquantized_bytes(weight)
                if (has_rest_in_16_bits and weight.kind != "experts") or weight.path in paths_in_16_bits
                else int(stored_bytes.total),
            )
            for weight, stored_bytes in scheme.bytes_by_tensor(model, weight_tensors, "float32")
        ]


_shared_models: IdentityCache[GgufModel] = IdentityCache(16)
"""Cache: preset, scheme, and whether the other weights of MXFP4 are in 16 bits → the model."""


def _layer_group_nodes(tree_node: NodePosition) -> Iterator[NodePosition]:
    """Yields the nodes of the model's tree that stand for equal decoder layers."""
    for child_position in tree_node.children():
        if child_position.optional_part:
            continue
        if child_position.kind == "layer" and child_position.node.indices is not None:
            yield child_position
        else:
            yield from _layer_group_nodes(child_position)


def _layer_shape(layer: NodePosition) -> LayerShape:
    """Returns a layer's sizes, read from the layer's operations."""
    layer_shape = LayerShape()
    q_lora_rank = conv_width = kernel_size = 0
    for tree_node in layer.walk():
        layer_op, op_name = tree_node.node.op, tree_node.node.name
        if tree_node.roles & {"kept", "idle"}:
            continue
        if isinstance(layer_op, KVCache | CompressedKVCache):
            _add_cache_sizes(layer_shape, layer_op)
        elif isinstance(layer_op, AttentionCore) and not _reads_no_tokens(tree_node):
            layer_shape.head_count, layer_shape.head_dim = int(layer_op.heads), int(layer_op.qk_dim)
            layer_shape.window = None if layer_op.window is None else int(layer_op.window)
            absorbed_op = tree_node.node.ops_by_form.get("absorbed")
            if isinstance(absorbed_op, AttentionCore):
                latent_rank = int(absorbed_op.v_dim)
                rope_dim = int(absorbed_op.qk_dim) - latent_rank
                layer_shape.latent_sizes = LatentSizes(
                    latent_rank, rope_dim, int(layer_op.qk_dim) - rope_dim, int(layer_op.v_dim), 0
                )
        elif isinstance(layer_op, State):
            layer_shape.state_elements += 0 if layer_op.cache_kind == "conv_state" else int(layer_op.size)
        elif isinstance(layer_op, Conv1d):
            layer_shape.state_elements += int(layer_op.n_out) * (int(layer_op.kernel) - 1)
            conv_width, kernel_size = int(layer_op.n_out), int(layer_op.kernel)
        elif isinstance(layer_op, DeltaRule) and not layer_op.decays_by_channel and conv_width:
            value_width = int(layer_op.heads) * int(layer_op.value_dim)
            delta_net_sizes = int(layer_op.heads), int(layer_op.key_dim), int(layer_op.value_dim)
            layer_shape.delta_net = DeltaNetSizes(
                *delta_net_sizes, key_width=(conv_width - value_width) // 2, convolution_kernel_size=kernel_size
            )
        elif isinstance(layer_op, ExpertLinear) and op_name in ("up_proj", "fc1"):
            layer_shape.expert_count = int(layer_op.num_experts)
            layer_shape.top_k = int(layer_op.top_k)
            layer_shape.expert_width = int(layer_op.n_out)
        elif isinstance(layer_op, Linear):
            if op_name == "q_a_proj":
                q_lora_rank = int(layer_op.n_out)
            elif op_name == "gate_proj" and tree_node.kind == "attention":
                layer_shape.attention_gate_width = int(layer_op.n_out)
            elif op_name == "gate" and tree_node.path.endswith("per_layer_input.gate"):
                layer_shape.per_layer_width = int(layer_op.n_out)
            elif op_name in ("up_proj", "fc1") and tree_node.kind == "shared_expert":
                layer_shape.shared_width = int(layer_op.n_out)
            elif op_name in ("up_proj", "fc1") and tree_node.kind == "feed_forward":
                layer_shape.feed_forward_width = int(layer_op.n_out)
            layer_shape.is_gated |= op_name == "gate_proj" and tree_node.kind in ("feed_forward", "shared_expert")
    if layer_shape.expert_count:
        layer_shape.is_gated |= any(
            node_position.node.name == "gate_proj" and node_position.kind == "experts" for node_position in layer.walk()
        )
    if layer_shape.latent_sizes is not None:
        layer_shape.latent_sizes = layer_shape.latent_sizes._replace(q_lora_rank=q_lora_rank)
        layer_shape.key_width, layer_shape.value_width = (
            layer_shape.latent_sizes.kv_lora_rank + layer_shape.latent_sizes.rope_dim,
            0,
        )
    elif layer_shape.index_width:
        layer_shape.index_value_width = layer_shape.head_dim
    return layer_shape


def _reads_no_tokens(tree_node: NodePosition) -> bool:
    """Whether attention reads no cached keys and values: an indexer, or attention to compressed vectors."""
    return "no_grad" in tree_node.roles or isinstance(tree_node.node.op, CompressedKVAttentionCore)


def _add_cache_sizes(layer_shape: LayerShape, cache: KVCache | CompressedKVCache) -> None:
    """Adds the sizes of a cache to the sizes of its layer."""
    if isinstance(cache, CompressedKVCache):
        layer_shape.compressed_caches += (
            CompressedEntries(int(cache.tokens_per_entry), int(cache.width), int(cache.pending_token_width)),
        )
    elif cache.cache_kind == INDEXER_KIND:
        layer_shape.index_width = int(cache.width)
    else:
        vector_widths = [int(heads) * int(head_size) for heads, head_size in cache.vectors]
        layer_shape.key_width = vector_widths[0] if len(vector_widths) > 1 else int(cache.width)
        layer_shape.value_width = sum(vector_widths[1:])
        if cache.token_limit is not None and layer_shape.window is None:
            layer_shape.window = int(cache.token_limit)


def _gguf_name(weight: WeightTensor) -> str:
    """Returns the name of a weight in a GGUF file."""
    is_weight = weight.tensor.role != "vector" or weight.name.endswith("norm") or weight.name == "sinks"
    name_ending = "weight" if is_weight else "bias"
    if weight.layer_index is None:
        return f"{TENSOR_NAMES.get(weight.path, weight.path)}.weight"
    name_in_layer = weight.path.split(".", 2)[-1]
    name_parts = name_in_layer.split(".")
    name_suffixes = [".".join(name_parts[i:]) for i in range(len(name_parts))]
    gguf_name = next(
        (LAYER_TENSOR_NAMES[name_suffix] for name_suffix in name_suffixes if name_suffix in LAYER_TENSOR_NAMES),
        name_parts[-1],
    )
    return f"blk.{weight.layer_index}.{gguf_name}.{name_ending}"


def _layer_index_of(tensor_name: str) -> int | None:
    layer_match = re.match(r"blk\.([0-9]{1,6})\.", tensor_name)
    return None if layer_match is None else int(layer_match[1])


MAX_SHARDS = 1000


def _file_shards(first_shard: Path) -> list[Path]:
    """Returns the files of a split GGUF model (`-00001-of-00003.gguf`), or the single file."""
    shard_match = re.fullmatch(r"(.*)-([0-9]{5})-of-([0-9]{5})\.gguf", first_shard.name)
    if shard_match is None or int(shard_match[3]) > MAX_SHARDS:
        return [first_shard]
    return [
        first_shard.with_name(f"{shard_match[1]}-{shard_number:05d}-of-{shard_match[3]}.gguf")
        for shard_number in range(1, int(shard_match[3]) + 1)
    ]
