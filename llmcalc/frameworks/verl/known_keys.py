"""Keys of verl's actor and model: modelled keys, keys without an effect on memory, and refused keys."""

from __future__ import annotations

import re
from typing import Any

from ...errors import short_repr
from ..argument_names import argument_names
from ..launch.launch_types import LaunchReader, Table
from ..megatron.named_model import (
    END_STAGE_ARGUMENTS,
    HOST_OPTIMIZER_ARGUMENTS,
    PIPELINE_SPLIT_ARGUMENTS,
    STAGE_LAYOUT,
)
from .rollout import ACTOR_PREFIX, MODEL_PREFIX

KEYS_READ = argument_names(__file__, "read")

MEGATRON_CORE_KEYS = {
    *(
        f"actor.megatron.override_transformer_config.{name}"
        for name in (*END_STAGE_ARGUMENTS, *PIPELINE_SPLIT_ARGUMENTS, STAGE_LAYOUT)
    ),
    *(f"actor.optim.override_optimizer_config.{name}" for name in HOST_OPTIMIZER_ARGUMENTS),
}
"""Keys that readers of Megatron-Core's named models read."""

KEYS_WITHOUT_MEMORY = re.compile(
    r"actor\.(optim\.(lr|min_lr|weight_decay|clip_grad|total_training_steps|betas|warmup\w*|num_cycles)\w*"
    r"|optim\.override_optimizer_config\.overlap_cpu_optimizer_d2h_h2d"
    r"|kl_loss_\w+|clip_(ratio|cov)\w*|kl_cov_\w+|ppo_kl_coef|loss_mode|policy_loss\.\w+|loss_agg_mode|loss_scale_factor|grad_clip|tau_\w+|profiler\..*"
    r"|checkpoint\..*|ppo_epochs|shuffle|data_loader_seed|tis_\w+|rollout_n|router_replay\.mode"
    r"|fsdp_config\.(use_orig_params|forward_prefetch|wrap_policy\..*|mixed_precision\.buffer_dtype)"
    r"|megatron\.(use_mbridge|vanilla_mbridge|use_dist_checkpointing|dist_checkpointing_\w+|seed|load_weight)"
    r"|megatron\.override_transformer_config\.(moe_router_\w+|moe_permute_fusion|gradient_accumulation_fusion"
    r"|apply_rope_fusion|bias_\w+_fusion|persist_layer_norm|moe_grouped_gemm|masked_softmax_fusion"
    r"|deallocate_pipeline_outputs|use_flash_attn|moe_aux_loss_coeff|moe_z_loss_coeff|attention_backend))"
    r"|model\.(lora_alpha|use_shm|trust_remote_code|lora_adapter_path|exclude_modules|external_lib"
    r"|custom_chat_template|fused_kernel_options\..*|torch_dtype|tokenizer_path|hf_config_path"
    r"|mtp\.(?!enable)\w+|lora\.(alpha|merge|lora_[AB]_init_method|dropout_position|adapter_path)|override_config\.(model_config\.)?(max_position_embeddings|\w+_token_id))"
)
"""Keys that do not change the memory of a step, or only that of one block."""

NOTES_BY_KEY = {
    "actor.megatron.override_transformer_config.moe_shared_expert_overlap": "shared experts run without overlap",
    "actor.megatron.override_transformer_config.moe_token_dispatcher_type": "experts' tokens are counted as alltoall's",
    "actor.megatron.override_transformer_config.moe_enable_deepep": "experts' tokens are counted as alltoall's",
}
"""Key whose value is not modelled but estimated → the note."""

KEY_DEFAULTS = {
    "actor.megatron.dtype": "bfloat16",
    "actor.fsdp_config.dtype": "bfloat16",
}
"""Key of which only the default is modelled → the default."""


def note_ignored_keys(reader: LaunchReader, config: Table) -> None:
    """Adds a note on each ignored key of the actor and model that may change memory."""
    for override_key, override_value in config.items():
        if not override_key.startswith((ACTOR_PREFIX, MODEL_PREFIX)) or turns_key_off(override_value):
            continue
        short_key = override_key.removeprefix("actor_rollout_ref.")
        if KEY_DEFAULTS.get(short_key) == override_value:
            continue
        if short_key in NOTES_BY_KEY:
            key_note = f"{override_key}: {NOTES_BY_KEY[short_key]}"
            reader.notes += [key_note] * (override_value not in ("alltoall",))
        elif short_key not in KEYS_READ | MEGATRON_CORE_KEYS and KEYS_WITHOUT_MEMORY.fullmatch(short_key) is None:
            reader.refuse(override_key[:100], f"{short_repr(override_value)[:40]} is not modelled")


def turns_key_off(override_value: Any) -> bool:
    """Whether a value turns a feature off: zero (also as text), false or null."""
    if isinstance(override_value, str) and re.fullmatch(r"0*\.?0*", override_value) is not None:
        return True
    return override_value in (None, False, 0, "none", "null", [], {})
