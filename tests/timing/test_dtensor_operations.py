"""Operations on DTensors of a layer that tensor-parallel ranks divide, as torch's dispatcher counts them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from llmcalc.sources.hardware import load_hardware
from llmcalc.sources.presets import load_preset
from llmcalc.timing.device import device_of
from llmcalc.timing.software_stacks import find_stack
from llmcalc.timing.step import StepPlan, host_wait
from llmcalc.timing.time_estimator import NumberFormats, TimedPass, time_pass
from llmcalc.timing.work_recorder import rank_work

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.distributed.tensor import DTensor, Replicate, Shard  # noqa: E402
from torch.distributed.tensor.parallel import (  # noqa: E402
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

RANKS, WIDTH = 8, 64
INPUTS = {"q": WIDTH, "k": WIDTH, "v": WIDTH, "o": WIDTH, "gate": WIDTH, "up": WIDTH, "down": 2 * WIDTH}
OUTPUTS = {**dict.fromkeys("qkvo", WIDTH), "gate": 2 * WIDTH, "up": 2 * WIDTH, "down": WIDTH}


class Part(nn.Module):
    """A half of a layer: linear layers of an input, then one of their product."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names = names
        for name in names:
            self.add_module(name, nn.Linear(INPUTS[name], OUTPUTS[name], bias=False))

    def forward(self, x: Any) -> Any:
        *inputs, output = (getattr(self, name) for name in self.names)
        product = inputs[0](x)
        for layer in inputs[1:]:
            product = product * layer(x)
        return output(product)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.network = Part("q", "k", "v", "o"), Part("gate", "up", "down")
        self.attention_norm, self.network_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.attention_norm(x))
        return x + self.network(self.network_norm(x))


class Operations(TorchDispatchMode):
    """Counts operations with a DTensor among their arguments."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += any(isinstance(leaf, DTensor) for leaf in tree_leaves((args, kwargs or {})))
        return function(*args, **(kwargs or {}))


@pytest.fixture
def mesh() -> Iterator[Any]:
    """Eight ranks of one process, whose messages send nothing."""
    from torch.distributed.device_mesh import init_device_mesh

    torch.distributed.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    yield init_device_mesh("cpu", (RANKS,))
    torch.distributed.destroy_process_group()


def dispatched(mesh: Any, sequence_parallel: bool) -> list[int]:
    """Operations of the forward and of the backward pass, as torchtitan divides a layer."""
    plan: dict[str, Any] = {
        f"{part}.{name}": ColwiseParallel() for part, names in (("attention", "qkv"), ("network", ("gate", "up")))
        for name in names
    }  # fmt: skip
    divided: dict[str, Any] = {"output_layouts": Shard(1)} if sequence_parallel else {}
    plan |= {"attention.o": RowwiseParallel(**divided), "network.down": RowwiseParallel(**divided)}
    if sequence_parallel:
        gathered = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
        plan |= {"attention": gathered, "network": gathered}
        plan |= {"attention_norm": SequenceParallel(), "network_norm": SequenceParallel()}
    layer = parallelize_module(Layer(), mesh, plan)
    with Operations() as operations:  # type: ignore[no-untyped-call]
        output = layer(torch.ones(1, 8, WIDTH, requires_grad=True))
        forward = operations.count
        output.sum().backward()
    return [forward, operations.count - forward]


def timed(tp: int, sequence_parallel: bool = False, micro_batch: int = 1, copies: bool = True) -> TimedPass:
    plan = StepPlan(tp=tp, micro_batch=micro_batch, seq=64, sequence_parallel=sequence_parallel)
    stack, device = find_stack("fsdp2"), device_of(load_hardware("h100-sxm"))
    stack = stack.model_copy(update={"copies_gathered_tokens": copies})
    return time_pass(rank_work(load_preset("llama3-8b").model, plan.rank_pass(stack)), device, stack, NumberFormats())


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_operations_of_a_divided_layer_are_those_of_the_dispatcher(mesh: Any, sequence_parallel: bool) -> None:
    of_stack = find_stack("fsdp2").dtensor_operations_by_kind
    counted = [timed(8, sequence_parallel).dtensor_operations(0, backward, of_stack) for backward in (False, True)]
    assert counted == dispatched(mesh, sequence_parallel)


def test_ranks_that_divide_a_layer_wait_for_the_host_of_eager_classes_alone() -> None:
    eager, compiled = find_stack("fsdp2"), find_stack("fsdp2-compile")
    divided, whole = timed(8), timed(1)
    waits = [host_wait(timed_pass, eager, 0, False, 0.0) for timed_pass in (divided, whole)]
    assert waits[0] - waits[1] == pytest.approx(7 * 4 * 9e-5)
    assert host_wait(divided, compiled, 0, False, 0.0) == 0


@pytest.mark.parametrize("sequences", [1, 2])
def test_tokens_are_copied_between_the_orders_of_a_collective_and_of_sequences(sequences: int) -> None:
    """torch's own functions, which its functional collectives call: a gather of one sequence alone is a view."""
    from torch._utils import _chunk_or_narrow_cat, _maybe_view_chunk_cat

    gathered, reduced = torch.ones(RANKS * sequences, 4, WIDTH), torch.ones(sequences, 4 * RANKS, WIDTH)
    copied = [
        _maybe_view_chunk_cat(gathered, RANKS, 1).data_ptr() != gathered.data_ptr(),
        _chunk_or_narrow_cat(reduced, RANKS, narrow_dim=1, cat_dim=0).data_ptr() != reduced.data_ptr(),
    ]
    seconds = [
        sum(operation.network for operation in timed(8, True, sequences, copies).operations if operation.is_message)
        for copies in (False, True)
    ]
    copy_seconds = device_of(load_hardware("h100-sxm")).memory_seconds(2 * 2 * 64 * 4096 * sequences)
    kinds = [operation.kind for operation in timed(8, True, sequences).operations if operation.is_message]
    expected = kinds.count("all_gather") * copied[0] + kinds.count("reduce_scatter") * copied[1]
    assert kinds.count("reduce_scatter") >= 4
    assert (seconds[1] - seconds[0]) / copy_seconds == pytest.approx(expected)
