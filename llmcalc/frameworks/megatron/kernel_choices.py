"""Chooses kernels from a run's arguments, GPU and environment, and refuses arguments that are not modelled."""

from __future__ import annotations

import datetime
from typing import Literal, TypeAlias

from ...device_memory.cuda_runtime import LARGE_GPU_WORKSPACE_BYTES, WORKSPACE_BYTES, workspace_bytes
from ...errors import InputError
from ...workload.execution import CrossEntropy
from .kernels import RankKernelChoices
from .kernels.rank_choices import AttentionBackend, LossImplementation
from .settings import MegatronSettings
from .unsupported import gpu_generation, unmodelled_arguments

TE_WORKSPACE_BYTES = 32 * 1024 * 1024 + 1024
"""Bytes of Transformer Engine's cuBLAS workspace from compute capability 9 on; 4 MiB on earlier GPUs.

Source: transformer_engine/pytorch/cpp_extensions/gemm.py, `get_cublas_workspace_size_bytes`.
"""

TE_WORKSPACE_BYTES_BEFORE_HOPPER = 4 * 1024 * 1024

LARGE_BLACKWELL_WORKSPACE_SINCE = datetime.date(2026, 5, 1)
"""Date since which NVIDIA's torch image (26.04) uses the larger cuBLAS workspace on Blackwell too."""

EXPERT_COMBINE_SPLIT_SINCE = datetime.date(2026, 1, 16)
"""Date since which experts' outputs are combined in two functions, the first of which frees its argument (Megatron-LM
1501c0f33a).
"""

LAYER_WISE_LAYOUT_SINCE = datetime.date(2026, 5, 20)
"""Date since which the tensors that Muon distributes over ranks are in one buffer per rank (Megatron-LM 0044db1f20)."""

BATCH_RETENTION_DATES = datetime.date(2026, 5, 21), datetime.date(2026, 7, 6)
"""Start and end of the period in which every batch of a step stayed on the GPU: `RerunDataIterator` held the
dictionaries in which get_batch replaced tensors (Megatron-LM 5e4fc931ba, bf32f4415e).
"""

SHARED_EXPERTS_FIRST_SINCE = datetime.date(2025, 10, 11)
"""Date since which shared experts run before the router (Megatron-LM e8024d716f)."""

EXPECTED_RECOMPUTE_MODULES = "expected core_attn, layernorm, mla_up_proj, mlp, moe, moe_act or shared_experts"

KIND_BY_RECOMPUTED_MODULE = {"mlp": "feed_forward", "moe": "experts", "shared_experts": "shared_expert"}
"""Name of a module that is recomputed as a whole → its kind in llmcalc."""


def refuse_unmodelled_arguments(settings: MegatronSettings) -> None:
    """Raises `InputError` for the first argument whose effect on memory is not modelled."""
    for flag, refusal_reason in unmodelled_arguments(settings).items():
        raise InputError(f"{flag}: {refusal_reason} is not modelled; expected the argument to be left out")
    modules = set(settings.recomputed_modules) - {
        "core_attn",
        "layernorm",
        "moe_act",
        "mla_up_proj",
        *KIND_BY_RECOMPUTED_MODULE,
    }
    if modules:
        raise InputError(f"--recompute-modules {' '.join(sorted(modules))}: not modelled; {EXPECTED_RECOMPUTE_MODULES}")
    if "moe_act" in settings.recomputed_modules and settings.num_experts is not None and not settings.moe_grouped_gemm:
        raise InputError("--recompute-modules moe_act: not modelled without --moe-grouped-gemm; expected both")
    if "shared_experts" in settings.recomputed_modules and settings.moe_shared_expert_gate:
        raise InputError("--recompute-modules shared_experts: not modelled with --moe-shared-expert-gate; expected one")
    if settings.optimizer not in ("adam", "sgd", "muon", "dist_muon"):
        raise InputError(f"--optimizer {settings.optimizer}: not modelled; expected adam, sgd or muon")
    if settings.optimizer == "sgd" and not settings.sgd_momentum:
        raise InputError("--sgd-momentum 0: not modelled; expected a momentum")
    if settings.transformer_impl == "inference_optimized":
        raise InputError("--transformer-impl inference_optimized: not modelled; expected transformer_engine or local")


OptimizerSharding: TypeAlias = Literal["none", "elements", "turns", "layout"]


def optimizer_sharding(settings: MegatronSettings) -> OptimizerSharding:
    """Returns the method by which optimizer states are sharded over ranks.

    none: every rank has all states. elements: ranges of elements. turns: whole tensors, assigned in rank order.
    layout: whole tensors, whose place in the buffers decides the rank.
    """
    if settings.optimizer in ("adam", "sgd"):
        return "elements" if settings.use_distributed_optimizer else "none"
    if settings.optimizer == "muon" and not settings.use_distributed_optimizer:
        return "none"
    has_layer_wise_layout = settings.date is None or settings.date >= LAYER_WISE_LAYOUT_SINCE
    return "layout" if has_layer_wise_layout and not settings.no_use_layer_wise_param_layout else "turns"


MULTIPROCESSORS_BY_GENERATION = {"ampere": 108, "hopper": 132}
"""Generation of a GPU → number of streaming multiprocessors of its largest GPU; 148 for later generations."""


def uses_local_implementation(settings: MegatronSettings) -> bool:
    """Whether layers use Megatron-Core's own kernels instead of Transformer Engine's.

    BERT's script reads that from --spec (examples/bert/pretrain_bert.py).
    """
    if settings.kind == "bert":
        return settings.spec == ("local",)
    return settings.transformer_impl == "local"


def choose_attention_backend(settings: MegatronSettings) -> AttentionBackend:
    """Returns the attention backend of a run.

    Sources: transformer_engine/pytorch/attention/dot_product_attention/utils.py, `get_attention_backend`, and
    common/fused_attn/fused_attn.cpp, `nvte_get_fused_attn_backend`: Hopper takes the fused backend, and so does
    Blackwell, unless dropout is to be deterministic.
    """
    if uses_local_implementation(settings):
        return "local"
    requested_backend = settings.attention_backend
    if requested_backend in ("unfused", "flash", "fused"):
        return requested_backend
    if requested_backend == "local":
        return "unfused"
    if gpu_generation(settings.gpu) == "ampere":
        return "flash"
    if gpu_generation(settings.gpu) == "hopper":
        return "fused"
    is_deterministic = settings.deterministic_mode or settings.env.get("NVTE_ALLOW_NONDETERMINISTIC_ALGO") == "0"
    return "flash" if is_deterministic and settings.attention_dropout > 0 else "fused"


def choose_loss_implementation(settings: MegatronSettings) -> LossImplementation:
    """Returns the implementation of the cross-entropy loss."""
    if not settings.cross_entropy_loss_fusion:
        return "unfused"
    return settings.cross_entropy_fusion_impl


CROSS_ENTROPY_BY_IMPLEMENTATION: dict[LossImplementation, CrossEntropy] = {
    "te": "fused",
    "native": "native",
    "unfused": "eager",
}
"""Implementation of the loss in Megatron-LM → value of `--cross-entropy`."""


def rank_kernel_choices(settings: MegatronSettings) -> RankKernelChoices:
    """Returns the kernels and options that all ranks of a run share, as `RankKernelChoices`."""
    capacity_factor = settings.moe_expert_capacity_factor if settings.moe_pad_expert_input_to_capacity else None
    return RankKernelChoices(
        tp=settings.tp,
        cp=settings.cp,
        ep=settings.expert_model_parallel_size,
        etp=settings.expert_tensor_parallel_size or settings.tp,
        sequence_parallel=settings.uses_sequence_parallelism,
        uses_transformer_engine=not uses_local_implementation(settings),
        attention_backend=choose_attention_backend(settings),
        attention_dropout=settings.attention_dropout,
        hidden_dropout=settings.hidden_dropout,
        fuses_softmax=not settings.no_masked_softmax_fusion and (settings.bf16 or settings.fp16),
        runs_softmax_in_fp32=settings.attention_softmax_in_fp32 or settings.apply_query_key_layer_scaling,
        scales_attention_scores=settings.apply_query_key_layer_scaling,
        has_batch_mask=not settings.no_create_attention_mask_in_dataloader,
        context_parallel_exchange="a2a" if "a2a+p2p" in settings.cp_comm_type else settings.layout().cp_comm,
        fuses_gradient_accumulation=not settings.no_gradient_accumulation_fusion,
        fuses_bias_and_activation=not (
            settings.no_bias_swiglu_fusion
            if settings.has_gate
            else settings.no_bias_gelu_fusion or settings.disable_bias_linear
        ),
        fuses_rope=not settings.no_rope_fusion,
        fuses_latent_rope=not settings.no_rope_fusion and settings.position_type == "rope",
        has_user_buffers=settings.tp_comm_overlap
        and settings.uses_sequence_parallelism
        and not uses_local_implementation(settings),
        scales_logits=settings.scales_logits,
        loss_implementation=choose_loss_implementation(settings),
        is_deterministic=settings.deterministic_mode,
        multiprocessor_count=MULTIPROCESSORS_BY_GENERATION.get(gpu_generation(settings.gpu), 148),
        has_padding_mask=settings.kind in ("bert", "t5"),
        fuses_weighted_activation=settings.squared_relu and settings.use_fused_weighted_squared_relu,
        uses_grouped_gemm=settings.moe_grouped_gemm,
        dispatcher="hybridep" if settings.moe_token_dispatcher_type == "flex" else settings.moe_token_dispatcher_type,
        fuses_permutation=settings.moe_permute_fusion,
        runs_router_in_fp32=settings.moe_router_dtype is not None,
        capacity_factor=capacity_factor,
        has_auxiliary_loss=settings.has_auxiliary_loss,
        has_z_loss=settings.moe_z_loss_coeff is not None,
        combines_in_one_function=settings.date is not None and settings.date < EXPERT_COMBINE_SPLIT_SINCE,
        detaches_layer_inputs=settings.overlap_moe_expert_parallel_comm,
        runs_shared_experts_first=settings.date is None or settings.date >= SHARED_EXPERTS_FIRST_SINCE,
        wgrad_deferral_limit=settings.wgrad_deferral_limit if settings.defer_embedding_wgrad_compute else None,
        fp8_recipe="none" if settings.fp8_format is None or settings.fp8_recipe == "custom" else settings.fp8_recipe,
        amax_history_length=settings.fp8_amax_history_len,
        has_fp8_weights=settings.fp8_format is not None and settings.fp8_param_gather,
        saves_transposed_operands=gpu_generation(settings.gpu) != "blackwell",
        bf16_layer_counts=_bf16_layer_counts(settings),
        model_layer_count=settings.layer_count,
        trains_indexer=bool(settings.dsa_indexer_loss_coeff),
        recompute=(settings.recompute_method or "uniform") if settings.recompute_mode == "full" else "none",
        recompute_layer_count=settings.recompute_num_layers or 1,
        recomputed_module_kinds=frozenset(
            module_kind
            for module_name, module_kind in KIND_BY_RECOMPUTED_MODULE.items()
            if module_name in settings.recomputed_modules or (module_name == "moe" and settings.moe_layer_recompute)
        ),
        recomputes_norms="layernorm" in settings.recomputed_modules,
        recomputes_expert_activations="moe_act" in settings.recomputed_modules,
        recomputes_up_projections="mla_up_proj" in settings.recomputed_modules,
        recomputes_attention_core="core_attn" in settings.recomputed_modules,
        adapters=settings.adapters,
    )


def _bf16_layer_counts(settings: MegatronSettings) -> tuple[int, int]:
    """Returns the number of layers at the start and at the end of the model that stay in bf16."""
    if settings.first_last_layers_bf16:
        return (settings.num_layers_at_start_in_bf16, settings.num_layers_at_end_in_bf16)
    return (0, 0)


def cublas_workspace_bytes(settings: MegatronSettings) -> int:
    """Returns the bytes of torch's cuBLAS workspace, larger with `--deterministic-mode` (training/determinism.py)."""
    config = settings.env.get("CUBLAS_WORKSPACE_CONFIG")
    if config is not None:
        return workspace_bytes(config)
    has_large_workspace = settings.deterministic_mode or gpu_generation(settings.gpu) == "hopper"
    if not has_large_workspace and gpu_generation(settings.gpu) != "ampere":
        has_large_workspace = settings.date is not None and settings.date >= LARGE_BLACKWELL_WORKSPACE_SINCE
    return LARGE_GPU_WORKSPACE_BYTES if has_large_workspace else WORKSPACE_BYTES


def te_workspace_bytes(settings: MegatronSettings) -> int:
    """Returns the bytes of Transformer Engine's cuBLAS workspace."""
    return TE_WORKSPACE_BYTES_BEFORE_HOPPER if gpu_generation(settings.gpu) == "ampere" else TE_WORKSPACE_BYTES


def uses_expandable_segments(settings: MegatronSettings) -> bool:
    """Whether the run's allocator uses expandable segments."""
    return "expandable_segments:True" in settings.env.get("PYTORCH_CUDA_ALLOC_CONF", "")


def retains_batches(settings: MegatronSettings) -> bool:
    """Whether every batch stays on the GPU until the next step."""
    first_version, last_version = BATCH_RETENTION_DATES
    return settings.date is not None and first_version <= settings.date < last_version
