"""States that do not grow with the tokens, and the products that chunked recurrences make of them."""

from __future__ import annotations

from dataclasses import dataclass

from ..algebra import Number, add, ceil_div, floor_div, is_zero, minimum, times
from ..workload import Workload
from .base import Op, ParamTensor


@dataclass(frozen=True, slots=True)
class State(Op):
    """What a recurrence keeps of each sequence: `size` elements, however many tokens there were.

    kind: what `llmcalc kv` lists it under. bits: of one element, where it keeps a dtype of its own; the cache's if
    None.
    """

    size: Number
    kind: str = "recurrent_state"
    bits: Number = None

    def cache_bits(self, w: Workload, kv_bits: Number) -> Number:
        return w.batch * self.size * (kv_bits if self.bits is None else self.bits)


@dataclass(frozen=True, slots=True)
class SelectiveScan(Op):
    """h ← exp(Δ·A)·h + Δ·B·x, y = h·C + D·x, of `inner` channels with `state` elements each (Gu & Dao 2023, §3.2).

    Its parameters are A [inner, state] and D [inner]; its one product is h·C.
    """

    inner: Number
    state: Number

    def params(self) -> Number:
        return self.inner * self.state + self.inner

    def tensors(self) -> tuple[ParamTensor, ...]:
        return (ParamTensor((self.inner, self.state), "vector"), ParamTensor((self.inner,), "vector"))

    def forward_flops(self, w: Workload) -> Number:
        return 2 * w.rows("tokens") * self.inner * self.state


@dataclass(frozen=True, slots=True)
class ChunkedScan(Op):
    """Mamba-2's recurrence, in chunks of `chunk` tokens, the last filled up; `heads` heads of [head_dim, state].

    Within a chunk it is attention without a softmax (C·Bᵀ by x), between chunks a product of every pair of them. Its
    parameters are A, D and the bias of Δ, one a head each. A decoded token takes one step of the recurrence: its
    product is h·C.
    """

    heads: Number
    head_dim: Number
    state: Number
    chunk: Number

    def params(self) -> Number:
        return 3 * self.heads

    def tensors(self) -> tuple[ParamTensor, ...]:
        return (ParamTensor((self.heads,), "vector"),) * 3

    def forward_flops(self, w: Workload) -> Number:
        a, p, n, q = self.heads, self.head_dim, self.state, self.chunk
        if w.phase == "decode":
            return 2 * w.rows("tokens") * a * p * n
        chunks = 0 if is_zero(w.seq) else ceil_div(w.seq, q)
        scores, values = q * q * n, q * q * p  # C·Bᵀ and its product with x, within a chunk
        states, outputs = q * n * p, q * n * p  # what a chunk adds to the state, and what the state adds to its tokens
        between = (
            0 if is_zero(chunks) else (chunks + 1) * (chunks + 1) * p * n
        )  # the states at the chunks' borders, from all before them
        return 2 * w.batch * a * (chunks * (scores + values + states + outputs) + between)


@dataclass(frozen=True, slots=True)
class DeltaRule(Op):
    """Linear attention by the (gated) delta rule, in chunks (Yang 2024, arXiv:2406.06484, §3.2).  State: [heads,
    key_dim, value_dim].

    A chunk of C tokens has three products with the state and three with a C × C matrix: K·Kᵀ, Q·Kᵀ and scores·V where a
    head decays as one, two with the inverse of the chunk's triangular system and scores·V where each channel decays on
    its own (`by_channel`, Kimi Delta Attention), whose K·Kᵀ and Q·Kᵀ are no products. The last chunk is padded. One
    token after others is element by element: no product.
    """

    heads: Number
    key_dim: Number
    value_dim: Number
    chunk: Number
    by_channel: bool = False

    def _chunks(self, w: Workload) -> Number:
        return 0 if w.phase == "decode" else w.batch * self.heads * ceil_div(w.seq, self.chunk)

    def forward_flops(self, w: Workload) -> Number:
        c, k, v = self.chunk, self.key_dim, self.value_dim
        square = k + 2 * v if self.by_channel else 2 * k + v
        return self._chunks(w) * (2 * c * c * square + 3 * 2 * c * k * v)

    def backward_flops(self, w: Workload) -> Number:
        """Twice the forward; less, since the first state is no function of anything and the last one goes nowhere;
        more, where the triangular systems are solved: each adds one product for the gradient of its matrix.
        """
        if w.phase == "decode":
            return 0
        c, k, v = self.chunk, self.key_dim, self.value_dim
        solved = 0 if self.by_channel else self._chunks(w) * 2 * c * c * (k + v)
        return add(2 * self.forward_flops(w), solved) - w.batch * self.heads * 4 * 2 * c * k * v


@dataclass(frozen=True, slots=True)
class LightningCore(Op):
    """Linear attention with a fixed decay, in blocks (Qin 2024, arXiv:2401.04658, §3).  State: [heads, head_dim,
    head_dim].

    A block of C tokens has scores Q·Kᵀ and their product with V, and two products with the state; the last block is as
    long as what is left. After earlier tokens each one runs by itself: the two products with the state alone.
    """

    heads: Number
    head_dim: Number
    block: Number

    def _goes_on(self, w: Workload) -> bool:
        return w.phase == "decode" or not is_zero(w.context)

    def _last(self, w: Workload) -> Number:
        """Tokens of the last block."""
        return w.seq - self.block * (ceil_div(w.seq, self.block) - 1)

    def forward_flops(self, w: Workload) -> Number:
        d, last = self.head_dim, self._last(w)
        pairs = 0 if self._goes_on(w) else (w.seq - last) * self.block + last * last
        return 4 * w.batch * self.heads * (times(d, pairs) + w.seq * d * d)

    def backward_flops(self, w: Workload) -> Number:
        """Twice the forward, less what the first state, which nothing made, and the last one, which goes nowhere,
        do not need.
        """
        d = self.head_dim
        spared = (
            0
            if self._goes_on(w)
            else 2 * w.batch * self.heads * d * d * (minimum(w.seq, self.block) + 2 * self._last(w))
        )
        return 2 * self.forward_flops(w) - spared


@dataclass(frozen=True, slots=True)
class MatrixMemory(Op):
    """mLSTM's memory, in chunks (Beck 2024, arXiv:2405.04517, §2.3; Beck 2025, arXiv:2503.14376).  State: [heads,
    key_dim, value_dim] and a norm of it.

    Each token has k ⊗ v, Q·C and q·n; a whole chunk of C tokens has scores Q·Kᵀ and their product with V besides. What
    is left of a pass after the whole chunks runs token by token.
    """

    heads: Number
    key_dim: Number
    value_dim: Number
    chunk: Number

    def forward_flops(self, w: Workload) -> Number:
        k, v, c = self.key_dim, self.value_dim, self.chunk
        return w.batch * self.heads * (w.seq * (4 * k * v + 2 * k) + floor_div(w.seq, c) * 2 * c * c * (k + v))

    def backward_flops(self, w: Workload) -> Number:
        """Twice the forward, less what the first chunk's empty memory and, where nothing follows it,
        the last chunk's do not need.
        """
        k, v, c = self.key_dim, self.value_dim, self.chunk
        whole = floor_div(w.seq, c)
        ends_whole = 1 + whole - ceil_div(w.seq, c)
        spared = minimum(whole, 1) * 2 * c * k * (v + 1) + ends_whole * 4 * c * k * v
        return 2 * self.forward_flops(w) - w.batch * self.heads * spared
