"""Fixtures that run commands in this process and return what a shell would see: exit code, stdout, stderr."""

from __future__ import annotations

import faulthandler
import gc
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from _pytest.mark.structures import ParameterSet

from llmcalc.sources.target import LIBRARY_MODELS
from tests.engines import without_changes
from tests.exhaustive import EXHAUSTIVE, LONGEST, OF_THE_SITE
from tests.in_process import Result, command
from tests.quick import QUICK, is_quick

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: tests run in parallel, on small tensors
os.environ.setdefault("LLMCALC_PROCESSES", "1")  # a test that wants several processes says so
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # tests start hundreds of processes: the first compiles, for all
sys.dont_write_bytecode = False
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]  # grammars of addresses, which jsonschema
# imports for a check of formats that no test asks for: they take two seconds in each process


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="only the tests that tests/quick.py lists, in a minute")


def pytest_configure(config: pytest.Config) -> None:
    """With `--quick`, this process, and each worker of xdist, collects what `tests/quick.py` lists and nothing else."""
    if not config.option.quick:
        return
    if config.args_source is pytest.Config.ArgsSource.ARGS and not hasattr(config, "workerinput"):
        raise pytest.UsageError(f"--quick: chooses the tests itself; expected no path, not {' '.join(config.args)}")
    config.args = [str(config.rootpath / "tests" / name) for name in QUICK]


def pytest_collectstart() -> None:
    """Looks for no garbage while tests are collected: nearly all objects that are made then stay."""
    gc.disable()


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Leaves the exhaustive cases of a test out where the run would deselect them: there are more of them than of
    others. Cases without an id stay, since pytest numbers them; so does the first case of an exhaustive test.
    """
    if "not exhaustive" not in metafunc.config.option.markexpr:
        return
    is_exhaustive = metafunc.definition.get_closest_marker("exhaustive") is not None
    parametrize = metafunc.parametrize

    def parametrize_sample(names: Any, cases: Iterable[Any], *args: Any, **options: Any) -> None:
        cases = list(cases)
        if not args and not isinstance(options.get("ids"), list | tuple):
            sample = cases[:1] if is_exhaustive else [case for case in cases if not _is_left_out(case)]
            cases = sample or cases
        parametrize(names, cases, *args, **options)

    metafunc.parametrize = parametrize_sample  # type: ignore[method-assign, assignment]


def _is_left_out(case: Any) -> bool:
    """Whether a case of a test is exhaustive and has an id."""
    return isinstance(case, ParameterSet) and case.id is not None and any(m.name == "exhaustive" for m in case.marks)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks the tests that `tests/exhaustive.py` lists, and puts the files with the longest tests first: of several
    processes none has one of them left when the others end. With `--quick` it leaves out the cases that are not quick.
    """
    _spare_the_search_for_constants()
    _spare_docstrings_of_transformers()
    if config.option.quick:
        config.hook.pytest_deselected(items=[item for item in items if not is_quick(item.nodeid)])
        items[:] = [item for item in items if is_quick(item.nodeid)]
    for item in items:
        name = item.nodeid.removeprefix("tests/")
        names = {name, name.partition("[")[0], name.partition("::")[0]}
        if names & EXHAUSTIVE.keys():
            item.add_marker(pytest.mark.exhaustive)
        if names & OF_THE_SITE:
            item.add_marker(pytest.mark.browser)
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))


def _spare_the_search_for_constants() -> None:
    """Spares hypothesis the search for constants in the code under test, which its plugin starts after this file's
    hook: it would parse all of llmcalc and of the tests in each process. The strategies state the sizes that matter.
    """
    providers = sys.modules.get("hypothesis.internal.conjecture.providers")
    if hasattr(providers, "is_local_module_file"):  # since 6.131
        providers.is_local_module_file = lambda path: False


def _spare_docstrings_of_transformers() -> None:
    """Spares each module of transformers that is imported from now on the docstrings that its decorator writes, which
    take a tenth of the time of its import.
    """

    def auto_docstring(decorated: Any = None, **_: Any) -> Any:
        return (lambda other: other) if decorated is None else decorated

    utils: Any = sys.modules.get("transformers.utils")
    if hasattr(utils, "auto_docstring"):
        utils.auto_docstring = auto_docstring


def pytest_collection_finish() -> None:
    """Spares the garbage collector the collected tests, and most of its passes over all that torch has loaded."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(100_000, 50, 100)


armed = -60.0
"""When the timer of a test that hangs was set."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test that hangs for ten minutes shows where and fails. pytest's own option starts a thread for each test; this
    starts one in a minute. A process that waits for the tests of another waits less.
    """
    global armed
    stderr = item.config.stash.get(fault_handler_stderr_fd_key, None)
    if stderr is not None and time.monotonic() - armed >= 60:
        armed = time.monotonic()
        faulthandler.dump_traceback_later(660, exit=True, file=stderr)


def pytest_enter_pdb() -> None:
    faulthandler.cancel_dump_traceback_later()


def pytest_sessionfinish() -> None:
    faulthandler.cancel_dump_traceback_later()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Spares it what a file's tests have left in caches, too: some tests collect garbage after each step."""
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """Headless Chromium."""
    api = pytest.importorskip("playwright.sync_api", reason="Playwright is missing: pip install playwright")
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("Chromium is missing: apt-get install chromium, or name one in CHROMIUM")
    with api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def monkeypatch(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """The fixture of pytest, for a test whose presets share no model, and nothing kept of one, with other tests."""
    LIBRARY_MODELS.clear()
    yield monkeypatch
    LIBRARY_MODELS.clear()


@pytest.fixture
def run() -> Callable[..., Result]:
    """Returns a function: `run("params", "gpt2")` is the output of `llmcalc params gpt2` at 80 columns."""
    return command


@pytest.fixture
def servers_without_changes() -> Iterator[None]:
    """Spares the test the changes of a server's flags, which take most of the time of its answer."""
    with without_changes():
        yield
