"""`llmcalc fit` without `--hardware`: the fewest of each accelerator, as `memory` counts them."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from llmcalc import load
from llmcalc.device_memory.cuda_runtime import CudaRuntime
from llmcalc.device_memory.estimate import memory
from llmcalc.device_memory.settings import Settings
from llmcalc.frameworks.ranks import Cluster, RankMemory
from llmcalc.parallel.layout_request import LayoutRequest
from llmcalc.sources.hardware import COMMON_HARDWARE, load_hardware
from llmcalc.studies.fit_options import hardware_options

SMALL = "qwen3-0.6b?num_hidden_layers=6"


def options(run: Any, *words: str, code: int = 0) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run("fit", *words, "--format", "json").document_with(code)["options"]
    return found


def layout_words(layout: dict[str, Any] | None) -> list[str]:
    if layout is None:
        return []
    sharded = ["--zero", "3"] if layout["zero"] == 3 else []
    sizes = [word for name in ("tp", "pp", "dp") if layout[name] > 1 for word in (f"--{name}", str(layout[name]))]
    return ["--devices", str(layout["world"]), *sizes, *sharded]


def with_users(words: tuple[str, ...], option: dict[str, Any]) -> list[str]:
    """The words of the run on one replica."""
    users = option["replica_users"]
    return [
        str(users) if users and before == "--users" else word for before, word in zip(("", *words), words, strict=False)
    ]


@pytest.mark.parametrize(
    "words",
    [
        (SMALL, "--users", "64", "--seq", "16k"),
        ("llama3.2-1b?num_hidden_layers=8", "--optimizer", "adamw", "--seq", "64"),
    ],
)
def test_each_is_what_memory_says_of_it(run: Any, words: tuple[str, ...]) -> None:
    found = options(run, *words)
    assert {option["hardware"] for option in found} == set(COMMON_HARDWARE)
    several = [option for option in found if option["devices"] > 1]
    assert several
    for option in (found[0], several[0], several[-1]):
        code, out, err = run(
            "memory", *with_users(words, option), *layout_words(option["layout"]), "--hardware", option["hardware"],
            "--format", "json",
        )  # fmt: skip
        assert code == (option["verdict"] == "no"), err
        (fit,) = json.loads(out)["fits"]
        assert (fit["device_bytes"], fit["verdict"]) == (option["device_bytes"], option["verdict"])
    if "--users" in words:  # fewer do not fit
        devices, hardware = several[0]["devices"] // 2, several[0]["hardware"]
        fewer = options(run, *words, "--devices", str(devices), "--hardware", hardware, code=1)
        assert all(other["verdict"] == "no" for other in fewer)


def test_replicas_share_the_users_where_they_fit(run: Any) -> None:
    """A small model for many users is replicated as often as it fits."""
    words = ("qwen3-0.6b?num_hidden_layers=1", "--hardware", "6GiB", "--seq", "32k", "--format", "json")
    found = run("fit", *words, "--users", "64").document_with(1)
    (option,) = found["options"]
    assert (option["devices"], option["layout"]["dp"], option["replica_users"]) == (2, 2, 32)
    change = "--devices 2 --dp 2 --users 32"
    assert (change, "fits") in {(each["option"], each["verdict"]) for each in found["changes"]}
    assert run("fit", *words, *change.split()).document["device_bytes"] == option["device_bytes"]


@pytest.mark.parametrize(("dtype", "first"), [("bf16", "rtx-4060-ti-16gb"), ("fp16", "t4")])
def test_accelerators_without_products_in_bfloat16_come_last(dtype: str, first: str) -> None:
    spec = load("qwen3-0.6b?num_hidden_layers=1").model
    run = memory(spec, Settings(phase="inference", seq=256, dtype=dtype))
    accelerators = [load_hardware(name) for name in ("t4", "rtx-4060-ti-16gb")]
    options = hardware_options(run, accelerators, LayoutRequest(), lambda hardware: run.cuda_runtime)
    assert options[0].fit.hardware.name == first


def test_ranks_of_a_layout_that_does_not_fit_are_not_replayed_beyond_the_fullest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The weights and cache of a stage fit in 12 GiB, and its activations do not: no other stage is replayed."""
    spec = load("qwen3-0.6b?num_hidden_layers=6&vocab_size=4096").model
    run = memory(spec, Settings(phase="inference", seq=1_030_000))
    replayed: Counter[int] = Counter()
    replay = Cluster._replay

    def watched(cluster: Cluster, rank: int, runtime: CudaRuntime) -> RankMemory:
        replayed[cluster.layout.world_size] += 1
        return replay(cluster, rank, runtime)

    monkeypatch.setattr(Cluster, "_replay", watched)
    accelerator = load_hardware("rtx-3060").model_copy(update={"driver_total": None})
    (option,) = hardware_options(run, [accelerator], LayoutRequest(pp=2), lambda hardware: run.cuda_runtime)
    assert (option.devices, option.fit.verdict) == (4, "fits")
    assert replayed == {2: 1, 4: 3}


def test_those_that_fit_come_first_and_sizes_that_are_given_hold(run: Any) -> None:
    found = options(run, "llama3-70b", "--tp", "4")
    verdicts = [option["verdict"] for option in found]
    assert verdicts == sorted(verdicts, key=("fits", "tight", "no").index)
    assert {option["layout"]["tp"] for option in found} == {4}


def test_exit_code_1_where_none_fits(run: Any) -> None:
    found = options(run, "deepseek-v3", "--devices", "1", code=1)
    assert {option["verdict"] for option in found} == {"no"}


def test_one_accelerator_proposes_more_of_it(run: Any) -> None:
    code, out, _ = run("fit", "llama3-70b", "--hardware", "h100", "--format", "json")
    document = json.loads(out)
    assert code == 1
    assert [(option["devices"], option["verdict"]) for option in document["options"]] == [(2, "fits")]
    assert "--devices 2 --tp 2" in run("fit", "llama3-70b", "--hardware", "h100")[1]


def test_a_narrower_format_on_fewer_accelerators_stands_before_more_accelerators(run: Any) -> None:
    """A 32B model in bfloat16 needs four cards of 24 GB, in 4 bits two; on two it is answered alike when asked."""
    words = ("fit", "qwen3-32b", "--hardware", "rtx-4090", "--users", "4", "--seq", "16k")
    document = json.loads(run(*words, "--format", "json").out)
    changes = [change for change in document["changes"] if change["verdict"] != "no"]
    assert [change["option"].split()[1] for change in changes[:3]] == ["2", "2", "4"]  # cheapest first
    assert changes[3]["option"].startswith("--quantize awq-int4-g128 --seq ")  # on one card, a part of the request
    assert len(changes) == 4
    assert "--quantize" not in changes[2]["option"]
    for change in changes[1:2]:
        layout = run(*words, *change["option"].split(), "--format", "json").document
        assert layout["verdict"] == change["verdict"]
        assert layout["device_bytes"] == change["device_bytes"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--devices", "3", "--tp", "2"), "--devices: no layout of this number is possible"),
        (("--framework", "megatron"), "--framework megatron: its layouts are planned for one kind of accelerator"),
        (("--global-batch", "8"), "--global-batch: only applies to one kind of accelerator; add --hardware"),
    ],
)
def test_what_it_does_not_answer(run: Any, words: tuple[str, ...], message: str) -> None:
    assert message in run("fit", SMALL, *words).error


def test_training_on_several_accelerators_recomputes_before_it_takes_more_of_them(run: Any) -> None:
    """One change of numbers fits on one accelerator; changes that keep the results are tried on several."""
    words = ("fit", "qwen3-8b", "--phase", "training", "--hardware", "rtx-4090", "--format", "json")
    options = [change["option"] for change in json.loads(run(*words).out)["changes"] if change["verdict"] != "no"]
    assert [option.startswith("--devices") for option in options] == [False, True, True]
    assert "--devices 16 " in options[1]
    assert "--recompute full" in options[1]
    assert options[2] == "--devices 64 --dp 64 --zero 3"


def test_no_more_computers_of_apple_are_joined_than_people_join(run: Any) -> None:
    """MLX joins up to four; llama.cpp divides layers among the accelerators of one computer."""
    words = (SMALL, "--users", "10k", "--seq", "16k")
    for format_words, most_computers in ((), 1), (("--quantize", "mlx-int4-g64"), 4):
        devices = {option["hardware"]: option["devices"] for option in options(run, *words, *format_words)}
        assert (devices["m3-ultra"], devices["m4-max"]) == (most_computers, most_computers)
        assert devices["h100-sxm"] > 8
    stated_options = options(run, *words, "--devices", "8", "--hardware", "m3-ultra")
    assert {option["devices"] for option in stated_options} == {8}


def test_a_laptop_has_one_accelerator_and_shorter_requests(run: Any) -> None:
    """All changes of 8B on a card of 6 GB were refused, though its tag of 4 bits runs there with shorter requests."""
    words = ("fit", "qwen3-8b", "--hardware", "rtx-3060-laptop", "--format", "json")
    changes = [change for change in json.loads(run(*words).out)["changes"] if change["verdict"] != "no"]
    (option,) = (change["option"] for change in changes)
    shorter_under_llama_cpp = run(*words, "--quantize", "q4_k_m").document_with(1)["largest"]["seq"]
    assert option == f"--quantize q4_k_m --seq {shorter_under_llama_cpp}"
    assert run("fit", "qwen3-8b", "--hardware", "rtx-3060-laptop", *option.split()).code == 0
    words = ("fit", "smollm2-360m", "--hardware", "rtx-4090", "--seq", "1M", "--users", "64")
    assert "it does not fit" in run(*words).out  # its 960 columns are no multiple of a scheme's groups
    stated = run("fit", SMALL, "--devices", "2", "--hardware", "rtx-3060-laptop").out
    assert "2 × GeForce RTX 3060 Laptop GPU" in " ".join(stated.split())


def test_a_gguf_files_weights_are_advised_with_the_cache_of_llama_cpp(run: Any) -> None:
    """The cache was advised in fp8, which llama.cpp lacks (`--cache-type-k`: f32, f16, bf16, q8_0, q4_0 …)."""
    words = ("fit", "qwen3-14b", "--hardware", "rtx-3060", "--format", "json")
    change = run(*words).document_with(1)["changes"][0]
    assert change["option"] == "--kv-dtype q8_0 --quantize q4_k_m"
    assert run(*words, *change["option"].split()).document["device_bytes"] == change["device_bytes"]


def test_a_layout_that_no_rank_counts_is_named_with_the_reason(run: Any) -> None:
    """720 columns of gpt-oss' experts on four ranks are no multiple of MXFP4's 32: vLLM pads them, torch does not."""
    words = ("fit", "gpt-oss-20b?num_hidden_layers=2", "--hardware", "h100", "--devices", "4")
    reason = "720 columns are not a multiple of group_size 32; expected a smaller --tp, another scheme (--quantize)"
    assert any("left out: tp 4: of a rank's weights in mxfp4, layers.0" in note for note in notes_of(run, *words))
    assert reason in run(*words, "--tp", "4").error


def notes_of(run: Any, *words: str) -> list[str]:
    return list(json.loads(run(*words, "--format", "json").out)["notes"])
