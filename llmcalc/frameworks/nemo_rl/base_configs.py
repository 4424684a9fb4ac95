"""The values of NeMo-RL's base configs, on which recipes build (`defaults: ../../grpo_math_1B.yaml`).

Source: NVIDIA-NeMo/RL at 7ea279ab (2026-08-22), examples/configs/*.yaml. Values that change no memory are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TOKENS_REFERENCE, ONE_NODE_CLUSTER = "${policy.max_total_sequence_length}", {"gpus_per_node": 1, "num_nodes": 1}

ADAMW: Mapping[str, Any] = {"name": "torch.optim.AdamW"}
LOOP_ADAMW: Mapping[str, Any] = {**ADAMW, "kwargs": {"foreach": False, "fused": False}}

SEQUENCE_PACKING = {
    "enabled": True,
    "train_mb_tokens": f"${{mul:{TOKENS_REFERENCE}, ${{policy.train_micro_batch_size}}}}",
}
NO_SEQUENCE_PACKING = {**SEQUENCE_PACKING, "enabled": False}

MEGATRON_CONFIG: Mapping[str, Any] = {
    "optimizer": {"optimizer": "adam", "use_distributed_optimizer": True, "use_precision_aware_optimizer": True},
    "distributed_data_parallel_config": {"grad_reduce_in_fp32": False},
}

GENERATION_CONFIG: Mapping[str, Any] = {
    "backend": "vllm",
    "vllm_cfg": {
        "tensor_parallel_size": 1,
        "gpu_memory_utilization": 0.6,
        "max_model_len": TOKENS_REFERENCE,
        "enforce_eager": False,
    },
    "colocated": {"enabled": True},
}

BASE_CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "grpo_math_1B.yaml": {
        "grpo": {},
        "loss_fn": {"reference_policy_kl_penalty": 0.01},
        "policy": {
            "model_name": "Qwen/Qwen2.5-1.5B",
            "train_global_batch_size": 512,
            "train_micro_batch_size": 4,
            "logprob_batch_size": "${policy.train_micro_batch_size}",
            "max_total_sequence_length": 512,
            "dtensor_cfg": {"enabled": True},
            "megatron_cfg": {"enabled": False, **MEGATRON_CONFIG},
            "dynamic_batching": NO_SEQUENCE_PACKING,
            "sequence_packing": SEQUENCE_PACKING,
            "optimizer": ADAMW,
            "generation": GENERATION_CONFIG,
        },
        "cluster": ONE_NODE_CLUSTER,
    },
    "grpo_math_1B_megatron.yaml": {
        "defaults": "grpo_math_1B.yaml",
        "policy": {"dtensor_cfg": {"enabled": False}, "megatron_cfg": {"enabled": True}, "optimizer": None},
    },
    "grpo_math_8B.yaml": {
        "defaults": "grpo_math_1B.yaml",
        "policy": {
            "model_name": "meta-llama/Llama-3.1-8B-Instruct",
            "train_micro_batch_size": 1,
            "logprob_batch_size": 2,
            "max_total_sequence_length": 4096,
        },
        "cluster": {"gpus_per_node": 8},
    },
    "grpo_math_8B_megatron.yaml": {
        "defaults": "grpo_math_1B_megatron.yaml",
        "policy": {
            "model_name": "meta-llama/Llama-3.1-8B-Instruct",
            "train_micro_batch_size": 1,
            "logprob_batch_size": 4,
            "max_total_sequence_length": 4096,
            "megatron_cfg": {"pipeline_model_parallel_size": 2},
        },
        "cluster": {"gpus_per_node": 8},
    },
    "sft.yaml": {
        "sft": {},
        "policy": {
            "model_name": "meta-llama/Llama-3.2-1B",
            "train_global_batch_size": 32,
            "train_micro_batch_size": 1,
            "max_total_sequence_length": 1024,
            "dtensor_cfg": {"enabled": True},
            "megatron_cfg": {"enabled": False, **MEGATRON_CONFIG},
            "dynamic_batching": NO_SEQUENCE_PACKING,
            "sequence_packing": NO_SEQUENCE_PACKING,
            "optimizer": LOOP_ADAMW,
        },
        "cluster": ONE_NODE_CLUSTER,
    },
    "dpo.yaml": {
        "dpo": {"reference_policy_kl_penalty": 0.05},
        "policy": {
            "model_name": "meta-llama/Llama-3.2-1B-Instruct",
            "train_global_batch_size": 128,
            "train_micro_batch_size": 2,
            "max_total_sequence_length": 1024,
            "dtensor_cfg": {"enabled": True},
            "megatron_cfg": {
                "enabled": False,
                "tensor_model_parallel_size": 2,
                "sequence_parallel": True,
                **MEGATRON_CONFIG,
            },
            "dynamic_batching": NO_SEQUENCE_PACKING,
            "sequence_packing": NO_SEQUENCE_PACKING,
            "optimizer": LOOP_ADAMW,
        },
        "cluster": ONE_NODE_CLUSTER,
    },
}
"""Name of a base config → its values that change memory, with `defaults` as in NeMo-RL's files."""
