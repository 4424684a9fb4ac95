"""`llmcalc cost`: arithmetic on the seconds of `plan` and `serve`, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

TRAIN = ("llama3-8b", "--tokens", "1T", "--hardware", "h100", "--devices", "16", "--seq", "8k", "--global-batch", "512")
REQUESTS = ("llama3-8b", "--requests", "1M", "--hardware", "h100", "--input", "2k", "--output", "256")


def cost(run: Any, *words: str) -> Any:
    return run("cost", *words, "--format", "json").document


def check_arithmetic(document: Any, price: float, watts: float) -> None:
    """hours = days · 24 · devices, energy = hours · watts, money = hours · price; low ≤ estimate ≤ high."""
    amounts = document["cost"]
    for end in ("estimate", "low", "high"):
        hours = amounts["device_hours"][end]
        assert hours == pytest.approx(24 * document["devices"] * amounts["days"][end])
        assert amounts["energy_kwh"][end] == pytest.approx(watts / 1000 * hours)
        assert amounts["money"][end] == pytest.approx(price * hours)
    for amount in amounts.values():
        assert amount["low"] < amount["estimate"] < amount["high"]


def test_training_costs_its_steps_under_the_fastest_layout(run: Any) -> None:
    document = cost(run, *TRAIN, "--price", "2.5")
    check_arithmetic(document, 2.5, 700)
    tokens = 512 * 8192
    assert document["step_tokens"] == tokens
    assert document["steps"] == -(-(10**12) // tokens)
    plan = ("plan", "llama3-8b", "--hardware", "h100", "--devices", "16", "--seq", "8k", "--global-batch", "512")
    first = run(*plan, "--rows", "1", "--format", "json").document["feasible"][0]
    assert document["layout"] == first["layout"]
    assert document["step"] == first["seconds"]
    days = document["steps"] * first["seconds"]["estimate"] / 86400
    assert document["cost"]["days"]["estimate"] == pytest.approx(days)


# Published device-hours of whole runs, with the devices and the tokens of a step that their papers state.
PUBLISHED_HOURS = {
    "llama2-7b": ("a100", 256, "2T", (), 184_320),  # arXiv:2307.09288, table 2
    "llama3.1-405b": ("h100", 16384, "15.6T", ("--seq", "8k"), 30_840_000),  # the card; 16M tokens a step are assumed
}


def test_a_layout_of_typed_sizes_costs_the_seconds_of_time(run: Any) -> None:
    """`plan` adds sequence parallelism and chunks to such sizes; `cost` and `time` take them as they are typed."""
    layout = ("--devices", "8", "--tp", "2", "--pp", "4", "--framework", "megatron")
    words = ("llama3-8b", "--hardware", "h100", "--seq", "4k", "--global-batch", "64", *layout)
    document = cost(run, *words, "--tokens", "1B")
    assert document["layout"]["vpp"] == 1
    assert not document["layout"]["sequence_parallel"]
    seconds = run("time", *words, "--phase", "training", "--format", "json").document["seconds"]
    assert document["step"]["estimate"] == pytest.approx(seconds["estimate"])


@pytest.mark.parametrize("model", PUBLISHED_HOURS)
def test_the_hours_of_published_runs_are_in_the_range(run: Any, model: str) -> None:
    """The range of a step in a benchmark ended below them: 150,000 and 30.6M, or 54M with 256 tokens of a device."""
    hardware, devices, tokens, words, hours = PUBLISHED_HOURS[model]
    document = cost(run, model, "--hardware", hardware, "--devices", str(devices), "--tokens", tokens, *words)
    amount = document["cost"]["device_hours"]
    assert amount["low"] < hours < amount["high"]
    steps = document["steps"] * document["step"]["high"]
    assert amount["high"] * 3600 / devices == pytest.approx(steps / 0.78)
    assert any("high alone has time for them: of six published long runs five spent 78 %" in note
               for note in document["notes"])  # fmt: skip


def test_a_run_on_one_node_has_the_range_of_its_steps(run: Any) -> None:
    words = ("llama3-8b", "--tokens", "1B", "--hardware", "h100", "--devices", "8", "--seq", "8k")
    document = cost(run, *words)
    assert document["cost"]["days"]["high"] * 86400 == pytest.approx(document["steps"] * document["step"]["high"])
    assert "without restarts, data loading, checkpoints" in " ".join(run("cost", *words).out.split())


def test_a_usual_step_grows_with_devices(run: Any) -> None:
    words = ("llama3-8b", "--tokens", "1T", "--hardware", "h100", "--step", "9s", "--seq", "8k", "--devices")
    assert cost(run, *words, "4096")["assumed"] == ["--global-batch 512"]
    document = cost(run, *words, "16384")
    assert document["assumed"] == ["--global-batch 2048"]  # 1,024 of 16,384 devices, as Llama 3 405B
    assert cost(run, *words[:-3], *words[-1:], "16384", "--seq", "1k")["assumed"] == ["--global-batch 16384"]


def test_a_measured_step_has_no_range(run: Any) -> None:
    document = cost(run, *TRAIN, "--step", "20s", "--power", "1000W", "--price", "2")
    amounts = document["cost"]
    steps = -(-(10**12) // (512 * 8192))
    assert amounts["days"] == dict.fromkeys(("estimate", "low", "high"), pytest.approx(20 * steps / 86400))
    assert amounts["energy_kwh"]["estimate"] == pytest.approx(amounts["device_hours"]["estimate"])
    assert document["measured"]
    assert document["layout"] is None


@pytest.mark.parametrize(("options", "is_said"), [(("--power", "350"), True), (("--power", "700"), False), ((), False)])
def test_a_limit_of_power_is_not_in_the_times(run: Any, options: tuple[str, ...], is_said: bool) -> None:
    """`nvidia-smi -pl 350` lowers the clocks of an H100 of 700 W; no source states by how much."""
    notes = cost(run, *REQUESTS, *options)["notes"]
    limit_note = (
        "if --power is a limit and not the average draw, the run is slower than these times, which are of 700 W"
    )
    assert (limit_note in notes) is is_said


def test_what_is_assumed_is_said(run: Any) -> None:
    words = ("llama3-8b", "--tokens", "1T", "--hardware", "h100", "--devices", "6", "--step", "9s")
    document = cost(run, *words)
    assert document["assumed"] == ["--seq 4096", "--global-batch 1026"]  # 171 of each device; 1024 would be 4M tokens
    assert document["step_tokens"] == 4096 * 1026
    assert any("assumed: --seq 4096 --global-batch 1026" in note for note in document["notes"])
    own_batch = ("smollm-135m", "--tokens", "1B", "--hardware", "h100", "--devices", "1", "--global-batch", "8")
    assert "assumed: --seq 2048" in cost(run, *own_batch)["notes"]  # no step of 4M tokens
    published = cost(run, "llama3.1-405b", "--tokens", "1T", "--step", "5s", *words[3:5], "--devices", "2048")
    assert "--global-batch 4096" in published["assumed"]  # of 4,096: 16M tokens, as published (arXiv:2407.21783)
    many = ("llama3-8b", "--tokens", "1T", "--hardware", "h100", "--devices", "3000", "--step", "9s", "--seq", "8k")
    assert cost(run, *many)["assumed"] == ["--global-batch 500"]  # the largest divisor of 3,000 up to 512


ADAPTERS = ("--seq", "2k", "--lora-rank", "16", "--base", "nf4")
QLORA = ("smollm-135m?num_hidden_layers=2", "--hardware", "rtx-4090", "--devices", "1", *ADAPTERS)


def test_adapters_cost_the_seconds_of_time(run: Any) -> None:
    """0.59 days where the tokens per second of `time`, which recomputes, gave 0.90; in 24 steps of 4M tokens."""
    document = cost(run, *QLORA, "--tokens", "100M")
    timed = run("time", *QLORA, "--format", "json").document
    assert document["cost"]["days"]["estimate"] == pytest.approx(
        document["steps"] * timed["seconds"]["estimate"] / 86400
    )
    assert document["assumed"] == ["--global-batch 1"]
    assert document["step_tokens"] == 2048
    assert any("(a micro-batch of each device)" in note for note in document["notes"])
    first = run("plan", *QLORA, "--framework", "torch", "--format", "json").document["feasible"][0]
    memory = run("memory", *QLORA, "--framework", "torch", "--format", "json").document
    assert first["device_bytes"] == memory["memory"]["device_bytes"]


def test_an_encoder_has_no_steps_of_llama(run: Any) -> None:
    document = cost(run, "bert-base", "--tokens", "1B", "--hardware", "h100", "--devices", "2", "--seq", "512")
    assert document["assumed"] == ["--global-batch 2"]
    assert not any("Llama" in note for note in document["notes"])


def test_the_layout_is_written_with_what_it_recomputes(run: Any) -> None:
    """It wrote `dp8 ZeRO-3` for a layout that fits with recomputation alone, and takes longer with it."""
    words = ("smollm-135m", "--tokens", "1B", "--hardware", "rtx-4090", "--devices", "1", "--seq", "16k")
    text = " ".join(run("cost", *words, "--batch", "2").out.split())
    first = run("plan", *words[:1], *words[3:], "--batch", "2", "--format", "json").document["feasible"][0]
    assert "--recompute" in first["options"]
    assert f"one device {first['options'].replace('--', '')}" in text


def test_requests_cost_the_cheapest_server_that_is_full(run: Any) -> None:
    document = cost(run, *REQUESTS, "--price", "2.5")
    check_arithmetic(document, 2.5, 700)
    words = ("serve", "llama3-8b", "--hardware", "h100", "--input", "2k", "--output", "256", "--price", "2.5")
    chosen = run(*words, "--format", "json").document["chosen"]
    assert document["devices"] == chosen["devices"]
    seconds = 1e6 * 256 / chosen["output_tokens_per_second"]
    assert document["cost"]["days"]["estimate"] == pytest.approx(seconds / 86400)
    assert document["cost"]["money"]["estimate"] == pytest.approx(256 * chosen["cost_per_million"])


def test_what_is_not_known_is_null(run: Any, tmp_path: Path) -> None:
    document = cost(run, *REQUESTS)
    assert document["cost"]["money"] is None
    assert any("no --price" in note for note in document["notes"])
    accelerator = tmp_path / "mine.toml"
    accelerator.write_text('title = "mine"\nmemory_bytes = 80_000_000_000\n')
    words = ("gpt2", "--tokens", "1B", "--hardware", str(accelerator), "--devices", "1", "--step", "1s")
    document = cost(run, *words)
    assert document["cost"]["energy_kwh"] is None
    assert any("--power WATTS" in note for note in document["notes"])


def test_tokens_in_place_of_sequences_are_remarked(run: Any) -> None:
    """Published runs say `16M tokens` of a batch; --global-batch counts sequences, 2,048 of 8,192 tokens here."""
    words = ("cost", "--step", "1s", *TRAIN[:-1])
    first_note = run(*words, "16M", "--format", "json").document["notes"][0]
    assert first_note.startswith("a step of 16.78 M sequences has 137.44 B tokens")
    assert "--global-batch counts sequences: 2048 for 16.78 M tokens" in first_note
    assert "counts sequences" not in run(*words, "2048", "--notes").out


def test_few_requests_are_not_a_share_of_a_full_server(run: Any) -> None:
    """A request alone has its prompt's time and one of each further token, not a share of many requests at once."""
    document = cost(run, *REQUESTS[:2], "1", *REQUESTS[3:])
    server = document["server"]
    seconds = server["ttft"]["estimate"] + 255 * server["tpot"]["estimate"]
    assert server["concurrency"] == 1
    assert document["cost"]["days"]["estimate"] * 86_400 == pytest.approx(seconds, rel=0.01)


def test_without_devices_training_is_on_the_fewest_that_fit(run: Any) -> None:
    """Of Qwen3 4B, 16 bytes a parameter are 60 GiB: too many for one L40S of 48 GiB, and for two with activations."""
    words = ("cost", "qwen3-4b", "--hardware", "l40s", "--tokens", "1B", "--format", "json")
    document = run(*words).document
    devices = document["devices"]
    assert document == run(*words, "--devices", str(devices)).document | {
        "assumed": [f"--devices {devices}", *document["assumed"][1:]], "notes": document["notes"]
    }  # fmt: skip
    assert f"--devices {devices}: the fewest that were found to fit; more take fewer days" in document["notes"]
    assert run(*words, "--devices", str(devices // 2)).code == 2


def test_an_error_that_more_devices_do_not_mend_names_none(run: Any) -> None:
    code, _, error = run("cost", "qwen3-0.6b", "--hardware", "24GiB", "--tokens", "1B")
    assert code == 2
    assert "no memory bandwidth is known" in error
    assert "were tried" not in error


def test_without_lengths_requests_are_those_of_serve(run: Any) -> None:
    words = ("cost", "qwen3-0.6b", "--hardware", "l4", "--requests", "1M", "--format", "json")
    document = run(*words).document
    assert document["assumed"] == ["--input 1024", "--output 128"]
    assert "assumed: --input 1024 --output 128 (as `vllm bench serve` sends by default)" in document["notes"]
    assert document["cost"] == run(*words, "--input", "1024", "--output", "128").document["cost"]
    assert run(*words, "--output", "9").document["assumed"] == ["--input 1024"]


REFUSALS: dict[str, tuple[tuple[str, ...], str]] = {
    "nothing": (("--devices", "8"), "neither is given; expected --tokens 15T --devices 64 to train"),
    "both": (("--tokens", "1B", "--requests", "1M"), "both are given; expected one of the two"),
    "no devices of a measured step": (("--tokens", "1B", "--step", "1s"), "--devices: missing; expected the number of"),
    "a step of requests": (
        ("--requests", "1M", "--input", "9", "--output", "9", "--step", "1s"), "--step: is of training"
    ),
    "a prompt of training": (("--tokens", "1B", "--devices", "8", "--input", "9"), "--input: is of --requests"),
    "a phase of training": (("--tokens", "1B", "--devices", "8", "--phase", "decode"), "--phase decode: --tokens are"),
    "a phase of servers": (("--tokens", "1B", "--devices", "8", "--phase", "inference"), "--phase inference: --tokens"),
    "users of training": (("--tokens", "1B", "--devices", "8", "--users", "4"), "--users: --tokens are of training"),
    "an option of training": (
        ("--requests", "1M", "--input", "9", "--output", "9", "--recompute", "full"), "--recompute: does not change"
    ),
    "a layout of training": (
        ("--requests", "1M", "--input", "9", "--output", "9", "--zero", "1"), "--zero: does not change servers"
    ),
    "more requests at a time than there are": (
        ("--requests", "1", "--input", "9", "--output", "9", "--concurrency", "4"), "--concurrency 4: --requests 1 are"
    ),
    "no power": (("--tokens", "1B", "--devices", "8", "--power", "0"), "--power: '0'; expected a number above 0"),
    "devices that the typed sizes do not divide": (
        ("--tokens", "1B", "--devices", "3", "--tp", "2"), "--devices 3: is not the product tp · cp · pp · dp; expected"
    ),
    "no layout that fits": (
        ("--tokens", "1B", "--devices", "1", "--seq", "4k", "--global-batch", "1"),
        "fits the memory of H100 SXM; expected more devices, or --step",  # whose states alone are too large
    ),
    "activations that do not fit": (
        ("--tokens", "1B", "--devices", "1", "--lora-rank", "8", "--seq", "64k"), "--base nf4, a --seq below 65536, or"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("words", "message"), REFUSALS.values(), ids=REFUSALS)
def test_refusals(run: Any, words: tuple[str, ...], message: str) -> None:
    assert message in run("cost", "llama3-8b", "--hardware", "h100", *words).error


def test_adapters_that_do_not_fit_are_led_to_four_bits(run: Any) -> None:
    words = ("--hardware", "rtx-4090", "--tokens", "1M", "--devices", "1", "--lora-rank", "16")
    assert "expected more devices, --base nf4, a --seq below 4096, or --step" in run("cost", "qwen3-8b", *words).error


def test_layouts_that_cannot_be_counted_are_not_said_to_lack_memory(run: Any) -> None:
    message = run("cost", "zamba2-7b", "--hardware", "h100", "--tokens", "1B", "--devices", "2").error
    assert "FSDP2 of layers that share parameters is not modelled; expected --framework deepspeed" in message
    assert "memory" not in message


def test_a_run_of_less_than_a_day_is_told_in_hours_or_less(run: Any) -> None:
    """The heading said 0.022 to 0.066 days."""
    words = ("cost", "llama3.1-8b", "--hardware", "h100", "--devices", "8", "--price", "2", "--step", "2s")
    words += ("--global-batch", "1024", "--seq", "4096", "--tokens")
    assert "1.00 B tokens: 7.97 min, money 2.12" in run(*words, "1B").out
    assert "20.00 B tokens: 2.65 h, money 42.4" in run(*words, "20B").out
    assert "1.00 T tokens: 5.52 days, money 2,120" in run(*words, "1T").out


def test_a_typed_layout_costs_what_it_takes_as_typed_where_it_fits(run: Any) -> None:
    """Where it does not, `cost` has the fewest further options that make it fit, and names them alone."""
    layout = ("--hardware", "h100", "--devices", "8", "--tp", "2", "--dp", "4", "--zero", "1", "--format", "json")
    for batch, is_added in (("1", False), ("2", True)):
        words = ("llama3-8b", *layout, "--seq", "8k" if is_added else "4k", "--batch", batch, "--global-batch", "8")
        cost = run("cost", *words, "--tokens", "1B").document
        planned = run("plan", *words, "--phase", "training").document["feasible"][0]
        timed = run("time", *words, "--phase", "training").document
        step = cost["step"]["estimate"]
        assert step == pytest.approx((planned if is_added else timed)["seconds"]["estimate"], rel=1e-6)
        note = "what is typed does not fit: the cost is with --sequence-parallel"
        assert (note in cost["notes"]) is is_added
