"""The tests and measurements behind the kernels of torch's profile that a replay uses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from ..evidence import UNTESTED, Evidence, Witness, witness_of
from ..flow.program import Step, all_steps
from ..flow.record import Flow
from .kernel_choices import EAGER_CHOICES, KernelChoices
from .lowering import Lowering

KERNEL_CHOICE_FIELDS = ("attention", "norm", "cross_entropy", "mamba2", "fused_adapters", "compiled")
"""The fields of `KernelChoices` whose values name a kernel."""


def evidence_of_kernels(kernel_profile: type[Lowering], program: Flow, kernel_choices: KernelChoices) -> list[Evidence]:
    """Returns the tests and measurements of a program's kernels, and of kernels chosen instead of the default."""
    kernel_names = dict.fromkeys(
        kernel_name for operation in all_steps(program.root.items) for kernel_name in kernel_names_of(operation)
    )
    kernel_methods = [(kernel_name, getattr(kernel_profile, kernel_name, None)) for kernel_name in kernel_names]
    evidence = [
        Evidence("kernel", kernel_title(kernel_name), _witness_of_kernel(kernel))
        for kernel_name, kernel in kernel_methods
        if kernel is not None
    ]
    return [*evidence, *evidence_of_chosen_kernels(kernel_profile, kernel_choices)]


def evidence_of_chosen_kernels(kernel_profile: type[Lowering], kernel_choices: KernelChoices) -> Iterator[Evidence]:
    """Yields the tests and measurements of chosen kernels; a kernel without a stated check is untested."""
    kernels = [
        vars(profile_class)[method_name]
        for profile_class in kernel_profile.__mro__
        for method_name in vars(profile_class)
    ]
    for choice_field in fields(kernel_choices):
        chosen_kernel = getattr(kernel_choices, choice_field.name)
        if choice_field.name not in KERNEL_CHOICE_FIELDS or chosen_kernel == getattr(EAGER_CHOICES, choice_field.name):
            continue
        matching_kernels = (
            kernel for kernel in kernels if getattr(kernel, "choice", {}).get(choice_field.name) == chosen_kernel
        )
        yield Evidence(
            "kernel",
            choice_name(choice_field.name, chosen_kernel),
            next(map(_witness_of_kernel, matching_kernels), UNTESTED),
        )


def choice_name(choice_field: str, choice: object) -> str:
    """Returns the displayed name of a chosen kernel, such as `flash attention` or `compiled`."""
    return choice_field if choice is True else f"{choice} {choice_field}"


def kernel_title(kernel_name: str) -> str:
    """Returns a kernel's name without the Python method's prefix."""
    return kernel_name.removeprefix("do_")


def kernel_names_of(operation: Step) -> Iterator[str]:
    """Yields the names of the profile's methods that may run an operation."""
    yield f"do_{operation.verb}"
    op_name = type(operation.op).__name__
    if operation.verb == "attention":
        yield f"attention_{op_name}"
    if operation.verb == "core":
        yield from (f"core_{op_name}", f"module_{op_name}", f"decode_{op_name}")
    if operation.verb == "scan":
        scan_class = operation.options["kind"]
        yield from (f"scan_{scan_class}", f"module_{scan_class}", f"next_{scan_class}", f"decode_{scan_class}")


def _witness_of_kernel(kernel: object) -> Witness:
    """Returns the independent check that the decorator of a kernel's method states, or `UNTESTED`."""
    witness = witness_of(kernel)
    return witness if isinstance(witness, Witness) else UNTESTED
