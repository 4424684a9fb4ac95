"""A model's shard on one rank of a serving engine: weights, cache bytes per token, and widths of layers."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal, NamedTuple, Self

from ...algebra import Number
from ...components.mixers.compressed_attention import CompressedAttention
from ...components.mixers.mla import MLA
from ...components.rope import Rope
from ...costs.cache import CacheGroup, kv
from ...costs.context_length import longest_sequence
from ...costs.quantization.base import QuantizationScheme, weight_tensors_of
from ...costs.quantization.formats import IndivisibleMatrix
from ...costs.trained_tensors import packed_bytes
from ...device_memory.settings import Settings
from ...device_memory.static import StaticMemory, quantization_scheme
from ...device_memory.static import memory as static_memory
from ...errors import InputError, MissingExtra
from ...flow.module_names import replace_numbers
from ...frozen import frozen
from ...identity_cache import IdentityCache
from ...model import ModelSpec
from ...ops import ExpertLinear, Linear
from ...optional import included_part_names
from ...parallel.layout import ONE_DEVICE, ImpossibleLayout, Layout
from ...parallel.rank_model import RankModel, rank_model
from ...record import Record
from ...sources.checkpoint_name import has_nvfp4_table
from ...sources.preset import Preset
from ...sources.presets import known_checkpoint
from ...units import DTYPE_BITS

LONG_SEQUENCE_TOKENS = 2**21
"""Length of a sequence, in tokens, that fills every attention window of published models."""

LATENT_KIND, INDEXER_KIND = "latent_attention", "indexer"
"""Kinds of KV caches: of MLA's latents, and of an indexer's keys."""

INDEXER_GROUP_ELEMENTS = 128
"""Number of elements of an indexer's key, or of a latent stored beside such a key, that share one float32 scale."""


NO_FORMAT_RATIOS: Mapping[str, Fraction] = {}
"""No ratios: recurrent states have the number formats of the classes of transformers."""


def scaled_float8_bytes(element_count: int) -> int:
    """Returns the bytes of a float8 indexer key or latent, which has a float32 scale per group of elements."""
    return element_count + element_count // INDEXER_GROUP_ELEMENTS * 4


class StageWithoutCache(InputError):
    """The error raised for a pipeline stage whose layers cache no keys and values."""


class ReserveExceedsMemory(InputError):
    """The error raised if the memory that an engine reserves by default leaves none on the device.

    option_name: the engine's option in place of the default.
    """

    def __init__(self, option_name: str, description: str) -> None:
        super().__init__(description)
        self.option_name: str = option_name


class MissingKernels(InputError):
    """The error raised if an engine has no kernels on an accelerator for the weights, the cache or the attention."""


class IndivisibleExperts(ImpossibleLayout):
    """The error raised for experts' weights whose number format tensor parallelism cannot divide."""


EXPERTS_PATH = ".experts."
"""Part of the path of an expert's weights."""


def _division_error(weight_path: str) -> type[ImpossibleLayout]:
    """Returns the class of the error for a weight whose number format tensor parallelism cannot divide."""
    return IndivisibleExperts if EXPERTS_PATH in weight_path else ImpossibleLayout


class TokenCache(NamedTuple):
    """The KV caches of all layers with one attention type, whose bytes grow with the tokens.

    kind: kind of attention. layer_count: their number. window: tokens that each keeps at most; None for all.
    elements_per_token: elements of one token in one layer.
    """

    kind: str
    layer_count: int
    window: int | None
    elements_per_token: int


class StateCache(NamedTuple):
    """The recurrent states of all layers of one type.

    layer_count: number of layers. bytes: bytes per sequence and layer.
    """

    kind: str
    layer_count: int
    bytes: int


class RankExperts(NamedTuple):
    """The routed experts of a layer that are on one rank.

    top_k: experts of a token. intermediate_size: width of an expert. expert_count: their number. input_width: width of
        what an expert reads and returns: the model's, or that of latent experts. layer_count: the rank's layers with
            experts.
    """

    top_k: int
    intermediate_size: int
    expert_count: int
    input_width: int
    layer_count: int


@frozen(eq=False)
class EngineRank:
    """A model's shard on one rank. layout, rank: the parallel layout and rank number. quantize: quantization scheme.

    dtype: number format of activations and of weights that are not quantized; None for the published one.
    includes_towers: whether encoders are loaded.
    includes_mtp: whether the modules of multi-token prediction are loaded, which draft tokens.
    """

    preset: Preset
    layout: Layout = ONE_DEVICE
    rank: int = 0
    quantize: str | None = None
    dtype: str | None = None
    includes_towers: bool = True
    includes_mtp: bool = False

    def shared(self) -> Self:
        """Returns a cached object for these field values, shared by servers that differ only in other flags."""
        field_values = (getattr(self, field.name) for field in fields(self) if field.name != "preset")
        shared_rank = _shared_ranks.result((self.preset,), (type(self), *field_values), lambda: self)
        assert isinstance(shared_rank, type(self))
        return shared_rank

    @cached_property
    def model(self) -> RankModel:
        """The model with the sizes of this rank's shard."""
        return rank_model(self.preset.model, self.layout, self.rank)

    @property
    def hidden_size(self) -> int:
        return int(self.preset.model.hidden_size)

    @property
    def vocab_size(self) -> int:
        return int(self.preset.model.vocab_size)

    @cached_property
    def layer_count(self) -> int:
        """The number of layers in the rank's pipeline stages."""
        return len(self.model.chunks.layers)

    @cached_property
    def converted_dtype(self) -> str | None:
        """The number format to which the engine converts the weights; None if it loads them as published.

        A checkpoint's quantized weights stay as they are: `--dtype` is the format of what they are multiplied with
        (vllm/config/model.py, `get_supported_act_dtypes`).
        """
        return None if self.quantize is None and self.preset.has_quantized_weights else self.dtype

    @cached_property
    def scheme(self) -> str | None:
        """The quantization scheme that flags choose; None for the checkpoint's own scheme or for plain weights."""
        if self.quantize is not None or self.converted_dtype is not None:
            return self.quantize
        quantization_config, stored_bits = self.preset.storage_table, DTYPE_BITS.get(self.preset.dtype, 16)
        if quantization_config is None:
            has_mxfp4_experts = stored_bits == 4 and self.preset.config is None
        else:
            has_mxfp4_experts = quantization_config.get("quant_method") == "mxfp4"
        return "mxfp4" if has_mxfp4_experts else None

    @cached_property
    def is_format_assumed(self) -> bool:
        """Whether the weights' format is inferred from the checkpoint's name, since its config could not be read."""
        checkpoint_name = self.preset.named_checkpoint
        if not checkpoint_name or self.scheme is not None or self.converted_dtype is not None:
            return False
        named_checkpoint = known_checkpoint(checkpoint_name)
        is_published_table = checkpoint_name.startswith("nvidia/") and has_nvfp4_table(self.preset.name)
        return named_checkpoint is not None and bool(named_checkpoint[1]) and not is_published_table

    @property
    def weights_status(self) -> Literal["source", "estimate"]:
        """The status of the weights' bytes: `estimate` if the format is inferred from the checkpoint's name."""
        return "estimate" if self.is_format_assumed else "source"

    @property
    def weights_origin(self) -> str:
        """The origin of the weights' format as text: a scheme, the dtype they are converted to, or `as published`."""
        return (
            self.scheme or self.converted_dtype or ("format by its name" if self.is_format_assumed else "as published")
        )

    @cached_property
    def weight_kernels(self) -> frozenset[str]:
        """The kernels that multiply by the quantized weights, such as `awq`; empty for plain weights."""
        return frozenset() if self.quantization is None else self.quantization.kernels

    @property
    def quantization(self) -> QuantizationScheme | None:
        """The weights' quantization scheme, by name or from the checkpoint; None for plain weights."""
        return quantization_scheme(self._settings(self.scheme), self.preset.checkpoint)

    @cached_property
    def weight_bytes(self) -> int:
        """Bytes of the rank's weights, including its image and audio encoders."""
        try:
            return int(self.weight_memory.weights)
        except IndivisibleMatrix as error:
            if self.scheme == "mxfp4" and self.layout.expert_tp > 1:
                return self._bytes_with_divided_blocks()
            self._weight_bytes_of(
                self.preset.model, self.scheme
            )  # raises if the scheme cannot store the whole model either
            scheme_title = self.scheme or "the published format"
            raise _division_error(error.path)(
                f"{self._dividing_options_text}: of a rank's weights in {scheme_title}, {error.reason}; expected "
                f"{self._smaller_options_text}, or another scheme{self._size_remark}"
            ) from None

    @property
    def _dividing_options_text(self) -> str:
        """The flags whose ranks divide weight matrices, such as `--tp 8`, for the start of an error message."""
        layout = self.layout
        return f"--tp {layout.tp}" + (f" --data-parallel-size {layout.dp}" if layout.expert_tp > layout.tp else "")

    @property
    def _smaller_options_text(self) -> str:
        """Advice to lower `--tp` or `--data-parallel-size`, for the end of an error message."""
        if self.layout.expert_tp <= self.layout.tp:
            return "a smaller --tp"
        return "a smaller --tp or --data-parallel-size" if self.layout.tp > 1 else "a smaller --data-parallel-size"

    @property
    def _size_remark(self) -> str:
        """A note for errors that the sizes in the preset may not be the checkpoint's; empty if they must be."""
        if not self.preset.named_checkpoint or self.preset.quantization_config is None:
            return ""
        return self.preset.remark_on_sizes(self.preset.named_checkpoint)

    def check_quantization_block_division(
        self, layout: Layout | None = None, unchecked_projections: frozenset[str] = frozenset()
    ) -> None:
        """Raises `ImpossibleLayout` if tensor parallelism divides weights inside a block with one scale (fp8).

        layout: the layout of all devices, with expert parallelism; default that of the rank.
        unchecked_projections: names of projections outside experts that the engine divides inside a block, too.
        """
        scheme = self.quantization
        if self.layout.tp == self.layout.expert_tp == 1 or scheme is None or not scheme.has_square_blocks:
            return
        included_parts = included_part_names(self.includes_mtp, self.includes_towers and bool(self.preset.model.towers))
        model = self.model if layout is None else rank_model(self.preset.model, layout, 0)
        whole_shapes: dict[str, dict[tuple[Number, ...], None]] = {}
        for weight in weight_tensors_of(self.preset.model.tree(), included_parts, first_copies_only=True):
            whole_shapes.setdefault(replace_numbers(weight.path), {})[weight.tensor.shape] = None
        checkpoint = self.preset.checkpoint
        path_names = None if checkpoint is None else checkpoint.names(model.tree(), model.kind)
        for weight in weight_tensors_of(model.tree(), included_parts, first_copies_only=True):
            tensor_shapes = whole_shapes.get(replace_numbers(weight.path), {})
            is_unchecked_projection = (
                weight.path.rpartition(".")[2] in unchecked_projections and EXPERTS_PATH not in weight.path
            )
            if is_unchecked_projection or not tensor_shapes or weight.tensor.shape in tensor_shapes:
                continue
            named_tensor = weight if path_names is None else replace(weight, published_names=path_names(weight.path))
            refusal_reasons = [scheme.shard_refusal_reason(named_tensor, shape) for shape in tensor_shapes]
            if all(refusal_reasons):
                error_class = _division_error(weight.path)
                remedy = "experts that ranks do not divide, " if error_class is IndivisibleExperts else ""
                raise error_class(
                    f"{self._dividing_options_text}: of a rank's weights in {self.scheme or 'the published format'}, "
                    f"{weight.path}: {refusal_reasons[0]}, which no kernel computes; expected "
                    f"{self._smaller_options_text}, {remedy}or another scheme"
                )

    def _bytes_with_divided_blocks(self) -> int:
        """Bytes of the rank's weights if MXFP4 experts are divided evenly, even inside a block that shares a scale."""
        whole_model_savings = replace(self, layout=ONE_DEVICE, rank=0).shared()._savings_of_whole_model
        return self._weight_bytes_of(self.model, "none") - whole_model_savings // (
            self.layout.expert_tp * self.layout.pp
        )

    @cached_property
    def _savings_of_whole_model(self) -> int:
        """The number of bytes by which the quantization scheme reduces the whole model's weights."""
        full_model = self.preset.model
        return self._weight_bytes_of(full_model, "none") - self._weight_bytes_of(full_model, self.scheme)

    def _weight_bytes_of(self, model: ModelSpec, scheme: str | None) -> int:
        """Returns the bytes of a model's weights under a scheme, or under the checkpoint's own scheme for None."""
        return int(self._weight_memory_of(model, scheme).weights)

    def _weight_memory_of(self, model: ModelSpec, scheme: str | None) -> StaticMemory:
        included_parts = included_part_names(self.includes_mtp, self.includes_towers and bool(self.preset.model.towers))
        return static_memory(model, self._settings(scheme), self.preset.dtype, included_parts, self.preset.checkpoint)

    def _settings(self, scheme: str | None) -> Settings:
        """Returns run settings in which weights have a quantization scheme, or for None the checkpoint's own."""
        scheme_fields: dict[str, Any] = {} if scheme is None else {"quantize": scheme}
        if self.converted_dtype is not None:
            scheme_fields["dtype"] = self.converted_dtype
        return Settings(phase="inference", **scheme_fields)

    @cached_property
    def weight_memory(self) -> StaticMemory:
        """The memory of the rank's weights. Raises `InputError` for weights that a quantization scheme cannot store."""
        return self._weight_memory_of(self.model, self.scheme)

    @cached_property
    def weights_by_component(self) -> dict[str, int]:
        """Bytes of the rank's weights by component (`attention`, `experts`, …)."""
        weight_memory = self.weight_memory
        if weight_memory.quantized_size is not None:
            return {
                module_name: int(stored_bytes.total)
                for module_name, stored_bytes in weight_memory.quantized_size.by_component.items()
            }
        return {
            component_name: int(packed_bytes(component_bytes, weight_memory.dtype))
            for component_name, component_bytes in weight_memory.parameter_count.by_component.items()
        }

    @cached_property
    def _cache_groups(self) -> list[CacheGroup]:
        return kv(self.model, 1, LONG_SEQUENCE_TOKENS, "bfloat16").groups

    @property
    def token_caches(self) -> list[TokenCache]:
        """The rank's KV caches, which grow with the tokens; draft layers share the cache of their window size."""
        layer_caches = [
            TokenCache(
                cache_group.kind,
                cache_group.layers,
                None if cache_group.tokens == LONG_SEQUENCE_TOKENS else cache_group.tokens,
                cache_group.width,
            )
            for cache_group in self._cache_groups
            if cache_group.width is not None and cache_group.tokens
        ]
        mtp_part = self.preset.model.mtp
        if mtp_part is None or not self.draft_layer_count:
            return layer_caches
        window = getattr(mtp_part.prediction_block(self.preset.model.main).attention, "sliding_window", None)
        indices_with_window = [i for i, cache in enumerate(layer_caches) if cache.window == window]
        if indices_with_window:
            cache = layer_caches[indices_with_window[-1]]
            layer_caches[indices_with_window[-1]] = cache._replace(
                layer_count=cache.layer_count + self.draft_layer_count
            )
        return layer_caches

    @property
    def caches_of_all_layers(self) -> list[TokenCache]:
        """The rank's KV caches if each layer had a separate one, even layers that reuse keys and values.

        SGLang allocates them by the number of layers (model_executor/pool_configurator.py).
        """
        rank_layers, sharing_layers = frozenset(self.model.chunks.layers), Counter[int | None]()
        for _, layer_spec, _, layer_indices in self.preset.model.main.layer_groups():
            if getattr(layer_spec.attention, "kv_shared", False):
                window = getattr(layer_spec.attention, "sliding_window", None)
                sharing_layers[window] += len(rank_layers.intersection(layer_indices or ()))
        return [
            cache._replace(layer_count=cache.layer_count + sharing_layers.pop(cache.window, 0))
            for cache in self.token_caches
        ]

    def no_cache_error(self, engine_title: str) -> InputError:
        """Returns the error for a rank whose layers cache no keys and values."""
        if self.layout.pp > 1:
            return StageWithoutCache(
                f"--engine {engine_title}: a pipeline stage has no layer with keys and values, which is not modelled; "
                "expected fewer stages"
            )
        return InputError(f"--engine {engine_title}: the model has no layer with keys and values; it is not modelled")

    @property
    def has_latent_selection(self) -> bool:
        """Whether an indexer selects the latents that MLA attends to (DeepSeek sparse attention)."""
        return {LATENT_KIND, INDEXER_KIND} <= {cache.kind for cache in self.token_caches}

    def cache_bytes_per_token(
        self, cache: TokenCache, element_bytes: Fraction, has_scaled_latents: bool = True
    ) -> Fraction:
        """Returns the bytes that one token takes in one layer of a cache.

        element_bytes: bytes of a cached element, with its share of scales.
        has_scaled_latents: whether latents of 8 bits beside an indexer have scales, and their rotated part 16 bits
            (vLLM's `fp8_ds_mla`, SGLang's `calculate_mla_kv_cache_dim`); true by default.
        An indexer's keys beside latents have 8 bits with scales in any format of the latents, else 16 bits.
        """
        if cache.kind == INDEXER_KIND:
            return Fraction(
                scaled_float8_bytes(cache.elements_per_token)
                if self.has_latent_selection
                else 2 * cache.elements_per_token
            )
        if cache.kind == LATENT_KIND and element_bytes == 1 and has_scaled_latents and self.has_latent_selection:
            rotary_dim = next(
                mixer.qk_rope_head_dim
                for mixer, _ in mixers_with_layer_counts(self.preset.model)
                if isinstance(mixer, MLA)
            )
            latent_dim = cache.elements_per_token - rotary_dim
            return Fraction(scaled_float8_bytes(latent_dim) + 2 * rotary_dim)
        return cache.elements_per_token * element_bytes

    @property
    def draft_layer_count(self) -> int:
        """The number of loaded layers that draft tokens (multi-token prediction)."""
        mtp_part = self.preset.model.mtp
        if mtp_part is None or not self.includes_mtp:
            return 0
        return 1 if mtp_part.repeated else int(mtp_part.num_nextn_predict_layers)

    @property
    def state_caches(self) -> list[StateCache]:
        """The recurrent states of the layers on this rank."""
        return [
            StateCache(cache_group.kind, cache_group.layers, -(-cache_group.bytes // cache_group.layers))
            for cache_group in self._cache_groups
            if cache_group.width is None
        ]

    def stored_state_caches(
        self, draft_tokens: int = 0, format_ratios: Mapping[str, Fraction] = NO_FORMAT_RATIOS
    ) -> list[StateCache]:
        """Returns the recurrent states with the convolution inputs that engines store: the last k − 1.

        The classes of transformers keep k.
        draft_tokens: tokens that are drafted for a step, whose inputs a convolution keeps too (vLLM).
        format_ratios: kind of state → the bytes of an element, as a multiple of those in the classes of transformers.
        """
        conv_kernels = {
            conv_kernel
            for mixer, _ in mixers_with_layer_counts(self.preset.model)
            if (conv_kernel := _convolution_state_tokens(mixer))
        }
        kept_input_share = Fraction(1)
        if len(conv_kernels) == 1:
            conv_kernel = conv_kernels.pop()
            kept_input_share = Fraction(conv_kernel - 1 + draft_tokens, conv_kernel)
        return [
            state_cache._replace(
                bytes=int(
                    state_cache.bytes
                    * format_ratios.get(state_cache.kind, 1)
                    * (kept_input_share if state_cache.kind == "conv_state" else 1)
                )
            )
            for state_cache in self.state_caches
        ]

    @cached_property
    def widest_network_sizes(self) -> tuple[int, bool, RankExperts | None]:
        """The largest feed-forward width, whether that network is gated, and the experts on this rank."""
        dense_width, is_gated, rank_experts, expert_layer_count = 0, False, None, 0
        for tree_node in self.model.tree().walk():
            node_op = tree_node.node.op
            if tree_node.optional_part or tree_node.node.name not in ("up_proj", "gate_proj", "fc1"):
                continue
            if isinstance(node_op, ExpertLinear):
                expert_layer_count += int(tree_node.copies) if tree_node.node.name != "gate_proj" else 0
                top_k, expert_width, expert_count, input_width = (
                    int(op_size) for op_size in (node_op.top_k, node_op.n_out, node_op.num_experts, node_op.n_in)
                )
                rank_experts = RankExperts(top_k, expert_width, expert_count, input_width, expert_layer_count)
            elif isinstance(node_op, Linear) and tree_node.kind == "feed_forward":
                dense_width, is_gated = max(
                    (dense_width, is_gated), (int(node_op.n_out), tree_node.node.name == "gate_proj" or is_gated)
                )
        return dense_width, is_gated, rank_experts

    def rope_table_elements(self, video_factor: int = 1, is_scaled: bool = True) -> int:
        """Returns the elements of RoPE's cosine and sine tables, one per distinct setting of rotary embeddings.

        video_factor: factor of the positions of models with positions of images and videos; 1 by default.
        is_scaled: whether scaled positions make tables longer, as in vLLM and SGLang; true by default.
        """
        longest_positions = longest_sequence(self.preset.model) or 0
        distinct_tables = {*rope_tables(self.preset, longest_positions if is_scaled else None, video_factor)}
        return sum(rope_table.dim * (rope_table.position_count or longest_positions) for rope_table in distinct_tables)

    @cached_property
    def up_projection_elements(self) -> int:
        """The number of elements in MLA's up-projections, of which engines make copies for absorbed products."""
        projection_elements = 0
        for attention, layer_count in mixers_with_layer_counts(self.preset.model):
            if isinstance(attention, MLA):
                heads = attention.num_attention_heads // self.layout.tp
                projection_elements += (
                    layer_count * heads * attention.kv_lora_rank * (attention.qk_nope_head_dim + attention.v_head_dim)
                )
        return projection_elements // self.layout.pp


def compressed_mixers_with_layer_counts(engine_rank: EngineRank) -> list[tuple[CompressedAttention, int]]:
    """Returns each type of compressed attention in the model, with the number of its layers."""
    return [
        (mixer, layer_count)
        for mixer, layer_count in mixers_with_layer_counts(engine_rank.preset.model)
        if isinstance(mixer, CompressedAttention)
    ]


def compressed_key_bytes(mixer: CompressedAttention) -> int:
    """Returns the bytes of one compressed key: float8 elements with scales and padding, and 16-bit rotary elements."""
    unrotated_dim = mixer.head_dim - mixer.qk_rope_head_dim
    return unrotated_dim + 2 * mixer.qk_rope_head_dim + unrotated_dim // 64 + 1


def mixers_with_layer_counts(spec: ModelSpec) -> tuple[tuple[Any, int], ...]:
    """Returns the decoder's attention and recurrence components, each with its number of layers."""
    return _mixers_of_models.result((spec,), (), lambda: tuple(_find_mixers(spec)))


def _find_mixers(spec: ModelSpec) -> Iterator[tuple[Any, int]]:
    for _, layer_stack in spec.stacks():
        for _, layer, layer_count, _ in layer_stack.layer_groups():
            for mixer in _walk_components(layer):
                yield mixer, layer_count


def _convolution_state_tokens(layer_part: Any) -> int:
    """Returns the number of tokens that a convolution's state holds in transformers; 0 without a convolution."""
    for kernel_field in ("linear_conv_kernel_dim", "conv_kernel", "conv_L_cache"):
        if (kernel_size := getattr(layer_part, kernel_field, None)) is not None:
            return int(kernel_size)
    return 0


def architectures(preset: Preset) -> tuple[str, ...]:
    """Returns the names of the model's classes in a config (`architectures`); none if no config is known."""
    return architectures_of(preset.config, preset.model)


def architectures_of(config: Mapping[str, Any] | None, model: ModelSpec) -> tuple[str, ...]:
    """Returns class names (`architectures`) from a config, or else from the model's export; none if unknown."""
    if config is not None:
        class_names = config.get("architectures")
        return tuple(map(str, class_names)) if isinstance(class_names, list | tuple) else ()
    return _class_names_of_models.result((model,), (), lambda: _class_names_of_equal_model(model))


def _class_names_of_equal_model(model: ModelSpec) -> tuple[str, ...]:
    """Returns the class names in the export of a model, from a cache for equal models."""
    class_names = next((known_names for known_model, known_names in _exported_classes if known_model == model), None)
    if class_names is None:
        class_names = _classes_of_export(model)
        _exported_classes.append((model, class_names))
    return class_names


def _classes_of_export(model: ModelSpec) -> tuple[str, ...]:
    """Returns the class names in the config that `llmcalc convert` writes for a model; none if it cannot write one.

    A model that also hears has the class of its images, where `convert` does not write its encoder of audio. Where it
    writes no encoder of the model, the class is that of the only wrapper whose text model is the decoder.
    """
    try:
        from ...sources.to_hf import find_config, wrapper_class

        exported_config = find_config(model)
        towers_without_audio = {
            tower_name: tower for tower_name, tower in model.towers.items() if "audio" not in tower_name
        }
        if exported_config is None and towers_without_audio != model.towers:
            exported_config = find_config(model.model_copy(update={"towers": towers_without_audio}))
        if exported_config is None and model.towers:
            return tuple(filter(None, [wrapper_class(model)]))
    except (InputError, MissingExtra, ImportError):  # the page has no writer of configs
        return ()
    return () if exported_config is None else tuple(exported_config["architectures"])


_exported_classes: deque[tuple[ModelSpec, tuple[str, ...]]] = deque(maxlen=128)
"""Models of the latest questions, no two of them equal, each with the class names in its export."""

MAX_SHARED_RANKS = 64
"""Largest number of ranks, and of models, whose results are cached."""

_class_names_of_models: IdentityCache[tuple[str, ...]] = IdentityCache(MAX_SHARED_RANKS)
_mixers_of_models: IdentityCache[tuple[tuple[Any, int], ...]] = IdentityCache(MAX_SHARED_RANKS)
_shared_ranks: IdentityCache[EngineRank] = IdentityCache(MAX_SHARED_RANKS)


def kv_head_counts(spec: ModelSpec) -> list[int]:
    """Returns the number of key and value heads of each attention type in the decoder."""
    head_counts = (getattr(mixer, "num_key_value_heads", None) for mixer, _ in mixers_with_layer_counts(spec))
    return [int(head_count) for head_count in head_counts if head_count]


def _walk_components(component: Record, nesting_depth: int = 0) -> Iterator[Record]:
    """Yields a component and all components inside it, without image encoders."""
    yield component
    if nesting_depth > 8:
        return
    for field_name in type(component).model_fields:
        child = getattr(component, field_name)
        for inner_component in (
            child if isinstance(child, tuple | list) else child.values() if isinstance(child, dict) else [child]
        ):
            if isinstance(inner_component, Record):
                yield from _walk_components(inner_component, nesting_depth + 1)


class RopeTable(NamedTuple):
    """A table of cosines and sines for rotary embeddings.

    base: the RoPE base. dim: rotated dimensions. position_count: number of positions.
    """

    base: float
    dim: int
    position_count: int


def rope_tables(preset: Preset, position_count: int | None, video_factor: int) -> Iterator[RopeTable]:
    """Yields a table for each rotary embedding. position_count: the model's longest sequence; None for 0 rows.

    video_factor: factor of the positions of models with positions of images and videos.
    """
    spec, rope_settings = preset.model, preset.rope_parameters or {}
    for mixer, _ in mixers_with_layer_counts(spec):
        layer_kind = "full_attention" if getattr(mixer, "sliding_window", None) is None else "sliding_attention"
        rope_scaling = rope_settings.get(layer_kind, {} if "full_attention" in rope_settings else rope_settings)
        table_rows = 0 if position_count is None else _table_rows(rope_scaling, position_count, video_factor)
        position_encoding = getattr(mixer, "position", None)
        if isinstance(mixer, MLA):
            yield RopeTable(0.0, int(mixer.qk_rope_head_dim), table_rows)
        elif isinstance(position_encoding, Rope):
            head_dim = int(getattr(mixer, "head_dim", None) or spec.hidden_size // mixer.num_attention_heads)
            covers_whole_head = (
                table_rows and rope_scaling.get("rope_type") == "proportional"
            )  # also of the dimensions that stay
            rotated_dim = (
                head_dim
                if covers_whole_head
                else position_encoding.rotary_dim or int(head_dim * float(position_encoding.partial_rotary_factor or 1))
            )
            yield RopeTable(float(position_encoding.rope_theta), int(rotated_dim), table_rows)


def _table_rows(rope_scaling: Mapping[str, Any], position_count: int, video_factor: int) -> int:
    """Returns the number of rows in a table of RoPE's cosines and sines (`get_rope` of vLLM and SGLang).

    rope_scaling: the config's `rope_parameters`. Its positions are linear or dynamic multiples of the model, or YaRN's
    multiples of the original ones; LongRoPE has a table for either.
    """
    rope_type = rope_scaling.get("rope_type", rope_scaling.get("type", "default"))
    scaling_factor = rope_scaling.get("factor")
    original_positions = rope_scaling.get("original_max_position_embeddings")
    scaled_rows: float = position_count
    if rope_type in ("linear", "dynamic") and isinstance(scaling_factor, int | float):
        scaled_rows = position_count * scaling_factor
    elif (
        rope_type in ("yarn", "deepseek_yarn")
        and isinstance(scaling_factor, int | float)
        and isinstance(original_positions, int)
    ):
        scaled_rows = original_positions * scaling_factor
    elif rope_type == "longrope" and isinstance(original_positions, int):
        scaled_rows = position_count + original_positions
    return int(scaled_rows) * (video_factor if "mrope_section" in rope_scaling else 1)
