"""Passes without gradients, of which each reads what the ones before cached: once without values, once as torch runs
the reference on meta.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import torch

from llmcalc.model import ModelSpec
from llmcalc.simulator.autograd import AutogradGraph
from llmcalc.simulator.kernel_choices import EAGER_CHOICES, KernelChoices
from llmcalc.simulator.profiles.eager import EagerKernels
from llmcalc.simulator.tensor import DTYPES, INT64, empty
from llmcalc.witnesses import kernel_variants
from llmcalc.witnesses.module_measurements import default_dtype
from llmcalc.witnesses.shape_cache import ShapeCache
from llmcalc.workload.execution import Execution, LatentForm
from llmcalc.workload.recompute import NO_RECOMPUTATION
from llmcalc.workload.rows import SOURCE_TOKENS, TOKENS
from llmcalc.workload.run_config import RunConfig
from llmcalc.workload.workload import Phase, Workload
from tests.simulator.models import Logged
from tests.simulator.witness import Alive

BATCH, SEQ = 2, 7

ONE_PROMPT, CHUNKS = (7, 1), (4, 3, 1)
"""The new tokens of each pass: a prompt at once or in two chunks, then one decoding step."""


Moment: TypeAlias = tuple[int, int]
"""(bytes of a new storage, bytes alive with it)."""


class Pass(NamedTuple):
    """Bytes beside weights and inputs.

    peak: the most during the pass. after: what the cache keeps after it. moments: every storage that the pass makes.
    """

    peak: int
    after: int
    moments: tuple[Moment, ...]

    @classmethod
    def read(cls, log: Sequence[str], before: int) -> Pass:
        """The pass that this log describes. before: the bytes at its start."""
        moments = tuple(_moment(line) for line in log if line.startswith("+"))
        last = int(log[-1][13:26].replace(",", "")) if log else before
        return cls(max((now for _, now in moments), default=before), last, tuple(one for one in moments if one[0]))


def _moment(line: str) -> Moment:
    return int(line[1:13].replace(",", "")), int(line[13:26].replace(",", ""))


def without_values(
    spec: ModelSpec,
    passes: Sequence[int] = ONE_PROMPT,
    log: list[str] | None = None,
    mla: LatentForm = "auto",
    choices: KernelChoices = EAGER_CHOICES,
) -> list[Pass]:
    """What each pass holds, by the eager profile. Raises `UnsupportedKernel`."""
    program, meter = spec.program(), Logged()
    graph = meter.graph = AutogradGraph(meter)
    graph.is_grad_enabled = False
    lines: list[str] = []
    past, found, execution = 0, list[Pass](), Execution(mla=mla)
    prompt = sum(passes[:-1])
    run_config = RunConfig(Workload(BATCH, prompt, source=SEQ, phase="prefill"), execution=execution)
    run = EagerKernels(graph, run_config, DTYPES["bfloat16"], choices=choices)
    run.allocate_parameters(program)
    meter.kind, run.cached_tensors_by_path = "weights", {}
    given = {tokens: empty(meter, (BATCH, tokens), INT64) for tokens in (SEQ, *passes)}
    run.inputs[SOURCE_TOKENS] = given[SEQ]
    run.create_input_frames(program)
    meter.kind, meter.base, meter.log = "temporary", meter.live_bytes, lines
    for tokens in passes:
        phase: Phase = "forward" if spec.kind == "encoder" else "decode" if past and tokens == 1 else "prefill"
        work = Workload(BATCH, tokens, context=past, source=SEQ, phase=phase)
        run.run_config = RunConfig(work, execution=execution)
        run.inputs[TOKENS] = given[tokens]
        if spec.kind == "encoder":
            run.inputs[SOURCE_TOKENS] = given[tokens]
        before = len(lines)
        out = run.run(program)
        del out
        past += tokens
        found.append(Pass.read(lines[before:], meter.live_bytes - meter.base))
        lines.append("--- next")
    if log is not None:
        log += lines
    return found


def by_torch(
    spec: ModelSpec,
    passes: Sequence[int] = ONE_PROMPT,
    log: list[str] | None = None,
    mla: LatentForm = "auto",
    choices: KernelChoices = EAGER_CHOICES,
) -> list[Pass]:
    """What each pass of the reference holds on meta."""
    with default_dtype(torch.bfloat16), torch.device("meta"):
        module: Any = spec.reference().eval()
        kernel_variants.apply_kernel_choices(module, choices, NO_RECOMPUTATION, None, "meta")
        ids = {tokens: torch.zeros(BATCH, tokens, dtype=torch.int64) for tokens in (SEQ, *passes)}
        source = None
        if spec.kind == "encoder-decoder":
            assert spec.encoder is not None
            source = ids[SEQ] if spec.encoder.stem is None else torch.empty(spec.encoder.stem.input_shape(BATCH, SEQ))
    outside = [*module.parameters(), *module.buffers(), *ids.values(), *([] if source is None else [source])]
    mode, past = Alive(outside, keeps_log=True), 0
    lines: list[str] = []
    mode.log = lines
    store: dict[Any, Any] = {}
    found = []
    with torch.no_grad(), kernel_variants.kernel_context(choices), ShapeCache(), mode:
        for i, tokens in enumerate(passes):
            before = len(lines)
            out = module(
                ids[tokens],
                None if past else source,
                cached_tensors=store,
                past=past,
                last_only=i < len(passes) - 1,
                mla=mla,
                grouped_experts=True,
            )
            del out
            past += tokens
            found.append(Pass.read(lines[before:], mode.now))
            lines.append("--- next")
    if log is not None:
        log += lines
    return found
