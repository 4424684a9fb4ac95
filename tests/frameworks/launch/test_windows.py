"""Scripts of Windows (`.bat`, `.ps1`), typed commands with its paths, and units of systemd and Podman."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import llmcalc
from llmcalc.frameworks.launch.systemd_units import shell_of_unit
from llmcalc.frameworks.launch.windows_scripts import posix_paths, shell_text_of_windows_script

SHELL = """#!/bin/bash
llama-server -m models/Qwen3-8B-Q4_K_M.gguf \\
  -c 20480 -ngl 99 -fa on
"""

BATCH = """@echo off
REM the model
set "MODEL=D:\\models\\Qwen3-8B-Q4_K_M.gguf"
set CTX=20480
cd /d C:\\llama
start "llama" /b "C:\\llama\\llama-server.exe" ^
  -m %MODEL% -c %CTX% ^
  -ngl 99 -fa on
pause
"""

POWERSHELL = """# the model
$model = "D:\\models\\Qwen3-8B-Q4_K_M.gguf"
$env:CTX = "20480"
& "C:\\llama\\llama-server.exe" `
  -m $model `
  -c $env:CTX -ngl 99 -fa on
"""

SERVICE = """[Unit]
Description=llama.cpp
[Service]
Environment="MODEL=models/Qwen3-8B-Q4_K_M.gguf" CTX=20480
ExecStartPre=/usr/bin/sleep 5
ExecStart=-/usr/local/bin/llama-server -m ${MODEL} \\
    # the context
    -c ${CTX} -ngl 99 -fa on
Restart=always
"""

CONTAINER = """[Container]
Image=ghcr.io/ggml-org/llama.cpp:server-cuda
Environment=LLAMA_ARG_CTX_SIZE=20480 "LLAMA_ARG_FLASH_ATTN=on"
Volume=/srv/models:/models
Exec=-m /models/Qwen3-8B-Q4_K_M.gguf -ngl 99
"""


def needed(launch: str | Path) -> int:
    answer: Any = llmcalc.memory(launch=str(launch), hardware="rtx-4090")
    return int(answer.result.term_bytes("kv_buffer"))


def test_a_script_of_windows_is_read_as_the_same_script_of_a_shell(tmp_path: Path) -> None:
    for name, text in (("a.sh", SHELL), ("a.bat", BATCH), ("a.ps1", POWERSHELL)):
        (tmp_path / name).write_text(text.replace("\n", "\r\n") if name == "a.bat" else text)
    shell = needed(tmp_path / "a.sh")
    assert shell > 0
    assert needed(tmp_path / "a.bat") == needed(tmp_path / "a.ps1") == shell
    for name, text in (("a.service", SERVICE), ("a.container", CONTAINER)):
        (tmp_path / name).write_text(text)
        assert needed(tmp_path / name) == shell
    typed = ".\\llama-server.exe -m C:\\models\\Qwen3-8B-Q4_K_M.gguf -c 20480 -ngl 99 -fa on"
    assert needed(typed) == shell


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a -m C:\\b\\c.gguf", "a -m C:/b/c.gguf"),
        ("vllm serve a \\\n --max-model-len 1", "vllm serve a \\\n --max-model-len 1"),
        ("a --x '{\\\"b\\\": 1}'", "a --x '{\\\"b\\\": 1}'"),
    ],
)
def test_slashes_replace_backslashes_in_paths_alone(text: str, expected: str) -> None:
    assert posix_paths(text) == expected


def test_another_file_is_left_as_it_is() -> None:
    assert shell_text_of_windows_script(BATCH, "a.sh") == shell_of_unit(BATCH, "a.sh") == BATCH


def test_a_unit_keeps_its_lines_and_ends_where_the_file_does() -> None:
    assert shell_of_unit("[Service]\nExecStart=@a \\\n b 'c\\", "x.service") == "\na  b 'c\n"
    assert shell_of_unit('[Container]\nEnvironment="A\nExec=b', "x.container") == "\n\n"
    assert shell_of_unit('[Container]\nEnvironment="A\nImage=b', "x.container") == "\n\npodman run -e '\"A' b"
