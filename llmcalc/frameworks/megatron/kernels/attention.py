"""Attention of a rank: rotations, and the backends that compute it.

Sources: Megatron-LM, megatron/core/transformer/attention.py and dot_product_attention.py; TransformerEngine,
transformer_engine/pytorch/attention/dot_product_attention/ (backends.py, utils.py `get_qkv_layout`,
context_parallel.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....algebra import Number, ceil_div
from ....flow.program import Step
from ....flow.value import Value
from ....simulator.autograd import record
from ....simulator.tensor import BOOL, FLOAT32, INT64, Gradient, Needs, Tensor
from .linear import LinearKernels

HEADS = ("heads", "kv_heads")

LONGEST_FUSED = 4096
"""Keys up to which the softmax of Megatron-Core has one kernel."""


class AttentionKernels(LinearKernels):
    """Queries, keys and values of one product; their rotation; attention."""

    def do_mask(self, step: Step) -> None: ...

    def do_cache(self, step: Step) -> None:
        for made, value in zip(step.outs, step.ins, strict=True):
            self.bind(made, self.get(value))

    def get(self, value: Value) -> Tensor:
        """The tensor of a value; of a view, that of the value that it looks at."""
        found = self.values.get(id(value))
        if found is not None:
            return found
        if value.of is None:
            raise self.unsupported("reads a value that no step has made")
        return self.get(value.of)

    def set(self, value: Value, tensor: Tensor) -> None:
        self.bind(value, tensor)

    def do_repeat(self, step: Step) -> None:
        """Backends read each key head for all of its queries, or repeat it themselves."""
        self.bind(step.outs[0], self.get(step.ins[0]))

    # --- queries, keys and values of one product ---------------------------------------------------------------------

    def parts(self, group: list[Step], made: Tensor, widths: Sequence[Number]) -> list[Tensor]:
        if any(one.outs[0].axes[0].name not in HEADS for one in group):
            return super().parts(group, made, widths)
        parts = self.split_along(made, widths)
        heads = [one.outs[0].axes[0].size for one in group]
        fewest = min(heads)
        if len(group) in (3, 4) and fewest > 1 and heads[0] > fewest:  # [groups, queries of a group]: no view of heads
            del made
            for i in (0, 3)[: len(group) - 2]:
                parts[i] = self.copied(parts[i])
        return parts

    def split_along(self, x: Tensor, widths: Sequence[Number]) -> list[Tensor]:
        """SplitAlongDim: views, whose gradients are joined, without a copy where they are views of one tensor."""
        rows = x.shape[0]
        parts = [Tensor((rows, width), x.dtype, x.storage, (x.shape[1], 1)) for width in widths]
        shape, dtype = x.shape, x.dtype

        def joined(kept: list[Tensor | None], came: list[Gradient], needs: Needs) -> Sequence[Gradient]:
            given = [one for one in came if one is not None]
            first = given[0]
            if len(given) == len(came) and all(one.storage is first.storage for one in given):
                return [Tensor(shape, dtype, first.storage)]
            return [self.graph.new(shape, dtype)]

        self.node("split", (x,), parts, joined)
        return parts

    # --- rotation ----------------------------------------------------------------------------------------------------

    def do_rope(self, step: Step) -> None:
        x = self.taken(step, step.ins[0])
        self.bind(step.outs[0], self.rotated(x))

    def rotated(self, x: Tensor) -> Tensor:
        if self.how.rope_fusion:
            out = self.graph.new(x.shape, x.dtype)
            shape = x.shape
            return record(self.graph, "rope", (x,), out, lambda g, _: (self.graph.new(shape, g.dtype),))
        t = self.t
        turned = t.add(t.scale(x), t.scale(t.scale(x)))
        return self.copied(turned)

    # --- attention ---------------------------------------------------------------------------------------------------

    def do_attention(self, step: Step) -> None:
        name = type(step.op).__name__
        if name != "AttentionCore":
            raise self.unsupported(f"no kernels for '{name}'", step.name)
        how = step.options
        refused = [name for name in ("sinks", "selected", "window", "chunk", "cap") if how.get(name)]
        if refused or how.get("biased") or how.get("narrowed"):
            raise self.unsupported(f"no kernels for attention with {', '.join(refused) or 'a bias'}", step.name)
        q, k, v = (self.taken(step, value) for value in step.ins[:3])
        heads = step.outs[0].axes[0].size
        groups = step.ins[1].once.axes[0].size if step.ins[1].once is not None else step.ins[1].axes[0].size
        crossing = step.ins[1].rows != step.ins[0].rows
        masked = self.how.padded and (crossing or not step.options["causal"])
        width = step.outs[0].width

        def run(given: Sequence[Tensor]) -> Tensor:
            q, k, v = given
            return self.attended(q, k, v, heads, groups, width, masked)

        given = [q, k, v]
        del q, k, v
        if self.how.recompute_core:
            out = self.rerun(run, given)
        else:
            out = run(given)
        del given
        self.bind(step.outs[0], out)

    def attended(
        self, q: Tensor, k: Tensor, v: Tensor, heads: Number, groups: Number, width: Number, masked: bool
    ) -> Tensor:
        backend = self.how.attention
        if backend == "fused":
            return self.fused(q, k, v, heads, width)
        if backend == "flash":
            return self.flash(q, k, v, heads, width)
        return self.scored(q, k, v, heads, groups, width, masked)

    def fused(self, q: Tensor, k: Tensor, v: Tensor, heads: Number, width: Number) -> Tensor:
        """cuDNN's attention keeps its inputs, its output, and one number for each query of a head."""
        graph, rows = self.graph, q.shape[0]
        if not (q.storage is k.storage is v.storage):
            q, k, v = (self.dense(x) for x in (q, k, v))
        ins = (q, k, v)
        one = q.storage is k.storage
        shapes = [x.shape for x in ins]
        whole = (rows, q.strides[0]) if one else None
        out = self.new(rows, width)
        sums = self.new(rows, heads, FLOAT32)
        seed = graph.new((2,), INT64)

        def back(kept: list[Tensor | None], g: Tensor, needs: Needs) -> Sequence[Gradient]:
            if whole is None:
                return [graph.new(shape, g.dtype) for shape in shapes]
            made = graph.new(whole, g.dtype)
            return [Tensor(shape, g.dtype, made.storage, made.strides) for shape in shapes]

        self.node("attention", ins, [out], back, *ins, out, sums, seed)
        return self.exchanged(out)

    def exchanged(self, sent: Tensor) -> Tensor:
        """The output of attention after its all-to-all, where ranks of a sequence divide heads; the one before stays
        saved.
        """
        if self.how.context == 1 or self.how.exchange != "a2a":
            return sent
        graph, shape = self.graph, sent.shape
        out = graph.new(shape, sent.dtype)
        self.node("all_to_all", (sent,), [out], lambda kept, g, needs: [graph.new(shape, g.dtype)])
        return out

    def flash(self, q: Tensor, k: Tensor, v: Tensor, heads: Number, width: Number) -> Tensor:
        """FlashAttention reads [batch, tokens, heads, size]: copies, but for a batch of one."""
        graph, rows, several = self.graph, q.shape[0], self.run_config.batch != 1
        if several:
            q, k, v = (self.copied(x) for x in (q, k, v))
        else:
            q, k, v = (self.dense(x) for x in (q, k, v))
        ins = (q, k, v)
        shapes = [x.shape for x in ins]
        out = self.new(rows, width)
        sums = self.new(rows, heads, FLOAT32)
        seed = graph.new((2,), INT64)
        q_shape, splits = q.shape, 1
        if self.how.deterministic:  # flash_api.cpp, `mha_bwd`: a sum of its own for each group of blocks
            splits = ceil_div(self.how.multiprocessors, self.run_config.batch * heads)

        def back(kept: list[Tensor | None], g: Tensor, needs: Needs) -> Sequence[Gradient]:
            made = [graph.new(shape, g.dtype) for shape in shapes]
            sums = self.new(rows, heads, FLOAT32)
            row = graph.new((splits * q_shape[0], q_shape[1]), FLOAT32)
            del row, sums
            return made

        self.node("flash_attention", ins, [out], back, *ins, out, sums, seed)
        out = self.exchanged(out)
        return self.copied(out) if several else out

    def turned(self, x: Tensor) -> Tensor:
        """A copy with the batch before the tokens, or back; so is its gradient."""
        shape = x.shape
        return record(
            self.graph,
            "transpose",
            (x,),
            self.graph.new(shape, x.dtype),
            lambda g, _: (self.graph.new(shape, g.dtype),),
        )

    def scored(
        self, q: Tensor, k: Tensor, v: Tensor, heads: Number, groups: Number, width: Number, masked: bool
    ) -> Tensor:
        """All scores: Transformer Engine's UnfusedDotProductAttention, or Megatron-Core's DotProductAttention."""
        graph, how, batch = self.graph, self.how, self.run_config.batch
        rows, keys = q.shape[0], k.shape[0]
        if groups != heads:  # keys and values repeated for each query head
            wide = (keys, q.shape[1])
            q = self.dense(q)
            k, v = self.repeated(k, wide), self.repeated(v, (keys, width))
        self.stays.product("forward")
        scores = (batch * heads * (rows // batch), keys // batch)
        engine = how.transformer_engine
        mask = graph.new((rows, keys // batch), BOOL) if masked and engine else None
        if engine:
            before: Tensor | None = graph.new(scores, q.dtype)
        else:
            self.stays.gathered(2 * scores[0] * scores[1])
            before = None
        shapes = q.shape, k.shape

        def of_scores(kept: list[Tensor | None], g: Tensor, needs: Needs) -> Sequence[Gradient]:
            self.stays.product("backward")
            made: list[Gradient] = []
            for shape in shapes:  # a product, and the product times the scale (derivatives.yaml, `baddbmm`)
                product = graph.new(shape, g.dtype)
                made.append(self.like(product))
                del product
            return made

        raw = graph.new(scores, q.dtype)
        self.node("scores", (q, k), [raw], of_scores, q, k)
        del before, q, k
        one = engine or self.has_fused_softmax(batch * heads, rows // batch, keys // batch)
        shares = self.fused_softmax(raw) if one else self.unfused_softmax(raw)
        if mask is not None:
            shares = self.filled(shares, mask)
        del mask
        if how.attention_dropout > 0:
            shares = self.dropped(shares)
        value = v.shape

        def of_product(kept: list[Tensor | None], g: Tensor, needs: Needs) -> Sequence[Gradient]:
            self.stays.product("backward")
            return [graph.new(scores, g.dtype), graph.new(value, g.dtype)]

        context = self.new(rows, width)
        self.node("context", (shares, v), [context], of_product, shares, v)
        del shares, v
        out = self.turned(context)
        del context, raw
        return out

    def repeated(self, x: Tensor, shape: Any) -> Tensor:
        own, dtype = x.shape, x.dtype
        return record(
            self.graph, "repeat", (x,), self.graph.new(shape, dtype), lambda g, _: (self.graph.new(own, dtype),)
        )

    def fused_softmax(self, raw: Tensor) -> Tensor:
        """ScaledMaskedSoftmax keeps its result. Its gradient is written over the one that comes: the kernels of
        Megatron-LM do so, and those of Transformer Engine up to 2.17.1 (csrc/extensions/softmax.cpp).
        """
        out = self.graph.new(raw.shape, raw.dtype)
        self.node("softmax", (raw,), [out], lambda kept, g, needs: [g], out)
        return out

    def softmax(self, raw: Tensor) -> Tensor:
        """torch's softmax keeps its result."""
        graph, shape = self.graph, raw.shape
        out = graph.new(shape, raw.dtype)
        self.node("softmax", (raw,), [out], lambda kept, g, needs: [graph.new(shape, g.dtype)], out)
        return out

    def has_fused_softmax(self, heads: Number, queries: Number, keys: Number) -> bool:
        """FusedScaleMaskSoftmax has a kernel for some sizes (core/fusions/fused_softmax.py, `is_kernel_available`)."""
        fits = 16 < keys <= LONGEST_FUSED and queries % 4 == 0 and keys % 4 == 0
        return bool(self.how.softmax_fusion and fits and heads % 4 == 0)

    def unfused_softmax(self, raw: Tensor) -> Tensor:
        """`forward_torch_softmax`: in float32 if asked for, with a mask filled in place."""
        how, t, x = self.how, self.t, raw
        if how.softmax_fp32:
            x = t.to(x, FLOAT32)
        if how.scales_scores:
            x = t.scale(x)
        shape = x.shape
        if not how.padded and not how.masks:  # made once, and remembered (`get_default_causal_mask`)
            self.stays.mask(shape[-1])
        filled = Tensor(shape, x.dtype, x.storage)
        self.node("masked_fill", (x,), [filled], lambda kept, g, needs: [self.graph.new(shape, g.dtype)])
        out = self.softmax(filled)
        return t.to(out, raw.dtype) if how.softmax_fp32 else out

    def filled(self, x: Tensor, mask: Tensor) -> Tensor:
        """A copy with zeros where a mask is."""
        graph, out, shape = self.graph, self.like(x), x.shape
        self.node("masked_fill", (x,), [out], lambda kept, g, needs: [graph.new(shape, g.dtype)], mask)
        return out

    def dropped(self, x: Tensor) -> Tensor:
        """native_dropout keeps a byte for each element."""
        mask, out, shape = self.mask_of(x), self.like(x), x.shape
        self.node("dropout", (x,), [out], lambda kept, g, needs: [self.graph.new(shape, g.dtype)], mask)
        return out
