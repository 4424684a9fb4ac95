"""What a preset or a user's own `.toml` says:
an architecture, where it is from, what was published, what was assumed.
"""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, model_validator

from ..model import ModelSpec
from ..record import Record, Source
from ..units import dtype as dtype_of
from .names import plain


class Published(Record):
    """Figures by the publisher or of the published weights, as they are given.

    parameters: the exact count of the released weights. parameters_note: what that count includes beyond the model's
    own parameters, or lacks of them. nominal: the rounded figure (`8B`). active: of a mixture of experts, rounded.
    """

    parameters: int | None = Field(default=None, gt=0, strict=True)
    parameters_difference: int = Field(default=0, strict=True)
    parameters_note: str | None = None
    nominal: str | None = None
    active: str | None = None
    training_tokens: str | None = None


class Training(Record):
    """Settings of the training run that cost no parameter and no FLOP of the forward pass; recorded where published."""

    dropout: float | None = Field(default=None, ge=0, lt=1, strict=True)
    attention_dropout: float | None = Field(default=None, ge=0, lt=1, strict=True)
    weight_decay: float | None = Field(default=None, ge=0, strict=True, allow_inf_nan=False)
    z_loss: float | None = Field(default=None, ge=0, strict=True, allow_inf_nan=False)
    auxiliary_loss: float | None = Field(default=None, ge=0, strict=True, allow_inf_nan=False)
    label_smoothing: float | None = Field(default=None, ge=0, lt=1, strict=True)
    optimizer: str | None = None
    note: str | None = None


class Preset(Record):
    """A named model. Only `model` is required of a file of one's own.

    name: the preset's or the file's. asked: the TARGET as the user wrote it. changes: the overrides that were applied
    to it, each `path=value`. notes: remarks of the reader of a file, for the user. config: the Hugging Face config it
    was read from. dtype: of the published weights. assumptions: each field that was never published, what was taken for
    it and why.
    """

    name: str = ""
    asked: str = ""
    changes: tuple[str, ...] = ()
    title: str = ""
    aliases: tuple[str, ...] = ()
    developer: str = ""
    released: str = Field(default="", pattern=r"^(\d{4}(-\d{2}){0,2})?$")
    dtype: str = "bfloat16"
    sources: tuple[Source, ...] = ()
    published: Published = Published()
    training: Training = Training()
    assumptions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    config: dict[str, Any] | None = None
    model: ModelSpec

    @model_validator(mode="after")
    def _check(self) -> Self:
        try:
            dtype_of(self.dtype)
        except ValueError as error:
            raise ValueError(f"dtype: {error}") from None
        return self

    @property
    def target(self) -> str:
        """What was asked for: the TARGET as the user wrote it, with what was changed."""
        return (self.asked or self.name) + ("?" + "&".join(self.changes) if self.changes else "")

    @property
    def display(self) -> str:
        """What a heading calls it: its title, after the alias where it was asked for by one; and what was changed."""
        title = self.title or self.name
        alias = next((alias for alias in self.aliases if plain(alias) == plain(self.asked)), None)
        shown = title if alias is None else f"{alias} ({title})"
        return f"{shown}, modified ({', '.join(self.changes)})" if self.changes else shown
