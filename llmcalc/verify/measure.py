"""Measuring a PyTorch module: parameters, buffers, FLOPs and cache bytes by module path. Knows no architecture.

FLOPs are read from `torch.utils.flop_counter.FlopCounterMode`, which attributes each product to the modules it ran in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from .shapes import remembered

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.utils.flop_counter import FlopCounterMode


def _rolled_up(own: Iterable[tuple[str, int]]) -> dict[str, int]:
    """What belongs to single modules → what belongs to each module and all below it; `` is the whole, 0 of nothing."""
    sums = {"": 0}
    for path, value in own:
        sums[""] += value
        while path:
            sums[path] = sums.get(path, 0) + value
            path = path.rpartition(".")[0]
    return sums


def parameters(module: nn.Module) -> dict[str, int]:
    """Parameters by path; one that several modules share counts where it stands first."""
    named = module.named_parameters()  # gives a shared parameter once, under its first name
    return _rolled_up((name.rpartition(".")[0], p.numel()) for name, p in named)


def tensors(module: nn.Module, first: Sequence[str] = ()) -> dict[str, int]:
    """As `parameters`, and each parameter by its own name too; one that several modules share counts in the one that
    comes first in `first`.
    """
    rank = {path: i for i, path in reversed([*enumerate(first)])}

    def place(name: str) -> int:
        """Where the innermost module that is listed stands in the list."""
        while name and name not in rank:
            name = name.rpartition(".")[0]
        return rank.get(name, len(rank))

    names: dict[int, list[str]] = {}
    sizes: dict[int, int] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
        sizes[id(parameter)] = parameter.numel()
    return _rolled_up((min(several, key=place), sizes[key]) for key, several in names.items())


def buffers(module: nn.Module) -> dict[str, int]:
    """Elements of the buffers that a checkpoint would hold, by path."""
    saved = module.state_dict(keep_vars=True)
    return _rolled_up((name.rpartition(".")[0], b.numel()) for name, b in module.named_buffers() if name in saved)


def pass_through(module: nn.Module, paths: Iterable[str]) -> None:
    """Lets the modules at these paths hand their first input on instead of running."""
    for path in paths:
        module.get_submodule(path).forward = lambda x, *_: x


def repeated(measured: dict[str, int], repeats: dict[str, str]) -> dict[str, int]:
    """The readings with those of each module that was passed through: what its twin (path → path) measured."""
    out = dict(measured)
    for path, twin in repeats.items():
        for name, value in measured.items():
            if name == twin or name.startswith(twin + "."):
                out[path + name[len(twin) :]] = value
        above = path
        while above:
            above = above.rpartition(".")[0]
            out[above] = out.get(above, 0) + measured.get(twin, 0)
    return out


def module_names(module: nn.Module) -> frozenset[str]:
    """The path of every module, the root's being empty."""
    return frozenset(name for name, _ in module.named_modules(remove_duplicate=False))


def tensor_names(module: nn.Module) -> frozenset[str]:
    """The path of every parameter, one that several modules share under each of its names."""
    return frozenset(name for name, _ in module.named_parameters(remove_duplicate=False))


def flops_by_path(counter: FlopCounterMode, root: str) -> dict[str, int]:
    """The counter's reading by module path. A counter that saw no product at all reads an empty dict."""
    out: dict[str, int] = {}
    for name, by_op in counter.get_flop_counts().items():
        total = sum(by_op.values())
        if name == "Global":
            out[""] = total
        elif name.startswith(root + "."):
            out[name[len(root) + 1 :]] = total
    return out


def count_flops(
    module: nn.Module, run: Callable[[], Any], train: bool = False
) -> tuple[dict[str, int], dict[str, int]]:
    """FLOPs by path of `run()`, and of `run()` with the backward pass of all it gives back.

    run: calls the module and gives back the tensors that a loss would be made of. The second dict is empty unless
    `train`.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    root = type(module).__name__
    owners = BackwardOwners(module) if train else None
    formulas = {torch.ops.aten.convolution_backward: convolution_backward}
    counting = FlopCounterMode(display=False, custom_mapping=formulas)
    with remembered(), counting as counter, torch.set_grad_enabled(train):
        outputs = run()
        forward = flops_by_path(counter, root)
        if owners is None:
            return forward, {}
        own = owners.backward(outputs, counter.get_total_flops)
    for parameter in module.parameters():
        parameter.grad = None
    both = {path: forward.get(path, 0) + own.get(path, 0) for path in {*forward, *own}}
    return forward, both


def convolution_backward(
    grad: Any,
    x: Any,
    weight: Any,
    _bias: Any,
    _stride: Any,
    _padding: Any,
    _dilation: Any,
    transposed: bool,
    _output_padding: Any,
    _groups: Any,
    output_mask: Any,
    **_: Any,
) -> int:
    """FLOPs of a convolution's backward: dx and dW each cost what the forward does.

    (torch's own formula takes the weight's gradient of a grouped convolution for that of an ungrouped one: `groups`
    times as much.)
    """
    where = x if transposed else grad
    products = where[0] * math.prod(where[2:]) * math.prod(weight)
    return 2 * int(products) * (bool(output_mask[0]) + bool(output_mask[1]))


class BackwardOwners:
    """Attributes the products of a backward pass to the modules whose forward they belong to.

    (FlopCounterMode's own attribution of a backward is by the last module entered, and wrong where a module's inputs
    need no gradient or branch.) Every autograd node belongs to the innermost module that was running when it was made:
    on entry to a module the nodes behind its inputs are its caller's, on leaving it those behind its outputs are its
    own. While the backward runs, what the counter gains between two nodes is the first one's.
    """

    def __init__(self, module: nn.Module) -> None:
        self.owner: dict[Any, str] = {}
        self.stack = [""]
        self.handles: list[Any] = []
        for name, child in module.named_modules():
            if name:
                self.handles.append(child.register_forward_pre_hook(self._enter(name), with_kwargs=True))
                self.handles.append(child.register_forward_hook(self._leave))

    def _enter(self, name: str) -> Callable[..., None]:
        def hook(_: nn.Module, args: Any, kwargs: Any) -> None:
            self._claim((args, kwargs), self.stack[-1])
            self.stack.append(name)

        return hook

    def _leave(self, _: nn.Module, args: Any, output: Any) -> None:
        self._claim(output, self.stack.pop())

    def _claim(self, values: Any, path: str) -> None:
        """Gives every node behind these tensors that has no owner yet to the module at `path`."""
        import torch
        from torch.utils._pytree import tree_leaves

        todo = [v.grad_fn for v in tree_leaves(values) if isinstance(v, torch.Tensor) and v.grad_fn is not None]
        while todo:
            node = todo.pop()
            if node not in self.owner:
                self.owner[node] = path
                todo += [below for below, _ in node.next_functions if below is not None]

    def backward(self, outputs: list[Tensor], total: Callable[[], int]) -> dict[str, int]:
        """Runs the backward pass of the sum of all outputs. total: FLOPs counted up to now."""
        for handle in self.handles:
            handle.remove()
        self._claim(outputs, "")
        loss: Any = sum(out.float().sum() for out in outputs)
        gained: dict[str, int] = {}
        running, before = "", total()

        def settle(following: str) -> None:
            nonlocal running, before
            now = total()
            gained[running] = gained.get(running, 0) + now - before
            running, before = following, now

        for node, path in self.owner.items():
            node.register_prehook(lambda _, path=path: settle(path))
        loss.backward()
        settle("")
        self.owner.clear()
        return _rolled_up(gained.items())


def held_bytes(store: dict[nn.Module, tuple[Tensor, ...]], module: nn.Module) -> dict[str, int]:
    """Bytes of storage that each cache module holds, by path."""
    names = {id(m): name for name, m in module.named_modules()}
    own = ((names[id(m)], sum(t.untyped_storage().nbytes() for t in tensors)) for m, tensors in store.items())
    return _rolled_up(own)
