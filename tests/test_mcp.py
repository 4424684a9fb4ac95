"""`llmcalc mcp`: the commands as tools, called with the client of the protocol's own SDK."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import llmcalc
from llmcalc.arguments import READING_OPTIONS
from llmcalc.cli.mcp import tool_server
from llmcalc.cli.tools import ENGINE_TOOLS, TOOL_COMMANDS, all_tools, answer_of_tool
from llmcalc.device_memory.settings import SETTINGS_BY_SHORTHAND, Settings
from llmcalc.errors import InputError
from llmcalc.parallel.counted_rank import rank_settings
from llmcalc.parallel.layout_request import LayoutRequest
from llmcalc.sources import hub
from llmcalc.workload.setting import declarations_of
from tests.families import shapes_of
from tests.samples import in_one_test

ROOT = Path(__file__).parent.parent

if TYPE_CHECKING:
    from mcp import Client  # the tests import it, which takes a second, in the one process that runs them

CONFIG = shapes_of("llama")[0]

DEEP = json.loads("[" * 60 + "]" * 60)


def with_client(use: Callable[[Client], Awaitable[Any]], server: Any = None) -> Any:
    """Runs a client beside the server, in this process unless another server is named."""
    import anyio
    from mcp import Client

    async def run() -> Any:
        async with Client(server or tool_server()) as client:
            return await use(client)

    return anyio.run(run)


def answer(name: str, arguments: dict[str, Any]) -> Any:
    """Calls a tool; returns its result."""
    return with_client(lambda client: client.call_tool(name, arguments))


CALLS: dict[str, tuple[str, dict[str, Any], str]] = {
    "params": ("params", {"model": "gpt2", "set": ["num_hidden_layers=2"]}, "params gpt2 --set num_hidden_layers=2"),
    "flops": ("flops", {"model": "gpt2", "seq": "1k", "phase": "decode"}, "flops gpt2 --seq 1k --phase decode"),
    "kv": ("kv", {"model": "gpt2", "users": 3, "kv_dtype": "fp8"}, "kv gpt2 --users 3 --kv-dtype fp8"),
    "memory": (
        "memory",
        {"model": "gpt2", "phase": "training", "seq": 64, "options": {"optimizer": "sgd", "momentum": True}},
        "memory gpt2 --phase training --seq 64 --optimizer sgd --momentum",
    ),
    "fit of an engine": (
        "fit",
        {"model": "gpt2", "engine": "vllm", "hardware": "h100", "users": 2, "options": {"max_model_len": 512}},
        "fit gpt2 --engine vllm --hardware h100 --users 2 --max-model-len 512",
    ),
    "plan": (
        "plan",
        {"model": "gpt2", "hardware": "h100", "devices": 2, "seq": 64, "rows": 1},
        "plan gpt2 --hardware h100 --devices 2 --seq 64 --rows 1",
    ),
    "time": ("time", {"model": "gpt2", "hardware": "h100", "seq": 64}, "time gpt2 --hardware h100 --seq 64"),
    "serve": (
        "serve",
        {"model": "gpt2", "hardware": "h100", "input": 256, "output": 64, "concurrency": 8},
        "serve gpt2 --hardware h100 --input 256 --output 64 --concurrency 8",
    ),
    "cost": (
        "cost",
        {"model": "gpt2", "hardware": "h100", "options": {"requests": "1M"}, "input": 256, "output": 64},
        "cost gpt2 --hardware h100 --requests 1M --input 256 --output 64",
    ),
    "compare": ("compare", {"models": ["gpt2", "gpt2-xl"]}, "compare gpt2 gpt2-xl"),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_answer_is_the_commands_document(name: str, run: Any) -> None:
    tool, arguments, words = CALLS[name]
    document = run(*words.split(), "--format", "json").document
    result = answer(tool, arguments)
    assert not result.is_error
    assert json.loads(result.content[0].text) == document
    structured = result.structured_content
    assert (structured if isinstance(document, dict) else structured["documents"]) == document


def test_every_tool_is_called_above() -> None:
    assert {tool for tool, _, _ in CALLS.values()} == set(TOOL_COMMANDS)


@pytest.mark.parametrize("page", ["docs/how-to/agents.md", "docs/zh/how-to/agents.md"])
def test_the_pages_name_every_tool(page: str) -> None:
    (line,) = [line for line in (ROOT / page).read_text().splitlines() if line.startswith(("Its tools", "工具有"))]
    assert tuple(re.findall(r"`(\w+)`", line)) == TOOL_COMMANDS


def test_the_process_speaks_the_protocol() -> None:
    """Over standard input and output, as clients start it."""
    from mcp.client.stdio import StdioServerParameters, stdio_client

    async def use(client: Client) -> Any:
        return await client.list_tools(), await client.call_tool("params", {"model": "gpt2", "keys": ["params"]})

    command = StdioServerParameters(command=sys.executable, args=["-m", "llmcalc", "mcp", "--offline"])
    listed, counted = with_client(use, stdio_client(command))
    assert [tool.name for tool in listed.tools] == list(TOOL_COMMANDS)
    assert all(tool.annotations.read_only_hint for tool in listed.tools)
    assert json.loads(counted.content[0].text)["params"]["total"] == 124_439_808


@pytest.mark.parametrize("name", TOOL_COMMANDS)
def test_arguments_are_those_of_the_function(name: str) -> None:
    """Each has a description, and is an argument, or an option, of the function of the command's name."""
    (tool,) = (tool for tool in all_tools() if tool.name == name)
    from jsonschema import Draft202012Validator

    Draft202012Validator.check_schema(tool.schema)
    assert all(schema["description"].strip() for schema in tool.schema["properties"].values())
    function = inspect.signature(getattr(llmcalc, name)).parameters
    known = {
        *function,
        *READING_OPTIONS,
        *rank_settings(),
        *declarations_of(Settings),
        *SETTINGS_BY_SHORTHAND,
        *declarations_of(LayoutRequest),
    }
    assert tool.arguments.keys() <= known
    hidden = tool.arguments.keys() - tool.common_arguments
    described = tool.schema["properties"].get("options", {}).get("description", "")
    assert all(argument in described for argument in hidden)
    assert ("max_model_len" in described) is (name in ENGINE_TOOLS)


def test_a_config_is_a_model() -> None:
    assert answer_of_tool("params", {"model": CONFIG})["params"]["total"] == llmcalc.params(CONFIG).total


WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "no model": ("params", {}, "model: missing; expected the model"),
    "another program's argument": (
        "memory",
        {"model": "gpt2", "gpu": "h100"},
        "gpu: there is no such argument; expected ",
    ),
    "a misspelt argument": (
        "flops",
        {"model": "gpt2", "sequence": 4},
        "sequence: there is no such argument; expected seq",
    ),
    "a misspelt option": (
        "plan",
        {"model": "gpt2", "hardware": "h100", "options": {"tpp": 2}},
        "tpp: there is no ",
    ),
    "a misspelt flag": (
        "memory",
        {"model": "gpt2", "engine": "vllm", "hardware": "h100", "options": {"max_len": 2}},
        "--max-len: vLLM has no such flag",
    ),
    "an argument twice": ("kv", {"model": "gpt2", "seq": 4, "options": {"seq": 5}}, "options: seq is an argument too"),
    "another type": ("flops", {"model": "gpt2", "conventions": "yes"}, "conventions: 'yes' does not fit"),
    "another word": ("flops", {"model": "gpt2", "pairs": "some"}, "pairs: 'some' does not fit"),
    "a long text": ("params", {"model": "x" * 5000}, "model: 'xxx"),
    "a list as a model": ("params", {"model": ["gpt2"]}, "model: a list does not fit"),
    "standard input": ("params", {"model": "-"}, "model: '-' is standard input"),
    "standard input, changed": ("compare", {"models": ["gpt2", "-?hidden_size=8"]}, "model: '-' is standard input"),
    "standard input as a receipt": (
        "memory",
        {"model": "gpt2", "engine": "vllm", "hardware": "h100", "receipt": "-"},
        "receipt: '-' is standard input",
    ),
    "a pipe": ("params", {"model": "/dev/stdin"}, "/dev/stdin"),
    "a device": ("memory", {"launch": "/dev/zero"}, "/dev/zero"),
    "a large config": ("params", {"model": {**CONFIG, "name": "x" * 6_000_000}}, "are larger than 5,000,000"),
    "a deep config": ("params", {"model": {**CONFIG, "a": DEEP}}, "nested"),
    "a number without end": ("params", {"model": {**CONFIG, "hidden_size": 10**5000}}, "thousands of digits"),
    "a batch beyond bounds": ("flops", {"model": "gpt2", "batch": 10**30}, "--batch"),
    "a key that is not there": ("params", {"model": "gpt2", "keys": ["flops"]}, "keys: the answer has no 'flops'"),
    "no such tool": ("explode", {}, "there is no tool 'explode'."),
}


@in_one_test
@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_one_line(name: str) -> None:
    tool, arguments, message = WRONG[name]
    with pytest.raises(InputError) as error:
        answer_of_tool(tool, arguments)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_an_error_is_a_result() -> None:
    result = answer("params", {"model": "llama3-9b"})
    assert result.is_error
    assert result.content[0].text.startswith("error: no preset, file or hub id called 'llama3-9b'.")


def test_only_a_hub_id_uses_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[str] = []

    def fetch(target: str) -> None:
        fetched.append(target)
        raise InputError(f"{target}: no such repository")

    monkeypatch.setattr(hub, "fetch_config", fetch)
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("the network was used"))
    for tool, arguments, _ in CALLS.values():
        answer_of_tool(tool, arguments)
    assert fetched == []
    with pytest.raises(InputError, match="no such repository"):
        answer_of_tool("params", {"model": "some-lab/some-model"})
    assert fetched == ["some-lab/some-model"]


def test_without_the_extra_there_is_a_hint() -> None:
    script = "import sys; sys.modules['mcp'] = None; from llmcalc.cli import run; run()"
    done = subprocess.run([sys.executable, "-c", script, "mcp"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: mcp needs the package mcp: pip install ")
    assert done.stderr.count("\n") == 1
