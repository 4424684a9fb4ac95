"""The contents of a preset or of a user's `.toml` file: architecture, sources, published figures and assumptions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, model_validator

from ..characters import printable
from ..errors import InputError, MissingExtra, short_repr
from ..model import ModelSpec
from ..record import TEXT_SECTIONS, FigureSource, Record
from ..units import DTYPE_BITS
from ..units import dtype as dtype_of
from .target_names import STDIN, normalized

if TYPE_CHECKING:
    from ..flow.module_names import Checkpoint


class PublishedFigures(Record):
    """The figures (such as parameter counts) that a publisher states, or that published weights show.

    parameters: exact parameter count of the released weights.
    parameters_difference: the model's own parameters minus that count; default 0.
    parameters_note: what that count includes or excludes compared with the model's own parameters.
    nominal: the rounded figure (`8B`).
    nominal_without_head: whether the rounded figure leaves out the model's head.
    active: active parameters of a mixture of experts, rounded.
    training_tokens: tokens of the published training run, rounded (`15T`).
    """

    parameters: int | None = Field(default=None, gt=0, strict=True)
    parameters_difference: int = Field(default=0, strict=True)
    parameters_note: str | None = None
    nominal: str | None = None
    nominal_without_head: bool = False
    active: str | None = None
    training_tokens: str | None = None


class Training(Record):
    """The settings of the published training run. They change neither parameters nor FLOPs of the forward pass.

    dropout: share of activations that are set to zero after embeddings, attention and feed-forward networks.
    attention_dropout: share of attention's weights that are set to zero.
    weight_decay: coefficient of decoupled weight decay (AdamW).
    z_loss: coefficient of the loss on the logarithm of the softmax's denominator.
    auxiliary_loss: coefficient of the loss that balances the experts' load.
    label_smoothing: share of the target's probability that is spread over the vocabulary.
    optimizer: its name as published, such as `AdamW`.
    step_tokens: tokens of a training step as published, at the end if the steps grow.
    note: what else is published of these settings.
    """

    dropout: float | None = Field(default=None, ge=0, lt=1, strict=True)
    attention_dropout: float | None = Field(default=None, ge=0, lt=1, strict=True)
    weight_decay: float | None = Field(default=None, ge=0, strict=True, allow_inf_nan=False)
    z_loss: float | None = Field(default=None, ge=0, strict=True, allow_inf_nan=False)
    auxiliary_loss: float | None = Field(default=None, ge=0, strict=True, allow_inf_nan=False)
    label_smoothing: float | None = Field(default=None, ge=0, lt=1, strict=True)
    optimizer: str | None = None
    step_tokens: int | None = Field(default=None, gt=0, le=10**9, strict=True)
    note: str | None = None


LOADED_FIELDS = ("name", "asked", "changes", "config", "named_checkpoint", "notes", "run_notes")
"""Fields of `Preset` that are set when a model is loaded, and cannot be stated in a file."""


class Preset(Record):
    """A named model with its sources. A user's file requires only `model`.

    title: name for people, such as `Llama 3 8B`; by default the file's name.
    aliases: other names, such as the hub id.
    developer: who trained it.
    released: date of its release: a year, a year and a month, or a day.
    sources: where the model's figures stand, each with what it gives and the day on which it was read.
    published: figures that the publisher states.
    training: settings of the published training run.
    model: the architecture.
    name: name of the preset or of the file.
    asked: the TARGET as the user wrote it.
    changes: the overrides applied to the model, each `path=value`.
    notes: remarks for the user from the reader of the file.
    run_notes: remarks for the user on what the TARGET implies for a run, such as the context of a tag of Ollama's.
    config: the Hugging Face config that the model was read from.
    named_checkpoint: hub id whose config cannot be read and whose name states this preset; empty for other models.
    dtype: number format of the published weights.
    state_dtype: number format of recurrent states that the config states (`mamba_ssm_dtype`, `mamba_ssm_cache_dtype`).
    rope_parameters: how rotary positions are scaled, as the config of that name states it, or its tables by the kind of
        layer (`full_attention`, `sliding_attention`); none by default.
    quantization_config: how the published weights are stored, the table of that name in their config; none by default.
    assumptions: field that was never published → the assumed value and the reason.
    omissions: what the description leaves out of the published model, in sentences that are among the notes.
    """

    name: str = ""
    asked: str = ""
    changes: tuple[str, ...] = ()
    title: str = ""
    aliases: tuple[str, ...] = ()
    developer: str = ""
    released: str = Field(default="", pattern=r"^(\d{4}(-\d{2}){0,2})?$")
    dtype: str = "bfloat16"
    state_dtype: str | None = None
    rope_parameters: dict[str, Any] | None = None
    quantization_config: dict[str, Any] | None = None
    sources: tuple[FigureSource, ...] = ()
    published: PublishedFigures = PublishedFigures.model_construct()
    training: Training = Training.model_construct()
    assumptions: tuple[str, ...] = ()
    omissions: tuple[Annotated[str, Field(max_length=200)], ...] = Field(default=(), max_length=8)
    notes: tuple[str, ...] = ()
    run_notes: tuple[str, ...] = ()
    config: dict[str, Any] | None = None
    named_checkpoint: str = ""
    model: ModelSpec

    @model_validator(mode="before")
    @classmethod
    def _note_omissions(cls, preset_fields: Any) -> Any:
        """Adds the preset's `omissions` (parts that the description leaves out) to the notes."""
        if not isinstance(preset_fields, dict) or not isinstance(preset_fields.get("omissions"), list | tuple):
            return preset_fields
        notes = tuple(preset_fields.get("notes", ()))
        added_notes = tuple(omission for omission in preset_fields["omissions"] if omission not in notes)
        return {**preset_fields, "notes": (*added_notes, *notes)}

    def check_fields(self) -> None:
        for field_name in ("dtype", "state_dtype"):
            try:
                dtype_of(getattr(self, field_name) or "bfloat16")
            except ValueError as error:
                raise ValueError(f"{field_name}: {error}") from None
        if not self.title.isprintable():
            raise ValueError("title: has characters that cannot be printed; expected text on one line")
        if not all(omission.isprintable() for omission in self.omissions):
            raise ValueError("omissions: has characters that cannot be printed; expected sentences on one line each")

    @property
    def typed_name(self) -> str:
        """The TARGET as the user typed it, without overrides; for a preset that was not typed, its name."""
        return self.asked or self.name

    @property
    def target(self) -> str:
        """The TARGET as the user typed it, with the overrides."""
        return self.typed_name + ("?" + "&".join(self.changes) if self.changes else "")

    @property
    def checked_date(self) -> date | None:
        """The latest date on which an original source was checked; None without a date."""
        return max((source.checked for source in self.sources if source.checked is not None), default=None)

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The module names and quantization of the published checkpoint; None for a preset that states neither.

        It follows from the config, or from the storage of the weights that the preset states.
        """
        if self.config is None:
            from ..flow.module_names import Checkpoint

            table = self.quantization_config
            return None if table is None else Checkpoint({"quantization_config": table}, {}, {})
        from .huggingface.checkpoint import checkpoint_of

        return checkpoint_of(self.config)

    @property
    def storage_table(self) -> dict[str, Any] | None:
        """Returns the config table that describes how the published weights are stored; None if unquantized."""
        if self.config is None:
            return self.quantization_config
        sections = (self.config, *map(self.config.get, TEXT_SECTIONS))
        quantization_tables = (section.get("quantization_config") for section in sections if isinstance(section, dict))
        return next(
            (quantization_table for quantization_table in quantization_tables if isinstance(quantization_table, dict)),
            None,
        )

    @property
    def has_quantized_weights(self) -> bool:
        """Whether the published weights are quantized."""
        return self.storage_table is not None or DTYPE_BITS.get(self.dtype, 16) < 16

    def remark_on_sizes(self, checkpoint_name: str) -> str:
        """Returns the end of an error message, which says that a quantized checkpoint may have other sizes."""
        return (
            f". These are the sizes of {self.name}, as {short_repr(checkpoint_name)} is not here: quantized "
            "checkpoints may have padded ones; expected its config.json as TARGET"
        )

    def __repr__(self) -> str:
        return printable(f"<Preset {self.name}: {self.display}>")

    __str__ = __repr__

    @property
    def display(self) -> str:
        """The name for headings: the title (after a typed hub id) and the overrides."""
        title = self.title or self.name
        preset_alias = next(
            (other_alias for other_alias in self.aliases if normalized(other_alias) == normalized(self.asked)), None
        )
        hub_id = self.named_checkpoint or preset_alias
        display_text = title if hub_id is None else f"{hub_id} ({title})"
        return f"{display_text}, modified ({', '.join(self.changes)})" if self.changes else display_text


@contextmanager
def target_in_errors(preset: Preset | None) -> Iterator[None]:
    """Returns a context manager that adds the typed TARGET to an `InputError`, except one for a missing package."""
    try:
        yield
    except MissingExtra:
        raise
    except InputError as error:
        if preset is None:
            raise
        target_name = "standard input" if preset.typed_name == STDIN else preset.typed_name
        raise InputError(f"{target_name}: {error}") from None
