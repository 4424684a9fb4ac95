"""Runs calls of a function in several forked processes, with the same results as in a single process.

A process is forked where that is safe and repays itself: on Linux, from a process with a single thread, if it may run
on several cores, and within `allow_forked_processes`, which the command line enters for searches. Elsewhere, as in the
Python API, on the page and in servers, every call runs where its result is asked for. The environment variable
`LLMCALC_PROCESSES` states the most processes; 1 forks none.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from .errors import InputError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkProcess

Task = TypeVar("Task", bound=Hashable)
Result = TypeVar("Result")

PROCESS_COUNT_VARIABLE = "LLMCALC_PROCESSES"

MAX_PROCESSES = 8
"""Most processes unless the environment states another number: each may hold as much memory as its parent."""

_is_allowed = False


@contextmanager
def allow_forked_processes() -> Iterator[None]:
    """Returns a context manager in which `ForkedCalls` may fork, for a command that is alone in its process."""
    global _is_allowed
    was_allowed, _is_allowed = _is_allowed, True
    try:
        yield
    finally:
        _is_allowed = was_allowed


def usable_processes() -> int:
    """Returns the number of processes in which calls may run; 1 if all calls must run in this process.

    Raises `InputError` for an environment variable that states no number.
    """
    stated_limit = os.environ.get(PROCESS_COUNT_VARIABLE, "")
    if stated_limit and not (stated_limit.isascii() and stated_limit.isdigit() and int(stated_limit[:9])):
        raise InputError(
            f"{PROCESS_COUNT_VARIABLE}={stated_limit}: expected the most processes, such as 4, or 1 to start none"
        )
    if not _is_allowed or sys.platform != "linux" or _thread_count() != 1:
        return 1
    return min(int(stated_limit[:9]) if stated_limit else MAX_PROCESSES, len(os.sched_getaffinity(0)))


def _thread_count() -> int:
    """Returns the number of threads of this process, including libraries' threads; 0 if unknown."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 0


class Worker(NamedTuple):
    """A forked process. connection: the parent's end of its pipe. task_groups: groups of tasks that it has run."""

    process: ForkProcess
    connection: Connection
    task_groups: set[Hashable]


class ForkedCalls(Generic[Task, Result]):
    """Runs calls of a function ahead of time in forked processes, for results that the program will probably need.

    function: task → result. It must depend on the task and on what exists when the processes start, alone.
    process_count: number of processes; with less than two each call runs when its result is asked for.

    Processes start with the first tasks, and further ones when there are more tasks at once. A call that raises an
    error, or whose process ends, runs again in this process when its result is asked for, and so has the same result or
    error as without processes.
    """

    def __init__(self, function: Callable[[Task], Result], process_count: int) -> None:
        self._function: Callable[[Task], Result] = function
        self._process_count: int = process_count
        self._workers: list[Worker] = []
        self._waiting_tasks: dict[Task, Hashable] = {}
        self._running: dict[Task, Worker] = {}
        self._results: dict[Task, Result] = {}
        self._started_count: int = 0

    def __enter__(self) -> ForkedCalls[Task, Result]:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def can_fork(self) -> bool:
        """Whether calls may run in other processes."""
        return self._process_count > 1

    def begin(self, tasks: Iterable[tuple[Task, Hashable]], *, is_beside_other_work: bool = False) -> None:
        """Starts calls in this order, unless they have already started, because their results will probably be needed.

        tasks: each with its group; tasks of a group run in one process if it is free, since they share work.
        is_beside_other_work: whether this process has other work meanwhile, so that a single call starts too; default
            false.
        """
        for task, task_group in tasks if self.can_fork else ():
            if task not in self._running and task not in self._results:
                self._waiting_tasks.setdefault(task, task_group)
        task_count = len(self._waiting_tasks) + len(self._running)
        worker_count = min(self._process_count, task_count) - self._started_count
        if task_count + is_beside_other_work > 1 and worker_count > 0:
            self._started_count += worker_count
            self._start_workers(worker_count)
        self._assign_tasks()

    def result(self, task: Task) -> Result:
        """Waits for a call and returns its result. Raises the call's error."""
        while self._workers and (task in self._waiting_tasks or task in self._running):
            self._collect_results()
        self._waiting_tasks.pop(task, None)
        return self._results.pop(task) if task in self._results else self._function(task)

    def forget(self, tasks: Iterable[Task]) -> None:
        """Drops calls that have not started and whose results are no longer needed."""
        for task in tasks:
            self._waiting_tasks.pop(task, None)

    def close(self) -> None:
        """Ends the worker processes, even during a call."""
        workers, self._workers = self._workers, []
        self._waiting_tasks.clear()
        self._running.clear()
        for worker in workers:
            _end_process(worker)

    def _start_workers(self, worker_count: int) -> None:
        """Forks the worker processes; fewer if the operating system refuses some."""
        import signal
        from multiprocessing import get_context

        fork_context = get_context("fork")
        blocked_signals = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until a child handles it
        try:
            for _ in range(worker_count):
                parent_end, child_end = fork_context.Pipe()
                other_connections = [parent_end, *(worker.connection for worker in self._workers)]
                process = fork_context.Process(target=self._serve, args=(child_end, other_connections), daemon=True)
                process.start()
                child_end.close()
                self._workers.append(Worker(process, parent_end, set()))
        except OSError:  # no more processes or memory: the others do the work
            pass
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked_signals)

    def _serve(self, connection: Connection, other_connections: Iterable[Connection]) -> None:
        """Runs in a child process: calls the function for each task, until the parent closes the connection.

        The answer is (whether there is a result, the result). other_connections: those of the parent, to be closed.
        """
        import signal

        global _is_allowed
        _is_allowed = False
        if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # as a shell's commands in the background have it
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        for parent_end in other_connections:
            parent_end.close()
        with suppress(EOFError, OSError):
            while True:
                task = connection.recv()
                try:
                    call_result: tuple[bool, Any] = True, self._function(task)
                except Exception:  # the parent calls the function again, and meets the error where it belongs
                    call_result = False, None
                connection.send(call_result)

    def _assign_tasks(self) -> None:
        """Sends each free worker process a task, preferably of a task group that this process already ran."""
        busy_workers = list(self._running.values())
        for worker in list(self._workers):
            if not self._waiting_tasks or worker in busy_workers:
                continue
            other_worker_groups = {
                task_group
                for other_worker in self._workers
                if other_worker is not worker
                for task_group in other_worker.task_groups
            }
            task = min(
                self._waiting_tasks,
                key=lambda waiting: (
                    self._waiting_tasks[waiting] not in worker.task_groups,
                    self._waiting_tasks[waiting] in other_worker_groups,
                ),
            )
            try:
                worker.connection.send(task)
            except OSError:
                self._remove_worker(worker)
                continue
            worker.task_groups.add(self._waiting_tasks.pop(task))
            self._running[task] = worker

    def _collect_results(self) -> None:
        """Waits until some worker processes answer, stores their results, and assigns new tasks to these processes."""
        from multiprocessing.connection import wait

        tasks_by_connection = {worker.connection: task for task, worker in self._running.items()}
        for connection in wait(list(tasks_by_connection)):
            task = tasks_by_connection[connection]  # type: ignore[index]
            worker = self._running.pop(task)
            try:
                has_result, call_result = worker.connection.recv()
            except (EOFError, OSError):
                self._remove_worker(worker)
                continue
            if has_result:
                self._results[task] = call_result
        self._assign_tasks()

    def _remove_worker(self, worker: Worker) -> None:
        """Removes a worker process that has ended from the list of workers."""
        self._workers.remove(worker)
        _end_process(worker)


def _end_process(worker: Worker) -> None:
    """Ends a worker process, and frees its pipe and its entry in the process table."""
    worker.connection.close()
    worker.process.kill()
    worker.process.join()
    worker.process.close()
