"""The questions of `compare` (several models) and `shape` (other shapes of equal cost)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..costs.context_length import default_sequence_tokens
from ..costs.params import ParameterCount
from ..errors import InputError
from ..frozen import frozen
from ..reports.answer import ReportedAnswer
from ..sources.preset import Preset, target_in_errors
from ..studies.model_selection import EVERY_MODEL, ModelFilter
from ..units import parse_count
from ..workload.validation import number_text

if TYPE_CHECKING:
    from ..accelerator import Hardware
    from ..reports.compare import TableLayout
    from ..studies.timed_run import TimedRun


def check_comparison_options(
    has_targets: bool, all_presets: bool, model_filter: ModelFilter, sort_key: str | None
) -> None:
    """Raises `InputError` unless models or `--all` are given, and for an unknown `sort_key`, before models are read.

    has_targets: whether models are given.
    """
    from ..studies.compare import check_sort_key

    check_sort_key(sort_key)
    if all_presets and has_targets:
        raise InputError("--all: compares all presets; expected --all or TARGETs, not both")
    if not all_presets and not has_targets:
        raise InputError("missing argument TARGET; expected one or more, or --all (llmcalc compare --help explains)")
    if not all_presets and model_filter != EVERY_MODEL:
        raise InputError("compare: filters are for --all; expected --all, or no filter")


def ask_compare(
    compared_models: Sequence[tuple[Preset, ParameterCount | None]],
    seq: int | None = None,
    kv_dtype: str = "bfloat16",
    sort_key: str | None = None,
    layout: TableLayout = "terminal",
    hardware: Hardware | None = None,
    users: int | None = None,
) -> ReportedAnswer:
    """Compares models side by side: sizes, ratios, costs per token and, on an accelerator, the time per token.

    compared_models: the models, each with its parameters if they are counted already.
    seq: tokens per sequence; default the shortest usual sequence of the models.
    kv_dtype: format of the KV cache.
    sort_key: the quantity to order by, smallest first; default the given order.
    layout: the layout of the tables.
    hardware: accelerator on which a token of every user is timed; default none. users: sequences at once; default 1.
    Raises `InputError` for users without an accelerator.
    """
    from ..reports.compare import DecodingLoad, report
    from ..studies.compare import quantities_of_model, sort_order

    # the same for all
    sequence_tokens = (
        min(default_sequence_tokens(preset.model) for preset, _ in compared_models) if seq is None else seq
    )
    if users is not None and hardware is None:
        raise InputError("--users: is of the time of a token; expected --hardware too")
    decoding_load = None if hardware is None else DecodingLoad(hardware.title, users or 1)
    compared_quantities = []
    for preset, parameter_count in compared_models:
        with target_in_errors(preset):
            model_quantities = quantities_of_model(preset.model, sequence_tokens, kv_dtype, parameter_count)
            if hardware is not None:
                model_quantities = replace(
                    model_quantities, decoding=_decoding_time(preset, hardware, users or 1, sequence_tokens, kv_dtype)
                )
            compared_quantities.append(model_quantities)
    sorted_models = [
        (compared_models[model_index][0], compared_quantities[model_index])
        for model_index in sort_order(compared_quantities, sort_key)
    ]
    return ReportedAnswer(tuple(sorted_models), lambda: report(sorted_models, layout, decoding_load=decoding_load))


def _decoding_time(
    preset: Preset, hardware: Hardware, users: int, sequence_tokens: int, kv_dtype: str
) -> TimedRun | None:
    """Returns the timed decoding of all users; None for a model without tokens, or if weights and cache do not fit.

    sequence_tokens: of each sequence in the cache.
    """
    from ..device_memory.settings import settings_of
    from .runs import RunQuestion
    from .time_and_cost_options import TimeOptions
    from .times import timed_run

    if preset.model.model_without_tokens:
        return None
    settings = settings_of(phase="decode", batch=users, seq=sequence_tokens, kv_dtype=kv_dtype)
    decoding_run = timed_run(RunQuestion(preset=preset, settings=settings, accelerators=(hardware,)), TimeOptions())
    return decoding_run if decoding_run.fits else None


@frozen
class ShapeQuestion:
    """The question of `llmcalc shape`. Each field is an option; None if not given."""

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
        reference_model: Any,
        read_model: Callable[[Any], Preset],
        overrides: Sequence[str] = (),
        *,
        cites_literature: bool = False,
        is_flat: bool = False,
    ) -> ReportedAnswer:
        """Finds shapes with a model's proportions that cost as much as the budget (parameters, FLOPs or cache).

        reference_model: the model; None for the standard model of the budget.
        read_model: function that reads it.
        overrides: fields that `--set` changes.
        cites_literature: whether a table compares with published studies.
        is_flat: whether there is one table of raw values.
        """
        from ..reports.shape import report
        from ..studies.shape import budget_for, build_family, find_shapes, parse_ratio, standard_preset

        self._refuse_contradictions(overrides, reference_model is None)
        budget_options = (
            _parse_count(self.params, "--params"),
            _parse_count(self.flops, "--flops"),
            _parse_count(self.tokens, "--tokens"),
        )
        preset = read_model(standard_preset(*budget_options) if reference_model is None else reference_model)
        target_model = None if reference_model is None else preset.model
        seq = default_sequence_tokens(preset.model) if self.seq is None else self.seq
        with target_in_errors(None if reference_model is None else preset):
            kv_ratio = parse_ratio(self.kv_ratio, "--kv-ratio")
            ffn_ratio = parse_ratio(self.ffn_ratio, "--ffn-ratio")
            model_family = build_family(
                preset.model, self.head_dim, kv_ratio, ffn_ratio, _parse_count(self.vocab, "--vocab"), self.tie
            )
            cost_budget = budget_for(target_model, *budget_options, seq)
            matching_shapes = find_shapes(
                model_family, cost_budget, target_model, self.rows, self.tolerance, seq, self.kv_dtype
            )
        return ReportedAnswer(
            matching_shapes,
            lambda: report(matching_shapes, preset, target_model is not None, cites_literature, has_raw_table=is_flat),
        )

    def _refuse_contradictions(self, overrides: Sequence[str], has_no_target: bool) -> None:
        """Raises `InputError` if `--set` sets a size that another option sets or that the search varies."""
        options_by_field = {
            "head_dim": ("--head-dim", self.head_dim),
            "num_key_value_heads": ("--kv-ratio", self.kv_ratio),
            "intermediate_size": ("--ffn-ratio", self.ffn_ratio),
            "vocab_size": ("--vocab", self.vocab),
            "tie_word_embeddings": ("--tie" if self.tie else "--no-tie", self.tie),
        }
        for override in overrides:
            field_name = override.partition("=")[0].strip().rpartition(".")[2]
            option_name, option_value = options_by_field.get(field_name, ("", None))
            if option_value is not None:
                raise InputError(
                    f"{option_name} and --set {override.strip()}: both set {field_name}; expected one of them"
                )
            if has_no_target and field_name in ("hidden_size", "num_hidden_layers"):
                raise InputError(
                    f"--set {override.strip()}: without a TARGET, shape chooses hidden_size and num_hidden_layers "
                    "from the budget; expected other fields, or a TARGET"
                )


def _parse_count(count_value: str | float | None, option_name: str) -> int | None:
    return None if count_value is None else parse_count(number_text(option_name, count_value), option_name)
