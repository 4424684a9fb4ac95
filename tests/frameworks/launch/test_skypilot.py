"""Tasks of SkyPilot, whose script trains: verl, SkyRL and Oumi come with such files."""

from __future__ import annotations

from pathlib import Path

import pytest

import llmcalc
from llmcalc.errors import InputError
from llmcalc.frameworks.launch.read_launch_file import read_launch
from llmcalc.frameworks.launch.skypilot import resource_accelerators, script_of_task, task_accelerators
from llmcalc.frameworks.server_files.read import starts_any_server
from tests.samples import in_one_test

ARGUMENTS = "--model_name_or_path gpt2 --per_device_train_batch_size 2 --learning_rate 1e-4 --output_dir out --do_train"

TASK = f"""
resources:
  accelerators: {{H100:8, H200:8}}
num_nodes: 2
envs:
  MODEL: gpt2
  TOKEN:
setup: |
  pip install trl vllm
run: |
  MASTER=$(echo "$SKYPILOT_NODE_IPS" | head -n1)
  NODES=`echo "$SKYPILOT_NODE_IPS" | wc -l`
  torchrun --nnodes $NODES --nproc_per_node $SKYPILOT_NUM_GPUS_PER_NODE --node_rank $SKYPILOT_NODE_RANK \\
    --master_addr $MASTER train.py {ARGUMENTS.replace("gpt2", "$MODEL")}
"""


def test_a_task_is_read_as_its_script_on_all_nodes(tmp_path: Path) -> None:
    launch = read_launch(_file(tmp_path, TASK))
    assert (launch.model_name, launch.layout.world_size, launch.settings["batch"]) == ("gpt2", 16, 2)
    assert read_launch(f"MODEL=gpt2-medium {_file(tmp_path, TASK)}").model_name == "gpt2-medium"
    for number, command in (
        (8, "accelerate launch train.py"),  # a process on each device; each node starts its own run
        (8, "torchrun --nproc_per_node $SKYPILOT_NUM_GPUS_PER_NODE train.py"),
        (16, "deepspeed --hostfile hosts train.py"),
        (16, "oumi distributed torchrun train.py"),
        (16, "accelerate launch --num_processes $((SKYPILOT_NUM_NODES * SKYPILOT_NUM_GPUS_PER_NODE)) train.py"),
    ):
        text = f"name: a\nnum_nodes: 2\nresources:\n  accelerators: 'A100:8'\nrun: |\n  {command} {ARGUMENTS}\n"
        assert read_launch(_file(tmp_path, text)).layout.world_size == number, command
    assert not starts_any_server(_file(tmp_path, TASK))


def test_a_task_of_one_line_and_tasks_of_several_documents(tmp_path: Path) -> None:
    task = f"name: train\nrun: torchrun --nproc_per_node 4 train.py {ARGUMENTS}\n"
    download = "name: download\nrun: |\n  hf download gpt2\n"
    for text in (task, task.partition("\n")[2], f"name: pipe\n---\n{task}", f"name: pipe\n---\n{download}---\n{task}"):
        assert read_launch(_file(tmp_path, text)).layout.world_size == 4, text
    with pytest.raises(InputError, match=r"task\.yaml: several tasks \(train, train\)"):
        read_launch(_file(tmp_path, f"{task}---\n{task}"))
    with pytest.raises(InputError, match="or a SkyPilot task"):
        read_launch(_file(tmp_path, "name: pipe\n"))


@pytest.mark.parametrize(
    ("accelerators", "hardware", "fitting"),
    [
        ("L4:2", None, ["l4"]),
        ("A100:8", None, ["a100-40gb"]),  # A100-80GB is another name (`sky show-gpus`)
        ("{H100:8, H100:4}", None, ["h100-sxm"]),
        ("L4:2", "t4", ["t4"]),
    ],
)
def test_the_accelerator_of_a_task_is_the_hardware(
    tmp_path: Path, accelerators: str, hardware: str | None, fitting: list[str]
) -> None:
    path = _file(tmp_path, TASK.replace("{H100:8, H200:8}", accelerators).replace("_GPUS_PER_NODE", "_NODES"))
    fits = llmcalc.memory(launch=path, hardware=hardware, seq=64).fits
    assert [fit.hardware.name for fit in fits] == fitting


def test_an_unknown_accelerator_of_a_task_is_noted(tmp_path: Path) -> None:
    launch = llmcalc.memory(launch=_file(tmp_path, TASK.replace("{H100:8, H200:8}", "Q9:8")), seq=64).launch
    assert launch is not None
    assert any("'Q9', is not known: --hardware names one" in note for note in launch.notes)


def test_an_error_names_the_tasks_file(tmp_path: Path) -> None:
    """Lines are those of the file, not of the script in it."""
    text = "name: a\nrun: |\n\n  # a comment\n  torchrun --nproc_per_node 2 own.py --lr 1\n"
    with pytest.raises(InputError, match=r"task\.yaml: no command runs.*own\.py \(line 5\)"):
        read_launch(_file(tmp_path, text))


@in_one_test
@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("H100:8", [("H100", 8)]),
        ("L4", [("L4", 1)]),
        (["A100:8", "H100:8"], [("A100", 8), ("H100", 8)]),
        ({"H100": 4}, [("H100", 4)]),
        ({"H100:8": None, "H200:8": None}, [("H100", 8), ("H200", 8)]),
        (None, []),
    ],
)
def test_accelerators_of_a_task(written: object, read: list[tuple[str, int]]) -> None:
    assert task_accelerators(written) == read


@pytest.mark.parametrize(
    ("resources", "accelerators"),
    [
        ({"any_of": [{"accelerators": "H100:8"}, {"accelerators": "H200:8"}]}, [("H100", 8), ("H200", 8)]),
        (
            {"ordered": [{"infra": "aws", "accelerators": "H100:8"}, {"infra": "gcp"}], "accelerators": "H100:8"},
            [("H100", 8)],
        ),
        ({"any_of": "H100:8", "accelerators": "L4:2"}, [("L4", 2)]),
        ({"any_of": [{"accelerators": "H100:8"}, {"accelerators": "L4:2"}]}, [("H100", 8), ("L4", 2)]),
        ({}, []),
    ],
)
def test_alternatives_of_a_tasks_resources(resources: dict[str, object], accelerators: list[tuple[str, int]]) -> None:
    """Source: SkyPilot's documentation, reference/yaml-spec (`resources.any_of`, `resources.ordered`)."""
    assert resource_accelerators(resources) == accelerators
    assert script_of_task({"resources": resources, "run": ""}, {}).accelerator_count == (
        accelerators[0][1] if len({number for _, number in accelerators}) == 1 else None
    )


def _file(folder: Path, text: str) -> str:
    (folder / "task.yaml").write_text(text)
    return str(folder / "task.yaml")
