"""Commands that are typed in the place of a launch file: `--launch 'tune run … --config FILE'`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import llmcalc
from llmcalc.errors import InputError
from llmcalc.frameworks.launch.read_launch_file import read_launch
from llmcalc.frameworks.server_files.read import servers_of_file
from tests.in_process import Result

CONFIG = "model_name_or_path: Qwen/Qwen3-0.6B\nstage: sft\nfinetuning_type: lora\ncutoff_len: 256\n"


def test_the_command_of_a_trainer_has_the_answer_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sft.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    of_file = llmcalc.memory(launch="sft.yaml").document
    for variables in ("", "FORCE_TORCHRUN=1 "):
        of_command = llmcalc.memory(launch=f"{variables}llamafactory-cli train sft.yaml").document
        assert of_command["memory"] == of_file["memory"], variables


@pytest.mark.parametrize(
    ("command", "engine", "version"),
    [
        ("vllm serve Qwen/Qwen3-8B --max-model-len 8192", "vllm", ""),
        ("docker run --gpus all vllm/vllm-openai:v0.11.0 --model Qwen/Qwen3-8B", "vllm", "0.11.0"),
        ("llama-server -m Qwen3-8B-Q4_K_M.gguf -c 8192", "llama_cpp", ""),
    ],
)
def test_the_command_of_a_server_is_read(command: str, engine: str, version: str) -> None:
    server = servers_of_file(command)[0]
    assert (server.name_in_errors, server.engine.replace("-", "_").replace(".", "_"), server.version) == (
        "--launch",
        engine,
        version,
    )


TITAN = "[model]\nname = 'llama3'\nflavor = '8B'\n[training]\nlocal_batch_size = 1\nseq_len = 8192\n"


def test_the_script_of_torchtitan_runs_the_job_that_a_variable_names(tmp_path: Path) -> None:
    job = tmp_path / "llama3_8b.toml"
    job.write_text(TITAN)
    typed_command = f"CONFIG_FILE={job} ./run_train.sh --training.local_batch_size 2"
    module = f"-m torchtitan.train --job.config_file {job} --training.local_batch_size 2"
    for variables, processes in (("NGPU=4 ", 4), ("", 8)):
        launch = read_launch(f"{variables}{typed_command}")
        expected = read_launch(f"torchrun --nproc-per-node {processes} {module}")
        assert (launch.settings, launch.layout) == (expected.settings, expected.layout)
        assert launch.layout.world_size == processes


def test_a_configuration_of_torchtitan_is_that_of_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Source: torchtitan/config/manager.py (2026-08), `--module` and `--config`, which run_train.sh passes on."""
    folder = tmp_path / "torchtitan" / "models" / "llama3"
    folder.mkdir(parents=True)
    configs = (Path(__file__).parents[2] / "data" / "launch" / "torchtitan_configs.py").read_text()
    (folder / "config_registry.py").write_text(configs)
    command = "torchrun --nproc_per_node=${NGPU:-8} -m torchtitan.train --module ${MODULE} --config ${CONFIG}"
    (tmp_path / "run_train.sh").write_text(f'{command} "$@"\n')
    monkeypatch.chdir(tmp_path)
    typed = "MODULE=llama3 CONFIG=llama3_debug ./run_train.sh --parallelism.tensor_parallel_degree 2 --compile.enable"
    launch = read_launch(typed)
    assert (launch.layout.tp, launch.layout.world_size, launch.settings["seq"]) == (2, 8, 4096)
    assert launch.settings["compile"] is True
    for changed, message in (
        ("CONFIG=llama3_debg", "Did you mean llama3_debug"),
        ("MODULE=llama9", "torchtitan/models/llama9/config_registry.py: no such file"),
    ):
        with pytest.raises(InputError, match=message):
            read_launch(f"MODULE=llama3 CONFIG=llama3_debug {changed} ./run_train.sh")


def test_a_recipe_that_comes_with_torchtune_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In torchtune's repository it is below recipes/configs."""
    command = "tune run lora_finetune_single_device --config llama3_1/8B_lora batch_size=4"
    with pytest.raises(InputError, match=r"expected a copy of it: tune cp llama3_1/8B_lora recipe\.yaml"):
        read_launch(command)
    recipe = tmp_path / "recipes" / "configs" / "llama3_1" / "8B_lora.yaml"
    recipe.parent.mkdir(parents=True)
    recipe.write_text((Path(__file__).parents[2] / "data" / "launch" / "torchtune_lora.yaml").read_text())
    monkeypatch.chdir(tmp_path)
    assert read_launch(command).settings["batch"] == 4


@pytest.mark.parametrize("text", ["no such file.yaml", "./missing.sh 8 x"])
def test_other_texts_name_a_file_that_is_missing(text: str) -> None:
    with pytest.raises(InputError, match="No such file or directory"):
        llmcalc.memory(launch=text)


@pytest.mark.parametrize("program", ["autotrain llm", "xtuner train a", "mlx_lm.lora"])
def test_a_program_that_is_not_known_is_no_missing_file(program: str) -> None:
    with pytest.raises(InputError, match=rf"--launch: {program.split(maxsplit=1)[0]}: neither a file nor a program"):
        llmcalc.memory(launch=f"{program} --model gpt2 --train")


def test_a_trainers_command_starts_no_server(run: Callable[..., Result]) -> None:
    error = run("fit", "--launch", "llamafactory-cli train sft.yaml").error
    assert "starts no server of an engine; for a training run: llmcalc memory --launch" in error


def test_values_left_to_the_trainer_are_told_on_the_first_screen(tmp_path: Path, run: Callable[..., Result]) -> None:
    config = tmp_path / "zero3.json"
    config.write_text(
        '{"train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 3}}'
    )
    screen = run("memory", "qwen3-0.6b", "--launch", str(config), "--devices", "2", "--seq", "256").out
    assert '"auto" is assumed to be the default of the Trainer: batches of 8 a device and\n    fp32' in screen
