"""What a kernel holds when it is replayed on tensors without values, for comparisons with torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from llmcalc.simulator.aten import Aten
from llmcalc.simulator.autograd import AutogradGraph, backward, saved_storages
from llmcalc.simulator.meter import Meter
from llmcalc.simulator.tensor import DTYPES, Tensor, empty
from tests.simulator.witness import Held


def held(meter: Meter, graph: AutogradGraph, out: Tensor, base: int, counts_saved: bool = True) -> Held:
    """What a forward pass left, and its backward pass. Bytes beside `base`."""
    saved = sum(s.bytes for s in saved_storages(out) if s.block.kind != "weights") if counts_saved else 0
    live, forward = meter.live_bytes - base, meter.peak_bytes - base
    meter.restart()
    output_gradient = graph.new_tensor(out.shape, out.dtype, out.strides)
    backward(graph, out, output_gradient)
    del out, output_gradient
    return Held(saved, live, forward, meter.peak_bytes - base, meter.live_bytes - base)


def held_by_kernel(run: Callable[..., Tensor], inputs: Iterable[tuple[tuple[int, ...], str, bool]]) -> Held:
    """What a kernel and its backward pass hold. inputs: shape, number format, and whether it takes a gradient."""
    meter = Meter()
    graph = AutogradGraph(meter)
    graph.adds_in_place = False  # under a dispatch mode, which the witness is, torch never does
    meter.kind = "weights"
    tensors = [empty(meter, shape, DTYPES[dtype], is_leaf=is_trained) for shape, dtype, is_trained in inputs]
    meter.kind, base = "temporary", meter.live_bytes
    meter.restart()
    return held(meter, graph, run(Aten(graph), *tensors), base)
