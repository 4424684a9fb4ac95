"""Matrix-multiply FLOPs of one pass, as `torch.utils.flop_counter` counts them: 2 per multiply-add."""

from __future__ import annotations

from ..algebra import Number
from ..errors import InputError
from ..flow.tree import Cost, CountedOp, Node, cost_by_kind
from ..frozen import frozen
from ..model import ModelSpec
from ..ops import AttentionCore
from ..optional import TOWERS
from ..workload.counting import Counting, Pairs
from ..workload.execution import AttentionImplementation, Execution, LatentForm
from ..workload.recompute import parse_recompute
from ..workload.rows import TOKENS
from ..workload.run_config import RunConfig
from ..workload.workload import Phase, Workload
from .context_length import check_source_tokens, default_sequence_tokens
from .encoders import EncodedInputs
from .recomputation import recomputed_flops, skipped_by_early_stop


def forward_flops_of(counted_op: CountedOp) -> Number:
    """Returns an operation's FLOPs in the forward pass."""
    return counted_op.forward_flops()


def backward_flops_of(counted_op: CountedOp) -> Number:
    """Returns an operation's FLOPs in the backward pass, without recomputation."""
    return counted_op.backward_flops()


def step_flops_of(counted_op: CountedOp) -> Number:
    """Returns the FLOPs of an operation in the workload: forward and, in training, backward, without recomputation."""
    forward_flops = counted_op.forward_flops()
    if counted_op.run_config is not None and counted_op.run_config.phase == "training":
        return forward_flops + counted_op.backward_flops()
    return forward_flops


def score_flops_of(counted_op: CountedOp) -> Number:
    """Returns the FLOPs of the query-key and score-value products, excluding a sparse-attention indexer."""
    is_attention = isinstance(counted_op.op, AttentionCore) and "no_grad" not in counted_op.roles
    return step_flops_of(counted_op) if is_attention else 0


def index_score_flops_of(counted_op: CountedOp) -> Number:
    """Returns the FLOPs of the query-key products with which an indexer selects tokens."""
    is_indexer = isinstance(counted_op.op, AttentionCore) and "no_grad" in counted_op.roles
    return step_flops_of(counted_op) if is_indexer else 0


@frozen
class FlopCount:
    """The FLOPs of one model in one workload.

    inputs: the images and audio whose encoders count too; None (default) for text alone.
    """

    spec: ModelSpec
    tree: Node
    run_config: RunConfig
    include: frozenset[str] = frozenset()
    inputs: EncodedInputs | None = None

    @property
    def workload(self) -> Workload:
        return self.run_config.workload

    @property
    def pairs(self) -> Pairs:
        """The convention for query-key pairs in `total`: `full` or `causal`."""
        return self.run_config.pairs

    def _flops_of_pair_convention(self, pairs: Pairs) -> Number:
        run_config = self.run_config.with_pairs(pairs)
        text_flops = self.tree.total(step_flops_of, run_config, self.include) + recomputed_flops(
            self.spec, run_config, self.include
        )
        return text_flops + self.encoders

    @property
    def encoders(self) -> Number:
        """FLOPs of the image and audio encoders and their projectors; 0 in decoding, which reads no new input."""
        has_no_inputs = self.inputs is None or self.workload.phase == "decode"
        return 0 if has_no_inputs or self.inputs is None else self.inputs.total(forward_flops_of)

    @property
    def total(self) -> Number:
        """FLOPs of the workload, with the run's convention of query-key pairs."""
        return self._flops_of_pair_convention(self.pairs)

    @property
    def full(self) -> Number:
        """FLOPs of the workload if every query attends to every key."""
        return self._flops_of_pair_convention("full")

    @property
    def causal(self) -> Number:
        """FLOPs of the workload with only the query-key pairs that the attention mask allows."""
        return self._flops_of_pair_convention("causal")

    @property
    def mla(self) -> str | None:
        """The form in which latent attention runs, `expanded` or `absorbed`; None for a model without MLA."""
        if not self.tree.has_form("absorbed"):
            return None
        return self.run_config.execution.choose_form(("expanded", "absorbed"), self.workload)

    @property
    def forward(self) -> Number:
        """FLOPs of the forward pass alone."""
        return self.cost(forward_flops_of) + self.encoders

    @property
    def backward(self) -> Number:
        """FLOPs of the backward pass alone; 0 outside of training."""
        return self.cost(backward_flops_of) if self.workload.phase == "training" else 0

    @property
    def recomputed(self) -> Number:
        """FLOPs that recomputation adds if every recomputed layer runs in full, as with reentrant checkpointing."""
        return recomputed_flops(self.spec, self.run_config, self.include)

    @property
    def skipped_by_early_stop(self) -> Number:
        """FLOPs that non-reentrant checkpointing skips, because recomputation stops after the last needed tensor."""
        return skipped_by_early_stop(self.spec, self.run_config, self.include)

    @property
    def scores(self) -> Number:
        """FLOPs of query-key and score-value products in all layers, with backward but without recomputation."""
        return self.cost(score_flops_of)

    @property
    def by_component(self) -> dict[str, Number]:
        """FLOPs by component; the components are disjoint and add up to `total`; recomputation is one of them."""
        flops_by_component = cost_by_kind(self.tree, step_flops_of, self.run_config, self.include)
        flops_by_component |= {TOWERS.name: self.encoders} if self.encoders else {}
        return {**flops_by_component, "recomputation": self.recomputed} if self.recomputed else flops_by_component

    def cost(self, cost_function: Cost) -> Number:
        """Returns the sum of another cost function over the nodes and the run that this count covers."""
        return self.tree.total(cost_function, self.run_config, self.include)

    @property
    def tokens(self) -> Number:
        """The number of new tokens in all sequences; for an encoder-decoder, of the decoder's tokens."""
        return self.run_config.rows(TOKENS)

    @property
    def per_token(self) -> float:
        return float(self.total / self.tokens)


def run_config_of(
    spec: ModelSpec,
    batch: int = 1,
    seq: int | None = None,
    context: int | None = None,
    source: int | None = None,
    phase: Phase = "forward",
    pairs: Pairs = "full",
    attention: AttentionImplementation = "eager",
    recompute: str = "none",
    mla: LatentForm = "auto",
    added_tokens: int = 0,
) -> RunConfig:
    """Returns the run config for a model with these settings; settings that are None have default values.

    seq: new tokens per sequence; default `default_sequence_tokens`. Decoding adds one token per sequence; there seq is
        the context if context is not given.
    source: tokens that the encoder of an encoder-decoder reads; in decoding the default is context.
    recompute: modules that are recomputed in the backward pass, see `parse_recompute`; default none.
    added_tokens: tokens of images and audio that are added to them, for which a default seq leaves room; default none.
    Raises `InputError` for settings that contradict each other or the model.
    """
    check_source_tokens(spec, source)
    if phase == "decode":
        if context is not None and seq not in (None, 1):
            raise InputError(
                f"--seq: decoding adds one token to each sequence, not {seq}; expected --context alone, or --seq "
                "alone as the context"
            )
        tokens = default_sequence_tokens(spec, added_tokens) if seq is None else seq
        context = tokens if context is None else context
        seq, source = 1, context if source is None else source
    if phase != "training" and recompute != "none":
        raise InputError(f"--recompute {recompute}: only training recomputes activations; expected --phase training")
    if phase != "training" and attention != "eager":
        raise InputError(
            f"--attn-implementation {attention}: it changes the backward pass alone; expected --phase training"
        )
    if mla != "auto" and not spec.tree().has_form("absorbed"):
        raise InputError(f"--mla {mla}: the model has no multi-head latent attention; expected auto")
    seq = default_sequence_tokens(spec, added_tokens) if seq is None else seq
    workload = Workload(batch=batch, seq=seq, context=context or 0, source=source, phase=phase)
    return RunConfig(workload, Counting(pairs), Execution(attention, parse_recompute(recompute), mla))


def flops(
    spec: ModelSpec,
    counted_run: RunConfig | Workload,
    included_parts: frozenset[str] = frozenset(),
    encoded_inputs: EncodedInputs | None = None,
) -> FlopCount:
    """Counts the FLOPs of a run; attention is eager if the workload does not choose an implementation.

    encoded_inputs: images and audio of its sequences, whose tokens the run's have to include; default none.
    Raises `InputError` for a phase that the model does not have.
    """
    run_config = RunConfig(counted_run) if isinstance(counted_run, Workload) else counted_run
    workload = run_config.workload
    if spec.one_pass_model_name and workload.phase == "decode":
        raise InputError(
            f"--phase decode: {spec.one_pass_model_name} keeps no cache; expected forward, prefill or training"
        )
    if spec.one_pass_model_name and workload.context:
        raise InputError(f"--context: {spec.one_pass_model_name} keeps no cache; expected none")
    if workload.phase == "decode" and not workload.context:
        raise InputError("--context: decoding needs at least one token before it")
    if workload.phase in ("forward", "training") and workload.context:
        raise InputError(
            f"--context: the {workload.phase} phase has no cached context; expected --phase prefill or decode"
        )
    return FlopCount(spec, spec.tree(), run_config, included_parts, encoded_inputs)
