"""Finds accelerators: llmcalc's own presets, a user's TOML file, or a bare memory size.

The presets are one TOML file each in `presets/hardware`, found by name or alias. Each figure has a source in the file.
If a vendor prints sparse peaks, the file has the dense figure, with the arithmetic beside it.

One chip is one file, even if it is sold with several memory sizes, as Apple's are. The file lists the sizes as
`configurations`, each with the figures that differ, such as the bandwidth of an M4 Max with 36 GB. `m4-max-64gb` names
one of them, `m4-max` the largest. So 18 chips are 18 rows of the list instead of 60, a chip's sources are stated once,
and an unknown size is an error that names the known sizes.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

from ..accelerator import Hardware, HardwarePreset, MemoryConfiguration
from ..errors import InputError, suggest
from .files import parse_toml, read_text, validate
from .presets import presets_dir
from .target_names import normalized

COMMON_HARDWARE = (
    "t4",
    "rtx-3060",
    "rtx-4060-ti-16gb",
    "v100-32gb",
    "rtx-4090",
    "rtx-5090",
    "a100-40gb",
    "l40s",
    "m4-pro",
    "a100-80gb",
    "h100-sxm",
    "rtx-pro-6000",
    "m4-max",
    "h200",
    "b200",
    "mi300x",
    "tpu-v7",
    "b300",
    "mi355x",
    "m3-ultra",
)
"""The accelerators that `llmcalc memory` lists by default: common ones of every memory size."""

MEMORY_SIZE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)\s*(gib|gb|tib|tb|mib|mb)", re.IGNORECASE)
BYTES_BY_UNIT = {"mb": 10**6, "gb": 10**9, "tb": 10**12, "mib": 2**20, "gib": 2**30, "tib": 2**40}


def hardware_sort_key(hardware_name: str) -> list[tuple[int, int, str]]:
    """Returns a sort key by which numbers in names are compared by value: a10, a40, a100."""
    name_parts = re.findall(r"[0-9]+|[^0-9]+", hardware_name.lower())
    return [(0, int(name_part), "") if name_part.isdigit() else (1, 0, name_part) for name_part in name_parts]


MAKER_WORDS = re.compile(
    r"^\s*(?:(?:nvidia|amd|intel|tesla|geforce|quadro|instinct|radeon|apple|macbook|mac|pro|air|studio|mini)[\s_-]+)+",
    re.I,
)
"""Matches the vendor, brand or computer words before an accelerator's name, which are dropped."""

APPLE_COMPUTERS = {
    "macstudio": "m3-ultra, m4-max or m4-max-64gb",
    "macmini": "m4, m4-pro or m4-pro-48gb",
    "macbookpro": "m5, m4-pro, m4-max or m4-max-64gb",
    "macbookair": "m4 or m4-16gb",
    "mac": "m4, m4-pro or m4-max-64gb",
    "applesilicon": "m4, m4-pro or m4-max-64gb",
}
"""Name of an Apple computer without its chip → the chips with which it is sold, for the error message."""

NOTEBOOK_SERVICES = {"colab": "t4 (without a subscription), l4 or a100-40gb", "kaggle": "p100, or t4 with --devices 2"}
"""Notebook service (Colab, Kaggle, …) → the accelerators that it lends, for the error message.

Sources: https://mccormickml.com/2024/04/23/colab-gpus-features-and-pricing and
https://www.kaggle.com/docs/efficient-gpu-usage.
"""

NOTEBOOK_TPUS = {"colab": "tpu-v5e", "kaggle": "tpu-v5e --devices 8"}
"""Notebook service → the TPUs that it lends (https://github.com/jax-ml/jax-ai-stack/pull/242, of October 2025)."""

SURROUNDING_WORDS = re.compile(
    r"\b(?:gpus?|google|colab|kaggle|macbook(?:[\s_-]+(?:pro|air))?|mac[\s_-]*(?:mini|studio|pro)|imac|air|mini|studio)\b",
    re.I,
)
"""Matches words for a computer or a lending service next to an accelerator's name: `T4 GPU (Colab)`."""

PROCESSOR_WORD = re.compile(
    r"\b(?:cpu|ram|xeon|epyc|threadripper|ryzen|i[3579][\s-]?[0-9]{4,5}[a-z]{0,3}|core i[3579])\b", re.I
)
"""Matches words that name a CPU or its memory."""

SMALL_COMPUTER_WORD = re.compile(
    r"\b(?:raspberry|rpi ?[0-9]?|iphone|ipad|pixel ?[0-9]*|galaxy|android|steam ?deck|nuc"
    r"|snapdragon [0-9]|dimensity|exynos)\b",
    re.I,
)
"""Matches words that name a telephone, a tablet or a small computer."""

INTEGRATED_GPU = re.compile(
    r"(?<!gtx )(?<!geforce )(?:\b|(?<=radeon))[678][1-9]0m\b|\bvega ?(?:[3-9]|1[01])\b|\biris\b|\bintegrated\b|\bigpu\b"
    r"|\bu?hd (?:graphics|[0-9]{3})\b|\barc (?:1[34]0[vt]|graphics)\b",
    re.I,
)
"""Names of GPUs in processors, whose memory they share: AMD's Radeon 780M, Intel's Iris Xe, UHD and Arc 140V.

Sources: https://fpsbench.com/compare/gpu/amd-radeon-780m-vs-intel-hd-graphics-p4600 (the memory's size, type and
bandwidth are the system's) and https://cputronic.com/cpu/amd-ryzen-7-7840u.
"""

SRAM_CHIP = re.compile(r"\b(?:groq|lpu|cerebras|wse|cs-?[23]|sambanova)\b", re.I)
"""Names of accelerators that hold weights in the memory of many chips or of a whole wafer, without one beside the chip.

Source: https://dreaming.press/posts/groq-vs-cerebras-vs-sambanova-fast-inference.html
"""

TRADEMARK = re.compile(r"\((?:r|tm)\)", re.I)
"""The trademark signs that drivers print after vendor and brand names."""

COUNT_WORDS = {
    "dual": 2, "two": 2, "a pair of": 2, "triple": 3, "three": 3, "quad": 4, "four": 4, "six": 6, "eight": 8
}  # fmt: skip
"""Word for a number of accelerators, before their name → the number."""

ACCELERATOR_COUNT_PATTERNS = (
    re.compile(r"(?P<count>[0-9]{1,6})\s*[x×*]\s*(?P<name>.+)", re.I),
    re.compile(r"(?P<name>.+?)\s*[x×*:]\s*(?P<count>[0-9]{1,6})", re.I),
    re.compile(rf"(?P<count>{'|'.join(COUNT_WORDS)})[\s-]+(?P<name>.+)", re.I),
    re.compile(r"(?P<count>[0-9]{1,2})\s+(?P<name>.+)", re.I),
)
"""Forms of a number of accelerators and their name: `8x h100`, `rtx-4090 x2`, `H100:8`, `dual 3090`, `8 H100 80GB`."""

BOARD_NAME = re.compile(r"(?P<name>.+[a-z0-9])-(?P<count>[248])", re.I)
"""Form of a board with several GPUs of one scale-up domain: `mi300x-8`."""


LONGEST_NAME = 200
"""Largest number of letters of an accelerator's name. The patterns of names take time quadratic in the letters."""


class UnknownAccelerator(InputError):
    """Raised for a text that is neither an accelerator's name nor any other value that `--hardware` accepts."""


def _require_short_name(hardware_name: str) -> None:
    """Raises `InputError` for a name that is longer than any accelerator's."""
    if len(hardware_name) > LONGEST_NAME:
        raise UnknownAccelerator(
            f"no accelerator has a name of {len(hardware_name):,} letters; expected one such as h100, of at most "
            f"{LONGEST_NAME}"
        )


@cache
def hardware_names() -> tuple[str, ...]:
    """Returns the names of all presets, sorted with numbers by value: a40 before a100."""
    return tuple(sorted((file.stem for file in (presets_dir() / "hardware").glob("*.toml")), key=hardware_sort_key))


@cache
def load_hardware(hardware_name: str) -> Hardware:
    """Loads the preset with exactly this file name."""
    file_name = f"{hardware_name}.toml"
    toml_text = _preset_text(hardware_name)
    return validate(HardwarePreset, {**parse_toml(toml_text, file_name), "name": hardware_name}, file_name)


@cache
def _preset_text(hardware_name: str) -> str:
    """Returns the text of the preset file with exactly this name."""
    return read_text(presets_dir() / "hardware" / f"{hardware_name}.toml")


def find_hardware(name_or_file: str) -> Hardware:
    """Returns the accelerator of an argument: a `.toml` file, a memory size (`24GiB`), a name or an alias.

    Names are compared without case and punctuation, and without the maker's words that drivers print before them:
    `NVIDIA H100 80GB HBM3`. Raises `InputError` with the nearest names for an unknown name.
    """
    if Path(name_or_file).suffix.lower() == ".toml":
        return read_hardware(name_or_file)
    _require_short_name(name_or_file)
    memory_size_accelerator = memory_only_hardware(name_or_file)
    return memory_size_accelerator if memory_size_accelerator is not None else _find_hardware_by_name(name_or_file)


def split_device_count(hardware_argument: str) -> tuple[str, int | None]:
    """Returns the accelerator's name in an argument such as `2x3090`, and the device count; None if it has none.

    `2x3090` and `dual 3090` are two of the accelerator, and a cloud's machine type has its accelerators.
    """
    if Path(hardware_argument).suffix.lower() == ".toml" or len(hardware_argument) > LONGEST_NAME:
        return hardware_argument, None
    if memory_only_hardware(hardware_argument) or preset_with_spelling(hardware_argument):
        return hardware_argument, None
    if machine_and_count := accelerator_of_machine(hardware_argument):
        return machine_and_count
    if count_and_hardware := _count_and_accelerator(hardware_argument):
        accelerator_count, hardware = count_and_hardware
        return hardware.name, accelerator_count
    return hardware_argument, None


def accelerators_and_devices(
    hardware_arguments: Sequence[str], devices: int | None = None
) -> tuple[list[Hardware], int | None]:
    """Returns the accelerators of `--hardware`, and the device count: `--devices`, else the count in the names.

    devices: the value of `--devices`; None without it. Several machines of a cloud may be given by their devices.
    Raises `InputError` for unknown names and for numbers that contradict each other.
    """
    names_and_counts = [split_device_count(hardware_argument) for hardware_argument in hardware_arguments]
    accelerators = find_accelerators(name for name, _ in names_and_counts)
    named_count = None
    for hardware_argument, (name, device_count) in zip(hardware_arguments, names_and_counts, strict=True):
        is_machine = accelerator_of_machine(hardware_argument) is not None
        if device_count is None or (is_machine and devices is not None and devices % device_count == 0):
            continue
        if (devices or named_count or device_count) != device_count:
            other_text = f"--devices {devices}" if devices else f"{named_count} of another name"
            raise InputError(
                f"--hardware: {hardware_argument}: names {device_count} accelerators, which contradicts {other_text}; "
                f"expected one of the two numbers, such as --hardware {name} --devices {devices or named_count}"
            )
        named_count = device_count
    return accelerators, devices or named_count


def read_hardware(file_name: str) -> Hardware:
    """Reads a user's accelerator from a TOML file with the fields of `Hardware`.

    Only `memory_bytes` is required, or `like = "h100-sxm"`: then the preset has the figures that the file lacks. The
    accelerator's name is the file name, `my-gpu.toml`, so that it differs from preset names. Raises `InputError`, which
    names the wrong field.
    """
    path = Path(file_name)
    hardware_description = parse_toml(read_text(path), file_name)
    if isinstance(hardware_description.get("like"), str):
        try:
            _require_short_name(hardware_description["like"])
            base_accelerator = _find_hardware_by_name(hardware_description["like"])
            hardware_description = _override_preset(base_accelerator, hardware_description)
        except InputError as error:
            raise InputError(f"{file_name}: like: {error}") from error
    return validate(Hardware, {"title": path.stem, **hardware_description, "name": path.name}, file_name)


def _override_preset(preset: Hardware, hardware_description: dict[str, Any]) -> dict[str, Any]:
    """Returns a preset's values, replaced table by table by the values in a user's file."""
    base_description = preset.model_dump(exclude_none=True, exclude={"name", "title", "aliases", "released", "notes"})
    # the driver's total and the sizes that are sold are of the preset's memory
    if "memory_bytes" in hardware_description:
        for field_name in ("driver_total", "usable_memory_bytes", "configurations"):
            base_description.pop(field_name, None)
    if "name" in (hardware_description.get("interconnect") or {}):  # how another link joins accelerators is its own
        for field_name in ("is_mesh", "peer_access"):
            base_description.get("interconnect", {}).pop(field_name, None)
    for field_name, field_value in hardware_description.items():
        are_tables = isinstance(field_value, dict) and isinstance(base_description.get(field_name), dict)
        base_description[field_name] = {**base_description[field_name], **field_value} if are_tables else field_value
    return {**base_description, "like": preset.name}


def memory_only_hardware(hardware_argument: str) -> Hardware | None:
    """Returns an accelerator from a memory size alone, such as `24GiB` or `80gb`; None for other arguments.

    GiB are 2^30 bytes and GB 10^9. The whole size counts as usable. Raises `InputError` for a size that is not a whole
    number of bytes.
    """
    size_match = MEMORY_SIZE.fullmatch(hardware_argument.strip())
    if size_match is None:
        return None
    number_text, unit_text = size_match.group(1), size_match.group(2).lower()
    memory_bytes = Fraction(number_text) * BYTES_BY_UNIT[unit_text]
    if memory_bytes.denominator != 1 or memory_bytes <= 0:
        raise InputError(
            f"--hardware: {hardware_argument}: not a memory size; expected whole bytes, more than 0, such as 24GiB"
        )
    memory_text = number_text + {"mib": "MiB", "gib": "GiB", "tib": "TiB"}.get(unit_text, unit_text.upper())
    is_decimal_unit = unit_text in ("mb", "gb", "tb")
    notes: tuple[str, ...] = ()
    if is_decimal_unit:
        unit_bytes = f"1 {unit_text.upper()} = {BYTES_BY_UNIT[unit_text]:,} bytes"
        notes = (f"{memory_text}: {unit_bytes}; cards are sold in GiB, called GB",)
    return Hardware(
        name=memory_text,
        title=memory_text,
        memory_bytes=int(memory_bytes),
        usable_memory_bytes=int(memory_bytes),
        notes=notes,
    )


@cache
def machine_types() -> dict[str, tuple[str, int]]:
    """Returns the contents of `machine_types.toml`: machine type → (accelerator, number of accelerators)."""
    machine_table = tomllib.loads(Path(__file__).with_name("machines.toml").read_text(encoding="utf-8"))
    return {
        machine_type: (hardware_name, device_count)
        for hardware_name, counts_by_type in machine_table.items()
        for machine_type, device_count in counts_by_type.items()
    }


@cache
def _machines_by_normalized_type() -> dict[str, tuple[str, int]]:
    return {normalized(machine_type): machine for machine_type, machine in machine_types().items()}


@cache
def _accelerators_by_family() -> dict[str, str]:
    return {
        _machine_family(machine_type): hardware_name for machine_type, (hardware_name, _) in machine_types().items()
    }


def _machine_family(machine_type: str) -> str:
    """Returns a cloud machine type without its size: `g5`, `a3-ultragpu`, `nd_h100_v5`, `h100_sxm5`."""
    name_parts = machine_type.lower().split("_")
    if name_parts[0] == "gpu" and len(name_parts) > 2:  # Lambda's, whose second word has the accelerators
        return "_".join(name_parts[2:])
    if name_parts[0] == "standard" and len(name_parts) > 2:  # Azure's, whose second word has the processors
        return "_".join([name_parts[1][:2], *name_parts[2:]])
    return name_parts[0].partition(".")[0] if "." in name_parts[0] else "-".join(name_parts[0].split("-")[:2])


def accelerator_of_machine_family(machine_type: str) -> str:
    """Returns the accelerator that a cloud machine type has in all sizes; empty if the type is unknown."""
    return _accelerators_by_family().get(_machine_family(machine_type), "")


def accelerator_of_machine(machine_type: str) -> tuple[str, int] | None:
    """Returns (accelerator, number of accelerators) of a cloud machine type such as `g5.12xlarge`; None if unknown."""
    # SageMaker writes "ml." before the type, and people "tpu-" before a slice
    return _machines_by_normalized_type().get(normalized(machine_type.removeprefix("ml.").removeprefix("tpu-")))


def _find_hardware_by_name(typed_name: str) -> Hardware:
    hardware = preset_with_spelling(typed_name) or _hardware_of_memory_size(typed_name)
    if hardware is not None:
        return hardware
    if machine := accelerator_of_machine(typed_name):
        hardware_name, accelerator_count = machine
        hardware = load_hardware(hardware_name)
        if accelerator_count == 1:
            return hardware
        raise InputError(
            f"--hardware: {typed_name}: a machine with {accelerator_count} x {hardware.title}; expected "
            f"{hardware.name}, and --devices {accelerator_count} a machine"
        )
    if count_and_hardware := _count_and_accelerator(typed_name):
        accelerator_count, hardware = count_and_hardware
        if accelerator_count == 1:
            return hardware
        raise InputError(
            f"--hardware: {typed_name}: {accelerator_count} accelerators; expected one, --hardware {hardware.name}, "
            f"and --devices {accelerator_count} where a command has it"
        )
    service_name, _, further_words = typed_name.strip().lower().removeprefix("google ").partition(" ")
    if "tpu" in further_words and service_name in NOTEBOOK_TPUS:
        raise InputError(f"--hardware: {typed_name}: names no TPU; expected --hardware {NOTEBOOK_TPUS[service_name]}")
    if service_accelerators := NOTEBOOK_SERVICES.get(service_name):
        raise InputError(
            f"--hardware: {typed_name}: lends several accelerators; expected the one that nvidia-smi shows there, such "
            f"as {service_accelerators}"
        )
    if computer_chips := APPLE_COMPUTERS.get(normalized(typed_name)):
        raise InputError(
            f"--hardware: {typed_name}: sold with several chips; expected the chip, and its memory where it is not "
            f"the largest, such as {computer_chips}"
        )
    listed_names = [listed_name.strip() for listed_name in re.split("[,+&]", typed_name)]
    if len(listed_names) > 1 and all(
        preset_with_spelling(name) or _count_and_accelerator(name) for name in listed_names
    ):
        expected_options = " ".join(f"--hardware {listed_name}" for listed_name in listed_names)
        raise InputError(
            f"--hardware: {typed_name}: several accelerators; expected one (memory takes {expected_options})"
        )
    if size_match := re.fullmatch(
        r"([0-9]{1,6}(?:[.,][0-9]{1,6})?)\s*(?:gi?b?|gigs?|gigabytes?)?", typed_name.strip(), re.I
    ):
        gib_text = size_match[1].replace(",", ".")
        raise InputError(
            f"--hardware: {typed_name}: not understood as a memory size; expected {gib_text}GB or {gib_text}GiB"
        )
    for count_pattern in ACCELERATOR_COUNT_PATTERNS[:2]:  # `2x NAME` and `NAME x2`
        count_match = count_pattern.fullmatch(typed_name.strip())
        is_part_of_word = re.search(r"[a-z]x[0-9]+\s*$|[a-z]x\s+[0-9]+\s*$", typed_name, re.I)  # GX10, Max 385
        if is_part_of_word or count_match is None:
            continue
        if int(count_match["count"]) > 0 and re.search("[a-z]", count_match["name"], re.I):
            return _find_hardware_by_name(count_match["name"])  # raises, as the accelerator is not known
    if SRAM_CHIP.search(typed_name):
        raise InputError(
            f"--hardware: {typed_name}: weights lie in the SRAM of many such chips, whose times and memory are not "
            "modelled; expected a GPU or another accelerator of llmcalc hardware"
        )
    if INTEGRATED_GPU.search(typed_name):
        raise InputError(
            f"--hardware: {typed_name}: a GPU in a processor, without memory of its own; expected the memory of "
            "the computer that it may use, such as 16GiB, or for times a .toml file with memory_bytes, "
            "memory_bandwidth and peak_flops"
        )
    for name_pattern in (PROCESSOR_WORD, SMALL_COMPUTER_WORD):
        if name_pattern.search(typed_name):
            known_names = [name for name in hardware_names() if load_hardware(name).is_processor]
            family_pattern = re.compile(rf"{re.escape(normalized(typed_name))}(?![a-z])")
            known_names = [name for name in known_names if family_pattern.match(normalized(name))] or known_names
            processors = ", ".join(known_names)
            size_match = re.search(r"([1-9][0-9]{0,4})\s*gi?b", typed_name, re.IGNORECASE)
            memory_text = f"{size_match[1] if size_match else 32}GiB"
            raise InputError(
                f"--hardware: {typed_name}: no figures are known of it; expected its memory alone, such as "
                f"{memory_text}, a processor with figures ({processors}), or for times a .toml file with "
                "like = 'ryzen-9-7950x', memory_bytes, memory_bandwidth (channels x 8 bytes x rate) and "
                "peak_flops = { float32 = cores x FLOP per clock (16 for 128-bit units, 32 for AVX2, 64 for AVX-512) "
                "x clock }"
            )
    hardware_by_spelling = {
        spelling: name for name in hardware_names() for spelling in _normalized_names(load_hardware(name))
    }
    names_with_prefix = [spelling for spelling in hardware_by_spelling if normalized(typed_name).startswith(spelling)]
    if names_with_prefix:  # a 4090 Ti, which nobody sells, is first of all a 4090
        suggestion = f" Did you mean {hardware_by_spelling[max(names_with_prefix, key=len)]}?"
    else:
        suggestion = suggest(typed_name, list(hardware_names()))
    suggestion = suggestion or suggest(normalized(typed_name), hardware_by_spelling)
    raise UnknownAccelerator(
        f"no accelerator called '{typed_name}'.{suggestion} Expected a name (llmcalc hardware lists all), a memory "
        "size such as 24GiB, or a .toml file"
    )


def _count_and_accelerator(typed_name: str) -> tuple[int, Hardware] | None:
    """Returns the device count in an argument such as `2x3090`, and the accelerator; None for other arguments."""
    for count_pattern in ACCELERATOR_COUNT_PATTERNS:
        if (count_match := count_pattern.fullmatch(typed_name.strip())) is None:
            continue
        accelerator_count = int(COUNT_WORDS.get(count_match["count"].lower(), count_match["count"]))
        for name in dict.fromkeys(
            (count_match["name"], re.sub("s$", "", count_match["name"], flags=re.I))
        ):  # an L40S, two 4090s
            hardware = memory_only_hardware(name) or preset_with_spelling(name) or _hardware_of_memory_size(name)
            if hardware is None and (machine := accelerator_of_machine(name)):
                hardware = load_hardware(machine[0])
                accelerator_count *= machine[1]
            if hardware is not None and accelerator_count > 0:
                return accelerator_count, hardware
    if board_match := BOARD_NAME.fullmatch(typed_name.strip()):
        gpu, gpu_count = preset_with_spelling(board_match["name"]), int(board_match["count"])
        link = None if gpu is None or not gpu.is_gpu else gpu.interconnect
        if gpu is not None and link is not None and (link.domain_size or 0) >= gpu_count:
            return gpu_count, gpu
    return None


def preset_with_spelling(hardware_argument: str) -> Hardware | None:
    """Returns the preset whose name, alias or title is the argument, with or without the vendor's name."""
    normalized_names = _normalized_arguments(hardware_argument)
    matching_names = (
        normalized_name for normalized_name in hardware_names() if normalized(normalized_name) in normalized_names
    )
    # a file is parsed if its text has the letters of a name, with any punctuation between them, or an escaped character
    spelling_patterns = [
        r"[\W_]*".join(map(re.escape, normalized_name)) for normalized_name in sorted(normalized_names)
    ]
    search_spelling = re.compile("|".join((r"\\", *spelling_patterns)), re.IGNORECASE).search
    hardware_names_with_spelling = (
        normalized_name
        for normalized_name in hardware_names()
        if search_spelling(_preset_text(normalized_name))
        and not normalized_names.isdisjoint(_normalized_names(load_hardware(normalized_name)))
    )
    hardware_name = next(matching_names, None) or next(hardware_names_with_spelling, None)
    return None if hardware_name is None else load_hardware(hardware_name)


def _normalized_arguments(hardware_argument: str) -> set[str]:
    """Returns an argument without case and punctuation; also without the names of vendor and computer."""
    clean_argument = TRADEMARK.sub(" ", hardware_argument)
    bare_argument = SURROUNDING_WORDS.sub(" ", clean_argument)
    texts = (clean_argument, bare_argument)
    spellings = (hardware_argument, *(MAKER_WORDS.sub("", text) for text in texts), bare_argument)
    return set(map(normalized, spellings)) - {""}


def _normalized_names(hardware: Hardware) -> set[str]:
    """Returns name, aliases and title of a preset without case and punctuation."""
    return {normalized(spelling) for spelling in (hardware.name, *hardware.aliases, hardware.title)}


def _hardware_of_memory_size(typed_name: str) -> Hardware | None:
    """Returns the accelerator of a name that ends in a memory size: `m4-max-64gb`, `rtx 4060 8gb`.

    None for other arguments. Raises `InputError` for a size that the accelerator is not sold with.
    """
    for hardware_name in hardware_names():
        hardware = load_hardware(hardware_name)
        # without a unit, as in m4-64, only where there are several sizes: rtx 40 is no size of a card
        size_pattern = r"([1-9][0-9]{0,5})(gi?b)?" if hardware.configurations else r"([1-9][0-9]{0,5})(gi?b)"
        for normalized_argument in _normalized_arguments(typed_name):
            for spelling in sorted(_normalized_names(hardware)):
                memory_size_text = normalized_argument.removeprefix(spelling)
                memory_size_match = re.fullmatch(size_pattern, memory_size_text)
                if memory_size_match is not None and memory_size_text != normalized_argument:
                    return _with_memory_size(hardware, int(memory_size_match.group(1)), typed_name)
    return None


def _with_memory_size(hardware: Hardware, memory_gib: int, typed_name: str) -> Hardware:
    """Returns the accelerator in the variant with this memory size. Raises `InputError` if no such variant is sold."""
    if hardware.is_processor and not hardware.configurations:  # its computer has any memory
        bandwidth = hardware.memory_bandwidth
        memory_size = MemoryConfiguration(memory_bytes=memory_gib * 2**30, memory_bandwidth=bandwidth)
        return with_configuration(hardware, memory_size)
    if not hardware.configurations:
        if memory_gib * 2**30 == hardware.memory_bytes:
            return hardware
        raise InputError(
            f"{typed_name}: the {hardware.title} has {hardware.memory_bytes // 2**30} GB; expected {hardware.name}, or "
            f"{memory_gib}GiB for a memory of that size alone"
        )
    configuration_by_gib = {
        configuration.memory_bytes // 2**30: configuration for configuration in hardware.configurations
    }
    if memory_gib not in configuration_by_gib:
        chips_of_size = [chip.name for chip in chips_of_generation(hardware) if chip.name.endswith(f"-{memory_gib}gb")]
        chips_text = f"; with {memory_gib} GB: {', '.join(chips_of_size)}" if chips_of_size else ""
        raise InputError(
            f"{typed_name}: {hardware.vendor} does not sell the {hardware.title} with {memory_gib} GB; expected one of "
            f"{', '.join(f'{hardware.name}-{memory_gib}gb' for memory_gib in configuration_by_gib)}{chips_text}"
        )
    return with_configuration(hardware, configuration_by_gib[memory_gib])


def with_configuration(hardware: Hardware, memory_configuration: MemoryConfiguration) -> Hardware:
    """Returns the accelerator in the memory variant that a name such as `m4-max-64gb` states."""
    memory_gib = memory_configuration.memory_bytes // 2**30
    name_fields: dict[str, Any] = {
        "name": f"{hardware.name}-{memory_gib}gb",
        "title": f"{hardware.title}, {memory_gib} GiB",
        "aliases": tuple(f"{alias}-{memory_gib}gb" for alias in hardware.aliases),
        "configurations": (),
    }
    compute_units, all_compute_units = memory_configuration.compute_units, hardware.compute_units
    if compute_units is not None and all_compute_units is not None:
        peaks_by_dtype = hardware.peak_flops.items()
        name_fields["peak_flops"] = {
            dtype: peak_rate * compute_units.count // all_compute_units.count for dtype, peak_rate in peaks_by_dtype
        }
    return hardware.model_copy(update=name_fields | dict(memory_configuration))


def chips_of_generation(hardware: Hardware) -> list[Hardware]:
    """Returns the presets of an Apple chip's generation (`m4-…`) in all memory sizes, the smallest first."""
    generation = hardware.name.partition("-")[0]
    chips = [
        load_hardware(hardware_name)
        for hardware_name in hardware_names()
        if hardware_name.partition("-")[0] == generation
    ]
    return sorted(
        (
            with_configuration(chip, memory_configuration)
            for chip in chips
            for memory_configuration in chip.configurations
        ),
        key=lambda chip: (chip.memory_bytes, chip.memory_bandwidth or 0),
    )


def require_one_accelerator(accelerator_names: Sequence[str]) -> None:
    """Raises `InputError` for several accelerators if the command answers for a single one."""
    if len(set(accelerator_names)) > 1:
        names_text = " and ".join(accelerator_names)
        raise InputError(
            f"--hardware: {names_text}: the answer is for one accelerator; expected one name (memory lists several)"
        )


def find_accelerators(accelerator_names: Iterable[str]) -> list[Hardware]:
    """Returns the accelerators with these names, each once."""
    accelerators: list[Hardware] = []
    for hardware in map(find_hardware, accelerator_names):
        accelerators += [] if hardware in accelerators else [hardware]
    return accelerators
