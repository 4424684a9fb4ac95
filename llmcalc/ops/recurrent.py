"""Recurrent states of constant size, and the matrix products of chunked recurrences."""

from __future__ import annotations

from typing import ClassVar

from ..algebra import Number, add, ceil_div, floor_div, is_zero, minimum, times, triangular_number
from ..frozen import frozen
from ..workload.rows import TOKENS, Rows
from ..workload.run_config import RunConfig
from .base import CACHE_EFFECTS, FLOP_EFFECTS, PARAM_EFFECTS, Op, ParamTensor


@frozen(slots=True)
class State(Op):
    """A recurrent state: `size` elements per sequence, independent of the number of tokens.

    cache_kind: the kind that `llmcalc kv` lists it under.
    element_bits: bits per element if the state has its own dtype; None for the cache's.
    """

    effects = CACHE_EFFECTS

    size: Number
    cache_kind: str = "recurrent_state"
    element_bits: Number = None

    def cache_bits(self, run_config: RunConfig, kv_bits: Number) -> Number:
        return run_config.batch * self.size * (kv_bits if self.element_bits is None else self.element_bits)


@frozen(slots=True)
class SelectiveScan(Op):
    """Mamba's recurrence for `inner` channels with `state` elements: h ← exp(Δ·A)·h + Δ·B·x, y = h·C + D·x.

    Its parameters are A [inner, state] and D [inner]; its only matrix multiplication is h·C.
    """

    effects: ClassVar[frozenset[str]] = PARAM_EFFECTS | FLOP_EFFECTS

    inner: Number
    state: Number
    rows: Rows = TOKENS

    def params(self) -> Number:
        return self.inner * self.state + self.inner

    def tensors(self) -> tuple[ParamTensor, ...]:
        return (ParamTensor((self.inner, self.state), "vector"), ParamTensor((self.inner,), "vector"))

    def forward_flops(self, run_config: RunConfig) -> Number:
        return 2 * run_config.rows(self.rows) * self.inner * self.state


@frozen(slots=True)
class HeadScan(Op):
    """Mamba-2's recurrence, one token at a time (Dao & Gu 2024); `heads` heads of [head_dim, state].

    Its parameters are A, D and the bias of Δ, one element of each per head; its only matrix multiplication is h·C.
    """

    effects: ClassVar[frozenset[str]] = PARAM_EFFECTS | FLOP_EFFECTS

    heads: Number
    head_dim: Number
    state: Number
    rows: Rows = TOKENS

    def params(self) -> Number:
        return 3 * self.heads

    def tensors(self) -> tuple[ParamTensor, ...]:
        return (ParamTensor((self.heads,), "vector"),) * 3

    def forward_flops(self, run_config: RunConfig) -> Number:
        return 2 * run_config.rows(self.rows) * self.heads * self.head_dim * self.state


@frozen(slots=True)
class ChunkedScan(HeadScan):
    """Mamba-2's recurrence in chunks of `chunk` tokens, with a padded last chunk.

    Within a chunk it is attention without a softmax (C·Bᵀ times x); between chunks it is a product over all pairs of
    chunks.

    groups: how many groups of heads share a B and a C.
    """

    chunk: Number = 1
    groups: Number = 1

    def forward_flops(self, run_config: RunConfig) -> Number:
        chunk, state, head_dim, token_count = self.chunk, self.state, self.head_dim, run_config.new_rows(self.rows)
        chunk_count = 0 if is_zero(token_count) else ceil_div(token_count, chunk)
        score_flops = chunk * chunk * state  # C·Bᵀ within a chunk
        value_flops = chunk * chunk * head_dim  # its product with x
        state_flops = 2 * chunk * state * head_dim  # a chunk's term in the state, and the state's term in its outputs
        # the states at the borders of chunks, each from all chunks before it
        boundary_flops = 0 if is_zero(chunk_count) else (chunk_count + 1) * (chunk_count + 1) * head_dim * state
        chunk_flops = chunk_count * (score_flops + value_flops + state_flops)
        return 2 * run_config.batch * self.heads * (chunk_flops + boundary_flops)

    def kernel_flops(self, run_config: RunConfig) -> Number:
        """Returns the forward FLOPs of the published Triton kernels (mamba_ssm/ops/triton/ssd_combined.py).

        C·Bᵀ is computed once for the heads of a group (ssd_bmm.py), pairs after a token are skipped (IS_CAUSAL), and
        the state passes from chunk to chunk without products (ssd_state_passing.py). They price its time; what is
        counted stays `forward_flops`, those of the reference in PyTorch.
        """
        chunk, state, head_dim, token_count = self.chunk, self.state, self.head_dim, run_config.new_rows(self.rows)
        pair_count = triangular_number(chunk)
        group_flops = pair_count * state
        head_flops = pair_count * head_dim + 2 * chunk * state * head_dim
        chunk_flops = 2 * (self.groups * group_flops + self.heads * head_flops)
        return run_config.batch * (0 if is_zero(token_count) else ceil_div(token_count, chunk)) * chunk_flops


@frozen(slots=True)
class ProjectedHeadScan(HeadScan):
    """Mamba-2's recurrence, one token at a time, with Δ, B and C from separate projections (PLaMo 2)."""


@frozen(slots=True)
class ProjectedChunkedScan(ChunkedScan):
    """Mamba-2's recurrence in chunks, with Δ, B and C of separate projections (PLaMo 2)."""


@frozen(slots=True)
class DeltaRule(Op):
    """Linear attention by the (gated) delta rule, in chunks (Yang 2024, arXiv:2406.06484, §3.2).

    State: [heads, key_dim, value_dim]. A chunk of C tokens has three products with the state and three with a C × C
    matrix. With one decay per head, the latter are K·Kᵀ, Q·Kᵀ and scores·V. With one decay per channel
    (`decays_by_channel`, Kimi Delta Attention), they are two with the inverse of the chunk's triangular system and
    scores·V; K·Kᵀ and Q·Kᵀ are elementwise. The last chunk is padded. Decoding one token is elementwise: no FLOPs.
    """

    effects = FLOP_EFFECTS

    heads: Number
    key_dim: Number
    value_dim: Number
    chunk: Number
    decays_by_channel: bool = False
    rows: Rows = TOKENS

    def _chunk_count(self, run_config: RunConfig) -> Number:
        return run_config.batch * self.heads * ceil_div(run_config.new_rows(self.rows), self.chunk)

    def forward_flops(self, run_config: RunConfig) -> Number:
        chunk, key_dim, value_dim = self.chunk, self.key_dim, self.value_dim
        pair_width = key_dim + 2 * value_dim if self.decays_by_channel else 2 * key_dim + value_dim
        return self._chunk_count(run_config) * (2 * chunk * chunk * pair_width + 3 * 2 * chunk * key_dim * value_dim)

    def backward_flops(self, run_config: RunConfig) -> Number:
        """Returns twice the forward FLOPs, corrected for the first and last states and for the solved linear systems.

        - The first state is not computed and the last one is not used: four products less.
        - Each solved triangular system adds one product, for the gradient of its matrix.
        """
        chunk, key_dim, value_dim = self.chunk, self.key_dim, self.value_dim
        solved_elements = chunk * chunk * (key_dim + value_dim)
        solve_flops = 0 if self.decays_by_channel else self._chunk_count(run_config) * 2 * solved_elements
        skipped_flops = run_config.batch * self.heads * 4 * 2 * chunk * key_dim * value_dim
        return add(2 * self.forward_flops(run_config), solve_flops) - skipped_flops


@frozen(slots=True)
class DecayScan(Op):
    """Linear attention with a decay, one token at a time (Qin 2024, arXiv:2401.04658, §3; Yang 2023, §4.1).

    State: [heads, key_dim, value_dim]. Each token has two products with the state.
    """

    effects = FLOP_EFFECTS

    heads: Number
    key_dim: Number
    value_dim: Number
    rows: Rows = TOKENS

    def forward_flops(self, run_config: RunConfig) -> Number:
        return 4 * run_config.rows(self.rows) * self.heads * self.key_dim * self.value_dim


@frozen(slots=True)
class TransitionScan(DecayScan):
    """RWKV-7's recurrence, one token at a time (Peng 2025, arXiv:2503.14456, §4.1).

    Each token has two products with the state: of the removed key, and of the receptance.
    """

    def backward_flops(self, run_config: RunConfig) -> Number:
        """Returns twice the forward FLOPs, without the gradient of the first state, which is not computed."""
        state_size = self.heads * self.key_dim * self.value_dim
        return 2 * self.forward_flops(run_config) - 2 * run_config.batch * state_size


@frozen(slots=True)
class LightningAttentionCore(DecayScan):
    """Linear attention with a fixed decay, in blocks; within a block also scores Q·Kᵀ and a product with V.

    The last block is shorter, not padded.
    """

    block: Number = 1

    def _last_block_token_count(self, run_config: RunConfig) -> Number:
        """Returns the number of tokens in the last block."""
        token_count = run_config.new_rows(self.rows)
        return token_count - self.block * (ceil_div(token_count, self.block) - 1)

    def forward_flops(self, run_config: RunConfig) -> Number:
        key_dim, value_dim, token_count = self.key_dim, self.value_dim, run_config.new_rows(self.rows)
        last_block_tokens = self._last_block_token_count(run_config)
        pair_count = (token_count - last_block_tokens) * self.block + last_block_tokens * last_block_tokens
        pair_flops = times(key_dim + value_dim, pair_count)
        return 2 * run_config.batch * self.heads * (pair_flops + 2 * token_count * key_dim * value_dim)

    def backward_flops(self, run_config: RunConfig) -> Number:
        """Returns twice the forward FLOPs, minus three products that the backward pass does not need.

        They are those of the first state, which is not computed, and of the last state, which is not used.
        """
        first_block_tokens = minimum(run_config.new_rows(self.rows), self.block)
        skipped_tokens = first_block_tokens + 2 * self._last_block_token_count(run_config)
        skipped_flops = 2 * run_config.batch * self.heads * self.key_dim * self.value_dim * skipped_tokens
        return 2 * self.forward_flops(run_config) - skipped_flops


@frozen(slots=True)
class LinearAttentionCore(LightningAttentionCore):
    """Linear attention with a decay per head (Sun 2023, arXiv:2307.08621, §2.3) or per channel of a key, in chunks.

    With a decay per channel (Yang 2023, arXiv:2312.06635, §4.2), the scores of a chunk are a product of queries and
    keys that are scaled by the decays, so the products are the same.
    """


@frozen(slots=True)
class MatrixMemory(Op):
    """mLSTM's memory, in chunks (Beck 2024, arXiv:2405.04517, §2.3; Beck 2025, arXiv:2503.14376).

    State: [heads, key_dim, value_dim] and its normalizer. Each token has k ⊗ v, Q·C and q·n; a full chunk of C tokens
    also has scores Q·Kᵀ and their product with V. Tokens after the last full chunk run one by one.
    """

    effects = FLOP_EFFECTS

    heads: Number
    key_dim: Number
    value_dim: Number
    chunk_size: Number
    rows: Rows = TOKENS

    def forward_flops(self, run_config: RunConfig) -> Number:
        key_dim, value_dim, chunk, token_count = (
            self.key_dim,
            self.value_dim,
            self.chunk_size,
            run_config.new_rows(self.rows),
        )
        token_flops = token_count * (4 * key_dim * value_dim + 2 * key_dim)
        chunk_flops = floor_div(token_count, chunk) * 2 * chunk * chunk * (key_dim + value_dim)
        return run_config.batch * self.heads * (token_flops + chunk_flops)

    def backward_flops(self, run_config: RunConfig) -> Number:
        """Returns twice the forward FLOPs, minus the products with an empty or unused memory.

        The first chunk's memory is empty; the last chunk's memory is unused if no token follows the chunk.
        """
        key_dim, value_dim, chunk, token_count = (
            self.key_dim,
            self.value_dim,
            self.chunk_size,
            run_config.new_rows(self.rows),
        )
        chunk_count = floor_div(token_count, chunk)
        ends_with_full_chunk = 1 + chunk_count - ceil_div(token_count, chunk)
        skipped_flops = (
            minimum(chunk_count, 1) * 2 * chunk * key_dim * (value_dim + 1)
            + ends_with_full_chunk * 4 * chunk * key_dim * value_dim
        )
        return 2 * self.forward_flops(run_config) - run_config.batch * self.heads * skipped_flops
