"""The program in a real shell: help, version, colour, widths, closed pipes, interruption, `-o`, completion."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from llmcalc import __version__
from llmcalc.cli.main import COMMANDS
from llmcalc.sources.presets import model_names
from tests import in_process
from tests.bounds import bounded

PROGRAM = "import sys; sys.argv[0] = 'llmcalc'; from llmcalc.cli.main import main; main()"


SCREEN_VARIABLES = ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE")


def environment(**extra: str) -> dict[str, str]:
    others = {name: value for name, value in os.environ.items() if name not in SCREEN_VARIABLES}
    return {**others, "PYTHONWARNINGS": "error", **extra}


def shell(line: str, **extra: str) -> subprocess.CompletedProcess[str]:
    """Runs a line of bash in which `llmcalc` is this program, with `pipefail`."""
    script = f'set -o pipefail\nllmcalc() {{ {sys.executable} -c "{PROGRAM}" "$@"; }}\n{line}'
    return subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, env=environment(**extra), timeout=300, check=False
    )


def test_help_of_everything(run: Any) -> None:
    whole = run("--help")
    assert whole.code == 0
    assert whole.err == ""
    assert whole.out == run().out  # no arguments print the help
    assert "..." not in whole.out.partition("Commands:")[2]  # no command's line is cut
    for command in COMMANDS:
        assert f"\n  {command} " in whole.out
        page = run(command, "--help")
        assert (page.code, page.err) == (0, "")
        assert page.out.startswith(f"Usage: llmcalc {command} ")
        assert len(page.out.splitlines()) <= 72, command
        everything = run(command, "--help-all")
        assert (everything.code, everything.err) == (0, "")
        assert len(everything.out.splitlines()) >= len(page.out.splitlines()), command
    assert run("--help-all").out == whole.out  # a group has no more than its `--help` lists


def test_help_of_memory_is_a_screen_and_a_half(run: Any) -> None:
    assert len(run("memory", "--help", columns=80).out.splitlines()) <= 60


@pytest.mark.parametrize("columns", [1, pytest.param(20, marks=pytest.mark.exhaustive), 40])
def test_narrow_terminals(columns: int, run: Any) -> None:
    for line in (
        "--help",
        "flops --help",
        "params llama3-8b",
        "kv gemma2-9b",
        "compare llama3-8b gpt2",
        "explain gpt2",
        "memory gpt2",
        "fit gpt2 --hardware t4",
        "hardware",
    ):
        result = run(*line.split(), columns=columns)
        assert (result.code, result.err) == (0, ""), line
        assert result.out


def test_version_and_module(run: Any) -> None:
    assert run("--version").out == f"llmcalc {__version__}\n"
    module = subprocess.run(
        [sys.executable, "-m", "llmcalc", "params", "gpt2"],
        capture_output=True,
        text=True,
        env=environment(COLUMNS="80"),
        check=True,
    )
    assert module.stdout == run("params", "gpt2").out


def printed(*words: str, **extra: str) -> str:
    """What a process of its own prints into a file, with these variables."""
    return bounded(*words, env={**dict.fromkeys(SCREEN_VARIABLES, ""), **extra}).stdout


def test_colour() -> None:
    plain = printed("params", "gpt2")
    forced = printed("params", "gpt2", FORCE_COLOR="1")
    both = printed("params", "gpt2", FORCE_COLOR="1", NO_COLOR="1")
    assert "\x1b" not in plain
    assert "\x1b[" in forced
    assert not re.search(r"\x1b\[[\d;]*\b(3\d|9\d|4\d)m", both)  # no colour; bold and dim are not colours
    assert "\x1b" not in printed("params", "gpt2", "--format", "json", FORCE_COLOR="1")


def test_verdicts_have_a_colour_that_says_nothing_more() -> None:
    words = ["memory", "llama3-8b", "--hardware", "rtx-4090", "--hardware", "t4", "--hardware", "18250MiB"]
    coloured = printed(*words, FORCE_COLOR="1", COLUMNS="80")
    assert re.search(r"\x1b\[32mfits\x1b", coloured)
    assert re.search(r"\x1b\[33mtight\x1b", coloured)
    assert re.search(r"\x1b\[31mno\x1b", coloured)
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured).split() == printed(*words, COLUMNS="80").split()


@pytest.mark.parametrize(
    "line",
    [
        "llmcalc hardware",
        pytest.param("llmcalc presets", marks=pytest.mark.exhaustive),
        pytest.param("llmcalc presets --details --format json", marks=pytest.mark.exhaustive),
        "llmcalc --help",
        pytest.param("llmcalc explain gpt2 --help", marks=pytest.mark.exhaustive),
    ],
)
def test_a_reader_that_goes_away(line: str) -> None:
    """At the first line; of the help, which is the shortest, before it too."""
    for reader in ("head -1", "true") if line == "llmcalc --help" else ("head -1",):
        result = shell(f"{line} | {reader}", PYTHONUNBUFFERED="1")
        assert (result.returncode, result.stderr) == (0, "")


def test_a_check_that_fails_says_so_though_nobody_reads() -> None:
    result = shell("llmcalc memory llama3-405b --hardware h100 | true", PYTHONUNBUFFERED="1")
    assert (result.returncode, result.stderr) == (1, "")


def test_a_checkpoint_that_differs_says_so_though_nobody_reads(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    header = json.dumps({"wte.weight": {"dtype": "BF16", "shape": [9, 9], "data_offsets": [0, 162]}}).encode()
    file.write_bytes(struct.pack("<Q", len(header)) + header + bytes(162))
    result = shell(f"llmcalc check {file} gpt2 | true", PYTHONUNBUFFERED="1")
    assert (result.returncode, result.stderr) == (1, "")


@pytest.mark.parametrize("module", ["llmcalc.cli.main", "typer", "pydantic"])
def test_interruption_in_the_first_moments(module: str) -> None:
    """Interruption while the program is still being imported."""
    code = (
        "import builtins, sys\nfind = builtins.__import__\n"
        "def interrupted(name, *rest, **more):\n"
        f"    if name in ('{module}', '{module.rpartition('.')[2]}'): raise KeyboardInterrupt\n"
        "    return find(name, *rest, **more)\n"
        "sys.argv = ['llmcalc', 'params', 'gpt2']\n"
        "from llmcalc.cli import run\nbuiltins.__import__ = interrupted\nrun()"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), timeout=300, check=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_nowhere_to_write() -> None:
    full = shell("llmcalc params gpt2 > /dev/full")
    assert (full.returncode, full.stderr) == (2, "error: standard output: No space left on device\n")
    closed = shell("llmcalc params gpt2 >&-")
    assert closed.returncode == 2
    assert re.fullmatch(r"error: standard output is closed; .*\n", closed.stderr)
    unheard = shell("llmcalc params no-such-model 2>&-")
    assert (unheard.returncode, unheard.stdout) == (2, "")


def test_interruption() -> None:
    code = (
        "import os, signal, sys, time, llmcalc.sources.target as target\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a job in the background may ignore it
        "target.load = lambda *_: (os.kill(os.getpid(), signal.SIGINT), time.sleep(600))\n"
        "sys.argv = ['llmcalc', 'params', 'gpt2']\n"
        "from llmcalc.cli.main import main\nmain()"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), timeout=300, check=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (128 + signal.SIGINT, "", "")


def test_errors_in_a_shell() -> None:
    for line in (
        "params",  # the command line's own error
        "flops gpt2 --batch 0",  # an option's
        "kv bert-base",  # the answer's; what else is refused runs in one process (cli/test_bad_input.py)
    ):
        result = bounded(*line.split())
        assert (result.returncode, result.stdout) == (2, "")
        assert re.fullmatch(r"error: [^\n]+\n", result.stderr), result.stderr


def test_output_to_a_file(run: Any, tmp_path: Path) -> None:
    path, link = tmp_path / "answer.json", tmp_path / "link.json"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    assert run("params", "gpt2", "--format", "json", "-o", str(link)) == (0, "", "")
    assert link.is_symlink()
    assert path.read_text() == run("params", "gpt2", "--format", "json").out
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert run("kv", "bert-base", "-o", str(path)).code == 2
    assert path.read_text().startswith("{")
    assert {p.name for p in tmp_path.iterdir()} == {"answer.json", "link.json"}


def test_the_ending_of_an_output_file_is_its_format(run: Any, tmp_path: Path) -> None:
    """A table was written into `answer.json`, which no reader of JSON opens; `--format` comes before the ending."""
    for ending, words in {
        "json": ("--format", "json"),
        "csv": ("--format", "csv"),
        "md": ("--format", "markdown"),
        "txt": (),
    }.items():
        path = tmp_path / f"answer.{ending}"
        assert run("params", "gpt2", "-o", str(path)) == (0, "", "")
        assert path.read_text() == run("params", "gpt2", *words).out
    assert run("params", "gpt2", "--format", "table", "-o", str(tmp_path / "table.json")).code == 0
    assert (tmp_path / "table.json").read_text() == run("params", "gpt2").out


def test_output_to_a_device_is_written_into_it(run: Any, tmp_path: Path) -> None:
    """As root, `-o /dev/null` once replaced the device by a file."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    heard: list[str] = []
    reader = threading.Thread(target=lambda: heard.append(pipe.read_text()), daemon=True)
    reader.start()
    assert run("params", "gpt2", "-o", str(pipe)) == (0, "", "")
    reader.join(timeout=60)
    assert heard == [run("params", "gpt2").out]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    unread = run("params", "gpt2", "-o", str(pipe))  # which waited for ever
    assert (unread.code, "is a pipe that no program reads" in unread.err) == (2, True)
    terminal = subprocess.run(  # a device, which has no terminal behind it here
        [sys.executable, "-m", "llmcalc", "params", "gpt2", "-o", "/dev/tty"],
        check=False,
        start_new_session=True,
        capture_output=True,
        text=True,
    )
    assert (terminal.returncode, "is a pipe" in terminal.stderr) == (2, False)
    assert "/dev/tty: No such device or address; expected a file that can be written" in terminal.stderr
    circle = tmp_path / "circle"
    circle.symlink_to(circle)
    assert run("params", "gpt2", "-o", str(circle)).code == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_output_where_one_may_not_write(run: Any, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    result = run("params", "gpt2", "-o", str(tmp_path / "x"))
    tmp_path.chmod(0o700)
    assert result.code == 2
    assert "--output" in result.err


def completion_environment(words: str) -> dict[str, str]:
    """What bash sets when it asks for the completions of the last word."""
    return {"_LLMCALC_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}


def completions(words: str) -> list[str]:
    with mock.patch.dict(os.environ, completion_environment(words)):
        result = in_process.command()
    assert result.err == ""
    return result.out.split()


def test_completion_offers_names() -> None:
    in_shell = shell("llmcalc", **completion_environment("llmcalc params llama3"))
    assert (in_shell.stdout.split(), in_shell.stderr) == (completions("llmcalc params llama3"), "")
    assert completions("llmcalc params llama3") == [name for name in model_names() if name.startswith("llama3")]
    assert completions("llmcalc compare gpt2 gpt") == [name for name in model_names() if name.startswith("gpt")]
    assert completions("llmcalc par") == ["params"]
    assert "h100-sxm" in completions("llmcalc hardware h1")
    assert "h100-sxm" in completions("llmcalc memory gpt2 --hardware h1")
    assert completions("llmcalc flops gpt2 --phase d") == ["decode"]
    assert completions("llmcalc params nothing-begins-so") == []
    assert completions("llmcalc nothing llama") == []


def test_completion_can_be_installed(tmp_path: Path) -> None:
    pytest.importorskip("shellingham")
    result = shell(
        "llmcalc --install-completion; exit $?", HOME=str(tmp_path), _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION=""
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert "bash completion installed" in result.stdout
    script = (tmp_path / ".bash_completions" / "llmcalc.sh").read_text()
    assert "_LLMCALC_COMPLETE=complete_bash" in script
    assert str(tmp_path / ".bash_completions" / "llmcalc.sh") in (tmp_path / ".bashrc").read_text()
    assert (
        subprocess.run(
            ["bash", "-c", f"source {tmp_path}/.bash_completions/llmcalc.sh && complete -p llmcalc"], check=False
        ).returncode
        == 0
    )
