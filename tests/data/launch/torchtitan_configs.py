from torchtitan.components.optimizer import default_adamw
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC
from torchtitan.trainer import Trainer

from . import model_registry

LENGTH = 4096


def llama3_debug(batch: int = 4) -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("debugmodel"),
        optimizer=default_adamw(lr=8e-4),
        training=TrainingConfig(
            num_tokens_per_microbatch_per_dp_rank=4 * LENGTH,
            max_context_length=LENGTH,
            steps=10,
        ),
        activation_checkpoint=FullAC.Config(),
    )


def llama3_debug_tp() -> Trainer.Config:
    config = llama3_debug()
    config.parallelism = ParallelismConfig(tensor_parallel_degree=2)
    config.compile = CompileConfig(enable=True)
    config.activation_checkpoint = None
    return config
