"""The values of NeMo-RL's base configs, on which recipes build (`defaults: ../../grpo_math_1B.yaml`).

Source: NVIDIA-NeMo/RL at 7ea279ab (2026-08-22), examples/configs/*.yaml. Values that change no memory are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TOKENS, ONE_NODE = "${policy.max_total_sequence_length}", {"gpus_per_node": 1, "num_nodes": 1}

ADAMW: Mapping[str, Any] = {"name": "torch.optim.AdamW"}
LOOP: Mapping[str, Any] = {**ADAMW, "kwargs": {"foreach": False, "fused": False}}

PACKED = {"enabled": True, "train_mb_tokens": f"${{mul:{TOKENS}, ${{policy.train_micro_batch_size}}}}"}
NOT_PACKED = {**PACKED, "enabled": False}

MEGATRON: Mapping[str, Any] = {
    "optimizer": {"optimizer": "adam", "use_distributed_optimizer": True, "use_precision_aware_optimizer": True},
    "distributed_data_parallel_config": {"grad_reduce_in_fp32": False},
}

GENERATION: Mapping[str, Any] = {
    "backend": "vllm",
    "vllm_cfg": {
        "tensor_parallel_size": 1,
        "gpu_memory_utilization": 0.6,
        "max_model_len": TOKENS,
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
            "megatron_cfg": {"enabled": False, **MEGATRON},
            "dynamic_batching": NOT_PACKED,
            "sequence_packing": PACKED,
            "optimizer": ADAMW,
            "generation": GENERATION,
        },
        "cluster": ONE_NODE,
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
            "megatron_cfg": {"enabled": False, **MEGATRON},
            "dynamic_batching": NOT_PACKED,
            "sequence_packing": NOT_PACKED,
            "optimizer": LOOP,
        },
        "cluster": ONE_NODE,
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
                **MEGATRON,
            },
            "dynamic_batching": NOT_PACKED,
            "sequence_packing": NOT_PACKED,
            "optimizer": LOOP,
        },
        "cluster": ONE_NODE,
    },
}
"""Name of a base config → its values that change memory; `defaults` as in the files."""
