"""Splits `docker run` and similar commands into image, environment and command of a container."""

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


def container_of(command_words: Sequence[str], place_in_file: str) -> Container | None:
    """Returns the container that a command starts; None for any other command."""
    names = [command_word.rpartition("/")[2] for command_word in command_words[:4]]
    docker_index = next((i for i, name in enumerate(names) if name in CONTAINER_PROGRAMS), None)
    if docker_index is None:
        return None
    queue = deque(command_words[docker_index + 1 :])
    while queue and queue[0] in ("container", "compose"):
        queue.popleft()
    if not queue or queue.popleft() not in ("run", "exec", "create"):
        return None
    env: dict[str, str] = {}
    mounts: dict[str, str] = {}
    entry: list[str] = []
    gpus = None
    while queue and queue[0].startswith("-"):
        name, equals_sign, value = queue.popleft().partition("=")
        if name in DOCKER_SWITCHES or (SHORT_SWITCHES.fullmatch(name) and not equals_sign):
            continue
        joined_option = re.fullmatch(r"(-[evpwuh])(.+)", name)
        if joined_option is not None and not name.startswith("--"):
            name, value = joined_option[1], joined_option[2] + equals_sign + value
        elif not equals_sign:
            value = queue.popleft() if queue else ""
        if name in ("-e", "--env"):
            variable, variable_equals, text = value.partition("=")
            if variable_equals:
                env[variable] = text
        elif name in ("-v", "--volume", "--mount"):
            mounts |= mount_of(value)
        elif name == "--entrypoint":
            entry = value.split()
        elif name == "--gpus":
            gpus = number_of_gpus(value, place_in_file)
    if not queue:
        return None
    image = queue.popleft()
    return Container(place_in_file, (*entry, *queue), image, env, gpus=gpus, mounts=mounts)


def mount_of(volume: Any) -> dict[str, str]:
    """Returns folder in the container → the host's path, of a volume in any spelling; empty for a volume without both.

    `/data/Qwen3-8B:/model:ro`, `type=bind,source=/data/Qwen3-8B,target=/model`, or a table with `source` and `target`.
    """
    if isinstance(volume, Mapping):
        parts = {str(key): str(value) for key, value in volume.items()}
    elif "=" in str(volume):
        parts = dict(part.partition("=")[::2] for part in str(volume).split(","))
    else:
        parts = dict(zip(("source", "target"), str(volume).split(":"), strict=False))
    source = parts.get("source") or parts.get("src", "")
    target = parts.get("target") or parts.get("dst") or parts.get("destination", "")
    is_folder = "/" in source and not is_unresolved(source) and target.startswith("/") and target.rstrip("/")
    return {target.rstrip("/"): source.rstrip("/")} if is_folder else {}


def number_of_gpus(text: str, location: str) -> int | None:
    """Returns the number of accelerators in `--gpus` (a number or a list of devices); None for all.

    location: where the command stands, in messages. Raises `InputError` for a number that is no count.
    """
    devices = re.search(r"device=([\w:,-]+)", text)
    if devices is not None and devices[1] != "all":
        return len(devices[1].split(","))
    return accelerator_count(text.strip("'\"").removeprefix("count="), f"{location}: --gpus")
