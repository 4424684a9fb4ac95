"""The memory of an engine's server, without the changes of its flags, which count the server again with each."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import llmcalc
from llmcalc.frameworks.engines.engine import Engine


def engine_memory(target: Any, **options: Any) -> Any:
    """Returns `.result` of `llmcalc.memory` with an engine."""
    return llmcalc.memory(target, **options).result


def without_changes() -> AbstractContextManager[Any]:
    """Returns a context manager in which answers about servers, such as those of a launch file, have no changes."""
    return mock.patch.object(Engine, "flag_changes_on", return_value=[])
