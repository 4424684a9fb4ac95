"""The quantization mixes of llama.cpp: the ggml type of each tensor of a `.gguf` file, and its bytes.

Rules: llama.cpp, src/llama-quant.cpp (tensor_allows_quantization, llama_tensor_get_type_impl, use_more_bits,
tensor_type_fallback, tensor_requires_imatrix) as of 2026-09. Blocks: ggml-common.h. Tensors that are not quantised have
the type that the converter wrote (conversion/base.py, prepare_tensors): F32 for 1-D tensors, biases, norms, routers,
convolutions and position embeddings; 16 bits for the few matrices that the quantiser skips. For MLA the file has
kv_b_proj as two tensors, and the keys' one is transposed.

q, k and v are three tensors, or one tensor `attn_qkv` if the checkpoint fuses them. Since #19770 (2026-03) `attn_qkv`
has the type of `attn_v`; before, it was Q5_K in Q4_K_M, Q6_K in Q5_K_M, Q4_K in Q3_K_M and Q3_K_L, and the mix's own
type in the others. Not supported: the exceptions for Falcon, and layers of MTP modules that some converters include in
the model's depth (they move the eighths of the depth).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...algebra import Number
from ...errors import InputError
from ...frozen import frozen
from ...model import ModelSpec
from ...ops import AttentionCore
from ...optional import OPTIONAL_PARTS
from .base import QuantizationScheme, StoredBytes, WeightTensor, unquantized_bytes, weight_tensors_of
from .blocks import BLOCKS

DEFAULT_TYPE_BY_MIX = {
    "Q4_0": "Q4_0",
    "Q4_1": "Q4_1",
    "Q5_0": "Q5_0",
    "Q5_1": "Q5_1",
    "Q8_0": "Q8_0",
    "IQ1_S": "IQ1_S",
    "IQ1_M": "IQ1_M",
    "IQ2_XXS": "IQ2_XXS",
    "IQ2_XS": "IQ2_XS",
    "IQ2_S": "IQ2_XS",
    "IQ2_M": "IQ2_S",
    "IQ3_XXS": "IQ3_XXS",
    "IQ3_XS": "IQ3_S",
    "IQ3_S": "IQ3_S",
    "IQ3_M": "IQ3_S",
    "Q2_K_S": "Q2_K",
    "Q2_K": "Q2_K",
    "Q3_K_S": "Q3_K",
    "Q3_K_M": "Q3_K",
    "Q3_K_L": "Q3_K",
    "Q4_K_S": "Q4_K",
    "Q4_K_M": "Q4_K",
    "Q5_K_S": "Q5_K",
    "Q5_K_M": "Q5_K",
    "Q6_K": "Q6_K",
    "IQ4_NL": "IQ4_NL",
    "IQ4_XS": "IQ4_XS",
    "TQ1_0": "TQ1_0",
    "TQ2_0": "TQ2_0",
    "MXFP4_MOE": "MXFP4",
}
"""Quantization mix → the ggml type of most of its tensors."""

FALLBACK_TYPES = {
    **dict.fromkeys(("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS"), "IQ4_NL"),
    **dict.fromkeys(("Q2_K", "Q3_K", "TQ1_0", "TQ2_0"), "Q4_0"),
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
}
"""ggml type → the type used instead if a tensor's row length is not a multiple of the type's block."""

MIXES_WITH_LARGER_EMBEDDINGS = {
    "Q2_K_L": "Q2_K",
    "Q3_K_XL": "Q3_K_L",
    "Q4_K_L": "Q4_K_M",
    "Q5_K_L": "Q5_K_M",
    "Q6_K_L": "Q6_K",
}
"""Name of a mix with embeddings and output head in Q8_0 → the mix of the other tensors, in bartowski's files
(llama-quantize --token-embedding-type q8_0 --output-tensor-type q8_0; https://huggingface.co/bartowski).
"""

MIXES_RAISED_FOR_EIGHT_EXPERTS = (
    *("IQ3_XXS", "IQ3_XS", "IQ3_S", "IQ3_M"),
    *("Q2_K", "Q3_K_S", "Q3_K_M", "IQ4_NL", "Q4_K_S", "Q4_K_M", "IQ4_XS"),
)

SMALLEST_MIXES = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M")
"""The mixes of one and two bits, which have separate rules for every tensor inside the layers."""

MIXES_WITH_IMATRIX = (*SMALLEST_MIXES, "IQ3_XXS", "IQ3_XS", "Q2_K_S")
"""The mixes for which llama-quantize requires an importance matrix (tensor_requires_imatrix)."""

EMBEDDING_TYPES = {
    **dict.fromkeys(("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS"), "Q2_K"),
    **dict.fromkeys(("IQ2_S", "IQ2_M", "IQ3_XXS"), "IQ3_S"),
    **dict.fromkeys(("TQ1_0", "TQ2_0"), "Q4_K"),
}
"""Mix → the ggml type of an untied input embedding, if it differs from the type of most tensors."""

ATTENTION_OUTPUT_TYPES = {
    **dict.fromkeys(("IQ1_S", "IQ1_M"), "IQ2_XXS"),
    **dict.fromkeys(("IQ2_S", "IQ2_M", "IQ3_XXS"), "IQ3_S"),
    "IQ3_M": "Q4_K",
    "Q2_K": "Q3_K",
    "Q3_K_M": "Q4_K",
    "Q3_K_L": "Q5_K",
}
"""Mix → the ggml type of `attn_output` unless the model has eight experts, if it differs from most tensors' type."""

QUERY_AND_KEY_TYPES = {"IQ3_XS": "IQ3_XXS", "IQ3_XXS": "IQ2_S"}
"""Mix → the ggml type of `attn_q` and `attn_k`, if it differs from the type of most tensors."""


@frozen
class GGUFMix(QuantizationScheme):
    """A named mix of ggml types in llama.cpp, such as Q4_K_M.

    mix_name: its name in llama-quantize.
    has_imatrix: whether an importance matrix is used, which changes the types of some tensors.
    fuses_qkv: whether q, k and v of a layer are one tensor in the file, also where the model's class computes them
        apart.
    has_mxfp4_experts: whether experts stay in MXFP4, as the model is published (convert_hf_to_gguf.py repacks them,
        and llama-quantize takes no tensor that is quantized); false by default.
    has_larger_embeddings: whether embeddings and output head are in Q8_0, whatever the mix has; false by default.
    """

    mix_name: str = "Q4_K_M"
    has_imatrix: bool = False
    fuses_qkv: bool = False
    has_mxfp4_experts: bool = False
    has_larger_embeddings: bool = False

    def bytes_by_tensor(
        self, spec: ModelSpec, params: list[WeightTensor], dtype: str
    ) -> Iterator[tuple[WeightTensor, StoredBytes]]:
        model_rules = self._rules_of_model(spec, params)
        for param in params:
            yield param, model_rules.stored_bytes(param)

    def tensor_counts_by_type(self, spec: ModelSpec) -> dict[str, int]:
        """Returns the number of tensors of each ggml type, as llama.cpp lists them when it loads a file.

        Its F32 count has only the parameters.
        """
        counts_by_type: dict[str, int] = {}
        params = list(weight_tensors_of(spec.tree()))
        rules = self._rules_of_model(spec, params)
        for param in params:
            if rules.tensor_category(param) == "attn_qkv" and param.name != "q_proj" and param.tensor.role == "matrix":
                continue  # fused with q_proj
            for ggml_type in rules.storage_types(param):
                counts_by_type[ggml_type] = counts_by_type.get(ggml_type, 0) + 1
        return counts_by_type

    def _rules_of_model(self, spec: ModelSpec, params: list[WeightTensor]) -> _ModelRules:
        """Returns llama.cpp's type rules for a model. Raises `InputError` for an unsupported model."""
        if spec.kind == "encoder-decoder":
            raise InputError(
                f"--quantize {self.label}: llama.cpp's mixes are counted for models of one stack; expected a "
                "decoder or an encoder"
            )
        optional_part = next((param.optional_part for param in params if param.optional_part), "")
        if optional_part:
            raise InputError(
                f"--quantize {self.label}: its rules are for the model's own layers; expected no "
                f"{OPTIONAL_PARTS[optional_part].option}"
            )
        if not all(isinstance(axis_size, int) for param in params for axis_size in (*param.tensor.shape, param.copies)):
            raise InputError(
                f"--quantize {self.label}: its rules branch on sizes; expected whole numbers, no arrays and no symbols"
            )
        return _ModelRules(self, spec, params)

    def notes(self) -> list[str]:
        matrix_text = ", with an importance matrix" if self.has_imatrix or self.mix_name in MIXES_WITH_IMATRIX else ""
        note_texts = [
            f"{self.label} ({self.source}): each tensor has the type that llama-quantize {self.mix_name} chooses"
            f"{matrix_text}"
        ]
        note_texts.append(
            "norms, biases, routers and position embeddings in F32; metadata and padding of the file are not counted"
        )
        if self.has_larger_embeddings:
            note_texts.append("embeddings and output head in Q8_0")
        if self.has_mxfp4_experts:
            note_texts.append("experts stay in MXFP4, in which the model is published, whatever the file is called")
        separate_text = ""
        if not self.fuses_qkv:
            separate_text = (
                " where the model's class computes them in one product (GPT-2, Phi-3, Bloom, …), else three; for other "
                f"files that fuse them: --quantize {self.label}-qkv"
            )
        note_texts.append(
            f"q, k and v are one tensor (attn_qkv, typed as llama.cpp does since March 2026){separate_text}"
        )
        return [*note_texts, *self.remarks]

    def unconverted_dtype(self, dtype: str) -> str:
        return "float32"


class _ModelRules:
    """llama.cpp's rules for each tensor's ggml type, which depend on depth, experts, query groups and tensor order."""

    def __init__(self, quantization_mix: GGUFMix, spec: ModelSpec, params: list[WeightTensor]) -> None:
        self.mix, self.layer_count = quantization_mix, spec.main.num_hidden_layers
        self.fuses_qkv = quantization_mix.fuses_qkv or any(
            getattr(layer.attention, "fused_qkv", False) for layer in spec.main.layers_by_kind().values()
        )
        # the order of tensors in a file
        sorted_params = sorted(params, key=lambda param: -1 if param.layer_index is None else param.layer_index)
        self.value_indices = _first_occurrence_indices(
            _parent_path(param) for param in sorted_params if self.tensor_category(param) in ("attn_v", "attn_qkv")
        )
        self.ffn_indices: dict[str, int] = {}
        for tensor_name in {param.name for param in params}:
            self.ffn_indices |= _first_occurrence_indices(
                param.path
                for param in sorted_params
                if param.name == tensor_name and _tensor_category(param) in ("ffn_in", "ffn_down")
            )
        self.expert_count = next(
            (param.tensor.shape[0] for param in params if param.kind == "experts" and len(param.tensor.shape) == 3), 0
        )
        self.has_tied_output = not any(_tensor_category(param) == "output" for param in params)
        self.query_groups = _query_heads_per_kv_head(params)

    def tensor_category(self, param: WeightTensor) -> str:
        """Returns the tensor's category in llama.cpp's type rules; empty for a tensor that stays F32."""
        tensor_kind = _tensor_category(param)
        if param.name in ("q_proj", "k_proj", "v_proj") and tensor_kind:
            sibling_names = {sibling_node.name for sibling_node in param.parent.children}
            is_fused = param.kind == "attention" and self.fuses_qkv and {"q_proj", "k_proj", "v_proj"} <= sibling_names
            return "attn_qkv" if is_fused or _is_in_gated_delta_net(param) else tensor_kind
        return tensor_kind

    def stored_bytes(self, param: WeightTensor) -> StoredBytes:
        """Returns the bytes of one model tensor, which may be two tensors in the file."""
        total_parts = StoredBytes()
        for ggml_type, (row_count, column_count) in zip(
            self.storage_types(param), _file_tensor_shapes(param), strict=True
        ):
            total_parts += _bytes_in_ggml_type(row_count * column_count, ggml_type)
        return total_parts

    def storage_types(self, param: WeightTensor) -> list[str]:
        """Returns the ggml types of the file's tensors that store one model tensor."""
        tensor_kind = self.tensor_category(param)
        file_shapes = _file_tensor_shapes(param)
        if tensor_kind in ("", "kept"):
            return ["F16" if tensor_kind else "F32"] * len(file_shapes)
        preferred_type = self._type_of_tensor(tensor_kind, param)
        return [self._type_or_fallback(preferred_type, column_count, param) for _, column_count in file_shapes]

    def _type_of_tensor(self, tensor_kind: str, param: WeightTensor) -> str:
        """Returns the ggml type that the mix prescribes for a tensor (`llama_tensor_get_type`)."""
        if self.mix.has_mxfp4_experts and param.kind == "experts":
            return "MXFP4"
        gguf_mix_name, default_type = self.mix.mix_name, DEFAULT_TYPE_BY_MIX[self.mix.mix_name]
        if self.mix.has_larger_embeddings and tensor_kind in ("output", "token_embd"):
            return "Q8_0"
        if tensor_kind == "output" or (tensor_kind == "token_embd" and self.has_tied_output):
            if gguf_mix_name == "MXFP4_MOE" or param.tensor.shape[-1] % BLOCKS[default_type][0]:
                return "Q8_0"
            if gguf_mix_name in (*SMALLEST_MIXES, "IQ3_XXS"):
                return "Q5_K"
            return default_type if default_type == "Q8_0" else "Q6_K"
        if gguf_mix_name == "MXFP4_MOE":
            return "MXFP4" if len(param.tensor.shape) == 3 or param.name == "kv_b_proj" else "Q8_0"
        if tensor_kind == "token_embd":
            return EMBEDDING_TYPES.get(gguf_mix_name, default_type)
        if tensor_kind == "attn_output" and self.expert_count != 8:
            return ATTENTION_OUTPUT_TYPES.get(gguf_mix_name, default_type)
        if gguf_mix_name in SMALLEST_MIXES:
            return self._type_in_smallest_mixes(tensor_kind, param)
        if tensor_kind in ("attn_v", "attn_qkv"):
            return self._type_of_value_projection(gguf_mix_name, default_type, self.value_indices[_parent_path(param)])
        if tensor_kind == "attn_k" and self.expert_count == 8:
            return "Q8_0"
        if tensor_kind in ("attn_q", "attn_k"):
            return QUERY_AND_KEY_TYPES.get(gguf_mix_name, default_type)
        if tensor_kind == "ffn_down":
            return self._type_of_down_proj(gguf_mix_name, default_type, param)
        if tensor_kind == "attn_output":
            return "Q5_K" if gguf_mix_name in MIXES_RAISED_FOR_EIGHT_EXPERTS else default_type
        if tensor_kind == "ffn_in" and gguf_mix_name == "IQ3_XS":
            layer_index, layer_count = self._layer_index(param), self.layer_count
            return "IQ3_XXS" if layer_count // 8 <= layer_index < 7 * layer_count // 8 else default_type
        return default_type

    def _type_in_smallest_mixes(self, tensor_kind: str, param: WeightTensor) -> str:
        """Returns the ggml type of a tensor inside a layer, for the mixes of one or two bits per weight."""
        gguf_mix_name, default_type = self.mix.mix_name, DEFAULT_TYPE_BY_MIX[self.mix.mix_name]
        wider_type = "IQ3_S" if gguf_mix_name in ("IQ2_S", "IQ2_M") else "Q2_K"
        if tensor_kind in ("attn_v", "attn_qkv"):
            return "Q4_K" if self.query_groups >= 4 or self.expert_count >= 4 else wider_type
        if tensor_kind == "ffn_down":  # in the order of the file's tensors, also of experts
            return wider_type if self.ffn_indices[param.path] < self.layer_count // 8 else default_type
        if self.expert_count == 8 and tensor_kind in ("attn_k", "attn_output"):
            return "Q4_K" if tensor_kind == "attn_k" else "Q5_K"
        return default_type

    def _layer_index(self, param: WeightTensor) -> int:
        """Returns the layer index that llama.cpp assigns to a matrix of a feed-forward network."""
        if self.expert_count > 1 and param.layer_index is not None:
            return param.layer_index
        return self.ffn_indices[param.path]

    def _type_of_value_projection(self, gguf_mix_name: str, default_type: str, earlier_layers: int) -> str:
        """Returns the ggml type of `attn_v` or `attn_qkv`. earlier_layers: how many lower layers have this tensor."""
        ggml_type, layer_count = default_type, len(self.value_indices)
        if gguf_mix_name == "Q2_K":
            ggml_type = "Q4_K" if self.query_groups >= 4 else "Q3_K"
        elif gguf_mix_name == "IQ3_M" or (
            gguf_mix_name in ("Q2_K_S", "IQ3_XXS", "IQ3_XS", "IQ3_S") and self.query_groups >= 4
        ):
            ggml_type = "Q4_K"
        elif gguf_mix_name == "Q3_K_M":
            ggml_type = "Q5_K" if earlier_layers < 2 else "Q4_K"
        elif (
            gguf_mix_name == "Q3_K_L"
            or (gguf_mix_name in ("IQ4_NL", "IQ4_XS") and self.query_groups >= 4)
            or (gguf_mix_name == "Q4_K_S" and earlier_layers < 4)
        ):
            ggml_type = "Q5_K"
        elif gguf_mix_name in ("Q4_K_M", "Q5_K_M") and _layer_gets_more_bits(earlier_layers, layer_count):
            ggml_type = "Q6_K"
        # llama.cpp's test for a 70B model
        if self.layer_count == 80 and self.query_groups > 1 and ggml_type in ("Q3_K", "Q4_K"):
            ggml_type = "Q5_K"
        return "Q8_0" if self.expert_count == 8 else ggml_type

    def _type_of_down_proj(self, gguf_mix_name: str, default_type: str, param: WeightTensor) -> str:
        """Returns the ggml type of `ffn_down`, which depends on the layer."""
        layer_index, layer_count = self._layer_index(param), self.layer_count
        if gguf_mix_name == "Q2_K":
            return "Q3_K"
        if gguf_mix_name == "Q3_K_M":
            return "Q5_K" if layer_index < layer_count // 16 else "Q4_K"
        if gguf_mix_name == "Q3_K_L":
            return "Q5_K"
        if gguf_mix_name in ("Q4_K_M", "Q5_K_M"):
            return "Q6_K" if _layer_gets_more_bits(layer_index, layer_count) else default_type
        is_in_first_eighth = layer_index < layer_count // 8
        if gguf_mix_name == "IQ3_M":
            has_more_bits = self.expert_count == 8 and _layer_gets_more_bits(layer_index, layer_count)
            return "Q4_K" if is_in_first_eighth or has_more_bits else default_type
        if gguf_mix_name == "Q2_K_S":
            return "Q4_K" if is_in_first_eighth else default_type
        if is_in_first_eighth and (
            gguf_mix_name == "Q4_K_S" or (gguf_mix_name in ("IQ4_NL", "IQ4_XS") and not self.mix.has_imatrix)
        ):
            return "Q5_K"
        if is_in_first_eighth and self.mix.has_imatrix and gguf_mix_name in ("Q4_0", "Q5_0"):
            return {"Q4_0": "Q4_1", "Q5_0": "Q5_1"}[gguf_mix_name]
        return default_type

    def _type_or_fallback(self, ggml_type: str, column_count: int, param: WeightTensor) -> str:
        """Returns the ggml type, or a fallback if its blocks do not divide the columns (`tensor_type_fallback`).

        Raises `InputError` if llama-quantize has no fallback. Q8_0 files come from the converter, whose fallback is
        F16.
        """
        if column_count % BLOCKS[ggml_type][0] == 0:
            return ggml_type
        fallback_type = FALLBACK_TYPES.get(ggml_type)
        if fallback_type is None:
            if self.mix.mix_name == "Q8_0":
                return "F16"
            raise InputError(
                f"--quantize {self.mix.label}: {param.path}: rows of {column_count:,} are not a multiple of "
                f"{ggml_type}'s {BLOCKS[ggml_type][0]}, and llama-quantize has no other type for it; expected another "
                "scheme"
            )
        return fallback_type if column_count % BLOCKS[fallback_type][0] == 0 else "F16"


def _first_occurrence_indices(kind_names: Iterable[str]) -> dict[str, int]:
    """Maps each distinct name to its index in the order of first occurrence."""
    return {kind_name: name_index for name_index, kind_name in enumerate(dict.fromkeys(kind_names))}


def _parent_path(param: WeightTensor) -> str:
    """Returns the path of the module that contains a linear layer."""
    return param.path.rpartition(".")[0]


def _layer_gets_more_bits(layer_index: int, layer_count: int) -> bool:
    """Whether llama.cpp gives a layer more bits: first and last eighth, every third between (`use_more_bits`)."""
    return (
        layer_index < layer_count // 8
        or layer_index >= 7 * layer_count // 8
        or (layer_index - layer_count // 8) % 3 == 2
    )


CATEGORY_BY_PROJECTION = {"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output"}


def _tensor_category(param: WeightTensor) -> str:
    """Returns the category of a tensor in llama.cpp's rules.

    It is empty for a tensor that stays F32, and `kept` for one that stays in the converter's 16 bits.
    """
    tensor_kind, tensor_name = param.kind, param.name
    if param.path in ("embed_tokens", "per_layer_embedding.embed"):
        return "token_embd"
    if (
        param.tensor.role != "matrix"
        or tensor_kind == "router"
        or tensor_name in ("shared_expert_gate", "coefficients")
    ):
        return ""
    sibling_names = {sibling_node.name for sibling_node in param.parent.children}
    if (
        tensor_kind == "streams"
        or param.path == "per_layer_embedding.projection"
        or {"left", "right"} <= sibling_names
        or param.tensor.shape[0] == 1
    ):
        return "kept"  # altup, per_layer_model_proj, laurel; a matrix of one row is a 1-D tensor in the file
    if ".indexer." in param.path:
        # MiniMax: the block indexer's matrices are too small to quantise
        return "other" if "weights_proj" in sibling_names else "kept"
    if tensor_kind == "lm_head" and tensor_name in ("lm_head", "decoder"):
        return "output"
    if tensor_kind in ("feed_forward", "experts", "shared_expert"):
        return "ffn_down" if tensor_name == "down_proj" else "ffn_in"
    if tensor_kind == "attention" or (
        tensor_kind == "linear_attention"
        and {"q_proj", "v_proj", "b_proj"} <= sibling_names
        and not _is_in_gated_delta_net(param)
    ):  # KDA (Kimi Linear)
        return CATEGORY_BY_PROJECTION.get(tensor_name, "other")
    return "other"


def _is_in_gated_delta_net(param: WeightTensor) -> bool:
    """Whether a tensor belongs to a gated DeltaNet, whose q, k and v are one tensor `attn_qkv` in GGUF files."""
    return param.kind == "linear_attention" and {"a_proj", "b_proj", "v_proj"} <= {
        sibling_node.name for sibling_node in param.parent.children
    }


def _query_heads_per_kv_head(params: list[WeightTensor]) -> Number:
    """Returns the number of query heads per key/value head in the first layer, llama.cpp's `n_gqa`.

    It is 0 if the first layer has no attention, and 1 if no layer has. For a model with gated DeltaNets the converter
    writes one number for all layers, for other hybrids one per layer.
    """
    mixers_with_keys = [
        param
        for param in params
        if param.name == "k_proj" and param.kind == "attention" and ".indexer." not in param.path
    ]
    if not mixers_with_keys:
        return 1
    param = min(
        mixers_with_keys, key=lambda other_param: -1 if other_param.layer_index is None else other_param.layer_index
    )
    attention_core = next((node.op for node in param.parent.children if isinstance(node.op, AttentionCore)), None)
    if attention_core is None or (
        param.layer_index
        and not any(_is_in_gated_delta_net(other_param) for other_param in params if other_param.layer_index == 0)
    ):
        return 1 if attention_core is None else 0
    return attention_core.heads * attention_core.qk_dim // param.tensor.shape[0]


def _file_tensor_shapes(param: WeightTensor) -> list[tuple[Number, Number]]:
    """Returns (rows, columns) of each of the file's tensors that store one model tensor."""
    shape = param.tensor.shape
    attention_core = next((node for node in param.parent.children if isinstance(node.op, AttentionCore)), None)
    if param.name == "kv_b_proj" and attention_core is not None and "absorbed" in attention_core.ops_by_form:
        expanded_op, absorbed_op = attention_core.op, attention_core.ops_by_form["absorbed"]
        assert isinstance(expanded_op, AttentionCore)
        assert isinstance(absorbed_op, AttentionCore)
        latent_width, rope_width = absorbed_op.v_dim, absorbed_op.qk_dim - absorbed_op.v_dim
        nope_width = expanded_op.qk_dim - rope_width
        return [(expanded_op.heads * latent_width, nope_width), (expanded_op.heads * expanded_op.v_dim, latent_width)]
    matrix_rows: Number = 1
    for axis_size in shape[:-1]:
        matrix_rows = matrix_rows * axis_size
    return [(matrix_rows, shape[-1])]


UNQUANTIZED_TYPES = {"F32": "float32", "F16": "float16"}


def _bytes_in_ggml_type(element_count: int, ggml_type: str) -> StoredBytes:
    """Returns the bytes of `element_count` elements, which must be a multiple of the ggml type's block."""
    if ggml_type in UNQUANTIZED_TYPES:
        return unquantized_bytes(element_count, UNQUANTIZED_TYPES[ggml_type])
    block_elements, code_bytes, scale_bytes, minimum_bytes = BLOCKS[ggml_type]
    return StoredBytes(code_bytes, scale_bytes, minimum_bytes) * (element_count // block_elements)
