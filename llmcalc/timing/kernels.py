"""The work of a rank's pass: its kernels with sizes, its messages, and its kinds of layers.

`work_recorder.py` records them; there is no constant in them and no device.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from ..algebra import Number, with_traced_sizes
from ..parallel.layout import ContextExchange
from ..parallel.placements import Collective
from ..workload.counting import Counting, Pairs
from ..workload.execution import AttentionImplementation, Execution
from ..workload.rows import ONE_GROUP, TOKENS, ExpertGroups
from ..workload.run_config import RunConfig
from ..workload.workload import Phase, Workload

KernelKind: TypeAlias = Literal[
    "product", "experts", "scores", "attention", "scan", "elementwise", "adapter", "look-up", "permutation", "state",
    "loss", "dequantization", "expert-bias",
]  # fmt: skip
"""Kind of a kernel; `scores` is a product of queries and keys alone, `scan` any other operation with FLOPs, whose
cost only its op knows, `adapter` the element-wise work around an adapter's products, `dequantization` what makes
16-bit copies of a frozen weight in 4 bits for a product, and `expert-bias` the sum of the experts' outputs and biases.
"""

BEFORE_LAYERS, AFTER_LAYERS = -1, -2
"""Layer indices that stand for kernels before the first layer and after the last layer."""

STATE_BITS = 16
"""Default bits per element of a recurrent state."""


@dataclass(slots=True)
class Kernel:
    """A GPU kernel in a pass, or a matrix product that is part of another kernel.

    path: the path of its node in the model.
    kind: what it does.
    layer_kind_index: the index of its kind of layer in `RankWork.layer_kinds`, or BEFORE or AFTER.
    runs_per_layer: how often it runs in one such layer.
    step_verb: the recorder's verb of its first step.
    m, n, k: rows, outputs and inputs of a product. Of attention, m is the queries of a sequence, n the keys, k the
        width of a value.
    weight_elements: elements of the weight; of experts, of a single expert.
    flops: FLOPs of its matrix products in the forward and in the backward pass.
    moved_elements: elements of activations that the forward and the backward pass read and write.
    cache_elements: elements of the cache that it reads.
    heads, kv_heads, key_width, keys_per_query: attention heads, key heads, width of a key, and keys per query.
    head_padding_ratio: query heads that the kernel computes, over those of this rank.
    scan_ratio: FLOPs of a scan's published kernel in the forward pass, over those of the op.
    expert_count: number of experts of this rank.
    selection_chance: the chance that a token selects a certain expert.
    routed_tokens: tokens that select among these experts.
    launches: kernels that the forward and the backward pass launch; 0 for a product beside another one.
    is_frozen: whether its weight has no gradient.
    in_16_bits: whether it stays in 16 bits in a run of narrower formats.
    ends_layer: whether it is the last product of a layer, whose result no gradient in the layer needs.
    """

    path: str
    kind: KernelKind
    layer_kind_index: int
    runs_per_layer: Number
    step_verb: str = ""
    m: Number = 0
    n: Number = 0
    k: Number = 0
    weight_elements: Number = 0
    flops: tuple[Number, Number] = (0, 0)
    moved_elements: tuple[Number, Number] = (0, 0)
    cache_elements: Number = 0
    heads: Number = 1
    kv_heads: Number = 1
    key_width: Number = 128
    keys_per_query: Number = 0
    head_padding_ratio: Number = 1
    scan_ratio: Number = 1
    expert_count: Number = 1
    selection_chance: float = 1.0
    routed_tokens: Number = 1
    launches: tuple[int, int] = (1, 2)
    in_16_bits: bool = False
    is_frozen: bool = False
    ends_layer: bool = False


class Adapters(NamedTuple):
    """Low-rank adapters of frozen weights.

    rank: inner width. target_modules: names of the adapted linear layers.
    base_bits: bits of an element of the layers' frozen linear weights with its scales, which are dequantized for each
        product; 0 (default) for weights in 16 bits.
    base_inputs_are_fp32: whether the inputs and outputs of dequantized layers are in float32, as after
        `prepare_model_for_kbit_training`, which casts all other weights; default false.
    quantized_experts: whether routed experts are dequantized, too, all of them in each forward pass; default false.
    """

    rank: int
    target_modules: frozenset[str]
    base_bits: float = 0.0
    base_inputs_are_fp32: bool = False
    quantized_experts: bool = False


class LayerMessage(NamedTuple):
    """A collective or point-to-point message of one layer.

    layer_kind_index: as in `Kernel`. collective: the message.
    copies_per_token: rows of each token that it sends, one for each of its experts.
    expert_groups: the groups of experts from which a token's experts are selected.
    is_dispatch: whether it sends tokens to their experts, whose products may read them in a narrower format.
    ends_layer: whether it sends the result of a layer's last product, which no gradient in the layer needs.
    """

    layer_kind_index: int
    collective: Collective
    copies_per_token: Number = 1
    expert_groups: ExpertGroups = ONE_GROUP
    is_dispatch: bool = False
    ends_layer: bool = False


class LayerKind(NamedTuple):
    """A group of equal layers of the model. label: of the tree's node. indices: indices among all layers."""

    label: str
    indices: tuple[int, ...]


@dataclass(frozen=True)
class RankPass:
    """The sizes of a rank's forward pass, or of its forward and backward pass: tokens and parallel groups.

    batch, seq, context: sequences, new tokens and cached tokens of each whole sequence.
    phase: training, prefill or decode.
    tp, etp: ranks that divide heads and widths, and ranks that divide one expert (default tp).
    ep, cp: ranks that divide the experts, and each sequence.
    cp_comm: exchange of keys and values between the ranks of a sequence.
    sequence_parallel: whether activations between tensor-parallel products are divided by tokens.
    fuses_elementwise: whether neighbouring element-wise steps are one kernel.
    regathers_inputs: whether products gather their input tokens again in the backward pass.
    adds_experts_before_reduction: whether partial sums of experts are weighted and added before ranks reduce them.
    gathered_ranks: replicas of attention whose tokens every expert rank gathers, to add the sums of its own experts;
        1 where expert ranks share all tokens, 0 (default) where each token is sent to the ranks of its experts.
    moves_all_rows: whether expert ranks also move the rows of other ranks' experts, as zeros.
    fuses_gates: whether the activation of a gate and its product with `up_proj`'s output are one kernel.
    padded_sparse_heads: heads to which the kernel for selected latents pads the query heads of a rank, in prompts too;
        0 (default) where prompts have no such kernel and expand the latents.
    attention: implementation of attention, which decides the FLOPs of its backward pass.
    counted_pairs: convention of the query-key pairs that FLOPs count.
    included_parts: optional parts of the model that run.
    adapters: what is trained in place of the weights; None (default) for the weights.
    """

    batch: Number = 1
    seq: Number = 4096
    context: Number = 0
    phase: Phase = "training"
    tp: int = 1
    etp: int | None = None
    ep: Number = 1
    cp: Number = 1
    cp_comm: ContextExchange = "p2p"
    sequence_parallel: bool = False
    fuses_elementwise: bool = True
    regathers_inputs: bool = True
    adds_experts_before_reduction: bool = False
    gathered_ranks: int = 0
    moves_all_rows: bool = False
    fuses_gates: bool = False
    padded_sparse_heads: int = 0
    attention: AttentionImplementation = "flash"
    counted_pairs: Pairs = "causal"
    included_parts: frozenset[str] = frozenset()
    adapters: Adapters | None = None

    @property
    def expert_tp(self) -> int:
        """The number of ranks that shard each expert."""
        return self.tp if self.etp is None else self.etp

    @property
    def divides_tokens(self) -> bool:
        """Whether tensor-parallel ranks divide the tokens between their matrix products (sequence parallelism)."""
        return self.sequence_parallel and self.tp > 1

    @property
    def cache_key(self) -> tuple[object, ...] | None:
        """The key by which equal passes share results; None if a size is an array or a symbol.

        The types of sizes are part of it, because counts of integers are exact.
        """
        cached_sizes = self.batch, self.seq, self.context, self.ep, self.cp
        return (
            (self, *map(type, cached_sizes))
            if all(isinstance(cached_size, int | float) for cached_size in cached_sizes)
            else None
        )

    def run_config(self, sequence_parts: Number = 1) -> RunConfig:
        """Returns the run config that counts one of `sequence_parts` equal parts of each sequence."""
        workload = Workload(self.batch, rank_share(self.seq, sequence_parts), self.context, phase=self.phase)
        return RunConfig(workload, Counting(self.counted_pairs), Execution(self.attention))


@dataclass
class RankWork:
    """The work of a rank's pass through all layers: kernels, messages and kinds of layers.

    rank_pass: the pass.
    kernels, messages: in the order in which the pass runs them.
    layer_kinds: the kinds of layers.
    params_by_layer: (`layer_kind_index` as in `Kernel`, whether they are experts) → parameters of one such layer; of
        experts, of all expert ranks together.
    cached_elements_by_layer: `layer_kind_index` → elements that one such layer caches.
    adapter_params_by_layer: `layer_kind_index` → parameters of the low-rank adapters of one such layer.
    """

    rank_pass: RankPass
    kernels: list[Kernel] = field(default_factory=list)
    messages: list[LayerMessage] = field(default_factory=list)
    layer_kinds: list[LayerKind] = field(default_factory=list)
    params_by_layer: dict[tuple[int, bool], Number] = field(default_factory=dict)
    cached_elements_by_layer: dict[int, Number] = field(default_factory=dict)
    adapter_params_by_layer: dict[int, Number] = field(default_factory=dict)

    def layer_count(self, kind_index: int) -> int:
        """Returns the number of layers of a kind; 1 for work outside of the layers."""
        return len(self.layer_kinds[kind_index].indices) if kind_index >= 0 else 1

    @property
    def tokens(self) -> Number:
        """The number of tokens on this rank, summed over all sequences."""
        return self.rank_pass.run_config(self.rank_pass.cp).rows(TOKENS)

    @property
    def forward_flops(self) -> Number:
        """FLOPs of the forward pass through all layers."""
        return self._flops(is_backward=False)

    @property
    def backward_flops(self) -> Number:
        """FLOPs of the backward pass through all layers."""
        return self._flops(is_backward=True)

    def _flops(self, is_backward: bool) -> Number:
        return sum(
            kernel.flops[is_backward] * kernel.runs_per_layer * self.layer_count(kernel.layer_kind_index)
            for kernel in self.kernels
        )

    @property
    def parameters(self) -> Number:
        """The number of parameters on a rank that has all layers of the model."""
        return sum(
            (rank_share(parameter_count, self.rank_pass.ep) if is_routed else parameter_count)
            * self.layer_count(kind_index)
            for (kind_index, is_routed), parameter_count in self.params_by_layer.items()
        )

    @property
    def cache_elements(self) -> Number:
        """The number of elements in the caches of all layers."""
        return sum(
            element_count * self.layer_count(kind_index)
            for kind_index, element_count in self.cached_elements_by_layer.items()
        )


@with_traced_sizes
def rank_share(amount: Number, rank_count: Number) -> Number:
    """Returns one rank's share of an amount; an integer if the amount is divisible."""
    if isinstance(amount, int) and isinstance(rank_count, int) and amount % rank_count == 0:
        return amount // rank_count
    return amount / rank_count
