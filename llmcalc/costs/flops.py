"""Matrix-multiply FLOPs of one pass, as `torch.utils.flop_counter` counts them: 2 a multiply-add."""

from __future__ import annotations

from dataclasses import dataclass

from ..algebra import Number
from ..errors import InputError
from ..flow.program import Scope
from ..flow.tree import Cost, Node, Place, Use, by_kind
from ..model import ModelSpec
from ..ops import AttentionCore, Linear
from ..run.counting import Counting, Pairs
from ..run.execution import AttentionBackward, Execution, Recompute
from ..run.rows import TOKENS
from ..run.sight import Sight
from ..run.workload import Phase, Workload
from .limits import check_source, usual_sequence


def forward_of(use: Use) -> Number:
    """Cost: FLOPs of the forward pass."""
    return use.forward_flops()


def backward_of(use: Use) -> Number:
    """Cost: FLOPs of the backward pass, recomputation not included."""
    return use.backward_flops()


def step_of(use: Use) -> Number:
    """Cost: FLOPs of the whole workload, recomputation not included: backward too where it trains."""
    forward = use.forward_flops()
    return forward + use.backward_flops() if use.sight is not None and use.sight.phase == "train" else forward


def scores_of(use: Use) -> Number:
    """Cost: the part of `step_of` that is query by key and score by value; not an indexer's, which only chooses."""
    attends = isinstance(use.op, AttentionCore) and "no_grad" not in use.roles
    return step_of(use) if attends else 0


@dataclass(frozen=True)
class FlopCount:
    """FLOPs of one workload over one model."""

    spec: ModelSpec
    tree: Node
    sight: Sight
    include: frozenset[str] = frozenset()

    @property
    def workload(self) -> Workload:
        return self.sight.workload

    @property
    def pairs(self) -> Pairs:
        """The convention that `total` is counted under."""
        return self.sight.pairs

    def _under(self, pairs: Pairs) -> Number:
        sight = self.sight.with_pairs(pairs)
        return self.tree.total(step_of, sight, self.include) + self._recomputed(sight)

    def _layers(self, sight: Sight) -> list[Place]:
        return [place for place in self.tree.walk(sight) if place.node.kind == "layer"]

    def _recomputed(self, sight: Sight) -> Number:
        """Activation checkpointing of every layer runs its forward a second time (Chen 2016, arXiv:1604.06174)."""
        if sight.phase != "train" or sight.execution.recompute == "none":
            return 0
        return sum(place.in_all(forward_of, self.include) for place in self._layers(sight))

    @property
    def total(self) -> Number:
        """Under the run's own convention of pairs."""
        return self._under(self.pairs)

    @property
    def full(self) -> Number:
        """Every query by every key."""
        return self._under("full")

    @property
    def causal(self) -> Number:
        """Only pairs that the mask lets through."""
        return self._under("causal")

    @property
    def forward(self) -> Number:
        """The forward pass alone."""
        return self.cost(forward_of)

    @property
    def backward(self) -> Number:
        """The backward pass alone; 0 where nothing is trained."""
        return self.cost(backward_of) if self.workload.phase == "train" else 0

    @property
    def recomputed(self) -> Number:
        """The second forward of every layer, as reentrant checkpointing runs it."""
        return self._recomputed(self.sight)

    @property
    def skipped_by_early_stop(self) -> Number:
        """What non-reentrant checkpointing recomputes less than `recomputed`.

        It stops when the last tensor that backward needs is there again. Where a layer ends in a plain product (and in
        additions, which save nothing), that product is not run; where it ends in a norm, in dropout, in a gate or in
        the weighted sum of experts, all of them are.
        """
        if not self.recomputed:
            return 0
        scopes = (scope for scope in self.spec.program().root.scopes() if scope.about.get("kind") == "layer")
        ends = ((layer, _last_product(scope)) for layer, scope in zip(self._layers(self.sight), scopes, strict=True))
        return sum(layer.times * forward_of(Use(op, layer.roles, self.sight)) for layer, op in ends if op is not None)

    @property
    def scores(self) -> Number:
        """Query by key and score by value, in all layers, backward included, recomputation not."""
        return self.cost(scores_of)

    @property
    def by_component(self) -> dict[str, Number]:
        """Disjoint, adding up to `total`; what is recomputed is an entry of its own."""
        parts = by_kind(self.tree, step_of, self.sight, self.include)
        return {**parts, "recomputation": self.recomputed} if self.recomputed else parts

    def cost(self, cost: Cost) -> Number:
        """Any other cost over the same tree and workload."""
        return self.tree.total(cost, self.sight, self.include)

    @property
    def tokens(self) -> Number:
        """New tokens of all sequences; of an encoder-decoder, those of its decoder."""
        return self.sight.rows(TOKENS)

    @property
    def per_token(self) -> float:
        return float(self.total / self.tokens)


SAVES_NOTHING = ("add", "dropout")
"""Verbs whose backward needs none of the values that they read; the published models are run without dropout."""


def _last_product(layer: Scope) -> Linear | None:
    """The product that a layer ends in, of whatever part, if nothing but additions follow it."""
    last = None
    for step in layer.steps(idle=False):
        if step.verb not in SAVES_NOTHING:
            last = step
    return last.op if last is not None and isinstance(last.op, Linear) else None


def sight_of(
    spec: ModelSpec,
    batch: int = 1,
    seq: int | None = None,
    context: int | None = None,
    source: int | None = None,
    phase: Phase = "forward",
    pairs: Pairs = "full",
    attention_backward: AttentionBackward = "eager",
    recompute: Recompute = "none",
) -> Sight:
    """The run that these settings mean for a model.

    seq: `usual_sequence` where it is not given. Decoding adds one token to each sequence; the tokens before it are
    `context`, or `seq` where only that is given. An encoder-decoder that decodes has read as many tokens in its encoder
    as are before the new one, unless `source` says otherwise. Raises `InputError` for settings that contradict each
    other.
    """
    check_source(spec, source)
    if phase == "decode":
        if context is not None and seq not in (None, 1):
            raise InputError(
                f"--seq: decoding adds one token to each sequence, not {seq}; expected --context alone, or --seq "
                "alone as the context"
            )
        given = usual_sequence(spec) if seq is None else seq
        context = given if context is None else context
        seq, source = 1, context if source is None else source
    if phase != "train" and recompute != "none":
        raise InputError(f"--recompute {recompute}: only training recomputes activations; expected --phase train")
    if phase != "train" and attention_backward != "eager":
        raise InputError(
            f"--attention-backward {attention_backward}: only training has a backward pass; expected --phase train"
        )
    seq = usual_sequence(spec) if seq is None else seq
    workload = Workload(batch=batch, seq=seq, context=context or 0, source=source, phase=phase)
    return Sight(workload, Counting(pairs), Execution(attention_backward, recompute))


def flops(spec: ModelSpec, run: Sight | Workload, include: frozenset[str] = frozenset()) -> FlopCount:
    """FLOPs of a run; of a workload, as eager attention executes it.

    Raises `InputError` where the model has no such phase.
    """
    sight = Sight(run) if isinstance(run, Workload) else run
    workload = sight.workload
    if spec.kind == "encoder" and workload.phase in ("prefill", "decode"):
        raise InputError(f"--phase {workload.phase}: an encoder-only model keeps no cache; expected forward or train")
    if workload.phase == "decode" and not workload.context:
        raise InputError("--context: decoding needs at least one token before it")
    if workload.phase in ("forward", "train") and workload.context:
        raise InputError(f"--context: {workload.phase} starts from nothing; expected --phase prefill or decode")
    return FlopCount(spec, spec.tree(), sight, include)
