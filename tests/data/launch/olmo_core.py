from olmo_core.config import DType
from olmo_core.distributed.parallel import DataParallelType
from olmo_core.internal.experiment import CommonComponents, build_config, main
from olmo_core.nn.transformer import TransformerConfig
from olmo_core.optim import AdamWConfig
from olmo_core.train.train_module import TransformerDataParallelConfig, TransformerTrainModuleConfig

SEQUENCE_LENGTH = 2048
GLOBAL_BATCH_SIZE = 64 * SEQUENCE_LENGTH


def build_model_config(common: CommonComponents) -> TransformerConfig:
    return TransformerConfig.olmo2_1B_v2(vocab_size=common.tokenizer.padded_vocab_size())


def build_train_module_config(common: CommonComponents) -> TransformerTrainModuleConfig:
    rank_microbatch_size = 4 * common.max_sequence_length
    return TransformerTrainModuleConfig(
        rank_microbatch_size=rank_microbatch_size,
        max_sequence_length=common.max_sequence_length,
        optim=AdamWConfig(lr=4e-4, fused=True),
        compile_model=True,
        dp_config=TransformerDataParallelConfig(
            name=DataParallelType.fsdp, param_dtype=DType.bfloat16, reduce_dtype=DType.float32
        ),
        float8_config=None,
    )


if __name__ == "__main__":
    main(build_config, GLOBAL_BATCH_SIZE, SEQUENCE_LENGTH, global_batch_size=GLOBAL_BATCH_SIZE)
