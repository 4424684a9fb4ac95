"""What torch's profiler sees the CPU allocate in a forward and a backward pass: the third witness of bytes.

Unlike a dispatch mode it changes nothing of the run, and it sees what a kernel takes for itself. A block is *scratch*
if the kernel that allocates it frees it before it returns; the kernel is the outermost operation that torch does not
take apart above autograd, which is what a dispatch mode sees as one call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from llmcalc.kernels.choices import EAGER, Choices
from llmcalc.model import ModelSpec
from llmcalc.run.recompute import NONE
from llmcalc.verify import variants
from tests.kernels.models import inputs, result
from tests.kernels.witness import saved_tensors

FORWARD, BACKWARD = "forward pass", "backward pass"
NUMBER = 8
"""The bytes of a Python number that torch makes a tensor of."""


@dataclass(eq=False)
class Block:
    """Memory that is allocated in a pass.

    size: its bytes. kernel: the operation that allocates it, empty outside all of them. scratch: whether that operation
    frees it.
    """

    size: int
    kernel: str
    scratch: bool = False

    @property
    def number(self) -> bool:
        """Whether it is a Python number made a tensor, which no operation does."""
        return not self.kernel and self.size == NUMBER


class Moment(NamedTuple):
    """What is allocated or freed. sign: 1 or -1. phase: the pass."""

    sign: int
    block: Block
    phase: str


@dataclass
class Seen:
    """What the profiler saw. saved_numbers: the Python numbers that the graph saves for the backward pass."""

    saved_numbers: int = 0
    moments: list[Moment] = field(default_factory=list)

    @property
    def scratch(self) -> dict[str, int]:
        """Kernel that allocates scratch → the bytes of its largest block."""
        found: dict[str, int] = {}
        for _, block, _ in self.moments:
            if block.scratch:
                found[block.kernel] = max(found.get(block.kernel, 0), block.size)
        return found

    def passes(self, counts: Callable[[Block], bool]) -> tuple[int, int, int]:
        """Bytes alive after the forward pass, and the most alive in the forward and in the backward pass.

        counts: whether a block counts.
        """
        now, live, peaks = 0, 0, {FORWARD: 0, BACKWARD: 0}
        for sign, block, phase in self.moments:
            now += sign * block.size * counts(block)
            peaks[phase] = max(peaks[phase], now)
            live = now if phase == FORWARD else live
        return live, peaks[FORWARD], max(peaks[BACKWARD], live)


def seen(spec: ModelSpec, choices: Choices = EAGER, dtype: str = "float32", batch: int = 2, seq: int = 7) -> Seen:
    """What the CPU allocates when the reference runs."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        module: Any = spec.reference()
        ids, source = inputs(spec, batch, seq)
    finally:
        torch.set_default_dtype(before)
    variants.change(module, choices, NONE)
    with variants.running(choices):
        result(spec, module, ids, source, choices).sum().backward()  # what is made once is made here
        module.zero_grad()
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as run:
            with record_function(FORWARD):
                out = result(spec, module, ids, source, choices)
            numbers = sum(one.dtype in (torch.float64, torch.int64) and not one.shape for one in saved_tensors(out))
            with record_function(BACKWARD):
                out.backward(torch.empty_like(out))
    return _read(run, numbers)


def _read(run: Any, numbers: int) -> Seen:
    made, blocks, phase = Seen(numbers), dict[int, tuple[Block, Any]](), FORWARD
    for event, above in sorted(_allocations(run), key=lambda one: one[0].start_time_ns):
        phase = next((one.name for one in above if one.name in (FORWARD, BACKWARD)), phase)
        kernel = next((one for one in above if _is_kernel(one.name)), None)
        size, pointer = event.extra_fields.alloc_size, event.extra_fields.ptr
        if size > 0:
            block = Block(size, "" if kernel is None else kernel.name)
            blocks[pointer] = block, kernel
            made.moments.append(Moment(1, block, phase))
        elif pointer in blocks:
            block, maker = blocks.pop(pointer)
            block.scratch = maker is not None and kernel is not None and maker.id == kernel.id
            made.moments.append(Moment(-1, block, phase))
    return made


def _allocations(run: Any) -> Iterator[tuple[Any, list[Any]]]:
    """Yields every allocation and release, and the operations around it, the outermost first."""
    todo = [(event, list[Any]()) for event in run.profiler.kineto_results.experimental_event_tree()]
    while todo:
        event, above = todo.pop()
        if event.tag == torch._C._profiler._EventType.Allocation:
            yield event, above
        todo += [(below, [*above, event]) for below in event.children]


@cache
def _is_kernel(name: str) -> bool:
    """Whether an operation is not taken apart into others above autograd."""
    if not name.startswith("aten::"):
        return False
    forms = [form for form in torch._C._jit_get_schemas_for_operator(name) if _runs_here(form)]
    names = [f"{form.name}.{form.overload_name}".rstrip(".") for form in forms]
    return any(not torch._C._dispatch_has_kernel_for_dispatch_key(one, "CompositeImplicitAutograd") for one in names)


def _runs_here(form: Any) -> bool:
    """Whether a form of an operation is one that the reference may call: of tensors, without named axes and `out`."""
    name = f"{form.name}.{form.overload_name}".rstrip(".")
    known = torch._C._dispatch_has_kernel(name)
    return known and "name" not in form.overload_name.lower() and not any(one.is_out for one in form.arguments)
