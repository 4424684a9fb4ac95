"""Several models side by side, and other shapes of one budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..costs.context_length import usual_sequence
from ..costs.params import ParameterCount
from ..errors import InputError
from ..reports.answer import ReportedAnswer
from ..sources.preset import Preset, about
from ..studies.selection import EVERY_MODEL, Selection
from ..units import parse_count

if TYPE_CHECKING:
    from ..reports.compare import Layout


def check_compared(targets: bool, everything: bool, selection: Selection) -> None:
    """Raises `InputError` unless models are given, or all are asked for. targets: whether models are given."""
    if everything and targets:
        raise InputError("--all: it is of all presets; expected --all or TARGETs, not both")
    if not everything and not targets:
        raise InputError("missing argument TARGET; expected one or more, or --all (llmcalc compare --help explains)")
    if not everything and selection != EVERY_MODEL:
        raise InputError("compare: filters are for --all; expected --all, or no filter")


def ask_compare(
    compared: Sequence[tuple[Preset, ParameterCount | None]],
    seq: int | None = None,
    kv_dtype: str = "bfloat16",
    sort: str | None = None,
    layout: Layout = "terminal",
) -> ReportedAnswer:
    """Models side by side.

    compared: the models, each with its parameters where they are counted already. seq: tokens of each sequence; by
    default the most that all of them usually take. sort: the quantity to order by, smallest first; by default as given.
    layout: how the tables are laid out.
    """
    from ..reports.compare import report
    from ..studies.compare import quantities, sort_order

    tokens = min(usual_sequence(preset.model) for preset, _ in compared) if seq is None else seq  # the same for all
    models = []
    for preset, count in compared:
        with about(preset):
            models.append(quantities(preset.model, tokens, kv_dtype, count))
    found = [(compared[i][0], models[i]) for i in sort_order(models, sort)]
    return ReportedAnswer(tuple(found), lambda: report(found, layout))


@dataclass(frozen=True)
class ShapeQuestion:
    """Other shapes of a budget. The fields are the options of `llmcalc shape`; None for one that is not given."""

    params: str | int | None = None
    flops: str | float | None = None
    tokens: str | int | None = None
    ffn_ratio: str | None = None
    head_dim: int | None = None
    kv_ratio: str | None = None
    vocab: str | int | None = None
    tie: bool | None = None
    rows: int = 12
    tolerance: float = 2.0
    seq: int | None = None
    kv_dtype: str = "bfloat16"

    def answer(
        self,
        target: Any,
        read_model: Callable[[Any], Preset],
        overrides: Sequence[str] = (),
        *,
        literature: bool = False,
        flat: bool = False,
    ) -> ReportedAnswer:
        """Shapes with the ratios of a model.

        target: the model; None for the usual one of the budget. read_model: reads it. overrides: its changed fields.
        literature: whether a table says what studies find. flat: one table of raw values.
        """
        from ..reports.shape import report
        from ..studies.shape import budget_for, family, proportion, standard, study

        self._refuse_contradictions(overrides, target is None)
        budgets = _count(self.params, "--params"), _count(self.flops, "--flops"), _count(self.tokens, "--tokens")
        preset = read_model(standard(*budgets) if target is None else target)
        own = None if target is None else preset.model
        seq = usual_sequence(preset.model) if self.seq is None else self.seq
        with about(None if target is None else preset):
            members = family(
                preset.model,
                self.head_dim,
                proportion(self.kv_ratio, "--kv-ratio"),
                proportion(self.ffn_ratio, "--ffn-ratio"),
                _count(self.vocab, "--vocab"),
                self.tie,
            )
            budget = budget_for(own, *budgets, seq)
            found = study(members, budget, own, self.rows, self.tolerance, seq, self.kv_dtype)
        return ReportedAnswer(found, lambda: report(found, preset, own is not None, literature, flat=flat))

    def _refuse_contradictions(self, overrides: Sequence[str], no_target: bool) -> None:
        """Raises `InputError` where --set and an option set the same size, or --set a size that a study chooses."""
        given = {
            "head_dim": ("--head-dim", self.head_dim),
            "num_key_value_heads": ("--kv-ratio", self.kv_ratio),
            "intermediate_size": ("--ffn-ratio", self.ffn_ratio),
            "vocab_size": ("--vocab", self.vocab),
            "tie_word_embeddings": ("--tie" if self.tie else "--no-tie", self.tie),
        }
        for override in overrides:
            field = override.partition("=")[0].strip().rpartition(".")[2]
            option, value = given.get(field, ("", None))
            if value is not None:
                raise InputError(f"{option} and --set {override.strip()}: both set {field}; expected one of them")
            if no_target and field in ("hidden_size", "num_hidden_layers"):
                raise InputError(
                    f"--set {override.strip()}: without a TARGET, shape chooses hidden_size and num_hidden_layers "
                    "from the budget; expected other fields, or a TARGET"
                )


def _count(value: str | float | None, option: str) -> int | None:
    return None if value is None else parse_count(str(value), option)
