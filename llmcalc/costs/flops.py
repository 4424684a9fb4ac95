"""Matrix-multiply FLOPs of one pass, as `torch.utils.flop_counter` counts them: 2 a multiply-add."""

from __future__ import annotations

from dataclasses import dataclass

from ..algebra import Number
from ..errors import InputError
from ..model import ModelSpec
from ..ops import AttentionCore, Linear, Op, Shared
from ..tree import Cost, Node, by_kind
from ..workload import AttentionBackward, Pairs, Phase, Recompute, Workload
from .limits import check_source


def forward_of(op: Op, w: Workload) -> Number:
    """Cost: FLOPs of the forward pass."""
    return op.forward_flops(w)


def backward_of(op: Op, w: Workload) -> Number:
    """Cost: FLOPs of the backward pass, recomputation not included."""
    return op.backward_flops(w)


def step_of(op: Op, w: Workload) -> Number:
    """Cost: FLOPs of the whole workload, recomputation not included: backward too where it trains."""
    forward = op.forward_flops(w)
    return forward + op.backward_flops(w) if w.phase == "train" else forward


def scores_of(op: Op, w: Workload) -> Number:
    """Cost: the part of `step_of` that is query by key and score by value, the only part that grows with pairs."""
    return step_of(op, w) if isinstance(op, AttentionCore) else 0


@dataclass(frozen=True)
class FlopCount:
    """FLOPs of one workload over one model."""

    spec: ModelSpec
    tree: Node
    workload: Workload
    include: frozenset[str] = frozenset()

    def _under(self, pairs: Pairs) -> Number:
        workload = self.workload.with_(pairs=pairs)
        return self.tree.total(step_of, workload, self.include) + self._recomputed(workload)

    def _recomputed(self, workload: Workload) -> Number:
        """Activation checkpointing of every layer runs its forward a second time (Chen 2016, arXiv:1604.06174)."""
        if workload.phase != "train" or workload.recompute == "none":
            return 0
        places = [p for p in self.tree.walk(workload) if p.node.kind == "layer"]
        return sum(p.times * p.node.each(forward_of, p.workload, self.include) for p in places)

    @property
    def total(self) -> Number:
        """Under the workload's own convention of pairs."""
        return self._under(self.workload.pairs)

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
        return self._recomputed(self.workload)

    @property
    def skipped_by_early_stop(self) -> Number:
        """What non-reentrant checkpointing recomputes less than `recomputed`.

        It stops when the last tensor that backward needs is there again. Where a layer ends in a plain product (and in
        additions, which save nothing), that product is not run; where it ends in a norm, in dropout, in a gate or in
        the weighted sum of experts, all of them are.
        """
        if not self.recomputed:
            return 0
        ends = ((p, _last_product(p.node)) for p in self.tree.walk(self.workload) if p.node.kind == "layer")
        return sum(p.times * forward_of(op, p.workload or self.workload) for p, op in ends if op is not None)

    @property
    def scores(self) -> Number:
        """Query by key and score by value, in all layers, backward included, recomputation not."""
        return self.cost(scores_of)

    @property
    def by_component(self) -> dict[str, Number]:
        """Disjoint, adding up to `total`; what is recomputed is an entry of its own."""
        parts = by_kind(self.tree, step_of, self.workload, self.include)
        return {**parts, "recomputation": self.recomputed} if self.recomputed else parts

    def cost(self, cost: Cost) -> Number:
        """Any other cost over the same tree and workload."""
        return self.tree.total(cost, self.workload, self.include)

    @property
    def tokens(self) -> Number:
        """New tokens of all sequences; of an encoder-decoder, those of its decoder."""
        return self.workload.rows("tokens")

    @property
    def per_token(self) -> float:
        return float(self.total / self.tokens)


def _last_product(layer: Node) -> Linear | None:
    """The product that a layer ends in, of whatever part, where nothing but additions follow."""
    last = layer
    while last.children and not last.gated:
        last = last.children[-1]
    op = last.op.op if isinstance(last.op, Shared) else last.op
    return op if isinstance(op, Linear) and not last.gated else None


def workload_of(
    spec: ModelSpec,
    batch: int = 1,
    seq: int | None = None,
    context: int | None = None,
    source: int | None = None,
    phase: Phase = "forward",
    pairs: Pairs = "full",
    attention_backward: AttentionBackward = "eager",
    recompute: Recompute = "none",
    default_seq: int | None = None,
) -> Workload:
    """The workload that these settings mean for a model.

    seq: `default_seq` where it is not given, or 1.
    Decoding adds one token to each sequence; the tokens before it are `context`, or `seq` where only that is given. An
    encoder-decoder that decodes has read as many tokens in its encoder as are before the new one, unless `source` says
    otherwise. Raises `InputError` for settings that contradict each other.
    """
    check_source(spec, source)
    if phase == "decode":
        if context is not None and seq not in (None, 1):
            raise InputError(
                f"--seq: decoding adds one token to each sequence, not {seq}; expected --context alone, or --seq "
                "alone as the context"
            )
        given = default_seq or 0 if seq is None else seq
        context = given if context is None else context
        seq, source = 1, context if source is None else source
    if phase != "train" and recompute != "none":
        raise InputError(f"--recompute {recompute}: only training recomputes activations; expected --phase train")
    if phase != "train" and attention_backward != "eager":
        raise InputError(
            f"--attention-backward {attention_backward}: only training has a backward pass; expected --phase train"
        )
    return Workload(
        batch=batch,
        seq=(default_seq or 1) if seq is None else seq,
        context=context or 0,
        source=source,
        phase=phase,
        pairs=pairs,
        attention_backward=attention_backward,
        recompute=recompute,
    )


def flops(spec: ModelSpec, workload: Workload, include: frozenset[str] = frozenset()) -> FlopCount:
    """FLOPs of `workload`.

    Raises `InputError` where the model has no such phase.
    """
    if spec.kind == "encoder" and workload.phase in ("prefill", "decode"):
        raise InputError(f"--phase {workload.phase}: an encoder-only model keeps no cache; expected forward or train")
    if workload.phase == "decode" and not workload.context:
        raise InputError("--context: decoding needs at least one token before it")
    if workload.phase in ("forward", "train") and workload.context:
        raise InputError(f"--context: {workload.phase} starts from nothing; expected --phase prefill or decode")
    return FlopCount(spec, spec.anatomy(), workload, include)
