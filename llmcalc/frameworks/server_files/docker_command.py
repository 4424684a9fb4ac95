"""Splits `docker run` and similar commands into the image, the environment and the command of a container."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from ...sources.huggingface.family import field_names
from ..launch.unresolved import is_unresolved
from .accelerators import accelerator_count
from .server import Container

CONTAINER_PROGRAMS = ("docker", "podman", "nerdctl", "apptainer", "singularity")

DOCKER_SWITCHES = field_names("""
    --rm --privileged --init --detach --interactive --tty --read-only --no-healthcheck --oom-kill-disable --sig-proxy
    --publish-all --quiet --nv --rocm --nvccli --cleanenv --containall --writable-tmpfs --replace
    """)
"""Options of `docker run` without a value."""

SHORT_SWITCHES = re.compile(r"-[ditPq]+")
"""Short options of `docker run` without a value, such as `-it`."""


def container_of_command(command_words: Sequence[str], place_in_file: str) -> Container | None:
    """Returns the container that a command starts; None for any other command."""
    program_names = [command_word.rpartition("/")[2] for command_word in command_words[:4]]
    docker_index = next((i for i, option_name in enumerate(program_names) if option_name in CONTAINER_PROGRAMS), None)
    if docker_index is None:
        return None
    argument_queue = deque(command_words[docker_index + 1 :])
    while argument_queue and argument_queue[0] in ("container", "compose"):
        argument_queue.popleft()
    if not argument_queue or argument_queue.popleft() not in ("run", "exec", "create"):
        return None
    env: dict[str, str] = {}
    host_by_folder: dict[str, str] = {}
    entrypoint: list[str] = []
    gpu_count = None
    while argument_queue and argument_queue[0].startswith("-"):
        option_name, equals_sign, option_value = argument_queue.popleft().partition("=")
        if option_name in DOCKER_SWITCHES or (SHORT_SWITCHES.fullmatch(option_name) and not equals_sign):
            continue
        attached_option = re.fullmatch(r"(-[evpwuh])(.+)", option_name)
        if attached_option is not None and not option_name.startswith("--"):
            option_name, option_value = attached_option[1], attached_option[2] + equals_sign + option_value
        elif not equals_sign:
            option_value = argument_queue.popleft() if argument_queue else ""
        if option_name in ("-e", "--env"):
            variable_name, variable_equals, variable_text = option_value.partition("=")
            if variable_equals:
                env[variable_name] = variable_text
        elif option_name in ("-v", "--volume", "--mount"):
            host_by_folder |= parse_mount(option_value)
        elif option_name == "--entrypoint":
            entrypoint = option_value.split()
        elif option_name == "--gpus":
            gpu_count = number_of_gpus(option_value, place_in_file)
    if not argument_queue:
        return None
    image_name = argument_queue.popleft()
    return Container(
        place_in_file, (*entrypoint, *argument_queue), image_name, env, gpu_count=gpu_count, mounts=host_by_folder
    )


def parse_mount(volume_entry: Any) -> dict[str, str]:
    """Returns container folder → host path of a volume in any notation; empty if either path is missing.

    `/data/Qwen3-8B:/model:ro`, `type=bind,source=/data/Qwen3-8B,target=/model`, or a table with `source` and `target`.
    """
    if isinstance(volume_entry, Mapping):
        mount_fields = {str(field_name): str(field_value) for field_name, field_value in volume_entry.items()}
    elif "=" in str(volume_entry):
        mount_fields = dict(field_text.partition("=")[::2] for field_text in str(volume_entry).split(","))
    else:
        mount_fields = dict(zip(("source", "target"), str(volume_entry).split(":"), strict=False))
    host_folder = mount_fields.get("source") or mount_fields.get("src", "")
    folder = mount_fields.get("target") or mount_fields.get("dst") or mount_fields.get("destination", "")
    is_mount = "/" in host_folder and not is_unresolved(host_folder) and folder.startswith("/") and folder.rstrip("/")
    return {folder.rstrip("/"): host_folder.rstrip("/")} if is_mount else {}


def number_of_gpus(gpus_text: str, place_in_file: str) -> int | None:
    """Returns the number of accelerators in `--gpus` (a number or a list of devices); None for all.

    place_in_file: the command's location, for messages. Raises `InputError` for a number that is no count.
    """
    device_match = re.search(r"device=([\w:,-]+)", gpus_text)
    if device_match is not None and device_match[1] != "all":
        return len(device_match[1].split(","))
    return accelerator_count(gpus_text.strip("'\"").removeprefix("count="), f"{place_in_file}: --gpus")
