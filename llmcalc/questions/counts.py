"""Answers about counts: parameters, FLOPs, cache and formulas, each of a model or of one rank of a layout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ..errors import InputError
from ..frozen import frozen
from ..optional import OPTIONAL_PARTS
from ..sources.preset import Preset
from ..sources.target_names import is_checkpoint, is_hub_id
from ..workload.counting import Pairs
from ..workload.execution import AttentionImplementation, LatentForm
from ..workload.inputs import NO_INPUTS, Inputs
from ..workload.workload import Phase

if TYPE_CHECKING:
    from ..costs.encoders import EncodedInputs
    from ..model import ModelSpec
    from ..parallel.counted_rank import RankRequest
    from ..parallel.rank_model import RankModel, SelectedRank
    from ..reports.answer import ReportedAnswer
    from ..reports.checkpoint import StoredParams
    from ..reports.flops import Flops
    from ..reports.kv import Cache
    from ..reports.measured_params import MeasuredParams
    from ..reports.params import Params
    from ..studies.draft import DraftCosts
    from ..studies.utilization import MeasuredRun
    from ..symbolic.formulas import RecomputeChoice
    from ..workload.run_config import RunConfig

Quantity: TypeAlias = Literal["params", "flops", "kv", "activations", "time", "all"]
"""Quantities that `llmcalc explain` explains; `all` is parameters, FLOPs and caches."""

PassPhase: TypeAlias = Literal["training", "prefill", "decode"]
"""Phases for which `llmcalc explain` explains the kernels' time."""

SCHEME_WITHOUT_ENGINE_ERROR = (
    "--quantize: the cache has its own format, --kv-dtype; for the tokens beside weights add --engine"
)
"""The error for `--quantize`, a scheme of weights, in a question about the cache without a serving engine."""


@frozen
class ParamsQuestion:
    """The input of `llmcalc params`: which parameters of a model, a draft model or a rank are counted.

    include: optional parts of the model that count.
    rank: the rank of a layout; None (default) for the whole model.
    draft: a draft of speculative decoding beside the model; None (default) without one.
    """

    include: frozenset[str] = frozenset()
    rank: RankRequest | None = None
    draft: Preset | None = None

    def __post_init__(self) -> None:
        _refuse_rank_of_draft(self.draft, self.rank)

    def answer(self, preset: Preset) -> Params:
        """Counts the parameters of a model."""
        from ..costs.params import params
        from ..reports.params import Params

        selected_rank = _selected_rank(
            self.rank, preset.model, lambda model: params(model, self.include).total, "holds"
        )
        parameter_count = params(preset.model if selected_rank is None else selected_rank.model, self.include)
        return Params.of_result(
            parameter_count, preset=preset, share=selected_rank, draft=_draft_costs_of_target(preset, self.draft)
        )


def _selected_rank(
    rank_request: RankRequest | None, spec: ModelSpec, rank_cost: Callable[[Any], int], cost_verb: str
) -> SelectedRank | None:
    """Returns the model of the requested rank; None without a request. Other arguments: as in `selected_rank`."""
    return None if rank_request is None else rank_request.selected_rank(spec, rank_cost, cost_verb)


def _draft_costs_of_target(target_preset: Preset, draft_preset: Preset | None, **pass_fields: Any) -> DraftCosts | None:
    """Returns the costs of a target model's draft; None without a draft. pass_fields: as in `draft_costs`."""
    if draft_preset is None:
        return None
    from ..studies.draft import draft_costs

    return draft_costs(target_preset, draft_preset, **pass_fields)


def _encoded_inputs(preset: Preset, inputs: Inputs, batch: int) -> EncodedInputs | None:
    """Returns the encoder passes and tokens of the images and audio per sequence; None without images or audio."""
    if not inputs.has_inputs:
        return None
    from ..costs.encoders import encoded_inputs

    return encoded_inputs(preset.model, inputs, batch)


def _check_image_options(inputs: Inputs, rank_request: RankRequest | None) -> None:
    """Raises `InputError` for a number of images without a size, and for images with one rank of a layout."""
    inputs.check()
    if inputs.has_inputs and rank_request is not None and rank_request.has_options:
        raise InputError(f"{inputs.option}: encoders are counted beside a whole model; expected no layout")


def _refuse_rank_of_draft(draft_preset: Preset | None, rank_request: RankRequest | None) -> None:
    """Raises `InputError` for a draft model in a question about one rank of a layout."""
    if draft_preset is not None and rank_request is not None and rank_request.has_options:
        raise InputError("--draft: counts a whole draft beside a whole model; expected no layout")


def params_of_file(
    target: str, measures_class: bool, *, has_changed_model: bool, rank_request: RankRequest | None = None
) -> StoredParams | MeasuredParams | None:
    """Counts parameters in a checkpoint's header or, with `measures_class`, in a transformers class.

    has_changed_model: whether options change the model, which is an error here.
    Returns None if the target is neither.
    Raises `InputError` for options that do not apply.
    """
    if measures_class:
        if has_changed_model:
            raise _refused_options_error("--measure: builds the class as the config says")
        if rank_request is not None and rank_request.has_options:
            raise InputError("--measure: counts a whole class; expected no layout")
        return _measure_params(target)
    if not is_checkpoint(Path(target)):
        return None
    if has_changed_model:
        raise _refused_options_error(f"{target}: a checkpoint's header is counted as it is")
    if rank_request is not None and rank_request.has_options:
        raise InputError(f"{target}: a checkpoint's header is counted as it is; expected no layout")
    from ..reports.checkpoint import StoredParams
    from ..sources.target import read_checkpoint_of_target

    return StoredParams(Path(target).name, read_checkpoint_of_target(Path(target)))


def _refused_options_error(refusal_reason: str) -> InputError:
    option_names = ["--set", "--head", *(optional_part.option for optional_part in OPTIONAL_PARTS.values())]
    return InputError(f"{refusal_reason}; expected no {', '.join(option_names[:-1])} or {option_names[-1]}")


def _measure_params(target: str) -> MeasuredParams:
    from ..reports.measured_params import MeasuredParams
    from ..sources.hub import fetch_config
    from ..witnesses.measured_modules import measure_config

    target_path = Path(target)
    if not target_path.exists() and is_hub_id(target):
        target_path = fetch_config(target)
    config_path = target_path / "config.json" if target_path.is_dir() else target_path
    return MeasuredParams(target_path.name if target_path.is_dir() else target, *measure_config(config_path))


@frozen
class FlopsQuestion:
    """The input of `llmcalc flops`. Each field is an argument of `llmcalc.flops`.

    phase: the pass; None (default) for the forward pass, or for a training step of a measured run.
    conventions: whether to compare with rules of thumb.
    rank: the rank of a layout; None (default) for the whole model.
    measured: a measured run, whose utilization is computed; None (default) without one.
    draft: a draft of speculative decoding beside the model; None (default) without one.
    inputs: images and audio of each sequence, whose tokens are added to it; none by default.
    """

    batch: int = 1
    seq: int | None = None
    context: int | None = None
    source: int | None = None
    phase: Phase | None = None
    pairs: Pairs = "full"
    attn_implementation: AttentionImplementation = "eager"
    recompute: str = "none"
    mla: LatentForm = "auto"
    conventions: bool = False
    include: frozenset[str] = frozenset()
    rank: RankRequest | None = None
    measured: MeasuredRun | None = None
    draft: Preset | None = None
    inputs: Inputs = NO_INPUTS

    def __post_init__(self) -> None:
        _refuse_rank_of_draft(self.draft, self.rank)
        _check_image_options(self.inputs, self.rank)
        if self.inputs.has_inputs and (self._is_measured or self.conventions or self.phase == "training"):
            raise InputError(
                f"{self.inputs.option}: encoders are counted in inference; expected --phase forward, prefill or "
                "decode, without --conventions"
            )
        if self.draft is not None and (self._is_measured or self.phase == "training"):
            raise InputError("--draft: drafts tokens in inference; expected --phase forward, prefill or decode")
        for option_name, is_typed in (("--conventions", self.conventions), ("--tokens-per-second", self._is_measured)):
            if is_typed and self.rank is not None and self.rank.has_options:
                raise InputError(f"{option_name}: rules of thumb count whole models; expected no layout")

    @property
    def _is_measured(self) -> bool:
        return self.measured is not None and self.measured.has_rate

    def _run_config(
        self, preset: Preset, attention: AttentionImplementation, recompute: str, added_tokens: int = 0
    ) -> RunConfig:
        from ..costs.flops import run_config_of

        phase = self.phase or ("training" if self._is_measured else "forward")
        return run_config_of(
            preset.model,
            self.batch,
            self.seq,
            self.context,
            self.source,
            phase,
            self.pairs,
            attention,
            recompute,
            self.mla,
            added_tokens,
        )

    def answer(self, preset: Preset) -> Flops:
        """Counts the FLOPs of a model."""
        from ..costs.flops import flops
        from ..reports.flops import Flops

        encoded_inputs = _encoded_inputs(preset, self.inputs, self.batch)
        added_tokens = 0 if encoded_inputs is None else encoded_inputs.added_tokens
        run_config = self._run_config(preset, self.attn_implementation, self.recompute, added_tokens)
        if added_tokens:
            lengthened_field = "context" if run_config.phase == "decode" else "seq"
            run_config = run_config.with_workload(
                **{lengthened_field: getattr(run_config.workload, lengthened_field) + added_tokens}
            )
        selected_rank = _selected_rank(
            self.rank, preset.model, lambda model: flops(model, run_config, self.include).total, "computes"
        )
        if selected_rank is None:
            flop_count = flops(preset.model, run_config, self.include, encoded_inputs)
        else:
            flop_count = flops(selected_rank.model, selected_rank.run_config(run_config), self.include)
        if self.measured is not None and self.measured.has_rate:
            model_flop_count = flops(preset.model, self._run_config(preset, "eager", "none"), self.include)
            return Flops.of_result(
                flop_count, preset=preset, utilization=self.measured.compare(model_flop_count, flop_count)
            )
        workload = run_config.workload
        draft_costs = _draft_costs_of_target(
            preset, self.draft, batch=workload.batch, seq=workload.seq + workload.context, run_config=run_config
        )
        if not self.conventions:
            return Flops.of_result(flop_count, preset=preset, share=selected_rank, draft=draft_costs)
        from ..studies.flop_rules import flop_rules_for

        return Flops.of_result(flop_count, preset=preset, rules=tuple(flop_rules_for(flop_count)), draft=draft_costs)


@frozen
class CacheQuestion:
    """The input of `llmcalc kv`. Each field is an argument of `llmcalc.kv`.

    rank: the rank of a layout; None (default) for the whole model.
    draft: a draft of speculative decoding beside the model; None (default) without one.
    inputs: images and audio of each sequence, whose tokens are added to it; none by default.
    """

    batch: int = 1
    seq: int | None = None
    kv_dtype: str = "bfloat16"
    source: int | None = None
    rank: RankRequest | None = None
    draft: Preset | None = None
    inputs: Inputs = NO_INPUTS

    def __post_init__(self) -> None:
        _refuse_rank_of_draft(self.draft, self.rank)
        _check_image_options(self.inputs, self.rank)
        if self.rank is not None and "cp" in self.rank.sizes:
            raise InputError(f"--cp {self.rank.sizes['cp']}: splits the sequences of training; expected no --cp")

    def answer(self, preset: Preset) -> Cache:
        """Computes the bytes of a model's cache."""
        from ..costs.cache import CacheSize, kv
        from ..costs.context_length import default_context_tokens
        from ..reports.kv import Cache

        encoded_inputs, seq = _encoded_inputs(preset, self.inputs, self.batch), self.seq
        if encoded_inputs is not None:
            text_tokens = (
                default_context_tokens(preset.model, added_tokens=encoded_inputs.added_tokens) if seq is None else seq
            )
            seq = text_tokens + encoded_inputs.added_tokens

        def cache(model: ModelSpec | RankModel) -> CacheSize:
            return kv(model, self.batch, seq, self.kv_dtype, self.source, encoded_inputs)

        selected_rank = _selected_rank(self.rank, preset.model, lambda model: cache(model).bytes, "caches")
        cache_size = cache(preset.model if selected_rank is None else selected_rank.model)
        workload = cache_size.workload
        sequence_fields = {"batch": workload.batch, "seq": workload.seq, "kv_dtype": self.kv_dtype}
        draft_costs = _draft_costs_of_target(preset, self.draft, **sequence_fields)
        return Cache.of_result(cache_size, preset=preset, share=selected_rank, draft=draft_costs)


QUANTITIES_BY_SETTING = {
    "batch": ("activations", "time"),
    "attn_implementation": ("activations",),
    "recompute": ("activations",),
    "hardware": ("time",),
    "phase": ("time",),
    "stack": ("time",),
}
"""Option of `llmcalc explain` → the quantities to which the option applies."""


@frozen
class ExplainQuestion:
    """The input of `llmcalc explain`: which formulas are shown, and the values at which they are evaluated.

    node: a part, by the end of its path; None for the whole model.
    quantity: the quantity to explain.
    seq, pairs, kv_dtype: the run in which FLOPs and caches are evaluated.
    batch, attn_implementation, recompute: settings of a training pass, for activations only; None if not given.
    latex: whether the text is LaTeX.
    bibtex: whether BibTeX entries of the sources are added to LaTeX.
    include: optional parts of the model that count.
    rank: the rank of a layout; None (default) for the whole model.
    hardware, phase, stack: of time only; None if not given.
    """

    node: str | None = None
    quantity: Quantity = "all"
    seq: int | None = None
    pairs: Pairs = "full"
    kv_dtype: str = "bfloat16"
    batch: int | None = None
    attn_implementation: AttentionImplementation | None = None
    recompute: RecomputeChoice | None = None
    latex: bool = False
    bibtex: bool = False
    include: frozenset[str] = frozenset()
    rank: RankRequest | None = None
    hardware: str | None = None
    phase: PassPhase | None = None
    stack: str | None = None

    def __post_init__(self) -> None:
        """Raises `InputError` for settings that do not apply to the quantity."""
        if self.bibtex and not self.latex:
            raise InputError("--bibtex: adds entries to LaTeX; expected --latex too")
        for setting_name, explained_quantities in QUANTITIES_BY_SETTING.items():
            if getattr(self, setting_name) is not None and self.quantity not in explained_quantities:
                option_name, quantities_text = f"--{setting_name.replace('_', '-')}", " and ".join(explained_quantities)
                raise InputError(
                    f"{option_name}: only applies to {quantities_text}; expected --quantity "
                    f"{explained_quantities[0]} too"
                )
        if self.quantity in ("activations", "time") and self.rank is not None and self.rank.has_options:
            command_name = {"activations": "memory", "time": "time"}[self.quantity]
            raise InputError(
                f"--quantity {self.quantity}: counts one device; expected no layout (llmcalc {command_name} "
                f"counts every "
                "rank)"
            )
        if self.quantity == "time" and self.hardware is None:
            raise InputError("--quantity time: of which accelerator? expected --hardware too, such as h100")
        if self.quantity == "time" and self.latex:
            raise InputError("--latex: has no form of times; expected --quantity of params, flops, kv or activations")

    def answer(self, preset: Preset, has_raw_values: bool = False) -> ReportedAnswer:
        """Explains the formulas of a model. has_raw_values: whether cells are raw values instead of text."""
        from ..costs.cache_formats import cache_format
        from ..costs.context_length import default_sequence_tokens
        from ..costs.params import params
        from ..reports.answer import ReportedAnswer
        from ..reports.explain import report
        from ..symbolic.explain import explain
        from ..symbolic.formulas import FormulaSetting, TrainingSetting
        from ..symbolic.symbolic_model import has_sympy, missing_sympy_error

        is_latex = self.latex
        if is_latex and not has_sympy():
            raise missing_sympy_error("--latex")
        spec, quantity = preset.model, self.quantity
        seq = default_sequence_tokens(spec) if self.seq is None else self.seq
        if quantity == "time":
            return self._time_answer(preset, seq)
        formula_setting = FormulaSetting(seq=seq, pairs=self.pairs, dtype=cache_format(self.kv_dtype).name)
        selected_rank = _selected_rank(self.rank, spec, lambda model: params(model, self.include).total, "holds")
        if quantity == "activations":
            from ..symbolic.activations import explain_activations

            training_setting = TrainingSetting(
                self.batch or 1, self.attn_implementation or "eager", self.recompute or "none"
            )
            explanation = explain_activations(spec, self.node, formula_setting, training_setting, self.include)
        else:
            explanation = explain(
                spec if selected_rank is None else selected_rank.model,
                self.node,
                quantity,
                formula_setting,
                self.include,
            )
        built_report = report(
            preset,
            explanation,
            is_latex,
            as_records=has_raw_values,
            with_bibtex=self.bibtex,
            selected_rank=selected_rank,
        )
        if quantity == "kv" and self.node is None and not is_latex:
            counted_model = spec if selected_rank is None else selected_rank.model
            built_report = built_report.with_document_entry(*self._cache_key_bytes_and_note(counted_model, seq))
        return ReportedAnswer(explanation, lambda: built_report)

    def _cache_key_bytes_and_note(self, model: Any, seq: int) -> tuple[str, int, str]:
        """Returns (JSON key, bytes, note) of one sequence's cache; the note is on windows and states that bound it."""
        from ..costs.cache import kv
        from ..units import memory_scale

        cache_size = kv(model, 1, seq, self.kv_dtype)
        byte_scale = memory_scale(cache_size.bytes)
        limit_text = (
            "" if cache_size.bytes == cache_size.bytes_per_token * seq else ", where windows or states end its growth"
        )
        return (
            "kv_bytes",
            cache_size.bytes,
            f"a sequence of {seq:,} tokens has {byte_scale.write(cache_size.bytes)} {byte_scale.name} of "
            f"cache{limit_text}",
        )

    def _time_answer(self, preset: Preset, seq: int) -> ReportedAnswer:
        """Explains the seconds of kernels when decoding a token per sequence, unless another phase is set."""
        from ..reports.answer import ReportedAnswer
        from ..reports.time_formulas import report
        from ..sources.hardware import find_hardware
        from ..studies.decoding import usual_stack
        from ..studies.time_formulas import time_formulas

        assert self.hardware is not None
        hardware, batch = find_hardware(self.hardware), self.batch or 1
        phase = self.phase or ("prefill" if preset.model.model_without_tokens else "decode")
        if phase == "decode" and preset.model.model_without_tokens:
            raise InputError(
                f"--phase decode: {preset.model.model_without_tokens} does not decode; expected prefill or training"
            )
        stack_name = self.stack or ("torch" if phase == "training" else usual_stack(hardware))
        formulas = time_formulas(preset.model, self.node, hardware, stack_name, phase, batch, seq)
        formula_sizes = {"node": self.node, "hardware": hardware.name, "stack": stack_name, "phase": phase}
        return ReportedAnswer(formulas, lambda: report(preset, formulas, formula_sizes | {"batch": batch, "seq": seq}))
