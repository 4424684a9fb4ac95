"""Translates settings for the replay: kernels, training configuration, and inference passes."""

from __future__ import annotations

from dataclasses import replace

from ..errors import InputError
from ..model import ModelSpec
from ..optional import TOWERS
from ..simulator.adapters import Adapters
from ..simulator.kernel_choices import KernelChoices
from ..simulator.sdpa import has_extra_mask_input
from ..simulator.tensor import DTYPES, FLOAT8, Dtype
from ..units import dtype, short_dtype
from ..workload.execution import AttentionImplementation, OptimizerImplementation
from ..workload.expert_capacity import parse_expert_capacity
from ..workload.fake_quantization import parse_fake_quantization
from .cuda_runtime import CudaRuntime
from .inference import InferenceConfig
from .optimizers.registry import optimizer
from .settings import DEFAULT_KV_BLOCK_TOKENS, DEFAULT_PROMPT_PASS_TOKENS, Settings
from .static import StaticMemory
from .training import TrainingConfig

ACTIVATION_FORMATS = ("bfloat16", "float16", "float32", "float64")
"""Number formats of activations."""


def kernel_choices(
    run_settings: Settings, spec: ModelSpec, attention: AttentionImplementation | None = None
) -> KernelChoices:
    """Returns the kernel choices of the run.

    attention: the implementation if the settings name none; default: the phase's default.
    """
    is_serving = run_settings.is_serving
    usual_attention: AttentionImplementation = "flash" if is_serving else "sdpa"
    matches_transformers = run_settings.fused_qkv is None and not is_serving
    trains_like_transformers = matches_transformers and run_settings.phase == "training"
    return KernelChoices(
        attention=run_settings.attn_implementation or attention or usual_attention,
        norm="fused" if run_settings.norm == "liger" else run_settings.norm or ("fused" if is_serving else "eager"),
        fused_gate=run_settings.norm == "liger",
        cross_entropy=run_settings.cross_entropy or "eager",
        logits_dtype=None if run_settings.logits_dtype is None else dtype(run_settings.logits_dtype),
        float32_loss=spec.head.type != "lm" or spec.head.float32_loss,
        scales_logits=trains_like_transformers and spec.head.type == "lm" and spec.head.logit_scale not in (None, 1),
        caps_logits=trains_like_transformers and spec.head.type == "lm" and spec.head.logit_softcapping is not None,
        loss_chunk=run_settings.loss_chunk,
        logits_to_keep=run_settings.logits_to_keep,
        divides_logits=bool(run_settings.divide_logits),
        keeps_logits=bool(run_settings.keep_logits),
        fused_qkv=bool(run_settings.fused_qkv),
        matches_transformers=matches_transformers,
        fused_adapters=bool(run_settings.fused_adapters),
        compiled=bool(run_settings.compile),
        expert_capacity=None if run_settings.moe is None else parse_expert_capacity(run_settings.moe),
        fused_layer_norm=run_settings.norm is None,
        fake_quantization=None
        if run_settings.fake_quantize is None
        else parse_fake_quantization(run_settings.fake_quantize),
        multiprocessors=CudaRuntime.multiprocessors,
    )


def kernel_choices_for_runtime(kernel_choices: KernelChoices, cuda_runtime: CudaRuntime) -> KernelChoices:
    """Returns the kernel choices adjusted to an accelerator with these CUDA properties."""
    return replace(
        kernel_choices, compute_capability=cuda_runtime.compute_capability, multiprocessors=cuda_runtime.multiprocessors
    )


def optimizer_implementation(run_settings: Settings, static_memory: StaticMemory) -> OptimizerImplementation | None:
    """Returns the implementation of the optimizer's step; None without an optimizer."""
    if static_memory.optimizer is None:
        return None
    return run_settings.optimizer_impl or optimizer(static_memory.optimizer.name).default_implementation


def supports_sdpa(spec: ModelSpec) -> bool:
    """Whether scaled_dot_product_attention can run all attention layers of a model, except layers that never run.

    It takes no sinks and no soft cap, computes no scores of float32 copies as some classes do, and takes here no
    selection per head and no term added to the scores that the model's class does not give it as a mask.
    """
    return all(
        operation.verb not in EAGER_SCORE_FEATURES
        and not (
            operation.verb == "attention"
            and (
                operation.options["cap"] is not None
                or (
                    not has_extra_mask_input(operation)
                    and (len(operation.input_values) > 3 or operation.options.get("selected_keys") is not None)
                )
            )
        )
        and not operation.options.get("sinks")
        and not operation.options.get("float32_scores")
        for operation in spec.shared_program.root.steps(includes_idle=False)
    )


EAGER_SCORE_FEATURES = ("joint_softmax", "local_mask", "at_distance")
"""Recorder verbs of attention that scaled_dot_product_attention cannot compute."""


def default_attention(run_settings: Settings, spec: ModelSpec) -> AttentionImplementation:
    """Returns the default attention implementation: flash for a server, otherwise sdpa as in transformers.

    A model whose scores sdpa does not take, or is not modelled with, trains with eager attention, as transformers
    does; its prefill and its decoding run flash, as the engines that serve it do.
    """
    implementation = kernel_choices(run_settings, spec).attention
    if run_settings.attn_implementation is None and implementation == "sdpa" and not supports_sdpa(spec):
        return "eager" if run_settings.phase == "training" else "flash"
    return implementation


def training_replay_config(
    run_settings: Settings,
    spec: ModelSpec,
    static_memory: StaticMemory,
    attention: AttentionImplementation | None = None,
) -> TrainingConfig:
    """Returns the configuration of the training replay. static_memory: the persistent memory.

    attention: the implementation if the settings choose none; default: the default of the phase.

    Raises `InputError` for settings of another framework, and for number formats that no pass computes in.
    """
    assert static_memory.optimizer is not None
    if run_settings.precision_aware_optimizer:
        raise InputError("--precision-aware-optimizer: torch's optimizers keep no formats of their own; expected none")
    if run_settings.optimizer_offload:
        raise InputError(
            "--optimizer-offload: expected --framework megatron --zero 1 with --devices (llmcalc memory counts that of "
            "--framework deepspeed --zero 2, too), or an FSDP config with fsdp_offload_params in --launch"
        )
    if run_settings.fake_quantize is not None and run_settings.compile:
        raise InputError("--fake-quantize: what torch.compile keeps of it is not modelled; expected no --compile")
    optimizer_record = optimizer(static_memory.optimizer.name)
    if run_settings.optimizer_impl is not None and run_settings.optimizer_impl not in optimizer_record.implementations:
        implementations_text = ", ".join(optimizer_record.implementations)
        raise InputError(
            f"--optimizer-impl {run_settings.optimizer_impl}: {optimizer_record.name} has {implementations_text}"
        )
    state_format = static_memory.optimizer.dtype
    update_dtype = (
        static_memory.adapter_dtype
        or static_memory.trained_dtype
        or ("float32" if static_memory.has_master_weights else static_memory.dtype)
    )
    usual_formats = ("", optimizer_record.state_format, update_dtype)
    adapters = None
    if static_memory.adapters is not None:
        if static_memory.adapters.is_parallel:
            raise InputError(
                f"--lora-library {static_memory.adapters.library}: its adapters stand beside a framework's own layers; "
                "expected the --framework that it trains with, too"
            )
        adapters = Adapters(
            static_memory.adapters.rank,
            static_memory.adapters.target_names,
            bool(run_settings.lora_dropout),
            DTYPES[computing_format(static_memory.adapter_dtype, "--lora-dtype")],
            static_memory.adapters.base_format,
            static_memory.adapters.library,
            static_memory.adapters.trained_modules,
            static_memory.adapters.quantized_head,
            run_settings.bitsandbytes or "",
            static_memory.adapters.quantized_experts,
            static_memory.adapters.adapts_experts,
            static_memory.adapters.has_dora_magnitudes,
            {(layer.module, layer.projection): layer.layer for layer in static_memory.adapters.joined_layers},
        )
    return TrainingConfig(
        batch=static_memory.workload.batch,
        seq=static_memory.workload.seq,
        source_tokens=run_settings.source,
        microbatches=run_settings.num_microbatches or 1,
        dtype=computing_format(static_memory.dtype, "--dtype"),
        has_master_weights=static_memory.has_master_weights,
        optimizer=static_memory.optimizer.name,
        implementation=optimizer_implementation(run_settings, static_memory),
        has_momentum=bool(run_settings.momentum),
        recompute=run_settings.recompute_choice(),
        kernel_choices=replace(
            kernel_choices(run_settings, spec, attention),
            unfused_gelu=adapters is None or adapters.library == "peft",  # the others have models of their own
        ),
        autocast=run_settings.precision == "autocast",
        first_trained_layer=static_memory.first_trained_layer,
        trained_dtype=DTYPES[static_memory.trained_dtype] if static_memory.trained_dtype else None,
        adapters=adapters,
        include=static_memory.parameter_count.include - {TOWERS.name},
        keeps_gradients=run_settings.zero_grad == "zeros",
        optimizer_in_backward=bool(run_settings.optimizer_in_backward),
        offloads_activations=bool(run_settings.offload_activations),
        torch_version=run_settings.torch or "",
        state_dtype=None if state_format in usual_formats else storage_format(state_format, "--optimizer-dtype"),
        gradient_dtype=None
        if static_memory.grad_dtype == static_memory.trained_format
        else storage_format(static_memory.grad_dtype, "--grad-dtype"),
    )


def cache_block_tokens(run_settings: Settings, static_memory: StaticMemory) -> int:
    """Returns the tokens per block of a paged cache; 0 for a cache that grows by concatenation, or without a cache."""
    if not static_memory.kv_dtype:
        return 0
    if run_settings.kv_block is not None:
        return run_settings.kv_block
    return (
        DEFAULT_KV_BLOCK_TOKENS
        if run_settings.is_serving or static_memory.kv_dtype != activation_format(static_memory)
        else 0
    )


def prompt_chunk(run_settings: Settings, static_memory: StaticMemory) -> int | None:
    """Returns the number of tokens per sequence in a prompt pass; None if one pass reads the whole prompt."""
    if run_settings.chunk is None and run_settings.is_serving and static_memory.kv_dtype:
        return int(max(1, DEFAULT_PROMPT_PASS_TOKENS // static_memory.workload.batch))
    return run_settings.chunk


def inference_configs(
    run_settings: Settings, spec: ModelSpec, static_memory: StaticMemory, attention: AttentionImplementation
) -> list[InferenceConfig]:
    """Returns the inference passes to replay. static_memory: the persistent memory."""
    block_tokens = cache_block_tokens(run_settings, static_memory)
    seq = static_memory.workload.seq
    compute_format = activation_format(static_memory)
    if static_memory.kv_dtype and not block_tokens and static_memory.kv_dtype != compute_format:
        raise InputError(
            f"--kv-dtype {short_dtype(static_memory.kv_dtype)}: a cache that grows by concatenation has the format "
            f"of the activations, {short_dtype(compute_format)}; expected --kv-block {DEFAULT_KV_BLOCK_TOKENS}"
        )
    prefill_config = InferenceConfig(
        phase="prefill",
        batch=static_memory.workload.batch,
        seq=seq,
        source_tokens=run_settings.source,
        chunk_tokens=prompt_chunk(run_settings, static_memory),
        dtype=compute_format,
        kernel_choices=replace(kernel_choices(run_settings, spec, attention), attention=attention),
        latent_form=run_settings.mla or "auto",
        include=static_memory.parameter_count.include - {TOWERS.name},
        has_paged_cache=bool(block_tokens),
        counts_weights=not has_storage_format(static_memory),
    )
    if run_settings.phase == "prefill" or spec.one_pass_model_name:
        return [prefill_config]
    if run_settings.phase == "decode":
        return [replace(prefill_config, phase="decode", chunk_tokens=None)]
    return [
        prefill_config,
        *([replace(prefill_config, phase="decode", seq=seq - 1, chunk_tokens=None)] if seq > 1 else []),
    ]


def has_storage_format(static_memory: StaticMemory) -> bool:
    """Whether weights are stored in another format than the one in which matrix products are computed."""
    return static_memory.quantized_size is not None or static_memory.dtype not in ACTIVATION_FORMATS


def activation_format(static_memory: StaticMemory) -> str:
    """Returns the number format of inference activations: the weights' format, or bf16 for narrow weights."""
    return static_memory.dtype if static_memory.dtype in ACTIVATION_FORMATS else "bfloat16"


def computing_format(format_name: str, option_name: str) -> str:
    """Returns the number format of matrix products for an option's format. Raises `InputError` if not supported."""
    if format_name not in ACTIVATION_FORMATS:
        formats_text = ", ".join(map(short_dtype, ACTIVATION_FORMATS))
        raise InputError(
            f"{option_name} {short_dtype(format_name)}: no pass computes in it; expected one of {formats_text}"
        )
    return format_name


def storage_format(format_name: str, option_name: str) -> Dtype:
    """Returns the element type of tensors stored in this format."""
    return FLOAT8 if format_name == "float8" else DTYPES[computing_format(format_name, option_name)]
