"""Launch files of servers made to exhaust memory or time: each is answered or refused in one line within seconds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bounds import bounded
from tests.samples import with_rest

SERVE = "vllm serve qwen3-8b"
POD = "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - image: vllm/vllm-openai\n"

FILES: dict[str, tuple[str, Callable[[], str], str]] = {
    "many servers": (
        "s.sh",
        lambda: "".join(f"{SERVE} --max-num-seqs {i}\n" for i in range(1, 3_000)),
        "too many servers",
    ),
    "many flags": ("s.sh", lambda: SERVE + " --port 1" * 9_000, ""),
    "many words": ("s.sh", lambda: SERVE + " --served-model-name" + " a" * 19_000, ""),
    "many keys of a table": (
        "s.sh",
        lambda: SERVE + "".join(f" --limit-mm-per-prompt.k{i} 1" for i in range(9_000)),
        "",
    ),
    "deep keys of a table": ("s.sh", lambda: SERVE + " --limit-mm-per-prompt" + ".a" * 90_000 + "=1", ""),
    "many unknown flags": ("s.sh", lambda: SERVE + "".join(f" --x{i}" for i in range(9_000)), "no such flag"),
    "many unset variables": ("s.sh", lambda: SERVE + "".join(f" $V{i}" for i in range(9_000)), ""),
    "a long number": ("s.sh", lambda: SERVE + " --max-num-seqs " + "1" * 150_000, "whole number"),
    "a long suffix": ("s.sh", lambda: SERVE + " --max-model-len " + "1" * 100_000 + "k", "number of tokens"),
    "many scripts": ("s.sh", lambda: "\n".join(f"ssh h{i} '{SERVE} &'" for i in range(5_000)), "too many scripts"),
    "a script in a script": ("s.sh", lambda: 'A="x\n"\n' + 'A="$A$A"\n' * 17 + 'sh -c "$A vllm"\n' * 100, ""),
    "a large list": ("s.sh", lambda: SERVE + " --cudagraph-capture-sizes" + " 1" * 19_000, "expected 1 to 10,000"),
    "a deep table": ("s.sh", lambda: SERVE + " --compilation-config '" + '{"a":' * 35_000 + "1'", "not valid JSON"),
    "many image names": ("s.sh", lambda: "a/" * 190_000 + "\nvllm", ""),
    "many versions": ("s.sh", lambda: "pip install vllm==" + "0.1" * 120_000 + "\n" + SERVE, ""),
    "many variables of a container": (
        "pod.yaml",
        lambda: POD + "    args: ['" + "$(A)" * 40_000 + "']\n    env: [{name: A, value: '" + "x" * 100_000 + "'}]\n",
        "grows too long",
    ),
    "texts of a compose file": (
        "compose.yml",
        lambda: (
            "services:\n"
            + "".join(
                f"  s{i}: {{image: vllm/vllm-openai, command: '{'${A:-' + 'x' * 400 + '}'}'}}\n" for i in range(800)
            )
        ),
        "",
    ),
    "defaults in defaults": (
        "compose.yml",
        lambda: "services:\n  a:\n    image: vllm\n    command: '" + "${A:-" * 40_000 + "}" * 40_000 + "'\n",
        "4,000,000 letters",
    ),
    "fewer accelerators than none": (
        "pod.yaml",
        lambda: POD + "    args: [--model, qwen3-8b]\n    resources: {limits: {nvidia.com/gpu: -3}}\n",
        "nvidia.com/gpu: -3; expected a whole number of accelerators",
    ),
    "accelerators without end": (
        "compose.yml",
        lambda: (
            "services: {a: {image: vllm/vllm-openai, command: --model qwen3-8b, deploy: {resources: {reservations: "
            "{devices: [{count: 1.0e+400}]}}}}}"
        ),
        "count: inf; expected a whole number of accelerators",
    ),
    "too many accelerators": (
        "s.sh",
        lambda: "docker run --gpus 99999999999999999999 vllm/vllm-openai --model qwen3-8b",
        "--gpus: '99999999999999999999'; expected a whole number of accelerators",
    ),
    "many documents": ("pod.yaml", lambda: "kind: Pod\n---\n" * 10_000, "documents; expected at most 200"),
    "deep tables": ("pod.yaml", lambda: "kind: Pod\na: " + "{a: " * 35 + "x" + "}" * 35, "nested too deeply"),
    "many containers": ("pod.yaml", lambda: POD + "  - image: vllm/vllm-openai\n" * 9_000, ""),
    "many keys of a configuration": (
        "s.sh",
        lambda: "cat > c.yaml <<E\n" + "".join(f"k{i}: 1\n" for i in range(20_000)) + f"E\n{SERVE} --config c.yaml",
        "expected at most 1,000",
    ),
    "quotes of a Modelfile": ("Modelfile", lambda: "FROM x\nSYSTEM " + '"' * 390_000, ""),
    "lines of a Modelfile": ("Modelfile", lambda: "FROM x\n" + "PARAMETER num_ctx 1\n" * 15_000, ""),
    "spaces of a Modelfile": ("Modelfile", lambda: " " * 390_000 + "FROM", ""),
}


SLOW = {
    "many unset variables",
    "many containers",
    "a long suffix",
    "many flags",
    "many words",
    "many keys of a table",
    "deep keys of a table",
    "quotes of a Modelfile",
    "lines of a Modelfile",
    "texts of a compose file",
}
"""Files that another of the same reader resembles, in words, keys, variables, numbers, quotes or lines, and that take
seconds.
"""


@pytest.mark.parametrize("name", with_rest({name: name for name in FILES}, FILES.keys() - SLOW))
def test_a_file_that_grows(name: str, tmp_path: Path) -> None:
    file, make, message = FILES[name]
    path = tmp_path / file
    path.write_text(make())
    assert path.stat().st_size < 400_000
    result = bounded("memory", "--launch", str(path), "--hardware", "h100")
    assert result.seconds < 10
    if message:
        assert result.returncode == 2
        assert message in result.stderr
    assert len(result.stderr.splitlines()) <= 2


@pytest.mark.parametrize("name", ["s.sh", "c.yml", "Modelfile"])
@pytest.mark.parametrize(
    "text", ["\0", "vllm serve \0\0\0 --port", "vllm serve '\x1f' -tp \x1b[31m", "FROM \ue000\nPARAMETER a b"]
)
def test_marks_of_the_readers_in_a_file(text: str, name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    result = bounded("memory", "--launch", str(tmp_path / name), "--hardware", "h100")
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    assert "\x1b" not in result.stderr
