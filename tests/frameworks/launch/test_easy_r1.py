"""Configs and commands of EasyR1, a fork of verl (hiyouga/EasyR1 at b44b311b, 2026-07-30: examples/)."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmcalc.errors import InputError
from llmcalc.frameworks.launch.launch_types import Launch
from llmcalc.frameworks.launch.read_launch_file import read_launch

CONFIG = """
data: {train_files: hiyouga/math12k@train, max_prompt_length: 2048, max_response_length: 1024, format_prompt: a.jinja}
algorithm: {adv_estimator: grpo, disable_kl: false, use_kl_loss: true}
worker:
  actor:
    global_batch_size: 128
    micro_batch_size_per_device_for_update: 2
    micro_batch_size_per_device_for_experience: 4
    model: {model_path: Qwen/Qwen2.5-7B-Instruct, lora: {rank: 0, alpha: 64, exclude_modules: ".*visual.*"}}
    optim: {lr: 1.0e-6, strategy: adamw}
    fsdp: {enable_full_shard: true, enable_cpu_offload: false, enable_rank0_init: true}
    offload: {offload_params: true, offload_optimizer: true}
  rollout: {n: 5, gpu_memory_utilization: 0.6, tensor_parallel_size: 4, val_override_config: {n: 1}}
  ref: {fsdp: {enable_cpu_offload: true}, offload: {offload_params: false}}
trainer: {nnodes: 2, n_gpus_per_node: 4}
"""

COMMAND = "python3 -m verl.trainer.main config=examples/config.yaml"


def launch_of(tmp_path: Path, overrides: str = "") -> Launch:
    """Returns what a script reads that names the config as the examples do."""
    (tmp_path / "examples").mkdir(exist_ok=True)
    (tmp_path / "examples" / "config.yaml").write_text(CONFIG)
    script = tmp_path / "examples" / "train.sh"
    script.write_text(f"{COMMAND} {overrides}\n")
    return read_launch(str(script))


def test_a_command_trains_with_the_config(tmp_path: Path) -> None:
    """Micro-batches have the tokens of two samples at their longest (workers/actor/dp_actor.py, `update_policy`)."""
    launch = launch_of(tmp_path, "trainer.n_gpus_per_node=8")
    assert (launch.model_name, launch.layout.world_size) == ("Qwen/Qwen2.5-7B-Instruct", 16)
    assert (launch.settings["batch"], launch.settings["seq"]) == (1, 2 * 3072)
    assert (launch.settings["optimizer_impl"], launch.settings["recompute"]) == ("fused", "full")
    assert launch.settings["master_weights"] == "fp32"
    assert "allocator" not in launch.settings
    assert launch.rollout is not None
    assert launch.rollout.flags["tensor_parallel_size"] == 4
    assert launch.rollout.flags["gpu_memory_utilization"] == 0.6
    assert launch.rollout.tokens_per_sequence == 4 * 3072
    assert launch.rollout.offloaded_states == {"weights", "optimizer"}
    assert (launch.rollout.reference_model.weights_location, launch.rollout.reference_model.bytes_per_weight) == (
        "host",
        2,
    )


def test_the_config_alone_is_the_same_run(tmp_path: Path) -> None:
    launch = launch_of(tmp_path)
    assert read_launch(str(tmp_path / "examples" / "config.yaml")).settings == launch.settings


def test_micro_batches_and_sequence_ranks(tmp_path: Path) -> None:
    """Without dynamic batches they are whole samples; ranks of one sequence share the tokens."""
    launch = launch_of(tmp_path, "worker.actor.dynamic_batching=false")
    assert (launch.settings["batch"], launch.settings["seq"]) == (2, 3072)
    launch = launch_of(tmp_path, "worker.actor.ulysses_size=2")
    assert launch.settings["seq"] == 3072


def test_frozen_weights_beside_adapters_have_16_bits(tmp_path: Path) -> None:
    """Source: workers/fsdp_workers.py, `_build_model_optimizer`; the reference is the model without adapters."""
    launch = launch_of(tmp_path, "worker.actor.model.lora.rank=64")
    assert launch.settings["lora_rank"] == 64
    assert launch.frozen_model is None
    assert launch.rollout is not None
    assert launch.rollout.reference_model.weights_location == "none"
    launch = launch_of(tmp_path, "algorithm.disable_kl=True worker.actor.fsdp.torch_dtype=bf16")
    assert launch.settings["master_weights"] == "none"
    assert launch.rollout is not None
    assert launch.rollout.reference_model.weights_location == "none"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("worker.actor.optim.strategy=adamw_bf16", "worker.actor.optim.strategy (its states in bf16"),
        ("worker.actor.split_layers=2", "worker.actor.split_layers (no key that is known)"),
        ("worker.actor.ulysses_size=3", "worker.actor.ulysses_size: 3"),
        ("worker.actor.fsdp.torch_dtype=fp8", "worker.actor.fsdp.torch_dtype: 'fp8'"),
    ],
)
def test_messages_have_the_keys_of_easy_r1(tmp_path: Path, override: str, message: str) -> None:
    try:
        launch = launch_of(tmp_path, override)
        text = "; ".join(f"{name} ({reason})" for name, reason in launch.unknown_arguments.items())
    except InputError as error:
        text = str(error)
    assert message in text
    assert "actor_rollout_ref" not in text
