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
from ..launch.text import parse_yaml
from ..launch.unresolved import UNRESOLVED, unresolved
from .accelerators import ACCELERATOR_LABELS, MACHINE_LABELS, accelerator_count
from .arguments import engine_of_flags
from .docker_command import mount_of
from .engine_tables import inner_table, table_of_engine, tables_of_engines
from .llama_swap import is_llama_swap, servers_of_llama_swap
from .scripts import ServerFinder, starts_server, versions_in
from .server import Container, StartedServer

COMMAND_KEYS = ("entrypoint", "command", "args", "modelCommand", "start_command")

NAMED_COMMANDS = {"vllmServe": ("vllm", "serve"), "imageDefault": (), "custom": ()}
"""Words that stand for a command (`modelCommand` of llm-d's chart) → the command."""

GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu", "gpu")
"""Names of the resource that counts accelerators."""

PROFILE_KEY = "resourceProfile"
"""Key of KubeAI whose value is an accelerator and their number, such as `nvidia-gpu-l4:2`."""

MODEL_KEYS = ("storageUri", "uri", "modelURI", "model_id", "repo_id", "url")
"""Keys of the address of a model."""

MODEL_ADDRESS = re.compile(r"(?:hf|pvc\+hf|hf\+pvc)://(?:[\w.-]+/)??([\w.-]+/[\w.-]+)")
"""The address of a model of the hub."""

PARALLEL_SIZE_KEYS = {
    "tensor": "tensor_parallel_size",
    "pipeline": "pipeline_parallel_size",
    "data": "data_parallel_size",
    "tensorParallelSize": "tensor_parallel_size",
    "pipelineParallelSize": "pipeline_parallel_size",
}
"""Keys of `parallelism` → the fields of the layout."""

RUNTIME_KINDS = ("ServingRuntime", "ClusterServingRuntime")
"""Kinds of manifests whose container serves the models of others."""

SKIPPED_KEYS = ("initContainers", "init_containers", "healthcheck", "livenessProbe", "readinessProbe", "startupProbe")
"""Keys of tables without servers."""

YAML_TEXT_KEYS = ("serveConfigV2",)
"""Keys whose value is the text of another YAML document."""

DEEPEST_NESTING = 30
"""Largest depth of tables."""


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
        for container in servers_of_llama_swap(config, server_finder.where, variables):
            yield from server_finder.in_words(container)
        return
    documents = config if isinstance(config, list) else [config]
    for document in documents:
        if isinstance(document, Mapping) and isinstance(document.get("run"), str) and "jobs" not in document:
            yield from _skypilot_servers(document, server_finder, variables)
    items = [
        item
        for document in documents
        if isinstance(document, Mapping)
        for item in (document["items"] if isinstance(document.get("items"), list) else [document])
        if isinstance(item, Mapping)
    ]
    runtimes = {
        str(inner_table(item, "metadata").get("name")): item for item in items if str(item.get("kind")) in RUNTIME_KINDS
    }
    used_runtimes = {str(inner_table(item, "spec", "predictor", "model").get("runtime")) for item in items}
    for item in items:
        kind = str(item.get("kind", ""))
        table_servers = list(tables_of_engines(item))
        for container in table_servers:
            yield from server_finder.in_words(container)
        if table_servers:
            continue
        runtime = runtimes.get(str(inner_table(item, "spec", "predictor", "model").get("runtime")))
        if kind == "InferenceService" and runtime is not None:
            yield from _inference_service_with_runtime(item, runtime, server_finder)
        elif kind == "ConfigMap":
            yield from _config_map_servers(item, server_finder)
        elif kind == "LLMInferenceService":
            yield from _llm_inference_service(item, server_finder)
        elif kind not in RUNTIME_KINDS or str(inner_table(item, "metadata").get("name")) not in used_runtimes:
            yield from _container_servers(item, (), kind, server_finder)


# ---- compose files


def _compose_servers(
    config: Mapping[str, Any], server_finder: ServerFinder, variables: Mapping[str, str]
) -> Iterator[StartedServer]:
    """Yields the servers of a Docker Compose file."""
    expand_variables = variable_expander(server_finder.where, variables)
    for name, service in config["services"].items():
        if not isinstance(service, Mapping):
            continue
        place_in_file = f"services.{one_line(str(name))[:60]}"
        text = {
            key: _expand_variables(service.get(key), expand_variables)
            for key in (*COMMAND_KEYS, "environment", "image", "volumes")
        }
        volumes = text["volumes"] if isinstance(text["volumes"], list) else []
        devices = inner_table(service, "deploy", "resources", "reservations").get("devices")
        container = Container(
            place=place_in_file,
            words=tuple(
                word for key in ("entrypoint", "command") for word in _command_words(text[key], server_finder.where)
            ),
            image=str(text["image"] or ""),
            env=_environment_variables(text["environment"]),
            gpus=_reserved_accelerators(devices, f"{server_finder.where}: {place_in_file}"),
            mounts={folder: source for volume in volumes for folder, source in mount_of(volume).items()},
        )
        words = tuple(command_word.replace(DOLLAR_MARK, "$") for command_word in container.words)
        yield from server_finder.in_words(replace(container, words=words))


DOLLAR_MARK = "\ue024"
"""Stands for `$$` of a compose file, which is `$` in the container."""

_LITERAL_DOLLAR = re.compile(r"\$(?![A-Za-z_{])")
"""A `$` that begins no variable of a compose file, as in `"$@"`; it stays for the container's shell (compose-go)."""


def _expand_variables(value: Any, expand_variables: Callable[[str], str]) -> Any:
    """Returns a value in which variables (`${NAME:-default}`) are expanded."""
    if isinstance(value, str):
        return expand_variables(_LITERAL_DOLLAR.sub(DOLLAR_MARK, value.replace("$$", DOLLAR_MARK)))
    if isinstance(value, Mapping):
        return {key: _expand_variables(element, expand_variables) for key, element in value.items()}
    return [_expand_variables(element, expand_variables) for element in value] if isinstance(value, list) else value


def _reserved_accelerators(devices: Any, name_in_errors: str) -> int | None:
    """Returns the number of accelerators that a compose service reserves; None if it reserves none."""
    for device in devices if isinstance(devices, list) else ():
        if isinstance(device, Mapping):
            ids = device.get("device_ids")
            count = (
                len(ids)
                if isinstance(ids, list)
                else accelerator_count(device.get("count"), f"{name_in_errors}: count")
            )
            if count is not None:
                return count
    return None


# ---- SkyPilot


def _skypilot_servers(
    config: Mapping[str, Any], server_finder: ServerFinder, variables: Mapping[str, str]
) -> Iterator[StartedServer]:
    """Yields the servers of a SkyPilot task, from its script `run` and its accelerators."""
    gpus = _task_accelerators(inner_table(config, "resources").get("accelerators"))
    gpu, number = gpus[0] if len(gpus) == 1 else ("", None)
    counts = {count for _, count in gpus}
    env = {**_environment_variables(config.get("envs")), **_environment_variables(config.get("secrets")), **variables}
    if len(counts) == 1:
        number = counts.pop()
        env.setdefault("SKYPILOT_NUM_GPUS_PER_NODE", str(number))
    setup_script = config.get("setup")
    versions = versions_in(setup_script) if isinstance(setup_script, str) else {}
    container = Container("run", image="script", gpu=gpu, gpus=number)
    for started_server in server_finder.in_script(config["run"], env, (), container):
        yield started_server.with_version_of(versions)


def _task_accelerators(value: Any) -> list[tuple[str, int]]:
    """Returns the alternative accelerators of a SkyPilot task as (name, number), from text such as `H100:8`."""
    if isinstance(value, Mapping):
        return [(str(name), count if type(count) is int else 1) for name, count in value.items()][:20]
    texts = value if isinstance(value, list) else [value] if isinstance(value, str) else []
    name_and_count = [str(text).partition(":") for text in texts[:20]]
    return [
        (name.strip(), int(count) if re.fullmatch(r"[0-9]{1,4}", count) else 1) for name, _, count in name_and_count
    ]


# ---- Kubernetes and its operators


def _config_map_servers(item: Mapping[str, Any], server_finder: ServerFinder) -> Iterator[StartedServer]:
    """Yields the servers of the scripts in a ConfigMap."""
    for name, text in inner_table(item, "data").items():
        if isinstance(text, str) and str(name).endswith((".sh", ".bash")) and starts_server(text):
            yield from server_finder.in_script(
                text, {}, (), Container(f"data.{one_line(str(name))[:60]}", image="script")
            )


def _inference_service_with_runtime(
    item: Mapping[str, Any], runtime: Mapping[str, Any], server_finder: ServerFinder
) -> Iterator[StartedServer]:
    """Yields the server of a KServe InferenceService, with the container and arguments of its runtime."""
    model = inner_table(item, "spec", "predictor", "model")
    containers = inner_table(runtime, "spec").get("containers")
    for container in containers if isinstance(containers, list) else ():
        if isinstance(container, Mapping):
            args = [
                *_command_words(container.get("args"), server_finder.where),
                *_command_words(model.get("args"), server_finder.where),
            ]
            env = [*_env_list(container.get("env")), *_env_list(model.get("env"))]
            joined_container = {**container, "args": args, "env": env, "resources": model.get("resources", {})}
            outer_tables = item, inner_table(item, "spec", "predictor"), model
            yield from _servers_of_container(joined_container, outer_tables, "InferenceService", server_finder)
            return


def _llm_inference_service(item: Mapping[str, Any], server_finder: ServerFinder) -> Iterator[StartedServer]:
    """Yields the vLLM servers of KServe's LLMInferenceService, which may state no command."""
    servers = list(_container_servers(item, (), "LLMInferenceService", server_finder))
    yield from servers
    if servers:
        return
    spec = inner_table(item, "spec")
    for place_in_file, table in (
        ("LLMInferenceService", spec),
        ("LLMInferenceService.prefill", inner_table(spec, "prefill")),
    ):
        containers = inner_table(table, "template").get("containers")
        main_table = (
            next((container_table for container_table in containers if isinstance(container_table, Mapping)), {})
            if isinstance(containers, list)
            else {}
        )
        if table:
            tables = (item, spec, table, main_table)
            container = Container(
                place=place_in_file,
                words=("vllm", "serve", _hub_model(tables), *_adapter_flags(tables)),
                image=str(main_table.get("image") or ""),
                env=_environment_variables(main_table.get("env")),
                gpu=_node_accelerator(tables),
                gpus=_accelerator_limit(tables, f"{server_finder.where}: {place_in_file}"),
                sizes=_parallel_sizes(tables),
            )
            yield from server_finder.in_words(container)


def _container_servers(
    table: Mapping[str, Any],
    outer_tables: tuple[Mapping[str, Any], ...],
    place_in_file: str,
    server_finder: ServerFinder,
) -> Iterator[StartedServer]:
    """Yields the servers of a table and nested tables. outer_tables: enclosing tables, outermost first."""
    if len(outer_tables) > DEEPEST_NESTING:
        raise InputError(
            f"{server_finder.where}: {place_in_file[:80]}: nested too deeply; expected at most {DEEPEST_NESTING} tables"
        )
    named_server = table_of_engine(table)
    if named_server is not None:
        gpu = named_server.gpu or _node_accelerator((*outer_tables, table))
        yield from server_finder.in_words(replace(named_server, place=_short_place(place_in_file), gpu=gpu))
        return
    if (
        any(key in table for key in COMMAND_KEYS)
        or (isinstance(table.get("image"), str) and outer_tables)
        or (_implied_engine((table,)) and _hub_model((table,)))
    ):
        servers = list(_servers_of_container(table, outer_tables, place_in_file, server_finder))
        if servers:
            yield from servers
            return
    for key, value in table.items():
        if key in SKIPPED_KEYS:
            continue
        if key in YAML_TEXT_KEYS and isinstance(value, str):
            value = parse_yaml(value, f"{server_finder.where}: {key}")
        tables = value if isinstance(value, list) else [value]
        for i, element in enumerate(tables):
            if isinstance(element, Mapping):
                index = f"[{i}]" if isinstance(value, list) and len(value) > 1 else ""
                name = f"{place_in_file}.{one_line(str(key))[:60]}{index}".lstrip(".")
                yield from _container_servers(element, (*outer_tables, table), name, server_finder)


def _servers_of_container(
    table: Mapping[str, Any],
    outer_tables: tuple[Mapping[str, Any], ...],
    place_in_file: str,
    server_finder: ServerFinder,
) -> Iterator[StartedServer]:
    """Yields the servers that a container's table starts."""
    tables = (*outer_tables, table)
    env = _environment_variables(table.get("env"))
    words = [
        word
        for key in ("command", "modelCommand", "start_command", "args")
        for word in _command_words(table.get(key), server_finder.where)
    ]
    extra_arguments = env.get("VLLM_ADDITIONAL_ARGS", "")
    added_words = (*_split_words(extra_arguments, server_finder.where), *(_adapter_flags(tables) if words else ()))
    words = [_expand_container_variables(command_word, env) for command_word in (*words, *added_words)]
    image = table.get("image")
    container = Container(
        place=_short_place(place_in_file),
        words=tuple(words),
        image=image if isinstance(image, str) else _container_image(tables),
        env=env,
        gpu=_node_accelerator(tables),
        gpus=_accelerator_limit(tables, f"{server_finder.where}: {_short_place(place_in_file)}"),
        model=_hub_model(tables),
        engine=_implied_engine(tables) or engine_of_flags(words),
        sizes=_parallel_sizes(tables),
    )
    yield from server_finder.in_words(container)


def _short_place(location: str) -> str:
    """Returns the path of keys to a server in a manifest, without the keys that are in every manifest."""
    short_place = re.sub(r"\b(spec|template|containers|podSpec|extraPodSpec|mainContainer)\b\.?", "", location)
    return re.sub(r"\.{2,}", ".", short_place).strip(".") or location


def _environment_variables(value: Any) -> dict[str, str]:
    """Returns environment variables, from a list of `NAME=VALUE`, a list of `name` and `value` tables, or a table."""
    if isinstance(value, Mapping):
        return {str(name): str(text) for name, text in value.items() if _is_plain(text)}
    env: dict[str, str] = {}
    for element in value if isinstance(value, list) else ():
        if isinstance(element, Mapping) and _is_plain(element.get("value")):
            env[str(element.get("name"))] = str(element["value"])
        elif isinstance(element, str) and "=" in element:
            name, _, text = element.partition("=")
            env[name] = text
    return {name: text for name, text in env.items() if UNRESOLVED not in text}


def _env_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def _command_words(value: Any, name_in_errors: str) -> list[str]:
    """Returns the words of a command, from a list of words or from a text, which is split as a shell does."""
    if isinstance(value, list):
        return [str(element) for element in value if _is_plain(element) or isinstance(element, bool)]
    if isinstance(value, str):
        return list(NAMED_COMMANDS[value]) if value in NAMED_COMMANDS else _split_words(value, name_in_errors)
    return []


def _split_words(text: str, name_in_errors: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        raise InputError(
            f"{name_in_errors}: '{one_line(text)[:60]}': a quote does not end; expected one that does"
        ) from None


def _expand_container_variables(word: str, env: Mapping[str, str]) -> str:
    """Returns a word in which `$(NAME)` is replaced by the container's variable, or marked as unresolved."""
    if "$(" not in word:
        return word
    if word.count("$(") * max(map(len, env.values()), default=0) > LONGEST_VALUE:
        raise InputError(f"'{one_line(word)[:60]}' grows too long; expected at most {LONGEST_VALUE:,} letters")
    return re.sub(r"\$\(([A-Za-z_]\w*)\)", lambda match: env.get(match[1], unresolved(f"${match[1]}")), word)


def _container_image(tables: Sequence[Mapping[str, Any]]) -> str:
    """Returns the container image in an outer table, as text or as `repository` and `tag`."""
    for table in reversed(tables):
        image = table.get("image")
        if isinstance(image, str):
            return image
        if isinstance(image, Mapping) and isinstance(image.get("repository"), str):
            tag = image.get("tag")
            return f"{image['repository']}:{tag}" if isinstance(tag, str) else str(image["repository"])
    return ""


def _node_accelerator(tables: Sequence[Mapping[str, Any]]) -> str:
    """Returns the accelerator of the node on which a container runs; empty if no table names it."""
    for table in reversed(tables):
        selector = {**inner_table(table, "nodeSelector"), **inner_table(table, "template", "nodeSelector")}
        for label in (*ACCELERATOR_LABELS, *MACHINE_LABELS):
            if isinstance(selector.get(label), str):
                return str(selector[label])
        for label in (*ACCELERATOR_LABELS, "accelerator"):
            if isinstance(table.get(label), str):
                return str(table[label])
        if isinstance(table.get(PROFILE_KEY), str):
            return str(table[PROFILE_KEY]).partition(":")[0]
        node_affinity = inner_table(table, "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
        for expression in (*_affinity_expressions(node_affinity), *_affinity_expressions(table)):
            values = expression.get("values")
            if (
                expression.get("key") in (*ACCELERATOR_LABELS, *MACHINE_LABELS)
                and isinstance(values, list)
                and len(values) == 1
            ):
                return str(values[0])
    return ""


def _affinity_expressions(node_affinity: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yields the match expressions of a Kubernetes node affinity."""
    node_terms = node_affinity.get("nodeSelectorTerms")
    for term in node_terms if isinstance(node_terms, list) else ():
        for expression in (term.get("matchExpressions") or ()) if isinstance(term, Mapping) else ():
            if isinstance(expression, Mapping):
                yield expression


def _accelerator_limit(tables: Sequence[Mapping[str, Any]], name_in_errors: str) -> int | None:
    """Returns the largest number of accelerators of a container; None if no table limits it."""
    for table in reversed(tables):
        profile = re.fullmatch(r"[\w.-]{1,80}:([0-9]{1,4})", str(table.get(PROFILE_KEY, "")))
        if profile is not None:
            return int(profile[1])
        for kind in ("limits", "requests"):
            resources = inner_table(table, "resources", kind)
            for name in GPU_RESOURCES:
                count = accelerator_count(resources.get(name), f"{name_in_errors}: {name}")
                if count is not None:
                    return count
    return None


def _hub_model(tables: Sequence[Mapping[str, Any]]) -> str:
    """Returns the Hugging Face name of the model in a table, from its address; empty without an address."""
    for table in reversed(tables):
        for owner in (
            table,
            inner_table(table, "model"),
            inner_table(table, "modelArtifacts"),
            inner_table(table, "storage"),
        ):
            for key in MODEL_KEYS:
                match = MODEL_ADDRESS.fullmatch(str(owner.get(key, "")))
                if match is not None:
                    return match[1]
    return ""


def _adapter_flags(tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the flags that KServe adds for a model's LoRA adapters (`model.lora` of LLMInferenceService)."""
    for table in tables:
        lora = inner_table(table, "model", "lora")
        adapters = lora.get("adapters")
        if isinstance(adapters, list) and adapters:
            rank, most_adapters = lora.get("maxRank", 64), lora.get("maxAdapters", len(adapters))
            return ["--enable-lora", f"--max-lora-rank={rank}", f"--max-loras={most_adapters}"]
    return []


def _implied_engine(tables: Sequence[Mapping[str, Any]]) -> str:
    """Returns the engine of a model format or framework name; empty for other names."""
    formats = {"vllm": "vllm", "huggingface": "vllm", "sglang": "sglang", "trtllm": "tensorrt-llm"}
    for table in reversed(tables):
        for name in (inner_table(table, "modelFormat").get("name"), table.get("backendFramework"), table.get("engine")):
            if str(name).lower() in formats:
                return formats[str(name).lower()]
    return ""


def _parallel_sizes(tables: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the parallel sizes in a manifest's keys, outside of the server's command."""
    sizes: dict[str, Any] = {}
    for table in tables:
        for key, value in inner_table(table, "parallelism").items():
            if key in PARALLEL_SIZE_KEYS and _is_plain(value):
                sizes[PARALLEL_SIZE_KEYS[key]] = str(value)
    return sizes
