"""Commands of slime: the actor's run under Megatron-Core, and the rollouts beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import llmcalc
from llmcalc.errors import InputError
from llmcalc.frameworks.launch.launch_types import Launch
from llmcalc.frameworks.launch.read_launch_file import launch_from_text, read_launch

FILE = Path(__file__).parents[2] / "data" / "launch" / "slime_grpo.sh"


def changed(*replaced: tuple[str, str], world_size: int | None = None) -> Launch:
    """The run of the script with other texts."""
    text = FILE.read_text()
    for earlier, later in replaced:
        assert earlier in text
        text = text.replace(earlier, later)
    return launch_from_text(text, "slime.sh", world_size)


def test_the_actor_runs_micro_batches_of_tokens_of_the_hubs_model() -> None:
    """slime/utils/data.py: a micro-batch has `--max-tokens-per-gpu` tokens of each rank of a sequence."""
    launch = read_launch(FILE)
    assert (launch.program, launch.framework, launch.model_name) == ("slime", "megatron", "Qwen/Qwen2.5-0.5B")
    assert (launch.layout.tp, launch.layout.dp, launch.layout.zero, launch.layout.sequence_parallel) == (2, 4, 1, True)
    expected = {"batch": 1, "seq": 2048, "num_microbatches": 2, "grad_dtype": "fp32", "recompute": "full"}
    assert expected.items() <= launch.settings.items()
    divided = changed(("--context-parallel-size 1", "--context-parallel-size 2"))
    assert (divided.layout.cp, divided.settings["seq"]) == (2, 4096)
    typed = changed(world_size=16)
    assert typed.layout.dp == 8
    assert "--devices 16 replaces the file's actor_num_nodes · actor_num_gpus_per_node = 1 · 8" in typed.notes
    assert changed(("python3 train.py", "srun -n 4 python3 train.py")).layout.world_size == 8


def test_the_actors_states_are_on_the_host_during_rollouts_on_the_same_devices() -> None:
    rollout = read_launch(FILE).rollout
    assert rollout is not None
    assert (rollout.engine, rollout.flags) == ("sglang", {"tp_size": 2, "mem_fraction_static": 0.7})
    assert rollout.offloaded_states == {"weights", "optimizer", "gradients"}
    apart = changed((" --colocate", " --rollout-num-gpus 8")).rollout
    assert apart is not None
    assert (apart.engine, apart.offloaded_states) == ("", frozenset())
    supervised = changed(("--advantage-estimator grpo", "--loss-type sft_loss --debug-train-only"))
    assert supervised.rollout is None


def test_a_checkpoint_in_a_folder_is_known_by_its_name_and_format(tmp_path: Path) -> None:
    """Accelerators that nobody names and that run no weights in fp8, such as a T4, are left out."""
    text = FILE.read_text().replace("Qwen/Qwen2.5-0.5B", "${FOLDER}/Qwen3-0.6B-FP8")
    assert "FOLDER" in text
    (tmp_path / "run.sh").write_text(text)
    answer = llmcalc.memory(launch=tmp_path / "run.sh")
    assert answer.preset.name == "qwen3-0.6b"
    assert answer.preset.quantization_config is not None
    names = {fit.hardware.name for fit in answer.fits}
    assert "h100-sxm" in names
    assert "t4" not in names
    with pytest.raises(InputError, match="the rollout's SGLang: --hardware t4: "):
        llmcalc.memory(launch=tmp_path / "run.sh", hardware="t4")


def test_without_dynamic_batches_a_sample_has_its_longest_answer() -> None:
    launch = changed(("--use-dynamic-batch-size --max-tokens-per-gpu 2048", "--micro-batch-size 2"))
    assert (launch.settings["batch"], launch.settings["seq"], launch.settings["num_microbatches"]) == (2, 8192, 32)
    assert launch.counts_longest_samples


def test_adam_on_the_host_and_in_formats_of_its_own() -> None:
    words = "--optimizer adam --optimizer-cpu-offload --overlap-cpu-optimizer-d2h-h2d --use-precision-aware-optimizer"
    settings = changed(("--optimizer adam", words)).settings
    assert settings["optimizer_offload"]
    assert settings["precision_aware_optimizer"]


def test_gradients_are_summed_in_fp32_unless_they_are_reduced_in_bf16() -> None:
    """megatron/training/arguments.py: with bf16 weights, sums in fp32 are the default."""
    assert changed(("--accumulate-allreduce-grads-in-fp32", "")).settings["grad_dtype"] == "fp32"
    reduced = changed(("--accumulate-allreduce-grads-in-fp32", "--grad-reduce-in-bf16")).settings
    assert reduced["grad_dtype"] == "bf16"
    assert (
        changed(("--attention-backend flash", "--attention-backend unfused")).settings["attn_implementation"] == "eager"
    )


def test_states_of_adam_are_named_by_slimes_argument() -> None:
    adam = "--optimizer adam --use-precision-aware-optimizer --exp-avg-dtype fp8 --exp-avg-sq-dtype fp8"
    error = changed(("--optimizer adam", adam)).error_in_file_terms(InputError("--optimizer-dtype fp8: is not"))
    assert str(error) == "slime.sh: --exp-avg-dtype fp8 (--optimizer-dtype fp8): is not"


def test_losses_in_chunks_are_an_upper_bound() -> None:
    notes = changed(("--balance-data", "--log-probs-chunk-size 1024 --recompute-loss-function")).notes
    assert sum("is counted without, an upper bound" in note for note in notes) == 2


def test_the_engine_has_the_flags_of_sglangs_server() -> None:
    """slime/backends/sglang_utils/arguments.py: ranks of an engine are tp · pp."""
    words = (
        "--rollout-num-gpus-per-engine 8 --sglang-ep-size 8 --sglang-dp-size 4 --sglang-enable-dp-attention "
        "--sglang-kv-cache-dtype fp8_e4m3 --sglang-quantization fp8 --sglang-deepep-mode auto "
        "--sglang-server-concurrency 64 --sglang-cuda-graph-bs 1 2 4 $(seq 8 8 64) --sglang-pp-size 2"
    )
    launch = changed(("--rollout-num-gpus-per-engine 2", words))
    assert launch.rollout is not None
    assert launch.rollout.flags == {
        "tp_size": 4,
        "pp_size": 2,
        "ep_size": 8,
        "dp_size": 4,
        "enable_dp_attention": True,
        "kv_cache_dtype": "fp8_e4m3",
        "quantization": "fp8",
        "mem_fraction_static": 0.7,
    }
    assert "sglang_server_concurrency" in launch.ignored_arguments
    assert any(note.startswith("--sglang-cuda-graph-bs: known when the script runs") for note in launch.notes)


def test_an_error_of_the_engine_names_slimes_arguments(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SGLang cannot divide the 14 heads of the model over 3 ranks."""
    monkeypatch.chdir(tmp_path)
    script = FILE.read_text().replace("--rollout-num-gpus-per-engine 2", "--rollout-num-gpus-per-engine 3")
    Path("slime.sh").write_text(script)
    error = run("memory", "--launch", "slime.sh", "--hardware", "h100").error
    assert "--rollout-num-gpus-per-engine" in error
    assert "--tp-size" not in error


@pytest.mark.parametrize(
    ("earlier", "later", "message"),
    [
        ("--advantage-estimator grpo", "--advantage-estimator ppo", "its critic is not modelled"),
        ("--optimizer adam", "--optimizer adam --enable-mtp-training", "--enable_mtp_training"),
        ("--optimizer adam", "--optimizer muon", "'muon' is not modelled"),
        ("--max-tokens-per-gpu 2048", "", "--max-tokens-per-gpu: missing"),
        ("NUM_GPUS:-8", "NUM_GPUS:-7", "expected a multiple of tp · pp · cp = 2"),
        ("--balance-data", "--balance-data --zip-data", "zip_data"),
        ("--balance-data", "--balance-data --lr-invented 1", "lr_invented"),
        ("--balance-data", "--balance-data --offloading-of-it", "offloading_of_it"),
        ("--balance-data", "--balance-data --speculation 2", "speculation"),
        ("--balance-data", "--balance-data --advantages 2", "advantages"),
        ("--optimizer adam", "--optimizer adam --moe-layer-recompute", "moe_layer_recompute"),
        ("--optimizer adam", "--optimizer adam --train-backend fsdp", "'fsdp' is not modelled"),
        ("--optimizer adam", "--optimizer adam --fp16", "--fp16"),
        ("--optimizer adam", "--optimizer adam --use-critic", "--use_critic"),
        ("--optimizer adam", "--optimizer adam --use-stateless-adam", "--use_stateless_adam"),
        ("--hidden-dropout 0.0", "--hidden-dropout 0.1", "--hidden_dropout"),
        ("--attention-backend flash", "--attention-backend none-such", "--attention-backend: 'none-such'"),
        (
            "--optimizer adam",
            "--optimizer adam --use-precision-aware-optimizer --exp-avg-sq-dtype bf16",
            "--exp-avg-sq-dtype",
        ),
        ("--balance-data", "--balance-data --sglang-invented 1", "--sglang-invented"),
        ("--balance-data", "--balance-data --sglang-kv-cache-dtype int2", "--sglang-kv-cache-dtype 'int2': is not"),
        ("--balance-data", "--balance-data --sglang-pp-size 3", "expected a multiple of --sglang-pp-size 3"),
    ],
)
def test_what_is_not_modelled_is_named(earlier: str, later: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        changed((earlier, later))
