"""Splits `docker run` and similar commands into image, environment and command of a container."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence

from ...sources.huggingface.family import field_names
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
        elif name == "--entrypoint":
            entry = value.split()
        elif name == "--gpus":
            gpus = number_of_gpus(value, place_in_file)
    if not queue:
        return None
    image = queue.popleft()
    return Container(place_in_file, (*entry, *queue), image, env, gpus=gpus)


def number_of_gpus(text: str, location: str) -> int | None:
    """Returns the number of accelerators in `--gpus` (a number or a list of devices); None for all.

    location: where the command stands, in messages. Raises `InputError` for a number that is no count.
    """
    devices = re.search(r"device=([\w:,-]+)", text)
    if devices is not None and devices[1] != "all":
        return len(devices[1].split(","))
    return accelerator_count(text.strip("'\"").removeprefix("count="), f"{location}: --gpus")
