"""Shell scripts, as far as they are understood without running them."""

from __future__ import annotations

import posixpath
from pathlib import Path
from typing import Any

import pytest

import llmcalc
from llmcalc.errors import InputError
from llmcalc.frameworks.launch.read_launch_file import launch_from_text, read_launch
from llmcalc.frameworks.launch.shell import MAX_WORDS, read_script
from llmcalc.frameworks.launch.shell_arithmetic import evaluate_expression, whole_number_of
from llmcalc.frameworks.launch.shell_words import ShellCommand, ShellScript
from llmcalc.frameworks.launch.unresolved import UNRESOLVED_MARK, is_unresolved, printable_word
from tests.samples import in_one_test


def commands(text: str) -> list[ShellCommand]:
    return read_script(text, "x.sh").commands


def words(text: str) -> list[str]:
    """The words of the only command."""
    (command,) = commands(text)
    return list(command.words)


@in_one_test
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("run a b", ["run", "a", "b"]),
        (r"""run $'User: {}\nA\'s: ' --b 4 $'c' $"d e"f""", ["run", "User: {}\nA's: ", "--b", "4", "c", "d ef"]),
        ("run 'a b' \"c d\" e\\ f", ["run", "a b", "c d", "e f"]),
        ("run a \\\n  b # c", ["run", "a", "b"]),
        ("A=2\nrun $A ${A} \"$A\" '$A' x${A}y", ["run", "2", "2", "2", "$A", "x2y"]),
        ('run ${A:-7} ${B:-a b} "${B:-a b}"', ["run", "7", "a", "b", "a b"]),
        ("A=\nrun x ${A:-7} ${A-8} y", ["run", "x", "7", "y"]),
        ("run ${A:=3}$A", ["run", "33"]),
        ("A=x\nrun ${A:+yes} ${B:+no}", ["run", "yes"]),
        ("A=(1 '2 3'\n  4) # all\nrun \"${A[@]}\"", ["run", "1", "2 3", "4"]),
        ("A=(1 '2 3')\nrun ${A[@]}", ["run", "1", "2", "3"]),
        ('A=()\nrun "${A[@]}" ${A[@]} "$@" $@ b', ["run", "b"]),
        ("A=(1)\nA+=(2)\nB=x\nB+=y\nrun ${A[*]} $B", ["run", "1", "2", "xy"]),
        ('A="--x 1 \\\n --y 2"\nrun $A', ["run", "--x", "1", "--y", "2"]),
        ("A=3\nrun $((A * 2 + $A)) $((7/2)) $((-7 % 4))", ["run", "9", "3", "-3"]),
        ("run a > log 2>&1", ["run", "a"]),
        ('A="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"\nrun $A/b', ["run", "./b"]),
        ('A="$(cd "$(dirname "$0")/.." && pwd)"\nrun $A/b `pwd`/c $PWD', ["run", "../b", "./c", "."]),
        ('A=$(dirname "$(readlink -f "$0")")\nrun $A/b $(basename $0) ${0}', ["run", "./b", "x.sh", "./x.sh"]),
        ("A=$(dirname $(realpath ${BASH_SOURCE[@]}))\nrun $A `dirname $0`", ["run", ".", "."]),
        ("A=$(dirname $(dirname $0))\nrun $A/b $(dirname $A/c) $(dirname $A)", ["run", "../b", "..", "../.."]),
        ('A=$(dirname "$(pwd)")\nrun $A', ["run", ".."]),
        ("A=/a/b.c\nrun $(dirname $A) $(basename $A) $(cd /a; pwd)", ["run", "/a", "b.c", "/a"]),
        ("run a <<EOF\nb c\nEOF\n", ["run", "a"]),
        ("export A=1 B=2\nrun $A$B", ["run", "12"]),
        ('A=run\n"$A" 1', ["run", "1"]),
        ('bash -c "run 1 2"', ["run", "1", "2"]),
        ("A='run 1'\nsrun -n 4 sh -c \"$A 2\"", ["run", "1", "2"]),
        ("if [ 1 = 2 ]; then run a; else run b; fi", ["run", "b"]),
        ("A=3\nif [[ $A -gt 2 ]]; then B=1; elif [ x ]; then B=2; else B=3; fi\nrun $B", ["run", "1"]),
        ('if [ -z "$A" ]; then B=1; fi\nrun $B', ["run", "1"]),
        ('A=1\n[ "${B:-0}" = "1" ] && A=2\nrun $A', ["run", "1"]),
        ('[ "${B:-1}" = "1" ] && A=2 || A=3\nrun $A', ["run", "2"]),
        ("[[ ${B:-0} == 1 ]] &&\n A=2 || A=3\nrun $A", ["run", "3"]),
        ("[[ 1 == 1 && 2 == 3 ]] && A=2 || A=3\nrun $A", ["run", "3"]),
        ("test 1 = 1 || A=2\n[ 1 = 2 ] && { A=3; B=4; }\nrun ${A:-5}$B", ["run", "5"]),
        ("[ 1 = 1 ] && { A=3; B=4; }\nrun $A$B", ["run", "34"]),
        ("A=1\n[ 1 = 2 ] && [ 1 = 1 ] && A=2; B=3\nrun $A$B", ["run", "13"]),
        ("A=1\n! [ 1 = 2 ] && A=2\nrun $A", ["run", "2"]),
        ("if [ 1 = 2 ] || [ 1 = 1 ]; then [ 1 = 2 ] && A=2; B=3; fi\nrun ${A:-1}$B", ["run", "13"]),
        ('if [ ! -n "$A" ]; then B=1; fi\nrun $B', ["run", "1"]),
        ("case ${A:-b} in\n a) B=1 ;;\n b|c) B=2\n ;;\n *) B=3 ;;\nesac\nrun $B", ["run", "2"]),
        ("case x in a) B=1;; *) B=3;; esac\nrun $B", ["run", "3"]),
        ("A=0\nfor i in 1 2; do A=$A$i; done\nrun $A", ["run", "012"]),
        ("A=3\nwhile [ $A -lt 6 ]; do A=$((A + 1)); done\nrun $A", ["run", "6"]),
        ("while [[ $# -gt 0 ]]; do A=$1; shift; done\nrun ${A:-none} $#", ["run", "none", "0"]),
        ("A=4\nrun $((A > 3 ? 1 : 0)) $(( (A == 3) + 2 )) $((A % 3 != 1 ? A : -A))", ["run", "1", "2", "-4"]),
        ("N=4\nrun $(expr 64 / $N) $(echo a $N)", ["run", "16", "a", "4"]),
        ("IFS=',' read -r A B <<< \"2,x\"\nrun $B$A", ["run", "x2"]),
        ("A=b\nif [ $A = b ] && [ 1 = 2 ]; then B=1; elif [[ $A == b && 1 == 1 ]]; then B=2; fi\nrun $B", ["run", "2"]),
        ("if [ 1 = 2 ] || [ 1 = 1 ]; then B=1; fi\nrun $B", ["run", "1"]),
        ("C='run 1'\neval $C 2", ["run", "1", "2"]),
        ("if [ 1 = 2 ]; then A=--x; fi\nrun $A y", ["run", "y"]),
        ("A=<path to it>/b\nrun $A <the other> c", ["run", "<path", "to", "it>/b", "<the other>", "c"]),
        ("run a &>> log b", ["run", "a", "b"]),
    ],
)
def test_words(text: str, wanted: list[str]) -> None:
    assert words(text) == wanted


@in_one_test
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("run $1 ${2} $# $@ ${@:2} ${3:-z}", ["run", "a", "b c", "2", "a", "b", "c", "b", "c", "z"]),
        ('while [[ $# -gt 0 ]]; do case $1 in a) A=$2; shift 2;; esac; done\nrun "$A"', ["run", "b c"]),
        ("run $N ${M:-5}", ["run", "8", "6"]),
        ("N=$(nproc)\nrun $N", ["run", "8"]),
        ("N=3\nrun $N", ["run", "3"]),
        ("for M in 1 2 3; do run $M; done", ["run", "6"]),
    ],
)
def test_typed_variables_and_arguments(text: str, wanted: list[str]) -> None:
    script = read_script(text, "x.sh", {"N": "8", "M": "6"}, ["a", "b c"])
    (command,) = script.commands
    expected = [word for item in wanted for word in ([item] if item != "b c" or '"' in text else item.split())]
    assert list(command.words) == expected


def test_a_text_that_is_written_to_a_file() -> None:
    script = read_script('A=2\ncat <<EOF > c.json\n{"a": $A, "b": "\\$A"}\nEOF\ncat > d <<\'X\'\n$A\nX\n', "x.sh")
    assert script.written_files == {"c.json": '{"a": 2, "b": "$A"}\n', "d": "$A\n"}


def test_loops_are_noted() -> None:
    script = read_script("for a in 1 2; do for b in x; do run $a; done; done; run", "x.sh")
    assert [command.loop_values for command in script.commands] == [
        (("a", "1"), ("b", "x")),
        (("a", "2"), ("b", "x")),
        (),
    ]


def test_a_loop_without_an_end_is_refused() -> None:
    with pytest.raises(InputError, match="grows too long"):
        read_script("while [ 1 = 1 ]; do A=1; done", "x.sh")


@in_one_test
@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("run $A", "$A"),
        ("run $1", "$1"),
        ("run $(hostname -s | head)", "$(hostname…)"),
        ("run `date`", "`…`"),
        ("for i in $B; do A=$i; done\nrun $A", "A"),
        ("while read line; do A=1; done\nrun $A", "A"),
        ("if [ -f x ]; then A=1; fi\nrun $A", "A"),
        ("if [ 1 = 1 ] && [ -f x ]; then A=1; fi\nrun $A", "A"),
        ("if [ 1 = 2 ] || [ -f x ]; then A=1; fi\nrun $A", "A"),
        ("f() { A=1; }\nrun $A", "A"),
        ("A=1\nread A\nrun $A", "A"),
        ("run $((B + 1))", "$((B+1))"),
        ("run ${A%.*}", "${A…}"),
    ],
)
def test_what_only_a_run_would_tell_stays_open(text: str, name: str) -> None:
    last = next(one.words[-1] for one in commands(text) if one.words[0] == "run")
    assert is_unresolved(last)
    assert last == f"{UNRESOLVED_MARK}{name}{UNRESOLVED_MARK}"
    assert printable_word(last) == name


def test_a_branch_that_is_not_sure_keeps_its_commands() -> None:
    assert [one.words[1] for one in commands("if [ -f x ]; then run a; else run b; fi")] == ["a", "b"]


def test_paths_of_unknown_variables_stay_open() -> None:
    for text in ("run $(dirname $A)", "run $(cd $A && pwd)", "run $(dirname a b)", "run $(cd a && ls)", "run `date`"):
        assert all(map(is_unresolved, words(text)[1:])), text
    for text in ("run $(basename $PWD)", "run $(basename $(dirname $0))", "run $(basename ../..)"):
        assert all(map(is_unresolved, words(text)[1:])), text


def test_the_current_folder_is_open_behind_cd() -> None:
    for text in ("cd a\nrun $PWD/b", "cd ..\nA=$(pwd)\nrun $A", "(cd $A || exit)\nrun `pwd`", "pushd a\nrun ${PWD}"):
        assert is_unresolved(next(command.words[-1] for command in commands(text) if command.words[0] == "run")), text
    assert commands('cd "$(dirname "$0")"\nrun $PWD $(pwd)')[-1].words == ("run", ".", ".")


def test_exported_variables_and_those_of_a_command() -> None:
    script = read_script("A=1\nexport A B=2 C=$D\nE=5\nF=6 run x\n", "x.sh")
    assert script.env() == {"A": "1", "B": "2"}
    assert script.commands[0].env == {"F": "6"}


@pytest.mark.parametrize(
    ("text", "said_"),
    [
        ("run 'a", "line 1: a quote '"),
        ('x\nrun "a', 'line 2: a quote "'),
        ("A=(1 2", "an array that does not end"),
        ("run $(a", "that does not end; expected )"),
        ("run ${a", "that does not end; expected }"),
        ("run `a", "a backquote that does not end"),
        ("run <<EOF\n a", "a here-document without its end, EOF"),
        ("A=x\n" + "A=$A$A\n" * 40, "too long"),
        ("A=(x)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 40, "too long"),
        ("run x\n" * MAX_WORDS, "too many words"),
        ("".join(f"export A{i}=1\n" for i in range(501)), "too many exported variables"),
    ],
)
def test_bad_scripts(text: str, said_: str) -> None:
    with pytest.raises(InputError) as stop:
        read_script(text, "x.sh")
    assert str(stop.value).startswith("x.sh: line ")
    assert said_ in str(stop.value)


ARGUMENTS = (
    "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 "
    "--micro-batch-size 1"
)


@in_one_test
@pytest.mark.parametrize(
    ("text", "world"),
    [
        (f"torchrun --nproc_per_node=4 --nnodes 2 pretrain_gpt.py {ARGUMENTS}", 8),
        (f"torchrun --nproc-per-node $GPUS pretrain_gpt.py {ARGUMENTS}", 1),
        (f"python -m torch.distributed.launch --nproc_per_node 2 pretrain_gpt.py {ARGUMENTS}", 2),
        (f"srun --nodes=2 --ntasks-per-node=8 python -u /opt/pretrain_gpt.py {ARGUMENTS}", 16),
        (f"#SBATCH --nodes=2\n#SBATCH -J x\ntorchrun --nproc_per_node 8 --nnodes $N pretrain_gpt.py {ARGUMENTS}", 16),
        (f"#SBATCH -N 2\n#SBATCH --ntasks-per-node=4\nsrun python pretrain_gpt.py {ARGUMENTS}", 8),
        (f"N=4\nmpirun -np $N python pretrain_gpt.py {ARGUMENTS}", 4),
        (f"#SBATCH --ntasks=2\nsrun torchrun --nnodes 2 --nproc_per_node 4 pretrain_gpt.py {ARGUMENTS}", 8),
        (f"srun --gres=gpu:4 --ntasks-per-node=1 --nodes=2 deepspeed pretrain_gpt.py {ARGUMENTS}", 8),
    ],
)
def test_devices_that_the_launcher_says(text: str, world: int) -> None:
    assert launch_from_text(text, "x.sh").layout.world_size == world


@in_one_test
@pytest.mark.parametrize(
    ("text", "said_"),
    [
        (
            f"torchrun pretrain_gpt.py {ARGUMENTS} --tensor-model-parallel-size $TP",
            "'$TP' is known only when the script",
        ),
        (f"torchrun pretrain_gpt.py $MORE {ARGUMENTS}", "'$MORE' is known only when the script runs"),
        (f"torchrun a.py {ARGUMENTS}\ntorchrun b.py {ARGUMENTS} --swiglu", "several commands train (lines 1, 2)"),
        (f"torchrun {ARGUMENTS}", "no Python file is run by 'torchrun'"),
        ("#!/bin/sh\necho --a\n", "no command trains a model; expected one that does"),
        (
            'if [ "$#" -lt 2 ]; then\n  exit 1\nfi\ntorchrun train.py\n',
            "`exit` in line 2 ends it, as scripts do that take arguments: --launch '",
        ),
        ("docker pull vllm/vllm-openai\n", "trains a model; it runs docker pull (line 1); expected one that"),
    ],
)
def test_scripts_that_say_too_little(text: str, said_: str) -> None:
    with pytest.raises(InputError) as stop:
        launch_from_text(text, "x.sh")
    assert str(stop.value).startswith("x.sh: ")
    assert said_ in str(stop.value)


def test_an_open_argument_that_changes_no_memory_is_read() -> None:
    assert (
        launch_from_text(f"torchrun pretrain_gpt.py {ARGUMENTS} --save $OUT --seed $(date +%s)", "x.sh").spec
        is not None
    )


@in_one_test
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("([0]*1+[1]*3)", [0, 1, 1, 1]),
        ("[1, 0,]*2", [1, 0, 1, 0]),
        ("(2+3)*4-6/4", 19),
        ("-7/2", -3),
        ("[[1]]", None),
        ("[1]*99999", None),
        ("1/0", None),
        ("2**3", None),
        ("os.system('x')", None),
        ("(" * 50 + "1" + ")" * 50, None),
    ],
)
def test_arithmetic(text: str, value: int | list[int] | None) -> None:
    assert evaluate_expression(text, {}) == value


def test_arithmetic_with_names() -> None:
    assert whole_number_of("A * ${B} + $A", {"A": "2", "B": "5"}) == 12
    assert whole_number_of("A", {"A": "x"}) is None


@in_one_test
@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        (
            "#SBATCH --nodes=4\n#SBATCH --ntasks-per-node 2\nrun $SLURM_NNODES $SLURM_JOB_NUM_NODES $SLURM_NTASKS",
            "4 4 8",
        ),
        (
            "#SBATCH -N 2\n#SBATCH -n 6\n#SBATCH -c 12 # cores\nrun $SLURM_NNODES $SLURM_NPROCS $SLURM_CPUS_PER_TASK",
            "2 6 12",
        ),
        ("#SBATCH --gres=gpu:a100:4\nrun $SLURM_GPUS_ON_NODE $(nvidia-smi --list-gpus | wc -l)", "4 4"),
        ("#SBATCH --gpus-per-node=h100:8\nrun $((SLURM_GPUS_PER_NODE * 2))", "16"),
        ("#SBATCH --nodes=4\nSLURM_NNODES=2\nrun $SLURM_NNODES", "2"),
        ("run ${DEVICE:-$(python3 -c 'import torch_npu' 2>/dev/null && echo npu || echo gpu)}", "gpu"),
    ],
)
def test_variables_of_slurm(lines: str, wanted: str) -> None:
    assert words(f"#!/bin/bash\n{lines}") == ["run", *wanted.split()]


def test_a_typed_number_of_nodes_replaces_that_of_the_script() -> None:
    script = read_script("#!/bin/bash\n#SBATCH --nodes=4\nrun $SLURM_NNODES", "x.sh", {"SLURM_NNODES": "16"})
    assert script.commands[0].words == ("run", "16")


SOURCED = {
    "env.sh": 'A=1\nARGS=(--a "$A b")\nexport C=2\n',
    "conf/model.sh": 'HERE="$(dirname "${BASH_SOURCE[0]}")"\nsource "$HERE/env.sh"\n. env.sh\n',
    "conf/env.sh": "B=3\n",
    "args.sh": "run $1 $2\n",
    "itself.sh": "source itself.sh\n",
    "quote.sh": "A=1\nB='\n",
    ".env": "NPROC_PER_NODE=8\n",
    "return.sh": "A=1\nf() {\n  return 1\n}\n(exit 2)\nif [ $A = 1 ]; then return; fi\nA=2\n",
    "guard.sh": 'A=1\n[ -n "$(check)" ] && return\nA=2\n',
}
"""The files beside a script, as bash finds them from its folder."""


def with_sourced_files(text: str, **options: Any) -> ShellScript:
    return read_script(text, "x.sh", read_sourced_file=lambda name: SOURCED.get(posixpath.normpath(name)), **options)


@in_one_test
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('source env.sh\nrun $A "${ARGS[@]}"', ["run", "1", "--a", "1 b"]),
        ('source "$(dirname "$0")/conf/model.sh"\nrun $A$B $HERE ${BASH_SOURCE[0]}', ["run", "13", "conf", "./x.sh"]),
        ("if [ -f env.sh ]; then . ./env.sh; else A=5; fi\nrun $A", ["run", "1"]),
        ("[[ ! -e env.sh ]] && A=5 || source env.sh\nrun ${A:-none}", ["run", "1"]),
        ("source args.sh a b", ["run", "a", "b"]),
        ("A=7\nsource ${UNKNOWN}/env.sh\nrun $A", ["run", "7"]),
        ("A=7\nsource venv/bin/activate\nrun $A", ["run", "7"]),
        ("source quote.sh\nrun $A", ["run", "1"]),
    ],
)
def test_files_that_a_script_sources(text: str, wanted: list[str]) -> None:
    (command,) = with_sourced_files(text).commands
    assert list(command.words) == wanted


def test_sourced_variables_are_uncertain_where_the_command_is() -> None:
    script = with_sourced_files("A=7\nif check; then source env.sh; fi\nrun $A")
    assert is_unresolved(script.commands[-1].words[1])


def test_a_return_ends_a_sourced_file_and_an_exit_the_script() -> None:
    guards = "A=1\ncheck || exit 1\n(exit 2)\nif check; then exit 1; fi"
    for text in ("source return.sh\nrun $A", f"{guards}\nrun $A\nexit 0\nrun 2"):
        assert with_sourced_files(text).commands[-1].words == ("run", "1")
    assert is_unresolved(with_sourced_files("source guard.sh\nrun $A").commands[-1].words[1])


def test_sourced_variables_that_are_exported() -> None:
    assert with_sourced_files("set -a\nsource .env\nset +a\nD=1\nsource env.sh").env() == {
        "C": "2",
        "NPROC_PER_NODE": "8",
    }


def test_files_that_are_missing_are_recorded() -> None:
    script = with_sourced_files("source missing.sh\nsource venv/bin/activate\nsource ${D}/quote.sh\nsource quote.sh")
    assert script.unread_files == ["missing.sh", "$D/quote.sh", "quote.sh"]


def test_a_command_of_a_sourced_file_is_on_the_line_that_sources_it() -> None:
    assert [command.line for command in with_sourced_files("\nsource args.sh\n\nrun", arguments=["a"]).commands] == [
        2,
        4,
    ]


def test_a_file_that_sources_itself_is_refused() -> None:
    with pytest.raises(InputError, match=r"x\.sh: line 2: too many files are sourced; expected at most 50"):
        with_sourced_files("\nsource itself.sh")


def test_files_beside_a_script_are_sourced(tmp_path: Path) -> None:
    """A file that is not here is named where the command needs a variable of it."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "args.sh").write_text("export NPROC_PER_NODE=4\nLENGTH=512\n")
    script_path = tmp_path / "run.sh"
    script_text = "source conf/args.sh\nswift sft --model Qwen/Qwen3-0.6B --max_length $LENGTH $MORE\n"
    script_path.write_text(script_text)
    launch = read_launch(script_path)
    assert (launch.layout.dp, launch.settings["seq"], launch.notes) == (4, 512, ())
    script_path.write_text(f"source more.sh\n{script_text}")
    note = "$MORE: not set; more.sh may set it, which the script sources and which is not beside it"
    assert note in read_launch(script_path).notes
    (tmp_path / "conf" / "args.sh").unlink()
    with pytest.raises(InputError, match=r"LENGTH is not set in it.*; more\.sh or conf/args\.sh may set it, which"):
        read_launch(script_path)
    script_path.write_text("source more.sh\ntrl sft --model_name_or_path $MODEL --max_length 64\n")
    with pytest.raises(InputError, match=r"add TARGET, the model's name; more\.sh may set it, which"):
        llmcalc.memory(launch=str(script_path))
