"""What the PyTorch references share while they run: positions, masks, caches. Imports torch when first asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass
class Run:
    """One forward pass.

    past: tokens of each sequence that earlier passes put into `store`. memory: the encoder's output, None while
    decoding from a filled cache. store: what each cache module holds, or None for a pass without a cache.
    bias: called with query and key positions, gives what is added to the scores; None adds nothing.
    ids: the tokens, for what a layer looks up of them. per_layer: what each layer gets of the token itself, [batch,
    tokens, layers, width]. layer: which layer runs.
    selected: which earlier tokens each token chose in the last layer that chooses, for those above that share its
    choice.
    routed: what the router of the layer below made of each token. embedded: what the first layer reads.
    columns: patches in a row of the image that a tower reads.
    mla: the form of latent attention, `expanded` or `absorbed`; `auto` absorbs where one token goes on.
    memo: what every layer would compute alike (masks, angles), by what it depends on.
    """

    past: int = 0
    memory: Tensor | None = None
    embedded: Tensor | None = None
    store: dict[nn.Module, tuple[Tensor, ...]] | None = None
    bias: Any = None
    selected: Tensor | None = None
    routed: Tensor | None = None
    ids: Tensor | None = None
    per_layer: Tensor | None = None
    layer: int = 0
    columns: int = 1
    mla: str = "auto"
    memo: dict[Any, Any] = field(default_factory=dict)

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """What `make` gives, made once in this pass for each key."""
        if key not in self.memo:
            self.memo[key] = make()
        return self.memo[key]

    def span(self, start: int, end: int, device: Any) -> Tensor:
        """The positions start … end − 1."""
        import torch

        positions: Tensor = self.once(("span", start, end), lambda: torch.arange(start, end, device=device))
        return positions


def vector(values: Tensor) -> Any:
    """A module that holds one parameter, `weight`, under a name of its own:
    what is added, or multiplied by, and is no map.
    """
    return _vector_class()(values)


@cache
def _vector_class() -> type[nn.Module]:
    from torch import nn

    class Vector(nn.Module):
        def __init__(self, values: Tensor) -> None:
            super().__init__()
            self.weight = nn.Parameter(values)

    return Vector


@cache
def softmax_core_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class SoftmaxCore(nn.Module):
        """q: [batch, heads, queries, d], k and v: [batch, heads, keys, d] → [batch, heads, queries, d]. scale: of the
        scores, 1/√d if not given.

        sinks: of each head, the score of one more key that every query sees and that has no value.
        """

        def forward(
            self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float | None = None, sinks: Tensor | None = None
        ) -> Tensor:
            scores = (q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)).masked_fill(
                ~mask, float("-inf")
            )
            if sinks is not None:
                beside = sinks[None, :, None, None].expand(*scores.shape[:-1], 1).to(scores.dtype)
                return torch.softmax(torch.cat([scores, beside], -1).float(), -1)[..., :-1].to(v.dtype) @ v
            return torch.softmax(scores.float(), -1).to(v.dtype) @ v

    return SoftmaxCore


@cache
def cache_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class Cache(nn.Module):
        """Appends what is new to what is held and gives back all that the new tokens can use.

        limit: only the last so many tokens are held (a sliding window). Tensors are [..., tokens, width].
        """

        def __init__(self, limit: int | None = None) -> None:
            super().__init__()
            self.limit = limit

        def forward(self, run: Run, *new: Tensor) -> tuple[Tensor, ...]:
            if run.store is None:
                return new
            held = run.store.get(self)
            if held is not None and self.limit is not None:  # the oldest falls out as the next one comes in
                held = tuple(t[..., max(0, t.shape[-2] - self.limit + 1) :, :] for t in held)
            full = new if held is None else tuple(torch.cat([h, n], -2) for h, n in zip(held, new, strict=True))
            kept = full if self.limit is None else tuple(t[..., max(0, t.shape[-2] - self.limit) :, :] for t in full)
            run.store[self] = tuple(t.clone() for t in kept)  # a slice would keep the whole tensor alive
            return full

    return Cache


@cache
def state_class() -> type[nn.Module]:
    from torch import nn

    class State(nn.Module):
        """What a recurrence leaves for the next pass: tensors whose size does not grow with the tokens.

        `held(run)` gives what the last pass kept, None at the first token or in a pass without a cache; `keep(run,
        ...)` replaces it.
        """

        def held(self, run: Run) -> tuple[Tensor, ...] | None:
            return None if run.store is None else run.store.get(self)

        def keep(self, run: Run, *tensors: Tensor) -> None:
            if run.store is not None:
                run.store[self] = tuple(t.clone() for t in tensors)  # a slice would keep the whole tensor alive

    return State


@cache
def causal_conv_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class CausalConv1d(nn.Conv1d):
        """x: [batch, channels, tokens] → the same; each output sees the last `kernel` inputs, itself included.

        state: its slot under the same parent, which holds the last `kept` inputs of each channel: `kernel` of them, if
        not given, of which all but one are needed.
        """

        def __init__(self, channels: int, kernel: int, bias: bool, kept: int | None = None) -> None:
            super().__init__(channels, channels, kernel, groups=channels, bias=bias, padding=kernel - 1)
            self.kept = kernel if kept is None else kept

        def forward(self, x: Tensor, run: Run, state: Any) -> Tensor:  # type: ignore[override]
            kernel, tokens = self.kernel_size[0], x.shape[-1]
            held = state.held(run)
            if held is None:
                out = super().forward(x)[..., :tokens]  # zeros on both sides; what lies beyond the tokens is cut off
                seen = nn.functional.pad(x, (self.kept, 0))
            else:
                seen = torch.cat([held[0], x], -1)
                out = nn.functional.conv1d(
                    seen[..., self.kept - kernel + 1 :], self.weight, self.bias, groups=self.groups
                )
            state.keep(run, seen[..., seen.shape[-1] - self.kept :])
            return out

    return CausalConv1d


def allowed(
    run: Run,
    end: int,
    queries: int,
    keys: int,
    device: Any,
    *,
    causal: bool,
    window: int | None = None,
    chunk: int | None = None,
) -> Tensor:
    """Which of the last `keys` tokens before position `end` each of the last `queries` may see, [queries, keys]."""

    def make() -> Tensor:
        q = run.span(end - queries, end, device)[:, None]
        k = run.span(end - keys, end, device)[None, :]
        if not causal:
            before, after = (end, end) if window is None else ((window - 1) // 2, window // 2)
            return (q - k <= before) & (k - q <= after)
        seen = k <= q
        if window is not None:
            seen = seen & (k > q - window)
        if chunk is not None:
            seen = seen & (k // chunk == q // chunk)
        return seen

    mask: Tensor = run.once(("mask", end, queries, keys, causal, window, chunk), make)
    return mask
