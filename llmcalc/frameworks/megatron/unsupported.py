"""Lists the arguments of a Megatron-LM run that change memory but are not modelled."""

from __future__ import annotations

from typing import Any

from .arguments import flag_of_field
from .cuda_graphs import WHOLE_STEP_GRAPH, captures_whole_step
from .settings import GATED_DELTA_NET_NAMES, MegatronSettings


def unmodelled_arguments(settings: MegatronSettings) -> dict[str, str]:
    """Returns argument → reason, for all arguments of a run that change memory and are not modelled."""
    reasons = {}
    for argument in settings.changed_field_names():
        for refusal_reason, arguments in UNMODELLED_FIELDS_BY_REASON.items():
            if argument in arguments and getattr(settings, argument) not in VALUES_WITHOUT_EFFECT.get(argument, ()):
                reasons[flag_of_field(argument)] = refusal_reason
    if settings.overlap_moe_expert_parallel_comm and settings.pp > 1:
        reasons["--overlap-moe-expert-parallel-comm"] = "passes that overlap in a pipeline"
    if settings.optimizer_cpu_offload and (settings.optimizer != "adam" or settings.optimizer_offload_fraction != 1):
        reasons["--optimizer-cpu-offload"] = "Adam's step on the host with other than --optimizer-offload-fraction 1"
    if settings.moe_token_dispatcher_type == "flex" and settings.moe_flex_dispatcher_backend != "hybridep":
        reasons["--moe-flex-dispatcher-backend"] = "another way to send tokens to experts"
    if settings.tp_comm_overlap and (
        settings.num_experts is not None or settings.has_latent_attention or settings.kind == "hybrid"
    ):
        reasons["--tp-comm-overlap"] = "overlapped products of experts, latent attention or Mamba layers"
    is_local = settings.enable_cuda_graph or settings.cuda_graph_impl == "local"
    graph_modules = settings.cuda_graph_modules or settings.cuda_graph_scope or ()
    if captures_whole_step("local" if is_local else settings.cuda_graph_impl, graph_modules):
        reasons["--enable-cuda-graph" if settings.enable_cuda_graph else "--cuda-graph-impl"] = WHOLE_STEP_GRAPH
    reasons |= _unsupported_fp8(settings)
    if settings.use_megatron_fsdp:
        reasons |= _unsupported_sharding(settings)
    if settings.experimental_attention_variant == "dsa":
        if not settings.has_latent_attention:
            reasons["--experimental-attention-variant"] = "selected tokens without --multi-latent-attention"
        reasons |= {
            flag_of_field(argument): "another indexer"
            for argument in UNMODELLED_INDEXER_FIELDS
            if argument in settings.changed_field_names()
        }
        if settings.recompute_mode == "selective":
            reasons["--recompute-granularity"] = "recomputation inside of attention to selected tokens"
        if settings.fp8_format is not None:
            reasons["--fp8-format"] = "8-bit products with an indexer"
    if settings.attention_output_gate and (settings.has_latent_attention or settings.kind in ("bert", "t5")):
        reasons["--attention-output-gate"] = "another kind of attention"
    return reasons


def _unsupported_sharding(settings: MegatronSettings) -> dict[str, str]:
    """Returns argument → reason, for arguments that are not modelled together with Megatron-FSDP."""
    reasons = {
        field_name: reason
        for field_name, (modelled_values, reason) in MODELLED_VALUES_WITH_FSDP.items()
        if getattr(settings, field_name) not in modelled_values
    }
    if settings.megatron_fsdp_grad_comm_dtype not in ("auto", settings.megatron_fsdp_main_grads_dtype):
        reasons["megatron_fsdp_grad_comm_dtype"] = "gradients that are sent in another format than they are kept in"
    if settings.mtp_layer_count:
        reasons["mtp_num_layers"] = "multi-token prediction"
    return {flag_of_field(argument): f"with --use-megatron-fsdp, {reason}" for argument, reason in reasons.items()}


def _unsupported_fp8(settings: MegatronSettings) -> dict[str, str]:
    """Returns argument → reason of unmodelled 8-bit settings; empty if all are modelled."""
    if settings.fp8_format is None:
        return {"--fp8-param-gather": "8-bit weights without --fp8-format"} if settings.fp8_param_gather else {}
    unsupported_conditions = {
        "experts without --moe-grouped-gemm": settings.num_experts is not None and not settings.moe_grouped_gemm,
        "BERT or T5": settings.kind in ("bert", "t5"),
        "--transformer-impl local": settings.transformer_impl == "local",
        f"--tp-comm-overlap and the recipe {settings.fp8_recipe}": settings.tp_comm_overlap
        and settings.fp8_recipe != "tensorwise",
        "recomputation of other modules than core_attn, mlp and moe": bool(
            set(settings.recomputed_modules) - {"core_attn", "mlp", "moe"}
        ),
        "an output layer in 8 bits": settings.fp8_output_proj,
        "--no-fp8-wgrad": settings.no_fp8_wgrad,
        f"the recipe {settings.fp8_recipe} on {settings.gpu}": not gpu_supports_fp8_recipe(settings),
        "weights in mxfp8": settings.fp8_recipe == "mxfp8" and settings.fp8_param_gather,
        "delayed scaling and layers in bf16": settings.fp8_recipe == "delayed" and settings.first_last_layers_bf16,
        f"--optimizer {settings.optimizer}": settings.optimizer != "adam",
    }
    present_conditions = [condition_name for condition_name, is_present in unsupported_conditions.items() if is_present]
    return {"--fp8-format": f"8-bit products with {', '.join(present_conditions)}"} if present_conditions else {}


def gpu_supports_fp8_recipe(settings: MegatronSettings) -> bool:
    """Whether the GPU supports the 8-bit recipe: 128-blocks before Blackwell, 32-blocks since Blackwell."""
    gpu_family = gpu_generation(settings.gpu)
    block_recipe = "mxfp8" if gpu_family == "blackwell" else "blockwise"
    return gpu_family != "ampere" and settings.fp8_recipe in ("tensorwise", "delayed", block_recipe)


def gpu_generation(gpu: str) -> str:
    """Returns the generation of an NVIDIA GPU by its name; empty for another GPU."""
    return next(
        (
            gpu_generation_name
            for gpu_generation_name, gpu_models in GPU_NAMES_BY_GENERATION.items()
            if any(gpu_model in gpu.upper() for gpu_model in gpu_models)
        ),
        "",
    )


GPU_NAMES_BY_GENERATION = {
    "ampere": ("A100", "A800"),
    "hopper": ("H100", "H200", "H800", "H20"),
    "blackwell": ("B100", "B200", "B300"),
}
"""Name of an NVIDIA generation → parts of the names of its data-centre GPUs."""


UNMODELLED_FIELDS_BY_REASON: dict[str, tuple[str, ...]] = {
    "sharded weights": ("use_torch_fsdp2", "init_model_with_meta_device"),
    "weights divided again": ("tensor_parallel_num_weight_shards", "expert_tensor_parallel_num_weight_shards"),
    "8-bit or 4-bit products": (
        "fp4_format",
        "fp4_param_gather",
        "te_precision_config_file",
        "moe_dispatch_fwd_dtype",
        "moe_combine_bwd_dtype",
        "moe_router_padding_for_fp8",
        "moe_router_padding_for_quantization",
    ),
    "offloading to the host": ("cpu_offloading_num_layers", "fine_grained_activation_offloading", "moe_paged_stash"),
    "a CUDA graph of the optimizer's step": ("optimizer_cuda_graph",),
    "communication buffers of the user": ("use_nccl_ub",),
    "another kind of attention": (
        "experimental_attention_variant",
        "window_size",
        "window_attn_skip_freq",
        "softmax_type",
        "use_kitchen_attention",
        "qk_clip",
        "log_max_attention_logit",
    ),
    "several residual streams": ("enable_mhc_connections",),
    "a batch of sequences of other lengths": ("sft", "hybrid_context_parallel", "dataloader_inter_document_masking"),
    "work that overlaps": (
        "delay_wgrad_compute",
        "ep_overlap_early_attn_memory_release",
        "overlap_dispatch_backward_with_experts_wgrad",
    ),
    "other kernels than those that run by default": (
        "batch_invariant_mode",
        "disable_jit_fuser",
        "fp16_lm_cross_entropy",
        "activation_func_clamp_value",
        "glu_linear_offset",
        "moe_router_fusion",
        "moe_permute_fusion_into_hybridep",
        "no_clone_scatter_output_in_embedding",
        "no_bias_dropout_fusion",
        "output_logit_dtype",
        "use_te_activation_func",
        "use_grouped_gemm_for_dense_mlp",
        "use_grouped_gemm_for_shared_expert",
        "moe_apply_probs_on_input",
        "moe_input_jitter_eps",
        "moe_shared_expert_overlap",
        "mamba_training_ssm_states_dtype",
        "disable_mamba_mem_eff_path",
        "mtp_detach_heads",
    ),
    "recomputation that divides what it keeps": ("distribute_saved_activations",),
    "gradients of other formats": (
        "ddp_reduce_scatter_with_fp32_accumulation",
        "ddp_param_name_patterns_for_fp32_local_accumulation",
    ),
    "fused operations": ("use_transformer_engine_op_fuser", "fused_residual_rmsnorm", "mla_down_proj_fusion"),
    "experts on narrower vectors": ("moe_latent_size",),
    "experts with a capacity of each rank": ("moe_expert_rank_capacity_factor",),
    "experts made of a dense network": ("moe_use_upcycling",),
    "tensors of several experts": ("moe_use_grouped_tensor", "moe_single_grouped_weight", "moe_single_grouped_bias"),
    "layers that differ": ("heterogeneous_layers_config_path", "heterogeneous_layers_config_encoded_json"),
    "a stage of its own for later tokens": ("mtp_standalone", "mtp_hsm"),
    "another way to send tokens to experts": ("moe_enable_deepep",),
    "another optimizer": ("optimizer",),
    "layers for inference": ("transformer_impl",),
    "another optimizer's shards": ("muon_use_syrk", "muon_tp_mode", "muon_scalar_optimizer"),
    "distillation or reinforcement learning": ("perform_rl_step", "logits_load_dir", "logits_save_dir"),
    "gradients written to files": ("save_wgrads_interval", "save_dgrads_interval", "save_activations_interval"),
    "batches that grow": ("rampup_batch_size", "decrease_batch_size_if_needed"),
    "a scaled embedding": ("mup_embedding_mult",),
    "weights without gradients": ("freeze_all_layers", "skip_train"),
    "networks in chunks of tokens": ("mlp_chunks_for_training",),
    "a trace of routing": ("moe_routing_trace_path", "moe_enable_routing_replay"),
}
"""Feature whose memory is not modelled → the fields that turn the feature on."""

MODELLED_VALUES_WITH_FSDP: dict[str, tuple[tuple[Any, ...], str]] = {
    "data_parallel_sharding_strategy": (("optim_grads_params",), "another strategy than optim_grads_params"),
    "megatron_fsdp_version": ((1,), "another version than 1"),
    "megatron_fsdp_main_params_dtype": (("fp32",), "main weights in another format than fp32"),
    "megatron_fsdp_max_pool_double_buffer": ((False,), "two buffers for all layers"),
    "megatron_fsdp_enable_fine_grained_param_gather": ((False,), "weights that each module gathers"),
    "fsdp_double_buffer": ((False,), "two buffers for all layers"),
    "fp8_format": ((None,), "8-bit products"),
    "pipeline_model_parallel_size": ((1,), "a pipeline"),
    "num_distributed_optimizer_instances": ((1,), "several instances of the optimizer"),
    "optimizer": (("adam",), "another optimizer than adam"),
    "use_precision_aware_optimizer": ((False,), "states in other formats"),
    "optimizer_cpu_offload": ((False,), "Adam's step on the host"),
    "recompute_granularity": ((None, "selective"), "layers that run again"),
    "overlap_moe_expert_parallel_comm": ((False,), "passes of two micro-batches that overlap"),
}
"""Field → the values modelled together with Megatron-FSDP, and the feature that any other value turns on."""

UNMODELLED_INDEXER_FIELDS = (
    "dsa_indexer_topk_freq",
    "dsa_indexer_use_sparse_loss",
    "dsa_indexer_k_norm_fp32",
    "dsa_kernel_backend",
    "no_dsa_indexer_scoring_relu",
    "no_dsa_indexer_rotate_activation",
)
"""Fields that change an indexer's tensors in ways that are not modelled."""

VALUES_WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "experimental_attention_variant": (*GATED_DELTA_NET_NAMES, "dsa"),
    "mlp_chunks_for_training": (0, 1),
    "optimizer": ("adam", "sgd", "muon", "dist_muon"),
    "transformer_impl": ("transformer_engine", "local"),
}
"""Field → the values that do not change memory."""
