"""The embedding before the layers, and the loss after them.

Sources: Megatron-LM, megatron/core/models/common/embeddings/language_model_embedding.py and
megatron/core/tensor_parallel/cross_entropy.py; TransformerEngine, transformer_engine/pytorch/cross_entropy.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....flow.program import Scope, Step
from ....flow.value import Value
from ....simulator.autograd import record
from ....simulator.checkpoint import Run
from ....simulator.layer_pattern import layer_kinds, shortened
from ....simulator.lowering import Frame
from ....simulator.tensor import BFLOAT16, BOOL, FLOAT32, INT64, Gradient, Needs, Tensor
from .elementwise import ElementwiseKernels


class HeadKernels(ElementwiseKernels):
    """Tables, what follows the embedding, and losses."""

    def do_table(self, step: Step) -> None:
        by, out = step.options["by"], step.outs[0]
        weight = self.shared_table("table", step) if by == "ids" else self.positions(step)
        rows, shape = self.rows(out), weight.shape
        ids = self.graph.new((rows, 1), INT64) if by == "ids" else None
        embeddings = self.new(rows, shape[1])
        saved = [] if ids is None else [ids]
        self.node(
            "embedding",
            (weight,),
            [embeddings],
            lambda saved_tensors, g, needs_input_grad: [self.graph.new(shape, g.dtype)],
            *saved,
        )
        del saved
        self.bind(out, self.enter_layers(embeddings) if self.in_multi_token_prediction else embeddings)

    def do_unread_table(self, step: Step) -> None:
        self.shared_table("table", step)

    def positions(self, step: Step) -> Tensor:
        """The table of learned positions: both halves of an encoder-decoder have one (t5_model.py, `embedding`)."""
        assert step.weight is not None
        key = "", "positions", self.extent(step.weight.ins), self.extent(step.weight.out)
        if key not in self.weights:
            self.weights[key] = self.with_role("positions", lambda: self.table(step))
        return self.weights[key]

    def layers(self, kinds: list[Scope]) -> None:
        """What enters the first layer of a model comes from its embedding, and is turned to [tokens, batch]."""
        takes = kinds[0].takes
        assert takes is not None
        if not self.has_entry:
            x = self.get(takes)
            self._leave(takes)
            embeddings = self.enter_layers(x)
            del x
            self.values[id(takes)] = embeddings
            del embeddings
        if kinds[0].about.get("kind") != "mtp":
            self.run_layers(kinds)
            return
        last, storage = self.get(takes), takes.storage
        super().layers(kinds)
        self.bind(storage, last)  # the output layer reads it after them

    def enter_layers(self, x: Tensor) -> Tensor:
        """[batch, tokens] → [tokens, batch], this rank's tokens, dropout."""
        choices, graph = self.rank_choices, self.graph
        shape = x.shape
        if self.run_config.batch != 1:
            x = record(graph, "transpose", (x,), self.like(x), lambda g, _: (g,))
        if choices.sequence_parallel:
            full_shape, rows = x.shape, self.local_rows(x.shape[0])
            local_rows = self.new(rows, shape[1])
            x = record(graph, "scatter", (x,), local_rows, lambda g, _: (graph.new(full_shape, g.dtype),))
            del local_rows
        return self.dropout(x) if choices.hidden_dropout > 0 else x

    def run_layers(self, kinds: list[Scope]) -> None:
        """Layers, of which some run again in the backward pass: groups of equal numbers of them, or the first ones
        (core/transformer/transformer_block.py, `_checkpointed_forward`).
        """
        method, size = self.rank_choices.recompute, self.rank_choices.recompute_layers
        if method == "none":
            super().layers(kinds)
            return
        takes, gives = kinds[0].takes, kinds[-1].gives
        assert takes is not None
        assert gives is not None
        if any(
            value.rows != takes.rows for kind in kinds for step in kind.steps() for value in self._encoder_inputs(step)
        ):
            raise self.unsupported(
                "no kernels for layers that run again and read an encoder; expected no recomputation"
            )
        hidden = self.get(takes)
        self._leave(takes)
        order = shortened(list(layer_kinds(kinds)), self.run_only.get(self.stack_number))
        self.stack_number += 1
        start = 0
        while start < len(order):
            is_recomputed = method == "uniform" or start < size
            end = min(len(order), start + (size if method == "uniform" else 1))
            turns = [Frame(order[i], layer_index=self.below + i, owner=self.below + i) for i in range(start, end)]
            layer_input = hidden
            del hidden
            hidden = (
                self.checkpoint(self._layer_group(turns), [layer_input])
                if is_recomputed
                else self.layer(turns[0], layer_input)
            )
            del layer_input
            start = end
        self.values[id(gives)] = hidden

    def _encoder_inputs(self, step: Step) -> list[Value]:
        """What attention reads beside queries."""
        return list(step.ins[1:2]) if step.verb == "attention" else []

    def _layer_group(self, turns: list[Frame]) -> Run:
        """A function that runs these layers, now or in the backward pass."""
        above = [Frame(outer.scope, layer_index=outer.layer_index, owner=outer.owner) for outer in self.frames]

        def run(arguments: Sequence[Tensor]) -> Tensor:
            before = self.values, self.bound, self.frames, self.memo
            self.values, self.bound, self.frames, self.memo = {}, {}, list(above), {}
            try:
                hidden = arguments[0]
                for frame in turns:
                    layer_input = hidden
                    del hidden
                    hidden = self.layer(
                        Frame(frame.scope, layer_index=frame.layer_index, owner=frame.owner), layer_input
                    )
                    del layer_input
                return hidden
            finally:
                self.values, self.bound, self.frames, self.memo = before

        return run

    # --- tokens further ahead ----------------------------------------------------------------------------------------

    def _look_for_readers(self, scope: Scope, module: Scope) -> None:
        """Modules of multi-token prediction run, with their losses, before the output layer."""
        ahead = [item for item in scope.items if isinstance(item, Scope) and item.about.get("kind") == "mtp"]
        if ahead:
            heads = [item for item in scope.items if isinstance(item, Scope) and item.about.get("kind") == "lm_head"]
            moved = [*ahead, *heads]
            scope.items = [*(item for item in scope.items if item not in moved), *moved]
        super()._look_for_readers(scope, module)

    def do_also(self, step: Step) -> None:
        """The loss of tokens further ahead. Their logits are named until the loss of the next token is there."""
        logits = self.get(step.ins[0])
        self.further.append(self.loss_of(logits))
        self.logits = [logits.detached()]

    def do_linear(self, step: Step) -> None:
        if (
            self.in_multi_token_prediction
            and self.frames[-1].scope.about.get("kind") == "mtp"
            and not self.is_output(step)
        ):
            self.bind(step.outs[0], self._project_embedding_and_hidden(step, self.take(step, step.ins[0])))
        else:
            super().do_linear(step)

    def _project_embedding_and_hidden(self, step: Step, x: Tensor) -> Tensor:
        """The projection of an embedding beside a hidden state, divided by its outputs, which are gathered
        (multi_token_prediction.py, `_concat_embeddings`). A rank's tokens are a view of all of them.
        """
        choices, graph, width = self.rank_choices, self.graph, step.outs[0].width
        rows = x.shape[0]
        weight, _ = self.linear_weights(step, width // choices.tensor, "column")
        projected = self.engine_column_linear(x, weight, None, [], None)
        if choices.tensor > 1:
            part, gathered = projected.shape, self.new(projected.shape[0], width)
            projected = record(graph, "gather", (projected,), gathered, lambda g, _: (graph.new(part, g.dtype),))
            del gathered
        if not choices.sequence_parallel:
            return projected
        full_shape = projected.shape
        view = Tensor((rows, width), projected.dtype, projected.storage)
        return record(graph, "scatter", (projected,), view, lambda g, _: (graph.new(full_shape, g.dtype),))

    def output(self, step: Step, x: Tensor) -> Tensor:
        """With tokens further ahead all hidden states are joined, and their losses enter the graph before the head."""
        if self.in_multi_token_prediction or self.further:
            x = self.dense_copy(x)
        if self.further and not self.in_multi_token_prediction:
            further, self.further = self.further, []
            read, shapes = Tensor(x.shape, x.dtype, x.storage), [tensor.shape for tensor in further]
            new = self.graph.new
            self.node(
                "loss_scaler",
                (x, *further),
                [read],
                lambda saved_tensors, g, needs_input_grad: [g, *(new(s, FLOAT32) for s in shapes)],
            )
            del further
            x = read
            del read
        return super().output(step, x)

    # --- losses ------------------------------------------------------------------------------------------------------

    def loss_of(self, logits: Tensor) -> Tensor:
        """The loss of each token, which the caller sums up."""
        if self.rank_choices.loss == "te":
            return self._engine_loss(logits)
        return self._core_loss(logits)

    def _engine_loss(self, logits: Tensor) -> Tensor:
        """The gradient is written over the logits in the forward pass."""
        rows = logits.shape[0]
        loss, sums = self.new(rows, 1, FLOAT32), self.new(rows, 3, FLOAT32)
        del sums

        def backward(saved_tensors: list[Tensor | None], g: Tensor, needs_input_grad: Needs) -> Sequence[Gradient]:
            return [saved_tensors[0]]

        self.node("cross_entropy", (logits,), [loss], backward, logits)
        return loss

    def _core_loss(self, logits: Tensor) -> Tensor:
        """The logits are copied to float32, in which the softmax is computed in place; so is the gradient."""
        graph, (rows, width) = self.graph, logits.shape
        fused = self.rank_choices.loss == "native"
        logits_fp32 = graph.new((rows, width), FLOAT32)
        highest = self.statistics(rows)
        mask, target = graph.new((rows, 1), BOOL), graph.new((rows, 1), INT64)
        index = graph.new((rows, 1), INT64)
        chosen = self.statistics(rows)
        total = self.statistics(rows)
        del highest, index
        loss = self.statistics(rows)
        del chosen, total

        def backward(saved_tensors: list[Tensor | None], g: Tensor, needs_input_grad: Needs) -> Sequence[Gradient]:
            if fused:
                copied = graph.new((rows, width), FLOAT32)
                logits_gradient = graph.new((rows, width), BFLOAT16)
                del copied
                return [logits_gradient]
            return [saved_tensors[0]]

        self.node("cross_entropy", (logits,), [loss], backward, logits_fp32, mask, target)
        return loss
