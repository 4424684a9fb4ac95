"""A pytest plugin with the fixture `assert_counts`, which compares a PyTorch module with a TARGET.

def test_counts(assert_counts):
    assert_counts(MyModel(), "my-model.toml")
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture(scope="session")
def assert_counts() -> Callable[..., None]:
    """Returns `llmcalc.testing.assert_counts` for a TARGET: a preset's name, a config.json or a description."""

    def compare(module: Any, spec: Any, **options: Any) -> None:
        """Compares a module with a spec. module, spec, options: as in `llmcalc.testing.assert_counts`."""
        __tracebackhide__ = True
        from .testing import assert_counts

        assert_counts(module, spec, **options)

    return compare
