import torch
from megatron.bridge import AutoBridge
from megatron.bridge.recipes.common import _peft_common, _pretrain_common
from megatron.bridge.recipes.utils.dataset_utils import default_peft_config

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


def qwen25_7b_peft_config(peft_scheme="lora"):
    cfg = _peft_common()
    cfg.model = AutoBridge.from_hf_pretrained(MODEL).get_model_config()
    cfg.model.tensor_model_parallel_size = 2
    cfg.model.context_parallel_size = 1
    peft_cfg = default_peft_config(peft_scheme)
    if isinstance(peft_scheme, str) and peft_scheme.lower() in ["lora", "dora"]:
        peft_cfg.dim = 16
        peft_cfg.target_modules = ["linear_qkv", "linear_proj"]
    else:
        peft_cfg.dim = 64
    cfg.peft = peft_cfg
    cfg.optimizer.use_distributed_optimizer = False
    cfg.ddp.use_distributed_optimizer = False
    if cfg.model.context_parallel_size > 1:
        cfg.model.seq_length = 1
    return cfg
