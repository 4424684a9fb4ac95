"""Training jobs of Kubernetes: the command of their first container, with the processes that they state."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmcalc.errors import InputError
from llmcalc.frameworks.launch.kubernetes import job_script
from llmcalc.frameworks.launch.launch_types import Launch
from llmcalc.frameworks.launch.read_launch_file import launch_from_text, read_launch
from tests.samples import in_one_test

CONTAINER = """
          containers:
          - name: pytorch
            env:
            - {name: MODEL, value: Qwen/Qwen3-0.6B}
            - {name: PYTORCH_CUDA_ALLOC_CONF, value: "expandable_segments:True"}
            command: [torchrun, -m, trl.scripts.sft]
            args: ["--model_name_or_path", "$(MODEL)", "--per_device_train_batch_size", "2", "--max_length=${LENGTH}"]
            resources: {limits: {nvidia.com/gpu: 2}}
"""

PYTORCH_JOB = f"""apiVersion: kubeflow.org/v1
kind: PyTorchJob
spec:
  nprocPerNode: "4"
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      template:
        spec:{CONTAINER}
    Worker:
      replicas: 2
      template:
        spec:{CONTAINER}
"""

HYPERPOD_JOB = f"""kind: HyperPodPyTorchJob
spec:
  nprocPerNode: auto
  replicaSpecs:
  - name: pods
    replicas: $NODES
    template:
        spec:{CONTAINER}
"""

PLAIN_JOB = f"""kind: Job
spec:
    template:
        spec:{CONTAINER}
"""

TRAIN_JOB = """kind: TrainJob
spec:
  trainer:
    numNodes: 2
    numProcPerNode: 8
    command:
    - bash
    - -c
    - |
      LENGTH=64
      torchrun -m trl.scripts.sft --model_name_or_path Qwen/Qwen3-0.6B --max_length $LENGTH
"""

RAY_JOB = """kind: RayJob
spec:
  entrypoint: torchrun --nproc-per-node 4 -m trl.scripts.sft --model_name_or_path Qwen/Qwen3-0.6B --max_length 64
"""


def read(text: str, **variables: str) -> Launch:
    return launch_from_text(text, "job.yaml", shell_variables=variables)


@in_one_test
@pytest.mark.parametrize(
    ("text", "variables", "devices", "length"),
    [
        (PYTORCH_JOB, {"LENGTH": "512"}, 12, 512),
        (PYTORCH_JOB.replace("[torchrun", '[torchrun, "--nproc_per_node=8", "--nnodes=1"'), {"LENGTH": "512"}, 8, 512),
        (HYPERPOD_JOB, {"LENGTH": "128", "NODES": "3"}, 6, 128),
        (PLAIN_JOB, {"LENGTH": "128"}, 2, 128),
        (TRAIN_JOB, {}, 16, 64),
        (RAY_JOB, {}, 4, 64),
    ],
)
def test_the_command_and_the_processes_of_a_job(
    text: str, variables: dict[str, str], devices: int, length: int
) -> None:
    launch = read(text, **variables)
    assert (launch.program, launch.model_name) == ("TRL", "Qwen/Qwen3-0.6B")
    assert (launch.layout.world_size, launch.settings["seq"]) == (devices, length)


def test_the_environment_of_the_container_is_the_commands() -> None:
    assert read(PYTORCH_JOB, LENGTH="64").settings["allocator"] == "expandable"


def test_a_variable_that_envsubst_would_fill_in_is_named() -> None:
    with pytest.raises(InputError, match=r"the variable LENGTH is not set in it; expected --launch 'LENGTH=… FILE'"):
        read(PYTORCH_JOB)


def test_other_manifests_and_several_jobs() -> None:
    assert job_script(PYTORCH_JOB.replace("PyTorchJob", "Deployment"), "job.yaml", {}) is None
    assert job_script("kind: Job\nspec:\n  template: 5\n", "job.yaml", {}) is None
    with pytest.raises(InputError, match=r"job\.yaml: 2 jobs; expected a file with the one that trains"):
        read(f"{PLAIN_JOB}---\n{TRAIN_JOB}")


def test_a_file_of_the_container_is_looked_up_by_the_end_of_its_path(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "kubernetes").mkdir()
    (tmp_path / "configs" / "sft.yaml").write_text("model_name_or_path: Qwen/Qwen3-0.6B\nmax_length: 64\n")
    job = PLAIN_JOB.replace('args: ["--model', 'args: ["--config", "/app/configs/sft.yaml"] # ')
    (tmp_path / "kubernetes" / "job.yaml").write_text(job)
    assert read_launch(tmp_path / "kubernetes" / "job.yaml").settings["seq"] == 64


SHELL_JOB = """kind: Job
spec:
  template:
    spec:
      containers:
      - env:
        - {name: MODEL, value: Qwen/Qwen3-0.6B}
        - {name: RUN, value: 'a$b'}
        command: [bash, -c]
        args:
        - |
          source ./env.sh
          BS=4
          trl sft --model_name_or_path $(MODEL) --per_device_train_batch_size $BS --max_length $LENGTH --run_name $RUN
"""


def test_a_shell_replaces_its_variables_and_reads_files_beside_the_job(tmp_path: Path) -> None:
    """kubernetes.io, tasks/inject-data-application/define-interdependent-environment-variables: `$(NAME)` alone."""
    job_path = tmp_path / "job.yaml"
    (tmp_path / "env.sh").write_text("LENGTH=64\n")
    job_path.write_text(SHELL_JOB)
    launch = read_launch(job_path)
    assert (launch.model_name, launch.settings["batch"], launch.settings["seq"]) == ("Qwen/Qwen3-0.6B", 4, 64)
    script = job_script(SHELL_JOB, "job.yaml", {})
    assert script is not None
    assert "RUN='a$b'" in script.text
    job_path.write_text(SHELL_JOB.replace("BS=4", "BS='4"))
    with pytest.raises(InputError, match=r"line 13: a quote ' that does not end"):
        read_launch(job_path)
