"""The evidence for computed bytes: how each component was checked; a sum has the weakest status of its terms.

A witness is stated where the thing is declared: in the class of a part, in the record of an optimizer or of a published
kernel, above the method of a kernel, in the record of a framework. Whatever states none is `untested`. A witness names
the test that compares; `tests/contracts/test_witnesses.py` collects what those tests run, and fails for a witness
without a comparison, and for a comparison without a witness.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import field
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from .frozen import frozen

Status: TypeAlias = Literal["exact", "source", "estimate", "untested"]
"""The verification status of computed bytes, the strongest first.

exact: an independent measurement was equal to them.
source: they were read in the code of a library, at a version, and were not run.
estimate: they are near what was measured, or follow from an assumption.
untested: nothing was compared with them.
"""

STATUSES: tuple[Status, ...] = get_args(Status)

META_MEASUREMENT = "torch on meta: every operation's storages"
"""Text for a measurement of every storage that torch's operations create on the meta device."""


@frozen
class Witness:
    """An independent check of computed bytes: a measurement, or the source code of the library that allocates them.

    status: how well it shows them. name: what it is, in words. test_path: the module of the test that compares, as a
    path in the repository; empty only without a witness.
    """

    status: Status
    name: str
    test_path: str


UNTESTED = Witness("untested", "", "")
"""The witness of bytes that nothing was compared with, which is the default."""


@frozen
class Evidence:
    """The evidence for the bytes of a component, optimizer, kernel or framework: an independent check, or none.

    kind: `optimizer`, `mixer`, `network`, `kernel`, `framework`, …
    name: the name in a spec or in an option.
    witness: the independent check; by default none.
    framework: the framework that runs the part; empty for the part by itself.
    """

    kind: str
    name: str
    witness: Witness = UNTESTED
    framework: str = ""

    @property
    def status(self) -> Status:
        """The verification status of the component, optimizer, kernel or framework."""
        return self.witness.status

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" + (f" under {self.framework}" if self.framework else "")


@frozen
class FrameworkEvidence:
    """The evidence for a framework: what its runs, model parts and optimizers have been compared with.

    name: the framework, as in `--framework`. witness: what its runs were compared with.
    parts, optimizers: (kind, name) of parts, and names of optimizers → what they were compared with in its runs.
    other_witness: how other parts and optimizers are known in its runs; by default not at all.
    has_own_kernels: whether it runs kernels of its own instead of torch's (Megatron-LM); then only its own record
        counts.
    """

    name: str
    witness: Witness = UNTESTED
    parts: Mapping[tuple[str, str], Witness] = field(default_factory=dict)
    optimizers: Mapping[str, Witness] = field(default_factory=dict)
    other_witness: Witness = UNTESTED
    has_own_kernels: bool = False

    def run(self, parts_evidence: Iterable[Evidence], optimizer: str | None) -> list[Evidence]:
        """Returns the evidence for one run: for the framework, the model's components and the optimizer."""
        run_evidence = [Evidence("framework", self.name, self.witness)]
        for part_evidence in parts_evidence:
            witness = self.parts.get((part_evidence.kind, part_evidence.name), self.other_witness)
            run_evidence.append(Evidence(part_evidence.kind, part_evidence.name, witness, self.name))
        if optimizer is not None:
            run_evidence.append(
                Evidence("optimizer", optimizer, self.optimizers.get(optimizer, self.other_witness), self.name)
            )
        return run_evidence


def kind_and_name_pairs(**names_by_kind: str) -> tuple[tuple[str, str], ...]:
    """Returns (kind, name) pairs of model parts. names_by_kind: kind → the parts' names, separated by spaces."""
    return tuple(
        (part_kind, part_name) for part_kind, names_text in names_by_kind.items() for part_name in names_text.split()
    )


LLAMA_PARTS = kind_and_name_pairs(
    part="stack", layer="block", mixer="attention", network="mlp", norm="rmsnorm", position="rope", head="lm"
)
"""The (kind, name) pairs of the model parts of a Llama."""


def torch_witness(test_module: str) -> Witness:
    """Returns the `Witness` of bytes that a test compares with torch's operations. test_module: the test's module."""
    return Witness("exact", META_MEASUREMENT, test_module)


def source_code_witness(library_name: str, test_module: str) -> Witness:
    """Returns the `Witness` of bytes whose formula is taken from a library's source code.

    library_name: the file of the library. test_module: the module that compares them with hand arithmetic.
    """
    return Witness("source", library_name, test_module)


def weakest_status(statuses: Iterable[Status]) -> Status:
    """Returns the verification status of a sum: the weakest status of its terms, or `exact` without terms."""
    return max(statuses, key=STATUSES.index, default="exact")


def evidence_names(evidence: Iterable[Evidence], status: Status) -> str:
    """Returns the names of the components and kernels with this verification status, without repetitions."""
    return ", ".join(dict.fromkeys(str(part_evidence) for part_evidence in evidence if part_evidence.status == status))


def witness_texts(evidence: Iterable[Evidence], status: Status) -> str:
    """Returns the descriptions of independent checks with this verification status, without repetitions."""
    return "; ".join(
        dict.fromkeys(part_evidence.witness.name for part_evidence in evidence if part_evidence.status == status)
    )


KernelType = TypeVar("KernelType", bound=Callable[..., Any])


def compared(witness: Witness, **kernel_choice: object) -> Callable[[KernelType], KernelType]:
    """Returns a decorator that attaches to a kernel method the independent check of its computed bytes.

    kernel_choice: the field of `KernelChoices` and its value with which the kernel runs; default for any choices.
    """

    def attach_check(kernel: KernelType) -> KernelType:
        vars(kernel)["witness"] = witness
        vars(kernel)["choice"] = kernel_choice
        return kernel

    return attach_check


KERNEL_PREFIXES = ("do_", "core_", "attention_", "module_", "decode_", "next_", "scan_", "serve_")
"""Name prefixes of the methods that are kernels."""

ProfileType = TypeVar("ProfileType", bound=type[Any])


def kernels_compared(witness: Witness, unchecked_kernels: Collection[str] = ()) -> Callable[[ProfileType], ProfileType]:
    """Returns a class decorator that attaches an independent check to every kernel method without another check.

    unchecked_kernels: the methods that nothing checks, or that only have the name of a kernel; default none.
    """

    def attach_check(profile: ProfileType) -> ProfileType:
        for method_name, kernel in vars(profile).items():
            if (
                method_name.startswith(KERNEL_PREFIXES)
                and method_name not in unchecked_kernels
                and witness_of(kernel) == UNTESTED
            ):
                compared(witness)(kernel)
        return profile

    return attach_check


def witness_of(checked_object: object) -> Witness | Mapping[str, Witness]:
    """Returns the `Witness` that a decorator attached to this class or function (not inherited), else `UNTESTED`."""
    stated_witness: Witness | Mapping[str, Witness] = getattr(checked_object, "__dict__", {}).get("witness", UNTESTED)
    return stated_witness
