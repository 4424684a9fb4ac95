"""Persistent memory in closed form: weights, and the cache in inference or gradients and optimizer states in training.

Every kind is one entry of `StaticMemory.parts`. The bytes of a pass itself, such as activations, come from a replay
(`training`, `inference`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any, TypeAlias

from ..algebra import Number, add, ceil_div, is_zero
from ..costs.adapters import LowRankAdapters, adapters_of_targets
from ..costs.cache import cache_bits_cost_by_name
from ..costs.cache_formats import cache_format
from ..costs.context_length import default_context_tokens, default_sequence_tokens, longest_sequence
from ..costs.encoders import EncodedInputs, encoded_inputs
from ..costs.params import ParameterCount
from ..costs.quantization import (
    QuantizationScheme,
    QuantizedSize,
    quantized_size,
    scheme_named,
    scheme_of_config,
    with_published_experts,
)
from ..costs.quantization.formats import IndivisibleMatrix
from ..costs.trained_tensors import (
    TrainedTensor,
    packed_bytes,
    total_elements,
    trained_tensors,
    trained_tensors_from_layer,
)
from ..errors import InputError
from ..flow.module_names import Checkpoint, config_fields
from ..frozen import frozen
from ..model import ModelSpec
from ..optional import OPTIONAL_PARTS, TOWERS
from ..parallel.rank_model import RankModel
from ..units import DTYPE_BITS, bits_to_bytes, dtype, short_dtype
from ..workload.lora import ALL_LINEAR, FUSED_ADAPTER_GROUPS, PARALLEL_LIBRARIES, has_fused_group
from ..workload.run_config import RunConfig
from ..workload.workload import Workload
from .optimizers.record import Optimizer, OptimizerState
from .optimizers.registry import DEFAULT_OPTIMIZER, optimizer, optimizers
from .settings import PRECISIONS, PRODUCT_FORMAT_BY_PRECISION, MemoryPhase, Settings


@frozen
class StaticMemory:
    """The persistent memory of one copy of a model, in bytes.

    parameter_count: the parameters.
    phase: training, prefill, decode or inference.
    dtype: number format of the weights; with `quantized_size`, of the unconverted tensors.
    workload: the sequences in the cache.
    kv_dtype: format of the cache; empty without a cache.
    grad_dtype, has_master_weights, optimizer, precision: set in training only.
    quantized_size: bytes of the weights under a quantization scheme; None without one.
    adapters: the adapters that are trained instead of the weights, in `adapter_dtype`; None if the weights are trained.
    encoded_inputs: the images and audio whose tokens are part of the sequences; None for text alone.
    first_trained_layer: index of the first trained layer, where the last layers alone are; None for all weights.
    trained_dtype: number format of such layers; empty for `dtype`.
    """

    parameter_count: ParameterCount
    phase: MemoryPhase
    dtype: str
    workload: Workload
    kv_dtype: str = ""
    grad_dtype: str = ""
    has_master_weights: bool = False
    optimizer: OptimizerState | None = None
    quantized_size: QuantizedSize | None = None
    precision: str = ""
    adapters: LowRankAdapters | None = None
    adapter_dtype: str = ""
    encoded_inputs: EncodedInputs | None = None
    first_trained_layer: int | None = None
    trained_dtype: str = ""

    @property
    def weights(self) -> Number:
        """Bytes of all parameters, in `dtype` or quantized under the scheme; a tied weight counts once.

        With adapters these are the bytes of the frozen weights as they are stored, and of the adapters.
        """
        if self.quantized_size is not None:
            return self.quantized_size.total
        if self.trained_dtype:
            trained_bytes = packed_bytes(self.trained_parameters, self.trained_dtype)
            return packed_bytes(self.parameter_count.total - self.trained_parameters, self.dtype) + trained_bytes
        if self.adapters is None:
            return packed_bytes(self.parameter_count.total, self.dtype)
        quantized_weights, stored_bytes = self.adapters.quantized_base_count_and_bytes(
            self.parameter_count.tree, self.parameter_count.include
        )
        frozen_bytes = packed_bytes(self.parameter_count.total - quantized_weights, self.dtype) + stored_bytes
        return add(
            frozen_bytes,
            add(
                *(
                    packed_bytes(total_elements(tensors), tensor_dtype)
                    for tensors, tensor_dtype in self._adapter_and_copy_tensors
                )
            ),
        )

    @property
    def trained_parameters(self) -> Number:
        """The number of trained parameters: all parameters, or only the adapters'; 0 in inference."""
        if self.phase != "training":
            return 0
        if self.first_trained_layer is not None:
            return total_elements(
                trained_tensors_from_layer(
                    self.parameter_count.tree, self.first_trained_layer, self.parameter_count.include
                )
            )
        if self.adapters is None:
            return self.parameter_count.total
        return add(*(total_elements(tensors) for tensors, _ in self._adapter_and_copy_tensors))

    @property
    def _adapter_and_copy_tensors(self) -> tuple[tuple[list[TrainedTensor], str], tuple[list[TrainedTensor], str]]:
        """Returns adapter tensors and fully trained module copies, each list with its number format."""
        assert self.adapters is not None
        model_tree, included_parts = self.parameter_count.tree, self.parameter_count.include
        adapters = self.adapters.adapters(model_tree, included_parts)
        module_copies = self.adapters.fully_trained_tensors(model_tree, included_parts)
        return (adapters, self.adapter_dtype), (module_copies, self.dtype)

    @property
    def trained_format(self) -> str:
        """The number format of the trained tensors: adapters, the last layers, or all weights."""
        return self.adapter_dtype or self.trained_dtype or self.dtype

    @property
    def gradients(self) -> Number:
        """Bytes of the gradients, one per trained parameter; 0 in inference."""
        if not self.grad_dtype:
            return 0
        if self.adapters is None:
            return packed_bytes(self.trained_parameters, self.grad_dtype)
        (adapters, adapter_dtype), (module_copies, copy_dtype) = self._adapter_and_copy_tensors
        if self.grad_dtype != adapter_dtype:
            copy_dtype = self.grad_dtype
        return add(
            packed_bytes(total_elements(adapters), self.grad_dtype),
            packed_bytes(total_elements(module_copies), copy_dtype),
        )

    @property
    def master_weights(self) -> Number:
        """Bytes of the fp32 master copy of all trained parameters; 0 without a master copy."""
        return packed_bytes(self.trained_parameters, "float32") if self.has_master_weights else 0

    @property
    def optimizer_bytes(self) -> Number:
        return 0 if self.optimizer is None else self.optimizer.bytes

    @property
    def kv_cache(self) -> Number:
        """Bytes of cached keys, values and recurrent states after the pass, optional parts included.

        There are `seq` tokens per sequence, after a decoding step one more.
        """
        return self._cache_size(self.workload.with_changes(seq=self.workload.seq + (self.phase == "decode")))

    def paged_cache_bytes(self, block_tokens: int, tokens: Number) -> Number:
        """Returns the bytes of a paged cache for `tokens` tokens per sequence, rounded up to whole blocks."""
        return self._cache_size(self.workload.with_changes(seq=ceil_div(tokens, block_tokens) * block_tokens))

    @property
    def model_context_length(self) -> Number:
        """The model's context length in tokens; None if the model states no limit."""
        return longest_sequence(self.parameter_count.spec)

    def _cache_size(self, workload: Workload) -> Number:
        if not self.kv_dtype:
            return 0
        return bits_to_bytes(
            self.parameter_count.tree.total(
                cache_bits_cost_by_name(self.kv_dtype), RunConfig(workload), self.parameter_count.include
            )
        )

    @property
    def parts(self) -> dict[str, Number]:
        """Bytes by kind of memory, such as weights; the kinds are disjoint and add up to `total_bytes`."""
        return {
            "weights": self.weights,
            "gradients": self.gradients,
            "master_weights": self.master_weights,
            "optimizer": self.optimizer_bytes,
            "kv_cache": self.kv_cache,
        }

    @property
    def total_bytes(self) -> Number:
        return reduce(add, self.parts.values(), 0)

    @property
    def uncounted_memory_notes(self) -> list[str]:
        """Notes on memory that is not counted: optional parts that are left out, and scales of narrow weights."""
        notes = [
            f"{part_name} modules: {adapter_elements:,} parameters ({OPTIONAL_PARTS[part_name].option} counts them)"
            for part_name, adapter_elements in self.parameter_count.left_out.items()
        ]
        if self.adapters is not None:
            adapter_elements = total_elements(
                self.adapters.uncounted_expert_adapters(self.parameter_count.tree, self.parameter_count.include)
            )
            if not is_zero(adapter_elements):
                notes.append(
                    f"adapters of routed experts: {adapter_elements:,} parameters, which PEFT's all-linear trains "
                    "beside the fused "
                    "experts of many classes, such as those of Qwen3-MoE and DeepSeek-V3 (--lora-experts counts them)"
                )
        if self.quantized_size is None and DTYPE_BITS[self.dtype] < 16:
            option_note = " (--quantize counts them)" if self.phase != "training" else ""
            notes.append(
                f"scales of the {short_dtype(self.dtype)} weights, and tensors that stay in a wider format{option_note}"
            )
        return notes


QuantizedSizes: TypeAlias = dict[tuple[str | None, str, frozenset[str]], QuantizedSize]
"""Cache for one model and config: (`--quantize`, format of unconverted tensors, optional parts) → size of the weights.
"""

DEFAULT_SETTINGS = Settings()
"""The settings of an inference run with all defaults."""


def memory(
    spec: ModelSpec,
    run_settings: Settings = DEFAULT_SETTINGS,
    published_dtype: str = "bfloat16",
    extra_parts: frozenset[str] = frozenset(),
    model_config: Mapping[str, Any] | Checkpoint | None = None,
    quantized_sizes: QuantizedSizes | None = None,
) -> StaticMemory:
    """Returns the persistent memory of a model under `run_settings`.

    published_dtype: number format of the published weights; default bfloat16.
    extra_parts: optional parts to include (`mtp`, `towers`). Images and audio include the encoders.
    model_config: the model's `config.json`; its `quantization_config` is the default quantization scheme. As a
        `Checkpoint` it also says what the model's classes call their modules; otherwise Llama's names are used.
    quantized_sizes: sizes under other settings of the same model and config, to which this adds; default none.
    Raises `InputError` for an unknown number format, optimizer or scheme, and for a setting that does not apply to the
    phase or to the optimizer.
    """
    run_settings.check(spec)
    if run_settings.inputs.has_inputs and spec.towers:
        extra_parts = extra_parts | {TOWERS.name}
    parameter_count = ParameterCount(spec, spec.tree(), extra_parts)
    if run_settings.phase == "training":
        return _training_memory(spec, parameter_count, run_settings, model_config)
    known_sizes = {} if quantized_sizes is None else quantized_sizes
    return _inference_memory(spec, parameter_count, run_settings, published_dtype, model_config, known_sizes)


def _inference_memory(
    spec: ModelSpec,
    parameter_count: ParameterCount,
    run_settings: Settings,
    published_dtype: str,
    model_config: Mapping[str, Any] | Checkpoint | None,
    quantized_sizes: QuantizedSizes,
) -> StaticMemory:
    """Counts the bytes of weights, adapters and cache in inference."""
    weight_format, stored_bytes = dtype(run_settings.dtype or published_dtype), None
    scheme = quantization_scheme(run_settings, model_config)
    if run_settings.quantize is not None and run_settings.dtype is None:  # `none`: as published, or at least 16 bits
        weight_format = _unquantized_format(run_settings, published_dtype)
    if scheme is not None:
        weight_format = _unquantized_format(run_settings, published_dtype)
        size_key = run_settings.quantize, weight_format, parameter_count.include
        if size_key not in quantized_sizes:
            module_names = (
                model_config.names(parameter_count.tree, spec.kind) if isinstance(model_config, Checkpoint) else None
            )
            try:
                quantized_sizes[size_key] = quantized_size(
                    spec, scheme, weight_format, parameter_count.include, module_names
                )
            except IndivisibleMatrix as error:
                if not isinstance(spec, RankModel) or spec.layout.tp == 1:
                    raise
                advice = "expected a smaller --tp, another scheme (--quantize), or an engine that pads them (--engine)"
                message = f"--tp {spec.layout.tp}: of a rank's weights in {scheme.label}, {error.reason}; {advice}"
                raise IndivisibleMatrix(message, error.path, error.refusal_reason) from None
        stored_bytes = quantized_sizes[size_key]
    batch = 1 if run_settings.batch is None else run_settings.batch
    if run_settings.inputs.has_inputs and isinstance(spec, RankModel):
        raise InputError(f"{run_settings.inputs.option}: encoders are counted beside a whole model; expected no layout")
    model_inputs = encoded_inputs(spec, run_settings.inputs, batch) if run_settings.inputs.has_inputs else None
    added_tokens = 0 if model_inputs is None else model_inputs.added_tokens
    is_decoding = run_settings.phase == "decode"
    seq = default_context_tokens(spec, is_decoding, added_tokens) if run_settings.seq is None else run_settings.seq
    seq += added_tokens
    workload = Workload(batch, seq, source=run_settings.source, phase="prefill")
    if spec.one_pass_model_name:
        return StaticMemory(
            parameter_count,
            run_settings.phase,
            weight_format,
            workload,
            quantized_size=stored_bytes,
            encoded_inputs=model_inputs,
        )
    has_usual_format = run_settings.phase == "inference" and scheme is not None
    activation_format = weight_format if DTYPE_BITS[weight_format] >= 16 and not has_usual_format else "bfloat16"
    cache_format_name = cache_format(run_settings.kv_dtype or activation_format).name
    return StaticMemory(
        parameter_count,
        run_settings.phase,
        weight_format,
        workload,
        kv_dtype=cache_format_name,
        quantized_size=stored_bytes,
        encoded_inputs=model_inputs,
    )


def quantization_scheme(
    run_settings: Settings, model_config: Mapping[str, Any] | Checkpoint | None
) -> QuantizationScheme | None:
    """Returns the quantization scheme from `quantize` or the model's config; None if only `dtype` is set."""
    config_table = config_fields(model_config)
    if run_settings.quantize is not None:
        if run_settings.quantize.strip().lower() == "none":
            return None
        published_config = None if config_table is None else config_table.get("quantization_config")
        return with_published_experts(scheme_named(run_settings.quantize), published_config)
    return scheme_of_config(config_table) if run_settings.dtype is None else None


def _unquantized_format(run_settings: Settings, published_dtype: str) -> str:
    """Returns the format of tensors that are not quantized: the published one, or bf16 if that is narrower."""
    if run_settings.dtype is None:
        return dtype(published_dtype) if DTYPE_BITS[dtype(published_dtype)] >= 16 else "bfloat16"
    if DTYPE_BITS[dtype(run_settings.dtype)] < 16:
        raise InputError(
            f"--dtype {run_settings.dtype}: with --quantize {run_settings.quantize} this is the format of the tensors "
            "that stay unquantized; expected 16 bits or more, such as bf16"
        )
    return dtype(run_settings.dtype)


def _training_memory(
    spec: ModelSpec,
    parameter_count: ParameterCount,
    run_settings: Settings,
    model_config: Mapping[str, Any] | Checkpoint | None,
) -> StaticMemory:
    """Counts the bytes of weights, gradients and optimizer states in training."""
    batch = 1 if run_settings.batch is None else run_settings.batch
    seq = default_sequence_tokens(spec) if run_settings.seq is None else run_settings.seq
    weight_format, has_master_weights = _training_formats(run_settings)
    optimizer_record = _optimizer_of_settings(run_settings)
    adapters, adapter_dtype = _adapters_and_format(spec, run_settings, parameter_count, weight_format, model_config)
    if adapters is not None:
        if run_settings.master_weights is not None:
            raise InputError("--master-weights: adapters are trained in a format of their own")
        has_master_weights = False
    first_trained_layer = _first_trained_layer(spec, run_settings)
    trains_in_float32 = first_trained_layer is not None and run_settings.precision == "autocast"
    trained_dtype = "float32" if trains_in_float32 and DTYPE_BITS[weight_format] < 32 else ""
    return StaticMemory(
        parameter_count,
        "training",
        weight_format,
        Workload(batch, seq, source=run_settings.source, phase="training"),
        grad_dtype=_checked_gradient_format(run_settings.grad_dtype, adapter_dtype or trained_dtype or weight_format),
        has_master_weights=has_master_weights,
        optimizer=_optimizer_state(
            optimizer_record,
            run_settings,
            parameter_count,
            trained_dtype or weight_format,
            has_master_weights,
            adapters,
            adapter_dtype,
            first_trained_layer,
        ),
        precision="autocast" if trained_dtype else _precision_name(run_settings, weight_format, has_master_weights),
        adapters=adapters,
        adapter_dtype=adapter_dtype,
        first_trained_layer=first_trained_layer,
        trained_dtype=trained_dtype,
    )


def _first_trained_layer(spec: ModelSpec, run_settings: Settings) -> int | None:
    """Returns the index of the first trained layer; None if all weights or adapters are trained.

    Raises `InputError` for a number of layers that the model does not have, and for models without a single stack.
    """
    if run_settings.trainable_layers is None:
        return None
    if run_settings.lora_rank is not None:
        raise InputError("--trainable-layers with --lora-rank: adapters train no layers; expected one of the two")
    if isinstance(spec, RankModel) or spec.decoder is None or spec.encoder is not None:
        raise InputError("--trainable-layers: is modelled for decoders on whole devices; expected none")
    layer_count = spec.decoder.num_hidden_layers
    if not 0 < run_settings.trainable_layers <= layer_count:
        raise InputError(
            f"--trainable-layers {run_settings.trainable_layers}: the model has {layer_count} layers; expected 1 to "
            f"{layer_count}"
        )
    return layer_count - run_settings.trainable_layers


def _training_formats(run_settings: Settings) -> tuple[str, bool]:
    """Returns the number format of the weights, and whether there are fp32 master weights."""
    default_weight_format, default_master_format = PRECISIONS[run_settings.precision or "bf16-master"]
    weight_format = _checked_float_format(run_settings.dtype, "--dtype", default_weight_format)
    is_float32 = DTYPE_BITS[weight_format] >= 32
    master_weights = run_settings.master_weights or ("none" if is_float32 else default_master_format)
    if master_weights == "fp32" and is_float32:
        raise InputError(f"--master-weights fp32: the weights are {short_dtype(weight_format)} already; expected none")
    return weight_format, master_weights == "fp32"


def _optimizer_of_settings(run_settings: Settings) -> Optimizer:
    """Returns the optimizer's record. Raises `InputError` for settings that the optimizer does not support."""
    optimizer_record, has_momentum = optimizer(run_settings.optimizer or DEFAULT_OPTIMIZER), bool(run_settings.momentum)
    if run_settings.momentum is not None and not optimizer_record.has_momentum:
        optimizers_text = " or ".join(
            other_optimizer.name for other_optimizer in optimizers() if other_optimizer.has_momentum
        )
        raise InputError(f"--momentum: for --optimizer {optimizers_text}, not {optimizer_record.name}")
    if run_settings.optimizer_dtype is not None and (
        optimizer_record.state_format or (optimizer_record.has_momentum and not has_momentum)
    ):
        raise InputError(
            f"--optimizer-dtype: not for --optimizer {optimizer_record.name}: {optimizer_record.state_format_note}"
        )
    return optimizer_record


def _optimizer_state(
    optimizer_record: Optimizer,
    run_settings: Settings,
    parameter_count: ParameterCount,
    weight_format: str,
    has_master_weights: bool,
    adapters: LowRankAdapters | None,
    adapter_dtype: str,
    first_trained_layer: int | None,
) -> OptimizerState:
    """Returns the optimizer state: of adapters and fully trained modules, else of all trained weights."""
    has_momentum = bool(run_settings.momentum)
    if adapters is None:
        state_format = _checked_float_format(
            run_settings.optimizer_dtype, "--optimizer-dtype", "float32" if has_master_weights else weight_format
        )
        if first_trained_layer is None:
            tensors = trained_tensors(parameter_count.tree, parameter_count.include)
        else:
            tensors = trained_tensors_from_layer(parameter_count.tree, first_trained_layer, parameter_count.include)
        return optimizer_record.state(list(tensors), state_format, has_momentum)
    state_format = _checked_float_format(run_settings.optimizer_dtype, "--optimizer-dtype", adapter_dtype)
    copy_state = optimizer_record.state(
        adapters.fully_trained_tensors(parameter_count.tree, parameter_count.include),
        run_settings.optimizer_dtype or weight_format,
        has_momentum,
    )
    return optimizer_record.state(
        adapters.adapters(parameter_count.tree, parameter_count.include), state_format, has_momentum
    ).combined_with(copy_state)


def _adapters_and_format(
    spec: ModelSpec,
    run_settings: Settings,
    parameter_count: ParameterCount,
    weight_format: str,
    model_config: Mapping[str, Any] | Checkpoint | None,
) -> tuple[LowRankAdapters | None, str]:
    """Returns the adapters and their number format; None and an empty text without adapters.

    weight_format: the number format of the weights, which adapters of Megatron-Core have, too.
    model_config: the checkpoint whose classes PEFT searches for layers; None or a plain table if it is not known.
    """
    if run_settings.lora_rank is None:
        return None, ""
    is_parallel_library = run_settings.lora_library in PARALLEL_LIBRARIES
    lora_targets = (
        (ALL_LINEAR,) if is_parallel_library and run_settings.lora_targets is None else run_settings.lora_targets
    )
    module_names = None
    if isinstance(model_config, Checkpoint) and model_config.module_names:
        module_names = model_config.names(parameter_count.tree, spec.kind)
    requested_adapters = LowRankAdapters(
        run_settings.lora_rank,
        frozenset(),
        run_settings.base or "none",
        run_settings.lora_library or "peft",
        frozenset(run_settings.modules_to_save or ()),
        bool(run_settings.quantized_head),
        bool(run_settings.fused_qkv),
        bool(run_settings.quantized_experts),
        bool(run_settings.lora_experts),
        bool(run_settings.use_dora),
    )
    if run_settings.lora_experts and run_settings.lora_dropout:
        raise InputError("--lora-experts with --lora-dropout: PEFT has no dropout beside experts; expected one of them")
    if run_settings.fused_adapters and (run_settings.use_dora or run_settings.base == "int8"):
        raise InputError(
            "--fused-adapters with --use-dora or --base int8: these kernels are not modelled; expected one of them"
        )
    if run_settings.fused_adapters and requested_adapters.library != "peft":
        raise InputError(
            f"--fused-adapters with --lora-library {requested_adapters.library}: these kernels run PEFT's adapters; "
            "expected one of them"
        )
    if run_settings.fused_adapters and not has_fused_group(lora_targets or ()):
        targets_text = (
            "without --lora-targets: no kernel for the default adapters of q_proj and v_proj"
            if lora_targets is None
            else f"with --lora-targets {','.join(lora_targets)}: no kernel for a part of a layer's projections"
        )
        raise InputError(
            f"--fused-adapters {targets_text}; expected all-linear, or "
            f"{' or '.join(','.join(layer_names) for layer_names in FUSED_ADAPTER_GROUPS)} among others"
        )
    fuses_projections_like_class = requested_adapters.library == "peft" and run_settings.fused_qkv is None
    adapters = adapters_of_targets(
        parameter_count.tree,
        requested_adapters,
        lora_targets,
        parameter_count.include,
        module_names,
        fuses_projections_like_class,
    )
    return adapters, _checked_float_format(
        run_settings.lora_dtype, "--lora-dtype", weight_format if is_parallel_library else "float32"
    )


def _precision_name(run_settings: Settings, weight_format: str, has_master_weights: bool) -> str:
    """Returns the name of the settings' training precision, such as mixed or pure bf16."""
    if run_settings.precision in PRODUCT_FORMAT_BY_PRECISION and has_master_weights and weight_format == "bfloat16":
        return str(run_settings.precision)
    if DTYPE_BITS[weight_format] >= 32:
        return "autocast" if run_settings.precision == "autocast" else short_dtype(weight_format)
    return short_dtype(weight_format) + ("-master" if has_master_weights else "")


def _checked_gradient_format(format_name: str | None, weight_format: str) -> str:
    """Returns the full name of the gradients' number format. Raises `InputError` for formats that cannot hold sums.

    weight_format: the number format of the trained weights, which is the default.
    """
    number_format = _checked_float_format(format_name, "--grad-dtype", weight_format)
    if number_format not in (*GRADIENT_FORMATS, weight_format):
        raise InputError(
            f"--grad-dtype {short_dtype(number_format)}: no framework sums gradients in it; expected fp32, bf16 or fp16"
        )
    return number_format


GRADIENT_FORMATS = "float32", "bfloat16", "float16"
"""Number formats in which frameworks sum gradients of weights in any format."""


def _checked_float_format(format_name: str | None, option_name: str, default_format: str) -> str:
    """Returns the full name of a floating-point format. Raises `InputError` for an integer format."""
    number_format = dtype(format_name or default_format)
    if number_format.startswith("int"):
        raise InputError(
            f"{option_name} {format_name}: integers take no gradient; expected a floating-point format such as bf16"
        )
    return number_format
