import torch
from megatron.bridge import AutoBridge
from megatron.bridge.recipes.common import _pretrain_common

MODEL = "Qwen/Qwen2.5-7B"


def qwen25_7b_pretrain_8gpu_config():
    """Pretrains on 8 devices."""
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained(MODEL).to_megatron_provider(load_weights=False)
    cfg.model.tensor_model_parallel_size = 2
    cfg.model.pipeline_model_parallel_size = 2
    cfg.model.sequence_parallel = True
    cfg.model.seq_length = 4096
    cfg.model.cross_entropy_loss_fusion = True
    cfg.model.recompute_granularity = None
    cfg.train.micro_batch_size = 1
    cfg.train.global_batch_size = 64
    cfg.optimizer.exp_avg_dtype = torch.float32
    return cfg


def qwen25_7b_pretrain_long_config():
    cfg = qwen25_7b_pretrain_8gpu_config()
    cfg.model.seq_length = 16384
    cfg.model.context_parallel_size = 2
    cfg.model.recompute_granularity = "full"
    return cfg
