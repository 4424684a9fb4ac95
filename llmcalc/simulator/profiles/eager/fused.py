"""Kernels that replace several steps: attention without scores, norms, and cross-entropy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....algebra import ceil_div
from ....components.base import BY_TORCH
from ....components.norm import Norm
from ....evidence import Witness, by_source, by_torch, compared
from ....flow.axis import Shape
from ....flow.program import Step
from ....flow.value import Value
from ...autograd import record
from ...lowering import Path
from ...strides import elementwise
from ...tensor import BOOL, DTYPES, FLOAT32, INT64, Gradient, Needs, Tensor
from .attention import AttentionKernels
from .basic import BasicKernels
from .elementwise import ElementwiseKernels

CHOSEN = by_torch("tests/simulator/test_choices.py")
"""The witness of attention and norms that replace several steps."""

LIGER = by_source("linkedin/Liger-Kernel's cross-entropy", "tests/device_memory/test_grid.py")
"""The witness of the losses of Liger-Kernel, whose storages torch makes in their order without the kernels."""

CHUNKS_KEPT = by_torch("tests/simulator/test_adapter_libraries.py")
"""The witness of a loss chunk by chunk."""

COMPILED = Witness(
    "estimate",
    "torch.compile: products and attention kept, norms fused, all else run again (within 8 % of 2 published runs)",
    "tests/device_memory/test_published.py",
)
"""The witness of what torch.compile is taken to keep: published measurements of fine-tuning."""

HEADS = ("heads", "kv_heads", "half_heads")
"""The names of axes of heads."""

CHUNKS = 8
"""Chunks of a `split` cross-entropy: the default of torchtune (`num_output_chunks`)."""


class FusedKernels(AttentionKernels, ElementwiseKernels, BasicKernels):
    """The fused kernels that `Choices` selects instead of the reference's steps."""

    # --- attention --------------------------------------------------------------------------------------------------

    @compared(BY_TORCH)
    def do_mask(self, step: Step) -> None:
        if self.choices.attention == "eager":
            super().do_mask(step)

    @compared(BY_TORCH)
    def do_repeat(self, step: Step) -> None:
        """Flash attention reads each key head for all of its queries, which follow one another."""
        read = any(self._in_this_module(verb, step.outs[0]) for verb in ("attention", "only_selected"))
        if self.choices.attention == "flash" and not step.options["tiled"] and read:
            self.bind(step.outs[0], self.get(step.ins[0]))
        else:
            super().do_repeat(step)

    @compared(BY_TORCH)
    def attention_AttentionCore(self, step: Step) -> None:
        if self.choices.attention == "eager":
            super().attention_AttentionCore(step)
            return
        flash = self.choices.attention == "flash"
        changed = step.options.get("selected") is not None or len(step.ins) > 3
        sinks = self.weight("sinks", (step.outs[0].axes[0].size,)) if step.options.get("sinks") else None
        if not (flash and not self.trained) and (changed or (sinks is not None and not flash)):
            raise self.unsupported(
                f"--attn-implementation {self.choices.attention} takes no bias, no sinks and no selection; "
                "expected eager",
                step.name,
            )
        q, k, v = (self.heads_first(self.get(value)) for value in step.ins[:3])
        crossing = step.ins[1].rows != step.ins[0].rows
        if self.choices.attention == "flash":
            output = self.through(self.flash, q, k, v, sinks)
        else:
            limited = step.options.get("window") is not None or step.options.get("chunk") is not None
            if limited or step.options["cap"] is not None:
                raise self.unsupported("--attn-implementation sdpa-math takes no window and no soft cap", step.name)
            k, v = (self.t.expand(x, (x.shape[0], q.shape[1], *x.shape[2:])) for x in (k, v))
            masked = step.options["causal"] and not crossing
            output = self.through(lambda q, k, v: self.sdpa_math(q, k, v, masked), q, k, v)
        self.set(step.outs[0], self.t.transpose(output, 1, 2))

    @compared(CHOSEN, attention="flash")
    def flash(self, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None) -> Tensor:
        """Flash attention. q: [batch, heads, queries, size]; k and v may have fewer heads. Saves these, the output and
        one number per query. sinks: the score per head of one more key, which its kernel reads and saves.

        Source: derivatives.yaml, `_scaled_dot_product_flash_attention`. On a GPU the backward pass accumulates dQ in
        float32, and dK and dV of every query head (Dao-AILab/flash-attention, csrc/flash_attn/flash_api.cpp,
        `mha_bwd`).
        """
        graph, spare = self.graph, self.choices.workspace
        batch, heads, queries, _ = q.shape
        strides = elementwise(((q.shape, q.strides),), q.shape) if q.shape[-1] == v.shape[-1] else None
        name = "flash_attention"
        out = graph.made(name, (*q.shape[:-1], v.shape[-1]), q.dtype, strides)
        sums = graph.made(name, (batch, heads, queries), FLOAT32)
        seed, unused = graph.made(name, (2,), INT64), graph.made(name, (), INT64)
        shapes, repeated = [(x.shape, x.strides) for x in (q, k, v)], k.shape[1] != heads
        sink_inputs = [] if sinks is None else [sinks]

        def back(g: Tensor, _: Needs, *saved: Tensor) -> Sequence[Gradient]:
            outputs = [graph.new(shape, g.dtype, strides) for shape, strides in shapes]
            outputs += [graph.new(sink.shape, sink.dtype) for sink in sink_inputs]
            if spare:
                rows, sums = graph.new(shapes[0][0], FLOAT32), graph.new((batch, heads, queries), FLOAT32)
                wide = [graph.new((batch, heads, *shape[2:]), g.dtype) for shape, _ in shapes[1:] if repeated]
                del rows, sums, wide
            return outputs

        ins = (q, k, v, *sink_inputs)
        return record(graph, name, ins, out, back, *ins, out, sums, seed, unused)

    @compared(CHOSEN, attention="sdpa-math")
    def sdpa_math(self, q: Tensor, k: Tensor, v: Tensor, masked: bool) -> Tensor:
        """Source: aten/src/ATen/native/transformers/attention.cpp, `_scaled_dot_product_attention_math`."""
        t, dtype = self.t, q.dtype
        q, k, v = (t.to(x, FLOAT32) for x in (q, k, v))
        scaled = t.scale(q)
        mask = self._float_mask(q.shape[2], k.shape[2]) if masked else None
        scores = t.matmul(scaled, t.scale(t.transpose(k, -1, -2)))
        if mask is not None:
            scores = t.add(scores, mask)
        scores = t.softmax(scores)
        returned = t.to(scores, dtype)
        out = t.to(t.matmul(scores, v), dtype)
        del returned
        return out

    def _float_mask(self, queries: Any, keys: Any) -> Tensor:
        """0 where a query sees a key, −∞ elsewhere, made anew by every layer."""
        t = self.t
        seen = t.like(t.new((queries, keys), BOOL))
        zero, low = t.new((), FLOAT32), t.new((), FLOAT32)
        mask = t.new((queries, keys), FLOAT32)
        del seen, zero, low
        return mask

    # --- norms ------------------------------------------------------------------------------------------------------

    def norms_heads_first(self, value: Value, over: Shape) -> bool:
        """One kernel has a dense result, in the order of its input's axes."""
        fused = self.choices.norm == "fused" or self.choices.compiled
        return fused and len(value.axes) == 2 and len(over) == 1 and value.axes[0].name in HEADS

    @compared(CHOSEN, norm="fused")
    def norm(self, x: Tensor, spec: Norm, name: str, shape: Any, groups: Any = 1, module: Path | None = None) -> Tensor:
        """Source: derivatives.yaml, `native_layer_norm`, `_fused_rms_norm`: the input, and statistics of each row. On a
        GPU an input that is not dense is copied for the kernel (aten/src/ATen/native/cuda/layer_norm_kernel.cu).
        """
        eager = self.choices.norm == "eager" and not self.choices.compiled
        if eager or spec.type == "affine" or groups != 1 or len(shape) > 1:
            return super().norm(x, spec, name, shape, groups, module)
        graph, rows = self.graph, (*x.shape[:-1], 1)
        weight = self.weight(f"{name}.weight", shape, module) if spec.weight else None
        bias = self.weight(f"{name}.bias", shape, module) if spec.has_bias else None
        ins = [one for one in (x, weight, None if spec.type == "rmsnorm" else bias) if one is not None]
        shapes = [(one.shape, one.dtype) for one in ins]

        def dense(tensor: Tensor) -> Tensor | None:
            copied = self.choices.workspace and not tensor.is_contiguous
            return graph.new(tensor.shape, tensor.dtype) if copied else None

        def back(g: Tensor, needs: Needs, x: Tensor, *_: Tensor) -> Sequence[Gradient]:
            copies = dense(g), dense(x)
            made = [graph.new(*made) if need else None for made, need in zip(shapes, needs, strict=True)]
            del copies
            return made

        copy = dense(x)
        out = graph.new(x.shape, x.dtype)
        statistics = [graph.new(rows, FLOAT32) for _ in range(2 if spec.type == "layernorm" else 1)]
        del copy
        made = record(graph, "norm", ins, out, back, x, *statistics, *([] if weight is None else [weight]))
        return self.t.add(made, bias) if spec.type == "rmsnorm" and bias is not None else made

    # --- gated activations ------------------------------------------------------------------------------------------

    @compared(BY_TORCH)
    def do_act(self, step: Step) -> None:
        if self.choices.compiled and self._in_this_module("mul", step.outs[0]):
            self.bind(step.outs[0], self.get(step.ins[0]))  # the product reads the gate itself
        else:
            super().do_act(step)

    @compared(BY_TORCH)
    def do_mul(self, step: Step) -> None:
        """act(gate) · up, as the partitioner of torch.compile keeps it: a pointwise result is computed again."""
        graph = self.graph
        if not (self.choices.compiled and any(self._made_by_act(value) for value in step.ins)):
            super().do_mul(step)
            return
        gate, up = (self.get(value) for value in step.ins)
        out, shapes = self.t.like(gate, up), [(operand.shape, operand.dtype) for operand in (gate, up)]

        def back(g: Tensor, needs: Needs, *_: Tensor) -> Sequence[Gradient]:
            return [
                graph.new(*shape_and_dtype) if need else None
                for shape_and_dtype, need in zip(shapes, needs, strict=True)
            ]

        self.set(step.outs[0], record(graph, "glu", (gate, up), out, back, gate, up))

    def _in_this_module(self, verb: str, value: Value) -> bool:
        """Whether a step of the module that runs reads a value under that verb."""
        items = self.frames[-1].scope.items
        return any(isinstance(item, Step) and item.verb == verb and value in item.ins for item in items)

    def _made_by_act(self, value: Value) -> bool:
        items = self.frames[-1].scope.items
        return any(isinstance(item, Step) and item.verb == "act" and value in item.outs for item in items)

    # --- the loss ---------------------------------------------------------------------------------------------------

    @compared(BY_TORCH)
    def do_linear(self, step: Step) -> None:
        chunked = self.choices.cross_entropy in ("chunked", "split") and self.trained and self.graph.enabled
        if not (chunked and step.outs[0] is self.result):
            super().do_linear(step)
            return
        if self.has_adapter(step):
            raise self.unsupported(
                f"--cross-entropy {self.choices.cross_entropy} computes the product itself; expected no adapter on it",
                step.name,
            )
        bias = self.weight(f"{step.name}.bias", (step.outs[0].width,)) if step.options["bias"] else None
        self.head = (self.matrix(step), bias)
        self.bind(step.outs[0], self.flat(step.ins[0]))

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self.choices.cross_entropy == "fused":
            read = DTYPES[self.choices.logits_dtype or logits.dtype.name]
            return self._over_logits(self.t.flatten(self.t.to(logits, read), 0, 1), labels)
        if self.head is not None:
            (weight, bias), self.head = self.head, None
            if self.choices.cross_entropy == "split":
                return self._chunk_by_chunk(logits, weight, bias, labels)
            return self._in_chunks(self.t.flatten(logits, 0, 1), weight, bias, labels)
        if self.choices.compiles_loss:
            read = DTYPES[self.choices.logits_dtype or logits.dtype.name]
            return self._compiled_loss(self.t.flatten(self.t.to(logits, read), 0, 1))
        return super().loss(logits, labels)

    @compared(COMPILED, compiled=True)
    def _compiled_loss(self, logits: Tensor) -> Tensor:
        """The cross-entropy of logits [tokens, vocabulary] under torch.compile: of each row, two numbers are kept."""
        graph, rows = self.graph, (logits.shape[0], 1)
        highest, total, out = graph.new(rows, FLOAT32), graph.new(rows, FLOAT32), graph.new((), FLOAT32)
        shape, dtype = logits.shape, logits.dtype

        def back(g: Tensor, _: Needs, *__: Tensor) -> Sequence[Gradient]:
            return (graph.new(shape, dtype),)

        return record(graph, "cross_entropy", (logits,), out, back, logits, highest, total)

    @compared(LIGER, cross_entropy="fused")
    def _over_logits(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Source: linkedin/Liger-Kernel 0.8.2, ops/cross_entropy.py: the forward pass writes the gradient over the
        logits, and the host reads how many labels count and whether they are within the vocabulary.
        """
        t = self.t
        losses = t.new(logits.shape[:1], logits.dtype)
        counted = t.compare(labels)
        t.new((), INT64)
        for _ in ("max", "min"):
            within = t.like(labels)
            t.new((), INT64)
            del within
        out = t.new((), logits.dtype)
        del losses, counted
        return record(self.graph, "cross_entropy", (logits,), out, lambda g, _, gradient: (gradient,), logits)

    @compared(CHUNKS_KEPT, cross_entropy="split")
    def _chunk_by_chunk(self, x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor) -> Tensor:
        """Source: lit_gpt/lora.py, `GPT.forward`, and lit_gpt/utils.py, `chunked_cross_entropy`; torchtune/modules/
        transformer.py, `chunked_output`, and modules/loss/ce_chunked_output_loss.py.

        x: the input of the output head, [batch, tokens, hidden]. weight, bias: the head's.
        """
        t, (batch, tokens) = self.t, x.shape[:2]
        size = self.choices.loss_chunk or ceil_div(tokens, CHUNKS)
        read = DTYPES[self.choices.logits_dtype or (x.dtype if self.choices.compiles_loss else FLOAT32).name]
        sizes = [min(size, tokens - at) for at in range(0, tokens, size)]
        assert self.result is not None
        vocabulary = self.result.width
        chunks = [self.product(part, weight, bias, vocabulary) for part in t.split(x, sizes, 1)]
        if self.choices.keeps_logits:
            self.logits = chunks = [t.to(chunk, read) for chunk in chunks]
        total: Tensor | None = None
        for chunk in chunks:
            rows = t.flatten(t.slice(t.reshape(labels, (batch, tokens)), chunk.shape[1], 1))
            whole = t.flatten(t.to(chunk, read), 0, 1)
            loss = self._compiled_loss(whole) if self.choices.compiles_loss else self.cross_entropy(whole, rows)
            del whole
            total = loss if total is None else t.add(total, loss)
        assert total is not None
        return total

    @compared(LIGER, cross_entropy="chunked")
    def _in_chunks(self, x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor) -> Tensor:
        """Source: linkedin/Liger-Kernel 0.8.2, ops/fused_linear_cross_entropy.py: gradients are made in the forward
        pass. A chunk's logits, over which their gradient is written, are still named while those of the next are made.

        x: the input of the output head, [tokens, hidden]. weight, bias: the head's.
        """
        t, graph = self.t, self.graph
        tokens, chunks = x.shape[0], ceil_div(weight.shape[0], x.shape[1])
        size = 1 << (ceil_div(tokens, chunks) - 1).bit_length()  # the next power of two
        ins = [tensor for tensor in (x, weight, bias) if tensor is not None]
        gradients = [t.like(tensor) if tensor.needs_grad or tensor is bias else None for tensor in ins]
        losses, counted = t.new((tokens,), FLOAT32), t.compare(labels)
        t.new((), INT64)
        turned: Tensor | None = None
        with graph.no_grad():
            for at in range(0, tokens, size):
                part = t.slice(x, min(size, tokens - at), 0)
                logits = t.product(part, t.transpose(weight, 0, 1))
                if bias is not None:
                    logits = t.add(logits, bias)
                gradient = logits
                t.product(gradient, weight)
                if weight.needs_grad:
                    turned = t.transpose(gradient, 0, 1)
                    t.to(t.product(turned, part), FLOAT32)
                if bias is not None:
                    t.new(bias.shape, gradient.dtype)
            out = t.new((), FLOAT32)
            del part, logits, gradient
        del losses, counted, turned
        present = [tensor for tensor in gradients if tensor is not None]
        wanted = [tensor is not None for tensor in gradients]

        def back(g: Tensor, _: Needs, *saved: Tensor) -> Sequence[Gradient]:
            left = iter(saved)
            return [next(left) if want else None for want in wanted]

        del gradients
        return record(graph, "linear_cross_entropy", ins, out, back, *present)
