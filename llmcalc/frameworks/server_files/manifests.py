"""Finds servers in YAML and JSON files: compose files, Kubernetes manifests and operators, Helm values.

A table is a container if it has the words of a command (`command`, `args`, `entrypoint`) or an image; what the tables
around it say holds for it too: the accelerator of the node, the model's address, the sizes of the layout.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...errors import InputError, one_line
from ..launch.shell_words import LONGEST_VALUE, variable_expander
from ..launch.skypilot import is_skypilot_task, script_of_task
from ..launch.unresolved import mark_unresolved
from ..launch.yaml_text import environment_variables, is_text_or_number, parse_yaml
from .accelerators import ACCELERATOR_LABELS, MACHINE_LABELS, accelerator_count
from .arguments import engine_of_flags
from .docker_command import parse_mount
from .engine_tables import inner_table, server_of_table, servers_of_table
from .llama_swap import is_llama_swap, servers_of_llama_swap
from .scripts import ServerFinder, engine_versions_in, starts_server
from .server import Container, StartedServer

COMMAND_KEYS = ("entrypoint", "command", "args", "modelCommand", "start_command")

NAMED_COMMANDS = {"vllmServe": ("vllm", "serve"), "imageDefault": (), "custom": ()}
"""Word for a command (`modelCommand` of llm-d's chart) → the command."""

GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu", "gpu")
"""Kubernetes resource names that count accelerators."""

PROFILE_KEY = "resourceProfile"
"""KubeAI's key for an accelerator and the number of accelerators, such as `nvidia-gpu-l4:2`."""

MODEL_KEYS = ("storageUri", "uri", "modelURI", "model_id", "repo_id", "url")
"""Keys whose value is the address of a model."""

MODEL_ADDRESS = re.compile(r"(?:hf|pvc\+hf|hf\+pvc)://(?:[\w.-]+/)??([\w.-]+/[\w.-]+)")
"""Pattern of the address of a model on the Hugging Face hub."""

PARALLEL_SIZE_KEYS = {
    "tensor": "tensor_parallel_size",
    "pipeline": "pipeline_parallel_size",
    "data": "data_parallel_size",
    "tensorParallelSize": "tensor_parallel_size",
    "pipelineParallelSize": "pipeline_parallel_size",
}
"""Key of the table `parallelism` → field of the layout."""

RUNTIME_KINDS = ("ServingRuntime", "ClusterServingRuntime")
"""Kinds of manifests whose container serves models that other manifests name."""

SKIPPED_KEYS = ("initContainers", "init_containers", "healthcheck", "livenessProbe", "readinessProbe", "startupProbe")
"""Keys whose tables contain no servers."""

YAML_TEXT_KEYS = ("serveConfigV2",)
"""Keys whose value is another YAML document as text."""

DEEPEST_NESTING = 30
"""Largest nesting depth of tables."""


def servers_in_tables(
    config: Any, server_finder: ServerFinder, variables: Mapping[str, str]
) -> Iterator[StartedServer]:
    """Yields the servers in the tables of a parsed file.

    server_finder: the file's finder. variables: variables that the file may use.
    """
    if isinstance(config, Mapping) and isinstance(config.get("services"), Mapping) and "apiVersion" not in config:
        yield from _compose_servers(config, server_finder, variables)
        return
    if is_llama_swap(config):
        for container in servers_of_llama_swap(config, server_finder.name_in_errors, variables):
            yield from server_finder.servers_in_command(container)
        return
    yaml_documents = config if isinstance(config, list) else [config]
    for yaml_document in yaml_documents:
        if is_skypilot_task(yaml_document):
            yield from _skypilot_servers(yaml_document, server_finder, variables)
    manifest_items = [
        manifest_item
        for yaml_part in yaml_documents
        if isinstance(yaml_part, Mapping)
        for manifest_item in (yaml_part["items"] if isinstance(yaml_part.get("items"), list) else [yaml_part])
        if isinstance(manifest_item, Mapping)
    ]
    serving_runtimes = {
        str(inner_table(manifest_item, "metadata").get("name")): manifest_item
        for manifest_item in manifest_items
        if str(manifest_item.get("kind")) in RUNTIME_KINDS
    }
    used_runtime_names = {
        str(inner_table(manifest_item, "spec", "predictor", "model").get("runtime")) for manifest_item in manifest_items
    }
    for manifest_item in manifest_items:
        manifest_kind = str(manifest_item.get("kind", ""))
        table_servers = list(servers_of_table(manifest_item))
        for container in table_servers:
            yield from server_finder.servers_in_command(container)
        if table_servers:
            continue
        serving_runtime = serving_runtimes.get(
            str(inner_table(manifest_item, "spec", "predictor", "model").get("runtime"))
        )
        if manifest_kind == "InferenceService" and serving_runtime is not None:
            yield from _inference_service_with_runtime(manifest_item, serving_runtime, server_finder)
        elif manifest_kind == "ConfigMap":
            yield from _config_map_servers(manifest_item, server_finder)
        elif manifest_kind == "LLMInferenceService":
            yield from _llm_inference_service(manifest_item, server_finder)
        elif (
            manifest_kind not in RUNTIME_KINDS
            or str(inner_table(manifest_item, "metadata").get("name")) not in used_runtime_names
        ):
            yield from _container_servers(manifest_item, (), manifest_kind, server_finder)


# ---- compose files


def _compose_servers(
    config: Mapping[str, Any], server_finder: ServerFinder, variables: Mapping[str, str]
) -> Iterator[StartedServer]:
    """Yields the servers of a Docker Compose file."""
    expand_variables = variable_expander(server_finder.name_in_errors, variables)
    for service_name, service_table in config["services"].items():
        if not isinstance(service_table, Mapping):
            continue
        place_in_file = f"services.{one_line(str(service_name))[:60]}"
        expanded_fields = {
            field_key: _expand_variables(service_table.get(field_key), expand_variables)
            for field_key in (*COMMAND_KEYS, "environment", "image", "volumes")
        }
        volume_list = expanded_fields["volumes"] if isinstance(expanded_fields["volumes"], list) else []
        reserved_devices = inner_table(service_table, "deploy", "resources", "reservations").get("devices")
        container = Container(
            place_in_file=place_in_file,
            command_words=tuple(
                command_part
                for field_key in ("entrypoint", "command")
                for command_part in _command_words(expanded_fields[field_key], server_finder.name_in_errors)
            ),
            image=str(expanded_fields["image"] or ""),
            env=environment_variables(expanded_fields["environment"]),
            gpu_count=_reserved_accelerator_count(reserved_devices, f"{server_finder.name_in_errors}: {place_in_file}"),
            mounts={
                folder: host_folder for volume in volume_list for folder, host_folder in parse_mount(volume).items()
            },
        )
        command_words = tuple(command_word.replace(DOLLAR_MARK, "$") for command_word in container.command_words)
        yield from server_finder.servers_in_command(replace(container, command_words=command_words))


DOLLAR_MARK = "\ue024"
"""Replacement for `$$` of a compose file, which becomes `$` in the container."""

_LITERAL_DOLLAR = re.compile(r"\$(?![A-Za-z_{])")
"""Pattern of a `$` in a compose file that begins no variable, as in `"$@"`; the container's shell reads it
(compose-go).
"""


def _expand_variables(manifest_value: Any, expand_variables: Callable[[str], str]) -> Any:
    """Returns a value in which variables (`${NAME:-default}`) are expanded."""
    if isinstance(manifest_value, str):
        return expand_variables(_LITERAL_DOLLAR.sub(DOLLAR_MARK, manifest_value.replace("$$", DOLLAR_MARK)))
    if isinstance(manifest_value, Mapping):
        return {
            table_key: _expand_variables(nested_value, expand_variables)
            for table_key, nested_value in manifest_value.items()
        }
    if isinstance(manifest_value, list):
        return [_expand_variables(nested_value, expand_variables) for nested_value in manifest_value]
    return manifest_value


def _reserved_accelerator_count(reserved_devices: Any, name_in_errors: str) -> int | None:
    """Returns the number of accelerators that a compose service reserves; None if it reserves none."""
    for device_table in reserved_devices if isinstance(reserved_devices, list) else ():
        if isinstance(device_table, Mapping):
            device_ids = device_table.get("device_ids")
            if isinstance(device_ids, list):
                return len(device_ids)
            device_count = accelerator_count(device_table.get("count"), f"{name_in_errors}: count")
            if device_count is not None:
                return device_count
    return None


# ---- SkyPilot


def _skypilot_servers(
    config: Mapping[str, Any], server_finder: ServerFinder, variables: Mapping[str, str]
) -> Iterator[StartedServer]:
    """Yields the servers of a SkyPilot task, from its script `run` and its accelerators."""
    task_script = script_of_task(config, variables)
    setup_script = config.get("setup")
    engine_versions = engine_versions_in(setup_script) if isinstance(setup_script, str) else {}
    container = Container(
        "run", image="script", gpu_name=task_script.accelerator_name, gpu_count=task_script.accelerator_count
    )
    for started_server in server_finder.servers_in_script(task_script.text, task_script.variables, (), container):
        yield started_server.with_version_in_file(engine_versions)


# ---- Kubernetes and its operators


def _config_map_servers(config_map: Mapping[str, Any], server_finder: ServerFinder) -> Iterator[StartedServer]:
    """Yields the servers of the scripts in a ConfigMap."""
    for script_name, script_text in inner_table(config_map, "data").items():
        if isinstance(script_text, str) and str(script_name).endswith((".sh", ".bash")) and starts_server(script_text):
            yield from server_finder.servers_in_script(
                script_text, {}, (), Container(f"data.{one_line(str(script_name))[:60]}", image="script")
            )


def _inference_service_with_runtime(
    inference_service: Mapping[str, Any], serving_runtime: Mapping[str, Any], server_finder: ServerFinder
) -> Iterator[StartedServer]:
    """Yields a KServe InferenceService's server, with the container of its serving runtime."""
    model_table = inner_table(inference_service, "spec", "predictor", "model")
    containers = inner_table(serving_runtime, "spec").get("containers")
    for container in containers if isinstance(containers, list) else ():
        if isinstance(container, Mapping):
            merged_arguments = [
                *_command_words(container.get("args"), server_finder.name_in_errors),
                *_command_words(model_table.get("args"), server_finder.name_in_errors),
            ]
            merged_variables = [*_environment_list(container.get("env")), *_environment_list(model_table.get("env"))]
            merged_container = {
                **container,
                "args": merged_arguments,
                "env": merged_variables,
                "resources": model_table.get("resources", {}),
            }
            outer_tables = inference_service, inner_table(inference_service, "spec", "predictor"), model_table
            yield from _servers_of_container(merged_container, outer_tables, "InferenceService", server_finder)
            return


def _llm_inference_service(
    inference_service: Mapping[str, Any], server_finder: ServerFinder
) -> Iterator[StartedServer]:
    """Yields the vLLM servers of KServe's LLMInferenceService, which may state no command."""
    container_servers = list(_container_servers(inference_service, (), "LLMInferenceService", server_finder))
    yield from container_servers
    if container_servers:
        return
    service_spec = inner_table(inference_service, "spec")
    for place_in_file, pod_table in (
        ("LLMInferenceService", service_spec),
        ("LLMInferenceService.prefill", inner_table(service_spec, "prefill")),
    ):
        containers = inner_table(pod_table, "template").get("containers")
        main_table = (
            next((container_table for container_table in containers if isinstance(container_table, Mapping)), {})
            if isinstance(containers, list)
            else {}
        )
        if pod_table:
            container_tables = (inference_service, service_spec, pod_table, main_table)
            container = Container(
                place_in_file=place_in_file,
                command_words=("vllm", "serve", _hub_model_name(container_tables), *_adapter_flags(container_tables)),
                image=str(main_table.get("image") or ""),
                env=environment_variables(main_table.get("env")),
                gpu_name=_node_accelerator(container_tables),
                gpu_count=_accelerator_limit(container_tables, f"{server_finder.name_in_errors}: {place_in_file}"),
                parallel_sizes=_parallel_sizes(container_tables),
            )
            yield from server_finder.servers_in_command(container)


def _container_servers(
    manifest_table: Mapping[str, Any],
    outer_tables: tuple[Mapping[str, Any], ...],
    place_in_file: str,
    server_finder: ServerFinder,
) -> Iterator[StartedServer]:
    """Yields the servers of a table and nested tables. outer_tables: enclosing tables, outermost first."""
    if len(outer_tables) > DEEPEST_NESTING:
        raise InputError(
            f"{server_finder.name_in_errors}: {place_in_file[:80]}: nested too deeply; expected at most "
            f"{DEEPEST_NESTING} tables"
        )
    server_container = server_of_table(manifest_table)
    if server_container is not None:
        gpu_name = server_container.gpu_name or _node_accelerator((*outer_tables, manifest_table))
        yield from server_finder.servers_in_command(
            replace(server_container, place_in_file=_short_location(place_in_file), gpu_name=gpu_name)
        )
        return
    if (
        any(table_key in manifest_table for table_key in COMMAND_KEYS)
        or (isinstance(manifest_table.get("image"), str) and outer_tables)
        or (_implied_engine((manifest_table,)) and _hub_model_name((manifest_table,)))
    ):
        container_servers = list(_servers_of_container(manifest_table, outer_tables, place_in_file, server_finder))
        if container_servers:
            yield from container_servers
            return
    for table_key, table_value in manifest_table.items():
        if table_key in SKIPPED_KEYS:
            continue
        if table_key in YAML_TEXT_KEYS and isinstance(table_value, str):
            table_value = parse_yaml(table_value, f"{server_finder.name_in_errors}: {table_key}")
        inner_tables = table_value if isinstance(table_value, list) else [table_value]
        for i, inner_element in enumerate(inner_tables):
            if isinstance(inner_element, Mapping):
                index_text = f"[{i}]" if isinstance(table_value, list) and len(table_value) > 1 else ""
                inner_location = f"{place_in_file}.{one_line(str(table_key))[:60]}{index_text}".lstrip(".")
                yield from _container_servers(
                    inner_element, (*outer_tables, manifest_table), inner_location, server_finder
                )


def _servers_of_container(
    container_table: Mapping[str, Any],
    outer_tables: tuple[Mapping[str, Any], ...],
    place_in_file: str,
    server_finder: ServerFinder,
) -> Iterator[StartedServer]:
    """Yields the servers that a container's table starts."""
    all_tables = (*outer_tables, container_table)
    env = environment_variables(container_table.get("env"))
    command_words = [
        command_part
        for command_key in ("command", "modelCommand", "start_command", "args")
        for command_part in _command_words(container_table.get(command_key), server_finder.name_in_errors)
    ]
    extra_arguments = env.get("VLLM_ADDITIONAL_ARGS", "")
    added_words = (
        *_split_words(extra_arguments, server_finder.name_in_errors),
        *(_adapter_flags(all_tables) if command_words else ()),
    )
    command_words = [_expand_container_variables(command_word, env) for command_word in (*command_words, *added_words)]
    image_name = container_table.get("image")
    container = Container(
        place_in_file=_short_location(place_in_file),
        command_words=tuple(command_words),
        image=image_name if isinstance(image_name, str) else _container_image(all_tables),
        env=env,
        gpu_name=_node_accelerator(all_tables),
        gpu_count=_accelerator_limit(all_tables, f"{server_finder.name_in_errors}: {_short_location(place_in_file)}"),
        model_name=_hub_model_name(all_tables),
        engine_name=_implied_engine(all_tables) or engine_of_flags(command_words),
        parallel_sizes=_parallel_sizes(all_tables),
    )
    yield from server_finder.servers_in_command(container)


def _short_location(key_path: str) -> str:
    """Returns a server's location in a manifest, without the keys that all manifests have."""
    short_location = re.sub(r"\b(spec|template|containers|podSpec|extraPodSpec|mainContainer)\b\.?", "", key_path)
    return re.sub(r"\.{2,}", ".", short_location).strip(".") or key_path


def _environment_list(environment_value: Any) -> list[Any]:
    return environment_value if isinstance(environment_value, list) else []


def _command_words(command: Any, name_in_errors: str) -> list[str]:
    """Returns the words of a command, stated as a list of words or as a text in a shell's syntax."""
    if isinstance(command, list):
        return [str(list_word) for list_word in command if is_text_or_number(list_word) or isinstance(list_word, bool)]
    if isinstance(command, str):
        return list(NAMED_COMMANDS[command]) if command in NAMED_COMMANDS else _split_words(command, name_in_errors)
    return []


def _split_words(command_text: str, name_in_errors: str) -> list[str]:
    try:
        return shlex.split(command_text)
    except ValueError:
        raise InputError(
            f"{name_in_errors}: '{one_line(command_text)[:60]}': a quote does not end; expected one that does"
        ) from None


def _expand_container_variables(command_word: str, env: Mapping[str, str]) -> str:
    """Returns a word in which `$(NAME)` is replaced by the container's variable, or marked as unresolved."""
    if "$(" not in command_word:
        return command_word
    if command_word.count("$(") * max(map(len, env.values()), default=0) > LONGEST_VALUE:
        raise InputError(f"'{one_line(command_word)[:60]}' grows too long; expected at most {LONGEST_VALUE:,} letters")
    return re.sub(
        r"\$\(([A-Za-z_]\w*)\)", lambda match: env.get(match[1], mark_unresolved(f"${match[1]}")), command_word
    )


def _container_image(outer_tables: Sequence[Mapping[str, Any]]) -> str:
    """Returns the container image in an outer table, as text or as `repository` and `tag`."""
    for outer_table in reversed(outer_tables):
        image = outer_table.get("image")
        if isinstance(image, str):
            return image
        if isinstance(image, Mapping) and isinstance(image.get("repository"), str):
            image_tag = image.get("tag")
            return f"{image['repository']}:{image_tag}" if isinstance(image_tag, str) else str(image["repository"])
    return ""


def _node_accelerator(outer_tables: Sequence[Mapping[str, Any]]) -> str:
    """Returns the accelerator of the node on which a container runs; empty if the manifest does not name it."""
    for outer_table in reversed(outer_tables):
        node_selector = {
            **inner_table(outer_table, "nodeSelector"),
            **inner_table(outer_table, "template", "nodeSelector"),
        }
        for label_name in (*ACCELERATOR_LABELS, *MACHINE_LABELS):
            if isinstance(node_selector.get(label_name), str):
                return str(node_selector[label_name])
        for label_name in (*ACCELERATOR_LABELS, "accelerator"):
            if isinstance(outer_table.get(label_name), str):
                return str(outer_table[label_name])
        if isinstance(outer_table.get(PROFILE_KEY), str):
            return str(outer_table[PROFILE_KEY]).partition(":")[0]
        node_affinity = inner_table(
            outer_table, "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"
        )
        for match_expression in (*_affinity_expressions(node_affinity), *_affinity_expressions(outer_table)):
            label_values = match_expression.get("values")
            if (
                match_expression.get("key") in (*ACCELERATOR_LABELS, *MACHINE_LABELS)
                and isinstance(label_values, list)
                and len(label_values) == 1
            ):
                return str(label_values[0])
    return ""


def _affinity_expressions(node_affinity: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yields the match expressions of a Kubernetes node affinity."""
    node_terms = node_affinity.get("nodeSelectorTerms")
    for node_term in node_terms if isinstance(node_terms, list) else ():
        for match_expression in (node_term.get("matchExpressions") or ()) if isinstance(node_term, Mapping) else ():
            if isinstance(match_expression, Mapping):
                yield match_expression


def _accelerator_limit(outer_tables: Sequence[Mapping[str, Any]], name_in_errors: str) -> int | None:
    """Returns the largest number of accelerators of a container; None if no table limits it."""
    for outer_table in reversed(outer_tables):
        profile_match = re.fullmatch(r"[\w.-]{1,80}:([0-9]{1,4})", str(outer_table.get(PROFILE_KEY, "")))
        if profile_match is not None:
            return int(profile_match[1])
        for resource_kind in ("limits", "requests"):
            resource_table = inner_table(outer_table, "resources", resource_kind)
            for resource_name in GPU_RESOURCES:
                gpu_count = accelerator_count(resource_table.get(resource_name), f"{name_in_errors}: {resource_name}")
                if gpu_count is not None:
                    return gpu_count
    return None


def _hub_model_name(outer_tables: Sequence[Mapping[str, Any]]) -> str:
    """Returns the Hugging Face name of the model in a table, from its address; empty without an address."""
    for outer_table in reversed(outer_tables):
        for address_table in (
            outer_table,
            inner_table(outer_table, "model"),
            inner_table(outer_table, "modelArtifacts"),
            inner_table(outer_table, "storage"),
        ):
            for model_key in MODEL_KEYS:
                address_match = MODEL_ADDRESS.fullmatch(str(address_table.get(model_key, "")))
                if address_match is not None:
                    return address_match[1]
    return ""


def _adapter_flags(outer_tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the flags that KServe adds for a model's LoRA adapters (`model.lora` of LLMInferenceService)."""
    for outer_table in outer_tables:
        lora_table = inner_table(outer_table, "model", "lora")
        adapter_list = lora_table.get("adapters")
        if isinstance(adapter_list, list) and adapter_list:
            lora_rank, adapter_limit = lora_table.get("maxRank", 64), lora_table.get("maxAdapters", len(adapter_list))
            return ["--enable-lora", f"--max-lora-rank={lora_rank}", f"--max-loras={adapter_limit}"]
    return []


def _implied_engine(outer_tables: Sequence[Mapping[str, Any]]) -> str:
    """Returns the serving engine that a manifest's model format or framework name implies; empty for other names."""
    engine_by_format = {"vllm": "vllm", "huggingface": "vllm", "sglang": "sglang", "trtllm": "tensorrt-llm"}
    for outer_table in reversed(outer_tables):
        for format_name in (
            inner_table(outer_table, "modelFormat").get("name"),
            outer_table.get("backendFramework"),
            outer_table.get("engine"),
        ):
            if str(format_name).lower() in engine_by_format:
                return engine_by_format[str(format_name).lower()]
    return ""


def _parallel_sizes(outer_tables: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the parallel sizes in a manifest's keys, outside of the server's command."""
    parallel_sizes: dict[str, Any] = {}
    for outer_table in outer_tables:
        for size_key, size_value in inner_table(outer_table, "parallelism").items():
            if size_key in PARALLEL_SIZE_KEYS and is_text_or_number(size_value):
                parallel_sizes[PARALLEL_SIZE_KEYS[size_key]] = str(size_value)
    return parallel_sizes
