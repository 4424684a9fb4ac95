"""The hint for a missing extra works for the way in which llmcalc was installed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llmcalc.errors import MissingExtra

WAYS: dict[str, tuple[dict[str, Any] | None, str]] = {
    "an index": (None, "'llmcalc-arch[hub]'"),
    "a wheel": ({"url": "file:///w/x.whl", "archive_info": {}}, "'llmcalc-arch[hub] @ file:///w/x.whl'"),
    "a checkout": ({"url": "file:///w/main", "dir_info": {}}, "'/w/main[hub]'"),
    "an editable checkout": ({"url": "file:///w/main", "dir_info": {"editable": True}}, "-e '/w/main[hub]'"),
    "a repository": (
        {"url": "https://example.org/x.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
        "'llmcalc-arch[hub] @ git+https://example.org/x.git@abc'",
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_hint(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    origin, wanted = WAYS[way]

    class Installed:
        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return None if origin is None else json.dumps(origin)

    monkeypatch.setattr("importlib.metadata.distribution", lambda name: Installed())
    assert str(MissingExtra("a hub id", "huggingface_hub", "hub")) == (
        f"a hub id needs huggingface_hub: pip install {wanted}"
    )
