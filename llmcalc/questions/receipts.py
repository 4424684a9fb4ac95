"""Receipts: an engine's measured memory terms from a log, which replace llmcalc's estimates of these terms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..accelerator import Hardware
from ..errors import InputError, one_line
from ..frameworks.engines.engine import Engine, EngineMemory, EngineVersion
from ..frameworks.engines.logged_sizes import RECEIPT_FIELD, LoggedSizes
from ..frameworks.logs.log_contents import ParsedLog
from ..frameworks.logs.log_text import read_log_text
from ..frameworks.logs.registry import read_log
from ..sources.preset import Preset
from ..sources.presets import known_model
from .logs import bytes_in_use_before_run, modelled_flags_in_log

MEASURED_TERMS = ("weights", "profile_run", "non_torch", "cuda_graphs")
"""Memory terms of a log that replace computed terms."""

MODEL_INDEPENDENT_TERMS = ("non_torch",)
"""Memory terms whose bytes are the same for every model."""

VERSION_INDEPENDENT_TERMS = ("weights",)
"""Memory terms whose bytes are the same in every version of an engine."""


@dataclass(frozen=True)
class ReceiptFile:
    """A log of a start of the engine, whose measured memory terms replace the estimates. file: the log's path."""

    file: str
    preset: Preset
    engine: Engine
    version: EngineVersion

    @cached_property
    def parsed_log(self) -> ParsedLog:
        """The parsed log. Raises `InputError` if it is of another engine, or has no measured memory terms."""
        receipt_log = read_log(self.file, read_log_text(self.file))
        if receipt_log.program != self.engine.name:
            raise InputError(
                f"--receipt {self.file}: is a log of {receipt_log.title}; expected one of {self.engine.title}"
            )
        return receipt_log

    @cached_property
    def differing_model_name(self) -> str:
        """The model that the log names, if it differs from the question's model; otherwise empty."""
        known_preset = known_model(self.parsed_log.model)
        return "" if known_preset is None or known_preset.model == self.preset.model else known_preset.name

    @cached_property
    def differing_engine_version(self) -> str:
        """The log's engine version, if it has other memory rules than the question's version; else empty."""
        logged_version = self.parsed_log.version
        has_same_rules = (
            not logged_version or self.engine.named_version(logged_version).rules_version == self.version.rules_version
        )
        return "" if has_same_rules else logged_version

    @cached_property
    def terms(self) -> dict[str, int]:
        """The measured memory terms that are valid for the question's model and version, with their bytes.

        Raises `InputError` if none applies.
        """
        replaceable_names = [
            term_name
            for term_name in MEASURED_TERMS
            if (not self.differing_model_name or term_name in MODEL_INDEPENDENT_TERMS)
            and (not self.differing_engine_version or term_name in VERSION_INDEPENDENT_TERMS)
        ]
        measured_bytes = {
            log_term.name: log_term.value
            for log_term in self.parsed_log.terms
            if log_term.name in replaceable_names and log_term.value >= 0
        }
        if not measured_bytes:
            names_text = " and ".join(
                filter(
                    None,
                    (
                        self.differing_model_name,
                        self.differing_engine_version and f"version {self.differing_engine_version}",
                    ),
                )
            )
            refusal_reason = f"is of {names_text}" if names_text else f"has none of {', '.join(MEASURED_TERMS)}"
            raise InputError(f"--receipt {self.file}: {refusal_reason}; expected a log of this model and version")
        return measured_bytes

    def with_receipt(self, engine_flags: Mapping[str, Any], hardware: Hardware) -> dict[str, Any]:
        """Returns the engine's flags, completed with the flags that the log of `--receipt` states.

        What the log does not state is a default where the log lists the arguments, else it is as in `engine_flags`.
        """
        logged_flags, _ = modelled_flags_in_log(self.parsed_log, self.engine)
        typed_flags = {
            flag_name: flag_value
            for flag_name, flag_value in engine_flags.items()
            if flag_name in ("quantize", "quantization")
        }
        run_flags = {**(typed_flags if self.parsed_log.has_complete_arguments else engine_flags), **logged_flags}
        try:
            engine_memory = self.engine.memory_on(self.preset, hardware, self.version, run_flags)
        except InputError:  # flags of the log that do not hold for this model
            engine_memory = self.engine.memory_on(self.preset, hardware, self.version, engine_flags)
        bytes_in_use = bytes_in_use_before_run(self.parsed_log, hardware) if self.engine.budgets_free_memory else {}
        bytes_by_term = bytes_in_use | self.terms
        return {**engine_flags, RECEIPT_FIELD: LoggedSizes(self.file, bytes_by_term, engine_memory.settings)}

    def notes(self, engine_memory: EngineMemory) -> Iterator[str]:
        """Yields notes on logged terms that are not used, with the reason, and on terms that the log lacks."""
        measured_names = {memory_term.name for memory_term in engine_memory.terms if memory_term.status == "measured"}
        dropped_names = [term_name for term_name in self.terms if term_name not in measured_names]
        if self.differing_model_name:
            yield f"{self.file} is of {self.differing_model_name}: only {', '.join(self.terms)} of it is used"
        if self.differing_engine_version:
            used_terms_text = ", ".join(self.terms)
            yield f"{self.file} is of version {self.differing_engine_version}: only {used_terms_text} of it is used"
        if dropped_names:
            yield f"{self.file}: {', '.join(dropped_names)} was measured with other flags, and is not used"
        if known_model(self.parsed_log.model) is None:
            term_name = one_line(self.parsed_log.model) or "no model"
            yield f"{self.file} names {term_name}; it is taken to be {self.preset.display}"
