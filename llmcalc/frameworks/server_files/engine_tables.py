"""Reads tables with a model and engine arguments but no command, such as Helm values and configs of Ray Serve.

- vLLM's production stack: items of `modelSpec` in its chart's values, and the manifest `VLLMRuntime` of its operator
  (helm/templates/deployment-vllm-multi.yaml, operator/api/v1alpha1);
- Ray Serve: items of `llm_configs`, as `LLMConfig` of ray.serve.llm has them;
- recipes of vLLM (github.com/vllm-project/recipes): `model`, `features` and a server for each of the `variants`;
- jobs of srt-slurm: flags of each kind of worker under `sglang_config`, `vllm_config` or `trtllm_config`.

KubeAI's models have a list `args`, as containers have; `manifests.py` reads them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from .server import Container

WITHOUT_FLAG = ("extraArgs", "v0", "v1", "port", "env", "prometheusMultiprocDir")
"""Keys of `vllmConfig` that do not correspond to a flag."""

SWITCH_KEYS = ("enableLoRA",)
"""Keys beside `vllmConfig` that correspond to switches of the engine."""

MODEL_FLAGS = ("maxModelLen", "maxNumSeqs", "dtype")
"""Keys of the operator's table `model` that correspond to flags of the engine."""


def server_of_table(manifest_table: Mapping[str, Any]) -> Container | None:
    """Returns the server that a manifest's table describes; None for other tables."""
    if isinstance(manifest_table.get("engine_kwargs"), Mapping) and isinstance(
        manifest_table.get("model_loading_config"), Mapping
    ):
        return _ray_server(manifest_table)
    model_table = manifest_table.get("model")
    if isinstance(model_table, Mapping) and isinstance(model_table.get("modelURL"), str):
        return _operator_server(manifest_table, model_table)
    if isinstance(manifest_table.get("modelURL"), str) and (
        "vllmConfig" in manifest_table or "repository" in manifest_table
    ):
        return _chart_server(manifest_table)
    return None


def servers_of_table(manifest_table: Mapping[str, Any]) -> Iterator[Container]:
    """Yields the servers of a table, with each server's location in the file; nothing for tables without servers."""
    model_table = manifest_table.get("model")
    if isinstance(model_table, Mapping) and isinstance(model_table.get("model_id"), str) and "base_args" in model_table:
        yield from _recipe_servers(manifest_table, model_table)
    for worker_key, server_program in WORKER_COMMANDS.items():
        for worker_name, flags in inner_table(manifest_table, "backend", worker_key).items():
            if isinstance(flags, Mapping) and flags:
                yield Container(
                    f"backend.{worker_key}.{worker_name}"[:80],
                    command_words=(*server_program.split(), *words_of_arguments(flags)),
                    gpu_name=str(inner_table(manifest_table, "resources").get("gpu_type") or ""),
                    model_name=str(inner_table(manifest_table, "model").get("path") or ""),
                )


WORKER_COMMANDS = {"sglang_config": "sglang serve", "vllm_config": "vllm serve", "trtllm_config": "trtllm-serve"}
"""Key of srt-slurm's table `backend` → the server command for the flags under this key."""


def _recipe_servers(recipe_table: Mapping[str, Any], model_table: Mapping[str, Any]) -> Iterator[Container]:
    """Yields the server of each vLLM recipe variant, with the default features."""
    opt_in_features = recipe_table.get("opt_in_features")
    disabled_features = set(map(str, opt_in_features)) if isinstance(opt_in_features, list) else set()
    feature_words = [
        feature_word
        for variant_name, feature_table in inner_table(recipe_table, "features").items()
        if isinstance(feature_table, Mapping) and str(variant_name) not in disabled_features
        for feature_word in _words_of_recipe(feature_table.get("args"))
    ]
    variants_by_name = inner_table(recipe_table, "variants") or {"default": {}}
    for variant_name, variant_table in variants_by_name.items():
        if isinstance(variant_table, Mapping):
            base_args = _words_of_recipe(model_table.get("base_args"))
            extra_args = _words_of_recipe(variant_table.get("extra_args"))
            command_words = [*base_args, *feature_words, *extra_args]
            yield Container(
                f"variants.{variant_name}"[:80],
                command_words=(
                    "vllm",
                    "serve",
                    str(variant_table.get("model_id") or model_table["model_id"]),
                    *command_words,
                ),
                env=_environment_texts(
                    {**inner_table(model_table, "base_env"), **inner_table(variant_table, "extra_env")}
                ),
            )


def _words_of_recipe(recipe_list: Any) -> list[str]:
    """Returns a recipe's arguments as words: the text `--max-model-len auto` becomes two words."""
    recipe_texts = _texts_of_list(recipe_list)
    return [
        word
        for recipe_text in recipe_texts
        for word in (recipe_text.split() if recipe_text.startswith("--") and "'" not in recipe_text else [recipe_text])
    ]


def words_of_arguments(arguments: Mapping[str, Any]) -> Iterator[str]:
    """Yields the words of a command line that is equivalent to an engine's Python arguments."""
    import json

    for argument_name, argument_value in arguments.items():
        flag_name = f"--{argument_name.replace('_', '-')}"
        if isinstance(argument_value, bool):
            yield flag_name if argument_value else f"--no-{flag_name[2:]}"
        elif isinstance(argument_value, Mapping | list | tuple):
            yield f"{flag_name}={json.dumps(argument_value)}"
        elif argument_value is not None:
            yield f"{flag_name}={argument_value}"


def _ray_server(ray_config: Mapping[str, Any]) -> Container:
    """Returns the server of a Ray Serve `LLMConfig`, as the equivalent command in a container."""
    loading_config = ray_config["model_loading_config"]
    model_source = loading_config.get("model_source", loading_config.get("model_id", ""))
    model_name = model_source.get("bucket_uri", "") if isinstance(model_source, Mapping) else model_source
    server_program = "sglang" if str(ray_config.get("llm_engine", "")).lower() == "sglang" else "vllm"
    return Container(
        "",
        command_words=(server_program, "serve", str(model_name), *words_of_arguments(ray_config["engine_kwargs"])),
        env=_environment_texts(inner_table(ray_config, "runtime_env", "env_vars")),
        gpu_name=str(ray_config.get("accelerator_type") or ""),
    )  # fmt: skip


def _chart_server(chart_values: Mapping[str, Any]) -> Container:
    flags = {switch_key: True for switch_key in SWITCH_KEYS if chart_values.get(switch_key) is True}
    image_name = ":".join(
        str(chart_values[image_key]) for image_key in ("repository", "tag") if chart_values.get(image_key)
    )
    return _stack_server(chart_values, chart_values["modelURL"], flags, image_name, chart_values.get("requestGPU"))


def _operator_server(operator_table: Mapping[str, Any], model_table: Mapping[str, Any]) -> Container:
    flags = {
        flag: model_table[flag]
        for flag in (*MODEL_FLAGS, *SWITCH_KEYS)
        if model_table.get(flag) not in (None, False, "")
    }
    pod_settings = inner_table(operator_table, "deploymentConfig")
    image_name, gpus = inner_table(pod_settings, "image").get("name"), inner_table(pod_settings, "resources").get("gpu")
    return _stack_server(operator_table, model_table["modelURL"], flags, str(image_name or ""), gpus)


def _stack_server(
    stack_table: Mapping[str, Any], model_name: str, flags: Mapping[str, Any], image_name: str, gpus: Any
) -> Container:
    """Returns a server of vLLM's production stack. flags: flags outside `vllmConfig`. gpus: number of GPUs."""
    vllm_config = inner_table(stack_table, "vllmConfig")
    all_flags = {
        **flags,
        **{
            config_key: config_value
            for config_key, config_value in vllm_config.items()
            if config_key not in WITHOUT_FLAG
        },
    }
    return Container(
        "",
        command_words=(
            "vllm",
            "serve",
            model_name,
            *_flags_of_keys(all_flags),
            *_texts_of_list(vllm_config.get("extraArgs")),
        ),
        image=image_name,
        env={"VLLM_USE_V1": "0"} if str(vllm_config.get("v0", "")) in ("1", "True") else {},
        gpu_count=int(str(gpus)) if re.fullmatch(r"[0-9]{1,4}", str(gpus)) else None,
    )


def _flags_of_keys(values_by_key: Mapping[str, Any]) -> Iterator[str]:
    """Yields the flags equivalent to keys such as `maxModelLen` (`--max-model-len`)."""
    keys_by_flag_name = {
        re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key_in_table.replace("LoRA", "Lora")).lower(): key_in_table
        for key_in_table in values_by_key
    }
    return words_of_arguments({flag: values_by_key[table_key] for flag, table_key in keys_by_flag_name.items()})


def inner_table(outer_table: Mapping[str, Any], *nested_keys: str) -> Mapping[str, Any]:
    """Returns the table that a path of keys leads to; empty if a key is missing."""
    for table_key in nested_keys:
        inner_value = outer_table.get(table_key)
        outer_table = inner_value if isinstance(inner_value, Mapping) else {}
    return outer_table


def _environment_texts(environment_table: Mapping[str, Any]) -> dict[str, str]:
    return {
        str(variable_name): str(variable_value)
        for variable_name, variable_value in environment_table.items()
        if isinstance(variable_value, str | int | float)
    }


def _texts_of_list(list_value: Any) -> list[str]:
    if isinstance(list_value, list):
        return [str(list_item) for list_item in list_value if isinstance(list_item, str | int | float)]
    return []
