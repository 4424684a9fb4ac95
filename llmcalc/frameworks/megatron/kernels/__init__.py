"""The kernels of a Megatron-LM rank with tensor, sequence, context and expert parallelism, replayed for memory.

They are those of Transformer Engine or Megatron-Core: sharded linear layers, fused norms, fused attention.

A kernel may be changed without reading the others; the published peaks in `tests/frameworks/megatron`
check all of them.
"""

from __future__ import annotations

from collections.abc import Callable

from ....flow.program import ModuleScope
from .adapters import AdapterKernels
from .fp8 import weight_sizes
from .lowering import GATHER_BUFFER_KEY, Parameter, PersistentTensors
from .rank_choices import RankKernelChoices

__all__ = ["GATHER_BUFFER_KEY", "Parameter", "PersistentTensors", "RankKernelChoices", "RankLowering", "weight_sizes"]


class RankLowering(AdapterKernels):
    """The kernel class that runs the model's operations on one rank, composed of all kernel classes in this folder."""

    def module_kernel(self, module_scope: ModuleScope) -> Callable[[], None] | None:
        """Returns the kernel that runs a whole module; None for a module whose operations run one by one."""
        if id(module_scope) in self.modules_without_kernel:
            return None
        module_kernel = super().module_kernel(module_scope)
        if module_kernel is None:
            self.modules_without_kernel[id(module_scope)] = module_scope
        return module_kernel
