"""The KV caches and recurrent states that a forward pass stores for later passes."""

from __future__ import annotations

from ..flow.program import Step
from ..ops import State
from .meter import NoMeter
from .parameter_tensors import ParameterTensors
from .strides import Shape, numel
from .tensor import FLOAT32, Dtype, Tensor, count_storages_as, empty


class CacheTensors(ParameterTensors):
    """Caches the tensors that later passes read: keys and values, recurrent states, convolution inputs."""

    def cached_tensors(self, cache_name: str) -> tuple[Tensor, ...] | None:
        """Returns the tensors that the current module has cached under a name; None in the first pass."""
        return (
            None
            if self.cached_tensors_by_path is None
            else self.cached_tensors_by_path.get((*self.cache_path, cache_name))
        )

    def store_in_cache(self, cache_name: str, *tensors: Tensor) -> None:
        """Caches copies of tensors for later passes."""
        if self.cached_tensors_by_path is None:
            return
        with count_storages_as(self.graph.meter, "cache"):
            copied_tensors = tuple(
                self.new_pool_tensor(tensor.shape, tensor.dtype) if self.has_block_pool else self.aten.copy(tensor)
                for tensor in tensors
            )
            self.cached_tensors_by_path[(*self.cache_path, cache_name)] = copied_tensors

    def state_tensors(self, operation: Step, *state_shapes: Shape) -> tuple[Tensor, ...]:
        """Returns a recurrent state's tensors, allocated in the first pass; empty if the run has no cache.

        state_shapes: shapes for one sequence.
        """
        if self.cached_tensors_by_path is None:
            return ()
        cached_states = self.cached_tensors(operation.name)
        if cached_states is not None:
            return cached_states
        assert isinstance(operation.op, State)
        assert sum(map(numel, state_shapes)) == operation.op.size, (state_shapes, operation.op)
        dtype, batch_size = self.dtype if operation.op.element_bits is None else FLOAT32, self.run_config.batch
        with count_storages_as(self.graph.meter, "cache"):
            new_tensor = self.new_pool_tensor if self.has_block_pool else self.graph.new_tensor
            state_tensors = tuple(new_tensor((batch_size, *shape), dtype) for shape in state_shapes)
        self.cached_tensors_by_path[(*self.cache_path, operation.name)] = state_tensors
        return state_tensors

    def new_pool_tensor(self, shape: Shape, dtype: Dtype) -> Tensor:
        """Creates a tensor in the block pool of a paged cache, whose bytes are counted elsewhere."""
        return empty(NoMeter(), shape, dtype)

    def is_pooled(self, tensor: Tensor) -> bool:
        """Whether a tensor is stored in the block pool of a paged cache."""
        return self.has_block_pool and isinstance(tensor.storage.meter, NoMeter)
