"""A model that runs without gradients on one device, replayed: its weights, the passes over a prompt, and a decoding
step after it, with the cache between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from ..errors import InputError
from ..flow.record import Flow
from ..model import ModelSpec
from ..parallel.rank_model import RankModel
from ..parallel.rank_program import RankFlow
from ..simulator.autograd import Graph
from ..simulator.choices import EAGER, Choices
from ..simulator.event_log import RecordedEvents, Recorder
from ..simulator.meter import Device, Meter, NoMeter, Place
from ..simulator.profiles.dtensor import Divided
from ..simulator.profiles.eager import Eager
from ..simulator.replay_result import ReplayResult
from ..simulator.tensor import DTYPES, INT64, Storage, counted_as, empty
from ..workload.execution import Execution, LatentForm
from ..workload.rows import SOURCE, TOKENS
from ..workload.run_config import RunConfig
from ..workload.workload import Phase, Workload

InferencePhase: TypeAlias = Literal["prefill", "decode", "inference"]


@dataclass(frozen=True)
class Inference:
    """How a model is run without gradients.

    phase: `prefill`, the passes over a prompt; `decode`, one token after `seq` cached ones; or `inference` (default),
        the prefill and then one decoding step. An encoder-only model has a prefill alone, which caches nothing.
    batch: sequences, 1 by default.
    seq: tokens of each prompt; in `decode`, the cached tokens.
    source: tokens that an encoder reads, `seq` by default.
    chunk: tokens of a chunk of the prompt; None (default) for the whole prompt at once.
    dtype: number format of weights and activations.
    choices: which kernels run where people choose.
    mla: the form of latent attention, as in `Execution`.
    include: the names of the optional parts that run too (`llmcalc.optional`), none by default.
    paged: whether the cache is a pool that exists before the passes. A replay does not count it, as its size is not
        that of its tokens: the caller adds it. New keys, values and states are written into it. Attention without
        scores (`flash`) reads keys and values in place; other attention first copies what it reads, in each layer, into
        tensors of the activations' type. By default (false) the cache grows by concatenation, as the reference's does.
    weights: whether the weights count, true by default. They do not where they are stored in another way than `dtype`,
        as quantised ones are: the caller adds them.
    """

    phase: InferencePhase = "inference"
    batch: int = 1
    seq: int = 2048
    source: int | None = None
    chunk: int | None = None
    dtype: str = "bfloat16"
    choices: Choices = EAGER
    mla: LatentForm = "auto"
    include: frozenset[str] = frozenset()
    paged: bool = False
    weights: bool = True


class Served(Divided):
    """Runs a rank's passes, and what torch has no plan for as serving frameworks run it: a part of each expert or some
    experts, and a copy of a key head where there are fewer heads than ranks.
    """

    def check_plan(self, program: RankFlow) -> None:
        """Takes every program."""


class Pass(NamedTuple):
    """One pass. tokens: new tokens per sequence. past: tokens per sequence that passes before it have cached."""

    tokens: int
    past: int


class InferenceRun:
    """Replays the passes of a model, or of one rank of a layout (`RankModel`).

    A rank runs torch's own kernels of divided products. What another rank of a pipeline sends is received into a buffer
    that is freed after the pass.

    layers: how many repeats of each stack's pattern run; all by default (see `fold`).
    workspace: bytes that are taken at the first product.
    meter: what counts storages, or writes them down; by default it counts them, on no device.
    names: what the passes that have run are called: as their phase, with a number where a prompt has several chunks.
    """

    def __init__(
        self,
        spec: ModelSpec,
        inference: Inference,
        layers: Mapping[int, int] | None = None,
        workspace: int = 0,
        meter: Meter | Recorder | None = None,
    ) -> None:
        if spec.kind == "encoder" and inference.phase == "decode":
            raise InputError("an encoder-only model does not decode: it reads a sequence in one pass")
        self.spec, self.inference, self.layers, self.workspace = spec, inference, dict(layers or {}), workspace
        self.workspaces: list[Storage] = []
        self.names: list[str] = []
        self.meter = Meter() if meter is None else meter
        self.program: Flow = spec.program()
        self.caches = spec.kind != "encoder"
        self.lowering = self._lowering(Graph(self.meter))

    def _lowering(self, graph: Graph) -> Eager:
        graph.enabled = False
        inference = self.inference
        run_config = self._sight("prefill", Pass(inference.seq, 0))
        divided = isinstance(self.spec, RankModel) and self.spec.layout.tp > 1
        profile = Served if divided else Eager
        run = profile(
            graph,
            run_config,
            DTYPES[inference.dtype],
            trained=False,
            include=inference.include,
            choices=inference.choices,
        )
        run.run_only, run.paged = self.layers, inference.paged
        return run

    def _sight(self, phase: Phase, one: Pass) -> RunConfig:
        """A last chunk of one token runs as a decoding step. An encoder gives an output for every token."""
        inference = self.inference
        if one.past and one.tokens == 1:
            phase = "decode"
        if not self.caches:
            phase = "forward"
        source = inference.seq if inference.source is None else inference.source
        workload = Workload(inference.batch, one.tokens, context=one.past, source=source, phase=phase)
        return RunConfig(workload, execution=Execution(mla=inference.mla))

    # --- the passes -------------------------------------------------------------------------------------------------

    @property
    def chunk(self) -> int:
        """Tokens of each pass over the prompt; the last one may have fewer."""
        return self.inference.seq if self.inference.chunk is None or not self.caches else self.inference.chunk

    @property
    def chunks(self) -> int:
        """How many passes over the prompt there are."""
        return -(-self.inference.seq // self.chunk)

    def pass_of(self, number: int) -> Pass:
        """A pass over the prompt."""
        past = number * self.chunk
        return Pass(min(self.chunk, self.inference.seq - past), past)

    def set_up(self) -> None:
        """Makes the parameters in the order in which the program uses them; to decode, also the cache of the prompt."""
        self.meter.place = Place("set-up")
        if self.inference.weights:
            self.lowering.prepare(self.program)
        else:
            apart = self._lowering(Graph(NoMeter()))
            apart.prepare(self.program)
            self.lowering.weights = apart.weights
        if self.caches:
            self.lowering.store = {}
        if self.inference.phase == "decode":
            self.cached_by(self.chunks)

    def cached_by(self, chunks: int) -> None:
        """Makes the cache that the first passes over the prompt leave, without their other tensors.

        All chunks between the first and the last are one pass here: they leave the same cache. chunks: how many.
        """
        apart = self._lowering(Graph(NoMeter()))
        apart.weights, apart.store = self.lowering.weights, {}
        first, last = self.pass_of(0), self.pass_of(chunks - 1)
        between = [Pass(last.past - first.tokens, first.tokens)] if chunks > 2 else []
        for one in (first, *between, *([last] if chunks > 1 else [])):
            self._run(apart, "prefill", one)
        with counted_as(self.meter, "cache"):
            self.lowering.store = {}
            for key, kept in apart.store.items():
                self.meter.whose = key
                self.lowering.store[key] = tuple(
                    x if self.inference.paged else empty(self.meter, x.shape, x.dtype, x.strides) for x in kept
                )
            self.meter.whose = None

    def passes(self) -> None:
        """Runs the passes of the phase."""
        if self.inference.phase != "decode":
            self.prefill()
        if self.inference.phase != "prefill" and self.caches:
            self.decode()

    def prefill(self) -> None:
        """Runs the prompt. Of more than `MANY` chunks, the first and the last ones run: a chunk holds more than the one
        before it.
        """
        chunks = self.chunks
        late = max(1, chunks - MANY + 1)
        for i in (0, *range(late, chunks)):
            if i == late > 1:
                self.lowering.store = {}
                self.meter.place = Place("between")
                self.cached_by(i)
            self.run("prefill", self.pass_of(i), f"prefill {i}" if chunks > 1 else "prefill")

    def decode(self) -> None:
        """Runs one decoding step after the prompt."""
        self.run("decode", Pass(1, self.inference.seq))

    def run(self, phase: Literal["prefill", "decode"], one: Pass, name: str = "") -> None:
        """Runs one pass. Its token ids and its logits are freed at the end.

        name: what it is called where memory is allocated; by default as the phase.
        """
        self.names.append(name or phase)
        self.meter.place = Place(name or phase)
        if self.workspace and not self.workspaces:
            with counted_as(self.meter, "overhead"):
                self.workspaces.append(Storage(self.meter, self.workspace))
        self._run(self.lowering, phase, one)
        self.meter.place = Place("after")

    def _run(self, lowering: Eager, phase: Literal["prefill", "decode"], one: Pass) -> None:
        inference, given, meter = self.inference, lowering.given, lowering.graph.meter
        lowering.run_config = self._sight(phase, one)
        given[TOKENS] = ids = empty(meter, (inference.batch, one.tokens), INT64)
        if self.spec.kind == "encoder":
            given[SOURCE] = ids
        elif self.spec.kind == "encoder-decoder" and not one.past:
            lowering.take_frames(self.program)
            if self.program.frames is None:
                given[SOURCE] = empty(meter, (inference.batch, lowering.run_config.workload.source), INT64)
        received = lowering.enter(self.program)
        lowering.run(self.program)
        del received
        lowering.further = []
        given.clear()


MANY = 4
"""Chunks of a prompt up to which all of them run."""


def replay_inference(
    spec: ModelSpec,
    inference: Inference,
    device: Device | None = None,
    layers: Mapping[int, int] | None = None,
    workspace: int = 0,
) -> ReplayResult:
    """Replays set-up and the passes, as `InferenceRun` does. Raises `Unsupported` for a step without kernels.

    `set_up` has the weights, and the cache of the prompt if only a decoding step runs. `after` has the cache: logits
    and token ids are freed. `peaks` keeps several chunks of a prompt apart (`fold.of_one_pass` joins them).
    """
    meter = Meter(device)
    run = InferenceRun(spec, inference, layers, workspace, meter)
    run.set_up()
    found = ReplayResult(set_up=meter.now)
    meter.peaks = {}
    run.passes()
    found.peaks = {place: peak for place, peak in meter.peaks.items() if place.phase in run.names}
    found.after = meter.now
    if device is not None:
        found.read(device, meter.now, meter.peak)
    return found


def record_inference(
    spec: ModelSpec, inference: Inference, layers: Mapping[int, int] | None = None, workspace: int = 0
) -> RecordedEvents:
    """Records set-up and the passes, for `RepeatAnalysis`. layers: as of `InferenceRun`."""
    meter = Recorder()
    run = InferenceRun(spec, inference, layers, workspace, meter)
    run.set_up()
    made = meter.cut()
    run.passes()
    return RecordedEvents(made, [], [meter.cut()], run.names)
