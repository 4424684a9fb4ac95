"""Launch files made to exhaust memory or time: each is answered or refused in one line within 5 s and 512 MB."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import prod
from pathlib import Path

import pytest

from llmcalc.errors import InputError
from llmcalc.frameworks.launch.read_launch_file import launch_from_text
from llmcalc.frameworks.launch.shell import read_script
from llmcalc.frameworks.launch.yaml_text import parse_yaml
from llmcalc.frameworks.megatron.launch_file import smallest_world_size
from llmcalc.frameworks.megatron.settings import MegatronSettings
from tests.bounds import bounded
from tests.samples import in_one_test, with_rest
from tests.sources.test_reader_bounds import refused

ARGUMENTS = (
    "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 "
    "--micro-batch-size 1"
)
RUN = f"torchrun pretrain_gpt.py {ARGUMENTS}\n"
MANY = "\n".join(f"V{i}={i}" for i in range(15_000))
"""Variables of a script."""

SCRIPTS: dict[str, tuple[Callable[[], str], str]] = {
    "an array of many words": (lambda: "A=(" + "x " * 190_000 + ")\n" + RUN, ""),
    "many arrays that grow": (lambda: "A=(x)\n" + "A+=(x y)\n" * 40_000 + RUN, "4,000,000 letters"),
    "a text that grows": (lambda: "A=x\n" + "A+=xyzxyzxyz\n" * 15_000 + RUN, "4,000,000 letters"),
    "many ;": (lambda: ";" * 390_000 + "\n" + RUN, ""),
    "many commands": (lambda: "x;" * 15_000 + "\n" + RUN, ""),
    "many lines": (lambda: "\n" * 390_000 + RUN, ""),
    "deep if": (lambda: "if a\n" * 70_000 + RUN, "expected at most 50"),
    "many if": (lambda: "if [ 1 = 1 ]; then\n:\nfi\n" * 15_000 + RUN, ""),
    "many fi": (lambda: "fi\n" * 100_000 + RUN, ""),
    "many !": (lambda: "if [ " + "! " * 150_000 + "x = y ]; then :; fi\n" + RUN, ""),
    "arithmetic with many variables": (lambda: MANY + "\n" + "A=$((V1+1))\n" * 15_000 + RUN, ""),
    "arithmetic with a long variable": (
        lambda: "A='" + " " * 150_000 + "'\n" + ("B=$((" + "+".join(["A"] * 900) + "))\n") * 100 + RUN,
        "",
    ),
    "a text of texts": (
        lambda: "A='" + "x" * 190_000 + "'\nB=\"" + "$A" * 50_000 + '"\n' + RUN,
        "expected at most 4,000,000 letters",
    ),
    "arrays of arrays": (
        lambda: "A=(" + "x " * 50_000 + ")\n" + 'B=("${A[@]}")\n' * 10_000 + RUN,
        "expected at most 4,000,000 letters",
    ),
    "a script in a script": (
        lambda: "A='" + "x;" * 90_000 + "'\n" + 'sh -c "$A"\n' * 10_000 + RUN,
        "expected at most",
    ),
    "defaults in defaults": (lambda: "${A:-" * 60_000 + "}" * 60_000 + "\n" + RUN, "4,000,000 letters"),
    "many here-documents": (lambda: "".join(f"cat <<E{i}\nE{i}\n" for i in range(18_000)) + RUN, ""),
    "many patterns": (
        lambda: "case x in\n" + "".join(f"*{i}*) A=1;;\n" for i in range(20_000)) + "esac\n" + RUN,
        "4,000,000 letters",
    ),
    "a pattern of wildcards": (
        lambda: "case " + "a" * 90_000 + " in\n" + "*a" * 50_000 + "b) A=1;;\nesac\n" + RUN,
        "",
    ),
    "many batch options": (lambda: "#!/bin/sh\n" + "#SBATCH -N 1\n" * 25_000 + RUN, ""),
    "spaces": (lambda: RUN + "\n" * 390_000 + "x", ""),
    "a quoted word of escapes": (lambda: "A=" + "\\a" * 190_000 + "\n" + RUN, ""),
}


SLOW = {
    "many if",
    "many commands",
    "many !",
    "an array of many words",
    "many lines",
    "arithmetic with many variables",
    "many fi",
    "many ;",
    "defaults in defaults",
}
"""Scripts that another resembles (deep `if`, spaces, escapes, long arithmetic, many here-documents and patterns), or a
file of a server in ../server_files (defaults in defaults).
"""


@pytest.mark.parametrize("name", with_rest({name: name for name in SCRIPTS}, SCRIPTS.keys() - SLOW))
def test_a_large_script(name: str, tmp_path: Path) -> None:
    make, message = SCRIPTS[name]
    path = tmp_path / "run.sh"
    path.write_text(make())
    result = bounded("memory", "--launch", str(path))
    if message:
        refused(result, message)
    else:
        assert result.returncode == 0, result.stderr
        assert result.seconds < 20


def doubled(levels: int) -> str:
    """YAML in which each level is the one before it twice: 2^levels values behind 2 · levels aliases."""
    lines = ["a0: &a0 [x, x]"] + [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, levels)]
    return "\n".join(lines) + "\n"


def merges() -> str:
    """YAML in which one table merges 5,000 others."""
    tables = "".join(f"a{i}: &a{i} {{k{i}: 1}}\n" for i in range(5_000))
    return f"{tables}b:\n  <<: [{', '.join(f'*a{i}' for i in range(5_000))}]\n"


TABLES: dict[str, tuple[Callable[[], str], str]] = {
    "a billion laughs": (lambda: doubled(9), ""),
    "2^30": (lambda: doubled(30), "too many values, with aliases expanded; expected at most 50,000"),
    "one large list, named often": (
        lambda: "a: &a [" + "x, " * 20_000 + "]\nb: [*a, *a, *a]\n",
        "too many values, with aliases expanded",
    ),
    "deep by aliases": (
        lambda: "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 60)),
        "nested too deeply",
    ),
    "a number of base 60": (lambda: "a: 1" + ":1" * 150_000, "a number of 300,001 letters; expected at most 400"),
    "a number of many digits": (lambda: "a: " + "1" * 5_000, "a number of 5,000 letters; expected at most 400"),
    "a date that is none": (lambda: "MODEL_ARGS: {--num-layers: 2024-13-45}", "--num-layers: '2024-13-45'"),
    "merges": (merges, ""),
    "a merge of a number": (lambda: "a:\n  <<: 3\n", "<< merges something that is no table"),
    "keys with one hash": (lambda: "".join(f"{i * (2**61 - 1)}: 1\n" for i in range(12_000)), ""),
    "a set": (lambda: "a: !!set {x, y}\n", "the tag tag:yaml.org,2002:set at line 1 is not read"),
    "bytes": (lambda: "a: !!binary aGVsbG8=\n", "the tag tag:yaml.org,2002:binary"),
    "many values": (lambda: "a: [" + "x," * 190_000 + "]", "too many values"),
    "dotted TOML keys": (lambda: "[a]\n" + "a." * 190_000 + "a = 1\n", "nested too deeply"),
    "a dotted TOML table": (lambda: "[x]\n[" + "a." * 190_000 + "a]\n", "nested too deeply"),
    "many dotted TOML tables": (
        lambda: "[x]\n" + "".join(f"[a{i}{'.b' * 35}]\n" for i in range(4_800)),
        "dots in keys are too many; expected at most 100,000",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_tables_that_grow(name: str, tmp_path: Path) -> None:
    make, message = TABLES[name]
    path = tmp_path / "run.yaml"
    path.write_text(make())
    refused(bounded("memory", "--launch", str(path)), message or "is no launch file")


def test_aliases_that_stay_small_are_read() -> None:
    """Hundreds of aliases of one small table, and merges whose first table has the last word."""
    text = "a: &a {x: 1, y: 2}\nb: &b {x: 3, z: 4}\n" + "".join(f"c{i}: *a\n" for i in range(300))
    found = parse_yaml(text + "d:\n  <<: [*a, *b]\n  y: 9\n", "x")
    assert found["c299"] == {"x": 1, "y": 2}
    assert found["d"] == {"x": 1, "y": 9, "z": 4}


def test_yaml_values_are_those_of_pyyaml() -> None:
    yaml = pytest.importorskip("yaml")
    text = "a: [1, 0x1f, 017, 1_000, 1.5, 1e3, 1.0e+3, .inf, 1:30, yes, no, ~, null, 'x', on, -0b11, '', x y]\n7: b\n"
    assert parse_yaml(text, "x") == {str(key): value for key, value in yaml.safe_load(text).items()}
    assert parse_yaml("a: 2024-01-31", "x") == {"a": "2024-01-31"}


# ---- the smallest world


def fewest(s: MegatronSettings) -> int:
    """The fewest devices, by trying every number of data-parallel ranks."""
    inside = s.tp * s.cp
    experts = max(1, s.expert_model_parallel_size) * (s.expert_tensor_parallel_size or s.tp)
    return next(inside * dp * max(1, s.pp) for dp in range(1, experts + 1) if inside * dp % experts == 0)


def settings(tp: int, cp: int, pp: int, ep: int, etp: int | None) -> MegatronSettings:
    return MegatronSettings(
        kind="gpt",
        tensor_model_parallel_size=tp,
        context_parallel_size=cp,
        pipeline_model_parallel_size=pp,
        expert_model_parallel_size=ep,
        expert_tensor_parallel_size=etp,
    )


def test_the_smallest_world_is_the_one_that_trying_finds() -> None:
    sizes = (range(1, 7), range(1, 5), (1, 3), range(1, 13), (None, *range(1, 9)))
    assert prod(map(len, sizes)) > 5_000
    for tp, cp, pp, ep, etp in product(*sizes):
        case = settings(tp, cp, pp, ep, etp)
        assert smallest_world_size(case) == fewest(case), (tp, cp, pp, ep, etp)


@pytest.mark.parametrize(
    ("flag", "error"),
    [
        ("expert-tensor-parallel-size", ""),
        ("expert-model-parallel-size", "--ep 2147483647: the model has no routed experts"),
    ],
)
def test_a_huge_expert_group(flag: str, error: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    entries = ARGUMENTS.split()
    table = "\n".join(f"  {name}: {value}" for name, value in zip(entries[::2], entries[1::2], strict=True))
    path.write_text(f"MODEL_ARGS:\n{table}\n  --{flag}: 2147483647\n")
    result = bounded("memory", "--launch", str(path))
    assert (result.returncode, error in result.stderr) == (2 if error else 0, True), result.stderr
    assert result.seconds < 20


# ---- variables that a script does not set


@in_one_test
@pytest.mark.parametrize(
    ("script", "message"),
    [
        (f"torchrun pretrain_gpt.py {ARGUMENTS} --tensor-model-parallel-size $TP", "the variable TP is not set"),
        ("torchrun pretrain_gpt.py $ARGS", "line 1: '$ARGS' is known only when the script runs: the variable ARGS"),
        ("torchrun pretrain_gpt.py ${ARGS[@]} --num-layers 2", "expected --launch 'ARGS=… FILE'"),
        ("torchrun t.py --per_device_train_batch_size ${BS}", "--per_device_train_batch_size: '$BS' is known only"),
        (f"torchrun pretrain_gpt.py {ARGUMENTS} --num-experts $((E * 2))", "does not set all of E"),
        (f"torchrun pretrain_gpt.py {ARGUMENTS} --num-experts $1", "it is argument 1 of the script; expected --launch"),
        (f"torchrun pretrain_gpt.py {ARGUMENTS} --num-experts $(wc -l x)", "a command prints it"),
        (f"for i in $L; do E=$i; done\ntorchrun pretrain_gpt.py {ARGUMENTS} --num-experts $E", "a loop, a condition"),
    ],
)  # fmt: skip
def test_a_variable_that_is_not_set_is_named(script: str, message: str) -> None:
    with pytest.raises(InputError) as stop:
        launch_from_text(script, "x.sh")
    assert message in str(stop.value)


def test_a_model_that_is_a_variable(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text("torchrun train.py --per_device_train_batch_size 2 --model_name_or_path $MODEL\n")
    refused(bounded("memory", "--launch", str(path)), "the model, '$MODEL', is known only when the script runs")
    assert bounded("memory", "gpt2", "--launch", str(path)).returncode == 0


@pytest.mark.parametrize(("count", "branch"), [(1, "b"), (2, "a"), (3, "b")])
def test_several_negations(count: int, branch: str) -> None:
    text = f"if [ {'! ' * count}x = x ]; then run a; else run b; fi"
    assert [one.words for one in read_script(text, "x.sh").commands] == [("run", branch)]


def test_values_of_python_that_nest_and_tables_that_grow(tmp_path: Path) -> None:
    growing_tables = "\n".join(f"t{i} = dict(a=t{i - 1}, b=t{i - 1})" for i in range(1, 60))
    path = tmp_path / "train.py"
    path.write_text(
        "from trl import SFTTrainer, SFTConfig\n"
        f"flag = {'not ' * 900}x\nt0 = dict(a=1)\n{growing_tables}\n"
        'trainer = SFTTrainer("Qwen/Qwen2.5-0.5B", args=SFTConfig(max_length=512, bf16=flag), **t59)\n'
    )
    refused(bounded("memory", "--launch", str(path)), "bf16 (is known only when the file runs)")
