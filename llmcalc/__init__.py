"""Computes the exact parameters, FLOPs and bytes of language models of any architecture.

The counts are closed forms, which are checked against a PyTorch model that runs.

    import llmcalc
    spec = llmcalc.load("llama3-8b")
    llmcalc.params(spec).total
    llmcalc.flops(spec, batch=1, seq="8k").total
    llmcalc.fit(spec, hardware="h100", users=64).ok

Every command is a function of the same name, with the same options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .api import (
        budget,
        check,
        compare,
        convert,
        cost,
        diff,
        explain,
        explain_log,
        fit,
        flops,
        hardware,
        kv,
        lock,
        mcp,
        memory,
        params,
        plan,
        plot,
        presets,
        schema,
        serve,
        shape,
        time,
        verify,
        web,
    )
    from .arguments import load
    from .errors import InputError
    from .model import ModelSpec

__all__ = [
    "InputError",
    "ModelSpec",
    "__version__",
    "budget",
    "check",
    "compare",
    "convert",
    "cost",
    "diff",
    "explain",
    "explain_log",
    "fit",
    "flops",
    "hardware",
    "kv",
    "load",
    "lock",
    "mcp",
    "memory",
    "params",
    "plan",
    "plot",
    "presets",
    "schema",
    "serve",
    "shape",
    "time",
    "verify",
    "web",
]


def __getattr__(name: str) -> Any:
    """Imports the module that defines a public name on the name's first use, so that `import llmcalc` alone is fast."""
    from importlib import import_module

    modules_by_name = {"InputError": ".errors", "ModelSpec": ".model", "load": ".arguments"}
    if name == "testing":
        return import_module(".testing", __name__)
    if name in __all__:
        return getattr(import_module(modules_by_name.get(name, ".api"), __name__), name)
    raise AttributeError(f"module 'llmcalc' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*__all__, "testing"])
