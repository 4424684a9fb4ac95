"""Every command has an example at the end of its help, and every example runs."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import llmcalc
from llmcalc import page_server
from llmcalc.cli.examples import EXAMPLES
from llmcalc.cli.main import COMMANDS, command_module_name

LOG = Path(__file__).parents[1] / "data" / "logs" / "vllm_v1.log"

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 32,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}
LAYER = {
    **dict.fromkeys((f"self_attn.{name}_proj" for name in "qkvo"), (8, 8)),
    "mlp.gate_proj": (16, 8),
    "mlp.up_proj": (16, 8),
    "mlp.down_proj": (8, 16),
    "input_layernorm": (8,),
    "post_attention_layernorm": (8,),
}
OUTER = {"model.embed_tokens": (32, 8), "model.norm": (8,), "lm_head": (32, 8)}


def commands() -> Iterator[str]:
    """Yields every command, and the commands of a group after it."""
    for command in COMMANDS:
        yield command
        module = import_module(f"llmcalc.cli.{command_module_name(command)}")
        yield from (f"{command} {inner}" for inner in getattr(module, "COMMANDS", ()))


def test_every_help_ends_with_examples_of_its_command(run: Any) -> None:
    assert set(EXAMPLES) == {"", *commands()}
    for command, examples in EXAMPLES.items():
        label = "Example: " if len(examples) == 1 else "Examples: "
        indent = " " * len(label)
        page = run(*command.split(), "--help").out
        assert page.endswith("\n\n" + label + indent.join(f"llmcalc {example}\n" for example in examples))
        assert all(len(f"{label}llmcalc {example}") <= 80 for example in examples), command
        assert all(f"{example} ".startswith(command) for example in examples)


@pytest.fixture
def _files_of_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes to a folder with the files that examples name."""
    monkeypatch.chdir(tmp_path)
    Path("config.json").write_text(json.dumps(CONFIG))
    shapes = {**{f"model.layers.0.{name}": shape for name, shape in LAYER.items()}, **OUTER}
    save_file({f"{name}.weight": torch.zeros(shape) for name, shape in shapes.items()}, "model.safetensors")
    Path("llmcalc.toml").write_text('[[model]]\ntarget = "gpt2"\nparams = "<= 125M"\n')
    shutil.copy(LOG, "vllm.log")
    Path("llmcalc.lock.json").write_text(json.dumps(llmcalc.lock("gpt2").document))
    built = tmp_path / "built"
    built.mkdir()
    (built / "index.html").write_text("<!doctype html>")
    monkeypatch.setattr(page_server, "build_page", lambda _: (built, ""))


@pytest.mark.usefixtures("_files_of_examples")
@pytest.mark.parametrize("example", sorted({example for examples in EXAMPLES.values() for example in examples}))
def test_every_example_runs(example: str, run: Any) -> None:
    if example == "mcp":  # reads requests until standard input ends
        line = [sys.executable, "-m", "llmcalc", example]
        assert subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, check=True).stdout == b""
        return
    result = run(*shlex.split(example))
    assert result.code == 0, result.err
