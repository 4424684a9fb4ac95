"""Hashed n-gram embeddings that a layer gates and adds to its residual streams (Qwen4-Exp, DeepSeek-V4.1).

The n-grams that end at a token are hashed to rows of one table, several for each length. Their vectors side by side
give a value, and a key for each stream; the product of key and stream gates the value, and a dilated convolution adds
the values of earlier tokens. transformers: models/qwen4_exp (`Qwen4ExpTextPLELayer`, `Qwen4ExpTextNGramEmbedding`).
DeepSeek-V4.1 calls this an engram and has no convolution. mlx-vlm: models/deepseek_v41 (`Engram`).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from ..flow.axis import Axis
from ..flow.record import Flow
from ..flow.value import Value
from .base import TORCH_WITNESS, Component, KernelSize, ModelProperties, PartWitness, Size
from .norm import Norm, norm_reference
from .runtime import PassState, recurrent_state_class

if TYPE_CHECKING:
    from torch import Tensor, nn


class NgramInput(Component):
    """An n-gram table whose rows are projected to a value and keys, optionally followed by a convolution.

    ngram_rows: the number of rows of the table.
    ngram_heads: the number of rows that are looked up for a token.
    ngram_head_dim: the width of a row.
    streams: the number of residual streams.
    conv_kernel_size: the number of tokens that the convolution reads; None (default) without one.
    dilation: the distance between these tokens, 1 by default.
    norm: the norm on keys, streams and values, of each stream separately.
    """

    formula_source: ClassVar[str] = "Qwen4-Exp 2026"
    witness: ClassVar[PartWitness] = TORCH_WITNESS
    kind: ClassVar[str] = "embedding"

    ngram_rows: Size
    ngram_heads: Size
    ngram_head_dim: Size
    streams: Size
    conv_kernel_size: KernelSize | None = None
    dilation: Size = 1
    norm: Norm

    def flow(self, recorder: Flow, x: Value) -> Value:
        """Records the n-gram term added to each residual stream. x: the streams, [tokens, streams, hidden]."""
        from ..workload.derived_rows import MultipliedRows

        stream_axis, hidden_axis = x.axes
        assert isinstance(stream_axis, Axis)
        ngram_dim, kernel_size = Axis("ngram_dim", self.ngram_head_dim), self.conv_kernel_size
        lookup_rows = MultipliedRows(source_rows=x.rows, rows_per_source=self.ngram_heads)
        ngram_embeddings, _ = recorder.table(
            "embedding",
            Axis("ngrams", self.ngram_rows),
            ngram_dim,
            output_rows=lookup_rows,
            rows_read=self.ngram_heads,
            kind=self.kind,
        )
        ngram_vectors = ngram_embeddings.view(Axis("ngram_heads", self.ngram_heads), ngram_dim, new_rows=x.rows)
        recorder.hold(vectors=ngram_vectors)
        keys = recorder.norm(
            "key_norm", recorder.linear("key_proj", ngram_vectors, *x.axes), self.norm, groups=stream_axis
        )
        recorder.hold(keys=keys)
        queries = recorder.norm("query_norm", x, self.norm, groups=stream_axis)
        recorder.hold(queries=queries)
        gate = recorder.scale(recorder.sum(recorder.mul(keys, queries), stream_axis), hidden_axis.size**-0.5)
        recorder.hold(gate=gate)
        gate = recorder.act(gate, "signed_root")
        recorder.hold(gate=gate)
        gate = recorder.act(gate, "sigmoid")
        ngram_value = recorder.linear("value_proj", ngram_vectors, hidden_axis)
        gated_value = recorder.mul(gate, ngram_value, axes=x.axes)
        recorder.hold(gated=gated_value)
        if kernel_size is None:
            return gated_value
        normed_value = recorder.norm("conv_norm", gated_value, self.norm, groups=stream_axis)
        past_length = (kernel_size - 1) * self.dilation
        recorder.state("conv_state", *x.axes, Axis("kernel", past_length), state_kind="conv_state")
        with recorder.function():
            recorder.hold(x=normed_value)
            padded_rows = recorder.padded(normed_value, past_length, state_name="conv_state")
            recorder.hold(seen=padded_rows)
            conv_output = recorder.conv("conv1d", padded_rows, *x.axes, kernel=kernel_size, groups=x.width, rows=x.rows)
        return recorder.add(gated_value, recorder.act(conv_output, "silu"))

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties.hidden_size)


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn
    from torch.nn import functional as F

    class NgramInputReference(nn.Module):
        """Computes the n-gram term of every residual stream. x: [batch, tokens, streams, hidden] → same shape."""

        def __init__(self, spec: NgramInput, hidden_size: int) -> None:
            super().__init__()
            self.spec = spec
            streams_width = spec.streams * hidden_size
            embedding_width = spec.ngram_heads * spec.ngram_head_dim
            self.embedding = nn.Embedding(spec.ngram_rows, spec.ngram_head_dim)
            self.key_proj = nn.Linear(embedding_width, streams_width, bias=False)
            self.value_proj = nn.Linear(embedding_width, hidden_size, bias=False)
            self.key_norm, self.query_norm = (
                norm_reference(spec.norm, streams_width, group_count=spec.streams) for _ in range(2)
            )
            if spec.conv_kernel_size is None:
                return
            self.conv_norm = norm_reference(spec.norm, streams_width, group_count=spec.streams)
            self.conv1d = nn.Conv1d(
                streams_width,
                streams_width,
                spec.conv_kernel_size,
                groups=streams_width,
                dilation=spec.dilation,
                bias=False,
            )
            self.conv_state: Any = recurrent_state_class()()

        def _convolved_tokens(self, x: Tensor, pass_state: PassState) -> Tensor:
            """Returns the output of a convolution over the last tokens. x: [batch, tokens, width] → same shape."""
            assert self.spec.conv_kernel_size is not None
            past_length = (self.spec.conv_kernel_size - 1) * self.spec.dilation
            stored_rows, token_rows = self.conv_state.load(pass_state), x.transpose(1, 2)
            if stored_rows is None:
                padded_rows = F.pad(token_rows, (past_length, 0))
            else:
                padded_rows = torch.cat([stored_rows[0], token_rows], -1)
            self.conv_state.keep(pass_state, padded_rows[..., padded_rows.shape[-1] - past_length :])
            return self.conv1d(padded_rows).transpose(1, 2)

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            stream_count = self.spec.streams
            token_ids = torch.zeros(*x.shape[:2], self.spec.ngram_heads, dtype=torch.long, device=x.device)
            ngram_vectors = self.embedding(token_ids).flatten(2)
            keys, queries = self.key_norm(self.key_proj(ngram_vectors)), self.query_norm(x.flatten(2))
            gate = (keys * queries).unflatten(-1, (stream_count, -1)).sum(-1, keepdim=True) * x.shape[-1] ** -0.5
            gate = gate.abs().clamp(min=1e-6).sqrt() * gate.sign()
            gated_value: Tensor = gate.sigmoid() * self.value_proj(ngram_vectors)[:, :, None]
            if self.spec.conv_kernel_size is None:
                return gated_value
            conv_output = F.silu(self._convolved_tokens(self.conv_norm(gated_value.flatten(2)), pass_state))
            return gated_value + conv_output.unflatten(-1, (stream_count, -1))

    return NgramInputReference
