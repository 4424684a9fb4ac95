"""Creates Megatron-LM's arguments from a model and llmcalc's options, with the defaults of Megatron's own scripts.

bf16 weights with main gradients and Adam in fp32, gradients accumulated by the products themselves, attention of
Transformer Engine, cross-entropy without fusion, no dropout, experts as grouped products, a vocabulary in multiples of
128 · tp.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...components.mixers.gated_delta_net import GatedDeltaNet
from ...components.mixers.mla import MLA
from ...device_memory.cuda_runtime import CudaRuntime
from ...device_memory.estimate import Memory
from ...device_memory.settings import PRODUCT_FORMAT_BY_PRECISION, Settings
from ...errors import InputError
from ...flow.axis import element_count
from ...flow.program import all_steps
from ...model import ModelSpec
from ...optional import MTP, TOWERS
from ...parallel.layout import ImpossibleLayout, Layout
from ...parallel.layout_request import version_date
from ...parallel.rank_program import divides_state_space_groups, model_axes
from ...units import dtype, short_dtype
from ...workload.lora import PARALLEL_LIBRARIES
from ...workload.recompute import parse_recompute
from ...workload.setting import declarations_of, option
from ..framework import RunOnRanks
from .named_arguments import NamedModelArguments
from .parallel_adapters import ADAPTER_SETTINGS, ParallelAdapters
from .rank_run import STATE_BYTES_BY_DTYPE
from .settings import CP_EXCHANGE_BY_COMM_TYPE, MegatronSettings
from .unsupported import gpu_supports_fp8_recipe

ARGUMENTS_BY_RECOMPUTE_MODE: dict[str, dict[str, Any]] = {
    "none": {},
    "full": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
    "attention": {"recompute_granularity": "selective", "recompute_modules": ("core_attn",)},
}
"""`--recompute` → Megatron's arguments."""


def recompute_arguments_of(recompute_value: str) -> dict[str, Any]:
    """Returns Megatron's arguments for a value of `--recompute`. Raises `InputError` for a value without equivalent."""
    modules = parse_recompute(recompute_value).modules
    if modules:
        return {"recompute_granularity": "selective", "recompute_modules": tuple(sorted(modules))}
    if recompute_value not in ARGUMENTS_BY_RECOMPUTE_MODE:
        raise InputError(
            f"--recompute {recompute_value}: not Megatron's; expected one of {', '.join(ARGUMENTS_BY_RECOMPUTE_MODE)} "
            "or modules:A,B"
        )
    return ARGUMENTS_BY_RECOMPUTE_MODE[recompute_value]


FP8_ARGUMENTS: dict[str, dict[str, Any]] = {
    "fp8": {"fp8_format": "hybrid", "fp8_recipe": "tensorwise"},
    "mxfp8": {"fp8_format": "hybrid", "fp8_recipe": "mxfp8"},
}
"""Value of `--precision` → Megatron's arguments for 8-bit matrix products, with a scale per tensor or per block."""

KNOWN_VALUES_BY_SETTING: dict[str, tuple[str, ...]] = {
    "precision": ("bf16-master", *PRODUCT_FORMAT_BY_PRECISION),
    "master_weights": ("fp32",),
    "optimizer": ("adamw",),
    "optimizer_impl": ("fused",),
    "norm": ("fused",),
}
"""Setting of PyTorch's kernels → the values that Megatron also has; Megatron has none of the other values."""


def megatron_settings_of(
    memory_estimate: Memory,
    layout: Layout,
    megatron_version: str = "",
    gpu: str = "",
    named_arguments: NamedModelArguments | None = None,
) -> MegatronSettings:
    """Returns Megatron-LM's arguments for a model in a layout. gpu: name of a device; empty for the run's device.

    named_arguments: a file's arguments beside those of the options; None (default) without a file.

    Raises `InputError` for options that Megatron-LM has not, or that are not modelled.
    """
    spec, memory_use, options = memory_estimate.spec, memory_estimate.states, memory_estimate.settings
    _check_options(memory_estimate, layout)
    recompute_arguments = recompute_arguments_of(options.recompute or "none")
    micro_batch_size, gpu = int(memory_use.workload.batch), gpu or memory_estimate.cuda_runtime.gpu_name
    arguments: dict[str, Any] = {
        "kind": "gpt",
        "world_size": layout.world_size,
        "gpu": gpu,
        "date": version_date(megatron_version),
        "adapters": _adapters_of(memory_estimate, layout, memory_use.dtype),
        "micro_batch_size": micro_batch_size,
        "global_batch_size": micro_batch_size * layout.dp * (options.num_microbatches or 1),
        "seq_length": int(memory_use.workload.seq),
        **_number_format_arguments(options),
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "attention_backend": "auto" if options.attn_implementation in (None, "flash", "sdpa") else "unfused",
        "no_create_attention_mask_in_dataloader": True,
        "tokenizer_type": "NullTokenizer",
        "vocab_size": spec.vocab_size,
        **loss_arguments(options.cross_entropy),
        **recompute_arguments,
        **_shape_arguments(spec),
        **_layout_arguments(layout),
    }
    if options.optimizer_offload:
        if layout.dp > 1 and layout.zero != 1:
            raise InputError("--optimizer-offload: of Megatron's distributed optimizer alone; expected --zero 1 too")
        arguments["use_distributed_optimizer"] = True
    if options.moe is not None and options.moe != "dropless":
        arguments["moe_expert_capacity_factor"] = float(options.moe.partition(":")[2])
        arguments["moe_pad_expert_input_to_capacity"] = True
    if memory_estimate.cuda_runtime.has_expandable_segments:
        arguments["env"] = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    if named_arguments is not None:
        arguments |= named_arguments.arguments(options, "num_experts" in arguments, spec)
    settings = MegatronSettings(**arguments)
    if settings.fp8_format is not None and not gpu_supports_fp8_recipe(settings):
        raise InputError(
            f"--precision {options.precision}: Megatron's recipe {settings.fp8_recipe} does not run on {gpu}; "
            "expected bf16-master, fp8 from Hopper on, or mxfp8 from Blackwell on"
        )
    settings.check()
    return settings


def settings_on_accelerator(training_run: RunOnRanks, cuda_runtime: CudaRuntime) -> MegatronSettings:
    """Returns a run's Megatron-LM arguments on an accelerator, from the launch file or from llmcalc's options."""

    def make_settings() -> MegatronSettings:
        """Returns the arguments that correspond to llmcalc's options."""
        launch_settings = training_run.framework_settings
        settings: MegatronSettings = (
            launch_settings
            if isinstance(launch_settings, MegatronSettings)
            else megatron_settings_of(
                training_run.memory, training_run.layout, training_run.version, cuda_runtime.gpu_name, launch_settings
            )
        )
        allocator_env = (
            {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"} if cuda_runtime.has_expandable_segments else {}
        )
        return replace(settings, gpu=cuda_runtime.gpu_name, env={**settings.env, **allocator_env})

    settings: MegatronSettings = training_run.settings_on(cuda_runtime, make_settings)
    return settings


def _check_options(memory_estimate: Memory, layout: Layout) -> None:
    """Raises `InputError` for options that Megatron-LM does not support."""
    run_options = memory_estimate.settings
    if run_options.phase != "training":
        raise InputError(f"--phase {run_options.phase}: Megatron's runs are of training; expected training")
    if memory_estimate.spec.kind != "decoder":
        raise InputError(
            f"--framework megatron: Megatron's {memory_estimate.spec.kind} models are counted only from a launch file; "
            "expected --launch"
        )
    if MTP.name in memory_estimate.states.parameter_count.include:
        raise InputError(
            "--with-mtp: with --framework megatron it is read from launch files (--mtp-num-layers); expected --launch"
        )
    if TOWERS.name in memory_estimate.states.parameter_count.include:
        raise InputError(
            f"{TOWERS.option}: encoders of images and sound are not modelled with --framework megatron; expected no "
            f"{TOWERS.option}"
        )
    expert_count = memory_estimate.spec.routed_experts
    if expert_count and expert_count % layout.ep:
        divisor_text = ", ".join(
            str(expert_divisor) for expert_divisor in range(1, expert_count + 1) if expert_count % expert_divisor == 0
        )
        raise ImpossibleLayout(
            f"--ep {layout.ep}: does not divide {expert_count} experts; expected one of {divisor_text}"
        )
    if layout.tp > 1 and not divides_state_space_groups(model_axes(memory_estimate.spec), layout):
        raise InputError(
            f"--tp {layout.tp}: does not divide n_groups, which Megatron does not copy; expected a divisor of n_groups"
        )
    sequence_part_count = 2 * layout.cp
    if layout.cp > 1 and memory_estimate.states.workload.seq % sequence_part_count:
        raise InputError(
            f"--seq {memory_estimate.states.workload.seq}: each rank of --cp {layout.cp} has 2 parts of it; expected a "
            f"multiple of {sequence_part_count}"
        )
    if layout.zero > 1:
        raise InputError(
            f"--zero {layout.zero}: Megatron's distributed optimizer is stage 1; expected --zero 1, or another "
            "--framework"
        )
    if layout.schedule not in ("1f1b", "interleaved"):
        raise InputError(f"--schedule {layout.schedule}: not Megatron's; expected 1f1b or interleaved")
    for field_name, known_values in KNOWN_VALUES_BY_SETTING.items():
        if (option_value := getattr(run_options, field_name)) not in (None, *known_values):
            raise InputError(
                f"{option(field_name)} {option_value}: not modelled with --framework megatron; expected "
                f"{' or '.join(known_values)}"
            )
    for option_name, declaration in declarations_of(Settings).items():
        if (
            not declaration.setting.every_framework
            and option_name not in KNOWN_VALUES_BY_SETTING
            and option_name not in ADAPTER_SETTINGS
            and getattr(run_options, option_name) not in (None, False)
        ):
            raise InputError(
                f"{declaration.option}: not modelled with --framework megatron; expected no {declaration.option}"
            )


def _adapters_of(memory_estimate: Memory, layout: Layout, weight_format: str) -> ParallelAdapters | None:
    """Returns the adapters of a run; None if the run trains all weights. weight_format: the number format of weights.

    Raises `InputError`, which names the option, for adapters that Megatron-Core has not, or that are not modelled.
    """
    adapters, options = memory_estimate.states.adapters, memory_estimate.settings
    if adapters is None:
        return None
    program_steps = list(all_steps(memory_estimate.spec.shared_program.root.items))
    if adapters.library not in PARALLEL_LIBRARIES:
        raise InputError(
            f"--lora-rank: adapters of {adapters.library} are not divided over ranks of Megatron-Core; expected "
            f"--lora-library {' or '.join(sorted(PARALLEL_LIBRARIES))}"
        )
    if memory_estimate.states.adapter_dtype != weight_format:
        raise InputError(
            f"--lora-dtype {short_dtype(memory_estimate.states.adapter_dtype)}: adapters of {adapters.library} have "
            f"the format of the weights; expected {short_dtype(weight_format)}"
        )
    if options.precision not in (None, "bf16-master"):
        raise InputError(f"--precision {options.precision}: not modelled with adapters; expected bf16-master")
    if any(step.verb == "attention" and step.options.get("selected_keys") for step in program_steps):
        raise InputError("--lora-rank: not modelled with attention to selected tokens; expected a model without")
    if adapters.library == "megatron-bridge" and adapters.rank % layout.tp:
        raise ImpossibleLayout(f"--tp {layout.tp}: does not divide --lora-rank {adapters.rank}; expected a divisor")
    expert_tp = layout.expert_tp if memory_estimate.spec.routed_experts else 1
    adapts_experts = any(step.verb == "experts" and step.name in adapters.target_names for step in program_steps)
    if adapts_experts and expert_tp > 1:
        raise ImpossibleLayout(f"--etp {expert_tp}: not modelled with adapters of experts; expected --etp 1")
    return ParallelAdapters(adapters.library, adapters.rank, adapters.target_names, bool(options.lora_dropout))


def _number_format_arguments(options: Settings) -> dict[str, Any]:
    """Returns the arguments for the number formats of weights, main gradients and optimizer states."""
    weight_format = "float16" if options.dtype is not None and dtype(options.dtype) == "float16" else "bfloat16"
    if options.dtype is not None and dtype(options.dtype) != weight_format:
        raise InputError(
            f"--dtype {short_dtype(dtype(options.dtype))}: not modelled with --framework megatron; expected bf16 or "
            "fp16"
        )
    arguments: dict[str, Any] = {"fp16" if weight_format == "float16" else "bf16": True}
    arguments |= FP8_ARGUMENTS.get(options.precision or "", {})
    gradient_dtype = None if options.grad_dtype is None else dtype(options.grad_dtype)
    if gradient_dtype not in (None, "float32", weight_format):
        raise InputError(
            f"--grad-dtype {short_dtype(gradient_dtype)}: not Megatron's; expected fp32 or the weights' format"
        )
    state_format = None if options.optimizer_dtype is None else short_dtype(dtype(options.optimizer_dtype))
    if options.optimizer_offload:
        arguments |= {"optimizer_cpu_offload": True}
    if options.precision_aware_optimizer or options.optimizer_offload:
        if state_format not in (None, *STATE_BYTES_BY_DTYPE):
            expected_formats = ", ".join(STATE_BYTES_BY_DTYPE)
            raise InputError(f"--optimizer-dtype {state_format}: not Megatron's; expected one of {expected_formats}")
        state_format = state_format or "fp32"
        arguments |= {
            "use_precision_aware_optimizer": True,
            "exp_avg_dtype": state_format,
            "exp_avg_sq_dtype": state_format,
        }
        if gradient_dtype == "bfloat16":
            arguments["main_grads_dtype"] = "bf16"
    elif state_format not in (None, "fp32"):
        raise InputError(
            f"--optimizer-dtype {state_format}: Megatron's Adam keeps fp32 states; "
            "expected --precision-aware-optimizer too"
        )
    elif gradient_dtype == "bfloat16":
        arguments["grad_reduce_in_bf16"] = True
    if weight_format == "float16":
        arguments["accumulate_allreduce_grads_in_fp32"] = gradient_dtype != "float16"
    return arguments


def main_gradient_and_state_bytes(options: Settings) -> tuple[int, int]:
    """Returns the bytes per parameter of main gradients, and of main weights plus Adam's states."""
    settings = MegatronSettings(**_number_format_arguments(options))
    if settings.optimizer_cpu_offload:
        return 4 if settings.reduces_in_fp32 else 2, 0
    if settings.use_precision_aware_optimizer:
        main_weight_bytes = 2 if settings.adam_keeps_main_weights else 4
        state_bytes = STATE_BYTES_BY_DTYPE[settings.exp_avg_dtype] + STATE_BYTES_BY_DTYPE[settings.exp_avg_sq_dtype]
        return 4 if settings.reduces_in_fp32 else 2, main_weight_bytes + state_bytes
    return (4, 12) if settings.reduces_in_fp32 else (2, 12 + 4)


def loss_arguments(cross_entropy: str | None) -> dict[str, Any]:
    """Returns the arguments that choose the loss. cross_entropy: the value of `--cross-entropy`; None if not given.

    Source: `--cross-entropy-loss-fusion` is off by default in every release from core_v0.8.0 to core_v0.19.0
    (megatron/training/arguments.py, megatron/core/model_parallel_config.py).
    """
    if cross_entropy == "fused":
        return {"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "te"}
    if cross_entropy in (None, "native", "eager"):
        return {"cross_entropy_loss_fusion": cross_entropy == "native"}
    raise InputError(f"--cross-entropy {cross_entropy}: not Megatron's; expected fused, native or eager")


def _layout_arguments(layout: Layout) -> dict[str, Any]:
    """Returns the arguments that describe a parallel layout."""
    names_by_exchange = {
        ring_exchange: exchange_name for exchange_name, ring_exchange in CP_EXCHANGE_BY_COMM_TYPE.items()
    }
    arguments: dict[str, Any] = {
        "tensor_model_parallel_size": layout.tp,
        "pipeline_model_parallel_size": layout.pp,
        "context_parallel_size": layout.cp,
        "cp_comm_type": (names_by_exchange[layout.cp_comm],),
        "expert_model_parallel_size": layout.ep,
        "expert_tensor_parallel_size": layout.expert_tp,
        "sequence_parallel": layout.sequence_parallel,
        "use_distributed_optimizer": layout.zero == 1,
        "num_distributed_optimizer_instances": layout.hsdp_replicas,
    }
    if layout.vpp > 1:
        arguments["num_virtual_stages_per_pipeline_rank"] = layout.vpp
    if layout.pp_layout is not None:
        stage_texts = ["t" * stage_layers for stage_layers in layout.pp_layout]
        stage_texts[0], stage_texts[-1] = f"E{stage_texts[0]}", f"{stage_texts[-1]}L"
        arguments["pipeline_model_parallel_layout"] = "|".join(stage_texts)
    return arguments


def _shape_arguments(spec: ModelSpec) -> dict[str, Any]:
    """Returns the arguments of the model's shapes that kernels depend on."""
    main_stack = spec.main
    program_steps = list(spec.shared_program.root.steps(includes_idle=False))
    rope_steps = [program_step for program_step in program_steps if program_step.verb == "rope"]
    linear_steps = [program_step for program_step in program_steps if program_step.verb == "linear"]
    mixers = [
        layer_spec.attention for layer_spec in main_stack.layers_by_kind().values() if hasattr(layer_spec, "attention")
    ]
    mixers.sort(key=lambda mixer: isinstance(mixer, GatedDeltaNet))  # its heads are those of no attention
    arguments: dict[str, Any] = {
        "num_layers": main_stack.num_hidden_layers,
        "hidden_size": spec.hidden_size,
        "num_attention_heads": 1,
        "position_embedding_type": "rope" if rope_steps else "none",
        "disable_bias_linear": not any(program_step.options["bias"] for program_step in linear_steps),
        "swiglu": any(program_step.verb == "mul" for program_step in program_steps),
        "untie_embeddings_and_output_weights": not spec.tie_word_embeddings,
    }
    arguments |= next(filter(None, (_head_arguments(spec, mixer) for mixer in mixers)), {})
    if rope_steps and "kv_channels" in arguments:
        arguments["rotary_percent"] = min(1.0, _rotary_size(rope_steps[0]) / arguments["kv_channels"])
    if arguments.get("multi_latent_attention"):
        arguments["kv_channels"] = arguments["qk_head_dim"]  # no size of latent attention, whose heads need not divide
    expert_steps = [program_step for program_step in program_steps if program_step.verb == "experts"]
    if expert_steps:
        arguments |= {
            "num_experts": expert_steps[0].options["experts"].size,
            "moe_router_topk": expert_steps[0].options["top_k"],
            "moe_ffn_hidden_size": element_count(expert_steps[0].output_values[0].axes),
            "moe_grouped_gemm": True,
            "moe_token_dispatcher_type": "alltoall",
            "moe_permute_fusion": True,
            "moe_aux_loss_coeff": (0.01,),
        }
    return arguments


def _head_arguments(spec: ModelSpec, mixer: Any) -> dict[str, Any]:
    """Returns the arguments that describe the heads of an attention layer."""
    if isinstance(mixer, MLA):
        return {
            "num_attention_heads": mixer.num_attention_heads,
            "multi_latent_attention": True,
            "q_lora_rank": mixer.q_lora_rank,
            "kv_lora_rank": mixer.kv_lora_rank,
            "qk_head_dim": mixer.qk_nope_head_dim,
            "qk_pos_emb_head_dim": mixer.qk_rope_head_dim,
            "v_head_dim": mixer.v_head_dim,
        }
    head_sizes = mixer.head_sizes(spec.hidden_size)
    if head_sizes is None:
        return {}
    return {
        "num_attention_heads": head_sizes.heads,
        "group_query_attention": head_sizes.kv_heads != head_sizes.heads,
        "num_query_groups": head_sizes.kv_heads,
        "kv_channels": head_sizes.head_dim,
    }


def _rotary_size(rope_step: Any) -> int:
    """Returns the number of dimensions per head that RoPE rotates."""
    return int(rope_step.options["spec"].rotary_size(rope_step.input_values[0].axes[-1].size))
