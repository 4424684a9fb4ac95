"""Optimizers without values against torch's own: the same bytes at the peak of a step, and kept after it.

torch's optimizers run on meta, where they take the same Python code and the same operations as on a GPU. Two do not
run there as they are:
- Adafactor reads norms on the host; `Answering` answers each with 1. The bytes do not depend on it.
- Fused steps run on the CPU: torch refuses them on meta. There the step counts of fused AdamW are on the device, as on
  a GPU.
Optimizers of bitsandbytes, torchao and schedulefree are compared with hand arithmetic from their source code: the
libraries are not dependencies of the tests.
What a kernel takes for itself is on neither side: a reduction's partial sums and the workspace of a matrix product.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import pytest
import torch
import torch._dynamo  # a first step imports it, and would count what it allocates
from torch import nn
from transformers import optimization

import llmcalc
from llmcalc.costs.trained_tensors import trained_tensors
from llmcalc.device_memory.optimizers.registry import OPTIMIZER_NAMES, optimizer
from llmcalc.device_memory.optimizers.run_step import run_step
from llmcalc.device_memory.optimizers.step import OptimizedParameter
from llmcalc.errors import InputError
from llmcalc.flow.tree import Node
from llmcalc.ops import Linear
from llmcalc.simulator.autograd import AutogradGraph
from llmcalc.simulator.meter import Meter
from llmcalc.simulator.tensor import DTYPES, empty
from llmcalc.workload.execution import OptimizerImplementation
from tests.comparisons import Thing, compares
from tests.samples import sampled, spread
from tests.simulator.witness import Alive

Shape: TypeAlias = tuple[int, ...]


class Parameter(NamedTuple):
    """A parameter of a test. matrix: whether Muon updates it. table: whether it is a table of embeddings."""

    shape: Shape
    dtype: str
    matrix: bool
    table: bool = False


class Step(NamedTuple):
    """The most bytes during a step above those before it, and the bytes of states and others after it."""

    peak: int
    kept: int


class Answering(Alive):
    """Follows storages, and answers 1 where the host reads a number of a tensor without values."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and args[0].is_meta:
            return 1.0
        return super().__torch_dispatch__(func, types, args, kwargs)


# Lists of parameters


def drawn(seed: int) -> dict[str, list[Shape]]:
    """Lists of shapes: every kind alone, and all kinds in a random order."""
    pick = random.Random(seed)

    def size(most: int) -> int:
        return pick.randint(1, most)

    vectors: list[Shape] = [(size(6000),) for _ in range(6)]
    matrices: list[Shape] = [(size(300), size(300)) for _ in range(6)]
    stacks: list[Shape] = [(size(9), size(80), size(80)) for _ in range(3)]
    odd: list[Shape] = [
        (),
        (1,),
        (1, 1),
        (1, size(500)),
        (size(500), 1),
        (size(40), 1, 4),
        (9, size(9), 3, 3),
    ]
    every = [*vectors, *matrices, *stacks, *odd]
    pick.shuffle(every)
    large = (size(900) + 900, size(900) + 900)
    return {
        "vectors": vectors,
        "matrices": matrices,
        "stacks": stacks,
        "odd": odd,
        "one large": [large],
        "one large among small": [*vectors, large, *matrices],
        "every": every,
    }


FLOATS = ("float32", "bfloat16", "float16")
DRAWN = {dtype: drawn(seed) for seed, dtype in enumerate(("float32", "bfloat16", "mixed"))}
LISTS = [(dtype, name) for dtype, lists in DRAWN.items() for name in lists]
CASES: list[tuple[str, OptimizerImplementation, bool]] = [
    (name, implementation, momentum)
    for name in OPTIMIZER_NAMES
    if optimizer(name).build_torch_optimizers is not None
    for implementation in optimizer(name).implementations
    for momentum in ((False, True) if name == "sgd" else (False,))
]


def parameters(dtype: str, shapes: str) -> list[Parameter]:
    """dtype: one for all, or `mixed`: one of three for each. Of the matrices, every fifth is an embedding."""
    pick = random.Random(shapes)
    return [
        Parameter(shape, pick.choice(FLOATS) if dtype == "mixed" else dtype, len(shape) == 2 and i % 5 != 4)
        for i, shape in enumerate(DRAWN[dtype][shapes])
    ]


# Both sides


def without_values(
    name: str, of: Iterable[Parameter], implementation: OptimizerImplementation | None = None, momentum: bool = False
) -> list[Step]:
    meter = Meter()
    graph = AutogradGraph(meter)
    trained = all_trained(meter, of)
    before, found = meter.live_bytes, []
    for _ in range(2):
        now = meter.live_bytes
        meter.restart()
        run_step(graph, name, trained, implementation, momentum)
        found.append(Step(meter.peak_bytes - now, meter.live_bytes - before))
    assert meter.kind == "temporary"
    assert (
        meter.by_kind["optimizer"] == meter.live_bytes - before == sum(s.bytes for one in trained for s in one.states)
    )
    return found


def all_trained(meter: Meter, of: Iterable[Parameter]) -> list[OptimizedParameter]:
    trained = []
    for one in of:
        tensor = empty(meter, one.shape, DTYPES[one.dtype], is_leaf=True)
        gradient = empty(meter, one.shape, DTYPES[one.dtype])
        trained.append(OptimizedParameter(tensor, one.matrix, gradient, is_embedding_table=one.table))
    return trained


def by_torch(name: str, of: Iterable[Parameter], implementation: OptimizerImplementation, momentum: bool) -> list[Step]:
    device = "cpu" if implementation == "fused" else "meta"
    of = list(of)
    every = [nn.Parameter(torch.zeros(one.shape, dtype=getattr(torch, one.dtype), device=device)) for one in of]
    for parameter in every:
        parameter.grad = torch.zeros_like(parameter)
    how: dict[str, Any] = {"foreach": implementation == "foreach", "fused": implementation == "fused"}
    known = [*every, *(p.grad for p in every if p.grad is not None)]
    found = []
    with Answering(known, device=device) as mode:
        optimizers = list(made(name, of, every, how, momentum))
        for _ in range(2):
            now = mode.peak = mode.now
            for optimizer in optimizers:
                optimizer.step()
            found.append(Step(mode.peak - now, mode.now))
    return found


def made(
    name: str, of: Sequence[Parameter], every: Sequence[nn.Parameter], how: dict[str, Any], momentum: bool
) -> Iterator[torch.optim.Optimizer]:
    """torch's optimizers of that name; Muon has AdamW for all that it refuses."""
    match name:
        case "adamw":
            yield torch.optim.AdamW(every, **how)
        case "sgd":
            yield torch.optim.SGD(every, momentum=0.9 if momentum else 0.0, **how)
        case "adafactor":
            yield torch.optim.Adafactor(every, foreach=how["foreach"])
        case "adafactor-transformers":
            yield optimization.Adafactor(every, lr=1e-3, scale_parameter=False, relative_step=False)
        case "muon":
            taken = [one.matrix for one in of]
            if any(taken):
                yield torch.optim.Muon([p for p, yes in zip(every, taken, strict=True) if yes])
            if not all(taken):
                yield torch.optim.AdamW([p for p, yes in zip(every, taken, strict=True) if not yes], **how)


def is_slow(name: str, implementation: OptimizerImplementation, shapes: str) -> bool:
    """The products of Muon with a large matrix take seconds on the CPU; on meta they run with foreach and loop."""
    return name == "muon" and implementation == "fused" and "large" in shapes


STEPS = {
    "-".join(map(str, (*case, *which))): (*case, *which)
    for case in CASES
    for which in LISTS
    if not is_slow(case[0], case[1], which[1])
}


def causes(case: tuple[str, OptimizerImplementation, bool, str, str]) -> set[Any]:
    """Each number format of an implementation and, of a loop or of Muon, each list of shapes: others do with each kind
    alone what they do with all kinds at once.
    """
    name, implementation, _, _, shapes = case
    has_each_list = implementation == "loop" or name == "muon" or shapes in ("odd", "every")
    return {case[:4], *([(*case[:3], shapes)] if has_each_list else [])}


@compares(lambda name: {Thing("optimizer", name)})
@pytest.mark.parametrize(("name", "implementation", "momentum", "dtype", "shapes"), spread(sampled(STEPS, causes)))
def test_steps_are_torchs(
    name: str, implementation: OptimizerImplementation, momentum: bool, dtype: str, shapes: str
) -> None:
    of = parameters(dtype, shapes)
    assert without_values(name, of, implementation, momentum) == by_torch(name, of, implementation, momentum)


def test_the_comparison_with_torch_bites() -> None:
    """The loop is not foreach: a step of the loop makes two tensors at a time, not one for each parameter."""
    of = [Parameter((size,), "float32", False) for size in (100, 300, 200)]
    loop, foreach = without_values("adamw", of, "loop"), without_values("adamw", of, "foreach")
    assert [one.peak for one in loop] == [4 * (2 * 600 + 100 + 2 * 300), 4 * (100 + 2 * 300)]
    assert [one.peak for one in foreach] == [4 * 3 * 600, 4 * 600]
    assert foreach == by_torch("adamw", of, "foreach", False) != by_torch("adamw", of, "loop", False) == loop


def test_a_parameter_without_gradient_has_no_states_and_no_step() -> None:
    for name in OPTIMIZER_NAMES:
        meter = Meter()
        trained = all_trained(meter, [Parameter((80, 80), "float32", True)] * 2)
        trained[0].gradient = None
        run_step(AutogradGraph(meter), name, trained, has_momentum=True)
        assert [len(one.states) > 0 for one in trained] == [False, True], name


# States of whole models, against the closed form of llmcalc/device_memory/optimizers

PRESETS = ("gpt2", "llama3-8b", "bert-base", "t5-small", "mixtral-8x7b", "deepseek-v3", "mamba-130m", "gpt-oss-20b")


ADDED_UP = {
    f"{name}-{dtype}-{preset}": (name, dtype, preset)
    for name in OPTIMIZER_NAMES
    for dtype in ("float32", "bfloat16")
    for preset in PRESETS
}


@pytest.mark.parametrize(
    ("name", "dtype", "preset"),
    spread(sampled(ADDED_UP, lambda case: [case[:2], case[2]])),  # each preset once
)
def test_states_add_up_to_the_closed_form(name: str, dtype: str, preset: str) -> None:
    """Step counts are in the closed form; without values they are counted where they are on the device: for fused."""
    held = list(trained_tensors(llmcalc.load(preset).model.tree()))
    closed = optimizer(name).state(held, dtype, has_momentum=True)
    every = [
        Parameter(one.tensor.shape, dtype, one.is_layer_matrix, one.tensor.role == "table")
        for one in held
        for _ in range(one.copies)
    ]
    for implementation in optimizer(name).implementations:
        expected = closed.bytes if implementation == "fused" else closed.bytes - closed.states.get("step", 0)
        first, second = without_values(name, every, implementation, momentum=True)
        assert first.kept == second.kept == expected


# Hand arithmetic from the source code of bitsandbytes, torchao and schedulefree


def state_bytes(name: str, *shapes: Shape, dtype: str = "bfloat16", temporary: int = 0, table: bool = False) -> int:
    """temporary: bytes that a step of the largest, last tensor makes and frees."""
    first, second = without_values(name, [Parameter(shape, dtype, False, table) for shape in shapes])
    assert first == Step(first.kept + temporary, first.kept), "kernels make no other tensors"
    assert second == Step(temporary, first.kept)
    return first.kept


@compares(lambda name: {Thing("optimizer", optimizer(name).name)}, torch=False)
@pytest.mark.parametrize("name", ["adamw-8bit", "adam8bit", "adamw_bnb_8bit", "paged_adamw_8bit"])
def test_states_of_8_bits_by_hand(name: str) -> None:
    maps = 2 * 256 * 4
    assert state_bytes(name, (4095,)) == 2 * 4 * 4095  # under 4096 elements: fp32, no maps
    assert state_bytes(name, (64, 64)) == 2 * (4096 + 4 * 16) + maps  # 4096 / 256 scales
    assert state_bytes(name, (4097,)) == 2 * (4097 + 4 * 17) + maps  # one element in a 17th block
    assert state_bytes(name, (64, 64), (10,), (4097,)) == 2 * (4096 + 64 + 40 + 4097 + 68) + maps  # the maps are shared
    assert state_bytes(name, (64, 64), dtype="float32") == state_bytes(name, (64, 64))


@compares(lambda name: {Thing("optimizer", optimizer(name).name)}, torch=False)
@pytest.mark.parametrize("name", ["lion_8bit", "paged_lion_8bit"])
def test_lion_has_one_8_bit_state(name: str) -> None:
    assert state_bytes(name, (4095,)) == 4 * 4095
    assert state_bytes(name, (64, 64), (4097,)) == 4096 + 4 * 16 + 4097 + 4 * 17 + 256 * 4


@compares(lambda name, states: {Thing("optimizer", optimizer(name).name)}, torch=False)
@pytest.mark.parametrize(
    ("name", "states"),
    [(f"{name}-8bit-trainer", 1 + ("adamw" in name)) for name in ("adamw", "lion", "paged-adamw", "paged-lion")],
)
def test_the_trainer_gives_tables_of_embeddings_states_of_32_bits(name: str, states: int) -> None:
    """transformers/trainer.py, `register_module_override`; also measured (tests/witnesses/test_gpu_low_rank.py)."""
    assert state_bytes(name, (64, 64), table=True) == states * 4 * 4096
    assert state_bytes(name, (64, 64)) == states * (4096 + 4 * 16 + 256 * 4)


@compares(lambda name, states: {Thing("optimizer", optimizer(name).name)}, torch=False)
@pytest.mark.parametrize(
    ("name", "states"), [("lion", 1), ("paged_lion_32bit", 1), ("paged_adamw_32bit", 2), ("paged-adamw", 2)]
)
def test_states_of_32_bits_by_hand(name: str, states: int) -> None:
    assert state_bytes(name, (64, 64), (10,)) == states * 4 * (4096 + 10)
    assert optimizer(name).state_format == "float32"


@compares(lambda: {Thing("optimizer", "adamw-8bit-torchao")}, torch=False)
def test_torchaos_states_by_hand() -> None:
    """Each state of whole blocks has a code map of its own; other states are in the tensor's format, here bf16."""
    assert state_bytes("adamw_torch_8bit", (64, 64), temporary=2 * 4 * (4096 + 16)) == 2 * (4096 + 4 * 16 + 1024)
    assert state_bytes("ao_adamw_8bit", (4097,), (10,)) == 2 * 2 * 4107


@compares(lambda: {Thing("optimizer", "adamw-4bit-torchao")}, torch=False)
def test_torchaos_states_of_4_bits_by_hand() -> None:
    """Two codes in a byte, a scale for each block of 256, and a map of 16 codes per state."""
    wide = 2 * (4 + 8) * 4096 + 2 * 4 * 16  # new states in fp32 with their scales, and codes of 8 bytes
    assert state_bytes("adamw_torch_4bit", (64, 64), temporary=wide) == 2 * (2048 + 4 * 16 + 4 * 16)
    assert state_bytes("ao_adamw_4bit", (4097,), (10,)) == 2 * 2 * 4107


@compares(lambda name, states: {Thing("optimizer", optimizer(name).name)}, torch=False)
@pytest.mark.parametrize(("name", "states"), [("schedule_free_adamw", 2), ("schedule_free_sgd", 1)])
def test_schedule_free_states_by_hand(name: str, states: int) -> None:
    """AdamW's denominators: foreach makes all of them, a loop one beside that of the tensor before."""
    shapes = [Parameter(shape, "bfloat16", False) for shape in ((64, 64), (8, 8), (32, 32))]
    size = 2 * (4096 + 64 + 1024)
    denominators = {"foreach": size, "loop": 2 * (4096 + 64)} if states == 2 else {"foreach": 0, "loop": 0}
    for implementation, more in denominators.items():
        first, second = without_values(name, shapes, implementation)  # type: ignore[arg-type]
        assert (first.kept, second.kept) == (states * size, states * size)
        assert second.peak == more


def test_states_that_the_driver_pages_are_those_of_large_tensors() -> None:
    large, small = Node("model", Linear(1000, 100)), Node("model", Linear(1000, 99))
    for name, per_element in (("paged-adamw", 8), ("paged-adamw-8bit", 2), ("paged-lion", 4), ("paged-lion-8bit", 1)):
        paged = optimizer(name).paged_bytes
        assert paged is not None
        assert [paged(list(trained_tensors(node))) for node in (large, small)] == [per_element * 100_000, 0]
    assert optimizer("adamw-8bit").paged_bytes is None


def test_states_that_the_driver_pages_are_no_tensors_of_torchs_allocator() -> None:
    """A whole run leaves out states of 100,000 elements and more; their scales and small states stay."""
    of = [Parameter((1000, 100), "bfloat16", False), Parameter((64, 64), "bfloat16", False)]
    meter = Meter()
    trained, before = all_trained(meter, of), meter.live_bytes
    run_step(AutogradGraph(meter), "paged-adamw-8bit", trained, pages_states=True)
    scales, maps = -(-100_000 // 256), 2 * 256 * 4
    assert meter.live_bytes - before == 2 * (4 * scales + 4096 + 4 * 16) + maps


# What is refused


def test_an_unknown_optimizer_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"^--optimizer: 'shampoo' is not known; expected one of adamw, sgd, adafactor, "
    ):
        optimizer("shampoo")
    with pytest.raises(InputError, match=r"^--optimizer: 'shampoo' is not known"):
        run_step(AutogradGraph(Meter()), "shampoo", [])


@pytest.mark.parametrize(
    ("name", "implementation", "message"),
    [
        ("adafactor", "fused", "--optimizer-impl fused: adafactor does not have it; expected loop or foreach"),
        ("adamw-8bit", "foreach", "--optimizer-impl foreach: adamw-8bit does not have it; expected loop"),
    ],
)
def test_an_implementation_that_a_library_does_not_have_is_refused(
    name: str, implementation: Any, message: str
) -> None:
    with pytest.raises(InputError) as error:
        run_step(AutogradGraph(Meter()), name, [], implementation)
    assert str(error.value) == message


def test_defaults_are_the_libraries() -> None:
    """torch takes foreach on a GPU where a step has it, but for Adafactor, whose foreach is asked for."""
    defaults = {name: optimizer(name).implementations[0] for name in OPTIMIZER_NAMES}
    assert defaults == {
        "adamw": "foreach",
        "sgd": "foreach",
        "adafactor": "loop",
        "adafactor-transformers": "loop",
        "muon": "foreach",
        "lion": "loop",
        "adamw-8bit": "loop",
        "adamw-8bit-trainer": "loop",
        "lion-8bit": "loop",
        "lion-8bit-trainer": "loop",
        "adamw-8bit-torchao": "loop",
        "adamw-4bit-torchao": "loop",
        "paged-adamw": "loop",
        "paged-adamw-8bit": "loop",
        "paged-adamw-8bit-trainer": "loop",
        "paged-lion": "loop",
        "paged-lion-8bit": "loop",
        "paged-lion-8bit-trainer": "loop",
        "adam-mini": "loop",
        "galore": "loop",
        "apollo": "loop",
        "schedule-free-adamw": "foreach",
        "schedule-free-sgd": "foreach",
    }
