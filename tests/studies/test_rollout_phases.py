"""Phases of reinforcement learning whose engine shares the devices: hand arithmetic, by program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import llmcalc
from llmcalc.errors import InputError
from llmcalc.frameworks.launch.read_launch_file import read_launch

GIB = 2**30
TOTAL = 79.19
"""GiB that the driver offers on an H100."""

TRL = """
model_name_or_path: Qwen/Qwen2.5-0.5B
torch_dtype: bfloat16
bf16: true
use_vllm: true
max_prompt_length: 256
max_completion_length: 768
num_generations: 8
reward_funcs: [accuracy]
per_device_train_batch_size: 8
output_dir: out
"""

VERL = """
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \\
    data.max_prompt_length=512 data.max_response_length=1024 \\
    actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct actor_rollout_ref.actor.ppo_mini_batch_size=64 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.actor.use_kl_loss=True \\
    actor_rollout_ref.rollout.name=vllm trainer.n_gpus_per_node=4 trainer.nnodes=1 \\
"""

OPENRLHF = """
python3 -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path Qwen/Qwen2.5-0.5B --actor.num_gpus_per_node 4 \\
    --train.colocate_all --vllm.num_engines 4 --vllm.gpu_memory_utilization 0.5 --data.max_len 2048 --ds.zero_stage 3 \\
"""

UNSLOTH = """
from unsloth import FastLanguageModel
model, tokenizer = FastLanguageModel.from_pretrained(
    "Qwen/Qwen2.5-0.5B", max_seq_length=512, load_in_4bit=False, fast_inference=True, gpu_memory_utilization=0.6)
model = FastLanguageModel.get_peft_model(model, r=8)
options = SFTConfig(per_device_train_batch_size=2)
options = GRPOConfig(per_device_train_batch_size=8, max_prompt_length=256, max_completion_length=256)
"""

PARAMETERS = 494_032_768
"""Parameters of Qwen2.5 0.5B, its head tied."""

VOCABULARY = 151_936


def phases_of(tmp_path: Path, name: str, text: str, **options: Any) -> dict[str, dict[str, int]]:
    """Phase → term → bytes."""
    file = tmp_path / name
    file.write_text(text)
    document = llmcalc.memory(launch=str(file), hardware=["h100"], **options).report().data
    assert all(phase["bytes"] == sum(term["bytes"] for term in phase["terms"]) for phase in document["phases"])
    return {phase["name"]: {term["name"]: term["bytes"] for term in phase["terms"]} for phase in document["phases"]}


def engine_bytes(phase: dict[str, int], *left_out: str) -> int:
    return sum(size for name, size in phase.items() if name.startswith("engine_") and name not in left_out)


def test_trl_colocates_vllm_by_default_and_keeps_it(tmp_path: Path) -> None:
    phases = phases_of(tmp_path, "grpo.yaml", TRL)
    assert list(phases) == ["rollout", "weight_transfer", "log_probabilities", "update"]
    rollout, passes = phases["rollout"], phases["log_probabilities"]
    budget = engine_bytes(rollout)
    # 0.3 of the device, CUDA graphs within it (the newest rules)
    assert budget == pytest.approx(0.3 * TOTAL * GIB, rel=1e-3)
    # weights and both moments in bf16
    assert rollout["weights"] == pytest.approx(2 * PARAMETERS, rel=1e-3)
    assert rollout["optimizer"] == pytest.approx(4 * PARAMETERS, rel=1e-3)
    # 8 sequences, 768 completion tokens and the one before: logits in 16 bits and in float32
    assert passes["logits"] == 8 * 769 * VOCABULARY * 6
    assert passes["engine_kv_cache"] == phases["update"]["engine_kv_cache"] == rollout["engine_kv_cache"]
    assert "reference" not in passes


def test_trl_sleeps_and_has_a_reference_model(tmp_path: Path) -> None:
    phases = phases_of(tmp_path, "grpo.yaml", TRL + "vllm_enable_sleep_mode: true\nbeta: 0.04\n")
    assert "engine_kv_cache" not in phases["update"]
    assert "engine_weights" not in phases["log_probabilities"]
    assert phases["weight_transfer"]["engine_weights"] == phases["rollout"]["engine_weights"]
    assert phases["update"]["reference"] == 2 * PARAMETERS  # bf16, on one device
    adapters = TRL + "beta: 0.04\nuse_peft: true\nlora_r: 8\n"
    assert "reference" not in phases_of(tmp_path, "adapters.yaml", adapters)["update"]


def test_trl_with_a_server_has_no_engine(tmp_path: Path) -> None:
    assert list(phases_of(tmp_path, "grpo.yaml", TRL + "vllm_mode: server\n")) == ["log_probabilities", "update"]


def test_verl_divides_states_and_frees_the_cache(tmp_path: Path) -> None:
    phases = phases_of(tmp_path, "verl.sh", VERL)
    rollout, passes = phases["rollout"], phases["log_probabilities"]
    assert rollout["weights"] == pytest.approx(4 * PARAMETERS / 4, rel=1e-2)  # fp32 over four ranks
    assert rollout["optimizer"] == pytest.approx(8 * PARAMETERS / 4, rel=1e-2)
    assert rollout["reference"] == PARAMETERS  # fp32 over four ranks
    assert engine_bytes(rollout) == pytest.approx(0.5 * TOTAL * GIB, rel=1e-3)
    assert passes["logits"] == 4 * 1536 * VOCABULARY * 2  # bf16, its entropy compiled
    assert phases["weight_transfer"]["weights_sent"] == 2048 << 20
    assert engine_bytes(phases["update"]) == rollout["engine_non_torch"] + rollout["engine_cuda_graphs"]


def test_what_verl_offloads_is_absent_between_updates(tmp_path: Path) -> None:
    actor, reference = (f"actor_rollout_ref.{model}.fsdp_config" for model in ("actor", "ref"))
    words = f" {actor}.param_offload=True {actor}.optimizer_offload=True {reference}.param_offload=True"
    whole, offloaded = (
        phases_of(tmp_path, "verl.sh", text)
        for text in (VERL, VERL + words + " actor_rollout_ref.rollout.enforce_eager=True")
    )
    assert {"weights", "optimizer", "reference"} <= set(whole["rollout"])
    assert not {"weights", "optimizer", "reference", "engine_cuda_graphs"} & set(offloaded["rollout"])
    assert offloaded["log_probabilities"]["weights"] == whole["log_probabilities"]["weights"]
    assert "optimizer" not in offloaded["log_probabilities"]
    assert offloaded["update"]["optimizer"] == whole["update"]["optimizer"]


def test_flags_of_the_engine_in_verl(tmp_path: Path) -> None:
    word = " actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_dtype=fp8 actor_rollout_ref.rollout.top_p=1"
    file = tmp_path / "verl.sh"
    file.write_text(VERL + word)
    launched = llmcalc.memory(launch=str(file), hardware=["h100"]).report().data["launch"]
    assert launched["rollout"]["flags"]["kv_cache_dtype"] == "fp8"
    assert "actor_rollout_ref.rollout.top_p" in launched["ignored"]
    assert not any("kv_cache_dtype" in key for key in launched["ignored"])
    for typed, message in (
        ("engine_kwargs.vllm.kv_cache_dtyp=fp8", "the rollout's vLLM: --kv-cache-dtyp: vLLM has no such flag"),
        ("expert_parallel_size=4", "expert_parallel_size .the engine's rollouts are modelled"),
        ("gpu_memory_utilization=nan", "gpu_memory_utilization: 'nan'; expected a share"),
    ):
        file.write_text(f"{VERL} actor_rollout_ref.rollout.{typed}")
        with pytest.raises(InputError, match=message):
            llmcalc.memory(launch=str(file), hardware=["h100"]).report()


def test_sglang_takes_its_share_of_what_the_training_leaves(tmp_path: Path) -> None:
    words = " actor_rollout_ref.rollout.name=sglang actor_rollout_ref.rollout.tensor_model_parallel_size=1"
    rollout = phases_of(tmp_path, "verl.sh", VERL + words)["rollout"]
    trained = sum(size for name, size in rollout.items() if not name.startswith("engine_"))
    taken = rollout["engine_weights"] + rollout["engine_kv_cache"]
    free = TOTAL * GIB - trained - rollout["engine_non_torch"]
    assert taken == pytest.approx(0.5 * free, rel=1e-3)


def test_the_critic_of_openrlhf_and_its_engine_without_sleep(tmp_path: Path) -> None:
    phases = phases_of(tmp_path, "ppo.sh", OPENRLHF)
    rollout = phases["rollout"]
    assert rollout["critic"] == rollout["weights"] + rollout["gradients"] + rollout["optimizer"]
    assert rollout["reference"] == 2 * PARAMETERS // 4
    assert phases["log_probabilities"]["logits"] == 2048 * VOCABULARY * 6
    assert engine_bytes(phases["update"]) == engine_bytes(rollout)
    asleep = phases_of(tmp_path, "ppo.sh", OPENRLHF + " --vllm.enable_sleep --ds.enable_sleep")
    assert "engine_kv_cache" not in asleep["update"]
    assert "critic" not in asleep["update"]
    assert "optimizer" not in asleep["rollout"]


def test_unsloth_trains_beside_the_weights_of_its_engine(tmp_path: Path) -> None:
    """The engine has 0.6 of the device with the weights, which are there once, and keeps its cache."""
    phases = phases_of(tmp_path, "grpo.py", UNSLOTH)
    assert list(phases) == ["rollout", "log_probabilities", "update"]
    rollout = phases["rollout"]
    assert rollout["weights"] > 2 * PARAMETERS
    assert rollout["weights"] + engine_bytes(rollout) == pytest.approx(0.6 * TOTAL * GIB, rel=1e-4)
    assert phases["update"]["engine_kv_cache"] == rollout["engine_kv_cache"]
    standby = phases_of(tmp_path, "grpo.py", 'os.environ["UNSLOTH_VLLM_STANDBY"] = "1"' + UNSLOTH)
    # a device of 40 GiB and more: 0.925 · 0.95 of it, whatever the file says, freed while the model is trained
    budget = standby["rollout"]["weights"] + engine_bytes(standby["rollout"])
    assert budget == pytest.approx(0.925 * 0.95 * TOTAL * GIB, rel=1e-4)
    assert engine_bytes(standby["update"]) == 0


def test_a_file_of_unsloth_that_trains_twice_is_counted_by_its_grpo(tmp_path: Path) -> None:
    file = tmp_path / "grpo.py"
    file.write_text(UNSLOTH.replace("fast_inference=True", "load_in_fp8=True"))
    notes = read_launch(file).notes
    assert any("trains with SFTConfig, GRPOConfig; the run of GRPOConfig is counted" in note for note in notes)
    assert any("load_in_fp8: frozen weights are counted in 16 bits, an upper bound" in note for note in notes)


def test_a_run_fits_over_all_its_phases(tmp_path: Path) -> None:
    file = tmp_path / "ppo.sh"
    file.write_text(OPENRLHF.replace("0.5 ", "0.95 "))
    answer = llmcalc.memory(launch=str(file), hardware=["h100"])
    assert not answer.ok
    assert answer.fits[0].needed_bytes == max(phase.bytes for phase in answer.phases)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TRL + "vllm_gpu_memory_utilization: 30\n", "vllm_gpu_memory_utilization: 30; expected a share"),
        (TRL + "vllm_tensor_parallel_size: 3\n", "the rollout's vLLM"),
    ],
)
def test_errors_name_the_argument(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "grpo.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        llmcalc.memory(launch=str(file), hardware=["h100"]).report()
