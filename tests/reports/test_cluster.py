"""`llmcalc memory` on many devices: the document, ranks, what they send, and launch files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmcalc.device_memory.cuda_runtime import CudaRuntime
from llmcalc.frameworks.ranks import Cluster, RankMemory

SMALL = "qwen3-0.6b?num_hidden_layers=4"
LAUNCHES = Path(__file__).parent.parent / "data" / "launches"


def asked(run: Any, *words: str) -> Any:
    return run("memory", *words, "--format", "json").document


@pytest.mark.parametrize("framework", ["torch", "megatron"])
def test_what_is_allocated_and_what_is_needed_name_their_ranks(run: Any, framework: str) -> None:
    words = (SMALL, "--phase", "training", "--seq", "64", "--tp", "2", "--pp", "2", "--devices", "8")
    found = asked(run, *words, "--num-microbatches", "4", "--framework", framework, "--hardware", "h100")
    memory, layout = found["memory"], found["layout"]
    assert (layout["world"], layout["dp"]) == (8, 2)
    assert found["framework"]["name"] == framework
    ranks = {one["rank"]: one for one in memory["by_rank"]}
    assert {one["stage"] for one in memory["by_rank"]} == {0, 1}
    assert 7 in ranks
    for key, name, names in (
        ("device_rank", "device_bytes", ("reserved_bytes",)),
        ("peak_rank", "peak_bytes", ("after_step_bytes", "by_kind")),
    ):
        assert ranks[memory[key]][name] == max(one[name] for one in memory["by_rank"]) == memory[name]
        assert all(ranks[memory[key]][other] == memory[other] for other in names)
    assert all(sum(one["by_kind"].values()) == one["peak_bytes"] for one in memory["by_rank"])
    assert memory["reserved_bytes"] == memory["reserved_band"][0]
    assert found["fits"][0]["device_bytes"] == memory["device_bytes"]
    assert {one["group"] for one in found["communication"]} >= {"tp", "pp", "dp"}
    assert all(one["wire_bytes"] > 0 and one["count"] > 0 for one in found["communication"])


def test_a_rank_that_allocates_most_and_needs_less_is_told(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two ranks the second allocates a GiB more, and has 2 GiB less of free blocks."""
    on = Cluster.memory_of_ranks

    def uneven(cluster: Cluster, runtime: CudaRuntime) -> tuple[RankMemory, ...]:
        first, *_ = on(cluster, runtime)
        most = replace(
            first.device,
            peak_bytes=first.device.peak_bytes + 2**30,
            by_kind={**first.device.by_kind, "activations": first.device.by_kind["activations"] + 2**30},
            reserved_bytes=first.device.reserved_bytes - 2**30,
            device_bytes=first.device.device_bytes - 2**30,
        )
        return first, RankMemory(1, 0, most)

    monkeypatch.setattr(Cluster, "memory_of_ranks", uneven)
    words = (SMALL, "--phase", "training", "--seq", "64", "--tp", "2", "--hardware", "h100")
    memory = asked(run, *words)["memory"]
    assert (memory["peak_rank"], memory["device_rank"]) == (1, 0)
    first, second = memory["by_rank"]
    assert (memory["peak_bytes"], memory["device_bytes"]) == (second["peak_bytes"], first["device_bytes"])
    assert sum(memory["by_kind"].values()) == memory["peak_bytes"]
    assert sum(term["bytes"] for term in memory["terms"]) == memory["device_bytes"]
    code, out, err = run("memory", *words, "--notes")
    assert (code, "rank 1 allocates the most" in " ".join((out + err).split())) == (0, True)


def test_a_launch_file_says_model_and_layout(run: Any) -> None:
    file = str(LAUNCHES / "gpt_tp2_pp2.yaml")
    found = asked(run, "--launch", file, "--devices", "8", "--hardware", "h100")
    assert found["launch"]["file"] == file
    assert (found["layout"]["tp"], found["layout"]["pp"], found["layout"]["world"]) == (2, 2, 8)
    assert found["memory"]["reserved_band"] is None  # the environment says the allocator's setting
    assert found["memory"]["by_rank"][-1]["rank"] == 7


def test_options_say_what_a_file_without_a_model_does_not(run: Any) -> None:
    file = str(LAUNCHES / "deepspeed_zero3_auto.json")
    words = (SMALL, "--launch", file, "--devices", "2")
    short, long = (asked(run, *words, "--seq", seq, "--recompute", "full") for seq in ("32", "64"))
    assert short["memory"]["peak_bytes"] < long["memory"]["peak_bytes"]
    other = asked(run, *words, "--seq", "64", "--zero", "2")
    assert other["layout"]["zero"] == 2
    assert other["launch"]["overridden"] == {"seq": {"file": None, "option": 64}, "zero": {"file": 3, "option": 2}}


def test_an_option_beside_a_file_replaces_its_value_and_the_heading_says_so(run: Any) -> None:
    words = ("--launch", str(LAUNCHES / "gpt_tp2_pp2.yaml"), "--devices", "8", "--tp", "4", "--recompute", "full")
    found = asked(run, *words)
    assert (found["layout"]["tp"], found["layout"]["dp"]) == (4, 1)
    assert found["launch"]["program"] == "Megatron-LM"
    assert found["launch"]["overridden"]["tp"] == {"file": 2, "option": 4}
    _, out, _ = run("memory", *words)
    assert "beside the file --recompute full, --tp 4 in the place of 2" in " ".join(out.split())


def test_ranks_whose_experts_get_more_rows_than_others(run: Any) -> None:
    """A note says that rows are taken to be even, and which option asks for more; who asks is not told so."""
    mixture = "olmoe-1b-7b?num_hidden_layers=2"
    words = (mixture, "--phase", "training", "--seq", "256", "--ep", "4", "--dp", "4", "--framework", "megatron")
    even, more = (asked(run, *words, "--hardware", "h100", *moe) for moe in ((), ("--moe", "capacity:1.5")))
    assert [note for note in even["notes"] if "--moe capacity:1.5" in note]
    assert not [note for note in more["notes"] if "even share" in note]
    assert more["memory"]["by_kind"]["activations"] > even["memory"]["by_kind"]["activations"]


def test_megatrons_own_kernels_are_named(run: Any) -> None:
    words = (SMALL, "--phase", "training", "--seq", "64", "--framework", "megatron", "--pp", "2", "--hardware", "h100")
    document = asked(run, *words)
    assert document["workload"]["grad_dtype"] == "float32"
    kernels = [document["execution"][name] for name in ("norm", "cross_entropy", "optimizer_impl")]
    assert kernels == ["fused", "eager", "fused"]  # --cross-entropy-loss-fusion is off by default
    assert "kernels and buffers of Megatron-Core, eager cross-entropy (--cross-entropy);" in document["notes"][0]
    fused = asked(run, *words, "--cross-entropy", "fused", "--grad-dtype", "bf16")
    assert (fused["execution"]["cross_entropy"], fused["execution"]["logits_dtype"]) == ("fused", "bfloat16")
    assert fused["workload"]["grad_dtype"] == "bfloat16"


def test_a_table_names_the_rank_the_layout_and_what_is_sent(run: Any) -> None:
    words = ("--phase", "training", "--seq", "64", "--pp", "2", "--num-microbatches", "2", "--hardware", "h100")
    _, out, _ = run("memory", SMALL, *words, "--notes")
    for text in ("required by rank", ": pp 2", "By rank", "0–1", "2–3", "Sent by rank", "send"):
        assert text in " ".join(out.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--launch", str(LAUNCHES / "gpt_tp2_pp2.yaml"), "--tp", "3"), "expected one of 1, 2, 4, 8"),
        (
            ("--launch", str(LAUNCHES / "gpt_tp2_pp2.yaml"), "--recompute", "every:2"),
            "expected one of none, full, attention or modules:A,B",
        ),
        (
            ("--launch", str(LAUNCHES / "gpt_tp2_pp2.yaml"), "--kv-dtype", "fp8"),
            "runs Megatron-LM, where it is no option",
        ),
        (
            (SMALL, "--launch", str(LAUNCHES / "deepspeed_zero3_auto.json"), "--precision", "bf16"),
            "--precision bf16: DeepSpeed's optimizer updates fp32 copies",
        ),
        (
            (SMALL, "--launch", str(LAUNCHES / "deepspeed_zero3_auto.json"), "--framework", "fsdp2"),
            "runs DeepSpeed, whose settings no other framework has",
        ),
        (("gpt2", "--launch", str(LAUNCHES / "gpt_tp2_pp2.yaml")), "remove TARGET"),
        (("--launch", str(LAUNCHES / "gpt_tp2_pp2.yaml"), "--phase", "decode"), "starts training"),
        (("--launch", str(LAUNCHES / "gpt_tp2_pp2.yaml"), "--set", "vocab_size=5"), "--set: "),
        (("--launch", str(LAUNCHES / "gpt_tp2_pp2.yaml"), "--with-mtp"), "--with-mtp: "),
        (("rwkv-4-7b", "--phase", "training", "--fsdp", "2", "--cp", "2"), "--cp 2: torch exchanges keys and values"),
        (("--launch", str(LAUNCHES / "deepspeed_zero3_auto.json")), "missing argument TARGET"),
        (("--launch", str(LAUNCHES / "missing.yaml")), "No such file"),
        ((), "missing argument TARGET"),
    ],
)
def test_files_and_options_that_contradict_each_other(run: Any, words: tuple[str, ...], message: str) -> None:
    assert message in run("memory", *words).error


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("qwen3-0.6b", "the most replicas that fit on GeForce RTX 3060 12 GB"),
        ("llama3-70b", "none fits on GeForce RTX 3060 12 GB, this one requires least"),
    ],
)
def test_a_chosen_layout_says_whether_it_fits(run: Any, model: str, words: str) -> None:
    _, out, _ = run("memory", model, "--devices", "2", "--hardware", "rtx-3060", "--notes", columns=120)
    assert f"layout: {words}; --tp, --pp divide" in out


def test_replicas_of_a_whole_model_that_do_not_fit_say_what_divides_it(run: Any) -> None:
    words = ("memory", SMALL, "--phase", "training", "--seq", "64", "--hardware", "2GiB", "--devices", "4")
    note = (
        "each device holds the whole model: {}; with the same options llmcalc plan lists the layouts that fit, "
        "llmcalc fit the fewest devices"
    )
    assert note.format("--fsdp 4 shards it") in " ".join(run(*words)[1].split())
    in_megatron = " ".join(run(*words, "--framework", "megatron")[1].split())
    assert note.format("--zero 1 shards its optimizer") in in_megatron  # Megatron-Core refuses --fsdp
    assert "m4-max" not in run(*words[:6], "--devices", "4", "--notes")[1]  # ranks that train exchange by NCCL
    assert "m4-max" in run(*words[:6], "--notes")[1]
    alone = " ".join(run(*words[:-1], "1", "--framework", "megatron")[1].split())
    assert "the device holds the whole model: llmcalc fit tries changes that need less" in alone
    assert "--fsdp" not in alone
    assert "whole model" not in run(*words, "--fsdp", "4", "--notes")[1]
