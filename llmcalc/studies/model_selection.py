"""Filters models by kind, attention, experts and size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import InputError, suggest
from ..frozen import frozen

if TYPE_CHECKING:
    from ..model import ModelSpec

MODEL_KINDS = ("decoder", "encoder", "encoder-decoder")

KINDS_BY_HEADS = ("mha", "gqa", "mqa", "sliding")
"""Kinds of attention that are named by their heads or window; any other kind is the `type` of a token mixer."""

ATTENTION_EXAMPLES = f"{', '.join(KINDS_BY_HEADS)}, mla, mamba2, gated_delta_net, …"
"""Examples of kinds of attention in published models, for help and error texts."""


@frozen(slots=True)
class ModelFilter:
    """A filter of models; a field that is None excludes no model.

    kind: one of `MODEL_KINDS`.
    attention: one of the names that `attention_kinds` returns.
    moe: whether the model is a mixture of experts.
    min_params, max_params: smallest and largest number of total parameters.
    """

    kind: str | None = None
    attention: str | None = None
    moe: bool | None = None
    min_params: int | None = None
    max_params: int | None = None

    def __post_init__(self) -> None:
        """Raises `InputError` for an unknown kind of model or attention, or a lower bound above the upper one."""
        if self.kind is not None and self.kind not in MODEL_KINDS:
            raise InputError(
                f"--kind: '{self.kind}' is not known; expected one of {', '.join(MODEL_KINDS)}."
                f"{suggest(self.kind, list(MODEL_KINDS))}"
            )
        if self.attention is not None:
            _check_attention_name(self.attention)
        if self.min_params is not None and self.max_params is not None and self.min_params > self.max_params:
            raise InputError(f"--min-params: {self.min_params:,} is more than --max-params, {self.max_params:,}")

    def accepts(self, spec: ModelSpec, parameter_count: int) -> bool:
        """Whether the filter accepts a model with this number of parameters."""
        return (
            self.kind in (None, spec.kind)
            and (self.attention is None or self.attention in attention_kinds(spec))
            and self.moe in (None, spec.has_experts)
            and (self.min_params is None or parameter_count >= self.min_params)
            and (self.max_params is None or parameter_count <= self.max_params)
        )


EVERY_MODEL = ModelFilter()
"""The filter that accepts every model."""


def _check_attention_name(attention_name: str) -> None:
    """Raises `InputError` for a kind of attention that no description can have."""
    from ..components.choices import MIXERS

    known_names = [*KINDS_BY_HEADS, *MIXERS.class_paths]
    if attention_name.lower() not in known_names:
        raise InputError(
            f"--attention: no model has '{attention_name}'; expected one of {ATTENTION_EXAMPLES}"
            f"{suggest(attention_name, known_names)}"
        )


def require_attention(attention_name: str | None, specs: Sequence[ModelSpec]) -> str | None:
    """Returns a kind of attention as the models' specs spell it.

    Raises `InputError`, which lists the kinds of the models, if no model has it.
    """
    if attention_name is None:
        return None
    attention_names = sorted(set().union(*map(attention_kinds, specs)))
    if attention_name.lower() not in attention_names:
        raise InputError(
            f"--attention: no model has '{attention_name}'; expected one of {', '.join(attention_names)}."
            f"{suggest(attention_name, attention_names)}"
        )
    return attention_name.lower()


def attention_kinds(spec: ModelSpec) -> frozenset[str]:
    """Returns the kinds of token mixers in the layers of a model.

    Attention is `mha`, `gqa` or `mqa` by its heads, and also `sliding` if a layer has a window. Other mixers have their
    own names (`mla`, `mamba2`, `gated_delta_net`, …).
    """
    from ..components.base import TokenMixer
    from .distinct_layers import distinct_layers

    attention_names: set[str] = set()
    mixers: list[Any] = [block.attention for block in distinct_layers(spec) if isinstance(block.attention, TokenMixer)]
    for mixer in mixers:
        head_sizes = mixer.head_sizes(spec.hidden_size)
        mixer_type = mixer.type
        if mixer_type == "attention" and head_sizes is not None and head_sizes.kv_heads is not None:
            mixer_type = (
                "mha" if head_sizes.kv_heads == head_sizes.heads else "mqa" if head_sizes.kv_heads == 1 else "gqa"
            )
        attention_names.add(mixer_type)
        if getattr(mixer, "sliding_window", None) is not None:
            attention_names.add("sliding")
    return frozenset(attention_names)
