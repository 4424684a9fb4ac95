"""Runs the published kernels and modules on meta and records what they hold.

    python -m tests.simulator.published.record

The libraries must be importable (PYTHONPATH may name folders with their sources at the commits in
`llmcalc.simulator.published.LIBRARIES`); nothing is fetched. With `--check` it writes nothing, prints what differs from
the records, and ends with 1 if something does.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from llmcalc.components.norm import norm_reference
from llmcalc.simulator.published import LIBRARIES
from tests.simulator.published import launchless
from tests.simulator.published.kernels import KERNELS, KernelCase, Of
from tests.simulator.published.modules import MODULES, NORM, ModuleCase
from tests.simulator.witness import Held, measured

RECORDS = Path(__file__).with_name("records.json")


def held_by_kernel(case: KernelCase, sizes: dict[str, int]) -> Held:
    named = Of(**sizes)
    inputs = [
        torch.empty(shape, dtype=getattr(torch, dtype), device="meta", requires_grad=True)
        for shape, dtype in case.inputs(named)
    ]
    return measured(lambda: case.theirs(named, *inputs), inputs)


class Layer(nn.Module):
    """x + module(norm(x))."""

    def __init__(self, module: nn.Module, hidden: int) -> None:
        super().__init__()
        self.norm, self.module = norm_reference(NORM, hidden), module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.module(self.norm(x))
        return x + (y[0] if isinstance(y, tuple) else y)


def held_by_module(case: ModuleCase, sizes: dict[str, int]) -> Held:
    named = Of(**sizes)
    with torch.device("meta"):
        layers = nn.ModuleList(Layer(case.make(named), named.h) for _ in range(named.n)).to(torch.bfloat16).train()
        x = torch.empty(named.B, named.T, named.h, dtype=torch.bfloat16, requires_grad=True)

    def run() -> torch.Tensor:
        y: torch.Tensor = x
        for layer in layers:
            y = checkpoint(layer, y, use_reentrant=False) if case.recompute.layers else layer(y)
        return y

    held = measured(run, [x, *layers.parameters(), *layers.buffers()])
    return held._replace(saved=0) if case.recompute.layers else held


def records() -> dict[str, Any]:
    """What every case holds, as published."""
    launchless.install()
    return {
        "commits": {library.name: library.commit for library in LIBRARIES.values()},
        "kernels": {name: recorded(held_by_kernel, case) for name, case in KERNELS.items()},
        "modules": {name: recorded(held_by_module, case) for name, case in MODULES.items()},
    }


def recorded(hold: Any, case: Any) -> list[dict[str, Any]]:
    return [{"sizes": sizes, "held": hold(case, sizes)._asdict()} for sizes in case.sizes]


def differing_flag_names(old: dict[str, Any], new: dict[str, Any]) -> Iterable[str]:
    for kind in ("kernels", "modules"):
        for name in sorted({*old[kind], *new[kind]}):
            if old[kind].get(name) != new[kind].get(name):
                yield f"{name}:\n  recorded {old[kind].get(name)}\n  now      {new[kind].get(name)}"


def written(now: dict[str, Any]) -> str:
    """The records as JSON, with a line for each case."""
    lines = ["{", f' "commits": {json.dumps(now["commits"], indent=2)},']
    for kind in ("kernels", "modules"):
        lines.append(f' "{kind}": {{')
        cases = list(now[kind].items())
        for i, (name, sizes) in enumerate(cases):
            lines.append(f"  {json.dumps(name)}: [")
            lines.append(",\n".join(f"   {json.dumps(one)}" for one in sizes))
            lines.append("  ]" + ("," if i + 1 < len(cases) else ""))
        lines.append(" }," if kind == "kernels" else " }")
    return "\n".join([*lines, "}", ""])


def main() -> int:
    missing = launchless.missing()
    if missing:
        print(f"cannot import {', '.join(missing)}; expected their sources in PYTHONPATH")
        return 2
    now = records()
    if "--check" in sys.argv:
        different = list(differing_flag_names(json.loads(RECORDS.read_text()), json.loads(json.dumps(now))))
        print("\n".join(different))
        return 1 if different else 0
    RECORDS.write_text(written(now))
    return 0


if __name__ == "__main__":
    sys.exit(main())
