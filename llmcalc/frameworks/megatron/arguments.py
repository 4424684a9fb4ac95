"""The arguments of Megatron-LM that determine shapes and memory.

Each field is a command-line argument of Megatron-LM with underscores for hyphens (`--no-rope-fusion` is
`no_rope_fusion`), with Megatron's own default. Source: megatron/training/arguments.py and the config classes from which
it makes arguments, at commit d98e8a64 (2026-08-22); what older versions call otherwise is in `FIELD_BY_OLD_NAME`.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, field, fields
from types import MappingProxyType
from typing import Literal, TypeAlias

from ...frozen import frozen
from .parallel_adapters import ParallelAdapters

ModelKind: TypeAlias = Literal["gpt", "bert", "t5", "hybrid"]

NON_ARGUMENT_FIELDS = ("kind", "world_size", "gpu", "env", "date", "adapters")
"""Fields of `MegatronArguments` that are not command-line arguments."""


@frozen
class MegatronArguments:
    """Megatron-LM's command-line arguments, with the run's script, devices, GPU, environment and date.

    kind: the pretraining script. world_size: number of devices. gpu: name of the device. env: environment variables.
    date: date of the Megatron-LM version; None for the newest. adapters: the low-rank adapters of a library that trains
    them; None (default) for none.
    """

    kind: ModelKind = "gpt"
    world_size: int = 1
    gpu: str = "H100"
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    date: datetime.date | None = None
    adapters: ParallelAdapters | None = None

    # Shapes of the model.
    num_layers: int | None = None
    hidden_size: int | None = None
    ffn_hidden_size: int | None = None
    num_attention_heads: int | None = None
    kv_channels: int | None = None
    group_query_attention: bool = False
    num_query_groups: int = 1
    max_position_embeddings: int | None = None
    position_embedding_type: Literal["learned_absolute", "rope", "yarn", "mrope", "relative", "none"] = (
        "learned_absolute"
    )
    rotary_base: int = 10000
    rotary_percent: float = 1.0
    no_rope_freq: int | tuple[int, ...] | None = None
    no_position_embedding: bool = False
    use_rotary_position_embeddings: bool = False
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    normalization: Literal["LayerNorm", "RMSNorm"] = "LayerNorm"
    norm_epsilon: float = 1e-05
    qk_layernorm: bool = False
    qk_l2_norm: bool = False
    qk_clip: bool = False
    disable_bias_linear: bool = False
    add_qkv_bias: bool = False
    attention_output_gate: bool = False
    swiglu: bool = False
    squared_relu: bool = False
    openai_gelu: bool = False
    quick_geglu: bool = False
    glu_linear_offset: float = 0.0
    activation_func_clamp_value: float | None = None
    untie_embeddings_and_output_weights: bool = False
    apply_residual_connection_post_layernorm: bool = False
    fp32_residual_connection: bool = False
    softmax_type: Literal["vanilla", "off-by-one", "learnable"] = "vanilla"
    window_size: tuple[int, ...] | None = None
    window_attn_skip_freq: int | tuple[int, ...] | None = None
    experimental_attention_variant: Literal["gdn", "gdn2", "dsa", "gated_delta_net"] | None = None
    linear_attention_freq: int | tuple[int, ...] | None = None
    linear_conv_kernel_dim: int = 4
    linear_key_head_dim: int = 128
    linear_value_head_dim: int = 128
    linear_num_key_heads: int = 16
    linear_num_value_heads: int = 32
    dsa_indexer_n_heads: int | None = None
    dsa_indexer_head_dim: int | None = None
    dsa_indexer_topk: int | None = None
    dsa_indexer_loss_coeff: float | None = None
    dsa_indexer_topk_freq: int = 1
    dsa_indexer_use_sparse_loss: bool = False
    dsa_indexer_k_norm_fp32: bool = False
    dsa_kernel_backend: Literal["none", "tilelang", "cudnn"] = "none"
    no_dsa_indexer_scoring_relu: bool = False
    no_dsa_indexer_rotate_activation: bool = False
    encoder_num_layers: int | None = None
    decoder_num_layers: int | None = None
    bert_no_binary_head: bool = False
    heterogeneous_layers_config_path: str | None = None
    heterogeneous_layers_config_encoded_json: str | None = None
    spec: tuple[str, ...] | None = None
    transformer_impl: Literal["local", "transformer_engine", "inference_optimized"] = "transformer_engine"
    enable_mhc_connections: bool = False
    tensor_parallel_num_weight_shards: int | None = None
    expert_tensor_parallel_num_weight_shards: int | None = None

    # The vocabulary.
    vocab_size: int | None = None
    padded_vocab_size: int | None = None
    no_pad_vocab_size: bool = False
    make_vocab_size_divisible_by: int = 128
    vocab_extra_ids: int = 0
    tokenizer_type: str | None = None
    tokenizer_model: str | None = None

    # Multi-head latent attention.
    multi_latent_attention: bool = False
    q_lora_rank: int | None = None
    kv_lora_rank: int = 32
    qk_head_dim: int = 128
    qk_pos_emb_head_dim: int = 64
    v_head_dim: int = 128
    mla_down_proj_fusion: bool = False
    rope_type: Literal["rope", "yarn"] | None = None

    # Experts.
    num_experts: int | None = None
    moe_layer_freq: int | tuple[int, ...] = 1
    moe_ffn_hidden_size: int | None = None
    moe_shared_expert_intermediate_size: int | None = None
    moe_shared_expert_gate: bool = False
    moe_shared_expert_overlap: bool = False
    moe_router_topk: int = 2
    moe_router_score_function: Literal["softmax", "sigmoid", "sqrtsoftplus"] = "softmax"
    moe_router_dtype: Literal["fp32", "fp64"] | None = None
    moe_router_enable_expert_bias: bool = False
    moe_router_num_groups: int | None = None
    moe_router_group_topk: int | None = None
    moe_router_load_balancing_type: tuple[str, ...] = ("aux_loss",)
    moe_aux_loss_coeff: tuple[float, ...] = (0.0,)
    moe_router_padding_for_quantization: bool = False
    moe_router_padding_for_fp8: bool = False
    moe_router_fusion: bool = False
    moe_grouped_gemm: bool = False
    moe_use_grouped_tensor: bool = False
    moe_single_grouped_weight: bool = False
    moe_single_grouped_bias: bool = False
    use_grouped_gemm_for_dense_mlp: bool = False
    use_grouped_gemm_for_shared_expert: bool = False
    moe_token_dispatcher_type: Literal["allgather", "alltoall", "flex"] = "allgather"
    moe_enable_deepep: bool = False
    moe_flex_dispatcher_backend: Literal["deepep", "hybridep", "ncclep"] = "deepep"
    moe_permute_fusion: bool = False
    moe_permute_fusion_into_hybridep: bool = False
    moe_expert_capacity_factor: float | None = None
    moe_pad_expert_input_to_capacity: bool = False
    moe_expert_rank_capacity_factor: float | None = None
    moe_layer_recompute: bool = False
    moe_latent_size: int | None = None
    moe_apply_probs_on_input: bool = False
    moe_input_jitter_eps: float | None = None
    moe_z_loss_coeff: float | None = None
    moe_enable_routing_replay: bool = False
    moe_use_upcycling: bool = False
    moe_paged_stash: bool = False
    moe_dispatch_fwd_dtype: Literal["bf16", "mxfp8"] = "bf16"
    moe_combine_bwd_dtype: Literal["bf16", "mxfp8"] = "bf16"
    overlap_moe_expert_parallel_comm: bool = False
    delay_wgrad_compute: bool = False
    overlap_dispatch_backward_with_experts_wgrad: bool = False
    ep_overlap_early_attn_memory_release: bool = False

    # Multi-token prediction.
    mtp_num_layers: int | None = None
    mtp_use_repeated_layer: bool = False
    mtp_detach_heads: bool = False
    mtp_hsm: bool = False
    mtp_standalone: bool = False
    mtp_hybrid_override_pattern: str | None = None

    # Stacks of Mamba and attention layers.
    hybrid_layer_pattern: str | None = None
    is_hybrid_model: bool = False
    mamba_state_dim: int = 128
    mamba_head_dim: int = 64
    mamba_num_groups: int = 8
    mamba_num_heads: int | None = None
    disable_mamba_mem_eff_path: bool = False
    mamba_training_ssm_states_dtype: Literal["fp32", "bf16"] | None = None

    # The batch.
    micro_batch_size: int | None = None
    global_batch_size: int | None = None
    rampup_batch_size: tuple[int, ...] | None = None
    step_batch_size_schedule: str | None = None
    decrease_batch_size_if_needed: bool = False
    seq_length: int | None = None
    encoder_seq_length: int | None = None
    decoder_seq_length: int | None = None
    no_create_attention_mask_in_dataloader: bool = False
    dataloader_inter_document_masking: bool = False
    sft: bool = False
    hybrid_context_parallel: bool = False
    skip_train: bool = False
    freeze_all_layers: bool = False

    # Dropout.
    attention_dropout: float = 0.1
    hidden_dropout: float = 0.1

    # Kernels.
    attention_backend: Literal["auto", "flash", "fused", "unfused", "local"] = "auto"
    use_flash_attn: bool = False
    attention_softmax_in_fp32: bool = False
    apply_query_key_layer_scaling: bool = False
    no_masked_softmax_fusion: bool = False
    no_bias_gelu_fusion: bool = False
    no_bias_swiglu_fusion: bool = False
    no_bias_dropout_fusion: bool = False
    no_rope_fusion: bool = False
    cross_entropy_loss_fusion: bool = False
    cross_entropy_fusion_impl: Literal["native", "te"] = "native"
    fp16_lm_cross_entropy: bool = False
    output_logit_dtype: Literal["bf16", "fp32"] | None = None
    no_gradient_accumulation_fusion: bool = False
    deterministic_mode: bool = False
    batch_invariant_mode: bool = False
    disable_jit_fuser: bool = False
    use_te_activation_func: bool = False
    use_fused_weighted_squared_relu: bool = False
    fused_residual_rmsnorm: bool = False
    use_transformer_engine_op_fuser: bool = False
    no_clone_scatter_output_in_embedding: bool = False
    use_mup: bool = False
    mup_base_hidden_size: int | None = None
    mup_embedding_mult: float = 1.0
    mup_output_mult: float = 1.0
    mlp_chunks_for_training: int = 1
    use_kitchen_attention: bool = False

    # Number formats.
    fp16: bool = False
    bf16: bool = False
    grad_reduce_in_bf16: bool = False
    accumulate_allreduce_grads_in_fp32: bool = False
    fp8_format: Literal["e4m3", "hybrid"] | None = None
    fp8_recipe: Literal["tensorwise", "delayed", "mxfp8", "blockwise", "custom"] = "delayed"
    fp8_param_gather: bool = False
    fp8_amax_history_len: int = 1
    no_fp8_wgrad: bool = False
    fp8_output_proj: bool = False
    first_last_layers_bf16: bool = False
    num_layers_at_start_in_bf16: int = 1
    num_layers_at_end_in_bf16: int = 1
    fp4_format: Literal["e2m1"] | None = None
    fp4_param_gather: bool = False
    te_precision_config_file: str | None = None

    # Recomputation and offloading.
    recompute_activations: bool = False
    recompute_granularity: Literal["full", "selective"] | None = None
    recompute_method: Literal["uniform", "block"] | None = None
    recompute_num_layers: int | None = None
    recompute_modules: tuple[str, ...] | None = None
    distribute_saved_activations: bool = False
    cpu_offloading_num_layers: int = 0
    fine_grained_activation_offloading: bool = False

    # CUDA graphs.
    enable_cuda_graph: bool = False
    external_cuda_graph: bool = False
    cuda_graph_impl: Literal["none", "local", "transformer_engine", "full_iteration"] = "none"
    cuda_graph_modules: tuple[str, ...] | None = None
    cuda_graph_scope: tuple[str, ...] | None = None
    optimizer_cuda_graph: bool = False

    # The layout.
    tensor_model_parallel_size: int = 1
    pipeline_model_parallel_size: int = 1
    context_parallel_size: int = 1
    cp_comm_type: tuple[str, ...] = ("p2p",)
    expert_model_parallel_size: int = 1
    expert_tensor_parallel_size: int | None = None
    sequence_parallel: bool = False
    num_layers_per_virtual_pipeline_stage: int | None = None
    num_virtual_stages_per_pipeline_rank: int | None = None
    microbatch_group_size_per_virtual_pipeline_stage: int | None = None
    decoder_first_pipeline_num_layers: int | None = None
    decoder_last_pipeline_num_layers: int | None = None
    account_for_embedding_in_pipeline_split: bool = False
    account_for_loss_in_pipeline_split: bool = False
    pipeline_model_parallel_layout: str | None = None
    no_overlap_p2p_communication: bool = False
    overlap_p2p_communication_warmup_flush: bool = False
    defer_embedding_wgrad_compute: bool = False
    wgrad_deferral_limit: int = 0
    tp_comm_overlap: bool = False
    tp_comm_overlap_cfg: str | None = None

    # Data parallelism.
    use_distributed_optimizer: bool = False
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    overlap_param_gather_with_optimizer_step: bool = False
    ddp_num_buckets: int | None = None
    ddp_bucket_size: int | None = None
    ddp_pad_buckets_for_high_nccl_busbw: bool = False
    ddp_reduce_scatter_with_fp32_accumulation: bool = False
    ddp_param_name_patterns_for_fp32_local_accumulation: tuple[str, ...] = ()
    num_distributed_optimizer_instances: int = 1
    no_use_layer_wise_param_layout: bool = False
    use_nccl_ub: bool = False
    use_megatron_fsdp: bool = False
    megatron_fsdp_version: int = 1
    megatron_fsdp_main_params_dtype: Literal["fp32", "bf16", "fp16", "auto"] = "fp32"
    megatron_fsdp_main_grads_dtype: Literal["fp32", "bf16", "fp16", "auto"] = "auto"
    megatron_fsdp_grad_comm_dtype: Literal["fp32", "bf16", "fp16", "auto"] = "auto"
    megatron_fsdp_max_pool_double_buffer: bool = False
    megatron_fsdp_enable_fine_grained_param_gather: bool = False
    fsdp_double_buffer: bool = False
    suggested_communication_unit_size: int | None = None
    use_torch_fsdp2: bool = False
    init_model_with_meta_device: bool = False
    data_parallel_sharding_strategy: Literal["no_shard", "optim", "optim_grads", "optim_grads_params"] = (
        "optim_grads_params"
    )
    torch_fsdp2_no_reshard_after_forward: bool = False

    # The optimizer.
    optimizer: Literal["adam", "sgd", "muon", "dist_muon", "lion", "soap", "adaptive_muon"] = "adam"
    sgd_momentum: float = 0.9
    muon_tp_mode: Literal["blockwise", "duplicated", "distributed"] = "duplicated"
    muon_scalar_optimizer: Literal["adam", "lion"] = "adam"
    muon_use_syrk: bool = False
    use_precision_aware_optimizer: bool = False
    main_grads_dtype: Literal["fp32", "bf16"] = "fp32"
    main_params_dtype: Literal["fp32", "fp16"] = "fp32"
    exp_avg_dtype: Literal["fp32", "fp16", "bf16", "fp8"] = "fp32"
    exp_avg_sq_dtype: Literal["fp32", "fp16", "bf16", "fp8"] = "fp32"
    optimizer_cpu_offload: bool = False
    optimizer_offload_fraction: float = 1.0

    # Work beside training steps.
    perform_rl_step: bool = False
    logits_load_dir: str | None = None
    logits_save_dir: str | None = None
    save_wgrads_interval: int | None = None
    save_dgrads_interval: int | None = None
    save_activations_interval: int | None = None
    log_max_attention_logit: bool = False
    moe_routing_trace_path: str | None = None

    @classmethod
    def flags(cls) -> dict[str, str]:
        """Returns command-line argument → field name."""
        return {
            flag_of_field(argument.name): argument.name
            for argument in fields(cls)
            if argument.name not in NON_ARGUMENT_FIELDS
        }

    def changed_field_names(self) -> Iterator[str]:
        """Yields the names of all fields whose value differs from the default."""
        for argument_field in fields(self):
            default_value = argument_field.default if argument_field.default is not MISSING else None
            if argument_field.name not in NON_ARGUMENT_FIELDS and getattr(self, argument_field.name) != default_value:
                yield argument_field.name


def flag_of_field(argument_name: str) -> str:
    """Returns the command-line argument of a field: `num_layers` → `--num-layers`."""
    return f"--{argument_name.replace('_', '-')}"


FIELD_BY_OLD_NAME = {
    "hybrid_override_pattern": "hybrid_layer_pattern",
    "use_custom_fsdp": "use_megatron_fsdp",
    "disable_fp8_wgrad": "no_fp8_wgrad",
    "disable_pad_vocab_size": "no_pad_vocab_size",
    "disable_dsa_indexer_scoring_relu": "no_dsa_indexer_scoring_relu",
    "disable_dsa_indexer_rotate_activation": "no_dsa_indexer_rotate_activation",
    "disable_clone_scatter_output_in_embedding": "no_clone_scatter_output_in_embedding",
}
"""Old or alternative name of an argument → its field."""
