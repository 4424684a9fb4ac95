"""Launch files of torchtitan, DeepSpeed, accelerate and the Trainer."""

from __future__ import annotations

import copy
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from llmcalc.costs.params import params
from llmcalc.errors import InputError
from llmcalc.frameworks.deepspeed.config_file import read_deepspeed
from llmcalc.frameworks.deepspeed.settings import DeepSpeedSettings
from llmcalc.frameworks.fsdp2.settings import Float8Settings, TitanSettings
from llmcalc.frameworks.fsdp2.torchtitan_file import read_torchtitan
from llmcalc.frameworks.fsdp2.torchtitan_models import DEEPSEEK_V3, LLAMA3, LLAMA4, QWEN3, spec_of_flavor
from llmcalc.frameworks.launch.accelerate import read_accelerate
from llmcalc.frameworks.launch.launch_types import LaunchSource
from llmcalc.frameworks.launch.read_launch_file import launch_from_text, read_launch
from llmcalc.frameworks.launch.trainer import read_trainer
from llmcalc.parallel.layout import Layout
from llmcalc.sources.target import load
from tests.samples import in_one_test

LAUNCHES = Path(__file__).parents[2] / "data" / "launches"

# ---- torchtitan

PRESETS = {
    ("llama3", "8B"): "llama3-8b",
    ("llama3", "70B"): "llama3-70b",
    ("llama3", "405B"): "llama3.1-405b",
    ("llama4", "17bx16e"): "llama4-scout",
    ("gpt_oss", "20b"): "gpt-oss-20b",
    ("deepseek_v3", "16B"): "deepseek-v2-lite",
    ("deepseek_v3", "236B"): "deepseek-v2",
    ("deepseek_v3", "671B"): "deepseek-v3",
    ("qwen3", "0.6B"): "qwen3-0.6b",
    ("qwen3", "4B"): "qwen3-4b",
    ("qwen3", "8B"): "qwen3-8b",
    ("qwen3", "32B"): "qwen3-32b",
    ("qwen3", "30B-A3B"): "qwen3-30b-a3b",
    ("qwen3", "235B-A22B"): "qwen3-235b-a22b",
}


@in_one_test
@pytest.mark.parametrize("named", PRESETS)
def test_a_flavor_has_the_parameters_of_the_published_model(named: tuple[str, str]) -> None:
    assert params(spec_of_flavor(*named, "x")).total == params(load(PRESETS[named]).model).total


def test_every_flavor_is_a_model() -> None:
    for family, table in (("llama3", LLAMA3), ("llama4", LLAMA4), ("qwen3", QWEN3), ("deepseek_v3", DEEPSEEK_V3)):
        for size in table:
            assert spec_of_flavor(family, size, "x").decoder is not None


def test_debug_models() -> None:
    h, f = 256, 768  # two thirds of 1,024 up to a multiple of 256
    layer = 4 * h * h + 3 * h * f + 2 * h
    assert params(spec_of_flavor("llama3", "debugmodel", "x")).total == 2 * 2048 * h + 6 * layer + h
    assert params(spec_of_flavor("llama3", "debugmodel", "x", is_2024_form=True)).total == 2 * 2256 * h + 8 * layer + h


def titan(name: str, world_size: int | None = None, **changes: dict[str, Any]) -> Any:
    data = tomllib.loads((LAUNCHES / name).read_text())
    for section, table in changes.items():
        data[section] = {**data.get(section, {}), **table}
    return read_torchtitan(data, LaunchSource(name, world_size))


def test_a_job_of_2024() -> None:
    launch = read_launch(LAUNCHES / "llama3_8b_2024.toml", 64)
    assert launch.framework == "fsdp2"
    assert launch.layout == Layout(
        tp=2, pp=4, dp=8, zero=3, sequence_parallel=True, cp_comm="allgather", reshard=False, pp_layout=(8, 8, 8, 8)
    )  # 32 layers; embedding and head count as none
    settings = launch.settings
    assert (settings["batch"], settings["num_microbatches"]) == (2, 4)  # as many micro-batches as stages
    assert (settings["recompute"], settings["optimizer_impl"]) == ("every:2", "foreach")
    assert launch.framework_settings.is_2024_form


def test_a_job_of_2026() -> None:
    launch = read_launch(LAUNCHES / "llama3_70b_2026.toml", 256)
    assert launch.layout == Layout(tp=8, dp=32, zero=3, hsdp_replicas=2, sequence_parallel=True, cp_comm="allgather")
    settings = launch.settings
    assert (settings["batch"], settings["num_microbatches"]) == (8, 2)  # 512 = 8 · 32 · 2
    assert (settings["recompute"], settings["compile"], settings["dtype"]) == ("full", True, "bf16")
    assert settings["master_weights"] == "fp32"  # weights are gathered in bf16 from shards in fp32
    assert launch.framework_settings.compiles_loss


def test_devices_that_are_not_said() -> None:
    launch = titan("llama3_70b_2026.toml", training={"global_batch_size": -1})
    assert launch.layout.world_size == 16  # 8 · 2 ranks leave one shard
    assert launch.notes[0] == "16 devices are assumed"


@pytest.mark.parametrize(
    ("training", "world", "words"),
    [
        ({"dtype": "bfloat16"}, 256, {"dtype": "bf16", "master_weights": "none"}),
        ({"mixed_precision_param": "float32"}, 256, {"dtype": "fp32", "master_weights": "none"}),
        ({}, 256, {"dtype": "bf16", "master_weights": "fp32"}),
        ({"global_batch_size": -1}, 16, {"dtype": "fp32", "master_weights": "none"}),  # one shard, tp 8
    ],
)
def test_formats_of_a_job(training: dict[str, Any], world: int, words: dict[str, str]) -> None:
    settings = titan("llama3_70b_2026.toml", world, training=training).settings
    assert words.items() <= settings.items()
    assert ("precision" in settings) == ("precision" in words)


def test_a_job_without_shards_runs_in_torch_alone() -> None:
    divided = titan("llama3_70b_2026.toml", 16, training={"global_batch_size": -1})
    assert (divided.framework, divided.layout.zero, divided.layout.tp) == ("torch", 0, 8)
    assert any("fp32" in note for note in divided.notes)
    replicas = titan(
        "llama3_70b_2026.toml", 2, parallelism={"tensor_parallel_degree": 1}, training={"global_batch_size": -1}
    )
    assert (replicas.framework, replicas.layout.dp) == ("torch", 2)
    assert replicas.settings["precision"] == "autocast"


def test_pipelines_in_chunks() -> None:
    piped = {"pipeline_parallel_degree": 2, "pipeline_parallel_schedule": "Interleaved1F1B"}
    launch = titan("llama3_70b_2026.toml", 256, parallelism=piped)
    assert (launch.layout.vpp, launch.layout.schedule, launch.layout.reshard) == (2, "interleaved", False)
    assert launch.layout.pp_layout == (20, 21, 20, 19)  # 82 parts: 21, 21, 20, 20
    assert (launch.settings["batch"], launch.settings["num_microbatches"]) == (1, 32)  # 8 sequences, 4 times


@pytest.mark.parametrize(
    ("name", "section", "sizes"),
    [
        ("llama3_70b_2026.toml", {"pipeline_parallel_degree": 4}, (20, 21, 20, 19)),  # 82 parts: 21, 21, 20, 20
        (
            "llama3_70b_2026.toml",
            {"pipeline_parallel_degree": 2, "pipeline_parallel_split_points": ["layers.30"]},
            (30, 50),
        ),
    ],
)
def test_layers_of_stages(name: str, section: dict[str, Any], sizes: tuple[int, ...]) -> None:
    assert titan(name, 256, parallelism=section).layout.pp_layout == sizes


def test_layers_of_stages_in_2024() -> None:
    """405B: 126 layers, 15 in the first stage, one more in the next six."""
    experimental = {"pipeline_parallel_degree": 8, "context_parallel_degree": 1}
    launch = titan("llama3_8b_2024.toml", 64, model={"flavor": "405B"}, experimental=experimental)
    assert launch.layout.pp_layout == (15, 16, 16, 16, 16, 16, 16, 15)


def test_split_points_that_are_refused() -> None:
    for points in (["layers.30", "layers.20"], ["layers.90"], ["norm"]):
        with pytest.raises(InputError) as error:
            titan(
                "llama3_70b_2026.toml",
                256,
                parallelism={"pipeline_parallel_degree": 2, "pipeline_parallel_split_points": points},
            )
        assert "pipeline_parallel_split_points" in str(error.value)


NARROW = {"linear": {"float8": {"recipe_name": "rowwise", "filter_fqns": ["output", "auto_filter_small_kn"]}}}


@pytest.mark.parametrize(
    ("changes", "float8"),
    [
        ({"float8": {"enable_float8_linear": False}}, None),
        ({"float8": {"enable_float8_linear": True}, "quantize": {}}, Float8Settings(skipped_names=("output",))),
        (
            {"model": {"converters": ["float8"]}, "float8": {"enable_fsdp_float8_all_gather": True}, "quantize": {}},
            Float8Settings(gathers_float8=True, skipped_names=()),
        ),
        (
            {"model": {"converters": "quantize.linear.float8"}, "quantize": NARROW},
            Float8Settings(recipe="rowwise", skips_small_layers=True),
        ),
    ],
)
def test_products_in_8_bits(changes: dict[str, Any], float8: Float8Settings | None) -> None:
    data = tomllib.loads((LAUNCHES / "llama3_70b_2026.toml").read_text())
    for section, table in changes.items():
        data[section] = table if section == "quantize" else {**data.get(section, {}), **table}
    launch = read_torchtitan(data, LaunchSource("x", 256))
    assert launch.framework_settings.float8 == float8
    assert any("estimate" in note for note in launch.notes) == (float8 is not None)


def test_layers_that_stay_as_they_are() -> None:
    """Both sides are multiples of 16; too small is torchao's word for what gains nothing."""
    usual, small = Float8Settings(skipped_names=("output", "attention.wk")), Float8Settings(skips_small_layers=True)
    assert usual.is_converted("layers.0.attention.wq", 4096, 4096)
    assert not usual.is_converted("layers.0.attention.wk", 1024, 4096)
    assert not usual.is_converted("layers.0.feed_forward.w1", 4096 + 8, 4096)
    assert small.is_converted("layers.0.attention.wq", 1040, 4096)
    assert not small.is_converted("layers.0.attention.wk", 1024, 4096)
    assert not Float8Settings(recipe="rowwise", skips_small_layers=True).is_converted(
        "layers.0.attention.wk", 2048, 4096
    )


@in_one_test
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": {"converters": ["mx"]}}, "model.converters: mx (MXFP8 products are not modelled)"),
        ({"model": {"converters": ["nvfp4"]}}, "model.converters: nvfp4 (not known)"),
        ({"float8": {"enable_float8_linear": True, "scaling_type_input": "delayed"}}, "float8.scaling_type_input"),
        ({"activation_checkpoint": {"mode": "memory_budget"}}, "activation_checkpoint.mode"),
        ({"training": {"local_batch_sise": 4}}, "training.local_batch_sise (no key that is known)"),
        ({"parallelism": {"expert_parallel_comm_backend": "deepep"}}, "expert_parallel_comm_backend"),
        ({"fault_tolerance": {"enable": True}}, "fault_tolerance.enable"),
    ],
)
def test_what_a_job_may_change(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match="not understood, and may change memory") as stop:
        titan("llama3_70b_2026.toml", 256, **changes)
    assert said in str(stop.value)


@in_one_test
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": {"flavor": "9B"}}, "model.flavor: '9B' is not known; expected one of debugmodel, 8B"),
        ({"model": {"name": "flux"}}, "model.name: 'flux' is not known"),
        ({"model": {"flavor": 8}}, "model.flavor: 8; expected the name of a flavour"),
        ({"parallelism": {"tensor_parallel_degree": "a"}}, "parallelism.tensor_parallel_degree: 'a'; expected a whole"),
        ({"parallelism": {"tensor_parallel_degree": 7}}, "--devices: 256; expected 252"),
        ({"parallelism": {"pipeline_parallel_degree": 2, "pipeline_parallel_schedule": "GPipe"}}, "expected 1F1B or"),
        ({"training": {"global_batch_size": 100}}, "global_batch_size: 100; expected a multiple of 256"),
        ({"optimizer": {"name": "Lion"}}, "optimizer.name: 'Lion' is not supported; expected AdamW"),
        (
            {"float8": {"enable_float8_linear": True}, "quantize": {"linear": {"float8": {"recipe_name": "mxfp8"}}}},
            "quantize.linear.float8.recipe_name: 'mxfp8'; expected one of tensorwise, rowwise",
        ),
    ],
)
def test_wrong_jobs(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as stop:
        titan("llama3_70b_2026.toml", 256, **changes)
    assert str(stop.value).startswith("llama3_70b_2026.toml: ") or said.startswith("--devices")
    assert said in str(stop.value)


# ---- DeepSpeed

AUTO = json.loads((LAUNCHES / "deepspeed_zero3_auto.json").read_text())


def test_auto_values_are_those_of_the_trainer() -> None:
    values = {"batch": 2, "num_microbatches": 3, "bf16": True}
    launch = read_deepspeed(AUTO, LaunchSource("ds.json", 4), trainer_arguments=values)
    assert launch.framework == "deepspeed"
    assert launch.layout == Layout(dp=4, zero=3)
    assert launch.settings == {
        "phase": "training",
        "batch": 2,
        "num_microbatches": 3,
        "dtype": "bf16",
        "master_weights": "fp32",
    }
    deepspeed_settings = launch.framework_settings
    assert isinstance(deepspeed_settings, DeepSpeedSettings)
    assert deepspeed_settings.reduce_bucket_size == "auto"
    wide = deepspeed_settings.with_resolved_values(4096)
    assert wide.reduce_bucket_size == 4096 * 4096
    assert wide.stage3_prefetch_bucket_size == 15099494  # 0.9 · 4096² = 15,099,494.4
    assert wide.stage3_param_persistence_threshold == 40960
    assert deepspeed_settings.sub_group_size == 1_000_000_000


def test_without_a_trainer_auto_is_its_default() -> None:
    assert read_deepspeed(AUTO, LaunchSource("ds.json", 4)).settings["batch"] == 8


@pytest.mark.parametrize(
    ("sizes", "batch", "steps"),
    [
        ({"train_batch_size": 64}, 16, 1),
        ({"train_batch_size": 64, "gradient_accumulation_steps": 2}, 8, 2),
        ({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4}, 4, 4),
        ({"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}, 4, 2),
    ],
)
def test_two_of_three_batch_sizes(sizes: dict[str, int], batch: int, steps: int) -> None:
    settings = read_deepspeed({"zero_optimization": {"stage": 2}, **sizes}, LaunchSource("ds.json", 4)).settings
    assert (settings["batch"], settings["num_microbatches"]) == (batch, steps)


@in_one_test
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"zero_optimization": {"stage": 4}}, "zero_optimization.stage: 4; expected 0 or 1 or 2 or 3"),
        (
            {"zero_optimization": {"stage": 2, "reduce_bucket_size": "big"}},
            "zero_optimization.reduce_bucket_size: 'big'",
        ),
        ({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "nvme"}}}, "zero_optimization.offload_opt"),
        ({"zero_optimization": {"stage": 2, "new": 1}}, "zero_optimization.new (no key that is known)"),
        (
            {"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8}},
            "zero_optimization.zero_hpz_partition_size",
        ),
        (
            {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}},
            "zero_optimization.offload_optimizer.ratio (0.5 is not modelled",
        ),
        ({"train_batch_size": 6}, "train_batch_size: 6; expected"),
        ({"bf16": {"enabled": True}, "fp16": {"enabled": True}}, "both are enabled"),
        ({"bf16": True}, "bf16: True; expected a table"),
        (
            {"optimizer": {"type": "OneBitAdam"}},
            "optimizer.type ('OneBitAdam' is modelled in stage 0 with 16-bit weights alone)",
        ),
        ({"somehow": 1}, "somehow (no key that is known)"),
    ],
)
def test_wrong_configs(changes: dict[str, Any], said: str) -> None:
    config = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2}, **changes}
    with pytest.raises(InputError) as stop:
        read_deepspeed(config, LaunchSource("ds.json", 4))
    assert str(stop.value).startswith("ds.json: ")
    assert said in str(stop.value)


# ---- the Trainer


def test_a_recipe() -> None:
    launch = read_launch(LAUNCHES / "trainer.yaml", 8)
    assert (launch.kind, launch.framework, launch.model_name) == ("trainer", "deepspeed", "meta-llama/Llama-3.1-8B")
    assert launch.spec is None
    assert launch.layout == Layout(dp=8, zero=3)
    assert launch.settings == {
        "phase": "training",
        "batch": 4,
        "num_microbatches": 8,
        "seq": 2048,
        "optimizer": "adamw",
        "recompute": "full",
        "attn_implementation": "flash",
        "dtype": "bf16",
        "master_weights": "fp32",
    }


TRAINER: dict[str, Any] = {"per_device_train_batch_size": 2}


@in_one_test
@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, {"batch": 2, "num_microbatches": 1, "precision": "fp32", "optimizer": "adamw", "optimizer_impl": "fused"}),
        ({"bf16": True}, {"precision": "autocast"}),
        ({"torch_dtype": "bfloat16"}, {"dtype": "bf16", "master_weights": "none"}),
        ({"optim": "paged_adamw_8bit"}, {"optimizer": "paged-adamw-8bit-trainer"}),
        ({"optim": "paged_adamw_32bit"}, {"optimizer": "paged-adamw"}),
        ({"optim": "lion_8bit"}, {"optimizer": "lion-8bit-trainer"}),
        ({"optim": "schedule_free_adamw"}, {"optimizer": "schedule-free-adamw"}),
        ({"optim": "adamw_bnb_8bit"}, {"optimizer": "adamw-8bit-trainer"}),
        ({"optim": "adafactor"}, {"optimizer": "adafactor-transformers"}),
        ({"dtype": "bfloat16", "bf16": True, "use_peft": True}, {"dtype": "bf16", "precision": "autocast"}),
        (
            {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
            {"recompute": "full-reentrant"},
        ),
        ({"use_liger_kernel": True}, {"norm": "liger", "cross_entropy": "chunked"}),
        ({"torch_compile": True}, {"compile": True}),
        (
            {"use_peft": True, "lora_r": 8, "lora_target_modules": ["q_proj"], "load_in_4bit": True},
            {"lora_rank": 8, "lora_targets": ("q_proj",), "base": "nf4"},
        ),
    ],
)
def test_arguments_of_the_trainer(more: dict[str, Any], words: dict[str, Any]) -> None:
    settings = read_trainer({**TRAINER, **more}, LaunchSource("t.yaml", 1)).settings
    assert words.items() <= settings.items()


def test_shards_on_the_host() -> None:
    trainer = read_trainer({**TRAINER, "fsdp": "full_shard offload"}, LaunchSource("t.yaml", 16))
    data = {**ACCELERATE, "distributed_type": "FSDP", "fsdp_config": {"fsdp_offload_params": True}}
    for launch in (trainer, read_accelerate(data, LaunchSource("a.yaml"))):
        assert launch.framework_settings.offloads_to_host
    with pytest.raises(InputError, match=r"fsdp_config\.fsdp_offload_params: 'maybe'; expected true or false"):
        read_accelerate({**data, "fsdp_config": {"fsdp_offload_params": "maybe"}}, LaunchSource("a.yaml"))


@in_one_test
@pytest.mark.parametrize(
    ("more", "layout"),
    [
        ({}, Layout(dp=16)),
        ({"fsdp": "full_shard auto_wrap"}, Layout(dp=16, zero=3, cp_comm="allgather")),
        ({"fsdp": ["shard_grad_op"]}, Layout(dp=16, zero=3, reshard=False, cp_comm="allgather")),
        ({"fsdp": "hybrid_shard"}, Layout(dp=16, zero=3, hsdp_replicas=2, cp_comm="allgather")),
        (
            {"fsdp": True, "fsdp_config": {"fsdp_version": 2, "reshard_after_forward": False}},
            Layout(dp=16, zero=3, reshard=False, cp_comm="allgather"),
        ),
    ],
)
def test_the_trainers_layouts(more: dict[str, Any], layout: Layout) -> None:
    assert read_trainer({**TRAINER, **more}, LaunchSource("t.yaml", 16)).layout == layout


def test_low_rank_optimizers_of_the_trainer() -> None:
    arguments = {"optim": "galore_adamw", "optim_target_modules": [r".*.self_attn.*", "mlp"]}
    settings = read_trainer({**TRAINER, **arguments}, LaunchSource("t.yaml", 1)).settings
    assert settings["optimizer"] == "galore-r128"
    arguments |= {"optim": "apollo_adamw_layerwise", "optim_args": "rank=64, scale=1.0"}
    settings = read_trainer(
        {**TRAINER, **arguments, "gradient_accumulation_steps": 1}, LaunchSource("t.yaml", 1)
    ).settings
    assert (settings["optimizer"], settings["optimizer_in_backward"]) == ("apollo-r64", True)


@in_one_test
@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"per_device_train_batch_size": 0}, "per_device_train_batch_size: 0; expected a whole number of at least 1"),
        ({"optim": "galore_adamw"}, "optim_target_modules ([attn, mlp] alone is modelled)"),
        ({"optim": "galore_adamw_8bit"}, "optim ('galore_adamw_8bit' is not modelled)"),
        ({"fsdp": "half_shard"}, "fsdp: 'half_shard'; expected full_shard"),
        ({"bf16": "maybe"}, "bf16: 'maybe'; expected true or false"),
        ({"deepspeed": "none.json"}, "expected the path of a config of DeepSpeed that can be read"),
        ({"auto_find_batch_size": True}, "auto_find_batch_size (it is modelled without)"),
        ({"label_smoothing_factor": 0.1}, "label_smoothing_factor (the loss is modelled without)"),
        ({"gradient_chekpointing": True}, "gradient_chekpointing (no argument that is known)"),
    ],
)
def test_wrong_arguments_of_the_trainer(more: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as stop:
        read_trainer({**TRAINER, **more}, LaunchSource("t.yaml", 2))
    assert str(stop.value).startswith("t.yaml: ")
    assert said in str(stop.value)


def test_a_script_that_runs_the_trainer() -> None:
    text = (
        "#!/bin/bash\nGPUS=4\ntorchrun --nproc_per_node $GPUS train.py --model_name_or_path gpt2 --bf16 True \\\n"
        "  --per_device_train_batch_size 3 --fsdp 'full_shard auto_wrap' --learning_rate 2e-5\n"
    )
    launch = launch_from_text(text, "x.sh")
    assert (launch.model_name, launch.layout.world_size, launch.layout.zero) == ("gpt2", 4, 3)
    assert (launch.settings["batch"], launch.settings["dtype"]) == (3, "bf16")


def test_a_file_that_is_named_but_missing() -> None:
    text = (LAUNCHES / "trainer.yaml").read_text().replace("deepspeed_zero3_auto", "nowhere")
    with pytest.raises(InputError, match=r"nowhere\.json"):
        launch_from_text(text, str(LAUNCHES / "trainer.yaml"), launch_folder=LAUNCHES)


# ---- accelerate


def test_fsdp_of_accelerate() -> None:
    launch = read_launch(LAUNCHES / "accelerate_fsdp2.yaml")
    assert (launch.kind, launch.framework, launch.notes) == ("accelerate", "fsdp2", ())
    assert launch.layout == Layout(cp=2, dp=4, zero=3, hsdp_replicas=2, reshard=False, cp_comm="allgather")
    assert launch.settings == {
        "phase": "training",
        "dtype": "bf16",
        "master_weights": "fp32",
        "recompute": "full",
    }


@pytest.mark.parametrize(
    ("version", "precision", "own"),
    [
        (
            {},
            "bf16",
            TitanSettings(
                reduction_format="bfloat16",
                reduces_each_microbatch=False,
                has_flat_parameters=True,
                fsdp_version=1,
                outer_groups="together",
            ),
        ),
        ({"fsdp_version": 2}, "bf16", TitanSettings(reduction_format="bfloat16")),
        ({"fsdp_version": 2}, "no", TitanSettings()),
    ],
)
def test_how_gradients_are_summed_under_accelerate(version: dict[str, int], precision: str, own: TitanSettings) -> None:
    data = {**ACCELERATE, "distributed_type": "FSDP", "fsdp_config": version, "mixed_precision": precision}
    assert read_accelerate(data, LaunchSource("a.yaml")).framework_settings == own


ACCELERATE: dict[str, Any] = {"compute_environment": "LOCAL_MACHINE", "num_processes": 8, "mixed_precision": "bf16"}


def test_plain_accelerate() -> None:
    launch = read_accelerate({**ACCELERATE, "distributed_type": "MULTI_GPU"}, LaunchSource("a.yaml"))
    assert (launch.framework, launch.layout) == ("torch", Layout(dp=8))


@pytest.mark.parametrize(
    ("more", "is_compiled"),
    [
        ({"dynamo_backend": "NO"}, False),
        ({"dynamo_backend": False}, False),  # NO without quotes, in YAML 1.1
        ({"dynamo_backend": "INDUCTOR"}, True),
        ({"dynamo_config": {"dynamo_backend": "INDUCTOR"}}, True),
    ],
)
def test_compilation_of_accelerate(more: dict[str, Any], is_compiled: bool) -> None:
    """accelerate, commands/config/config_args.py, `from_yaml_file`: a backend outside of its table, as of old."""
    launch = read_accelerate(
        {"distributed_type": "NO", "mixed_precision": "bf16", **more}, LaunchSource("default.yaml")
    )
    assert ("compile" in launch.settings) == is_compiled


def test_deepspeed_of_accelerate() -> None:
    plugin = {"zero_stage": 2, "gradient_accumulation_steps": 4, "offload_optimizer_device": "none"}
    data = {**ACCELERATE, "distributed_type": "DEEPSPEED", "deepspeed_config": plugin}
    launch = read_accelerate(data, LaunchSource("a.yaml"))
    assert launch.layout == Layout(dp=8, zero=2)
    assert launch.settings == {
        "phase": "training",
        "num_microbatches": 4,
        "dtype": "bf16",
        "master_weights": "fp32",
    }
    away = {**plugin, "zero_stage": 3, "offload_optimizer_device": "cpu", "offload_param_device": "cpu"}
    settings = read_accelerate({**data, "deepspeed_config": away}, LaunchSource("a.yaml")).framework_settings
    assert (settings.offload_optimizer, settings.offload_param) == ("cpu", "cpu")
    named = copy.deepcopy(data)
    named["deepspeed_config"] = {"deepspeed_config_file": "ds.json"}
    assert read_accelerate(named, LaunchSource("a.yaml", read_named_tables=lambda _: AUTO)).layout == Layout(
        dp=8, zero=3
    )


def test_megatron_of_accelerate() -> None:
    plugin = {
        "megatron_lm_tp_degree": 2,
        "megatron_lm_pp_degree": 2,
        "megatron_lm_num_micro_batches": 4,
        "megatron_lm_sequence_parallelism": True,
        "megatron_lm_recompute_activations": True,
        "megatron_lm_use_distributed_optimizer": True,
    }
    data = {**ACCELERATE, "distributed_type": "MEGATRON_LM", "megatron_lm_config": plugin}
    launch = read_accelerate(data, LaunchSource("a.yaml"))
    assert launch.layout == Layout(tp=2, pp=2, dp=2, sequence_parallel=True, zero=1)
    assert launch.settings == {
        "phase": "training",
        "num_microbatches": 4,
        "recompute": "attention",
        "dtype": "bf16",
        "master_weights": "fp32",
        "grad_dtype": "fp32",
    }


@in_one_test
@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"distributed_type": "XLA"}, "distributed_type: 'XLA'; expected one of NO, MULTI_GPU, FSDP"),
        (
            {"distributed_type": "FSDP", "fsdp_config": {"fsdp_sharding_strategy": "SOME"}},
            "'SOME'; expected one of FULL",
        ),
        (
            {"distributed_type": "FSDP", "fsdp_config": {"fsdp_sharding_strategy": "NO_SHARD"}},
            "NO_SHARD divides nothing, and is not modelled",
        ),
        ({"distributed_type": "NO", "num_processes": 0}, "num_processes: 0; expected a whole number of at least 1"),
        ({"distributed_type": "NO", "mixed_precision": "fp8"}, "mixed_precision (products in 8 bits"),
        ({"distributed_type": "NO", "num_processes": "many"}, "num_processes: 'many'; expected a whole number"),
        ({"distributed_type": "NO", "mixed": 1}, "mixed (no key that is known)"),
    ],
)
def test_wrong_configs_of_accelerate(more: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as stop:
        read_accelerate({**ACCELERATE, **more}, LaunchSource("a.yaml"))
    assert str(stop.value).startswith("a.yaml: ")
    assert said in str(stop.value)


def test_a_config_that_a_script_names_from_the_root_of_its_repository(tmp_path: Path) -> None:
    configs = tmp_path / "examples" / "accelerate"
    configs.mkdir(parents=True)
    (configs / "two.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 2\nmixed_precision: bf16\n")
    script = tmp_path / "examples" / "extras" / "small" / "train.sh"
    script.parent.mkdir(parents=True)
    command = "accelerate launch --config_file {} run_clm.py --model_name_or_path gpt2 --per_device_train_batch_size 1"
    script.write_text(command.format("examples/accelerate/two.yaml") + "\n")
    assert read_launch(script).layout.world_size == 2
    script.write_text(command.format("examples/accelerate/three.yaml") + "\n")
    with pytest.raises(InputError, match=r"three.yaml: no such file beside it, nor below the folders above"):
        read_launch(script)
