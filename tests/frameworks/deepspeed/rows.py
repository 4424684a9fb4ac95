"""Published measurements of fine-tuning under DeepSpeed beside what llmcalc computes: rows of Qwen's README.

`python -m tests.frameworks.deepspeed.rows` prints every row with its error. The source states no meter, so a measured
value should lie between the allocator's blocks and all bytes of the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from llmcalc.device_memory.device_memory import summarize_memory
from llmcalc.device_memory.training import TrainingConfig
from llmcalc.frameworks.deepspeed.rank_memory import create_zero_run, replay_zero, zero_tensors_term
from llmcalc.frameworks.deepspeed.settings import DeepSpeedSettings
from llmcalc.frameworks.deepspeed.zero import ZeroSetup
from llmcalc.frameworks.nccl import with_nccl_buffers
from llmcalc.frameworks.registry import framework
from llmcalc.parallel.layout import Layout
from llmcalc.simulator.layer_stacks import layer_stacks
from llmcalc.simulator.repeat_microbatches import EventMeter
from tests.device_memory.published import A100, DATA, FINE_TUNING, GB, QWEN_MODELS, Outcome, Row, qwen_run, rows, spec

STAGE_2 = DeepSpeedSettings(stage=2, overlap_comm=True, reduce_bucket_size=200_000_000, optimizer="AdamW")
"""finetune/ds_config_zero2.json, which finetune_lora_ds.sh takes."""

STAGE_3 = DeepSpeedSettings(
    stage=3,
    overlap_comm=True,
    reduce_bucket_size="auto",
    stage3_prefetch_bucket_size="auto",
    stage3_param_persistence_threshold="auto",
    optimizer="AdamW",
)
"""finetune/ds_config_zero3.json, which finetune_ds.sh takes."""

MODELS = {**QWEN_MODELS, "Qwen-72B": str(DATA / "published" / "qwen-72b.toml")}

UNDER = {"LoRA (multinode)": STAGE_2, "LoRA + Deepspeed Zero3": STAGE_3, "Full-parameter": STAGE_3}
"""The method of a row → its configuration of DeepSpeed."""


def under_deepspeed() -> Iterator[Row]:
    """The rows of runs under DeepSpeed."""
    return (row for row in rows(FINE_TUNING) if row["id"].startswith("qwen1_ft") and row["method"] in UNDER)


def training(row: Row) -> TrainingConfig:
    """The run without autocast: the engine casts the model to bf16, and its loss reads logits in bf16."""
    training_config = qwen_run(row)
    training_config = replace(
        training_config, autocast=False, kernel_choices=replace(training_config.kernel_choices, logits_dtype="bfloat16")
    )
    return replace(training_config, adapters=None) if row["method"] == "Full-parameter" else training_config


def outcome(row: Row) -> Outcome:
    """A row's total over its devices, in GB, is divided by their number."""
    model, settings, devices = spec(MODELS[row["model"]]), UNDER[row["method"]], row["n_gpus"]
    setup = ZeroSetup(model, training(row), settings, devices, 0, A100.workspace_bytes)
    counted_steps, _ = replay_zero(create_zero_run(setup, meter := EventMeter()), meter)
    replay_result = counted_steps.result_on_allocator(A100.has_expandable_segments)
    answer = summarize_memory(
        replay_result, A100.context_bytes, layer_stacks(model), zero_tensors_term(settings, training(row))
    )
    answer = with_nccl_buffers(
        answer, Layout(dp=devices, zero=settings.stage or 0), framework("deepspeed"), A100, training(row).torch_version
    )
    measured = row["measured"]["total_mem_gb"] / devices
    return Outcome(row["id"], measured, answer.peak_bytes / GB, answer.device_bytes / GB)


def main() -> None:
    """Prints every row."""
    for row in under_deepspeed():
        one = outcome(row)
        computed = f"{one.low:5.2f} to {one.high:5.2f} {100 * one.error:+.1f} %"
        print(f"{one.id:48} measured {one.measured:6.2f} computed {computed}")


if __name__ == "__main__":
    main()
