"""The programs that start servers: commands, container images, and flags for the model and config file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from ..engines.flags import flags_by_spelling
from ..engines.registry import engine
from ..launch.unresolved import is_unresolved


class ServerProgram(NamedTuple):
    """A program that starts a server: its commands, images and Python modules, and how they state the model.

    engine: the word of `--engine`.
    commands: the words of a command that start it, such as `vllm serve`.
    python_modules: the modules that Python runs.
    model_flags: the flags that name the model.
    has_positional_model: whether the first word without a flag names the model.
    config_flags: the flags that name a configuration with further flags.
    ignored_flags: flags of the program that are none of the engine, with a value. ignored_switches: those without one.
    image_names: parts of the names of its images.
    image_command: the command with which its image starts; empty if it starts none.
    version_pattern: pattern of the tags that are versions of the engine.
    package: the name of its Python package.
    forked_engine: the engine whose commands it shares; empty for a program with its own.
    variable_prefix: the beginning of environment variables that stand for its flags; empty for none.
    daemon_command: the command of a process that serves the models which other commands name; empty without such a
        process.
    download_command: the command that downloads a model for the daemon; empty for none.
    """

    engine: str
    commands: tuple[str, ...] = ()
    python_modules: tuple[str, ...] = ()
    model_flags: tuple[str, ...] = ("--model",)
    has_positional_model: bool = False
    config_flags: tuple[str, ...] = ()
    ignored_flags: tuple[str, ...] = ()
    ignored_switches: tuple[str, ...] = ()
    image_names: tuple[str, ...] = ()
    image_command: str = ""
    version_pattern: str = r"v?(0\.[0-9]+(?:\.[0-9]+)*(?:\.?(?:post|rc)[0-9]+)?)"
    package: str = ""
    forked_engine: str = ""
    variable_prefix: str = ""
    daemon_command: str = ""
    download_command: str = ""


REPOSITORY_FLAGS = ("-hf", "-hfr", "--hf-repo")
"""llama-server's flags that name a repository, from which the image encoder is also loaded (--mmproj-auto)."""

PROGRAMS = (
    ServerProgram(
        engine="vllm",
        commands=("vllm serve",),
        python_modules=(
            "vllm.entrypoints.openai.api_server",
            "vllm.entrypoints.api_server",
            "vllm.entrypoints.cli.main",
            "vllm_ascend.entrypoints.openai.api_server",
            "dynamo.vllm",
            "huggingfaceserver",
        ),
        model_flags=("--model", "--model-id", "--model-dir"),
        has_positional_model=True,
        config_flags=("--config",),
        ignored_flags=(
            "--backend", "--migration-limit", "--connector", "--disaggregation-mode", "--endpoint", "--namespace",
            "--discovery-backend", "--request-plane", "--event-plane", "--model-name", "--http-port",
            "--custom-jinja-template",
        ),
        ignored_switches=(
            "--is-prefill-worker", "--is-decode-worker", "--enable-multimodal", "--multimodal-worker",
            "--enable-local-indexer", "--dyn-chat-processor",
        ),
        image_names=("vllm",),
        image_command="vllm serve",
        package="vllm",
    ),
    ServerProgram(
        engine="sglang",
        commands=("sglang serve",),
        python_modules=("sglang.launch_server", "sglang_router.launch_server", "dynamo.sglang", "sglang"),
        model_flags=("--model-path", "--model"),
        has_positional_model=True,
        config_flags=("--config",),
        ignored_flags=(
            "--migration-limit", "--endpoint", "--namespace", "--discovery-backend", "--request-plane", "--event-plane",
            "--dyn-tool-call-parser", "--dyn-reasoning-parser", "--router-policy",
            "--router-worker-startup-timeout-secs",
        ),
        ignored_switches=("--use-sglang-tokenizer", "--enable-local-indexer"),
        image_names=("sglang",),
        package="sglang",
    ),
    ServerProgram(
        engine="ik_llama.cpp",
        model_flags=("-m", "--model", *REPOSITORY_FLAGS),
        image_names=("ik_llama", "ik-llama"),
        image_command="llama-server",
        version_pattern=r"b([0-9]+)",
        forked_engine="llama.cpp",
        variable_prefix="LLAMA_ARG_",
    ),
    ServerProgram(
        engine="llama.cpp",
        commands=("llama-server", "llama-cli", "llama.cpp/server", "llama serve"),
        python_modules=("llama_cpp.server",),
        model_flags=("-m", "--model", *REPOSITORY_FLAGS),
        image_names=("llama.cpp", "llama-cpp", "llamacpp"),
        image_command="llama-server",
        version_pattern=r"(?:[a-z]+[0-9]*-)*(b[0-9]{3,6})",
        variable_prefix="LLAMA_ARG_",
    ),
    ServerProgram(
        engine="ollama",
        commands=("ollama run",),
        has_positional_model=True,
        image_names=("ollama",),
        ignored_flags=("--keepalive",),
        ignored_switches=("--verbose",),
        daemon_command="ollama serve",
        download_command="ollama pull",
    ),
    ServerProgram(
        engine="tensorrt-llm",
        commands=("trtllm-serve", "trtllm-serve serve", "trtllm-bench"),
        python_modules=("dynamo.trtllm", "tensorrt_llm.commands.serve"),
        model_flags=("--model-path", "--model", "-m"),
        has_positional_model=True,
        config_flags=("--extra-llm-api-options", "--extra_llm_api_options", "--config", "--extra-engine-args"),
        ignored_flags=(
            "--cuda-graph-config", "--moe-config", "--print-iter-log", "--disable-overlap-scheduler",
            "--stream-interval", "--enable-iter-perf-stats", "--num-postprocess-workers", "--attn-backend",
            "--sampler-type", "--allreduce-strategy", "--return-perf-metrics", "--use-torch-sampler",
            "--scheduler-config", "--torch-compile-config", "--batching-type", "--cache-transceiver-config",
            "--attention-dp-config", "--served-model-name", "--disaggregation-mode", "--endpoint", "--namespace",
            "--use-cuda-graph", "--cuda-graph-padding-enabled", "--cuda-graph-max-batch-size",
            "--cuda-graph-batch-sizes", "--moe-backend", "--attention-backend", "--autotuner-enabled",
        ),
        ignored_switches=("--enable-layerwise-nvtx-marker", "--enable-autotuner", "--publish-events-and-metrics"),
        image_names=("tensorrt-llm", "tensorrtllm", "trtllm"),
        version_pattern=r"v?([0-9]+\.[0-9]+(?:\.[0-9]+)*(?:\.?(?:post|rc)[0-9]+)?)",
        package="tensorrt_llm",
    ),
    ServerProgram(
        engine="ktransformers",
        python_modules=("ktransformers.server.main", "ktransformers.local_chat"),
        model_flags=("--model-path", "--model-name"),
    ),
    ServerProgram(
        engine="ATOM",
        python_modules=("atom.entrypoints.openai_server",),
        model_flags=("--model",),
    ),
    ServerProgram(
        engine="TGI",
        commands=("text-generation-launcher",),
        model_flags=("--model-id",),
        image_names=("text-generation-inference",),
        image_command="text-generation-launcher",
    ),
    ServerProgram(
        engine="LMDeploy",
        commands=("lmdeploy serve",),
        python_modules=("lmdeploy.serve",),
        has_positional_model=True,
        image_names=("lmdeploy",),
        image_command="lmdeploy serve",
    ),
    ServerProgram(
        engine="MLX",
        commands=("mlx_lm.server", "mlx_lm.generate", "mlx_vlm.server", "mlx_lm server"),
        python_modules=("mlx_lm.server", "mlx_lm.generate", "mlx_vlm.server"),
    ),
    ServerProgram(engine="MLC LLM", commands=("mlc_llm serve",), has_positional_model=True),
    ServerProgram(engine="LightLLM", python_modules=("lightllm.server.api_server",), model_flags=("--model_dir",)),
    ServerProgram(
        engine="Aphrodite",
        commands=("aphrodite run",),
        python_modules=("aphrodite.endpoints.openai.api_server",),
        has_positional_model=True,
        image_names=("aphrodite",),
        image_command="aphrodite run",
    ),
    ServerProgram(engine="LM Studio", commands=("lms load",)),
    ServerProgram(engine="Lemonade", commands=("lemonade load", "lemonade run", "lemonade-server run")),
    ServerProgram(
        engine="KoboldCpp", commands=("koboldcpp",), python_modules=("koboldcpp",), image_names=("koboldcpp",)
    ),
)  # fmt: skip
"""The programs that start servers; programs of unmodelled engines are last.

An image is that of the first program that has a part of its name.
"""

WORKER_LAUNCHER = re.compile(r"--[a-z]+\.([a-z]+)\.cli=(.*)", re.DOTALL)
"""Pattern of an argument that passes a flag on to a server, such as `--dynamo.vllm.cli=--max-num-seqs=64`."""

OTHER_VERSIONS = re.compile(r"dynamo|kserve|production-stack|lmcache", re.IGNORECASE)
"""Pattern of the names of images whose tags are not the engine's versions but those of a program around it."""

LONGEST_PREFIX = 60
"""Largest number of words before a program's name, such as launchers (nohup, numactl, mpirun)."""


class ServerStart(NamedTuple):
    """The start of a server in a command: the program, its arguments, and a model that the launcher states."""

    program: ServerProgram
    arguments: tuple[str, ...]
    model_name: str = ""


def program_named(engine_name: str) -> ServerProgram | None:
    """Returns the program that starts an engine's server; None for an unknown engine name."""
    return next((server_program for server_program in PROGRAMS if server_program.engine == engine_name), None)


def server_start_of(
    command_words: Sequence[str], image: str = "", is_shell_command: bool = False
) -> ServerStart | None:
    """Returns the server start in a command of a shell or a container; None if the command starts no server.

    image: the image of the container; empty for a shell. is_shell_command: whether a script inside the container has
    the command, which then is no argument of the image's entry point; default false.
    """
    for i in range(min(len(command_words), LONGEST_PREFIX)):
        server_start = _server_start_at_word(command_words, i, image)
        if server_start is not None:
            return server_start
    launcher_matches = [
        launcher_match for command_word in command_words if (launcher_match := WORKER_LAUNCHER.fullmatch(command_word))
    ]
    if launcher_matches:
        server_program = program_named(launcher_matches[0][1])
        model_words = (
            command_word.partition("=")[2]
            for command_word in command_words
            if re.match(r"--[a-z]+\.model\.repo_id=", command_word)
        )
        if server_program is not None:
            return ServerStart(
                server_program,
                tuple(matched_launcher[2] for matched_launcher in launcher_matches),
                next(model_words, ""),
            )
    server_program = program_of_image(image)
    if (
        server_program is not None
        and server_program.image_command
        and not is_shell_command
        and (not command_words or command_words[0].startswith("-") or _is_model_name(command_words[0]))
    ):
        return _server_start_at_word([*server_program.image_command.split(), *command_words], 0, image)
    return None


def _is_model_name(command_word: str) -> bool:
    """Whether a word may name a model: on Hugging Face, in a folder of models, or in a variable of the script."""
    if is_unresolved(command_word):
        return True
    return re.fullmatch(r"[\w.-]+/[\w.-]+|/[\w./-]+", command_word) is not None and not command_word.startswith(
        ("/bin/", "/usr/")
    )


def program_of_image(image_reference: str) -> ServerProgram | None:
    """Returns the server program of a container image by name; None for other images.

    An organization such as vllm-project has images of routers too, so it names no program.
    """
    image_name = re.sub(r"(?<![^/])[^/]*-project/", "", image_reference.lower().partition("@")[0])
    return next(
        (
            known_program
            for known_program in PROGRAMS
            if any(image_name_part in image_name for image_name_part in known_program.image_names)
        ),
        None,
    )


def version_of_image(image_name: str) -> str:
    """Returns the engine version in a container image's tag; empty without a version."""
    if OTHER_VERSIONS.search(image_name):
        return ""
    server_program = program_of_image(image_name)
    image_tag = image_name.partition("@")[0].rpartition("/")[2].partition(":")[2]
    tag_match = None if server_program is None else re.match(rf"{server_program.version_pattern}(?![0-9.])", image_tag)
    return "" if tag_match is None else tag_match[1]


def _server_start_at_word(command_words: Sequence[str], i: int, image: str = "") -> ServerStart | None:
    """Returns the server start whose program is word number `i` of a command; None if that word starts no server."""
    start_word = command_words[i]
    next_word = command_words[i + 1] if i + 1 < len(command_words) else ""
    if start_word in ("-m", "--module") and i:
        return _server_start_of_module(next_word, tuple(command_words[i + 2 :]))
    if start_word.endswith(".py"):
        program_name = start_word.removesuffix(".py").replace("/", ".")
        python_module = next(
            (
                module_program
                for server_program in PROGRAMS
                for module_program in server_program.python_modules
                if program_name.endswith(f".{module_program}") or program_name == module_program
            ),
            "",
        )
        return _server_start_of_module(python_module, tuple(command_words[i + 1 :])) if python_module else None
    program_name = start_word.rpartition("/")[2].removesuffix(".exe")
    for server_program in PROGRAMS:
        for command_name in sorted(server_program.commands, key=len, reverse=True):
            first_word, _, second_word = command_name.partition(" ")
            if second_word:
                is_command, arguments_start = program_name == first_word and next_word == second_word, i + 2
            else:
                is_command = program_name == first_word or start_word.endswith(f"/{first_word}")
                arguments_start = i + 1
            if is_command:
                return ServerStart(
                    _fork_of_program(server_program, f"{image} {start_word}".lower(), command_words[arguments_start:]),
                    tuple(command_words[arguments_start:]),
                )
    return None


def _server_start_of_module(python_module: str, arguments: tuple[str, ...]) -> ServerStart | None:
    """Returns the server start of a Python module; None for modules that start no server."""
    server_program = next(
        (known_program for known_program in PROGRAMS if python_module in known_program.python_modules), None
    )
    if server_program is None:
        return None
    if arguments[:1] == ("serve",):
        arguments = arguments[1:]
    return ServerStart(server_program, arguments)


def _fork_of_program(server_program: ServerProgram, image_and_path: str, arguments: Sequence[str]) -> ServerProgram:
    """Returns the fork that an image, a path or a flag indicates; otherwise the program itself.

    image_and_path: container image and program path.
    """
    for fork_program in PROGRAMS:
        if fork_program.forked_engine == server_program.engine and (
            any(image_name_part in image_and_path for image_name_part in fork_program.image_names)
            or not _flags_of_fork(fork_program.engine, server_program.engine).isdisjoint(arguments)
        ):
            return fork_program
    return server_program


@cache
def _flags_of_fork(fork_name: str, engine_name: str) -> frozenset[str]:
    """Returns the spellings of the flags that only an engine's fork has."""
    engine_flags = flags_by_spelling(engine(engine_name).known_flags())
    return frozenset(flags_by_spelling(engine(fork_name).known_flags())) - frozenset(engine_flags)
