"""A run of Megatron-LM in its own words: the arguments that decide shapes and memory, and what follows from them.

Each field is a command-line argument of Megatron-LM with underscores for hyphens (`--no-rope-fusion` is
`no_rope_fusion`), with Megatron's own default. Source: megatron/training/arguments.py and the config classes from which
it makes arguments, at commit d98e8a64 (2026-08-22); what older versions call otherwise is in `RENAMED`. What
`validate_args` there derives from other arguments is a property here.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from ..errors import InputError, shown
from .layout import ContextExchange, Layout, Zero

Kind: TypeAlias = Literal["gpt", "bert", "t5", "hybrid"]

FACTS = ("kind", "world_size", "gpu", "env", "date")
"""Fields that are no arguments."""


@dataclass(frozen=True)
class MegatronSettings:
    """The arguments of a run, and beside them: kind, which pretraining script runs; world_size, the number of devices;
    gpu, the name of one; env, environment variables; date, when the version of Megatron-LM is from, None for the
    newest.
    """

    kind: Kind = "gpt"
    world_size: int = 1
    gpu: str = "H100"
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    date: datetime.date | None = None

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
    rotary_interleaved: bool = False
    rotary_seq_len_interpolation_factor: int | None = None
    use_rope_scaling: bool = False
    rope_scaling_factor: float = 8.0
    no_rope_freq: int | tuple[int, ...] | None = None
    no_position_embedding: bool = False
    use_rotary_position_embeddings: bool = False
    mrope_section: tuple[int, ...] | None = None
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    normalization: Literal["LayerNorm", "RMSNorm"] = "LayerNorm"
    norm_epsilon: float = 1e-05
    apply_layernorm_1p: bool = False
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
    num_classes: int = 1000
    heterogeneous_layers_config_path: str | None = None
    heterogeneous_layers_config_encoded_json: str | None = None
    spec: tuple[str, ...] | None = None
    use_mcore_models: bool = False
    transformer_impl: Literal["local", "transformer_engine", "inference_optimized"] = "transformer_engine"
    enable_mhc_connections: bool = False
    mhc_num_residual_streams: int = 4
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
    tiktoken_num_special_tokens: int = 1000
    null_tokenizer_eod_id: int | None = None

    # Multi-head latent attention.
    multi_latent_attention: bool = False
    q_lora_rank: int | None = None
    kv_lora_rank: int = 32
    qk_head_dim: int = 128
    qk_pos_emb_head_dim: int = 64
    v_head_dim: int = 128
    rotary_scaling_factor: float = 1.0
    mscale: float = 1.0
    mscale_all_dim: float = 0.0
    mla_down_proj_fusion: bool = False
    cache_mla_latents: bool = False
    rope_type: Literal["rope", "yarn"] | None = None

    # Experts.
    num_experts: int | None = None
    moe_layer_freq: int | tuple[int, ...] = 1
    moe_ffn_hidden_size: int | None = None
    moe_shared_expert_intermediate_size: int | None = None
    moe_shared_expert_gate: bool = False
    moe_shared_expert_overlap: bool = False
    moe_router_topk: int = 2
    moe_router_pre_softmax: bool = False
    moe_router_topk_scaling_factor: float | None = None
    moe_router_score_function: Literal["softmax", "sigmoid", "sqrtsoftplus"] = "softmax"
    moe_router_dtype: Literal["fp32", "fp64"] | None = None
    moe_router_enable_expert_bias: bool = False
    moe_router_num_groups: int | None = None
    moe_router_group_topk: int | None = None
    moe_router_load_balancing_type: tuple[str, ...] = ("aux_loss",)
    moe_aux_loss_coeff: tuple[float, ...] = (0.0,)
    moe_router_force_load_balancing: bool = False
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
    moe_token_drop_policy: Literal["probs", "position"] = "probs"
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
    reset_attention_mask: bool = False
    reset_position_ids: bool = False
    sft: bool = False
    hybrid_context_parallel: bool = False
    max_seqlen_per_dp_cp_rank: int | None = None
    train_iters: int | None = None
    skip_train: bool = False
    freeze_all_layers: bool = False

    # Dropout.
    attention_dropout: float = 0.1
    hidden_dropout: float = 0.1

    # Kernels.
    attention_backend: Literal["auto", "flash", "fused", "unfused", "local"] = "auto"
    use_flash_attn: bool = False
    flash_attention_version: int | None = None
    attention_softmax_in_fp32: bool = False
    apply_query_key_layer_scaling: bool = False
    no_masked_softmax_fusion: bool = False
    no_bias_gelu_fusion: bool = False
    no_bias_swiglu_fusion: bool = False
    no_bias_dropout_fusion: bool = False
    no_rope_fusion: bool = False
    no_persist_layer_norm: bool = False
    cross_entropy_loss_fusion: bool = False
    cross_entropy_fusion_impl: Literal["native", "te"] = "native"
    fp16_lm_cross_entropy: bool = False
    output_logit_dtype: Literal["bf16", "fp32"] | None = None
    calculate_per_token_loss: bool = False
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
    keep_fp8_transpose_cache: bool = False
    reuse_grad_buf_for_mxfp8_param_ag: bool = False
    fp4_format: Literal["e2m1"] | None = None
    fp4_recipe: Literal["nvfp4", "custom"] = "nvfp4"
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
    offload_modules: tuple[str, ...] = ()
    activation_offload_fraction: float = 1.0
    mhc_recompute_layer_num: int | None = None

    # CUDA graphs.
    enable_cuda_graph: bool = False
    external_cuda_graph: bool = False
    cuda_graph_impl: Literal["none", "local", "transformer_engine", "full_iteration"] = "none"
    cuda_graph_modules: tuple[str, ...] = ()
    cuda_graph_scope: tuple[str, ...] | None = None
    cuda_graph_warmup_steps: int = 3
    optimizer_cuda_graph: bool = False

    # The layout.
    tensor_model_parallel_size: int = 1
    pipeline_model_parallel_size: int = 1
    context_parallel_size: int = 1
    hierarchical_context_parallel_sizes: tuple[int, ...] | None = None
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
    use_ring_exchange_p2p: bool = False
    defer_embedding_wgrad_compute: bool = False
    wgrad_deferral_limit: int = 0
    tp_comm_overlap: bool = False
    tp_comm_overlap_cfg: str | None = None
    use_tp_pp_dp_mapping: bool = False

    # Data parallelism.
    use_distributed_optimizer: bool = False
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    overlap_param_gather_with_optimizer_step: bool = False
    ddp_num_buckets: int | None = None
    ddp_bucket_size: int | None = None
    ddp_pad_buckets_for_high_nccl_busbw: bool = False
    ddp_average_in_collective: bool = False
    ddp_reduce_scatter_with_fp32_accumulation: bool = False
    ddp_param_name_patterns_for_fp32_local_accumulation: tuple[str, ...] = ()
    num_distributed_optimizer_instances: int = 1
    no_use_layer_wise_param_layout: bool = False
    use_nccl_ub: bool = False
    use_megatron_fsdp: bool = False
    use_torch_fsdp2: bool = False
    init_model_with_meta_device: bool = False
    data_parallel_sharding_strategy: Literal["no_shard", "optim", "optim_grads", "optim_grads_params"] = (
        "optim_grads_params"
    )
    outer_dp_sharding_strategy: Literal["no_shard", "optim"] = "no_shard"
    fsdp_double_buffer: bool = False
    megatron_fsdp_version: int = 1
    megatron_fsdp_main_params_dtype: Literal["fp32", "bf16", "fp16", "auto"] = "fp32"
    megatron_fsdp_main_grads_dtype: Literal["fp32", "bf16", "fp16", "auto"] = "auto"
    megatron_fsdp_grad_comm_dtype: Literal["fp32", "fp16", "bf16", "auto"] = "auto"
    suggested_communication_unit_size: int | None = None
    enable_full_sharding_in_hsdp: bool = False
    torch_fsdp2_no_reshard_after_forward: bool = False

    # The optimizer.
    optimizer: Literal["adam", "sgd", "muon", "dist_muon", "lion", "soap", "adaptive_muon"] = "adam"
    sgd_momentum: float = 0.9
    muon_momentum: float = 0.9
    muon_no_split_qkv: bool = False
    muon_tp_mode: Literal["blockwise", "duplicated", "distributed"] = "duplicated"
    muon_scalar_optimizer: Literal["adam", "lion"] = "adam"
    muon_use_syrk: bool = False
    use_precision_aware_optimizer: bool = False
    main_grads_dtype: Literal["fp32", "bf16"] = "fp32"
    main_params_dtype: Literal["fp32", "fp16"] = "fp32"
    exp_avg_dtype: Literal["fp32", "fp16", "bf16", "fp8"] = "fp32"
    exp_avg_sq_dtype: Literal["fp32", "fp16", "bf16", "fp8"] = "fp32"
    decoupled_lr: float | None = None
    optimizer_cpu_offload: bool = False
    optimizer_offload_fraction: float = 1.0
    no_weight_decay_cond_type: Literal["apply_wd_to_qk_layernorm"] | None = None
    apply_wd_to_qk_layernorm: bool = False
    clip_grad: float = 1.0
    weight_decay: float = 0.01
    log_num_zeros_in_grad: bool = False
    empty_unused_memory_level: int = 0

    # Work beside training steps.
    perform_rl_step: bool = False
    rl_use_sequence_packing: bool = False
    logits_load_dir: str | None = None
    logits_save_dir: str | None = None
    save_wgrads_interval: int | None = None
    save_dgrads_interval: int | None = None
    save_activations_interval: int | None = None
    check_weight_hash_across_dp_replicas_interval: int | None = None
    rerun_mode: Literal["disabled", "validate_results", "report_stats"] = "validate_results"
    log_max_attention_logit: bool = False
    moe_routing_trace_path: str | None = None

    @classmethod
    def flags(cls) -> dict[str, str]:
        """Argument → the field that holds it."""
        return {flag_of(one.name): one.name for one in fields(cls) if one.name not in FACTS}

    def given(self) -> Iterator[str]:
        """Fields of arguments whose value is not the default."""
        for one in fields(self):
            default = one.default if one.default is not MISSING else None
            if one.name not in FACTS and getattr(self, one.name) != default:
                yield one.name

    # What follows from the arguments

    @property
    def tp(self) -> int:
        """Ranks of a tensor-parallel group."""
        return self.tensor_model_parallel_size

    @property
    def pp(self) -> int:
        """Ranks of a pipeline."""
        return self.pipeline_model_parallel_size

    @property
    def cp(self) -> int:
        """Ranks that share a sequence."""
        return self.context_parallel_size

    @property
    def dp(self) -> int:
        """Ranks that read other sequences."""
        return max(1, self.world_size // (self.tp * self.pp * self.cp))

    @property
    def divides_tokens(self) -> bool:
        """Whether sequence parallelism runs: alone it does nothing."""
        return self.sequence_parallel and self.tp > 1

    @property
    def layers(self) -> int:
        """Layers of the decoder, or of each half of an encoder-decoder; 0 where nothing says."""
        if self.hybrid_layer_pattern is not None:
            return sum(map(len, self.segments))
        return self.num_layers or self.encoder_num_layers or 0

    @property
    def decoder_layers(self) -> int:
        """Layers of the decoder of an encoder-decoder."""
        return self.decoder_num_layers or self.layers

    @property
    def segments(self) -> list[str]:
        """Parts of a hybrid pattern, divided where a stage ends, without what comes after them."""
        return (self.hybrid_layer_pattern or "").split("/")[0].split("|")

    @property
    def later_tokens(self) -> int:
        """Layers of multi-token prediction. A hybrid pattern has them after slashes."""
        if self.hybrid_layer_pattern is not None and "/" in self.hybrid_layer_pattern:
            return self.hybrid_layer_pattern.count("/")
        return self.mtp_num_layers or 0

    @property
    def latent(self) -> bool:
        """Whether attention is latent. A hybrid pattern says so with a plus sign or a D."""
        return self.multi_latent_attention or bool(set(self.hybrid_layer_pattern or "") & {"+", "D"})

    @property
    def tokens(self) -> int:
        """Tokens of a sequence; those of the encoder where there is one."""
        return self.seq_length or self.encoder_seq_length or 0

    @property
    def ffn(self) -> int:
        """Width of a dense network: Shazeer's two thirds (arXiv:2002.05202) in multiples of 64 with SwiGLU."""
        if self.ffn_hidden_size is not None:
            return self.ffn_hidden_size
        h = self.hidden_size or 0
        return int((4 * h * 2 / 3) / 64) * 64 if self.swiglu else 4 * h

    @property
    def expert_ffn(self) -> int:
        """Width of an expert."""
        return self.moe_ffn_hidden_size or self.ffn

    @property
    def gated(self) -> bool:
        """Whether networks have a gate."""
        return self.swiglu or self.quick_geglu

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.kv_channels or (self.hidden_size or 0) // (self.num_attention_heads or 1)

    @property
    def query_groups(self) -> int:
        """Heads of keys and values."""
        return self.num_query_groups if self.group_query_attention else self.num_attention_heads or 0

    @property
    def mamba_inner(self) -> int:
        """Inner width of a Mamba layer."""
        if self.mamba_num_heads is not None:
            return self.mamba_num_heads * self.mamba_head_dim
        return 2 * (self.hidden_size or 0)

    @property
    def positions(self) -> str:
        """The kind of position embedding."""
        if self.use_rotary_position_embeddings:
            return "rope"
        return "none" if self.no_position_embedding else self.position_embedding_type

    @property
    def expert_layers(self) -> tuple[bool, ...]:
        """Whether each layer has experts. An N as the frequency means the first of every N layers."""
        if self.num_experts is None:
            return (False,) * self.layers
        freq = self.moe_layer_freq
        if isinstance(freq, int):
            return tuple(i % max(1, freq) == 0 for i in range(self.layers))
        return tuple(map(bool, freq))

    @property
    def delta_layers(self) -> tuple[bool, ...]:
        """Whether each layer has gated DeltaNet for its attention. An N as the frequency means all but the last of
        every N layers (experimental_attention_variant_module_specs.py, `get_linear_attention_pattern`).
        """
        if self.experimental_attention_variant not in GATED_DELTA_NET:
            return (False,) * self.layers
        freq = self.linear_attention_freq
        if freq is None:
            raise InputError("--linear-attention-freq: missing; gated DeltaNet needs it")
        if isinstance(freq, int):
            return tuple((i + 1) % max(1, freq) != 0 for i in range(self.layers))
        return tuple(map(bool, freq))

    @property
    def microbatches(self) -> int:
        """Micro-batches per step of each pipeline."""
        micro = (self.micro_batch_size or 1) * self.dp
        return max(1, (self.batch or micro) // micro)

    @property
    def batch(self) -> int | None:
        """Sequences of the first steps. A schedule gives the batch from each number of tokens on; the first is from 0.

        Source: megatron/core/num_microbatches_calculator.py, `_parse_schedule`.
        """
        if self.step_batch_size_schedule is None:
            return self.global_batch_size
        batches = dict(_scheduled(self.step_batch_size_schedule))
        if 0 not in batches or self.global_batch_size is not None:
            raise InputError(
                f"--step-batch-size-schedule {shown(self.step_batch_size_schedule)}: expected a batch from 0 on, such "
                "as 0:384 200B:768, and no --global-batch-size"
            )
        return batches[0]

    @property
    def scales_logits(self) -> bool:
        """Whether the logits are multiplied by a number: with μP, unless the widths are those of its base
        (transformer_config.py, `__post_init__`).
        """
        base = self.mup_base_hidden_size or self.hidden_size
        return self.use_mup and (self.mup_output_mult != 1.0 or base != self.hidden_size)

    @property
    def balances(self) -> bool:
        """Whether the router has an auxiliary loss: of tokens, of sequences or of all ranks, with a factor
        (transformer/moe/router.py, `is_aux_loss_enabled`).
        """
        kinds = zip(self.moe_router_load_balancing_type, self.moe_aux_loss_coeff, strict=False)
        return any(kind.endswith("aux_loss") and factor > 0 for kind, factor in kinds)

    @property
    def tokenizer(self) -> str:
        """The type of the tokenizer, by default that of the script (`args_defaults`)."""
        words = "BertWordPieceLowerCase" if self.kind in ("bert", "t5") else "GPT2BPETokenizer"
        return self.tokenizer_type or words

    @property
    def vocabulary(self) -> int | None:
        """Tokens of the tokenizer before padding; None where only its files know.

        A null tokenizer added a token for the end of a document until 2026-04-22 (commit c9dfe34798).
        """
        kind, given = self.tokenizer, self.vocab_size
        if kind in ("NullTokenizer", "NullMultimodalTokenizer"):
            added = self.date is not None and self.date < NULL_TOKENIZER_COUNTS_ITS_LAST
            return None if given is None else given + (1 if added or kind != "NullTokenizer" else 0)
        if kind == "TikTokenizer":
            return given or TIKTOKEN
        if kind in WORD_PIECES:
            return WORD_PIECES[kind] + self.vocab_extra_ids
        if kind == "GPT2BPETokenizer":
            return GPT2
        if kind == "Llama2Tokenizer" and given is None:
            return LLAMA2
        if kind in SENTENCE_PIECES and given is None:
            return self._named_vocabulary()
        return given

    def _named_vocabulary(self) -> int | None:
        """Tokens that the name of a SentencePiece model gives in thousands (`…_256k.model`)."""
        found = re.search(r"[_.-](\d{2,3})k\.(?:model|vocab)", (self.tokenizer_model or "")[-200:])
        return None if found is None else int(found[1]) * 1000

    @property
    def padded_vocabulary(self) -> int | None:
        """Rows of the embedding: tokens up to a multiple of `--make-vocab-size-divisible-by` · tp."""
        if self.padded_vocab_size is not None:
            return self.padded_vocab_size
        if self.vocabulary is None or self.no_pad_vocab_size:
            return self.vocabulary
        multiple = max(1, self.make_vocab_size_divisible_by * self.tp)
        return -(-self.vocabulary // multiple) * multiple

    @property
    def reduces_in_fp32(self) -> bool:
        """Whether gradients are accumulated in fp32: with bf16 they are, but where another format is asked for."""
        if self.bf16:
            return not self.grad_reduce_in_bf16 and self.main_grads_dtype == "fp32"
        return self.accumulate_allreduce_grads_in_fp32 or not self.fp16

    @property
    def recomputes(self) -> Literal["none", "full", "selective"]:
        """What runs again in the backward pass."""
        if self.recompute_activations:
            return "selective"
        return self.recompute_granularity or "none"

    @property
    def recomputed_modules(self) -> tuple[str, ...]:
        """With selective recomputation, which modules run again: by default the attention's core."""
        if self.recomputes != "selective":
            return ()
        return self.recompute_modules or ("core_attn",)

    # The layout

    @cached_property
    def stage_layers(self) -> tuple[int, ...] | None:
        """Layers of each stage, in the order in which a micro-batch goes through them; None where all have as many.

        Source: megatron/core/transformer/transformer_block.py, `get_num_layers_to_build`; the words of a layout are
        those of pipeline_parallel_layer_layout.py, and hybrid patterns have a bar at the end of a stage.
        """
        count, layers = self.pp * self.chunks, self.layers
        if self.pipeline_model_parallel_layout is not None:
            return tuple(stage.count("t") for stage in unrolled(self.pipeline_model_parallel_layout).split("|"))
        if self.hybrid_layer_pattern is not None and len(self.segments) > 1:
            return tuple(map(len, self.segments))
        first, last = self.decoder_first_pipeline_num_layers, self.decoder_last_pipeline_num_layers
        if first is not None or last is not None:
            ends = (first is not None) + (last is not None)
            rest = layers - (first or 0) - (last or 0)
            if self.pp < ends or (self.pp > ends and rest % (self.pp - ends)) or (self.pp == ends and rest):
                raise InputError(
                    f"--decoder-first-pipeline-num-layers, --decoder-last-pipeline-num-layers: {rest} layers are left "
                    f"for {max(0, self.pp - ends)} stages; expected a multiple"
                )
            ranks = [rest // max(1, self.pp - ends)] * self.pp
            ranks[0] = ranks[0] if first is None else first
            ranks[-1] = ranks[-1] if last is None else last
            if any(one % self.chunks for one in ranks):
                raise InputError(f"--num-virtual-stages-per-pipeline-rank: {self.chunks} does not divide {ranks}")
            return tuple(one // self.chunks for one in ranks) * self.chunks
        embedding, loss = self.account_for_embedding_in_pipeline_split, self.account_for_loss_in_pipeline_split
        if not embedding and not loss:
            return None
        if (layers + embedding + loss) % count:
            raise InputError(
                f"--account-for-embedding-in-pipeline-split, --account-for-loss-in-pipeline-split: "
                f"{layers + embedding + loss} parts; expected a multiple of {count} stages"
            )
        even = [(layers + embedding + loss) // count] * count
        even[0] -= embedding
        even[-1] -= loss
        return tuple(even)

    @cached_property
    def chunks(self) -> int:
        """Chunks of layers that each rank of a pipeline has."""
        if self.pipeline_model_parallel_layout is not None:
            return self._shared(len(unrolled(self.pipeline_model_parallel_layout).split("|")))
        if self.hybrid_layer_pattern is not None:
            return 1 if len(self.segments) == 1 else self._shared(len(self.segments))
        if self.pp == 1:
            return 1
        if self.num_virtual_stages_per_pipeline_rank is not None:
            return max(1, self.num_virtual_stages_per_pipeline_rank)
        size = self.num_layers_per_virtual_pipeline_stage
        if size is None:
            return 1
        layers = self.layers
        layers += self.account_for_embedding_in_pipeline_split + self.account_for_loss_in_pipeline_split
        if size < 1 or layers % (self.pp * size):
            raise InputError(
                f"--num-layers-per-virtual-pipeline-stage: {size} layers on each of {self.pp} ranks do not divide "
                f"{layers} layers; expected a divisor"
            )
        return layers // (self.pp * size)

    def _shared(self, stages: int) -> int:
        if stages % self.pp:
            raise InputError(
                f"--pipeline-model-parallel-size: {self.pp} ranks cannot share {stages} stages; expected a divisor"
            )
        return stages // self.pp

    def layout(self) -> Layout:
        """The layout of the run. Raises `InputError` for one that cannot be."""
        self._check_world()
        exchange = EXCHANGES.get(self.cp_comm_type[0] if self.cp_comm_type else "p2p")
        if exchange is None or len(set(self.cp_comm_type)) > 1:
            raise InputError(
                f"--cp-comm-type {' '.join(self.cp_comm_type)[:60]}: not supported; expected one of "
                f"{', '.join(EXCHANGES)} for all layers"
            )
        zero: Zero = 1 if self.use_distributed_optimizer else 0
        if self.use_torch_fsdp2:
            zero = 3
        elif self.use_megatron_fsdp:
            zero = SHARDING.get(self.data_parallel_sharding_strategy, 3)
        return Layout(
            tp=self.tp,
            pp=self.pp,
            cp=self.cp,
            dp=self.dp,
            ep=self.expert_model_parallel_size,
            etp=self.expert_tensor_parallel_size,
            vpp=self.chunks,
            sequence_parallel=self.divides_tokens,
            cp_comm=exchange,
            zero=zero,
            hsdp_replicas=self.num_distributed_optimizer_instances,
            reshard=not self.torch_fsdp2_no_reshard_after_forward,
            schedule="interleaved" if self.chunks > 1 else "1f1b",
            pp_layout=self.stage_layers,
        )

    def _check_world(self) -> None:
        sizes = (
            "tensor_model_parallel_size",
            "pipeline_model_parallel_size",
            "context_parallel_size",
            "expert_model_parallel_size",
            "num_distributed_optimizer_instances",
            "world_size",
        )
        for name in sizes:
            if getattr(self, name) < 1:
                raise InputError(f"{flag_of(name)}: {getattr(self, name)}; expected a positive whole number")
        inside = self.tp * self.pp * self.cp
        if self.world_size % inside:
            raise InputError(
                f"--world-size: {self.world_size} is not a multiple of tensor · pipeline · context parallel sizes, "
                f"{self.tp} · {self.pp} · {self.cp} = {inside}; expected a multiple"
            )

    def check(self) -> None:
        """Raises `InputError`, naming the argument, for values that Megatron-LM or its model refuses."""
        for name in ("hidden_size", "num_attention_heads", "micro_batch_size"):
            self._positive(name, getattr(self, name))
        self._positive("num_layers", self.layers or None)
        self._positive("seq_length", self.tokens or None)
        for name in SIZES:
            if getattr(self, name) is not None:
                self._positive(name, getattr(self, name))
        assert self.hidden_size is not None
        assert self.num_attention_heads is not None
        if self.kv_channels is None and self.hidden_size % self.num_attention_heads:
            self._refuse("num_attention_heads", f"a divisor of --hidden-size {self.hidden_size}, or --kv-channels")
        if self.num_attention_heads % self.query_groups:
            self._refuse("num_query_groups", f"a divisor of --num-attention-heads {self.num_attention_heads}")
        self._check_world()
        micro = (self.micro_batch_size or 1) * self.dp
        if self.batch is not None and self.batch % micro:
            name = "global_batch_size" if self.step_batch_size_schedule is None else "step_batch_size_schedule"
            self._refuse(name, f"a multiple of micro-batch size · data-parallel size = {micro}")
        if self.num_experts is not None:
            if self.num_experts % self.expert_model_parallel_size:
                self._refuse(
                    "num_experts", f"a multiple of {self.expert_model_parallel_size}, the expert-parallel size"
                )
            if self.moe_router_topk > self.num_experts:
                self._refuse("moe_router_topk", f"at most --num-experts {self.num_experts}")
            if len(self.expert_layers) != self.layers and self.hybrid_layer_pattern is None:
                raise InputError(
                    f"--moe-layer-freq: a pattern of {len(self.expert_layers)} layers; expected one of {self.layers}"
                )
        if len(self.delta_layers) != self.layers:
            raise InputError(
                f"--linear-attention-freq: a pattern of {len(self.delta_layers)} layers; expected one of {self.layers}"
            )
        longest = max(self.tokens, self.decoder_seq_length or 0)
        if self.max_position_embeddings is not None and self.max_position_embeddings < longest:
            self._refuse("max_position_embeddings", f"at least {longest}, the longest sequence")
        for tokens in (self.tokens, self.decoder_seq_length or 0) if self.divides_tokens else ():
            if tokens // self.cp % self.tp:  # mappings.py, `_split_along_first_dim`
                raise InputError(
                    f"--sequence-parallel: --tp {self.tp} does not divide {tokens // self.cp} tokens; "
                    "expected a multiple"
                )
        if self.fp16 and self.bf16:
            raise InputError("--fp16, --bf16: both are given; expected one")
        if self.kind == "t5" and self.decoder_seq_length is None:
            raise InputError("--decoder-seq-length: missing; T5 needs it")
        self.layout()

    def _positive(self, name: str, value: Any) -> None:
        if value is None:
            raise InputError(f"{flag_of(name)}: missing; Megatron-LM needs it")
        if value < 1:
            raise InputError(f"{flag_of(name)}: {shown(value)}; expected a positive whole number")

    def _refuse(self, name: str, expected: str) -> None:
        raise InputError(f"{flag_of(name)}: {shown(getattr(self, name))}; expected {expected}")


def flag_of(name: str) -> str:
    """The argument that a field holds."""
    return f"--{name.replace('_', '-')}"


def _scheduled(text: str) -> Iterator[tuple[int, int]]:
    """The batches of a schedule, `0:384 200B:768`, after the tokens from which they hold. Raises `InputError`."""
    for part in text.split():
        found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?)([KMBT]?):(\d{1,9})", part, re.IGNORECASE)
        if found is None or not int(found[3]):
            raise InputError(f"--step-batch-size-schedule {shown(text)}: not understood; expected 0:384 200B:768")
        yield int(float(found[1]) * THOUSANDS[found[2].upper()]), int(found[3])


THOUSANDS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
"""Suffix of a number of tokens → its factor."""

LONGEST_LAYOUT = 100_000
"""The most letters of a pipeline's layout, repeats written out."""


def unrolled(text: str) -> str:
    """A layout of a pipeline with its repeats written out: `Et|(tt|)*2,L` is `Et|tt|tt|L`. Raises `InputError`.

    E is the embedding, t a layer, m a layer of multi-token prediction, L the loss; a bar ends a stage.
    """
    what = f"--pipeline-model-parallel-layout {shown(text)}"
    out = text.replace(",", "").replace(" ", "")
    for pattern in (r"\(([^()]+)\)\*(\d{1,6})", r"(.)\*(\d{1,6})"):
        if sum(len(one[1]) * int(one[2]) for one in re.finditer(pattern, out)) > LONGEST_LAYOUT:
            raise InputError(f"{what}: too long; expected at most {LONGEST_LAYOUT:,} layers")
        out = re.sub(pattern, lambda one: one[1] * int(one[2]), out)
    if len(out) > LONGEST_LAYOUT or set(out) - set("EtmL|"):
        raise InputError(f"{what}: not understood; expected letters E, t, m, L, bars and repeats, such as Et|(tt|)*2L")
    return out


SIZES = (
    "ffn_hidden_size",
    "kv_channels",
    "num_query_groups",
    "global_batch_size",
    "num_experts",
    "moe_ffn_hidden_size",
    "moe_shared_expert_intermediate_size",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_head_dim",
    "qk_pos_emb_head_dim",
    "v_head_dim",
    "mamba_state_dim",
    "mamba_head_dim",
    "mamba_num_groups",
    "mamba_num_heads",
    "max_position_embeddings",
    "decoder_seq_length",
    "encoder_num_layers",
    "decoder_num_layers",
    "make_vocab_size_divisible_by",
    "moe_router_topk",
    "dsa_indexer_n_heads",
    "dsa_indexer_head_dim",
    "dsa_indexer_topk",
    "linear_conv_kernel_dim",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_num_key_heads",
    "linear_num_value_heads",
)
"""Fields that are sizes, where they are given."""

GPT2 = 50257
"""Tokens of GPT-2's vocabulary."""

LLAMA2 = 32000
"""Tokens of Llama 2's vocabulary."""

TIKTOKEN = 2**17
"""Tokens of a tiktoken vocabulary (tiktoken_tokenizer.py, `DEFAULT_TIKTOKEN_MAX_VOCAB`)."""

WORD_PIECES = {"BertWordPieceLowerCase": 30522 + 2, "BertWordPieceCase": 28996 + 2}
"""Tokenizer → tokens of BERT's vocabulary, and two that begin and end a text."""

SENTENCE_PIECES = ("SentencePieceTokenizer", "GPTSentencePieceTokenizer", "Llama2Tokenizer")

NULL_TOKENIZER_COUNTS_ITS_LAST = datetime.date(2026, 4, 22)
"""From when the vocabulary of a null tokenizer includes the token that ends a document."""

EXCHANGES: dict[str, ContextExchange] = {
    "a2a+p2p": "p2p",
    "p2p": "p2p",
    "a2a": "a2a",
    "all_gather": "allgather",
    "allgather": "allgather",
}
"""Megatron's word for the exchange of keys and values → the layout's. By heads inside of a ring counts as a ring."""

SHARDING: dict[str, Zero] = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
"""What Megatron-FSDP divides → the stage of ZeRO."""

RENAMED = {
    "hybrid_override_pattern": "hybrid_layer_pattern",
    "use_custom_fsdp": "use_megatron_fsdp",
    "disable_fp8_wgrad": "no_fp8_wgrad",
    "disable_pad_vocab_size": "no_pad_vocab_size",
    "disable_dsa_indexer_scoring_relu": "no_dsa_indexer_scoring_relu",
    "disable_dsa_indexer_rotate_activation": "no_dsa_indexer_rotate_activation",
    "disable_clone_scatter_output_in_embedding": "no_clone_scatter_output_in_embedding",
}
"""What older versions call an argument, or its second name → its field."""

GATED_DELTA_NET = ("gdn", "gated_delta_net")
"""Names of attention by gated DeltaNet, the second of older versions."""
