"""Norms and linear layers: those of Transformer Engine, and Megatron-Core's own.

Sources: TransformerEngine, transformer_engine/pytorch/module/layernorm_linear.py, linear.py and base.py; Megatron-LM,
megatron/core/tensor_parallel/layers.py and mappings.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....algebra import Number
from ....components.norm import Norm
from ....flow.axis import Axis, Beside
from ....flow.program import Step
from ....simulator.lowering import Path
from ....simulator.tensor import Gradient, Needs, Tensor
from .lowering import COLUMNS, RankKernels


class LinearKernels(RankKernels):
    """Products that tensor parallelism divides by their outputs (column) or by their inputs (row)."""

    # --- norms -------------------------------------------------------------------------------------------------------

    def do_norm(self, step: Step) -> None:
        value, out = step.ins[0], step.outs[0]
        readers = [reader for reader, _ in self.readers.get(id(out.storage), ())]
        if self.how.transformer_engine and readers and all(map(self.norms_its_input, readers)):
            self.waiting[id(out.storage)] = step, self.module_path()
            self.bind(out, self.taken(step, value))
            return
        x = self.taken(step, value)
        count = x.shape[0] * (value.width // self.extent(step.options["over"]))
        self.bind(out, self.normed(x, step, self.module_path(), count))

    def norm_weights(self, step: Step, module: Path) -> list[Tensor]:
        spec: Norm = step.options["spec"]
        shape = (self.extent(step.options["over"]),)
        names = [name for name, there in (("weight", spec.weight), ("bias", spec.has_bias)) if there]
        return [self.weight(f"{step.name}.{name}", shape, module) for name in names]

    def normed(self, x: Tensor, step: Step, module: Path, count: Number) -> Tensor:
        """A norm by itself keeps its input and one or two numbers of each row. count: the rows that are normed."""
        weights, spec = self.norm_weights(step, module), step.options["spec"]
        x = self.dense(x)
        out = self.like(x)
        statistics = [self.statistics(count) for _ in range(2 if spec.type == "layernorm" else 1)]
        shapes, shape = [w.shape for w in weights], x.shape

        def back(kept: list[Tensor | None], g: Tensor, needs: Needs) -> Sequence[Gradient]:
            return [self.graph.new(one, g.dtype) for one in (shape, *shapes)]

        self.node("norm", (x, *weights), [out], back, x, *statistics)
        return out

    def norms_its_input(self, step: Step) -> bool:
        """Whether a norm whose output a step reads is one module with it: with column products, but for those of
        attention to another sequence (core/models/T5/t5_spec.py).
        """
        attends = (one for one in self.within[id(step)].items if isinstance(one, Step) and one.verb == "attention")
        return self.is_column(step) and all(one.ins[0].rows == one.ins[1].rows for one in attends)

    # --- linear layers -----------------------------------------------------------------------------------------------

    def is_column(self, step: Step) -> bool:
        return step.verb == "linear" and step.weight is not None and divided(step.weight.out[0])

    def is_row(self, step: Step) -> bool:
        return step.verb == "linear" and step.weight is not None and divided(step.weight.ins[0])

    def is_output(self, step: Step) -> bool:
        return step.outs[0].axes[0].name == "vocab"

    @property
    def is_ahead(self) -> bool:
        """Whether a module of multi-token prediction runs."""
        return any(frame.scope.about.get("kind") == "mtp" for frame in self.frames)

    def shared(self, role: str, step: Step) -> Tensor:
        """The table of the embedding or of the output layer, which other steps may use too."""
        assert step.weight is not None
        key = "", id(step.weight)
        if key not in self.weights:
            width = step.weight.ins if step.weight.out[0].name == "vocab" else step.weight.out
            rows = step.weight.out if step.weight.out[0].name == "vocab" else step.weight.ins
            shape = self.extent(rows), self.extent(width)
            self.weights[key] = self.named(role, lambda: self.weight(f"{step.name}.weight", shape))
        return self.weights[key]

    def do_linear(self, step: Step) -> None:
        out = step.outs[0]
        if id(step) in self.pending:
            self.bind(out, self.pending.pop(id(step)))
            return
        x = self.taken(step, step.ins[0])
        assert step.weight is not None
        if self.is_output(step):
            logits = self.output(step, x)
            del x
            self.bind(out, self.t.scale(logits) if self.how.scales_logits else logits)
        elif self.is_column(step):
            self._columns(step, x)
        elif self.is_row(step):
            self.bind(out, self.row(step, x))
        else:
            self.bind(out, self.plain(step, x))

    def together(self, step: Step) -> list[Step]:
        """The column products of one module that read the same value: one product of all of their outputs."""
        module = self.within[id(step)]
        return [
            one
            for one, where in self.readers[id(step.ins[0].storage)]
            if where is module and self.is_column(one) and one.ins[0].rows == step.ins[0].rows
        ]

    def _columns(self, step: Step, x: Tensor) -> None:
        group = self.together(step)
        widths = [one.outs[0].width for one in group]
        made = self.column(step, x, sum(widths[1:], widths[0]))
        parts = self.parts(group, made, widths) if len(group) > 1 else [made]
        del made, x
        for one, part in zip(group, parts, strict=True):
            if one is step:
                self.bind(one.outs[0], part)
            else:
                self.pending[id(one)] = part

    def parts(self, group: list[Step], made: Tensor, widths: Sequence[Number]) -> list[Tensor]:
        """The parts of a product of several layers; an activation reads them as one."""
        return [made for _ in widths]

    def weights_of(
        self, step: Step, width: Number, role: str, bias: bool | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """The weight and the bias of a linear layer. width: its outputs, with those of layers that are one with it."""
        shape = width, step.ins[0].width
        module = self.module_path()
        weight = self.named(role, lambda: self.weight(f"{step.name}.weight", shape, module))
        has = step.options["bias"] if bias is None else bias
        named = self.named(role, lambda: self.weight(f"{step.name}.bias", (width,), module)) if has else None
        return weight, named

    def column(self, step: Step, x: Tensor, width: Number) -> Tensor:
        """The product whose outputs are divided, after the norm that waits for it, if one does."""
        waiting = self.waiting.get(id(step.ins[0].storage))
        norm = [] if waiting is None else self.norm_weights(*waiting)
        weight, bias = self.weights_of(step, width, "column")
        if not self.how.transformer_engine:
            return self.core_column(x, weight, bias, self.adds_itself(step))
        apart = None if bias is None or self.adds_itself(step) else bias
        self.held_bias = apart
        return self.engine_column(
            x, weight, bias if apart is None else None, norm, None if waiting is None else waiting[0]
        )

    def adds_itself(self, step: Step) -> bool:
        """Whether a column product adds its bias; before an activation the activation does."""
        return step.weight is None or step.weight.out[0].name != "ffn"

    def engine_column(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, norm: list[Tensor], waiting: Step | None
    ) -> Tensor:
        """LayerNormLinear, or Linear. It keeps its input, and its own rows of the norm's output."""
        how, divided = self.how, self.how.sequence_parallel
        local, n_in = x.shape
        rows = local * how.tensor if divided else local
        statistics: list[Tensor] = []
        read = x
        if waiting is not None:
            read = self.like(x)
            two = waiting.options["spec"].type == "layernorm"
            statistics = [self.statistics(local) for _ in range(2 if two else 1)]
        gathered = self.new(rows, n_in) if divided and not how.user_buffers else None
        self.overlapped_product()
        out = self.new(rows, weight.shape[0])
        del gathered
        ins = [x, *norm, weight, *([] if bias is None else [bias])]
        of_norm, of_bias = [one.shape for one in norm], None if bias is None else bias.shape
        shape, with_norm = x.shape, waiting is not None

        def back(kept: list[Tensor | None], g: Tensor, needs: Needs) -> Sequence[Gradient]:
            new, elsewhere = self.new, how.user_buffers
            gathered = new(rows, n_in) if divided and not elsewhere else None
            self.overlapped_product()
            given: Tensor | None = None if elsewhere else new(rows, n_in)
            scattered = new(local, n_in) if divided and not elsewhere else None
            of_weight = self.weight_gradient(weight)
            if elsewhere:  # a copy of what the buffer has after the product for the weight
                given = new(local, n_in)
            bias = [] if of_bias is None else [self.graph.new(of_bias, g.dtype)]
            kept[1 if with_norm else 0] = None  # clear_tensor_data(ln_out)
            del gathered
            if not with_norm:
                return [given if scattered is None else scattered, of_weight, *bias]
            made = self.graph.new(shape, g.dtype)
            del given, scattered
            return [made, *(self.graph.new(one, g.dtype) for one in of_norm), of_weight, *bias]

        saved = [x, read, *statistics] if with_norm else [x]
        del read
        self.node("norm_linear" if with_norm else "linear", ins, [out], back, *saved)
        return out

    def core_column(self, x: Tensor, weight: Tensor, bias: Tensor | None, adds: bool) -> Tensor:
        """ColumnParallelLinear: rows are gathered in a buffer that all such layers share."""
        divided, (local, n_in) = self.how.sequence_parallel, x.shape
        rows = local * self.how.tensor if divided else local
        if divided:
            self.stays.gathered(2 * rows * n_in)
        self.stays.product("forward")
        out = self.new(rows, weight.shape[0])
        self.held_bias = None if adds else bias
        if bias is not None and adds:
            out = self.like(out)
        own = bias if adds else None

        def back(kept: list[Tensor | None], g: Tensor, needs: Needs) -> Sequence[Gradient]:
            if divided:
                self.stays.gathered(2 * rows * n_in)
            self.stays.product("backward")
            given = self.new(rows, n_in)
            scattered = self.new(local, n_in) if divided else None
            of_weight = self.weight_gradient(weight)
            of_bias = [] if own is None else [self.graph.new(own.shape, g.dtype)]
            return [given if scattered is None else scattered, of_weight, *of_bias]

        self.node("column_linear", (x, weight, *([] if own is None else [own])), [out], back, x)
        return out

    def row(self, step: Step, x: Tensor) -> Tensor:
        """The product whose inputs are divided: its output is summed over ranks. The next addition adds the bias."""
        weight, self.row_bias = self.weights_of(step, step.outs[0].width, "row")
        if not self.how.transformer_engine:
            return self.core_row(x, weight)
        divided, (rows, n_in), n_out = self.how.sequence_parallel, x.shape, weight.shape[0]
        elsewhere = self.how.user_buffers
        self.overlapped_product()
        out = self.new(self.local(rows) if elsewhere else rows, n_out)
        if divided and not elsewhere:
            out = self.new(self.local(rows), n_out)

        def back(kept: list[Tensor | None], g: Tensor, needs: Needs) -> Sequence[Gradient]:
            gathered = self.new(rows, n_out) if divided and not elsewhere else None
            self.overlapped_product()
            given = self.new(rows, n_in)
            if elsewhere:
                self.stays.engine_product()
            of_weight = self.weight_gradient(weight)
            kept[0] = None  # clear_tensor_data(inputmat_total)
            del gathered
            return [given, of_weight]

        self.node("row_linear", (x, weight), [out], back, x)
        return out

    def core_row(self, x: Tensor, weight: Tensor) -> Tensor:
        """RowParallelLinear; the sum over ranks is a function of its own."""
        divided, (rows, n_in), n_out = self.how.sequence_parallel, x.shape, weight.shape[0]
        self.stays.product("forward")
        out = self.new(rows, n_out)

        def back(kept: list[Tensor | None], g: Tensor, needs: Needs) -> Sequence[Gradient]:
            self.stays.product("backward")
            return [self.new(rows, n_in), self.weight_gradient(weight)]

        self.node("row_linear", (x, weight), [out], back, x)
        if not divided:
            return out
        whole, out = out, self.new(self.local(rows), n_out)
        self.node("reduce_scatter", (whole,), [out], lambda kept, g, needs: [self.new(rows, n_out)])
        return out

    def plain(self, step: Step, x: Tensor) -> Tensor:
        """A product that every rank computes whole."""
        weight, bias = self.weights_of(step, step.outs[0].width, "matrix")
        (rows, n_in), engine = x.shape, self.how.transformer_engine
        self.product_of(engine, "forward")
        out = self.new(rows, weight.shape[0])

        def back(kept: list[Tensor | None], g: Tensor, needs: Needs) -> Sequence[Gradient]:
            self.product_of(engine, "backward")
            given = [self.new(rows, n_in), self.weight_gradient(weight)]
            return [*given, *([] if bias is None else [self.graph.new(bias.shape, g.dtype)])]

        self.node("linear", (x, weight, *([] if bias is None else [bias])), [out], back, x)
        return out

    def overlapped_product(self) -> None:
        """A product that may overlap with what a tensor group sends, in buffers outside of torch's allocator
        (TransformerEngine, common/comm_gemm_overlap/userbuffers/userbuffers-host.cpp, `cuMemCreate`).
        """
        if self.how.user_buffers:
            self.stays.overlapped_product()
        else:
            self.stays.engine_product()

    def product_of(self, engine: bool, thread: str) -> None:
        if engine:
            self.stays.engine_product()
        else:
            self.stays.product(thread)

    def output(self, step: Step, x: Tensor) -> Tensor:
        """The logits of the rank's part of the vocabulary, by a product of torch."""
        weight = self.shared("head", step)
        bias = (
            self.named("head", lambda: self.weight(f"{step.name}.bias", (step.outs[0].width,)))
            if step.options["bias"]
            else None
        )
        divided, (local, n_in) = self.how.sequence_parallel, x.shape
        rows = local * self.how.tensor if divided else local
        if divided:
            self.stays.gathered(2 * rows * n_in)
        self.stays.product("forward")
        out = self.new(rows, weight.shape[0])
        if bias is not None:
            out = self.like(out)

        entered = None if self.how.deferred is None else self.stays.entered

        def back(kept: list[Tensor | None], g: Tensor, needs: Needs) -> Sequence[Gradient]:
            defers, read = self.stays.defers(self.how.deferred), kept[0]
            if defers and read is not None:
                self.stays.deferred.append((read, g, entered))
            elif divided:
                self.stays.gathered(2 * rows * n_in)
            del read
            self.stays.product("backward")
            given = self.new(rows, n_in)
            scattered = self.new(local, n_in) if divided else None
            of_weight = self.weight_gradient(weight)
            of_bias = [] if bias is None else [self.graph.new(bias.shape, g.dtype)]
            return [given if scattered is None else scattered, of_weight, *of_bias]

        self.node("output_layer", (x, weight, *([] if bias is None else [bias])), [out], back, x)
        return out


def divided(axis: Axis | Beside) -> bool:
    """Whether tensor parallelism divides an axis; of several side by side, each by itself."""
    if isinstance(axis, Beside):
        return all(divided(part[0]) for part in axis.parts)
    return axis.name in COLUMNS
