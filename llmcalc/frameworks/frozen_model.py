"""Memory of training besides the trained model: frozen models, second losses, and encoders of images and sound.

A frozen copy of the trained model is the reference model of preference training.

Its weights stay all the time. Its pass without gradients runs while the trained model's activations are saved, and adds
its logits to theirs. DPO's own loss keeps no logits in float32 beside those of a 16-bit model, so that both together
need no more than the loss of supervised training, with which a step is counted (trl/trainer/dpo_trainer.py,
`_compute_loss`; trl/trainer/utils.py, `selective_log_softmax`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..algebra import ceil_div
from ..frozen import frozen
from ..optional import TOWERS
from ..units import DTYPE_BITS

if TYPE_CHECKING:
    from ..device_memory.device_memory import DeviceMemory
    from ..device_memory.estimate import Memory
    from ..parallel.layout import Layout
    from ..workload.loaded_encoders import LoadedEncoders


@frozen
class FrozenModel:
    """A frozen copy of the trained model, such as the reference model of DPO.

    source: the file that loads it.
    dtype: number format of its weights; empty (default) for that of the trained weights.
    rank_count: ranks that divide its weights; 1 by default.
    is_divided_as_trained: whether a rank has the same part of it as of the trained weights; false by default.
    name: its name in reports; "reference model" by default.
    loss: the loss that compares both models' logits, in bytes beside the trained model's own loss; None by default.
    """

    source: str
    dtype: str = ""
    rank_count: int = 1
    is_divided_as_trained: bool = False
    name: str = "reference model"
    loss: SecondLoss | None = None
    kind = "weights"

    @property
    def parts(self) -> tuple[FrozenModel | SecondLoss, ...]:
        """The terms that the frozen model adds to training memory: its weights and, if any, a second loss."""
        return (self,) if self.loss is None else (self, self.loss)

    def weight_bytes(self, parameter_count: int, trained_dtype: str) -> int:
        """Returns the bytes of the frozen weights per device.

        parameter_count: number of parameters. trained_dtype: trained format.
        """
        return -(-parameter_count // self.rank_count) * DTYPE_BITS[self.dtype or trained_dtype] // 8

    def additional_bytes(self, memory_estimate: Memory, device_memory: DeviceMemory) -> int:
        """Returns the bytes per device that the frozen weights add to the memory of training.

        device_memory: the memory of the rank's training.
        """
        if self.is_divided_as_trained:
            return device_memory.moments["step"]["weights"]
        return self.weight_bytes(memory_estimate.states.parameter_count.total, memory_estimate.states.dtype)

    def json_data(self) -> dict[str, object]:
        """Returns the frozen model as a dict for JSON documents."""
        return {"name": self.name, "dtype": self.dtype or None, "ranks": self.rank_count, "source": self.source}


@frozen
class SecondLoss:
    """A second loss besides the cross-entropy of the logits, for which another copy of the logits is saved.

    source: the file that computes it.
    bytes_per_logit: bytes per logit.
    name: its name in reports.
    chunk_tokens: tokens that it computes at a time; 0 (default) for all at once.
    chunk_bytes_per_logit: further bytes per logit of a chunk.
    """

    source: str
    bytes_per_logit: int
    name: str = "second loss"
    chunk_tokens: int = 0
    chunk_bytes_per_logit: int = 0
    kind = "temporary"

    @property
    def parts(self) -> tuple[SecondLoss]:
        """The term that the second loss adds to training memory, in a tuple."""
        return (self,)

    def additional_bytes(self, memory_estimate: Memory, device_memory: DeviceMemory) -> int:
        """Returns an upper bound of the bytes per device that the second loss adds as copies of logits."""
        workload = memory_estimate.states.workload
        token_count = int(workload.batch) * int(workload.seq)
        logit_bytes = self.bytes_per_logit * token_count + self.chunk_bytes_per_logit * min(
            token_count, self.chunk_tokens
        )
        return logit_bytes * memory_estimate.spec.vocab_size

    def json_data(self) -> dict[str, object]:
        """Returns the second loss as a dict for JSON documents."""
        return {"name": self.name, "bytes_per_logit": self.bytes_per_logit, "source": self.source}


@frozen
class EncoderBytes:
    """The bytes of weights, gradients or optimizer states that image and audio encoders take on a rank.

    kind: weights, gradients or optimizer. bytes: their number.
    model_name: the frozen model that has them; empty (default) for the trained model.
    """

    kind: str
    bytes: int
    model_name: str = ""
    source: str = "the class of the model in transformers, which loads them"

    @property
    def name(self) -> str:
        """The name of the encoders' bytes in reports."""
        return f"{self.model_name} encoders: {self.kind}".lstrip()

    def additional_bytes(self, memory_estimate: Memory, device_memory: DeviceMemory) -> int:
        """Returns the bytes that the encoders add to the memory of training."""
        return self.bytes


SHARDED_FROM_STAGE = {"optimizer": 1, "gradients": 2, "weights": 3}
"""Kind of memory → lowest ZeRO stage in which replicas divide it."""


def encoders_on_rank(
    memory_estimate: Memory,
    layout: Layout,
    loaded_encoders: LoadedEncoders | None,
    frozen_model: FrozenModel | SecondLoss | None = None,
) -> list[EncoderBytes]:
    """Returns the bytes of image and audio encoders on a rank, which only the first pipeline stage has.

    loaded_encoders: use of encoders that the run does not include; None if they are not loaded.
    frozen_model: a copy of the trained model, which has the encoders too; None (default) without one.
    """
    shard_count = layout.dp // layout.hsdp_replicas
    rank_bytes = [
        EncoderBytes(memory_kind, ceil_div(encoder_bytes.bytes, shard_count if layout.zero >= zero_stage else 1))
        for encoder_bytes in memory_estimate.tower_bytes(loaded_encoders)
        for memory_kind, zero_stage in [(encoder_bytes.kind, SHARDED_FROM_STAGE[encoder_bytes.kind])]
    ]
    if not rank_bytes or not isinstance(frozen_model, FrozenModel) or isinstance(frozen_model, Teacher):
        return rank_bytes
    memory_use = memory_estimate.states
    if frozen_model.is_divided_as_trained:
        copy_bytes = rank_bytes[0].bytes
    else:  # `FrozenModel.weight_bytes` counts included encoders
        copy_bytes = frozen_model.weight_bytes(
            memory_use.parameter_count.left_out.get(TOWERS.name, 0), memory_use.dtype
        )
    return [*rank_bytes, EncoderBytes("weights", copy_bytes, frozen_model.name)] if copy_bytes else rank_bytes


@frozen
class Teacher(FrozenModel):
    """A frozen model of another size whose outputs the trained model learns to reproduce (distillation).

    parameter_count: number of its parameters.
    """

    name: str = "teacher model"
    parameter_count: int = 0

    def additional_bytes(self, memory_estimate: Memory, device_memory: DeviceMemory) -> int:
        """Returns the bytes per device of the teacher's weights."""
        return self.weight_bytes(self.parameter_count, memory_estimate.states.dtype)
