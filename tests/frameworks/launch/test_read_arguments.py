"""Arguments of launch files that are read change the run, or are refused: none is read and then forgotten."""

from __future__ import annotations

import ast
import importlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

import llmcalc
from llmcalc import memory
from llmcalc.errors import InputError
from llmcalc.frameworks.launch.accelerate import read_accelerate
from llmcalc.frameworks.launch.launch_types import Launch, LaunchSource
from llmcalc.frameworks.launch.read_launch_file import launch_from_text, read_launch
from llmcalc.frameworks.launch.trainer import read_trainer
from llmcalc.frameworks.megatron.arguments import MegatronArguments
from llmcalc.frameworks.megatron.named_model import MegatronRunSettings, smallest_device_count

FRAMEWORKS = Path(llmcalc.__file__).parent / "frameworks"
FILES = Path(__file__).parents[2] / "data" / "launch"


@cache
def _tables_of_names(file: Path) -> list[tuple[str, frozenset[str]]]:
    """The tables of a module whose names end in READ, with the names of arguments in them."""
    module_name = ".".join(("llmcalc", "frameworks", *file.relative_to(FRAMEWORKS).with_suffix("").parts))
    text = file.read_text()
    tables = {
        target.id
        for statement in (ast.parse(text).body if "READ" in text else ())
        for target in getattr(statement, "targets", [getattr(statement, "target", None)])
        if isinstance(target, ast.Name) and target.id.endswith("READ")
    }
    values = {table: getattr(importlib.import_module(module_name), table) for table in sorted(tables)}
    return [
        (table, frozenset().union(*names.values()) if isinstance(names, dict) else frozenset(names))
        for table, names in values.items()
    ]


@cache
def _texts_of_list(folder: Path) -> set[str]:
    """The strings in the code of a folder, and the constant ends of its formatted strings."""
    return {
        node.value.removeprefix("--")
        for file in folder.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


FOLDERS = sorted({file.parent for file in FRAMEWORKS.rglob("*.py") if _tables_of_names(file)})


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_each_name_that_is_read_is_looked_up(folder: Path) -> None:
    texts = _texts_of_list(folder) | _texts_of_list(FRAMEWORKS / "launch")
    texts |= {text.rpartition(".")[2] for text in texts}
    ends = tuple(text for text in texts if text[:1] in ("_", ".") and len(text) > 2)
    forgotten = {
        name
        for file in folder.glob("*.py")
        for _, names in _tables_of_names(file)
        for name in names
        if not {name, name.rpartition(".")[2], name.partition("_")[2]} & texts and not name.endswith(ends)
    }
    assert not forgotten


def _changed(name: str, world_size: int | None = None, **changes: Any) -> Launch:
    text = yaml.safe_dump(yaml.safe_load((FILES / name).read_text()) | changes)
    return launch_from_text(text, name, world_size, launch_folder=FILES)


def _refusal(name: str, world_size: int | None = None, **changes: Any) -> str:
    with pytest.raises(InputError) as stop:
        _changed(name, world_size, **changes)
    return str(stop.value)


def _script(text: str, world_size: int | None = None) -> Launch:
    return launch_from_text(f"#!/bin/bash\n{text}\n", "x.sh", world_size)


# ---- axolotl


def test_groups_of_ranks_of_axolotl() -> None:
    launch = _changed("axolotl_full_fsdp2.yaml", dp_shard_size=4, dp_replicate_size=2)
    assert (launch.layout.world_size, launch.layout.hsdp_replicas, launch.layout.dp) == (8, 2, 8)
    launch = _changed("axolotl_full_fsdp2.yaml", 16, dp_shard_size=4, context_parallel_size=2, sample_packing=True)
    assert (launch.layout.cp, launch.layout.dp, launch.layout.hsdp_replicas) == (2, 8, 2)
    assert launch.layout.cp_comm == "allgather"
    assert _changed("axolotl_full_fsdp2.yaml", 8, sequence_parallel_degree=2).layout.cp_comm == "p2p"
    launch = _changed("axolotl_full_fsdp2.yaml", dp_shard_size=2, tensor_parallel_size=2)
    assert (launch.layout.tp, launch.layout.sequence_parallel, launch.layout.dp) == (2, False, 2)
    assert "keeps the embedding whole" in " ".join(launch.notes)


def test_devices_of_axolotls_groups_are_assumed() -> None:
    launch = _changed("axolotl_full_fsdp2.yaml", context_parallel_size=4)
    assert (launch.layout.world_size, launch.layout.cp) == (4, 4)
    assert "4 devices are assumed, as few as the groups can have" in launch.notes


def test_groups_of_ranks_of_axolotl_without_fsdp() -> None:
    assert "dp_shard_size: 2 without FSDP; expected fsdp_config" in _refusal("axolotl_qlora.yaml", dp_shard_size=2)
    refusal = _refusal("axolotl_qlora.yaml", 2, context_parallel_size=2)
    assert "parallelism_config.cp_size (groups of ranks are modelled with FSDP alone)" in refusal
    refusal = _refusal("axolotl_full_fsdp2.yaml", 6, dp_shard_size=4, dp_replicate_size=2)
    assert "--devices: 6; expected a multiple of 2" in refusal or "expected 8" in refusal


def test_weights_of_axolotl_that_stay_in_their_format() -> None:
    mxfp4_settings = {"model_quantization_config": "Mxfp4Config"}
    assert "model_quantization_config (weights that stay" in _refusal("axolotl_qlora.yaml", **mxfp4_settings)
    _changed("axolotl_qlora.yaml", **mxfp4_settings, model_quantization_config_kwargs={"dequantize": True})


def test_chunks_of_axolotls_loss() -> None:
    launch = _changed("axolotl_qlora.yaml", chunked_cross_entropy=True, chunked_cross_entropy_num_chunks=4)
    assert (launch.settings["cross_entropy"], launch.settings["loss_chunk"]) == ("split", 256)


# ---- the Trainer and accelerate

ACCELERATE: dict[str, Any] = {"compute_environment": "LOCAL_MACHINE", "num_processes": 8, "mixed_precision": "bf16"}


@pytest.mark.parametrize(
    ("more", "refusal"),
    [
        ({"use_cpu": True}, "use_cpu (training on a CPU is not modelled)"),
        (
            {"parallelism_config": {"parallelism_config_cp_size": 2}},
            "parallelism_config.parallelism_config_cp_size (groups of ranks are modelled with FSDP alone)",
        ),
        (
            {"distributed_type": "FSDP", "parallelism_config": {"dp_shard_size": 2, "cp_size": 2}},
            "--devices: 8; expected 4, the product of parallelism_config's sizes",
        ),
    ],
)
def test_configs_of_accelerate_that_are_refused(more: dict[str, Any], refusal: str) -> None:
    with pytest.raises(InputError) as stop:
        read_accelerate({**ACCELERATE, **more}, LaunchSource("a.yaml"))
    assert refusal in str(stop.value)


def test_tensor_parallelism_of_transformers_keeps_whole_activations() -> None:
    groups = {"tp_size": 2, "dp_shard_size": 4}
    launch = read_accelerate(
        {**ACCELERATE, "distributed_type": "FSDP", "parallelism_config": groups}, LaunchSource("a.yaml")
    )
    assert (launch.layout.tp, launch.layout.dp, launch.layout.sequence_parallel) == (2, 4, False)
    assert launch.framework_settings is not None
    assert launch.framework_settings.uses_loss_parallel is False


@pytest.mark.parametrize("loss", ["chunked", "split", "recomputed"])
def test_a_chunked_loss_beside_whole_logits_is_refused(loss: str, tmp_path: Path) -> None:
    """It was counted with the hidden states gathered in place of the logits: 47 GiB of a model with 1B parameters."""
    groups = {"parallelism_config": {"tp_size": 2, "dp_shard_size": 4}, "distributed_type": "FSDP"}
    path = tmp_path / "a.json"
    path.write_text(json.dumps({**ACCELERATE, **groups}))
    with pytest.raises(InputError, match=f"--cross-entropy {loss}: of logits that are gathered .* fused or eager"):
        memory("llama3.2-1b", launch=path, cross_entropy=loss)


TRAINER: dict[str, Any] = {"model_name_or_path": "gpt2", "per_device_train_batch_size": 2, "bf16": True}


@pytest.mark.parametrize("name", ["use_cpu", "per_gpu_train_batch_size", "train_batch_size"])
def test_arguments_of_the_trainer_that_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=name):
        read_trainer({**TRAINER, name: True}, LaunchSource("t.yaml"))


def test_groups_of_ranks_of_the_trainer() -> None:
    groups = {"parallelism_config": {"cp_size": 2}}
    with pytest.raises(InputError, match="modelled with FSDP alone"):
        read_trainer({**TRAINER, **groups}, LaunchSource("t.yaml", 4))
    assert read_trainer({**TRAINER, **groups, "fsdp": "full_shard"}, LaunchSource("t.yaml", 4)).layout.cp == 2


# ---- ms-swift, LLaMA-Factory, torchtune, verl, OpenRLHF, Megatron-Core


def test_weights_of_ms_swift_in_4_bits_are_quantized_twice() -> None:
    command = "swift sft --model Qwen/Qwen2.5-7B --quant_bits 4 --max_length 1024"
    assert _script(command).settings["base"] == "nf4-dq"
    assert _script(f"{command} --bnb_4bit_use_double_quant false").settings["base"] == "nf4"
    assert _script(command.replace("--model ", "--model_id_or_path ")).model_name == "Qwen/Qwen2.5-7B"


def test_attention_of_megatron_swift() -> None:
    command = "megatron sft --model Qwen/Qwen2.5-7B --tuner_type full --max_length 1024 --global_batch_size 8"
    assert _script(command, 1).settings["attn_implementation"] == "flash"
    assert _script(f"{command} --attention_backend unfused", 1).settings["attn_implementation"] == "eager"
    with pytest.raises(InputError, match="--attention_backend: 'ring'; expected flash"):
        _script(f"{command} --attention_backend ring", 1)


def test_checkpointing_of_llama_factory_on_the_host() -> None:
    launch = _changed("llama_factory_full_z3.yaml", use_unsloth_gc=True)
    assert (launch.settings["recompute"], launch.settings["offload_activations"]) == ("full", True)
    assert "upcast_layernorm (norms in fp32" in _refusal("llama_factory_full_z3.yaml", upcast_layernorm=True)


def test_shards_of_torchtune() -> None:
    assert _changed("torchtune_lora.yaml", 4, fsdp_reshard_after_forward=False).layout.reshard is False
    assert _changed("torchtune_lora.yaml", 4).layout.reshard is True
    assert "data_parallel_shard_dim (it is modelled" in _refusal("torchtune_lora.yaml", 4, data_parallel_shard_dim=2)


def test_devices_of_experts_and_of_context_are_multiples_of_both() -> None:
    assert smallest_device_count(MegatronRunSettings(tp=4, ep=6, etp=1)) == 12
    assert smallest_device_count(MegatronRunSettings(tp=2, pp=2, ep=8)) == 32
    assert smallest_device_count(MegatronRunSettings(tp=8, ep=2, etp=1)) == 8


def test_groups_of_ranks_in_the_config_of_accelerate_launch(tmp_path: Path) -> None:
    config = {"distributed_type": "FSDP", "num_processes": 4, "parallelism_config": {"parallelism_config_cp_size": 2}}
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(config))
    script = "accelerate launch --config_file a.yaml train.py --model_name_or_path gpt2 --per_device_train_batch_size 2"
    layout = launch_from_text(f"#!/bin/bash\n{script}\n", "x.sh", None, launch_folder=tmp_path).layout
    assert (layout.cp, layout.dp) == (2, 2)
    script = script.replace("launch", "launch --parallelism_config_cp_size 4")
    assert launch_from_text(f"#!/bin/bash\n{script}\n", "x.sh", None, launch_folder=tmp_path).layout.cp == 4


def test_each_field_of_megatrons_arguments_is_looked_up() -> None:
    files = [file for file in FRAMEWORKS.rglob("*.py") if file != FRAMEWORKS / "megatron" / "arguments.py"]
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text()))]
    names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    names |= {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    assert not set(MegatronArguments.flags().values()) - names


@pytest.mark.parametrize(
    ("flag", "reason"),
    [
        ("--fp16-lm-cross-entropy", "other kernels than those that run by default"),
        ("--overlap-dispatch-backward-with-experts-wgrad", "work that overlaps"),
        ("--muon-scalar-optimizer lion", "another optimizer's shards"),
    ],
)
def test_arguments_of_megatron_that_are_not_modelled(flag: str, reason: str) -> None:
    sizes = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64"
    command = f"torchrun pretrain_gpt.py {sizes} --micro-batch-size 1 --vocab-size 100 --tokenizer-type NullTokenizer"
    assert _script(command, 1).framework == "megatron"
    with pytest.raises(InputError, match=reason):
        _script(f"{command} {flag}", 1)


VERL = (
    "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen2.5-7B trainer.n_gpus_per_node=8 "
    "trainer.nnodes=1 actor_rollout_ref.actor.use_dynamic_bsz=True "
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=6000 "
)


def test_tokens_of_each_device_in_dynamic_micro_batches_of_verl() -> None:
    """A micro-batch has so many tokens for each rank of a sequence (`max_token_len` of dp_actor.py)."""
    for more in ("", "actor_rollout_ref.actor.ulysses_sequence_parallel_size=2"):
        launch = _script(VERL + more)
        assert launch.settings["seq"] == 6000
        assert launch.rollout is not None
        assert launch.rollout.tokens_per_sequence == 6000
    megatron = "actor_rollout_ref.actor.strategy=megatron actor_rollout_ref.actor.megatron.context_parallel_size=2"
    launch = _script(VERL + megatron)
    assert (launch.settings["seq"], launch.layout.cp) == (12000, 2)


def test_adapted_layers_of_verl_are_a_list() -> None:
    more = "actor_rollout_ref.model.lora_rank=8 actor_rollout_ref.model.target_modules=[q_proj,v_proj]"
    assert _script(VERL + more).settings["lora_targets"] == ("q_proj", "v_proj")


# ---- arguments in tables of their own


def test_liger_kernel_replaces_what_its_table_says() -> None:
    """transformers passes `liger_kernel_config` to Liger-Kernel; `--liger_kernel_config` of a command is JSON."""
    liger = {**TRAINER, "use_liger_kernel": True}
    settings = read_trainer(liger, LaunchSource("t.yaml")).settings
    assert (settings["norm"], settings["cross_entropy"]) == ("liger", "chunked")
    without_gates = {**liger, "liger_kernel_config": {"swiglu": False}}
    assert read_trainer(without_gates, LaunchSource("t.yaml")).settings["norm"] == "fused"
    table = {"rms_norm": False, "layer_norm": False, "fused_linear_cross_entropy": False, "cross_entropy": True}
    settings = read_trainer({**liger, "liger_kernel_config": json.dumps(table)}, LaunchSource("t.yaml")).settings
    assert "norm" not in settings
    assert (settings["cross_entropy"], settings["logits_dtype"]) == ("fused", "fp32")


def test_arguments_of_checkpointing_of_a_command_are_json() -> None:
    checkpoints = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": '{"use_reentrant": true}'}
    assert read_trainer({**TRAINER, **checkpoints}, LaunchSource("t.yaml")).settings["recompute"] == "full-reentrant"


def test_an_evaluation_with_larger_batches_is_noted() -> None:
    notes = read_trainer({**TRAINER, "eval_strategy": "steps"}, LaunchSource("t.yaml")).notes
    assert any("batches of 8 (per_device_eval_batch_size) are not counted" in note for note in notes)
    same_batch = {**TRAINER, "eval_strategy": "steps", "per_device_eval_batch_size": 2}
    assert not any("evaluation" in note for note in read_trainer(same_batch, LaunchSource("t.yaml")).notes)


def test_model_init_kwargs_of_trl_choose_kernels_and_formats() -> None:
    def settings(**model_arguments: Any) -> Any:
        config = yaml.safe_load((FILES / "trl_sft.yaml").read_text()) | {"model_init_kwargs": model_arguments}
        return launch_from_text(yaml.safe_dump(config), "sft.yaml").settings

    assert settings(attn_implementation="eager")["attn_implementation"] == "eager"
    assert settings(dtype="bfloat16")["master_weights"] == "none"
    with pytest.raises(InputError, match=r"model_init_kwargs\.quantization_config"):
        settings(quantization_config={"load_in_4bit": True})


def test_a_plugin_of_axolotl_that_is_not_modelled_is_refused() -> None:
    config = yaml.safe_load((FILES / "axolotl_qlora.yaml").read_text())
    config["plugins"] = ["axolotl.integrations.spectrum.SpectrumPlugin"]
    with pytest.raises(InputError, match=r"plugins\..*SpectrumPlugin"):
        launch_from_text(yaml.safe_dump(config), "q.yaml")


def test_arguments_that_ms_swift_hands_on_to_the_trainer() -> None:
    text = (FILES / "swift_lora.sh").read_text()
    compiled = text.replace("swift sft", "swift sft --torch_compile true", 1)
    assert compiled != text
    assert launch_from_text(compiled, "s.sh").settings["compile"] is True


ENGINE_SFT = (
    "torchrun --nproc-per-node=4 -m verl.trainer.sft_trainer model.path=gpt2 data.max_token_len_per_gpu=512 "
    "engine.model_dtype=bf16 engine.ulysses_sequence_parallel_size=2 engine=fsdp"
)


def test_sft_of_verl_with_an_engine() -> None:
    """Micro-batches of 512 tokens on each rank of a sequence: its two ranks have 1,024."""
    launch = launch_from_text(ENGINE_SFT, "sft.sh")
    assert (launch.model_name, launch.framework, launch.layout.dp) == ("gpt2", "fsdp2", 4)
    assert (launch.settings["batch"], launch.settings["seq"]) == (1, 512)
    assert (launch.settings["master_weights"], launch.settings["recompute"]) == ("none", "full")
    for override, refusal in (
        ("engine=megatron", "'megatron' is not read"),
        ("engine.fsdp_size=2", "engine.fsdp_size"),
    ):
        with pytest.raises(InputError, match=refusal):
            launch_from_text(f"{ENGINE_SFT} {override}", "sft.sh")


def test_a_file_of_ms_swift_is_its_command() -> None:
    text = "torchrun --nproc-per-node=4 swift/cli/sft.py --model gpt2 --deepspeed zero2 --max_length 128"
    launch = launch_from_text(text, "sft.sh")
    assert (launch.program, launch.framework, launch.layout.zero) == ("ms-swift", "deepspeed", 2)


def test_entropies_of_verl_that_need_less_are_an_upper_bound() -> None:
    text = (FILES / "verl_fsdp.sh").read_text()
    key = "actor_rollout_ref.actor.entropy_checkpointing"
    notes = launch_from_text(text.replace("main_ppo ", f"main_ppo {key}=True ", 1), "ppo.sh").notes
    assert any("entropy_checkpointing: entropies that need less" in note for note in notes)


def test_arguments_of_transformers_examples_and_of_data_change_no_memory(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    plain = "python run_clm.py --model_name_or_path gpt2 --per_device_train_batch_size 2 --block_size 256"
    data = (
        "--train_file a.csv --validation_file b.csv --overwrite_cache --use_fast_tokenizer False --max_train_samples 9"
    )
    data_arguments = "--dataset_id_or_path a/b --train_data_path c --data_dir d"
    script.write_text(plain)
    expected = read_launch(script, 1)
    script.write_text(f"{plain} {data} {data_arguments}")
    launch = read_launch(script, 1)
    assert launch.settings == expected.settings
    assert {"train_file", "dataset_id_or_path", "train_data_path", "data_dir"} <= set(launch.ignored_arguments)
    script.write_text(f"{plain} --teacher_data_parallel 2")
    with pytest.raises(InputError, match="teacher_data_parallel"):
        read_launch(script, 1)


def test_liger_by_its_earlier_name(tmp_path: Path) -> None:
    """With the defaults of TRL at its time: checkpoints and bf16 are TRL's defaults since 0.22 and 0.19, and AdamW is
    fused since torch 2.8.
    """
    recipe = "model_name_or_path: gpt2\nper_device_train_batch_size: 1\nlearning_rate: 1e-4\nmax_length: 64\n"
    earlier = "gradient_checkpointing: false\nbf16: false\noptim: adamw_torch\n"
    (tmp_path / "a.yaml").write_text(recipe + "use_liger: true\n")
    (tmp_path / "b.yaml").write_text(recipe + "use_liger_kernel: true\n" + earlier)
    assert read_launch(tmp_path / "a.yaml", 1).settings == read_launch(tmp_path / "b.yaml", 1).settings
