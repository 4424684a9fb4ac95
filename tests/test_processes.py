"""Calls in forked processes: the results, the order and the errors of one process, whatever becomes of the others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from llmcalc import processes
from llmcalc.errors import InputError
from llmcalc.processes import ForkedCalls, allow_forked_processes, usable_processes
from llmcalc.questions import plans
from llmcalc.simulator.simulated_work import SIMULATED_WORK, CountedWork
from llmcalc.studies import layout_order, layout_replays

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")

PARENT = os.getpid()


def square(number: int) -> int:
    return number * number


def squared(calls: ForkedCalls[int, int], count: int) -> list[int]:
    calls.begin((number, number % 3) for number in range(count))
    return [calls.result(number) for number in range(count)]


@pytest.mark.parametrize(("process_count", "count"), [(1, 20), (2, 20), (4, 20), (8, 6)])
def test_results_are_those_of_one_process(process_count: int, count: int) -> None:
    with ForkedCalls(square, process_count) as calls:
        assert squared(calls, count) == [square(number) for number in range(count)]
        assert calls.result(50) == 2500  # it was not begun


def test_calls_run_in_other_processes_and_a_single_one_does_beside_other_work() -> None:
    with ForkedCalls(lambda _: os.getpid(), 2) as calls:
        calls.begin([(1, "a")])
        assert calls.result(1) == os.getpid()
        calls.begin([(1, "a")], is_beside_other_work=True)
        assert calls.result(1) != os.getpid()
        calls.begin([(2, "a"), (3, "b"), (4, "a")])
        first, second, third = (calls.result(number) for number in (2, 3, 4))
        assert os.getpid() not in (first, second)
        assert first != second
        assert third in (first, second)


def test_further_processes_start_with_more_tasks() -> None:
    with ForkedCalls(square, 4) as calls:
        calls.begin([(1, "a"), (2, "b")])
        assert len(calls._workers) == 2
        calls.begin([(number, "c") for number in range(3, 9)])
        assert len(calls._workers) == 4
        assert [calls.result(number) for number in range(1, 9)] == [square(number) for number in range(1, 9)]


def test_an_error_is_raised_where_its_result_is_asked_for() -> None:
    def fail(number: int) -> int:
        if number == 2:
            raise InputError(f"--number {number}: expected another")
        return number

    with ForkedCalls(fail, 2) as calls:
        calls.begin((number, number) for number in range(4))
        assert calls.result(3) == 3
        with pytest.raises(InputError, match="--number 2: expected another"):
            calls.result(2)
        assert calls.result(0) == 0


def test_work_of_a_killed_process_is_done_by_its_parent() -> None:
    def die(number: int) -> int:
        if os.getpid() != PARENT and number % 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    with ForkedCalls(die, 2) as calls:
        calls.begin((number, number) for number in range(8))
        assert [calls.result(number) for number in range(8)] == list(range(8))


def test_no_process_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    with ForkedCalls(square, 2) as calls:
        assert squared(calls, 5) == [0, 1, 4, 9, 16]


def test_processes_end_with_the_block() -> None:
    with ForkedCalls(lambda _: time.sleep(60), 2) as calls:
        calls.begin([(1, 1), (2, 2)])
        children = [worker.process.pid for worker in calls._workers]
        assert len(children) == 2
    for child in children:
        assert child is not None
        assert not Path(f"/proc/{child}").exists()


def test_processes_are_for_commands_on_several_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LLMCALC_PROCESSES", raising=False)
    monkeypatch.setattr(processes, "_thread_count", lambda: 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    assert usable_processes() == 1  # Python, the page, servers
    with allow_forked_processes():
        assert usable_processes() == processes.MAX_PROCESSES
        monkeypatch.setenv("LLMCALC_PROCESSES", "3")
        assert usable_processes() == 3
        monkeypatch.setenv("LLMCALC_PROCESSES", "1")
        assert usable_processes() == 1
        monkeypatch.delenv("LLMCALC_PROCESSES")
        monkeypatch.setattr(processes, "_thread_count", lambda: 2)
        assert usable_processes() == 1
        monkeypatch.setattr(processes, "_thread_count", lambda: 1)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
        assert usable_processes() == 1
        monkeypatch.setattr(sys, "platform", "darwin")
        assert usable_processes() == 1


@pytest.mark.parametrize("value", ["0", "-1", "two", "²", "1.5"])
def test_a_number_of_processes_that_is_none_is_refused(run: Any, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("LLMCALC_PROCESSES", value)
    result = run("plan", "qwen3-0.6b?num_hidden_layers=4", "--devices", "4", "--hardware", "h100", "--seq", "128")
    assert f"LLMCALC_PROCESSES={value}: expected the most processes" in result.error


PLANS = [
    # passes of chunks are recorded for several layouts
    ("deepseek-v2-lite?num_hidden_layers=8", "--devices", "16", "--rows", "4"),
    # layouts that do not fit are replayed again with more recomputation
    ("qwen3-8b", "--devices", "16", "--seq", "16384", "--rows", "4"),
    # none fits, and the nearest is searched with a limit
    ("glm-4.6?num_hidden_layers=12", "--devices", "4", "--rows", "2"),
    ("qwen3-0.6b?num_hidden_layers=4", "--devices", "4", "--seq", "128", "--framework", "torch", "--rows", "3"),
    ("qwen3-0.6b?num_hidden_layers=6", "--devices", "8", "--seq", "128", "--framework", "fsdp2", "--by", "memory"),
    ("qwen3-0.6b?num_hidden_layers=6", "--devices", "8", "--seq", "128", "--framework", "deepspeed"),
]


@pytest.mark.parametrize("words", PLANS, ids=" ".join)
def test_plans_are_those_of_one_process(run: Any, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    results, units = [], []
    for process_count in (1, 3):
        for module in (layout_replays, plans):
            monkeypatch.setattr(module, "usable_processes", partial(int, process_count))
        units_before = SIMULATED_WORK.units
        results.append(run("plan", *words, "--hardware", "h100", "--format", "json"))
        units.append(SIMULATED_WORK.units - units_before)
    assert results[0].out
    assert results[0] == results[1]
    assert units[0] == units[1]


@pytest.mark.parametrize("work_units", [150_000, 600_000])
def test_a_search_that_ends_early_is_that_of_one_process(
    run: Any, work_units: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other processes estimate layouts with the same kernels: the work counts in the order of one process."""
    monkeypatch.setattr(layout_order, "WORK_OF_SEARCH", work_units)
    results = []
    for process_count in (1, 3):
        monkeypatch.setattr(layout_replays, "usable_processes", partial(int, process_count))
        results.append(run("plan", "qwen3-8b?num_hidden_layers=12", "--devices", "32", "--hardware", "h100", "--seq",
                           "16384", "--rows", "2", "--format", "json"))  # fmt: skip
    assert "the search ended before it" in results[0].out
    assert results[0] == results[1]


def test_interrupted_processes_print_nothing() -> None:
    program = (
        "import signal, sys, llmcalc.processes as p; p._thread_count = lambda: 1\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "sys.argv = ['llmcalc', 'plan', 'qwen3-8b', '--devices', '16', '--hardware', 'h100']\n"
        "from llmcalc.cli import run; run()"
    )
    environment = {**os.environ, "LLMCALC_PROCESSES": "2"}
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env=environment,
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    deadline = time.monotonic() + 60
    while process.poll() is None and not children.read_text() and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, b"", b"")


def test_shared_recordings_count_once_in_a_search() -> None:
    SIMULATED_WORK.begin_search()
    before = SIMULATED_WORK.units
    SIMULATED_WORK.use_recording(7, 100)
    with SIMULATED_WORK.count_separately() as work_so_far:
        SIMULATED_WORK.units += 5
        SIMULATED_WORK.use_recording(7, 100)
        SIMULATED_WORK.use_recording(8, 30)
        work = work_so_far()
    assert work == CountedWork(5, ((7, 100), (8, 30)))
    assert SIMULATED_WORK.units == before + 100
    SIMULATED_WORK.add(work)
    SIMULATED_WORK.add(work)
    assert SIMULATED_WORK.units == before + 100 + 2 * 5 + 30

    def refuse() -> None:
        with SIMULATED_WORK.count_separately():
            SIMULATED_WORK.units += 2
            SIMULATED_WORK.use_recording(9, 1)
            raise InputError("refused")

    with pytest.raises(InputError):
        refuse()
    assert SIMULATED_WORK.units == before + 100 + 2 * 5 + 30 + 3
