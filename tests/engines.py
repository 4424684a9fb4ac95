"""The memory of an engine's server, without the changes of its flags."""

from __future__ import annotations

from typing import Any

import llmcalc


def engine_memory(target: Any, **options: Any) -> Any:
    """Returns `.result` of `llmcalc.memory` with an engine. It is that of `llmcalc.kv`, which does not count the server
    again with each change that may enlarge its cache: what `.document["changes"]` of `llmcalc.memory` has.
    """
    return llmcalc.kv(target, **options).result
