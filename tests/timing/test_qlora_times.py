"""Seconds of a training step beside frozen weights in 4 bits, against steps on an H200 (tests/data/gpu/README.md)."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import pytest

import llmcalc
from llmcalc.errors import InputError
from llmcalc.sources.presets import load_preset
from llmcalc.timing.kernels import Adapters, RankPass
from llmcalc.timing.software_stacks import find_stack, stack_names
from llmcalc.timing.time_estimator import DEQUANTIZATION_FLOPS, TimedPass
from llmcalc.timing.work_recorder import rank_work
from tests.gpu_rows import rows_of
from tests.samples import sampled

LAUNCH = Path(__file__).parents[1] / "data" / "launch"

ROWS = [row for row in rows_of("h200", "qlora_times") if row["base"] != "int8"]


def timed(row: dict[str, Any], base: str) -> Any:
    settings = {name: row[name] for name in ("batch", "seq", "recompute", "lora_targets")}
    return llmcalc.time(
        row["model"], "h200", "training", precision="autocast", lora_rank=row["lora"], base=base, **settings
    ).result


def test_steps_beside_weights_in_4_bits_are_near_measured_ones() -> None:
    errors = {(row["base"], row["batch"], row["seq"], i): timed(row, row["base"]).seconds / row["seconds"] - 1
              for i, row in enumerate(ROWS)}  # fmt: skip
    print(*(f"{name}: {error:+.0%}" for name, error in errors.items()), sep="\n")
    assert median(map(abs, errors.values())) < 0.08
    large = [abs(error) for (_, batch, _, _), error in errors.items() if batch == 4]  # not bound by the shared host
    assert max(large) < 0.08
    assert max(map(abs, errors.values())) < 0.5


def test_the_difference_to_weights_in_16_bits_is_that_of_the_kernels() -> None:
    """At 8,192 tokens, where kernels decide: 4 bits take 21 ms more with recomputation and 13 to 19 without."""
    by_case = {(row["base"], row["recompute"]): row for row in ROWS if row["batch"] == 4 and "llama" in row["model"]}
    for (base, recompute), row in by_case.items():
        if base != "none":
            plain = by_case["none", recompute]
            measured = row["kernel_seconds"] - plain["kernel_seconds"]
            computed = timed(row, base).seconds - timed(row, "none").seconds
            assert computed == pytest.approx(measured, rel=0.25)


def test_the_rate_of_decoding_is_that_of_the_measured_kernels() -> None:
    [row] = [row for row in ROWS if (row["base"], row["recompute"], row["batch"]) == ("nf4", "none", 4)]
    layers = 4 * (2 * 4096 * (4096 + 1024) + 3 * 4096 * 14336)  # in the forward and the backward pass,
    weights = 2 * layers - 4096 * (4096 + 2 * 1024)  # where the first projections have no input gradient
    assert row["dequantize_seconds"] == pytest.approx(DEQUANTIZATION_FLOPS * weights / 67e12, rel=0.06)


def test_other_bases_are_refused() -> None:
    refusals: dict[str, dict[str, str]] = {
        "--base int8: its time is not modelled": {"base": "int8"},
        "--lora-library torchtune: the time .* expected --lora-library peft": {  # it said: expected --base nf4-dq
            "base": "nf4-dq", "lora_library": "torchtune"
        },
    }  # fmt: skip
    for message, changes in refusals.items():
        with pytest.raises(InputError, match=message):
            llmcalc.time("llama3-8b", "h200", "training", lora_rank=16, **changes)


@pytest.mark.parametrize(
    ("model", "hardware", "devices", "batch", "options", "seconds"),
    [
        ("llama2-7b", "rtx-4090", 2, 4, {}, 437 / 128),
        ("llama2-7b", "rtx-4090", 2, 8, {"base": "nf4"}, 450 / 64),
        ("llama2-7b", "rtx-4090", 2, 6, {"fsdp": 2}, 481 * 12 / 1024),
        ("llama2-7b", "rtx-4090", 2, 10, {"fsdp": 2, "base": "nf4"}, 466 * 20 / 1024),
        ("yi-34b", "rtx-4090", 2, 2, {"fsdp": 2, "base": "nf4"}, 2072 / 256),
        ("llama2-70b", "a5000", 8, 1, {"fsdp": 8, "base": "nf4"}, 2613 / 128),
        ("llama2-70b", "a100-40gb", 8, 4, {"fsdp": 8, "base": "nf4"}, 672 / 32),
    ],
)
def test_fsdp_qlora(
    model: str, hardware: str, devices: int, batch: int, options: dict[str, Any], seconds: float
) -> None:
    """1,024 sequences of 2,048 tokens with adapters of rank 64 in bf16 (AnswerDotAI/fsdp_qlora, 05ed9f2a,
    benchmarks_03_2024.md). Left out: anything on the host, H100 (0.73 of its time), RTX 6000 Ada (0.64), and two RTX
    3090 of 280 W on an old motherboard, which are at 0.98 and 1.05 without FSDP and at 0.68 and 0.94 with it.
    """
    settings: dict[str, Any] = {
        "lora_rank": 64,
        "lora_targets": "all-linear",
        "lora_dtype": "bf16",
        "recompute": "full",
        **options,
    }
    timed_run: Any = llmcalc.time(
        model, hardware, "training", devices=devices, batch=batch, seq=2048, **settings
    ).result
    assert timed_run.seconds == pytest.approx(seconds, rel=0.2)
    assert not timed_run.unpriced_options


@pytest.mark.parametrize("framework", ["torch", "fsdp2", "deepspeed"])
def test_adapters_in_16_bits_are_not_slower(framework: str) -> None:
    """Adapters in float32 beside weights in 16 bits cast the layer's input and output."""
    settings: dict[str, Any] = {"devices": 8, "fsdp": 8} if framework == "fsdp2" else {"devices": 8, "dp": 8}
    narrow, wide = (
        llmcalc.time(
            "llama3-8b", "h100", "training", framework=framework, seq=2048, lora_rank=16, lora_dtype=dtype, **settings
        ).document["seconds"]["estimate"]
        for dtype in ("bf16", "fp32")
    )
    assert narrow < wide


@pytest.mark.parametrize(
    ("precision", "gpus", "batch", "seconds"),
    [
        ("autocast", 1, 4, 5.642),  # prepare_model_for_kbit_training: inputs and outputs of all layers are in float32
        ("autocast", 1, 8, 10.974),
        ("bf16", 1, 4, 4.556),
        ("bf16", 1, 8, 8.949),
        ("bf16", 2, 4, 4.828),
    ],
)
def test_inputs_in_float32_are_cast_around_products_in_4_bits(
    precision: str, gpus: int, batch: int, seconds: float
) -> None:
    """Mistral 7B on A100s under Hugging Face's Trainer, with and without PEFT's preparation (rows of
    tests/data/timing/finetune_trainer_a100, its README has the source).
    """
    settings: dict[str, Any] = {"devices": gpus, "fsdp": gpus, "framework": "fsdp2"} if gpus > 1 else {}
    timed_run: Any = llmcalc.time(
        "mistral-7b",
        "a100-80gb",
        "training",
        precision=precision,
        batch=batch,
        seq=4096,
        recompute="full-reentrant",
        attn_implementation="flash",
        lora_rank=16,
        lora_targets="q_proj,k_proj,v_proj,o_proj",
        base="nf4",
        **settings,
    ).result
    assert timed_run.seconds == pytest.approx(seconds, rel=0.08)


def test_experts_in_4_bits_are_decoded_in_each_forward_pass() -> None:
    """Their weights are copied to 16 bits once, and once more with recomputation."""
    settings: dict[str, Any] = {"seq": 4096, "batch": 4, "lora_rank": 16, "base": "nf4"}

    def seconds(recompute: str, is_quantized: bool) -> float:
        settings_of_run = settings | {"recompute": recompute, "quantized_experts": is_quantized}
        timed_run: Any = llmcalc.time("mixtral-8x7b", "a100-80gb", "training", **settings_of_run).result
        return float(timed_run.seconds)

    expert_weights = 32 * 8 * 3 * 4096 * 14336
    for recompute, passes in (("none", 1), ("full", 2)):
        added = seconds(recompute, True) - seconds(recompute, False)
        assert added == pytest.approx(passes * expert_weights * DEQUANTIZATION_FLOPS / 19.5e12, rel=0.02)


def test_casts_and_experts_have_kernel_counts_of_their_own() -> None:
    """Each layer in 4 bits casts its input and its output, in both directions; experts are decoded forward alone, and
    routers, in 16 bits, are not decoded (bitsandbytes/autograd/_functions.py, MatMul4Bit; peft's
    `prepare_model_for_kbit_training`).
    """

    def launches(model: str, **adapter_settings: Any) -> tuple[float, ...]:
        adapters = Adapters(16, frozenset(), 4.5, **adapter_settings)
        work = rank_work(load_preset(model).model, RankPass(1, 1, 64, adapters=adapters))
        timed_pass = TimedPass(work, [])
        return tuple(
            float(timed_pass.layer_launches(0, is_backward, find_stack("torch").launches_by_verb))
            for is_backward in (False, True)
        )

    plain, cast = launches("llama3.2-1b"), launches("llama3.2-1b", base_inputs_are_fp32=True)
    assert [with_casts - without for with_casts, without in zip(cast, plain, strict=True)] == [7 * 2, 7 * 2]
    plain, decoded = launches("qwen3-30b-a3b"), launches("qwen3-30b-a3b", quantized_experts=True)
    assert [with_experts - without for with_experts, without in zip(decoded, plain, strict=True)] == [3 * 3, 0]
    adapters = Adapters(16, frozenset(), 4.5)
    work = rank_work(load_preset("qwen3-30b-a3b").model, RankPass(1, 1, 64, adapters=adapters))
    decoded_paths = {kernel.path.rpartition(".")[2] for kernel in work.kernels if kernel.kind == "dequantization"}
    assert decoded_paths == {"q_proj", "k_proj", "v_proj", "o_proj"}


@pytest.mark.parametrize(
    "stack", sampled({name: name for name in stack_names("training")}, lambda name: [name.partition("-")[0]])
)
def test_adapters_in_16_bits_are_not_slower_in_any_stack(stack: str) -> None:
    """Those of Unsloth and axolotl are in 16 bits anyway; they had the bytes of PEFT's with `--lora-dtype bf16`."""
    settings: dict[str, Any] = {"lora_rank": 16, "base": "nf4", "batch": 2, "seq": 2048, "stack": stack}
    seconds = [
        llmcalc.time("llama3.1-8b", "a100-80gb", "training", **settings, **lora_dtype).result.seconds
        for lora_dtype in ({}, {"lora_dtype": "bf16"})
    ]
    assert seconds[1] <= seconds[0]


@pytest.mark.parametrize(
    ("file", "title"),
    [
        ("unsloth_sft.py", "Unsloth's kernels"),
        ("unsloth_defaults.yaml", "Unsloth's kernels"),
        ("axolotl_qlora.yaml", "axolotl's kernels of adapters"),
    ],
)
def test_files_of_programs_with_own_kernels_have_the_stack_of_these(file: str, title: str) -> None:
    """They were timed as PEFT's and transformers' eager kernels; `--stack` prevails."""
    seconds = {}
    for stack, stack_title in ((None, title), ("torch", "eager PyTorch")):
        timed_run: Any = llmcalc.time("llama3.2-1b", "a100-80gb", launch=str(LAUNCH / file), stack=stack)
        seconds[stack] = timed_run.result.seconds
        assert stack_title in str(timed_run.document)
    assert seconds[None] < 0.9 * seconds["torch"]
