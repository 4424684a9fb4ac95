"""The state that PyTorch references share in a forward pass: positions, masks, caches. Imports torch on first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fractions import Fraction

    from torch import Tensor, nn


def share_tensors(source_module: nn.Module, target_module: nn.Module) -> None:
    """Replaces the target module's parameters and buffers by those of a source module with the same structure."""
    for tensor_path, tensor in [*source_module.named_parameters(), *source_module.named_buffers()]:
        module_path, _, tensor_name = tensor_path.rpartition(".")
        setattr(target_module.get_submodule(module_path), tensor_name, tensor)


@dataclass(eq=False)
class PassState:
    """The state of one forward pass of a PyTorch reference: positions, caches, masks.

    past_tokens: the number of tokens per sequence that earlier passes put into `cached_tensors`.
    encoder_output: the encoder's output; None without an encoder, and while decoding from a filled cache.
    first_layer_input: the input of the first layer.
    cached_tensors: the tensors of each cache module; None for a pass without a cache.
    score_bias: a function of query and key positions that returns the term added to the scores; None for no term.
    selected_tokens: the earlier tokens that each token selected in the nearest lower layer with an indexer, for layers
        that reuse the selection.
    router_state: the router's hidden state per token in the layer below.
    token_ids: the token ids, for embeddings inside layers.
    per_layer_embeddings: the per-layer embeddings, [batch, tokens, layers, width].
    layer_index: the index of the running layer.
    patch_columns: the number of patches in a row of the image that a vision encoder reads.
    returns_keys_and_values: whether attention layers keep their keys and values for higher layers without their own.
    mla_form: the form of latent attention, `expanded` or `absorbed`; `auto` absorbs when decoding one token.
    grouped_experts: whether the rows of all experts are sorted by expert, for one grouped product per linear layer, as
        models are trained. FlopCounterMode does not count these. False by default: one product per row on meta, and one
        per expert elsewhere.
    expert_capacity: the rows that each expert takes over its even share of them, as training with a fixed capacity has
        it: those of the highest weights, padded, in one batched product. None (default) where no row is dropped.
    keeps_streams: whether the residual streams are kept for modules of multi-token prediction; false by default.
    unmerged_streams: the residual streams before they are merged, if they are kept.
    shared_values: key → a value that is the same for every layer (masks, angles).
    """

    past_tokens: int = 0
    encoder_output: Tensor | None = None
    first_layer_input: Tensor | None = None
    cached_tensors: dict[nn.Module, tuple[Tensor, ...]] | None = None
    score_bias: Any = None
    selected_tokens: Tensor | None = None
    router_state: Tensor | None = None
    token_ids: Tensor | None = None
    per_layer_embeddings: Tensor | None = None
    layer_index: int = 0
    patch_columns: int = 1
    returns_keys_and_values: bool = False
    mla_form: str = "auto"
    grouped_experts: bool = False
    expert_capacity: Fraction | None = None
    keeps_streams: bool = False
    unmerged_streams: Tensor | None = None
    shared_values: dict[Any, Any] = field(default_factory=dict)

    def compute_once(self, result_key: Any, compute_value: Callable[[], Any]) -> Any:
        """Returns the result of `compute_value`, computed once per key in this pass."""
        if result_key not in self.shared_values:
            self.shared_values[result_key] = compute_value()
        return self.shared_values[result_key]

    def positions(self, first_position: int, end_position: int, device: Any) -> Tensor:
        """Returns the positions from `first_position` up to `end_position`, which is excluded, as a tensor."""
        import torch

        return self.compute_once(
            ("span", first_position, end_position), lambda: torch.arange(first_position, end_position, device=device)
        )


def apply_dropout(module: nn.Module, dropout_name: str, x: Tensor) -> Tensor:
    """Applies the module's dropout with this name; returns x unchanged if the module has no such dropout.

    A reference runs without dropout unless a comparison attaches it.
    """
    dropouts: Mapping[str, Callable[[Any], Any]] = getattr(module, "dropouts", {})
    return dropouts[dropout_name](x) if dropout_name in dropouts else x


def project_to_heads(module: Any, projection_name: str, x: Tensor) -> Tensor:
    """Projects x [batch, tokens, hidden] to heads [batch, heads, tokens, head_dim] by a named attention projection."""
    heads: Tensor = module.get_submodule(projection_name)(x).unflatten(-1, (module.heads, -1))
    return heads.transpose(1, 2)


def split_into_windows(x: Tensor, window_side: int) -> Tensor:
    """Cuts images into square windows: [images, rows, columns, hidden] → [images · windows, side², hidden].

    window_side: the side of a window, which divides both sides of the images.
    """
    windows = x.unflatten(2, (-1, window_side)).unflatten(1, (-1, window_side)).transpose(2, 3)
    return windows.flatten(3, 4).flatten(0, 2)


def join_windows(windows: Tensor, window_side: int, rows: int, columns: int) -> Tensor:
    """Joins square windows: [images · windows, side², hidden] → [images, rows, columns, hidden]."""
    squares = windows.unflatten(1, (window_side, window_side)).unflatten(
        0, (-1, rows // window_side, columns // window_side)
    )
    return squares.transpose(2, 3).flatten(3, 4).flatten(1, 2)


def vector_module(parameter_values: Tensor) -> Any:
    """Returns a module whose only parameter, `weight`, is a vector that callers add to or multiply with their input."""
    return _vector_parameter_class()(parameter_values)


@cache
def _vector_parameter_class() -> type[nn.Module]:
    from torch import nn

    class VectorParameter(nn.Module):
        def __init__(self, parameter_values: Tensor) -> None:
            super().__init__()
            self.weight = nn.Parameter(parameter_values)

    return VectorParameter


def append_sink_scores(scores: Tensor, sinks: Tensor) -> Tensor:
    """Appends a sink's score, like one additional key, to attention scores [batch, heads, queries, keys].

    sinks: the score of that key, per head [heads] or per query [batch, heads, queries, 1].
    """
    import torch

    sinks = sinks if sinks.dim() == 4 else sinks[None, :, None, None].expand(*scores.shape[:-1], 1)
    return torch.cat([scores, sinks.to(scores.dtype)], -1)


def scores_of_sink_keys(q: Tensor, sink_keys: Tensor) -> Tensor:
    """Returns attention scores [batch, heads, queries, 1] with the sink keys [kv_heads, size], one key per KV head."""
    group_size = q.shape[1] // sink_keys.shape[0]
    keys = sink_keys.repeat_interleave(group_size, 0) if group_size > 1 else sink_keys
    return (q * keys[None, :, None]).sum(-1, keepdim=True) * q.shape[-1] ** -0.5


@cache
def attention_products_class() -> type[nn.Module]:
    from torch import nn

    class AttentionProducts(nn.Module):
        """Computes the products of queries and keys, or of attention weights and values: [batch, heads, queries, ·]."""

        def forward(self, x: Tensor, second_factor: Tensor) -> Tensor:
            return x @ second_factor

    return AttentionProducts


@cache
def softmax_core_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class SoftmaxCore(nn.Module):
        """Softmax attention. q: [batch, heads, queries, d], k and v: [batch, heads, keys, d] → shape of q.

        mask: the keys that each query may attend to; all by default.
        bias: the term that is added to the scores before the mask; none by default.
        logit_cap: the soft cap of the scores, none by default.
        sinks: per head, the score of one more key, without a value, that every query attends to; or that key itself,
            per key-value head.
        scale: the scale of the scores, 1/√d by default.
        float32_softmax: whether the softmax is in float32, true by default; else in the format of the scores.
        float32_scores: whether scores are products of float32 copies of queries and keys, false by default.
        """

        def forward(
            self,
            q: Tensor,
            k: Tensor,
            v: Tensor,
            mask: Tensor | None = None,
            bias: Tensor | None = None,
            logit_cap: float | None = None,
            sinks: Tensor | None = None,
            scale: float | None = None,
            float32_softmax: bool = True,
            float32_scores: bool = False,
        ) -> Tensor:
            if float32_scores:
                q, k = q.float(), k.float()
            scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
            if logit_cap is not None:
                scores = logit_cap * torch.tanh(scores / logit_cap)
            if bias is not None:
                scores = scores + bias.to(scores.dtype)
            if mask is not None:
                scores = scores.masked_fill(~mask, float("-inf"))
            dtype = torch.float32 if float32_softmax else scores.dtype
            if sinks is not None:
                sinks = scores_of_sink_keys(q, sinks) if sinks.dim() == 2 else sinks
                probs = torch.softmax(append_sink_scores(scores, sinks).to(dtype), -1)[..., :-1].to(v.dtype)
                return apply_dropout(self, "attention", probs) @ v
            return apply_dropout(self, "attention", torch.softmax(scores.to(dtype), -1).to(v.dtype)) @ v

    return SoftmaxCore


@cache
def tensor_cache_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class TensorCache(nn.Module):
        """Caches tensors between passes; returns all cached and new tensors that the new tokens attend to.

        Tensors are [..., tokens, width]. limit: the number of last tokens that are cached (a sliding window); None for
        all.

        It concatenates as `DynamicCache` of transformers does (cache_utils.py, 5.17): the first pass copies too, a
        tensor without a limit replaces the cached one before the next tensor is concatenated, and a window is a view,
        which keeps all rows that were concatenated until the next pass.
        """

        def __init__(self, token_limit: int | None = None) -> None:
            super().__init__()
            self.limit = token_limit

        def forward(self, pass_state: PassState, *new_tensors: Tensor) -> tuple[Tensor, ...]:
            if pass_state.cached_tensors is None:
                return new_tensors
            cached_tensors = [[cached_tensor] for cached_tensor in pass_state.cached_tensors.pop(self, ())] or [
                [] for _ in new_tensors
            ]
            if self.limit is None:
                for tensor_index, new_tensor in enumerate(new_tensors):
                    cached_tensors[tensor_index] = [torch.cat([*cached_tensors[tensor_index], new_tensor], -2)]
                joined_tensors = pass_state.cached_tensors[self] = tuple(
                    cached_tensor for (cached_tensor,) in cached_tensors
                )
                return joined_tensors
            joined_tensors = tuple(
                # the oldest token leaves the window when a new one enters
                torch.cat(
                    [
                        *(
                            cached_part[..., max(0, cached_part.shape[-2] - self.limit + 1) :, :]
                            for cached_part in cached_list
                        ),
                        new_tensor,
                    ],
                    -2,
                )
                for cached_list, new_tensor in zip(cached_tensors, new_tensors, strict=True)
            )
            pass_state.cached_tensors[self] = tuple(
                cached_tensor[..., max(0, cached_tensor.shape[-2] - self.limit) :, :]
                for cached_tensor in joined_tensors
            )
            return joined_tensors

    return TensorCache


@cache
def recurrent_state_class() -> type[nn.Module]:
    from torch import nn

    class RecurrentState(nn.Module):
        """Stores a recurrence's state between forward passes, as tensors whose size does not grow with the tokens.

        `load` returns the tensors of the last pass, None at the first token or in a pass without a cache.
        `keep` replaces them.
        """

        def load(self, pass_state: PassState) -> tuple[Tensor, ...] | None:
            return None if pass_state.cached_tensors is None else pass_state.cached_tensors.get(self)

        def single_tensor(self, pass_state: PassState) -> Tensor | None:
            """Returns the only tensor of a recurrent state; None at the first token or without a cache.

            A caller keeps it in a variable until the new state is kept, as transformers does: both are in memory then.
            """
            tensors = self.load(pass_state)
            return None if tensors is None else tensors[0]

        def keep(self, pass_state: PassState, *tensors: Tensor) -> None:
            if pass_state.cached_tensors is not None:
                # a slice would keep the whole tensor alive
                pass_state.cached_tensors[self] = tuple(tensor.clone() for tensor in tensors)

    return RecurrentState


@cache
def causal_conv_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class CausalConv1d(nn.Conv1d):
        """A causal convolution. x: [batch, channels, tokens] → same shape; an output reads the last `kernel` inputs.

        state_module: the module, under the same parent, that stores the last `stored_frames` inputs of each channel; by
            default `kernel` inputs, of which all but one are needed.
        """

        def __init__(self, channels: int, kernel_size: int, bias: bool, stored_frames: int | None = None) -> None:
            super().__init__(channels, channels, kernel_size, groups=channels, bias=bias, padding=kernel_size - 1)
            self.kept_frames = kernel_size if stored_frames is None else stored_frames

        def forward(self, x: Tensor, pass_state: PassState, state_module: Any) -> Tensor:  # type: ignore[override]
            kernel_size, token_count = self.kernel_size[0], x.shape[-1]
            stored_input = state_module.load(pass_state)
            if stored_input is None:
                conv_output = super().forward(x)[
                    ..., :token_count
                ]  # padded on both sides; outputs beyond the tokens are cut off
                if pass_state.cached_tensors is None:
                    return conv_output
                padded_input = nn.functional.pad(x, (self.kept_frames, 0))
            else:
                padded_input = torch.cat([stored_input[0], x], -1)
                conv_output = nn.functional.conv1d(
                    padded_input[..., self.kept_frames - kernel_size + 1 :], self.weight, self.bias, groups=self.groups
                )
            state_module.keep(pass_state, padded_input[..., padded_input.shape[-1] - self.kept_frames :])
            return conv_output

    return CausalConv1d


def attention_mask(
    pass_state: PassState,
    q: Tensor,
    k: Tensor,
    *,
    causal: bool,
    window: int | None = None,
    chunk_size: int | None = None,
) -> Tensor:
    """Returns the mask [queries, keys] of the keys that each query of this pass may attend to.

    q, k: tensors with a row for each query and for each key, [..., rows, width].
    """
    query_count, key_count, end_position = q.shape[-2], k.shape[-2], pass_state.past_tokens + q.shape[-2]

    def compute_mask() -> Tensor:
        query_positions = pass_state.positions(end_position - query_count, end_position, q.device)[:, None]
        key_positions = pass_state.positions(end_position - key_count, end_position, q.device)[None, :]
        if not causal:
            tokens_before, tokens_after = (
                (end_position, end_position) if window is None else ((window - 1) // 2, window // 2)
            )
            return (query_positions - key_positions <= tokens_before) & (
                key_positions - query_positions <= tokens_after
            )
        mask = key_positions <= query_positions
        if window is not None:
            mask = mask & (key_positions > query_positions - window)
        if chunk_size is not None:
            mask = mask & (key_positions // chunk_size == query_positions // chunk_size)
        return mask

    return pass_state.compute_once(
        ("mask", end_position, query_count, key_count, causal, window, chunk_size), compute_mask
    )
