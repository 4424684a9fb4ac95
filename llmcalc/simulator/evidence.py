"""The verification evidence of the kernels that a replay with torch's profile uses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from ..evidence import UNTESTED, Evidence, Witness, witness_of
from ..flow.program import Step, every_step
from ..flow.record import Flow
from .choices import EAGER, Choices
from .lowering import Lowering

CHOSEN = ("attention", "norm", "cross_entropy", "mamba2", "compiled")
"""The fields of `Choices` whose values name a kernel."""


def evidence_of_kernels(profile: type[Lowering], program: Flow, kernel_choices: Choices) -> list[Evidence]:
    """Yields the kernels of a program's steps, and kernels chosen instead of the default."""
    names = dict.fromkeys(
        kernel_name for operation in every_step(program.root.items) for kernel_name in kernels_of(operation)
    )
    steps = [(kernel_name, getattr(profile, kernel_name, None)) for kernel_name in names]
    evidence = [
        Evidence("kernel", kernel_title(kernel_name), _stated_witness(kernel))
        for kernel_name, kernel in steps
        if kernel is not None
    ]
    return [*evidence, *chosen_kernels(profile, kernel_choices)]


def chosen_kernels(profile: type[Lowering], kernel_choices: Choices) -> Iterator[Evidence]:
    """Yields the kernels chosen instead of the default. Kernels without a stated verification are untested."""
    kernels = [vars(base)[kernel_name] for base in profile.__mro__ for kernel_name in vars(base)]
    for field in fields(kernel_choices):
        value = getattr(kernel_choices, field.name)
        if field.name not in CHOSEN or value == getattr(EAGER, field.name):
            continue
        matching_kernels = (kernel for kernel in kernels if getattr(kernel, "choice", {}).get(field.name) == value)
        yield Evidence("kernel", choice_name(field.name, value), next(map(_stated_witness, matching_kernels), UNTESTED))


def choice_name(field: str, value: object) -> str:
    """Returns the displayed name of a chosen kernel, such as `flash attention` or `compiled`."""
    return field if value is True else f"{value} {field}"


def kernel_title(name: str) -> str:
    """Returns a kernel's name without the Python method's prefix."""
    return name.removeprefix("do_")


def kernels_of(operation: Step) -> Iterator[str]:
    """Yields the names of the profile's kernels that may run an operation."""
    yield f"do_{operation.verb}"
    op = type(operation.op).__name__
    if operation.verb == "attention":
        yield f"attention_{op}"
    if operation.verb == "core":
        yield from (f"core_{op}", f"module_{op}", f"decode_{op}")
    if operation.verb == "scan":
        kind = operation.options["kind"]
        yield from (f"scan_{kind}", f"module_{kind}", f"next_{kind}", f"decode_{kind}")


def _stated_witness(kernel: object) -> Witness:
    """Returns the verification that is written above a method."""
    witness = witness_of(kernel)
    return witness if isinstance(witness, Witness) else UNTESTED
