"""A prompt, then one token after it with the cache: what each pass holds, to the byte, without gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch

from llmcalc.components.layers.block import Block
from llmcalc.components.mixers.attention import Attention
from llmcalc.components.mixers.mla import MLA
from llmcalc.kernels.autograd import Graph
from llmcalc.kernels.profiles.eager import Eager
from llmcalc.kernels.tensor import DTYPES, INT64, empty
from llmcalc.model import ModelSpec
from llmcalc.run.rows import SOURCE, TOKENS
from llmcalc.run.sight import Sight
from llmcalc.run.workload import Phase, Workload
from tests.contracts.test_parts import around_a_model
from tests.kernels.models import Logged
from tests.kernels.witness import Alive

PARTS = {
    f"{part.__name__}-{i}": example for part in (Attention, MLA, Block) for i, example in enumerate(part.examples())
}
NOT_YET = {"Attention-3", "Attention-10", "MLA-0", "MLA-1", "MLA-2", "MLA-3", "MLA-4", "MLA-5", "Block-14"}
"""Examples whose decoding pass is not lowered as the reference runs it yet."""

BATCH, SEQ = 2, 7


class Pass(NamedTuple):
    """Bytes beside weights and inputs. peak: the most during the pass. after: what the cache keeps after it."""

    peak: int
    after: int


def without_values(spec: ModelSpec, log: list[str]) -> list[Pass]:
    program, meter = spec.program(), Logged()
    graph = meter.graph = Graph(meter)
    graph.enabled = False
    run = Eager(graph, _sight("prefill", BATCH, SEQ), DTYPES["bfloat16"])
    run.prepare(program)
    meter.kind, run.store, found = "weights", {}, []
    given = {SEQ: empty(meter, (BATCH, SEQ), INT64), 1: empty(meter, (BATCH, 1), INT64)}
    meter.kind, meter.base, meter.log = "temporary", meter.now, log
    for sight in (_sight("prefill", BATCH, SEQ), _sight("decode", BATCH, 1, SEQ)):
        run.sight = sight
        run.given = {TOKENS: given[sight.workload.seq], SOURCE: given[SEQ]}
        meter.restart()
        out = run.run(program)
        del out
        found.append(Pass(meter.peak - meter.base, meter.now - meter.base))
    return found


def _sight(phase: Phase, batch: int, seq: int, context: int = 0) -> Sight:
    return Sight(Workload(batch, seq, context=context, source=SEQ, phase=phase))


def by_torch(spec: ModelSpec, log: list[str]) -> list[Pass]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("meta"):
        module: Any = spec.reference()
        ids, token = torch.zeros(BATCH, SEQ, dtype=torch.int64), torch.zeros(BATCH, 1, dtype=torch.int64)
    torch.set_default_dtype(before)
    source, store, found = ids if spec.kind == "encoder-decoder" else None, {}, []
    mode = Alive([*module.parameters(), *module.buffers(), ids, token], log=True)
    with torch.no_grad(), mode:
        for run in (
            lambda: module(ids, source, store=store, last_only=True),
            lambda: module(token, store=store, past=SEQ),
        ):
            mode.peak = mode.now
            out = run()
            del out
            found.append(Pass(mode.peak, mode.now))
    log += mode.log or []
    return found


@pytest.mark.parametrize("name", [name for name in PARTS if name not in NOT_YET])
def test_a_pass_holds_what_torch_holds(name: str) -> None:
    spec = around_a_model(PARTS[name])
    ours: list[str] = []
    theirs: list[str] = []
    held = without_values(spec, ours)
    assert held == by_torch(spec, theirs), "\n".join([*ours, "=====", *theirs])
