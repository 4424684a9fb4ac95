"""The embedding before the layers, and the loss after them.

Sources: Megatron-LM, megatron/core/models/common/embeddings/language_model_embedding.py and
megatron/core/tensor_parallel/cross_entropy.py; TransformerEngine, transformer_engine/pytorch/cross_entropy.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....flow.program import Scope, Step
from ...autograd import Gradient, Needs, record
from ...tensor import BFLOAT16, BOOL, FLOAT32, INT64, Tensor
from .elementwise import ElementwiseKernels


class HeadKernels(ElementwiseKernels):
    """Tables, what follows the embedding, and losses."""

    def do_table(self, step: Step) -> None:
        by, out = step.how["by"], step.outs[0]
        weight = self.named("table", lambda: self.table(step)) if by == "ids" else self.positions(step)
        rows, shape = self.rows(out), weight.shape
        ids = self.graph.new((rows, 1), INT64) if by == "ids" else None
        made = self.new(rows, shape[1])
        saved = [] if ids is None else [ids]
        self.node("embedding", (weight,), [made], lambda kept, g, needs: [self.graph.new(shape, g.dtype)], *saved)
        self.bind(out, made)

    def positions(self, step: Step) -> Tensor:
        """The table of learned positions: both halves of an encoder-decoder have one (t5_model.py, `embedding`)."""
        assert step.weight is not None
        key = "", "positions", self.extent(step.weight.ins), self.extent(step.weight.out)
        if key not in self.weights:
            self.weights[key] = self.named("positions", lambda: self.table(step))
        return self.weights[key]

    def layers(self, kinds: list[Scope]) -> None:
        """What enters the first layer of a model comes from its embedding, and is turned to [tokens, batch]."""
        takes = kinds[0].takes
        assert takes is not None
        if not self.entered:
            x = self.get(takes)
            self._leave(takes)
            made = self.embedded(x)
            del x
            self.values[id(takes)] = made
            del made
        super().layers(kinds)

    def embedded(self, x: Tensor) -> Tensor:
        """[batch, tokens] → [tokens, batch], this rank's tokens, dropout."""
        how, graph = self.how, self.graph
        shape = x.shape
        if self.sight.batch != 1:
            x = record(graph, "transpose", (x,), self.like(x), lambda g, _: (g,))
        if how.sequence_parallel:
            whole, rows = x.shape, self.local(x.shape[0])
            made = self.new(rows, shape[1])
            x = record(graph, "scatter", (x,), made, lambda g, _: (graph.new(whole, g.dtype),))
            del made
        return self.dropped(x) if how.hidden_dropout > 0 else x

    # --- losses ------------------------------------------------------------------------------------------------------

    def loss_of(self, logits: Tensor) -> Tensor:
        """The loss of each token, which the caller sums up."""
        if self.how.loss == "te":
            return self._engine_loss(logits)
        return self._core_loss(logits)

    def _engine_loss(self, logits: Tensor) -> Tensor:
        """The gradient is written over the logits in the forward pass."""
        rows = logits.shape[0]
        loss, sums = self.new(rows, 1, FLOAT32), self.new(rows, 3, FLOAT32)
        del sums

        def back(kept: list[Tensor | None], g: Tensor, needs: Needs) -> Sequence[Gradient]:
            return [kept[0]]

        self.node("cross_entropy", (logits,), [loss], back, logits)
        return loss

    def _core_loss(self, logits: Tensor) -> Tensor:
        """The logits are copied to float32, in which the softmax is computed in place; so is the gradient."""
        graph, (rows, width) = self.graph, logits.shape
        fused = self.how.loss == "native"
        whole = graph.new((rows, width), FLOAT32)
        highest = self.statistics(rows)
        mask, target = graph.new((rows, 1), BOOL), graph.new((rows, 1), INT64)
        index = graph.new((rows, 1), INT64)
        chosen = self.statistics(rows)
        total = self.statistics(rows)
        del highest, index
        loss = self.statistics(rows)
        del chosen, total

        def back(kept: list[Tensor | None], g: Tensor, needs: Needs) -> Sequence[Gradient]:
            if fused:
                copied = graph.new((rows, width), FLOAT32)
                made = graph.new((rows, width), BFLOAT16)
                del copied
                return [made]
            return [kept[0]]

        self.node("cross_entropy", (logits,), [loss], back, whole, mask, target)
        return loss
