"""Mamba-2 on a rank: Megatron-Core's mixer with the kernels of mamba_ssm.

Source: Megatron-LM, megatron/core/ssm/mamba_mixer.py, `_ssm_training`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ....algebra import Number, exact_div
from ....flow.program import Alternatives, Scope, Step
from ....ops import ChunkedScan
from ....simulator.autograd import record
from ....simulator.published import mamba_ssm
from ....simulator.strides import Shape
from ....simulator.tensor import FLOAT32, Tensor
from .mla import LatentKernels


class MambaKernels(LatentKernels):
    """A mixer as one: its convolution, scan and gate are one function, its norm another."""

    def whole(self, scope: Scope) -> Callable[[], None] | None:
        forms = [item for item in scope.items if isinstance(item, Alternatives)]
        scans = [step for item in forms for step in next(iter(item.branches.values())).steps()]
        scan = next((step for step in scans if isinstance(step.op, ChunkedScan)), None)
        if scan is None:
            return super().whole(scope)
        return lambda: self._run_mixer(scope, scan)

    def _run_mixer(self, scope: Scope, scan: Step) -> None:
        t, op = self.t, scan.op
        assert isinstance(op, ChunkedScan)
        steps = {step.name: step for step in scope.items if isinstance(step, Step) and step.name}
        entering, leaving, conv = steps["in_proj"], steps["out_proj"], steps["conv1d"]
        self.do_linear(entering)
        value = entering.outs[0]
        zxbcdt = self.get(value)
        self.forget(value.storage)
        batch, ranks = self.run_config.batch, self.rank_choices.context
        inner, channels = op.heads * op.head_dim, conv.outs[0].width
        groups = exact_div(exact_div(channels - inner, 2), op.state)
        group_copies, local_groups = (
            max(1, ranks // groups),
            max(1, groups // ranks),
        )  # copies of a group; groups of this rank
        if ranks > 1:
            parts = (inner, inner, groups * op.state, groups * op.state, op.heads)
            zxbcdt = self.exchange_to_heads(zxbcdt, parts, group_copies)
        rows, width = zxbcdt.shape
        zxbcdt = t.reshape(self.swap_batch_and_tokens(zxbcdt), (batch, rows // batch, width))
        filters = self.weight("conv1d.weight", (channels, 1, conv.options["kernel"]))
        bias = self.weight("conv1d.bias", (channels,)) if conv.options["bias"] else None
        slopes, powers, skip = (self.weight(name, (op.heads,)) for name in ("dt_bias", "A_log", "D"))
        if ranks > 1:
            local_channels = exact_div(inner, ranks) + 2 * local_groups * op.state
            filters = self.parameter_shard(filters, (local_channels, 1, conv.options["kernel"]))
            bias = None if bias is None else self.parameter_shard(bias, (local_channels,))
            slopes, powers, skip = (self.parameter_shard(x, (op.heads // ranks,)) for x in (slopes, powers, skip))
        steepness = t.to(slopes, FLOAT32)
        decay = t.scale(t.exp(t.to(powers, FLOAT32)), "neg")
        y = mamba_ssm.mamba_split_conv1d_scan_combined(
            t,
            zxbcdt,
            filters,
            bias,
            steepness,
            decay,
            skip,
            op.chunk,
            op.head_dim,
            local_groups,
            None,
            None,
            None,
        )
        del zxbcdt
        y = self.swap_batch_and_tokens(t.reshape(y, (rows, exact_div(inner, ranks))))
        if ranks > 1:
            y = self.exchange_to_tokens(y, inner)
        if "norm" in steps:
            y = mamba_ssm.rmsnorm_fn(t, y, self.weight("norm.weight", (inner,)), None, groups)
        assert scope.gives is not None or leaving.outs
        self.bind(leaving.outs[0], self.row_linear(leaving, y))

    def exchange_to_heads(self, x: Tensor, parts: Sequence[Number], group_copies: int) -> Tensor:
        """`pre_conv_ssm`: the tokens of all ranks of a sequence, of a part of the heads. Groups that several ranks read
        are repeated (mamba_context_parallel.py).
        """
        ranks, rows = self.rank_choices.context, x.shape[0]
        pieces = self.t.split(x, parts, 1)
        del x
        sent_pieces: list[Tensor] = []
        for i, piece in enumerate(pieces):
            width = parts[i] * (group_copies if i in (2, 3) else 1)
            if width != parts[i]:
                piece = self.reorder("repeat", piece, (rows, width))
            ordered = self.reorder("cat", piece, (rows * ranks, exact_div(width, ranks)))
            sent_pieces.append(self.reorder("all_to_all", ordered, ordered.shape))
            del piece, ordered
        del pieces
        joined = self.t.cat(sent_pieces, 1)
        del sent_pieces
        return self.reorder("balance", joined, joined.shape)

    def exchange_to_tokens(self, x: Tensor, width: Number) -> Tensor:
        """`post_conv_ssm`: all heads again, of this rank's tokens."""
        balanced = self.reorder("balance", x, x.shape)
        del x
        sent = self.reorder("all_to_all", balanced, balanced.shape)
        del balanced
        return self.reorder("cat", sent, (sent.shape[0] // self.rank_choices.context, width))

    def parameter_shard(self, x: Tensor, shape: Shape) -> Tensor:
        """This rank's part of a parameter, whose gradient is of the whole."""
        return self.reorder("slice", x, shape)

    def reorder(self, name: str, x: Tensor, shape: Shape) -> Tensor:
        """A copy in another order; so is its gradient."""
        before, dtype, graph = x.shape, x.dtype, self.graph
        return record(graph, name, (x,), graph.new(shape, dtype), lambda g, _: (graph.new(before, g.dtype),))

    def swap_batch_and_tokens(self, x: Tensor) -> Tensor:
        """[tokens, batch] ↔ [batch, tokens]: a copy, but for a batch of one. So is the gradient a view."""
        return x if self.run_config.batch == 1 else self.dense_copy(x)
