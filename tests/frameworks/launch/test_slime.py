"""Commands of slime: the actor's run under Megatron-Core, and the rollouts beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmcalc.errors import InputError
from llmcalc.frameworks.launch.read import launch_of, read_launch
from llmcalc.frameworks.launch.record import Launch

FILE = Path(__file__).parents[2] / "data" / "launch" / "slime_grpo.sh"


def changed(*replaced: tuple[str, str], world_size: int | None = None) -> Launch:
    """The run of the script with other texts."""
    text = FILE.read_text()
    for earlier, later in replaced:
        assert earlier in text
        text = text.replace(earlier, later)
    return launch_of(text, "slime.sh", world_size)


def test_the_actor_runs_micro_batches_of_tokens_of_the_hubs_model() -> None:
    """slime/utils/data.py: a micro-batch has `--max-tokens-per-gpu` tokens of each rank of a sequence."""
    launch = read_launch(FILE)
    assert (launch.program, launch.framework, launch.target) == ("slime", "megatron", "Qwen/Qwen2.5-0.5B")
    assert (launch.layout.tp, launch.layout.dp, launch.layout.zero, launch.layout.sequence_parallel) == (2, 4, 1, True)
    expected = {"batch": 1, "seq": 2048, "num_microbatches": 2, "grad_dtype": "fp32", "recompute": "full"}
    assert expected.items() <= launch.settings.items()
    divided = changed(("--context-parallel-size 1", "--context-parallel-size 2"))
    assert (divided.layout.cp, divided.settings["seq"]) == (2, 4096)
    assert changed(world_size=16).layout.dp == 8


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


def test_without_dynamic_batches_a_sample_has_its_longest_answer() -> None:
    launch = changed(("--use-dynamic-batch-size --max-tokens-per-gpu 2048", "--micro-batch-size 2"))
    assert (launch.settings["batch"], launch.settings["seq"], launch.settings["num_microbatches"]) == (2, 8192, 32)
    assert launch.counts_longest_samples


def test_adam_on_the_host_and_in_formats_of_its_own() -> None:
    words = "--optimizer adam --optimizer-cpu-offload --overlap-cpu-optimizer-d2h-h2d --use-precision-aware-optimizer"
    settings = changed(("--optimizer adam", words)).settings
    assert settings["optimizer_offload"]
    assert settings["precision_aware_optimizer"]


@pytest.mark.parametrize(
    ("earlier", "later", "message"),
    [
        ("--advantage-estimator grpo", "--advantage-estimator ppo", "its critic is not modelled"),
        ("--optimizer adam", "--optimizer adam --enable-mtp-training", "--enable_mtp_training"),
        ("--optimizer adam", "--optimizer muon", "'muon' is not modelled"),
        ("--max-tokens-per-gpu 2048", "", "--max-tokens-per-gpu: missing"),
        ("NUM_GPUS:-8", "NUM_GPUS:-7", "expected a multiple of tp · pp · cp = 2"),
        ("--balance-data", "--balance-data --zip-data", "zip_data"),
    ],
)
def test_what_is_not_modelled_is_named(earlier: str, later: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        changed((earlier, later))
