"""Real gloo processes on the CPU: what each holds equals the replay to the byte, and the loss that of one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import llmcalc
from llmcalc.cli.main import main
from llmcalc.errors import InputError
from llmcalc.model import ModelSpec
from llmcalc.parallel.layout import Layout
from llmcalc.witnesses.distributed.compare import build_job, compare_job_results, verify_jobs
from llmcalc.witnesses.distributed.job import TrainingJob, job_from_json, simulate_rank
from llmcalc.witnesses.distributed.launch import _free_port, run_processes
from tests.samples import in_one_test

pytest.importorskip("torch")

SIZES = {
    "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 8,
    "intermediate_size": 48, "vocab_size": 90,
}  # fmt: skip
"""Of a tiny model, whose vocabulary four ranks do not divide evenly."""

UNTIED: ModelSpec = llmcalc.load("llama3-8b", **SIZES).model

TIED: ModelSpec = llmcalc.load("smollm2-135m", **SIZES).model


POSITIONS: ModelSpec = llmcalc.load("gpt2", num_hidden_layers=2, hidden_size=48, vocab_size=90).model
"""With learned positions, biases, and a tied head."""

DEEPER: ModelSpec = llmcalc.load("llama3-8b", **SIZES | {"num_hidden_layers": 4}).model


def fsdp(shards: int, **more: int) -> Layout:
    return Layout(dp=shards, zero=3, **more)


@cache
def pairs() -> list[TrainingJob]:
    """Jobs of two processes: each way of dividing a run by itself."""
    return [
        build_job(POSITIONS, Layout(pp=2), 2, 7),
        build_job(UNTIED, Layout(dp=2), 1, 7),
        build_job(UNTIED, fsdp(2), 2, 7),
        build_job(TIED, Layout(tp=2), 2, 7),
    ]


@cache
def fours() -> list[TrainingJob]:
    """Jobs of four processes: ways of dividing a run together, which other tests compare on fake process groups
    (parallel/test_rank.py, frameworks/fsdp2).
    """
    return [
        build_job(TIED, fsdp(4), 2, 7),
        build_job(UNTIED, Layout(tp=4), 2, 7),
        build_job(DEEPER, Layout(pp=4), 1, 7, 6),
        build_job(TIED, Layout(tp=2, pp=2), 1, 7),
        build_job(POSITIONS, Layout(pp=2, dp=2), 2, 7),
        build_job(UNTIED, fsdp(2, pp=2), 1, 7),
        build_job(UNTIED, fsdp(4, hsdp_replicas=2), 2, 7),
        build_job(TIED, fsdp(2, tp=2), 2, 7),
    ]


@pytest.mark.parametrize(
    "jobs",
    [
        pytest.param(pairs, id="two processes"),
        pytest.param(fours, id="four processes", marks=pytest.mark.exhaustive),
    ],
)
def test_every_rank_holds_what_its_replay_does(jobs: Callable[[], list[TrainingJob]]) -> None:
    for job, verdict in zip(jobs(), verify_jobs(jobs()), strict=True):
        wrong = [
            (check.location, check.quantity, check.closed_form, check.measured_value) for check in verdict.failures
        ]
        assert not wrong, (job.layout.options(), wrong)
        assert len(verdict.checks) == job.layout.world_size * (6 if job.layout.pp > 1 else 7) + 2


def test_processes_that_torchrun_has_started_are_the_ranks(monkeypatch: pytest.MonkeyPatch, run: Any) -> None:
    """Here the only one: it runs the job itself and starts no others."""
    for name, value in one_process().items():
        monkeypatch.setenv(name, value)
    sets = [word for name, value in SIZES.items() for word in ("--set", f"{name}={value}")]
    result = run("verify", "smollm2-135m", "--distributed", "--seq", "7", "--format", "json", *sets)
    document = result.document
    assert (document["ok"], document["layout"]["world"], len(document["checks"])) == (True, 1, 7 + 2)
    several = run("verify", "smollm2-135m", "--distributed", "--tp", "2", "--seq", "7", *sets)
    assert (several.code, "--devices 1: is not the product" in several.err) == (2, True), several.err


def one_process() -> dict[str, str]:
    """The environment of a process that torchrun has started alone."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    return {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", **address}


def test_torchrun_runs_the_same_command() -> None:
    sets = [word for name, value in SIZES.items() for word in ("--set", f"{name}={value}")]
    command = ["llmcalc", "verify", "smollm2-135m", "--distributed", "--tp", "2", "--seq", "7", "--format", "json"]
    run = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", *command, *sets],
        capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert (found["ok"], found["layout"]["world"], len(found["checks"])) == (True, 2, 2 * 7 + 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--tp 2", "options of layouts only apply to --distributed"),
        ("--distributed --memory", "--against, --device, --every-layer and --memory do not apply"),
        ("--distributed --tp 2 --fsdp 2 --devices 3", "--devices 3: is not the product tp · cp · pp · dp"),
    ],
)
def test_options_of_something_else_are_refused(
    options: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["llmcalc", "verify", "smollm2-135m", *options.split()])
    with pytest.raises(SystemExit):
        main()
    assert message in capsys.readouterr().err


def test_a_module_without_a_rule_is_named() -> None:
    from llmcalc.witnesses.distributed.parallel import apply_tensor_parallelism

    mesh: Any = SimpleNamespace(size=lambda: 2)
    module = llmcalc.load("qwen3-8b", **SIZES).model.reference()
    with pytest.raises(
        InputError, match=r"--tp 2: no rule to divide layers.0.self_attn.q_norm.weight; expected --tp 1"
    ):
        apply_tensor_parallelism(module, mesh)


# --- what must be found -----------------------------------------------------------------------------------------------


def test_a_byte_too_many_and_another_loss_are_found() -> None:
    job = pairs()[2]
    ours = simulate_rank(job, 0)
    theirs = ours | {"backward_peak_bytes": ours["backward_peak_bytes"] + 4}
    found = {
        "ranks": [(ours, theirs), (ours, ours)],
        "losses_of_one": [4.5, 4.4],
        "losses": [4.5, 4.401],
        "scratch": {},
    }
    failures = [(check.location, check.quantity) for check in compare_job_results(job, found).failures]
    assert failures == [("rank 0", "memory.backward_peak_bytes"), ("step 2", "loss")]


def test_the_gradient_of_a_divided_embedding_is_whole() -> None:
    """[vocab, hidden] in float32 on both ranks, where the table itself has half of the rows."""
    simulated_rank = simulate_rank(build_job(UNTIED, Layout(tp=2), 2, 7), 0)
    rest = simulated_rank["before_step_bytes"] - simulated_rank["after_step_bytes"]  # all gradients
    weights = simulated_rank["set_up_bytes"]
    assert rest - weights == 4 * 45 * 32


def test_a_job_is_the_same_after_it_was_written() -> None:
    for job in fours():
        assert job_from_json(job.to_json()) == job


# --- what goes wrong --------------------------------------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (Layout(dp=2, zero=1), "--distributed: --zero 1 is not supported; expected --fsdp"),
        (Layout(dp=2, tp=2), "because DDP accepts no distributed tensors; expected --fsdp"),
        (Layout(pp=2, tp=2, dp=2, zero=3), "--distributed: FSDP2 with --tp in a pipeline is not supported"),
        (Layout(dp=2, hsdp_replicas=2), "--distributed: --hsdp-replicas needs --fsdp"),
        (Layout(cp=2), "--cp 2: not in torch's own kernels"),
        (Layout(tp=2, sequence_parallel=True), "--sequence-parallel is not supported; expected --tp alone"),
        (Layout(tp=8), "--tp 8: does not divide num_attention_heads 4; expected one of 1, 2, 4"),
        (Layout(pp=3), "--pp 3: 3 stages do not divide 2 layers"),
    ],
)
def test_what_does_not_run_is_refused(layout: Layout, message: str) -> None:
    with pytest.raises(InputError) as error:
        build_job(UNTIED, layout, 1, 7)
    assert message in str(error.value)


def test_a_model_too_large_for_the_cpu_is_refused() -> None:
    with pytest.raises(InputError, match=r"2 processes take at least 64,242,089,984 bytes.*--set num_hidden_layers=2"):
        build_job(llmcalc.load("llama3-8b").model, Layout(tp=2))


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    ("lines", "limit", "message"),
    [
        (
            "if rank == 1: raise ValueError('no such shape')",
            100,
            "rank 1 ended with exit code 1: ValueError: no such shape",
        ),
        ("if rank == 1: import llmcalc.errors as e; raise e.InputError('--tp 2: no rule')", 100, "^--tp 2: no rule$"),
        ("if rank == 1: os.kill(os.getpid(), 9)", 100, "rank 1 was killed by SIGKILL"),
        ("", 2, "rank 0, 1 had not ended after 2 seconds"),
    ],
    ids=["fails", "refuses", "is killed", "hangs"],
)
def test_all_processes_end_when_one_does_not_answer(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    lines: str,
    limit: int,
    message: str,
) -> None:
    """limit: seconds; processes that end on their own have more than a busy machine takes to start them."""
    (tmp_path / "bad_process.py").write_text(
        f"import os, pathlib, time\nrank = int(os.environ['RANK'])\n"
        f"pathlib.Path({str(tmp_path)!r}, str(rank)).write_text(str(os.getpid()))\n{lines}\ntime.sleep(600)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(InputError, match=message):
        run_processes(pairs()[:1], time_limit=limit, worker_module="bad_process")
    processes = [int(path.read_text()) for path in tmp_path.iterdir() if path.name.isdigit()]
    assert processes or "hangs" in request.node.name  # on a busy machine none may have begun after 2 seconds
    assert not any(map(alive, processes))
