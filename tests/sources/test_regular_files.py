"""Every reader of a user's file refuses what is no regular file, without waiting for it: pipes, devices, sockets, and
files of /proc, whose size says 0 while they contain something.
"""

from __future__ import annotations

import json
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from llmcalc.errors import InputError
from llmcalc.frameworks.launch.read_launch_file import launch_from_text
from llmcalc.frameworks.launch.windows_scripts import shell_text_of_windows_script
from llmcalc.frameworks.server_files.programs import program_of_image
from llmcalc.sources.bounded import open_regular_file, read_bytes, require_few_elements
from llmcalc.sources.files import read_text
from llmcalc.sources.hardware import find_hardware
from llmcalc.sources.target import load
from llmcalc.studies.budget_file import read_budget
from llmcalc.units import parse_length
from tests.bounds import bounded
from tests.cli.damage import within
from tests.samples import in_one_test
from tests.sources.test_reader_bounds import refused

READERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "a description": ("model.toml", ("params", "model.toml")),
    "a config": ("config.json", ("params", "config.json")),
    "a config in a folder": ("config.json", ("params", ".")),
    "a quantization beside a config": ("hf_quant_config.json", ("params", ".")),
    "ColBERT's sizes beside a config": ("artifact.metadata", ("params", ".")),
    "safetensors": ("m.safetensors", ("params", "m.safetensors")),
    "an index": ("model.safetensors.index.json", ("params", "model.safetensors.index.json")),
    "a shard": ("shard.safetensors", ("params", "model.safetensors.index.json")),
    "GGUF": ("m.gguf", ("check", "m.gguf", "gpt2")),
    "a launch file": ("run.sh", ("memory", "gpt2", "--launch", "run.sh")),
    "a DeepSpeed file of a launch file": ("ds.json", ("memory", "gpt2", "--launch", "trainer.yaml")),
    "a budget": ("budget.toml", ("budget", "budget.toml")),
    "measured runs": ("rows.csv", ("time", "gpt2", "--hardware", "h100", "--calibrate", "rows.csv")),
    "a trace": ("trace.csv", ("serve", "gpt2", "--hardware", "h100", "--trace", "trace.csv")),
    "an accelerator": ("gpu.toml", ("memory", "gpt2", "--hardware", "gpu.toml")),
}
MESSAGES = ("is not a regular file", "is a folder without a config.json")

MADE: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a file of /proc": lambda path: path.symlink_to("/proc/self/environ"),
}


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="no /proc")
@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("reader", READERS)
def test_no_regular_file(reader: str, kind: str, tmp_path: Path) -> None:
    name, words = READERS[reader]
    (tmp_path / "trainer.yaml").write_text("per_device_train_batch_size: 1\ndeepspeed: ds.json\n")
    shards = {"weight_map": {"a": "shard.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(shards))
    (tmp_path / "config.json").write_text('{"model_type": "gpt2", "architectures": ["HF_ColBERT"]}')
    (tmp_path / name).unlink(missing_ok=True)
    MADE[kind](tmp_path / name)
    result = bounded(*words, cwd=tmp_path, timeout=30)
    refused(result)
    expected = (
        ("truncated", "not a GGUF") if kind == "a file of /proc" and name.endswith(("gguf", "tensors")) else MESSAGES
    )
    assert any(message in result.stderr for message in expected), result.stderr
    if "is not a regular file;" in result.stderr:
        takes_stdin = words[0] == "params" and name in ("model.toml", "config.json")
        assert ("`-` and its content piped in" in result.stderr) == takes_stdin


def test_a_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("model.toml")
        refused(bounded("params", "model.toml", cwd=tmp_path), "is not a regular file")


def test_a_file_that_is_replaced_while_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that was opened is looked at, not the one that had its name before."""
    path, pipe = tmp_path / "model.toml", tmp_path / "pipe"
    path.write_text("x")
    os.mkfifo(pipe)
    real = os.open
    monkeypatch.setattr(os, "open", lambda file, *more: real(pipe if file == path else file, *more))
    with pytest.raises(InputError, match="is not a regular file"):
        open_regular_file(path, "a file")


def test_a_file_that_grows_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.toml"
    path.write_text("x" * 100)
    real = os.fstat

    def smaller(handle: int) -> os.stat_result:
        found = list(real(handle))
        found[stat.ST_SIZE] = 10
        return os.stat_result(found)

    monkeypatch.setattr(os, "fstat", smaller)
    with pytest.raises(InputError, match="its size is 10 bytes and more were read"):
        read_bytes(path, 1000, "a file")


@in_one_test
@pytest.mark.parametrize("name", ["a\0b.toml", "\ud800.toml", "a\0b/config.json", "a\0b.gguf", "\ud800.safetensors"])
def test_paths_that_no_file_can_have(name: str) -> None:
    with pytest.raises(InputError, match="has a character that no path can have"):
        open_regular_file(Path(name), "a file")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be"])
def test_a_text_of_powershell_is_read(encoding: str, tmp_path: Path) -> None:
    """`curl … > config.json` writes UTF-16 in PowerShell 5."""
    path = tmp_path / "config.json"
    path.write_bytes(("\ufeff" * (encoding == "utf-16-be") + '{"é": 1}\r\n').encode(encoding))
    assert read_text(path) == '{"é": 1}\r\n'


@pytest.mark.parametrize("ending", [".toml", ".json", ".yaml", ".sh"])
def test_a_file_that_is_no_text_is_expected_by_its_own_ending(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"file{ending}"
    path.write_bytes(b"a\xff")
    with pytest.raises(
        InputError, match=rf"not a text file \(byte 1 is not UTF-8\); expected a \{ending} file in UTF-8 or UTF-16"
    ):
        read_text(path)


def test_standard_input_is_bounded(tmp_path: Path) -> None:
    refused(bounded("params", "-", stdin=Path("/dev/zero")), "standard input is too large")
    assert bounded("params", "-", stdin=json.dumps({"model_type": "gpt2"})).returncode == 0


def test_signs_in_texts_are_no_elements() -> None:
    require_few_elements('{"a": "' + "[,{" * 100 + '", "b": ["\\"[[["]}', "x", 4)
    with pytest.raises(InputError, match="x: more than 4 values and fields; expected at most 4"):
        require_few_elements('{"a": [1, 2], "b": "[[["}', "x", 4) or require_few_elements("[[[[[", "x", 4)


ENDLESS: dict[str, tuple[str, str]] = {
    "a string of quotes in JSON": ("config.json", '{"' + '\\"' * 900_000 + "," * 3_000_100),
    "a string of quotes in TOML": ("model.toml", 'a="' + '\\"' * 190_000 + "," * 310_000),
    "a string of quotes with dots": ("model.toml", 'a="' + '\\"' * 490_000 + "." * 45),
    "a long word with dots": ("model.toml", "a" * 900_000 + " " + ". " * 50),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_text_is_looked_through_once(name: str, tmp_path: Path) -> None:
    """Each took minutes: a pattern that found no end began again at the next character."""
    file, text = ENDLESS[name]
    (tmp_path / file).write_text(text)
    refused(bounded("params", file, cwd=tmp_path), f"{file}: not valid")


def test_patterns_go_through_a_text_once(tmp_path: Path) -> None:
    """Each took longer than 20 s: two repeats of a pattern shared out the letters in every way."""
    quick, quotes, spaces = 5.0, "'" * 390_000, " " * 390_000
    with within(quick), pytest.raises(InputError, match="is no launch file"):
        launch_from_text(f"python x\n{quotes}", "run.yaml")
    newlines = "\n" * 390_000
    with within(quick), pytest.raises(InputError, match="a Python file of no program"):
        launch_from_text(f"import x{newlines}", "run.py")
    with within(quick):
        shell_text_of_windows_script(f'set A={spaces}"x', "run.bat")
    with within(quick):
        assert program_of_image(spaces) is None
    (tmp_path / "budget.toml").write_text(f'[[model]]\ntarget = "gpt2"\nparams = "{spaces}b"\n')
    with within(quick), pytest.raises(InputError, match="is no bound"):
        read_budget(tmp_path / "budget.toml")
    with within(quick), pytest.raises(InputError, match="not a whole number"):
        parse_length(f"1{spaces}!")
    with within(quick), pytest.raises(InputError, match="no accelerator has a name of 390,002 letters"):
        find_hardware(f"8{spaces}x")
    with within(quick), pytest.raises(InputError, match="no preset, file or hub id"):
        load("a" * 390_000)


NUMBERS: dict[str, tuple[str, ...]] = {
    "zeros": ("1" + "0" * 400, "a number of 401 letters; expected at most 100"),
    "thousands": ("1" + "0" * 40_000, "a number of 40,001 letters"),
    "a fraction": ("1." + "0" * 400, "a number of 402 letters"),
}


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("key", ["params", "memory", "flops_per_token"])
def test_a_budget_of_a_long_number(name: str, key: str, tmp_path: Path) -> None:
    number, message = NUMBERS[name]
    (tmp_path / "budget.toml").write_text(f'[[model]]\ntarget = "gpt2"\n{key} = "{number}"\n')
    refused(bounded("budget", "budget.toml", cwd=tmp_path), f"{key}: {message}")


def test_a_budget_of_a_whole_number(tmp_path: Path) -> None:
    for number in ("1" + "0" * 400, "0x" + "f" * 9000):
        (tmp_path / "budget.toml").write_text(f'[[model]]\ntarget = "gpt2"\nparams = {number}\n')
        refused(bounded("budget", "budget.toml", cwd=tmp_path), "params: ", "expected a number of at most 100 digits")


def test_a_budget_of_many_models(tmp_path: Path) -> None:
    (tmp_path / "budget.toml").write_text('[[model]]\ntarget = "gpt2"\nparams = 1\n' * 20_000)
    refused(bounded("budget", "budget.toml", cwd=tmp_path), "20,000 models are too many; expected at most 1,000")


def test_a_budget_of_many_accelerators(tmp_path: Path) -> None:
    (tmp_path / "budget.toml").write_text(f'[[model]]\ntarget = "gpt2"\nfits = {["h100"] * 5_000}\n')
    refused(bounded("budget", "budget.toml", cwd=tmp_path), "fits: 5,000 accelerators are too many")


@pytest.mark.parametrize("words", [("flops", "gpt2", "--seq"), ("kv", "gpt2", "--batch"), ("shape", "--params")])
def test_an_option_of_a_long_number(words: tuple[str, ...]) -> None:
    refused(bounded(*words, "9" * 5000), f"{words[-1]}: ", "a number of 5,000 letters")
