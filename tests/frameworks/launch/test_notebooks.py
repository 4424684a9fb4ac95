"""Notebooks are read as the Python or the commands of their cells, without running them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import llmcalc
from llmcalc.errors import InputError
from llmcalc.frameworks.launch.read_launch_file import read_launch


def write_notebook(tmp_path: Path, *cells: str) -> Path:
    """Writes a notebook with a text, code cells and an output, and returns its path."""
    code_cells: list[dict[str, Any]] = [
        {
            "cell_type": "code",
            "metadata": {},
            "outputs": [{"text": ["step 1"]}],
            "source": cell.splitlines(keepends=True),
        }
        for cell in cells
    ]
    path = tmp_path / "train.ipynb"
    title = {"cell_type": "markdown", "metadata": {}, "source": ["# SFTConfig(max_length=1)"]}
    path.write_text(json.dumps({"cells": [title, *code_cells], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    return path


PYTHON = (
    "%%capture\nimport os\nif 'COLAB' in os.environ:\n    !pip install trl \\\n        peft\n",
    "name = 'meta-llama/Llama-3.1-8B'\nlog = !nvidia-smi\nSFTConfig?",
    "from trl import SFTConfig, SFTTrainer\nargs = SFTConfig('out', max_length=512, per_device_train_batch_size=2)",
    "%time SFTTrainer(model=name, args=args).train()",
    "SFTTrainer(model=name, args=args).train()",
    "name = 'out'  # the trained model",
)


def test_python_of_a_notebook_is_that_of_a_script(tmp_path: Path) -> None:
    launch = read_launch(write_notebook(tmp_path, *PYTHON), 1)
    script = tmp_path / "train.py"
    script.write_text("\n".join(PYTHON[i] for i in (2, 4)).replace("model=name", "model='meta-llama/Llama-3.1-8B'"))
    expected = read_launch(script, 1)
    assert launch.model_name == expected.model_name == "meta-llama/Llama-3.1-8B"
    assert launch.settings == expected.settings
    assert launch.settings["seq"] == 512


def test_several_names_of_one_assignment_and_a_model_that_is_loaded_again(tmp_path: Path) -> None:
    """trl 1.10, examples/notebooks/sft_trl_lora_qlora.ipynb: the trained model is loaded in float32 afterwards."""
    cells = (
        "model_id, output_dir = 'Qwen/Qwen3-8B', 'out'",
        "from trl import SFTConfig, SFTTrainer\nfrom transformers import AutoModelForCausalLM",
        "args = SFTConfig(output_dir, max_length=512, model_init_kwargs={'dtype': 'float16'})",
        "SFTTrainer(model=model_id, args=args).train()",
        "model = AutoModelForCausalLM.from_pretrained(model_id, dtype='float32')",
    )
    launch = read_launch(write_notebook(tmp_path, *cells), 1)
    assert (launch.model_name, launch.settings["dtype"]) == ("Qwen/Qwen3-8B", "fp16")
    first, *others = cells
    other_number = first.replace("output_dir", "a, b")
    assert read_launch(write_notebook(tmp_path, other_number, *others), 1).model_name == ""


CONFIG = """%%writefile sft.yaml
stage: sft
do_train: true
model_name_or_path: meta-llama/Llama-3.2-1B
finetuning_type: lora
template: llama3
cutoff_len: 256
bf16: true
"""


def test_commands_and_files_of_a_notebook_are_a_script(tmp_path: Path) -> None:
    launch = read_launch(write_notebook(tmp_path, "import os", CONFIG, "!llamafactory-cli train sft.yaml"), 1)
    assert (launch.model_name, launch.settings["seq"]) == ("meta-llama/Llama-3.2-1B", 256)
    assert launch.program == "LLaMA-Factory"


@pytest.mark.parametrize(
    "start", ["!vllm serve {model} --max-model-len 4096 &", "%%bash\nvllm serve $model --max-model-len 4096"]
)
def test_a_server_that_a_notebook_starts(tmp_path: Path, start: str) -> None:
    path = write_notebook(tmp_path, "model = 'Qwen/Qwen3-8B'", start)
    document = llmcalc.memory(launch=path, hardware="h100").document
    assert (document["launch"]["program"], document["model"]["name"]) == ("vLLM", "qwen3-8b"), document["launch"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"cells": 3}', "has no list of cells"),
        (json.dumps({"cells": [{}] * 5_001}), "5,001 cells; expected at most 5,000"),
        ('{"cells": []}', "a notebook without code"),
        ("[1]", "is no notebook"),
        ("x", "not valid JSON"),
        ('{"cells": [{"cell_type": "code", "source": "print(1)"}]}', "a Python file of no program"),
    ],
)
def test_files_that_are_no_notebooks(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "train.ipynb"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_launch(path, 1)


def test_a_config_that_a_script_writes_itself(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    lines = CONFIG.partition("\n")[2]
    script.write_text(
        f"#!/bin/bash\ncat > sft.yaml <<EOF\n{lines}output_dir: $OUT\nEOF\nllamafactory-cli train sft.yaml\n"
    )
    assert read_launch(script, 1).settings["seq"] == 256
    processes = "num_processes: 4\ndistributed_type: MULTI_GPU\nmixed_precision: bf16\n"
    command = (
        "accelerate launch --config_file a.yaml run_clm.py --model_name_or_path gpt2 --per_device_train_batch_size 1"
    )
    script.write_text(f"#!/bin/bash\ncat <<EOF > a.yaml\n{processes}EOF\n{command}\n")
    assert read_launch(script).layout.world_size == 4


def test_a_training_after_which_another_server_tries_the_model(tmp_path: Path) -> None:
    server = "!docker run ghcr.io/huggingface/text-generation-inference:3 --model-id out"
    path = write_notebook(tmp_path, CONFIG, "!llamafactory-cli train sft.yaml", server)
    assert llmcalc.memory(launch=path, devices=1).document["launch"]["program"] == "LLaMA-Factory"
