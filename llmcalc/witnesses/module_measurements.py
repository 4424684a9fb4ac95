"""Measurements of any PyTorch module: parameters, buffers, FLOPs and cache bytes by module path.

FLOPs come from `torch.utils.flop_counter.FlopCounterMode`, which attributes each matrix multiplication to the modules
it ran in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.utils.flop_counter import FlopCounterMode

    from ..model import ModelSpec


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Sets torch's default number format, as `from_pretrained` does, so that buffers have the model's format too."""
    import torch

    previous_dtype = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(previous_dtype)


def token_ids(spec: ModelSpec, batch: int, token_count: int, device: str, is_random: bool) -> Tensor:
    """Returns token ids [batch, tokens], random or zeros; for a model that reads sound, samples of zeros."""
    import torch

    if spec.main.stem is not None:
        return torch.zeros(
            spec.main.stem.input_shape(batch, token_count), dtype=torch.get_default_dtype(), device=device
        )
    if is_random:
        return torch.randint(0, spec.vocab_size, (batch, token_count), device=device)
    return torch.zeros(batch, token_count, dtype=torch.int64, device=device)


def encoder_input(
    spec: ModelSpec, batch: int, token_count: int, dtype: str, device: str, is_random: bool = False
) -> Tensor | None:
    """Returns an encoder-decoder's input of the encoder: token ids, or frames of zeros; None for other models."""
    import torch

    if spec.encoder is None or spec.decoder is None:
        return None
    if spec.encoder.stem is None:
        return token_ids(spec, batch, token_count, device, is_random)
    return torch.zeros(spec.encoder.stem.input_shape(batch, token_count), dtype=getattr(torch, dtype), device=device)


def _sums_with_submodules(direct_counts: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Returns each module's value plus the values of its submodules, by module path (empty for the root)."""
    summed_counts = {"": 0}
    for module_path, direct_count in direct_counts:
        summed_counts[""] += direct_count
        while module_path:
            summed_counts[module_path] = summed_counts.get(module_path, 0) + direct_count
            module_path = module_path.rpartition(".")[0]
    return summed_counts


def parameter_counts_by_path(module: nn.Module) -> dict[str, int]:
    """Returns the number of parameters by module path. A shared parameter counts in its first module."""
    named_parameters = module.named_parameters()  # yields a shared parameter once, under its first name
    return _sums_with_submodules(
        (parameter_name.rpartition(".")[0], parameter.numel()) for parameter_name, parameter in named_parameters
    )


def parameter_counts_by_first_module(module: nn.Module, listed_modules: Sequence[str] = ()) -> dict[str, int]:
    """Returns the parameters by module path; a shared parameter counts in the first of `listed_modules` with it."""
    index_by_path = {module_path: list_index for list_index, module_path in reversed([*enumerate(listed_modules)])}

    def list_position(tensor_name: str) -> int:
        """Returns the index in `listed_modules` of the innermost module that has a parameter."""
        while tensor_name and tensor_name not in index_by_path:
            tensor_name = tensor_name.rpartition(".")[0]
        return index_by_path.get(tensor_name, len(index_by_path))

    names_by_tensor: dict[int, list[str]] = {}
    element_counts: dict[int, int] = {}
    for tensor_name, parameter in module.named_parameters(remove_duplicate=False):
        names_by_tensor.setdefault(id(parameter), []).append(tensor_name)
        element_counts[id(parameter)] = parameter.numel()
    return _sums_with_submodules(
        (min(names, key=list_position), element_counts[parameter_id]) for parameter_id, names in names_by_tensor.items()
    )


def buffer_counts_by_path(module: nn.Module) -> dict[str, int]:
    """Returns the number of elements of buffers that checkpoints save, by module path."""
    saved_tensors = module.state_dict(keep_vars=True)
    return _sums_with_submodules(
        (buffer_name.rpartition(".")[0], buffer.numel())
        for buffer_name, buffer in module.named_buffers()
        if buffer_name in saved_tensors
    )


def skip_modules(module: nn.Module, module_paths: Iterable[str]) -> None:
    """Makes modules return their first input unchanged, so that measurements leave them out."""
    for module_path in module_paths:
        module.get_submodule(module_path).forward = lambda x, *_: x


def copy_counts_to_repeats(measured_values: dict[str, int], repeats: dict[str, str]) -> dict[str, int]:
    """Adds measurements of skipped modules, copied from the equal modules that ran.

    repeats: their paths by skipped path.
    """
    values_of_all_repeats = dict(measured_values)
    for module_path, measured_path in repeats.items():
        for path, measured_count in measured_values.items():
            if path == measured_path or path.startswith(measured_path + "."):
                values_of_all_repeats[module_path + path[len(measured_path) :]] = measured_count
        parent_path = module_path
        while parent_path:
            parent_path = parent_path.rpartition(".")[0]
            values_of_all_repeats[parent_path] = values_of_all_repeats.get(parent_path, 0) + measured_values.get(
                measured_path, 0
            )
    return values_of_all_repeats


def module_names(module: nn.Module) -> frozenset[str]:
    """Returns the paths of all modules; the root's path is empty."""
    return frozenset(module_name for module_name, _ in module.named_modules(remove_duplicate=False))


def tensor_names(module: nn.Module) -> frozenset[str]:
    """Returns the paths of all parameters. A shared parameter is listed under every name."""
    return frozenset(tensor_name for tensor_name, _ in module.named_parameters(remove_duplicate=False))


def flops_by_path(counter: FlopCounterMode, root_name: str) -> dict[str, int]:
    """Returns the counter's FLOPs by module path; empty without matrix multiplications."""
    path_flops: dict[str, int] = {}
    for module_name, flops_by_operation in counter.get_flop_counts().items():
        operation_flops = sum(flops_by_operation.values())
        if module_name == "Global":
            path_flops[""] = operation_flops
        elif module_name.startswith(root_name + "."):
            path_flops[module_name[len(root_name) + 1 :]] = operation_flops
    return path_flops


def count_flops(
    module: nn.Module, run_model: Callable[[], Any], includes_backward: bool = False
) -> tuple[dict[str, int], dict[str, int]]:
    """Returns the FLOPs of `run_model()` by module path: of the forward pass, and of both passes.

    run_model: calls the module and returns the tensors that a loss would be computed from.
    includes_backward: whether to run the backward pass; without it the second dict is empty. False by default.
    """
    import torch

    from .flop_counter import flop_counter

    root_name = type(module).__name__
    backward_owners = BackwardOwners(module) if includes_backward else None
    with flop_counter() as counter, torch.set_grad_enabled(includes_backward):
        model_outputs = run_model()
        forward_flops = flops_by_path(counter, root_name)
        if backward_owners is None:
            return forward_flops, {}
        backward_flops = backward_owners.backward(model_outputs, counter.get_total_flops)
    for parameter in module.parameters():
        parameter.grad = None
    forward_and_backward = {
        path: forward_flops.get(path, 0) + backward_flops.get(path, 0) for path in {*forward_flops, *backward_flops}
    }
    return forward_flops, forward_and_backward


class BackwardOwners:
    """Attributes the matrix multiplications of a backward pass to the modules of the forward pass.

    FlopCounterMode attributes a backward pass to the last module entered, which is wrong where a module's inputs need
    no gradient or branch. Here every autograd node belongs to the innermost module that was running when the node was
    made. On entry to a module, unclaimed nodes behind its inputs belong to its caller; on exit, those behind its
    outputs belong to the module. In the backward pass, the FLOPs counted between two nodes belong to the first of them.
    """

    def __init__(self, module: nn.Module) -> None:
        self.owner: dict[Any, str] = {}
        self.stack: list[str] = [""]
        self.handles: list[Any] = []
        for module_name, child in module.named_modules():
            if module_name:
                self.handles.append(child.register_forward_pre_hook(self._enter_module(module_name), with_kwargs=True))
                self.handles.append(child.register_forward_hook(self._leave_module))

    def _enter_module(self, module_name: str) -> Callable[..., None]:
        def hook(_: nn.Module, args: Any, kwargs: Any) -> None:
            self._assign_owner((args, kwargs), self.stack[-1])
            self.stack.append(module_name)

        return hook

    def _leave_module(self, _: nn.Module, args: Any, module_output: Any) -> None:
        self._assign_owner(module_output, self.stack.pop())

    def _assign_owner(self, output_tensors: Any, module_path: str) -> None:
        """Assigns the autograd nodes behind tensors to a module, except those of other modules."""
        import torch
        from torch.utils._pytree import tree_leaves

        pending_nodes = [
            output_tensor.grad_fn
            for output_tensor in tree_leaves(output_tensors)
            if isinstance(output_tensor, torch.Tensor) and output_tensor.grad_fn is not None
        ]
        while pending_nodes:
            autograd_node = pending_nodes.pop()
            if autograd_node not in self.owner:
                self.owner[autograd_node] = module_path
                pending_nodes += [next_node for next_node, _ in autograd_node.next_functions if next_node is not None]

    def backward(self, model_outputs: list[Tensor], read_flop_count: Callable[[], int]) -> dict[str, int]:
        """Runs the backward pass of all outputs. Returns FLOPs by module.

        read_flop_count: returns the counter's total.
        """
        for hook_handle in self.handles:
            hook_handle.remove()
        self._assign_owner(model_outputs, "")
        loss: Any = sum(module_output.float().sum() for module_output in model_outputs)
        flops_by_owner: dict[str, int] = {}
        running_path, flops_before = "", read_flop_count()

        def count_for_owner(next_path: str) -> None:
            nonlocal running_path, flops_before
            current_flops = read_flop_count()
            flops_by_owner[running_path] = flops_by_owner.get(running_path, 0) + current_flops - flops_before
            running_path, flops_before = next_path, current_flops

        for autograd_node, module_path in self.owner.items():
            autograd_node.register_prehook(lambda _, module_path=module_path: count_for_owner(module_path))
        loss.backward()
        count_for_owner("")
        self.owner.clear()
        return _sums_with_submodules(flops_by_owner.items())


def cache_bytes_by_path(stored_cache: dict[nn.Module, tuple[Tensor, ...]], module: nn.Module) -> dict[str, int]:
    """Returns the bytes of cached tensors by module path. A view of a larger storage counts with its own elements."""
    path_by_module = {id(submodule): module_name for module_name, submodule in module.named_modules()}
    paths_and_bytes = (
        (path_by_module[id(submodule)], sum(tensor.nbytes for tensor in parameter_counts_by_first_module))
        for submodule, parameter_counts_by_first_module in stored_cache.items()
    )
    return _sums_with_submodules(paths_and_bytes)
