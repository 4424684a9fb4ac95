"""Reads the command of a training job of Kubernetes, with the variables and the process numbers that it states.

Source: Kubeflow's documentation, trainer/legacy-v1/user-guides/pytorch (PyTorchJob) and trainer (TrainJob): the
operator sets `PET_NPROC_PER_NODE` and `PET_NNODES`, which torchrun reads, from `nprocPerNode` and the replicas;
KubeRay's (RayJob) and SageMaker HyperPod's (HyperPodPyTorchJob). In a container's command `$(NAME)` is a variable of
its environment.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ...errors import InputError, one_line
from .yaml_text import environment_variables, is_text_or_number, parse_yaml, split_documents

JOB_KIND = re.compile(r"^kind:[ \t]*[\"']?(PyTorchJob|HyperPodPyTorchJob|TrainJob|RayJob|Job)\b", re.MULTILINE)
"""Pattern of the manifest kinds whose containers may train."""

REPLICA_SPECS = ("pytorchReplicaSpecs", "replicaSpecs")
"""Fields with the groups of pods, in Kubeflow's PyTorchJob and in HyperPod's."""

GPU_RESOURCE = re.compile(r"(nvidia|amd)\.com/gpu")

MAX_COMPARED_LINES, SHORTEST_COMMAND = 50, 8
"""Most lines of a script, and fewest characters of a line, that are compared to find the script in a file."""

SHELLS = ("bash", "sh", "zsh", "dash", "ash")

MAX_PODS = 100_000
"""Largest number of replicas, or of processes per replica."""

LONGEST_VALUE = 10_000
"""Largest number of characters in a variable's value in which references are replaced."""

VARIABLE_IN_MANIFEST = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?")


class JobScript(NamedTuple):
    """The command of a Kubernetes training job, with the numbers of its processes and pods.

    text: the script that its first container runs, with its environment.
    processes_per_pod: processes that torchrun starts on a pod, or its GPUs; None if the manifest leaves it open.
    pod_count: pods that run the command; None if the manifest leaves it open.
    first_line_number: the line of the file on which the script begins; 1 (default) where it is not found.
    """

    text: str
    processes_per_pod: int | None
    pod_count: int | None
    first_line_number: int = 1

    @property
    def torchrun_option_words(self) -> list[str]:
        """The job's numbers of processes and pods as torchrun options; options in the command take precedence."""
        option_counts = (("--nproc-per-node", self.processes_per_pod), ("--nnodes", self.pod_count))
        return [f"{option}={process_count}" for option, process_count in option_counts if process_count is not None]


def job_script(file_text: str, name_in_errors: str, typed_variables: Mapping[str, str]) -> JobScript | None:
    """Returns the command of a file's training job; None for another file.

    typed_variables: variables that are typed beside the file, as `envsubst` has them. Raises `InputError` for several
    jobs.
    """
    if not name_in_errors.endswith((".yaml", ".yml")) or JOB_KIND.search(file_text) is None:
        return None
    documents = [document for document in split_documents(file_text, name_in_errors) if JOB_KIND.search(document)]
    texts = (
        VARIABLE_IN_MANIFEST.sub(lambda match: typed_variables.get(match[1], match[0]), document)
        for document in documents
    )
    scripts = [
        script for document_text in texts for script in _scripts_of_manifest(parse_yaml(document_text, name_in_errors))
    ]
    if len(scripts) > 1:
        raise InputError(f"{name_in_errors}: {len(scripts)} jobs; expected a file with the one that trains")
    if not scripts:
        return None
    return scripts[0]._replace(first_line_number=_first_line_of_script(scripts[0].text, file_text))


def _first_line_of_script(script_text: str, file_text: str) -> int:
    """Returns the line number at which a job's script begins in its file; 1 if the script is not found."""
    file_lines = [file_text_line.strip() for file_text_line in file_text.splitlines()]
    for script_line_index, script_line in enumerate(script_text.splitlines()[:MAX_COMPARED_LINES]):
        for file_line_index, file_line in enumerate(file_lines):
            if len(file_line) >= SHORTEST_COMMAND and file_line in script_line:
                return max(1, file_line_index + 1 - script_line_index)
    return 1


def _scripts_of_manifest(manifest: Any) -> Iterator[JobScript]:
    """Yields the script in the manifest of a Kubernetes training job, if the manifest states a script."""
    job_spec = manifest.get("spec") if isinstance(manifest, Mapping) else None
    if not isinstance(job_spec, Mapping):
        return
    if isinstance(job_spec.get("entrypoint"), str):  # of a RayJob
        yield JobScript(job_spec["entrypoint"], None, None)
        return
    groups = next((job_spec[field_name] for field_name in REPLICA_SPECS if field_name in job_spec), None)
    pod_groups = (
        list(groups.values()) if isinstance(groups, Mapping) else groups if isinstance(groups, list) else [job_spec]
    )
    pod_groups = [pod_group for pod_group in pod_groups if isinstance(pod_group, Mapping)][:20]
    trainer: Any = job_spec.get("trainer")
    containers = [
        *([trainer] if isinstance(trainer, Mapping) else ()),
        *(container for pod_group in pod_groups for container in _containers(pod_group)),
    ]
    container = next((container for container in containers if _command_words(container)), None)
    if container is None:
        return
    is_trainer = container is trainer
    process_field, pods = ("numProcPerNode", container.get("numNodes")) if is_trainer else ("nprocPerNode", None)
    processes = _count_or_none((trainer if is_trainer else job_spec).get(process_field))
    replica_counts = [_count_or_none(pod_group.get("replicas", 1)) for pod_group in pod_groups]
    if pods is not None or is_trainer:
        replica_counts = [_count_or_none(1 if pods is None else pods)]
    known_counts = [known_count for known_count in replica_counts if known_count is not None]
    pod_count = sum(known_counts) if len(known_counts) == len(replica_counts) else None
    yield JobScript(_script_text(container), _gpu_limit(container) if processes is None else processes, pod_count)


def _containers(pod_group: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yields the containers that the pods of a group run."""
    template = pod_group.get("template")
    pod_spec = template.get("spec") if isinstance(template, Mapping) else None
    containers = pod_spec.get("containers") if isinstance(pod_spec, Mapping) else None
    for container in containers[:20] if isinstance(containers, list) else ():
        if isinstance(container, Mapping):
            yield container


def _command_words(container: Mapping[str, Any]) -> list[str]:
    """Returns the words of a container's command and arguments."""
    word_lists = (container.get(field_name) for field_name in ("command", "args"))
    return [
        str(field_word)
        for field_words in word_lists
        for field_word in (
            field_words if isinstance(field_words, list) else [field_words] if isinstance(field_words, str) else ()
        )
        if is_text_or_number(field_word)
    ]


def _script_text(container: Mapping[str, Any]) -> str:
    """Returns the script of a container's command, after the assignments of its environment."""
    environment: dict[str, str] = {}

    def with_values(variable_text: str) -> str:
        """Returns a text with `$(NAME)` replaced by values of earlier variables, as Kubernetes does before a shell."""
        return re.sub(r"\$\(([A-Za-z_]\w*)\)", lambda match: environment.get(match[1], match[0]), variable_text)

    for name, variable_text in environment_variables(container.get("env")).items():
        environment[name] = with_values(variable_text)[:LONGEST_VALUE]
    assignments = [
        f"export {name}={value if VARIABLE_IN_MANIFEST.fullmatch(value) else shlex.quote(value)}"
        for name, value in environment.items()
        if re.fullmatch(r"[A-Za-z_]\w*", name)
    ]
    shell_words = [*map(with_values, _command_words(container))]
    is_shell = shell_words[0].rpartition("/")[2] in SHELLS and any(
        re.fullmatch(r"-\w*c\w*", shell_word) for shell_word in shell_words[1:4]
    )
    return "\n".join([*assignments, shlex.join(shell_words) if is_shell else " ".join(map(_quoted_word, shell_words))])


def _quoted_word(shell_word: str) -> str:
    """Returns a word that a shell reads unchanged, except for the variables that `envsubst` replaces."""
    return (
        '"' + re.sub(r'(["\\`])', r"\\\1", shell_word) + '"'
        if "$" in shell_word and "\n" not in shell_word
        else shlex.quote(shell_word)
    )


def _count_or_none(written_count: Any) -> int | None:
    """Returns a manifest's number of processes or pods; None for a word such as `auto` or a variable."""
    count_text = one_line(str(written_count))
    if isinstance(written_count, bool) or not re.fullmatch(r"[0-9]{1,6}", count_text) or int(count_text) > MAX_PODS:
        return None
    return int(count_text)


def _gpu_limit(container: Mapping[str, Any]) -> int | None:
    """Returns the number of GPUs that a container's limits state; None if they state none."""
    resources = container.get("resources", container.get("resourcesPerNode"))
    tables = [resources.get(name) for name in ("limits", "requests")] if isinstance(resources, Mapping) else []
    gpu_counts: Sequence[int | None] = [
        _count_or_none(gpu_count)
        for resource_table in tables
        if isinstance(resource_table, Mapping)
        for resource, gpu_count in resource_table.items()
        if GPU_RESOURCE.fullmatch(str(resource))
    ]
    return next((gpu_count for gpu_count in gpu_counts if gpu_count), None)
