"""Configs of NeMo-RL: what they build on, the policy's run, and the rollouts beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from llmcalc.errors import InputError
from llmcalc.frameworks.launch.launch_types import Launch
from llmcalc.frameworks.launch.read_launch_file import launch_from_text, read_launch
from llmcalc.parallel.layout import Layout
from tests.samples import in_one_test

FILES = Path(__file__).parents[2] / "data" / "launch"


def read(base: str, policy: dict[str, Any], devices: int | None = None, **tables: Any) -> Launch:
    """The run of a recipe on one of NeMo-RL's base configs."""
    config = {"defaults": f"../../{base}", "policy": policy, "cluster": {"gpus_per_node": 8}} | tables
    return launch_from_text(yaml.safe_dump(config), "recipe.yaml", devices, launch_folder=FILES)


def test_a_recipe_has_the_values_of_the_config_that_it_builds_on() -> None:
    """grpo_math_1B.yaml packs sequences: 256 tokens · micro-batches of 2 are one sequence of 512."""
    launch = read_launch(FILES / "nemo_rl_grpo.yaml")
    assert (launch.program, launch.framework, launch.model_name) == ("NeMo-RL", "fsdp2", "Qwen/Qwen2.5-0.5B")
    assert launch.layout == Layout(tp=2, dp=4, zero=3)
    assert (launch.settings["batch"], launch.settings["seq"]) == (1, 512)
    assert (launch.settings["dtype"], launch.settings["master_weights"]) == ("bf16", "fp32")
    assert (launch.settings["recompute"], launch.settings["optimizer_impl"]) == ("full", "foreach")
    rollout = launch.rollout
    assert rollout is not None
    assert rollout.flags["gpu_memory_utilization"] == 0.6
    assert rollout.flags["max_model_len"] == 256
    assert rollout.offloaded_states == {"weights", "gradients", "optimizer"}
    assert any("grpo_math_1B.yaml is not here" in note for note in launch.notes)


def test_a_config_beside_the_recipe_comes_first(tmp_path: Path) -> None:
    """A base names its own base from its own folder."""
    (tmp_path / "bases").mkdir()
    (tmp_path / "bases" / "first.yaml").write_text("defaults: second.yaml\npolicy: {train_micro_batch_size: 3}\n")
    second = "sft: {}\npolicy: {max_total_sequence_length: 64, model_name: gpt2}\ncluster: {num_nodes: 1}\n"
    (tmp_path / "bases" / "second.yaml").write_text(second)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("defaults: bases/first.yaml\npolicy: {train_global_batch_size: 48}\n")
    launch = read_launch(recipe)
    batch = {name: launch.settings[name] for name in ("batch", "seq", "num_microbatches")}
    assert batch == {"batch": 3, "seq": 64, "num_microbatches": 2}
    assert launch.rollout is None


def test_one_device_runs_autocast_without_fsdp() -> None:
    launch = read("sft.yaml", {}, cluster={"gpus_per_node": 1})
    assert (launch.framework, launch.framework_settings) == ("torch", None)
    assert launch.settings["precision"] == "autocast"
    assert launch.settings["optimizer_impl"] == "loop"


def test_a_policy_of_megatron_core() -> None:
    sizes = {"pipeline_model_parallel_size": 2, "tensor_model_parallel_size": 2, "activation_checkpointing": True}
    launch = read("grpo_math_8B_megatron.yaml", {"megatron_cfg": sizes})
    assert (launch.framework, launch.layout.tp, launch.layout.pp, launch.layout.dp) == ("megatron", 2, 2, 2)
    assert (launch.settings["grad_dtype"], launch.settings["recompute"]) == ("bf16", "full")
    assert launch.settings["precision_aware_optimizer"] is True


def test_keys_and_products_of_the_base_configs_of_2026_08() -> None:
    """NeMo-RL 7ea279a, examples/configs/grpo_math_1B.yaml and examples/nemo_gym."""
    megatron = {"bias_activation_fusion": False, "moe_flex_dispatcher_backend": "hybridep"}
    batch = "${mul:${grpo.num_prompts_per_step}, ${grpo.num_generations_per_prompt}}"
    policy = {"megatron_cfg": megatron, "sequence_packing": {"enabled": False}}
    sizes = {"num_prompts_per_step": 16, "num_generations_per_prompt": 4}
    of_product, of_number = (
        read("grpo_math_1B.yaml", {**policy, "train_global_batch_size": sequences}, 8, grpo=sizes).settings
        for sequences in (batch, 64)
    )
    assert of_product == of_number
    assert of_product["num_microbatches"] == 2  # of 4 sequences


def test_stages_of_other_lengths_follow_from_the_models_layers() -> None:
    sizes: dict[str, Any] = {"pipeline_model_parallel_size": 4, "num_layers_in_first_pipeline_stage": 7}
    optimizer = {"optimizer_cpu_offload": True, "optimizer_offload_fraction": 1.0}
    sizes |= {"num_layers_in_last_pipeline_stage": 5, "optimizer": optimizer}
    launch = read("grpo_math_8B_megatron.yaml", {"megatron_cfg": sizes})
    assert launch.settings["optimizer_offload"] is True
    assert launch.layout.pp_layout is None
    assert launch.with_stage_sizes(32).layout.pp_layout == (7, 10, 10, 5)
    with pytest.raises(InputError, match="layers of the first and of the last stage: 21 layers are left"):
        launch.with_stage_sizes(33)


def test_rollouts_in_8_bits() -> None:
    table = {"precision": "fp8", "kv_cache_dtype": "fp8"}
    rollout = read("grpo_math_8B_megatron.yaml", {"generation": {"vllm_cfg": table}}).rollout
    assert rollout is not None
    assert (rollout.flags["quantization"], rollout.flags["kv_cache_dtype"]) == ("fp8", "fp8")


def test_devices_of_separate_rollouts_do_not_train() -> None:
    colocated = {"enabled": False, "resources": {"gpus_per_node": 8, "num_nodes": 1}}
    policy = {"generation": {"colocated": colocated}}
    launch = read("grpo_math_8B.yaml", policy, cluster={"gpus_per_node": 8, "num_nodes": 2})
    assert launch.layout.world_size == 8
    assert launch.rollout is not None
    assert (launch.rollout.engine, launch.rollout.offloaded_states) == ("", frozenset())


def test_typed_devices_replace_those_of_the_file() -> None:
    launch = read("sft.yaml", {}, 16)
    assert launch.layout.world_size == 16
    assert any("--devices 16 replaces the file's cluster.num_nodes" in note for note in launch.notes)


def test_ranks_of_experts_under_dtensor_divide_the_replicas() -> None:
    launch = read("sft.yaml", {"dtensor_cfg": {"expert_parallel_size": 4}}, 8)
    assert (launch.layout.dp, launch.layout.ep, launch.layout.expert_shard_count) == (8, 4, 2)


def test_ranks_of_experts_of_the_engine_are_those_of_its_tensor_parallelism() -> None:
    def policy(ranks: int) -> dict[str, Any]:
        return {"generation": {"vllm_cfg": {"tensor_parallel_size": 4, "expert_parallel_size": ranks}}}

    rollout = read("grpo_math_8B.yaml", policy(4)).rollout
    assert rollout is not None
    assert rollout.flags["enable_expert_parallel"] is True
    with pytest.raises(InputError, match="modelled equal to tensor_parallel_size"):
        read("grpo_math_8B.yaml", policy(8))


def test_dpo_counts_two_sequences_a_pair() -> None:
    assert read("dpo.yaml", {}).settings["batch"] == 4


@in_one_test
@pytest.mark.parametrize(
    ("policy", "refusal"),
    [
        (
            {"dtensor_cfg": {"expert_parallel_size": 8, "tensor_parallel_size": 2}},
            "dtensor_cfg.expert_parallel_size: 8; expected a divisor of the 4 ranks of data and context",
        ),
        ({"optimizer": {"name": "a.FusedAdam"}}, "policy.optimizer.name ('a.FusedAdam' is not modelled"),
        ({"quant_cfg": "NVFP4"}, "policy.quant_cfg (no key that is known)"),
        ({"hf_config_overrides": {"num_hidden_layers": 2}}, "policy.hf_config_overrides.num_hidden_layers"),
        ({"dtensor_cfg": {"tensor_parallel_size": 3}}, "8 devices; expected a multiple of tp"),
    ],
)
def test_values_that_are_refused(policy: dict[str, Any], refusal: str) -> None:
    with pytest.raises(InputError) as stop:
        read("sft.yaml", policy)
    assert refusal in str(stop.value)


def test_other_trainings_are_refused_by_their_table() -> None:
    with pytest.raises(InputError, match="ppo: the value model of PPO is not modelled; expected a config of grpo"):
        read("sft.yaml", {}, ppo={"max_num_epochs": 1})


def test_a_student_is_trained_without_its_teacher_on_the_device() -> None:
    """distillation.py: `teacher_policy.offload_after_refit` before `student_policy.train`."""
    launch = read(
        "grpo_math_1B.yaml", {"model_name": "Qwen/Qwen2.5-0.5B"}, grpo=None, distillation={"topk_logits_k": 64}
    )
    grpo = read("grpo_math_1B.yaml", {"model_name": "Qwen/Qwen2.5-0.5B"})
    assert (launch.settings, launch.layout) == (grpo.settings, grpo.layout)
    assert (launch.frozen_model, launch.rollout) == (None, grpo.rollout)
    assert any("the teacher, whose weights are on the host" in note for note in launch.notes)


def test_relative_references_name_a_key_of_an_outer_table() -> None:
    """OmegaConf: one dot is the table of the key, two are the table around it."""
    packing = {"enabled": True, "train_mb_tokens": "${mul:${..max_total_sequence_length}, ${..train_micro_batch_size}}"}
    policy = {"max_total_sequence_length": 128, "train_micro_batch_size": 3, "sequence_packing": packing}
    launch = read("grpo_math_1B.yaml", policy)
    assert (launch.settings["batch"], launch.settings["seq"]) == (1, 384)
