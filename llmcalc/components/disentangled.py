"""Disentangled attention: also compares queries with the positions of keys, and keys with the positions of queries.

DeBERTa (He 2020, arXiv:2006.03654, §3.1). Versions 2 and 3 bin the distances and project positions with the query and
key projections of the content (He 2021, arXiv:2111.09543). All layers share one table of relative positions; each layer
projects its rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from .. import ops
from ..algebra import Number
from ..flow.axis import Axis
from ..flow.record import Flow
from ..flow.value import Value
from ..workload.derived_rows import EmbeddingRows
from .base import (
    TORCH_WITNESS,
    AttentionPosition,
    Flag,
    KernelSize,
    LayerProtocol,
    ModelProperties,
    PartWitness,
    Positions,
    StackPart,
    StackPosition,
    check_divisor,
)
from .networks.feed_forward import Activation, activate
from .norm import Norm
from .runtime import PassState

if TYPE_CHECKING:
    from torch import Tensor, nn


class DisentangledScores(AttentionPosition):
    """Disentangled attention scores, (q·k + q·p + k·r) / √(3d), with projected distance embeddings p and r.

    max_relative_positions: the largest distance that has a row of its own.
    position_buckets: the number of distance bins in each direction; by default None, one row for each distance.
    c2p: whether scores include q·p, true by default.
    p2c: whether scores include k·r, true by default.
    share_att_key: whether the query and key projections also make r and p, false by default.
    key_bias: whether the projection that makes p has a bias, true by default.
    within_sequence: whether only distances that occur in the sequence are projected (version 1), false by default.
    """

    witness: ClassVar[PartWitness] = TORCH_WITNESS
    allowed_stacks: ClassVar[tuple[str, ...]] = ("encoder",)
    label: ClassVar[str] = "disentangled"

    type: Literal["disentangled"] = "disentangled"
    max_relative_positions: Positions
    position_buckets: Positions | None = None
    c2p: Flag = True
    p2c: Flag = True
    share_att_key: Flag = False
    key_bias: Flag = True
    within_sequence: Flag = False

    def check_fields(self) -> None:
        if self.share_att_key and not (self.c2p and self.p2c):
            raise ValueError("share_att_key: expected c2p and p2c")
        bucket_count, max_distance = self.position_buckets, self.max_relative_positions
        if bucket_count is not None and (bucket_count < 2 or max_distance - 1 <= bucket_count // 2):
            raise ValueError(
                f"position_buckets: {bucket_count} with max_relative_positions {max_distance}; expected 2 or more, "
                f"half of them fewer than {max_distance - 1}"
            )

    @property
    def span(self) -> Number:
        """The number of relative positions in each direction; the embedding table has 2·span rows."""
        return self.max_relative_positions if self.position_buckets is None else self.position_buckets

    def required_stack_fields(self) -> Mapping[str, Mapping[str, Any]]:
        return {"relative_embedding": {"span": self.span}}

    def flow(
        self, recorder: Flow, x: Value, q: Value, keys: Value, have_biases: tuple[bool, bool]
    ) -> tuple[Value, Value | None]:
        score_kind_count = 1 + self.c2p + self.p2c
        with recorder.scope("disentangled", source="He et al. 2020, §3.1"):
            bias_sum = self._position_scores(recorder, x, q, keys, have_biases)
            bias = None if bias_sum is None else recorder.scale(bias_sum, (q.axes[-1].size * score_kind_count) ** -0.5)
            return recorder.scale(q, score_kind_count**-0.5), bias

    def _position_scores(
        self, recorder: Flow, x: Value, q: Value, keys: Value, have_biases: tuple[bool, bool]
    ) -> Value | None:
        """Records the position terms of the attention scores and returns their sum; None without such terms."""
        bias_sum: Value | None = None
        table_rows = EmbeddingRows(row_count=2 * self.span, limits_to_tokens=self.within_sequence, source_rows=x.rows)
        distance_table: Value = recorder.layer_memo.get("relative_embedding", Value(table_rows, x.axes))
        if self.within_sequence:
            distance_table = recorder.rows_of_distances(distance_table, table_rows)
        heads, head_dim = q.axes
        for score_kind, projection_name, queries_or_keys, has_position_bias, has_shared_bias, shared_projection in (
            ("c2p", "pos_key", q, self.key_bias, have_biases[1], "k_proj"),
            ("p2c", "pos_query", keys, True, have_biases[0], "q_proj"),
        ):
            if not getattr(self, score_kind):
                continue
            has_distance_buckets = self.position_buckets is not None
            distance_index = recorder.distances(
                q, keys, is_clamped=True, is_shifted=True, is_stored=True, is_binned=has_distance_buckets
            )
            recorder.hold(index=distance_index)
            projection_options: dict[str, Any] = {"bias": has_position_bias, "role": "own"}
            if self.share_att_key:
                projection_options = {"bias": has_shared_bias, "role": "shared", "lender_name": shared_projection}
            projected_table = recorder.linear(
                projection_name, distance_table, heads, head_dim, rows=table_rows, **projection_options
            )
            scores = recorder.core(
                score_kind,
                ops.TableScores(heads.size, head_dim.size, table_rows, x.rows),
                queries_or_keys,
                projected_table,
                axes=(heads,),
            )
            position_scores = recorder.at_distance(scores, distance_index, is_by_key=score_kind == "p2c")
            if score_kind == "p2c":
                recorder.hold(by_key=position_scores)
            bias_sum = position_scores if bias_sum is None else recorder.add(bias_sum, position_scores)
            recorder.hold(bias=bias_sum)
        return bias_sum

    def reference(self, model_properties: ModelProperties, heads: int, head_dim: int) -> nn.Module:
        return _reference_classes()["disentangled"](self, model_properties.hidden_size, heads, head_dim)


class RelativeEmbedding(StackPart):
    """An embedding table with a row for each relative position, shared by all layers.

    span: the number of rows in each direction.
    norm: the norm on the rows, before any projection; none by default.
    """

    formula_source: ClassVar[str] = "He et al. 2020, §3.1"
    witness: ClassVar[PartWitness] = TORCH_WITNESS
    kind: ClassVar[str] = "attention"

    span: Positions
    norm: Norm | None = None

    def check_layers(self, layers: Mapping[str, LayerProtocol]) -> None:
        for layer in layers.values():
            if layer.required_stack_fields().get("relative_embedding") not in (None, {"span": self.span}):
                raise ValueError("relative_embedding: disentangled attention needs a table of its span")

    def flow(self, recorder: Flow, x: Value) -> Value:
        """Returns all rows of the relative-position table. x: a value of the model's width."""
        row_count = 2 * self.span
        table_rows = EmbeddingRows(row_count=row_count, source_rows=x.rows)
        distance_rows, _ = recorder.table(
            "table", Axis("distances", row_count), *x.axes, output_rows=table_rows, index_source="all"
        )
        return distance_rows if self.norm is None else recorder.part("norm", self.norm, distance_rows)

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_classes()["table"](self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(span=8), cls(span=5, norm=Norm(type="layernorm"))]


class SideConvolution(StackPart):
    """A convolution in parallel to the first layer (DeBERTa 2): y = norm(layer output + act(conv(layer input))).

    y replaces the layer's output.

    conv_kernel_size: the kernel size in tokens; odd, so that input and output have the same length.
    conv_groups: the number of channel groups, 1 by default.
    conv_act: the activation on the convolution's output, tanh by default.
    norm: the norm on the sum, a LayerNorm by default.
    """

    formula_source: ClassVar[str] = "He et al. 2020, §A.5"
    witness: ClassVar[PartWitness] = TORCH_WITNESS
    kind: ClassVar[str] = "convolution"

    conv_kernel_size: KernelSize
    conv_groups: KernelSize = 1
    conv_act: Activation = "tanh"
    norm: Norm = Norm(type="layernorm")

    def check_fields(self) -> None:
        if self.conv_kernel_size % 2 == 0:
            raise ValueError(f"conv_kernel_size: {self.conv_kernel_size} is even; expected an odd number")

    def check_stack_position(self, stack_position: StackPosition) -> None:
        conv_groups_path = f"{stack_position.error_path}.conv_groups"
        check_divisor(conv_groups_path, self.conv_groups, "hidden_size", stack_position.width)
        if stack_position.stack_name == "decoder":
            raise ValueError(f"{stack_position.error_path}: it sees tokens on both sides; expected an encoder")

    def flow(self, recorder: Flow, x: Value, first_layer_output: Value | None = None) -> Value:
        """Records the operations of the convolution of x, the first layer's input. first_layer_output: default x."""
        kernel_size, conv_groups = self.conv_kernel_size, self.conv_groups
        convolution_output = recorder.act(
            recorder.conv("conv", x, *x.axes, kernel=kernel_size, groups=conv_groups, bias=True), self.conv_act
        )
        recorder.hold(beside=convolution_output)
        return recorder.part(
            "norm", self.norm, recorder.add(x if first_layer_output is None else first_layer_output, convolution_output)
        )

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_classes()["convolution"](self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(conv_kernel_size=3), cls(conv_kernel_size=5, conv_groups=4, conv_act="gelu")]


@cache
def _reference_classes() -> dict[str, type[nn.Module]]:
    import torch
    from torch import nn

    class RelativeEmbeddingReference(nn.Module):
        """Returns every row of the table of relative positions, [2·span, hidden]."""

        def __init__(self, spec: RelativeEmbedding, model_properties: ModelProperties) -> None:
            super().__init__()
            self.table = nn.Embedding(2 * spec.span, model_properties.hidden_size)
            if spec.norm is not None:
                self.norm = spec.norm.reference(model_properties)

        def forward(self) -> Tensor:
            table_weight: Tensor = self.table.weight
            return self.norm(table_weight) if hasattr(self, "norm") else table_weight

    class SideConvolutionReference(nn.Module):
        """Computes norm(layer output + act(convolution of the layer's input)). Both inputs: [batch, tokens, hidden]."""

        def __init__(self, spec: SideConvolution, model_properties: ModelProperties) -> None:
            super().__init__()
            self.act, hidden_size = spec.conv_act, model_properties.hidden_size
            self.conv = nn.Conv1d(
                hidden_size,
                hidden_size,
                spec.conv_kernel_size,
                padding=spec.conv_kernel_size // 2,
                groups=spec.conv_groups,
            )
            self.norm = spec.norm.reference(model_properties)

        def forward(self, layer_input: Tensor, layer_output: Tensor) -> Tensor:
            convolution_output = activate(self.act, self.conv(layer_input.transpose(1, 2)).transpose(1, 2))
            return self.norm(layer_output + convolution_output)

    class SharedWeightLinear(nn.Module):
        """A linear layer that runs with another module's weights."""

        def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            return nn.functional.linear(x, weight, bias)

    class TableScoreProduct(nn.Module):
        """Computes scores of tokens and table rows. x: [batch, heads, tokens, d] → [batch, heads, tokens, rows]."""

        def forward(self, x: Tensor, table_rows: Tensor) -> Tensor:
            return x @ table_rows.unflatten(-1, (x.shape[1], -1)).permute(1, 2, 0)

    class DisentangledReference(nn.Module):
        """Computes scaled queries, and scores by relative position. Queries and keys: [batch, heads, tokens, d]."""

        def __init__(self, spec: DisentangledScores, hidden_size: int, heads: int, head_dim: int) -> None:
            super().__init__()
            self.spec, heads_width = spec, heads * head_dim
            self.reach = spec.position_buckets or spec.max_relative_positions
            if spec.c2p:
                self.pos_key = (
                    SharedWeightLinear()
                    if spec.share_att_key
                    else nn.Linear(hidden_size, heads_width, bias=spec.key_bias)
                )
                self.c2p = TableScoreProduct()
            if spec.p2c:
                self.pos_query = SharedWeightLinear() if spec.share_att_key else nn.Linear(hidden_size, heads_width)
                self.p2c = TableScoreProduct()

        def _relative_positions(self, pass_state: PassState, token_count: int, device: Any) -> Tensor:
            """Returns the query position minus the key position, binned if the spec has bins."""
            positions = pass_state.positions(0, token_count, device)
            distances = positions[:, None] - positions[None, :]
            if self.spec.position_buckets is None:
                return distances
            exact_distance_count = self.reach // 2
            log_distance = distances.abs().clamp(min=max(1, exact_distance_count)).float()
            log_scale = (exact_distance_count - 1) / math.log(
                (self.spec.max_relative_positions - 1) / exact_distance_count
            )
            bucket_index = (
                (log_distance / exact_distance_count).log() * log_scale
            ).ceil().long() + exact_distance_count
            return torch.where(distances.abs() <= exact_distance_count, distances, bucket_index * distances.sign())

        def forward(
            self,
            q: Tensor,
            k: Tensor,
            distance_vectors: Tensor,
            pass_state: PassState,
            q_proj: nn.Linear,
            k_proj: nn.Linear,
        ) -> tuple[Tensor, Tensor | None]:
            token_count, table_span = q.shape[-2], self.reach
            if self.spec.within_sequence:
                largest_distance = min(token_count, table_span)
                distance_vectors = distance_vectors[table_span - largest_distance : table_span + largest_distance]
                table_span = largest_distance
            distances = pass_state.compute_once(
                ("binned", token_count, table_span), lambda: self._relative_positions(pass_state, token_count, q.device)
            )
            term_count = 1 + self.spec.c2p + self.spec.p2c
            bias: Tensor | None = None
            if self.spec.c2p:
                shared_weights = (k_proj.weight, k_proj.bias) if self.spec.share_att_key else ()
                distance_index = (
                    (distances + table_span).clamp(0, 2 * table_span - 1).expand(*q.shape[:-1], token_count)
                )
                bias = self.c2p(q, self.pos_key(distance_vectors, *shared_weights)).gather(-1, distance_index)
            if self.spec.p2c:
                shared_weights = (q_proj.weight, q_proj.bias) if self.spec.share_att_key else ()
                distance_index = (
                    (table_span - distances).clamp(0, 2 * table_span - 1).expand(*k.shape[:-1], token_count)
                )
                key_scores = self.p2c(k, self.pos_query(distance_vectors, *shared_weights)).gather(
                    -1, distance_index.transpose(-1, -2)
                )
                bias = key_scores.transpose(-1, -2) if bias is None else bias + key_scores.transpose(-1, -2)
            scaled_bias = None if bias is None else bias * (q.shape[-1] * term_count) ** -0.5
            return q * term_count**-0.5, scaled_bias

    return {
        "disentangled": DisentangledReference,
        "table": RelativeEmbeddingReference,
        "convolution": SideConvolutionReference,
    }
