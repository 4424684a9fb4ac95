"""Dispatch of tokens to experts in the PyTorch reference: the expert order, the linear layers, the sum of outputs."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fractions import Fraction

    from torch import Tensor, nn


@cache
def expert_dispatch_class() -> type[Any]:
    class ExpertDispatch:
        """The assignment of tokens to their selected experts, with one row per token and expert.

        expert_indices: the experts of each token, [batch, tokens, top_k].
        is_grouped: whether rows are sorted by expert. Otherwise they stay in the order of the tokens.
        float32_weights: whether outputs are weighted and summed in float32, false by default.
        """

        def __init__(self, expert_indices: Tensor, is_grouped: bool, float32_weights: bool = False) -> None:
            self.top_k, self.is_grouped, self.float32_weights = expert_indices.shape[-1], is_grouped, float32_weights
            self.expert = expert_indices.flatten()
            if is_grouped:
                self.expert, self.order = self.expert.sort(stable=True)
                self.token = self.order // self.top_k

        def copy_rows_to_experts(self, x: Tensor) -> Tensor:
            """Copies each token's vector once per selected expert. [batch, tokens, width] → [rows, width]."""
            x = x.flatten(0, 1)
            return x.index_select(0, self.token) if self.is_grouped else x.repeat_interleave(self.top_k, 0)

        def sort_by_expert(self, x: Tensor) -> Tensor:
            """Sorts rows from token order to expert order. [rows, width] → same shape."""
            return x.index_select(0, self.order) if self.is_grouped else x

        def sort_by_token(self, x: Tensor) -> Tensor:
            """Sorts rows from expert order to token order. [rows, width] → same shape."""
            return x.new_zeros(x.shape).index_add(0, self.order, x) if self.is_grouped else x

        def combine_outputs(self, x: Tensor, expert_weights: Tensor) -> Tensor:
            """Sums the weighted expert outputs of each token. [rows, width] → [batch, tokens, width]."""
            dtype, token_shape = x.dtype, expert_weights.shape[:2]
            weight_dtype = expert_weights.dtype if self.float32_weights else dtype
            if not self.is_grouped:
                return (x.view(*expert_weights.shape, -1) * expert_weights.to(weight_dtype)[..., None]).sum(2).to(dtype)
            x = x * expert_weights.to(weight_dtype).flatten().index_select(0, self.order)[:, None]
            return (
                x.new_zeros(token_shape.numel(), x.shape[1])
                .index_add(0, self.token, x)
                .unflatten(0, token_shape)
                .to(dtype)
            )

    return ExpertDispatch


@cache
def capacity_dispatch_class() -> type[Any]:
    class CapacityDispatch:
        """Dispatch to experts with a fixed capacity: each expert takes the tokens with the highest routing weights.

        An expert that fewer tokens chose takes other tokens too, with weight 0.

        weights, expert_indices: the weights and indices of each token's experts, [batch, tokens, top_k].
        capacity_factor: the capacity divided by an even share of all rows.
        """

        is_grouped, expert = False, None

        def __init__(
            self, weights: Tensor, expert_indices: Tensor, expert_count: int, capacity_factor: Fraction
        ) -> None:
            weights, expert_indices = weights.flatten(0, 1), expert_indices.flatten(0, 1)
            expert_weights = weights.new_zeros(len(weights), expert_count).scatter(1, expert_indices, weights)
            expert_capacity = min(math.ceil(expert_indices.numel() * capacity_factor / expert_count), len(weights))
            top_weights, token_indices = expert_weights.topk(expert_capacity, 0)
            self.weight, self.token = top_weights.t(), token_indices.t().flatten()

        def copy_rows_to_experts(self, x: Tensor) -> Tensor:
            """Copies each expert's tokens. [batch, tokens, width] → [experts, rows, width]."""
            return x.flatten(0, 1).index_select(0, self.token).unflatten(0, self.weight.shape)

        def combine_outputs(self, x: Tensor, expert_weights: Tensor) -> Tensor:
            """Sums the weighted expert outputs of each token. [experts, rows, width] → [batch, tokens, width]."""
            x, token_shape = (x * self.weight.to(x.dtype)[..., None]).flatten(0, 1), expert_weights.shape[:2]
            return x.new_zeros(token_shape.numel(), x.shape[1]).index_add(0, self.token, x).unflatten(0, token_shape)

    return CapacityDispatch


def expert_group_ends(row_experts: Tensor, expert_count: int) -> Tensor:
    """Returns the end offset of each expert's sorted rows, as int32. row_experts: each row's expert, ascending."""
    import torch

    return row_experts.float().histc(expert_count, 0, expert_count - 1).cumsum(0, dtype=torch.int32)


@cache
def expert_map_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class ExpertMap(nn.Module):
        """Applies to each row the linear layer of its expert. x: [rows, in_features] → [rows, out_features].

        row_experts: the expert of each row, [rows].
        group_ends: the ends of the experts' groups, if the rows are sorted by expert; None if they are not.
        Where all experts have as many rows, x is [experts, rows, in_features], and so is the output.
        """

        def __init__(self, expert_count: int, in_features: int, out_features: int, bias: bool) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.empty(expert_count, out_features, in_features))
            nn.init.normal_(self.weight, std=in_features**-0.5)
            self.bias = nn.Parameter(torch.zeros(expert_count, out_features)) if bias else None

        def forward(self, x: Tensor, row_experts: Tensor | None, group_ends: Tensor | None = None) -> Tensor:
            if row_experts is None:
                expert_outputs = x @ self.weight.transpose(1, 2)
                return expert_outputs if self.bias is None else expert_outputs + self.bias[:, None]
            if group_ends is not None:
                expert_outputs = nn.functional.grouped_mm(x, self.weight.transpose(1, 2), offs=group_ends)
                return expert_outputs if self.bias is None else expert_outputs + self.bias.index_select(0, row_experts)
            if x.is_meta:  # without data rows cannot be grouped by expert: one product per row, of the same total size
                expert_outputs = torch.bmm(self.weight[row_experts], x[:, :, None])[:, :, 0]
                return expert_outputs if self.bias is None else expert_outputs + self.bias[row_experts]
            expert_outputs = x.new_zeros(x.shape[0], self.weight.shape[1])
            for expert_index in row_experts.unique().tolist():
                row_indices = (row_experts == expert_index).nonzero()[:, 0]
                expert_output = nn.functional.linear(
                    x[row_indices], self.weight[expert_index], None if self.bias is None else self.bias[expert_index]
                )
                expert_outputs = expert_outputs.index_copy(0, row_indices, expert_output)
            return expert_outputs

    return ExpertMap
