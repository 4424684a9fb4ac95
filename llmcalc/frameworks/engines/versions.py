"""Parses versions of engines, and defines ranges of versions with the same memory rules."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Generic, Literal, Self, TypeAlias, TypeVar

from pydantic import Field, model_validator

from ...accelerator import Hardware
from ...errors import InputError, short_repr
from ...record import Record
from ...sources.files import parse_toml, read_text, validate
from ...sources.presets import presets_dir
from .engine import EngineVersion

VersionNumbers = tuple[int, ...]


@lru_cache(maxsize=1024)
def parse_version(version_text: str) -> VersionNumbers:
    """Returns a version as numbers: `0.9.2` → (0, 9, 2). Raises `InputError` for other text."""
    version_match = re.fullmatch(
        r"[vb]?([0-9]{1,6}(?:\.[0-9]{1,6}){0,4})(?:[.+-]?(?:post|rc|dev|a|b)[0-9]{0,6})?", version_text.strip()
    )
    if version_match is None:
        raise InputError(
            f"--engine: {short_repr(version_text)} is not a version; expected numbers such as 0.19 or 0.9.2"
        )
    return tuple(int(number_text) for number_text in version_match[1].split("."))


class VersionRange(Record):
    """A range of versions, from the version `from` to the version `to`, or without an end."""

    start_version: str = Field(alias="from")
    to: str | None = None

    @property
    def first_version(self) -> VersionNumbers:
        """The first version in the range, as numbers."""
        return parse_version(self.start_version)

    @property
    def end_version(self) -> VersionNumbers | None:
        """The first version after the range, as numbers; None for an open range."""
        return None if self.to is None else parse_version(self.to)


class MeasuredOverhead(Record):
    """Memory that an engine takes besides weights and cache, measured in start-up logs, in MiB.

    mib: MiB. logs: number of logs. accelerators: the accelerators in these logs.
    """

    mib: int
    logs: int
    accelerators: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """The source of the measurement as text: the number of logs, and the accelerators."""
        if not self.logs:
            return "an assumption"
        accelerator_text = f" of {', '.join(self.accelerators)}" if self.accelerators else ""
        return f"{self.logs} log{'s' * (self.logs > 1)}{accelerator_text}"


class MeasuredCudaContext(MeasuredOverhead):
    """Measured device memory in use before the engine checks free memory: the CUDA context, and NCCL's buffers.

    devices: ranks, at least. link: beginning of the name of the accelerators' link; empty for any link.
    """

    devices: int
    link: str = ""


def has_link(hardware: Hardware, link_name: str) -> bool:
    """Whether the accelerator's link has a name that begins with `link_name`; true for an empty name."""
    return not link_name or (hardware.interconnect is not None and hardware.interconnect.name.startswith(link_name))


def measured_cuda_context(
    measured_rows: Iterable[MeasuredCudaContext], hardware: Hardware, device_count: int
) -> MeasuredCudaContext:
    """Returns the CUDA context measured with `device_count` ranks, preferably with the accelerator's type of link."""
    matching_rows = [
        measured_row
        for measured_row in measured_rows
        if measured_row.devices <= device_count and has_link(hardware, measured_row.link)
    ]
    return max(matching_rows, key=lambda measured_row: (measured_row.devices, measured_row.link))


class VersionRules(VersionRange):
    """The rules for memory in a range of versions, with the engine's source file and function that state them."""

    source: str
    function: str

    @property
    def source_location(self) -> str:
        """The engine's source file and function that state the memory rules."""
        return f"{self.source}, {self.function}"


RangeType = TypeVar("RangeType", bound=VersionRange)
RuleType = TypeVar("RuleType", bound=VersionRules)


def ranges_with_version(version_ranges: Iterable[RangeType], version_numbers: VersionNumbers) -> list[RangeType]:
    """Returns the ranges in a list that contain a version, in the list's order."""
    return [
        version_range
        for version_range in version_ranges
        if version_range.first_version <= version_numbers
        and (version_range.end_version is None or version_numbers < version_range.end_version)
    ]


class AddedModelClasses(Record):
    """Model classes that an engine has only since some version after `absent`.

    absent: the newest version whose list of models was read and does not have them.
    present: a later version whose list has them; empty if `absent` is the newest that was read.
    """

    absent: str
    present: str = ""
    classes: tuple[str, ...] = Field(min_length=1)


KernelUse: TypeAlias = Literal[
    "awq", "fp8", "packed-int", "nvfp4", "mxfp4", "fp8 cache", "fp8 latents", "sparse attention"
]
"""The quantized weights, quantized cache, or attention type that a kernel computes with."""


class MinimumCapability(VersionRange):
    """The minimum compute capability of NVIDIA GPUs for which a range of engine versions has kernels.

    kernels: the weights, cache or attention that the kernels compute with.
    source: the engine's source file and function, or its documents.
    """

    kernels: KernelUse
    capability: float
    source: str

    @property
    def kernel_purpose(self) -> str:
        """What needs the kernels (weights, cache or attention), as text for messages."""
        purpose_texts = {
            "fp8 cache": "a cache in fp8",
            "fp8 latents": "a cache of latents in fp8",
            "sparse attention": "attention with an indexer",
        }
        return purpose_texts.get(self.kernels, f"weights in {self.kernels}")

    @property
    def remedy(self) -> str:
        """Advice on what a user may change instead of the accelerator; empty if nothing helps."""
        if self.kernels == "sparse attention":
            return ""
        return " or a cache in 16 bits" if self.kernels.startswith("fp8 ") else " or weights in another format"


class EngineRecord(Record, Generic[RuleType]):
    """The fields that the files `presets/engines/NAME.toml` of all engines have in common."""

    name: str
    title: str
    newest: str
    versions: tuple[RuleType, ...] = Field(min_length=1)
    messages: dict[str, str]
    added_classes: tuple[AddedModelClasses, ...] = ()
    minimum_capabilities: tuple[MinimumCapability, ...] = ()

    @model_validator(mode="after")
    def _sort_versions(self) -> Self:
        first_versions = [version_rules.first_version for version_rules in self.versions]
        if first_versions != sorted(set(first_versions)):
            raise ValueError("versions: expected each start once, ascending")
        return self

    def rules(self, version_numbers: VersionNumbers) -> RuleType:
        """Returns the memory rules for a version."""
        return ranges_with_version(self.versions, version_numbers)[-1]

    def missing_kernels(self, capability: float, version_numbers: VersionNumbers) -> list[MinimumCapability]:
        """Returns the kernels that a version does not have for NVIDIA GPUs of this compute capability."""
        capabilities = {
            kernel_capability.kernels: kernel_capability
            for kernel_capability in ranges_with_version(self.minimum_capabilities, version_numbers)
        }  # the last row of each
        return [
            kernel_capability
            for kernel_capability in capabilities.values()
            if capability < kernel_capability.capability
        ]

    def missing_class_note(self, class_names: tuple[str, ...], engine_version: EngineVersion) -> str:
        """Returns a note if an engine version lacks the model's class; empty if it has one or nothing is known.

        class_names: the classes in `architectures` of the model's config.
        """
        for added_classes in self.added_classes:
            missing_names = [class_name for class_name in class_names if class_name in added_classes.classes]
            if missing_names and parse_version(engine_version.version) <= parse_version(added_classes.absent):
                later_version = ""
                if added_classes.present:
                    later_version = f"; expected --engine {self.name}=={added_classes.present} or later"
                return (
                    f"{self.title} {engine_version.version} has no class for {missing_names[0]}: it starts only if "
                    f"transformers' own class runs in it{later_version}"
                )
        return ""

    def class_notes(self, class_names: tuple[str, ...], engine_version: EngineVersion) -> list[str]:
        """Returns the notes on an engine version that lacks the model's class; none for other versions."""
        return [*filter(None, [self.missing_class_note(class_names, engine_version)])]

    def named_version(self, version_text: str) -> EngineVersion:
        """Returns the named version, or the newest for an empty text, with the version range that has the same rules.

        Raises `InputError` for a version that is older than all ranges.
        """
        version = version_text.removeprefix("v") or self.newest
        version_numbers = parse_version(version)
        earlier_rules = [
            version_rules for version_rules in self.versions if version_rules.first_version <= version_numbers
        ]
        if not earlier_rules:
            raise InputError(
                f"--engine: {self.title} {version} is older than what was read; expected "
                f"{self.versions[0].start_version} or newer"
            )
        remark = ""
        if not version_text:
            remark = f"no version is named: {self.title} {self.newest}, the newest that was read"
        elif version_numbers > parse_version(self.newest):
            remark = f"{self.title} {version} was not read; these are the rules of {self.newest}, the newest that was"
        return EngineVersion(version, earlier_rules[-1].start_version, remark)


RecordType = TypeVar("RecordType", bound=Record)


def read_engine_record(record_class: type[RecordType], file_name: str) -> RecordType:
    """Reads `presets/engines/NAME.toml` into a record of the given class."""
    toml_path = presets_dir() / "engines" / f"{file_name}.toml"
    return validate(record_class, parse_toml(read_text(toml_path), toml_path.name), toml_path.name)
