"""Passes without gradients, of which each reads what the ones before cached: once without values, once as torch runs
the reference on meta.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from llmcalc.kernels.autograd import Graph
from llmcalc.kernels.profiles.eager import Eager
from llmcalc.kernels.tensor import DTYPES, INT64, empty
from llmcalc.model import ModelSpec
from llmcalc.run.execution import Execution, LatentForm
from llmcalc.run.rows import SOURCE, TOKENS
from llmcalc.run.sight import Sight
from llmcalc.run.workload import Workload
from tests.kernels.models import Logged
from tests.kernels.witness import Alive

BATCH, SEQ = 2, 7

ONE_PROMPT, CHUNKS = (7, 1), (4, 3, 1)
"""The new tokens of each pass: a prompt at once or in two chunks, then one decoding step."""


class Pass(NamedTuple):
    """Bytes beside weights and inputs. peak: the most during the pass. after: what the cache keeps after it."""

    peak: int
    after: int


def without_values(
    spec: ModelSpec, passes: Sequence[int] = ONE_PROMPT, log: list[str] | None = None, mla: LatentForm = "auto"
) -> list[Pass]:
    """What each pass holds, by the eager profile. Raises `Unsupported`."""
    program, meter = spec.program(), Logged()
    graph = meter.graph = Graph(meter)
    graph.enabled = False
    past, found, execution = 0, [], Execution(mla=mla)
    prompt = sum(passes[:-1])
    run = Eager(graph, Sight(Workload(BATCH, prompt, source=SEQ, phase="prefill"), execution=execution), DTYPES["bfloat16"])
    run.prepare(program)
    meter.kind, run.store = "weights", {}
    given = {tokens: empty(meter, (BATCH, tokens), INT64) for tokens in (SEQ, *passes)}
    run.given[SOURCE] = given[SEQ]
    run.take_frames(program)
    meter.kind, meter.base, meter.log = "temporary", meter.now, log
    for tokens in passes:
        work = Workload(BATCH, tokens, context=past, source=SEQ, phase="prefill" if past < prompt else "decode")
        run.sight = Sight(work, execution=execution)
        run.given[TOKENS] = given[tokens]
        if spec.kind == "encoder":
            run.given[SOURCE] = given[tokens]
        meter.restart()
        out = run.run(program)
        del out
        past += tokens
        found.append(Pass(meter.peak - meter.base, meter.now - meter.base))
        if log is not None:
            log.append("--- next")
    return found


def by_torch(
    spec: ModelSpec, passes: Sequence[int] = ONE_PROMPT, log: list[str] | None = None, mla: LatentForm = "auto"
) -> list[Pass]:
    """What each pass of the reference holds on meta."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("meta"):
        module: Any = spec.reference()
        ids = {tokens: torch.zeros(BATCH, tokens, dtype=torch.int64) for tokens in (SEQ, *passes)}
        source = None
        if spec.kind == "encoder-decoder":
            assert spec.encoder is not None
            source = ids[SEQ] if spec.encoder.stem is None else torch.empty(spec.encoder.stem.frames(BATCH))
    torch.set_default_dtype(before)
    outside = [*module.parameters(), *module.buffers(), *ids.values(), *([] if source is None else [source])]
    mode, past = Alive(outside, log=log is not None), 0
    store: dict[Any, Any] = {}
    found = []
    with torch.no_grad(), mode:
        for i, tokens in enumerate(passes):
            mode.peak = mode.now
            out = module(
                ids[tokens],
                None if past else source,
                store=store,
                past=past,
                last_only=i < len(passes) - 1,
                mla=mla,
                grouped_experts=True,
            )
            del out
            past += tokens
            found.append(Pass(mode.peak, mode.now))
            if mode.log is not None:
                mode.log.append("--- next")
    if log is not None:
        log += mode.log or []
    return found
