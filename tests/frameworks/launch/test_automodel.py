"""Recipes of NeMo-Automodel: formats, shards, experts, adapters, losses and the command that starts them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import llmcalc
from llmcalc.errors import InputError
from llmcalc.frameworks.fsdp2.settings import Float8Settings, TitanSettings
from llmcalc.frameworks.launch.launch_types import Launch
from llmcalc.frameworks.launch.read_launch_file import launch_from_text, read_launch

FILE = Path(__file__).parents[2] / "data" / "launch" / "automodel_lora.yaml"


def changed(world_size: int | None = None, **tables: Any) -> Launch:
    """The run of the file with other tables, whose keys replace the file's; None removes a table."""
    data = yaml.safe_load(FILE.read_text())
    for name, table in tables.items():
        data[name] = {**(data.get(name) or {}), **table} if isinstance(table, dict) else table
    text = yaml.safe_dump({name: table for name, table in data.items() if table is not None})
    return launch_from_text(text, "recipe.yaml", world_size)


def test_adapters_have_the_format_of_the_weights_and_stand_where_the_wildcard_says() -> None:
    launch = read_launch(FILE)
    assert (launch.program, launch.framework, launch.model_name) == ("NeMo-Automodel", "torch", "Qwen/Qwen2.5-0.5B")
    expected = {
        "batch": 8,
        "seq": 512,
        "num_microbatches": 8,
        "recompute": "full",
        "lora_rank": 8,
        "lora_dtype": "bf16",
    }
    assert expected.items() <= launch.settings.items()
    small = "qwen2.5-0.5b?num_hidden_layers=2&vocab_size=1000"
    answer = llmcalc.memory(small, launch=FILE)
    named_targets_answer = llmcalc.memory(
        small, launch=FILE, lora_targets="q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"
    )
    assert answer.document["memory"] == named_targets_answer.document["memory"]


@pytest.mark.parametrize(
    ("schedule", "most_layers", "rounding", "sizes"),
    [
        ("interleaved1f1b", 3, None, (3,) * 8),
        ("interleaved1f1b", 5, "up", (4,) * 6),
        ("interleaved1f1b", 5, "down", (6,) * 4),
        ("1f1b", 12, None, (12, 12)),
        ("1f1b", 8, "down", (12, 12)),
    ],
)
def test_stages_of_a_pipeline_have_as_many_layers_as_the_recipe_says(
    schedule: str, most_layers: int, rounding: str | None, sizes: tuple[int, ...]
) -> None:
    """components/distributed/pipelining/functional.py, `calculate_virtual_stages`, of a model with 24 layers."""
    pipeline = {
        "pp_schedule": schedule,
        "pp_microbatch_size": 2,
        "layers_per_stage": most_layers,
        "round_virtual_stages_to_pp_multiple": rounding,
    }
    launch = changed(4, peft=None, distributed={"pp_size": 2, "pipeline": pipeline}).with_stage_sizes(24)
    assert (launch.layout.pp, launch.layout.dp, launch.layout.vpp) == (2, 2, len(sizes) // 2)
    assert (launch.layout.pp_layout, launch.settings["batch"], launch.settings["num_microbatches"]) == (sizes, 2, 16)


@pytest.mark.parametrize(
    ("pipeline", "message"),
    [
        ({"layers_per_stage": 5}, "layers_per_stage 5: 5 stages of 24 layers; expected a multiple of the 2 ranks"),
        ({"layers_per_stage": 24}, "layers_per_stage 24: 1 stage of 24 layers; expected a multiple of the 2 ranks"),
        (
            {"layers_per_stage": 24, "round_virtual_stages_to_pp_multiple": "down"},
            "layers_per_stage 24: 1 stage of 24 layers; expected a multiple of the 2 ranks",
        ),
        ({"layers_per_stage": 6}, "layers_per_stage 6: 2 stages of 24 layers per rank; expected 1 in 1F1B"),
        (
            {"layers_per_stage": 12, "pp_schedule": "interleaved1f1b"},
            "layers_per_stage 12: 1 stage of 24 layers per rank; expected 2 or more in an interleaved schedule",
        ),
        ({"round_virtual_stages_to_pp_multiple": "nearest"}, "'nearest'; expected up or down"),
    ],
)
def test_stages_that_the_schedule_cannot_have_are_an_error(pipeline: dict[str, Any], message: str) -> None:
    """components/distributed/pipelining/functional.py, `calculate_virtual_stages`, which raises `ValueError`."""
    with pytest.raises(InputError, match=re.escape(message)):
        changed(4, peft=None, distributed={"pp_size": 2, "pipeline": pipeline}).with_stage_sizes(24)


def test_too_few_layers_for_an_interleaved_schedule_are_an_error() -> None:
    pipeline = {"layers_per_stage": 2, "pp_schedule": "interleaved1f1b"}
    message = "1 stage of 3 layers per rank; expected the schedule 1F1B, since 4 interleaved stages need as many layers"
    with pytest.raises(InputError, match=message):
        changed(4, peft=None, distributed={"pp_size": 2, "pipeline": pipeline}).with_stage_sizes(3)


def test_shards_reduce_in_fp32_at_the_last_microbatch() -> None:
    launch = changed(8, peft=None)
    assert (launch.framework, launch.layout.dp, launch.layout.zero) == ("fsdp2", 8, 3)
    assert launch.settings["num_microbatches"] == 1
    assert launch.framework_settings == TitanSettings(
        reduction_format="float32", reduces_each_microbatch=False, outer_groups="together", wraps_whole_experts=False
    )
    assert launch.settings["master_weights"] == "none"
    in_bf16 = changed(8, peft=None, distributed={"mp_policy": {"reduce_dtype": None}})
    assert in_bf16.framework_settings.reduction_format == "bfloat16"
    in_fp32 = changed(8, peft=None, model={"torch_dtype": "float32"})
    assert (in_fp32.settings["dtype"], in_fp32.settings["master_weights"]) == ("bf16", "fp32")


@pytest.mark.parametrize(
    ("loss", "settings"),
    [
        ({"fp32_upcast": False}, {"logits_dtype": "bf16"}),
        ({"_target_": "a.FusedLinearCrossEntropy"}, {"cross_entropy": "chunked"}),
        ({"_target_": "a.TEParallelCrossEntropy"}, {"cross_entropy": "fused"}),
        ({"_target_": "a.ChunkedCrossEntropy"}, {"cross_entropy": "flash"}),
    ],
)
def test_losses(loss: dict[str, Any], settings: dict[str, Any]) -> None:
    assert settings.items() <= changed(loss_fn=loss).settings.items()


def test_experts_of_one_rank_are_not_wrapped(run: Any, tmp_path: Path) -> None:
    """components/moe/parallelizer.py, `apply_fsdp`: with `ep_shard` 1 experts are ignored, so that none are copied."""
    path = tmp_path / "moe.yaml"
    words = "memory", "olmoe-1b-7b?num_hidden_layers=2", "--launch", str(path), "--seq", "256", "--format", "json"
    data = yaml.safe_load(FILE.read_text()) | {"peft": None, "distributed": {"ep_size": 4, "strategy": "fsdp2"}}
    data["model"] = {"_target_": data["model"]["_target_"]}
    path.write_text(yaml.safe_dump(data))
    launch = read_launch(path)
    assert (launch.layout.ep, launch.layout.dp, launch.layout.reshard) == (4, 4, False)
    phases = run(*words).document["memory"]["by_phase"]
    bytes_of_experts = 2 * (64 // 4) * 3 * 2048 * 1024 * 2  # two layers, in bf16
    other_bytes = phases["forward"]["weights"] - phases["step"]["weights"]
    assert 0 < other_bytes < 2 * (2 * 50304 * 2048 + 2 * 4 * 2048 * 2048 + 2 * 64 * 2048 + 50_000)
    assert phases["step"]["weights"] > bytes_of_experts


def test_states_of_transformer_engines_adam() -> None:
    """docs/guides/mixed-precision-training.mdx: bf16 weights and 16 bits of remainders are as long as fp32 weights."""
    adam = {
        "_target_": "transformer_engine.pytorch.optimizers.fused_adam.FusedAdam",
        "master_weights": True,
        "store_param_remainders": True,
    }
    launch = changed(8, peft=None, optimizer=adam)
    assert (launch.settings["optimizer_dtype"], launch.settings["optimizer_impl"]) == ("fp32", "fused")
    assert launch.frozen_model is not None
    assert launch.frozen_model.json_data()["name"] == "lower 16 bits of main weights"
    whole = changed(8, peft=None, optimizer={**adam, "store_param_remainders": False})
    assert whole.frozen_model is not None
    assert whole.frozen_model.json_data()["dtype"] == "float32"


def test_products_in_8_bits_need_shards() -> None:
    table = {
        "enabled": True,
        "recipe_name": "tensorwise",
        "enable_fsdp_float8_all_gather": True,
        "filter_fqns": ["lm_head"],
    }
    settings = changed(8, peft=None, fp8=table).framework_settings
    assert settings.float8 == Float8Settings(gathers_float8=True)
    with pytest.raises(InputError, match="expected --devices 2 or more"):
        changed(peft=None, fp8=table)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (
            {"distributed": {"pp_size": 2, "pipeline": {"pp_microbatch_size": 64}}},
            "expected at least pp_size · pp_microbatch_size = 128",
        ),
        (
            {"distributed": {"pp_size": 2, "pipeline": {"pp_schedule": "zbvzerobubble"}}},
            "distributed.pipeline.pp_schedule",
        ),
        ({"distributed": {"strategy": "megatron_fsdp"}}, "'megatron_fsdp' is not modelled"),
        ({"model": {"num_nextn_predict_layers": 1}}, "multi-token prediction"),
        ({"model": {"_target_": "a.build_gpt2_model"}}, "expected from_pretrained of NeMoAutoModelForCausalLM"),
        ({"model": {"config": {"hidden_size": 64}}}, "model.config.hidden_size"),
        ({"recipe": "TrainEagle3Recipe"}, "'TrainEagle3Recipe' is not modelled"),
        ({"optimizer": {"_target_": "dion.Muon"}}, "'dion.Muon' is not modelled"),
        ({"qat": {"enabled": True}}, "quantization-aware"),
        (
            {"distributed": {"dp_replicate_size": 3}},
            "8 devices; expected a multiple of tp_size · cp_size · pp_size · dp_replicate_size = 3",
        ),
        ({"distributed": {"ep_size": 3}}, "expected a divisor of the 8 devices"),
        ({"step_scheduler": {"batch_size": 8}}, "step_scheduler.batch_size"),
        ({"optimizer": {"amsgrad": True}}, "optimizer.amsgrad"),
        ({"packed_sequence": {"sequence_size": 4096}}, "packed_sequence.sequence_size"),
        ({"quantization": {"bits": 4}}, "quantization.bits"),
        ({"fp8": {"enabled": False, "recipe": "rowwise"}}, "fp8.recipe"),
        ({"fp8": {"enabled": True, "emulate": True}}, "fp8.emulate"),
        ({"distributed": {"mp_policy": {"grad_dtype": "float32"}}}, "distributed.mp_policy.grad_dtype"),
        ({"peft": None, "distributed": {"mp_policy": {"reduce_dtype": "float16"}}}, "reduce_dtype .'float16'; float32"),
        ({"peft": {"lora_dtype": "int4"}}, "peft.lora_dtype .'int4'; bfloat16, float16 and float32 are modelled"),
        ({"peft": None, "quantization": {"load_in_8bit": True}}, "weights in 8 bits without a table peft"),
        ({"peft": None, "quantization": {"load_in_4bit": True}}, "weights in 4 bits without a table peft"),
        ({"quantization": {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"}}, "'fp4' is not modelled"),
        ({"peft": {"target_modules": 3}}, "peft.target_modules: 3; expected a list of names"),
    ],
)
def test_what_is_not_modelled_is_named(tables: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        changed(8, **tables)


def test_weights_in_4_bits_have_nested_scales_by_default() -> None:
    """components/quantization/qlora.py: `bnb_4bit_use_double_quant` is true."""
    assert changed(quantization={"load_in_4bit": True}).settings["base"] == "nf4-dq"
    plain = {"load_in_4bit": True, "bnb_4bit_use_double_quant": False}
    assert changed(quantization=plain).settings["base"] == "nf4"


def test_adapters_have_the_format_of_frozen_weights() -> None:
    """components/_peft/lora.py: of weights in 4 bits, that of `bnb_4bit_compute_dtype`, by default bfloat16."""
    in_fp32 = {"torch_dtype": "float32"}
    quantized = {"load_in_4bit": True}
    assert changed(model=in_fp32).settings["lora_dtype"] == "fp32"
    assert changed(model=in_fp32, peft={"lora_dtype": "torch.bfloat16"}).settings["lora_dtype"] == "bf16"
    assert changed(quantization=quantized).settings["lora_dtype"] == "bf16"
    quantized_in_fp32 = changed(quantization={**quantized, "bnb_4bit_compute_dtype": "float32"})
    assert quantized_in_fp32.settings["lora_dtype"] == "fp32"


@pytest.mark.parametrize(
    ("tables", "label_count"),
    [
        ({"model": {"_target_": "nemo_automodel.NeMoAutoModelForSequenceClassification.from_pretrained"}}, 2),
        ({"recipe": "TrainFinetuneRecipeForSequenceClassification"}, 2),
        ({"recipe": "TrainFinetuneRecipeForSequenceClassification", "model": {"num_labels": 5}}, 5),
        ({}, None),
    ],
)
def test_a_classifier_has_a_head_of_scores(tables: dict[str, Any], label_count: int | None) -> None:
    """recipes/llm/train_seq_cls.py; without `num_labels` transformers' config has 2 (configuration_utils.py)."""
    assert changed(**tables).score_head_num_labels == label_count


def test_the_command_names_processes_and_overrides() -> None:
    """nemo_automodel/cli/app.py; until 2025 `automodel finetune llm -c FILE`."""
    launch = read_launch(f"automodel {FILE} --nproc-per-node 4 --step_scheduler.local_batch_size 2")
    assert (launch.layout.world_size, launch.settings["batch"], launch.settings["num_microbatches"]) == (4, 2, 8)
    older = read_launch(f"automodel finetune llm -c {FILE} --nproc-per-node=2")
    assert (older.program, older.layout.world_size) == ("NeMo-Automodel", 2)


PEAKS = {"one device": (1, False, 53.03), "eight": (8, False, 47.59), "one, with checkpoints": (1, True, 33.06)}
"""Devices, whether layers are checkpoints, and the published peak in GiB.

Source: NVIDIA-NeMo/Automodel at 36044ad3, docs/guides/gradient-checkpointing.mdx: Llama 3.2 1B on an H100-80GB, local
batch 8, 2,048 tokens, AdamW, PyTorch 2.8, `torch.cuda.max_memory_allocated()`, averaged over ranks. Its row of cut
cross-entropy (7.30 GB) is the same with and without shards, and is left out.
"""


@pytest.mark.parametrize("name", PEAKS)
def test_published_peaks_of_full_training(name: str, tmp_path: Path) -> None:
    devices, recompute, peak = PEAKS[name]
    launch = {
        **yaml.safe_load(FILE.read_text()),
        "peft": None,
        "packed_sequence": {"packed_sequence_size": 2048},
        "distributed": {"strategy": "fsdp2", "activation_checkpointing": recompute},
    }
    launch["model"] = {"_target_": launch["model"]["_target_"]}
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(launch))
    answer = llmcalc.memory("llama3.2-1b", launch=path, devices=devices)
    assert answer.document["memory"]["peak_bytes"] / 2**30 == pytest.approx(peak, rel=0.06)
