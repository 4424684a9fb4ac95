"""Recognizes the accelerator that a manifest names, by a node's label or by a cloud's machine type."""

from __future__ import annotations

import re
from typing import Any

from ...errors import InputError, short_repr
from ...sources.hardware import accelerator_of_machine, accelerator_of_machine_family, find_hardware
from ...sources.huggingface.family import field_names

ACCELERATOR_LABELS = (
    "nvidia.com/gpu.product",
    "cloud.google.com/gke-accelerator",
    "k8s.amazonaws.com/accelerator",
    "accelerator",
    "gpu-type",
    "gpu_type",
    "gpu.nvidia.com/class",
    "gpu.nvidia.com/model",
    "karpenter.k8s.aws/instance-gpu-name",
    "amd.com/gpu.product-name",
    "accelerator_type",
)
"""Node labels whose value names an accelerator."""

MACHINE_LABELS = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type", "instance_type")
"""Node labels whose value is a machine type."""

LABEL_OF_SMALL_A100 = "nvidia-tesla-a100"
"""Google's label for the 40 GB A100 of a2-highgpu machines."""

_MEMORY = re.compile(r"[0-9]{1,3}gb")
_IGNORED_WORDS = field_names("""
    nvidia tesla geforce gpu amd instinct hbm2 hbm2e hbm3 hbm3e generation shared vws workstation server edition
    """)


def accelerator_of_label(accelerator_label: str) -> str:
    """Returns the accelerator's name from a node label or a machine type; empty for an unknown one."""
    label_text = accelerator_label.strip().lower()[:100]
    if named_machine := accelerator_of_machine(label_text):
        return named_machine[0]
    if hardware_name := accelerator_of_machine_family(label_text):
        return hardware_name
    if label_text == LABEL_OF_SMALL_A100:
        return "a100-40gb"
    if "mig" in label_text:
        return ""
    label_words = [word for word in re.split(r"[-_ /.,()]+", label_text) if word and word not in _IGNORED_WORDS]
    memory_word = next((label_word for label_word in label_words if _MEMORY.fullmatch(label_word)), "")
    chip_words = [
        word for word in label_words if word != memory_word and not re.fullmatch(r"sxm[0-9]?|[0-9]+[gx]", word)
    ]
    for name_words in (
        [*chip_words, memory_word],
        label_words,
        chip_words,
        chip_words[:-1],
        chip_words[:2],
        chip_words[:1],
    ):
        machine_accelerator = _accelerator_name("-".join(filter(None, name_words)), memory_word)
        if machine_accelerator:
            return machine_accelerator
    return ""


def _accelerator_name(chip_name: str, memory_word: str) -> str:
    """Returns an accelerator's name with a memory size, such as `80gb`, from the label; empty if unknown."""
    if (
        not re.search(r"[a-z]", chip_name)
        or re.fullmatch(r"[0-9.]+\s*[gmt]i?b", chip_name)
        or chip_name.endswith(".toml")
    ):
        return ""
    try:
        hardware = find_hardware(chip_name)
    except InputError:
        return ""
    stated_gb = int(memory_word.removesuffix("gb") or 0)
    has_stated_memory = (
        not stated_gb
        or min(abs(hardware.memory_bytes / bytes_per_gb - stated_gb) for bytes_per_gb in (10**9, 2**30)) < TOLERANCE_GB
    )
    return hardware.name if has_stated_memory else ""


TOLERANCE_GB = 3
"""Largest difference between a label's memory size and an accelerator's, in GB, at which they match."""


def accelerator_count(count_value: Any, field_name: str) -> int | None:
    """Returns the number of accelerators in a field; None for text, such as `all` or a template variable.

    field_name: the file and the field, in messages. Raises `InputError` for a number that is no count.
    """
    count_text = str(count_value).strip("'\" ")
    if re.fullmatch(r"[0-9]{1,4}", count_text):
        return int(count_text)
    if isinstance(count_value, float) or re.fullmatch(r"[-+.]?[0-9][-+.0-9eE]*", count_text):
        raise InputError(
            f"{field_name}: {short_repr(count_value)}; expected a whole number of accelerators, at most 9,999"
        )
    return None
