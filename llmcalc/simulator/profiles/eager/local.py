"""Attention to nearby tokens in blocks, and to sums of tokens (LongT5)."""

from __future__ import annotations

from typing import Any

from ....algebra import ceil_div, floor_div
from ....components.base import BY_TORCH
from ....evidence import compared
from ....flow.program import Step
from ....ops import BlockSums, LocalCore
from ...tensor import BOOL, FLOAT32, INT64, Tensor
from .positions import PositionKernels


class LocalKernels(PositionKernels):
    """LocalAttention's reference, line by line."""

    def _sums(self, tokens: Any, every: Any) -> tuple[Tensor, Tensor]:
        """The index of each token's sum, made once in a pass, and those of all sums."""
        key = ("of_token", tokens, every)
        if key not in self.memo:
            self.memo[key] = self.t.like(self.t.like(self.span(tokens)))
        return self.memo[key], self.span(floor_div(tokens, every))

    @compared(BY_TORCH)
    def core_BlockSums(self, step: Step) -> None:
        assert isinstance(step.op, BlockSums)
        t, x = self.t, self.flat(step.ins[0])
        of_token, at = self._sums(x.shape[1], step.op.block)
        ones = t.to(t.like(t.unsqueeze(at, 1), t.unsqueeze(of_token, 0), dtype=BOOL), x.dtype)
        self.set(step.outs[0], t.matmul(ones, x))

    # --- blocks -----------------------------------------------------------------------------------------------------

    @compared(BY_TORCH)
    def do_in_blocks(self, step: Step) -> None:
        value, out, block = step.ins[0], step.outs[0], step.options["block"]
        x, heads, tokens = self.flat(value), out.axes[0].size, self.run_config.new(out.rows)
        if not step.options["around"]:
            self.bind(out, self._by_head(self._blocks(x, block), heads))
            return
        near = self._by_head(self._with_neighbours(self._blocks(self._first(x, tokens), block)), heads)
        self.bind(out, near if value.rows == out.rows else self._with_sums(near, x, heads, tokens))

    def _with_sums(self, near: Tensor, x: Tensor, heads: Any, tokens: Any) -> Tensor:
        """The keys or values of each block, then those of all sums."""
        t = self.t
        far = t.unsqueeze(self._by_head(t.slice(x, x.shape[1] - tokens, 1), heads), 1)
        return t.cat([near, t.expand(far, (*near.shape[:2], *far.shape[2:]))], -2)

    def _first(self, x: Tensor, rows: Any) -> Tensor:
        """The first rows; x itself if it has no others."""
        return x if x.shape[1] == rows else self.t.slice(x, rows, 1)

    def _blocks(self, x: Tensor, block: Any) -> Tensor:
        """[batch, tokens, …] → [batch, blocks, block, …], with the last block padded."""
        whole = ceil_div(x.shape[1], block)
        missing = self.t.new((x.shape[0], whole * block - x.shape[1], *x.shape[2:]), x.dtype)
        return self.t.unflatten(self.t.cat([x, missing], 1), 1, (whole, block))

    def _with_neighbours(self, x: Tensor) -> Tensor:
        """[batch, blocks, block, …] → [batch, blocks, 3 · block, …]."""
        t, others = self.t, x.shape[1] - 1
        end = t.new((x.shape[0], 1, *x.shape[2:]), x.dtype)
        return t.cat([t.cat([end, t.slice(x, others, 1)], 1), x, t.cat([t.slice(x, others, 1), end], 1)], 2)

    def _by_head(self, x: Tensor, heads: Any) -> Tensor:
        """[…, tokens, heads · d] → […, heads, tokens, d]."""
        return self.t.transpose(self.t.unflatten(x, -1, (heads, x.shape[-1] // heads)), -2, -3)

    # --- scores -----------------------------------------------------------------------------------------------------

    @compared(BY_TORCH)
    def do_local_mask(self, step: Step) -> None:
        options, tokens = step.options, self.run_config.new(step.options["of"])
        key = ("blocks", tokens, options["radius"], options["block_sums"])
        if key not in self.memo:
            tables = [self.get(table) for table in step.ins]
            self.memo[key] = self._local_mask(tokens, options["radius"], options["block_sums"], tables)

    def _local_mask(self, tokens: Any, radius: Any, every: Any, tables: list[Tensor]) -> tuple[Tensor, Tensor | None]:
        """LocalReference._seen."""
        t, block = self.t, radius + 1
        at = self._blocks(t.like(t.unsqueeze(self.span(tokens), 0)), block)
        keys = self._with_neighbours(at)
        spots = t.new((3 * block,), INT64)
        middle = t.slice(spots, block)
        close = t.compare(t.like(t.like(t.unsqueeze(spots, 0), t.unsqueeze(middle, 1))))
        near = t.compare(close, t.unsqueeze(t.compare(t.select(keys, 0)), 1))
        del close
        mask, bias = t.unsqueeze(near, 1), None
        if tables:
            bias = t.unsqueeze(self.bias_by_distance(tables[0], middle, spots, causal=False), 0)
        if every is None:
            return mask, bias
        of_token, sums = self._sums(tokens, every)
        mask = t.cat([mask, t.new((*mask.shape[:-1], sums.shape[0]), BOOL)])
        if bias is not None:
            by_sum = self.bias_by_distance(tables[1], of_token, sums, causal=False)
            far = t.unsqueeze(t.permute(by_sum, (1, 0, 2)), 0)
            del by_sum
            far = t.transpose(t.select(self._blocks(far, block), 0), 1, 2)
            bias = t.cat([t.expand(bias, (far.shape[0], *bias.shape[1:])), far])
        return mask, bias

    @compared(BY_TORCH)
    def attention_LocalCore(self, step: Step) -> None:
        if self.choices.attention != "eager":
            raise self.unsupported("local attention runs with eager attention alone", step.name)
        q, k, v = (self.get(value) for value in step.ins)
        assert isinstance(step.op, LocalCore)
        tokens, op = self.run_config.new(step.outs[0].rows), step.op
        mask, bias = self.memo["blocks", tokens, op.radius, op.global_block]
        output = self.through(lambda q, k, v, *bias: self._local_core(q, k, v, mask, *bias), q, k, v, bias)
        output = self.t.flatten(self.t.transpose(output, -2, -3), 1, 2)
        self.set(step.outs[0], self._first(output, tokens))

    def _local_core(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, bias: Tensor | None = None) -> Tensor:
        t = self.t
        scores = t.matmul(q, t.transpose(k, -1, -2))
        if bias is None:
            scores = t.masked_fill(scores, t.like(mask))
        else:
            scores = t.masked_fill(t.add(scores, t.to(bias, scores.dtype)), t.like(mask))
        return t.matmul(t.to(t.softmax(t.to(scores, FLOAT32)), v.dtype), v)
