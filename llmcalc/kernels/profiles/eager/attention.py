"""Attention: positions, keys and values for each head, masks and the scores."""

from __future__ import annotations

from typing import Any

from ....components.position import Rope
from ....flow.program import Step
from ....ops import AttentionCore
from ...lowering import Lowering
from ...tensor import BOOL, FLOAT32, INT64, Tensor


class AttentionKernels(Lowering):
    """Softmax attention, as the reference's core computes it."""

    def heads_first(self, x: Tensor) -> Tensor:
        """[batch, rows, heads, size] → [batch, heads, rows, size], or back."""
        return self.t.transpose(x, 1, 2)

    # --- positions --------------------------------------------------------------------------------------------------

    def do_rope(self, step: Step) -> None:
        x = self.get(step.ins[0])
        by_head = len(x.shape) == 4
        turned = self.rotated(self.heads_first(x) if by_head else x, step.how["spec"])
        self.set(step.outs[0], self.heads_first(turned) if by_head else turned)

    def rotated(self, x: Tensor, spec: Rope) -> Tensor:
        """RoPE on the first dimensions of x's last axis; rows are the axis before it."""
        t, dim = self.t, spec.rotary_size(x.shape[-1])
        cos, sin = self._angles(x.shape[-2], dim, spec.rope_theta, x)
        left, right, rest = t.slice(x, dim // 2), t.slice(x, dim // 2), t.slice(x, x.shape[-1] - dim)
        return t.cat([t.sub(t.mul(left, cos), t.mul(right, sin)), t.add(t.mul(right, cos), t.mul(left, sin)), rest])

    def _angles(self, tokens: Any, dim: Any, theta: float, like: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin of every position, made by the first layer that needs them."""
        key = ("rope", tokens, dim, theta, like.dtype)
        if key not in self.memo:
            angles = self._angle_table(self.span(tokens), dim)
            self.memo[key] = self.t.to(self.t.like(angles), like.dtype), self.t.to(self.t.like(angles), like.dtype)
        found: tuple[Tensor, Tensor] = self.memo[key]
        return found

    def _angle_table(self, positions: Tensor, dim: Any) -> Tensor:
        t = self.t
        exponents = t.like(t.new((dim // 2,), FLOAT32))
        return t.mul(t.to(t.unsqueeze(positions, 1), FLOAT32), t.like(t.like(exponents)))

    def span(self, tokens: Any) -> Tensor:
        """The positions of the tokens, made once in a pass."""
        key = ("span", tokens)
        if key not in self.memo:
            self.memo[key] = self.t.new((tokens,), INT64)
        span: Tensor = self.memo[key]
        return span

    # --- keys and values --------------------------------------------------------------------------------------------

    def do_repeat(self, step: Step) -> None:
        x, heads = self.get(step.ins[0]), step.outs[0].axes[0].size
        wide = self.t.repeat_interleave(self.heads_first(x), heads // x.shape[2], 1)
        self.set(step.outs[0], self.heads_first(wide))

    def do_cache(self, step: Step) -> None:
        for value, seen in zip(step.ins, step.outs, strict=True):
            self.set(seen, self.get(value))

    # --- scores -----------------------------------------------------------------------------------------------------

    def do_attention(self, step: Step) -> None:
        if type(step.op) is not AttentionCore or len(step.ins) > 3 or step.how.get("selected") is not None:
            raise self.unsupported(f"no kernels for '{type(step.op).__name__}' of this kind", step.name)
        q, k, v = (self.heads_first(self.get(value)) for value in step.ins)
        frame = self.frames[-1].named
        frame["q"], frame["k"], frame["v"] = q, k, v
        crossing = step.ins[1].rows != step.ins[0].rows
        mask = None if crossing else self.mask(step, q.shape[2], k.shape[2])
        sinks = self.weight("sinks.weight", (q.shape[1],)) if step.how.get("sinks") else None
        cap = step.how["cap"]
        if self.recompute.core:
            made = self.checkpointed(lambda given: self.core(*given[:3], mask, cap, sinks), (q, k, v))
        else:
            made = self.core(q, k, v, mask, cap, sinks)
        out = frame["out"] = self.t.transpose(made, 1, 2)
        del made
        self.set(step.outs[0], out)

    def mask(self, step: Step, queries: Any, keys: Any) -> Tensor:
        """[queries, keys]: the keys that each query may attend to, made by the first layer that needs it."""
        window, chunk, causal = step.how.get("window"), step.how.get("chunk"), step.how["causal"]
        key = ("mask", queries, keys, causal, window, chunk)
        if key not in self.memo:
            t = self.t
            q, k = t.unsqueeze(self.span(queries), 1), t.unsqueeze(self.span(keys), 0)
            if causal:
                seen = t.compare(k, q)
                if window is not None:
                    seen = t.compare(seen, t.compare(k, t.like(q)))
                if chunk is not None:
                    seen = t.compare(seen, t.compare(t.like(k), t.like(q)))
            else:
                seen = t.compare(t.compare(t.like(q, k)), t.compare(t.like(k, q)))
            self.memo[key] = seen
        mask: Tensor = self.memo[key]
        return mask

    def core(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        cap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """softmax(q·kᵀ)·v, scores in float32. sinks: per head, the score of one more key without a value."""
        t = self.t
        scores = t.scale(t.matmul(q, t.transpose(k, -1, -2)))
        if cap is not None:
            scores = t.scale(t.function("tanh", t.scale(scores)))
        if mask is not None:
            scores = t.masked_fill(scores, t.like(mask, dtype=BOOL))
        if sinks is not None:
            wide = t.unsqueeze(t.unsqueeze(t.unsqueeze(sinks, 0), 2), 3)
            sink = t.to(t.expand(wide, (*scores.shape[:-1], 1)), scores.dtype)
            whole = t.softmax(t.to(t.cat([scores, sink]), FLOAT32))
            return t.matmul(t.to(t.slice(whole, scores.shape[-1]), v.dtype), v)
        return t.matmul(t.to(t.softmax(t.to(scores, FLOAT32)), v.dtype), v)
