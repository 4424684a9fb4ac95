"""Every setting of a run on one device: name, type, default, help, and the phases in which it applies.

One declaration a setting. The options of `memory`, `fit` and `plan`, the arguments of the Python functions, the fields
of the page and of budgets, and the checks of all of them, are read from here (`workload/setting.py`). What runs with
these settings is in `device_memory/simulated_run.py`, what stays in memory in `device_memory/static.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from ..errors import InputError
from ..frozen import frozen
from ..workload.execution import (
    CHUNKED_LOSSES,
    LOSSES_WITH_HEAD,
    SHIFTED_LOSSES,
    AttentionImplementation,
    CrossEntropy,
    LatentForm,
    NormKernels,
    OptimizerImplementation,
)
from ..workload.inference import CACHE_FORMAT_EXAMPLES, USERS_SETTING, batch_of_users
from ..workload.inputs import AUDIO_SETTING, IMAGE_SETTING, IMAGES_SETTING, Inputs
from ..workload.lengths import DEFAULT_TOKENS, LARGEST_DEFAULT_CONTEXT
from ..workload.lora import ALL_LINEAR, FrozenWeightFormat, Library
from ..workload.recompute import RECOMPUTE_MODES, Recompute, parse_recompute
from ..workload.setting import (
    INFERENCE_PHASES,
    TRAINING_PHASES,
    DeclaredSetting,
    Setting,
    check_phase,
    checked_values,
    declarations_of,
    option,
    training_option,
)
from .optimizers.registry import DEFAULT_OPTIMIZER, OPTIMIZER_NAMES
from .setting_checks import (
    check_cache_format,
    check_capacity,
    check_fake_quantization,
    check_number_format,
    check_optimizer,
    check_probability,
    check_recompute,
    check_version,
)

if TYPE_CHECKING:
    from ..model import ModelSpec

MemoryPhase: TypeAlias = Literal["training", "prefill", "decode", "inference"]
SERVING_PHASES = "inference", "decode"
"""The phases that a serving engine runs."""

MasterWeights: TypeAlias = Literal["fp32", "none"]
Precision: TypeAlias = Literal[
    "bf16", "bf16-master", "fp16", "fp16-master", "autocast", "fp32", "fp8", "mxfp8", "nvfp4"
]
ZeroGrad: TypeAlias = Literal["none", "zeros"]
Allocator: TypeAlias = Literal["segments", "expandable"]

PRECISIONS: Mapping[Precision, tuple[str, MasterWeights]] = {
    "bf16": ("bfloat16", "none"),
    "bf16-master": ("bfloat16", "fp32"),
    "fp16": ("float16", "none"),
    "fp16-master": ("float16", "fp32"),
    "autocast": ("float32", "none"),
    "fp32": ("float32", "none"),
    "fp8": ("bfloat16", "fp32"),
    "mxfp8": ("bfloat16", "fp32"),
    "nvfp4": ("bfloat16", "fp32"),
}
"""Training precision → number format of the weights, and format of the master copy that the optimizer updates.

bf16-master is mixed precision as in Megatron and DeepSpeed (Micikevicius 2018, arXiv:1710.03740, §3.1, in bf16).
fp16 and fp16-master have fp16 in place of bf16.
autocast is torch.amp: matrix products run in bf16 and the weights stay in fp32.
fp8, mxfp8 and nvfp4 are bf16-master whose matrix products run in 8 or 4 bits (`PRODUCT_FORMAT_BY_PRECISION`).
"""

PRODUCT_FORMAT_BY_PRECISION: Mapping[str, str] = {"fp8": "fp8", "mxfp8": "fp8", "nvfp4": "fp4"}
"""Training precision → number format of its matrix products, if narrower than the format of the weights.

fp8 has a scale per tensor, mxfp8 one per 32 elements, nvfp4 one per 16 (Transformer Engine's recipes).
"""

DEFAULT_KV_BLOCK_TOKENS = 16
"""Default tokens per block of a paged cache: vLLM's default (vllm/config/cache.py, `block_size`)."""

DEFAULT_PROMPT_PASS_TOKENS = 8192
"""Default number of tokens in a prompt pass of inference: vLLM's default on GPUs of 70 GiB and more
(vllm/engine/arg_utils.py, `default_max_num_batched_tokens`).
"""

MAX_MICROBATCHES = 2**20
"""Largest number of micro-batches per step; only two are replayed, as all after the first are alike."""


def _scheme_names() -> Iterable[str]:
    from ..costs.quantization import COMMON_SCHEMES

    return (*COMMON_SCHEMES, "none")


@frozen
class Settings:
    """The settings of a run on one device; None means the default. A setting of other phases is an error."""

    phase: Annotated[
        MemoryPhase,
        Setting(
            "training, prefill, decode or inference. prefill reads a prompt, decode adds one token after --seq tokens, "
            "inference is the larger of the two with the kernels and the cache of a server.",
            "What runs",
            "inference, or training with an option of training",
            metavar="WORD",
            is_common=True,
            every_framework=True,
        ),
    ] = "inference"
    batch: Annotated[
        int | None,
        Setting(
            "Sequences at once. In training those of a micro-batch.",
            "What runs",
            "1",
            spellings=("-b", "--micro-batch"),
            is_common=True,
            every_framework=True,
        ),
    ] = None
    seq: Annotated[
        int | None,
        Setting(
            "Tokens of each sequence, such as 32k. In decode those in the cache before the step.",
            "What runs",
            f"{DEFAULT_TOKENS:,} in training, else the context up to {LARGEST_DEFAULT_CONTEXT:,}",
            spellings=("-s", "--ctx", "--max-model-len"),
            is_common=True,
            every_framework=True,
        ),
    ] = None
    source: Annotated[
        int | None, Setting("Tokens that the encoder of an encoder-decoder reads.", "What runs", "as many as --seq")
    ] = None
    image: Annotated[str | None, replace(IMAGE_SETTING, is_common=False)] = None
    images: Annotated[int | None, replace(IMAGES_SETTING, is_common=False)] = None
    audio: Annotated[float | None, replace(AUDIO_SETTING, is_common=False)] = None
    dtype: Annotated[
        str | None,
        Setting(
            "Number format of the weights: bf16, fp8, … By default the published one, in training that of --precision.",
            "Precision and kernels",
            check=check_number_format,
            metavar="DTYPE",
            is_common=True,
            every_framework=True,
        ),
    ] = None
    precision: Annotated[
        Precision | None,
        Setting(
            "In training bf16[-master], fp16[-master], autocast, fp32, fp8, mxfp8 or nvfp4. bf16-master has "
            "bf16 weights and gradients and fp32 master weights and states, fp16-master fp16 ones (the default on "
            "GPUs without bf16); autocast keeps weights in fp32; the last three are bf16-master with products in 8 or "
            "4 bits.",
            "Precision and kernels",
            "bf16-master",
            TRAINING_PHASES,
            metavar="WORD",
            is_common=True,
            replacements=dict.fromkeys(
                ("fp16", "float16", "half"),
                "no --precision, or autocast: bf16 has as many bytes, and is timed as fp16 where bf16 has no units",
            ),
        ),
    ] = None
    quantize: Annotated[
        str | None,
        Setting(
            "How weights are stored: q4_k_m, awq-int4-g128, … By default as the config says.",
            "Precision and kernels",
            "",
            INFERENCE_PHASES,
            example="nf4",
            metavar="SCHEME",
            is_common=True,
            completions=_scheme_names,
        ),
    ] = None
    kv_dtype: Annotated[
        str | None,
        Setting(
            f"Format of the KV cache: bf16, fp8, q8_0, … All: {CACHE_FORMAT_EXAMPLES} By default that of the "
            "activations, in inference without --dtype bf16.",
            "Precision and kernels",
            "",
            INFERENCE_PHASES,
            check=check_cache_format,
            metavar="FORMAT",
            is_common=True,
        ),
    ] = None
    grad_dtype: Annotated[
        str | None,
        Setting(
            "Number format of gradients.",
            "Precision and kernels",
            "that of the weights",
            TRAINING_PHASES,
            check=check_number_format,
            metavar="DTYPE",
            every_framework=True,
        ),
    ] = None
    master_weights: Annotated[
        MasterWeights | None,
        Setting(
            "Format of a second copy of the weights, which is updated.",
            "Precision and kernels",
            "as --precision",
            TRAINING_PHASES,
        ),
    ] = None
    optimizer_dtype: Annotated[
        str | None,
        Setting(
            "Number format of optimizer states.",
            "Precision and kernels",
            "that of the tensors being updated",
            TRAINING_PHASES,
            check=check_number_format,
            metavar="DTYPE",
            every_framework=True,
        ),
    ] = None
    logits_dtype: Annotated[
        str | None,
        Setting(
            "Number format in which the loss reads the logits.",
            "Precision and kernels",
            "fp32 for an eager cross-entropy, else their own",
            TRAINING_PHASES,
            check=check_number_format,
            metavar="DTYPE",
        ),
    ] = None
    optimizer: Annotated[
        str | None,
        Setting(
            f"adamw, adafactor, muon, adamw-8bit, … Any of {', '.join(OPTIMIZER_NAMES)}.",
            "Training",
            DEFAULT_OPTIMIZER,
            TRAINING_PHASES,
            check=check_optimizer,
            example="adamw",
            metavar="NAME",
            is_common=True,
            completions=lambda: OPTIMIZER_NAMES,
        ),
    ] = None
    recompute: Annotated[
        str | None,
        Setting(
            f"What is recomputed. One of {', '.join(RECOMPUTE_MODES)}, every:N (every N-th layer), nodes:A,B "
            "(modules of a layer) or modules:A,B (by names). selective is what the --framework calls so, else "
            "attention.",
            "Training",
            "none; full with --base",
            TRAINING_PHASES,
            check=check_recompute,
            example="full",
            metavar="MODE",
            is_common=True,
            completions=lambda: RECOMPUTE_MODES,
            every_framework=True,
        ),
    ] = None
    dropout: Annotated[
        float | None,
        Setting(
            "Probability of dropout, wherever the model's class has it; 0 turns it off.",
            "Training",
            "the config's",
            TRAINING_PHASES,
            check=check_probability,
            example="0.1",
        ),
    ] = None
    num_microbatches: Annotated[
        int | None,
        Setting(
            "Micro-batches per step. Their gradients are accumulated.",
            "Training",
            "1",
            TRAINING_PHASES,
            maximum=MAX_MICROBATCHES,
            is_common=True,
            every_framework=True,
        ),
    ] = None
    momentum: Annotated[
        bool | None, Setting("Keep the momentum buffer of SGD.", "Training", phases=TRAINING_PHASES)
    ] = None
    optimizer_impl: Annotated[
        OptimizerImplementation | None,
        Setting(
            "How the optimizer's step runs.",
            "Training",
            "fused of adamw, else the library's own on a GPU",
            TRAINING_PHASES,
        ),
    ] = None
    zero_grad: Annotated[
        ZeroGrad | None,
        Setting("Free gradients after a step (none), or keep them as zeros.", "Training", "none", TRAINING_PHASES),
    ] = None
    optimizer_in_backward: Annotated[
        bool | None,
        Setting("Each tensor is updated as soon as its gradient is complete.", "Training", phases=TRAINING_PHASES),
    ] = None
    precision_aware_optimizer: Annotated[
        bool | None,
        Setting(
            "The optimizer keeps main weights and states in formats of its own, --grad-dtype and --optimizer-dtype. "
            "Of a --framework whose optimizer does.",
            "Training",
            phases=TRAINING_PHASES,
            every_framework=True,
        ),
    ] = None
    optimizer_offload: Annotated[
        bool | None,
        Setting(
            "Main weights and states of the optimizer are on the host, where its step runs. "
            "Of a --framework whose optimizer does.",
            "Training",
            phases=TRAINING_PHASES,
            every_framework=True,
        ),
    ] = None
    offload_activations: Annotated[
        bool | None, Setting("What layers save waits on the host.", "Training", phases=TRAINING_PHASES)
    ] = None
    trainable_layers: Annotated[
        int | None,
        Setting(
            "Train the last N layers alone; embeddings, output head and the other layers are frozen.",
            "Training",
            "all weights",
            TRAINING_PHASES,
            example="2",
            metavar="N",
        ),
    ] = None
    fake_quantize: Annotated[
        str | None,
        Setting(
            "Linear layers round their inputs to 8 bits by token and their weights to 4 bits in groups of a row, as "
            "torchao's quantization-aware training does; with untied, an output head that is the table of embeddings "
            "does not.",
            "Training",
            "none",
            TRAINING_PHASES,
            check=check_fake_quantization,
            example="int8-int4:32",
            metavar="int8-int4:GROUP[:untied]",
        ),
    ] = None
    moe: Annotated[
        str | None,
        Setting(
            "Experts take all rows that choose them (dropless), or F times an even share of the rows (capacity:F).",
            "Training",
            "dropless",
            TRAINING_PHASES,
            check=check_capacity,
            example="capacity:1.5",
            metavar="dropless|capacity:F",
            every_framework=True,
        ),
    ] = None
    lora_rank: Annotated[
        int | None,
        Setting(
            "Train low-rank adapters of this rank (LoRA). The weights beside them are frozen.",
            "Training",
            "",
            TRAINING_PHASES,
            is_common=True,
        ),
    ] = None
    base: Annotated[
        FrozenWeightFormat | None,
        Setting(
            "With --lora-rank: nf4, nf4-dq or int8. How frozen matrices of the layers are stored.",
            "Training",
            "none",
            TRAINING_PHASES,
            "lora_rank",
            metavar="WORD",
            is_common=True,
        ),
    ] = None
    lora_targets: Annotated[
        tuple[str, ...] | None,
        Setting(
            f"Linear layers with an adapter: names, or {ALL_LINEAR}.",
            "Training",
            "q_proj,v_proj",
            TRAINING_PHASES,
            "lora_rank",
            metavar="NAMES",
        ),
    ] = None
    lora_dtype: Annotated[
        str | None,
        Setting(
            "Number format of adapters.",
            "Training",
            "fp32, as in PEFT",
            TRAINING_PHASES,
            "lora_rank",
            check_number_format,
            metavar="DTYPE",
        ),
    ] = None
    lora_dropout: Annotated[
        bool | None,
        Setting(
            "The input of an adapter passes dropout.", "Training", phases=TRAINING_PHASES, required_setting="lora_rank"
        ),
    ] = None
    lora_library: Annotated[
        Library | None,
        Setting(
            "Whose adapters run; libraries differ in casts and copies.",
            "Training",
            "peft",
            TRAINING_PHASES,
            "lora_rank",
        ),
    ] = None
    modules_to_save: Annotated[
        tuple[str, ...] | None,
        Setting(
            "Modules of which a copy is trained in full beside the frozen one: embed_tokens,lm_head.",
            "Training",
            "none",
            TRAINING_PHASES,
            "lora_rank",
            metavar="NAMES",
        ),
    ] = None
    quantized_head: Annotated[
        bool | None,
        Setting(
            "--base includes the output head, as in Lightning Fabric.",
            "Training",
            phases=TRAINING_PHASES,
            required_setting="lora_rank",
        ),
    ] = None
    quantized_experts: Annotated[
        bool | None,
        Setting(
            "--base includes routed experts, as in axolotl's quantize_moe_experts; in 4 bits.",
            "Training",
            phases=TRAINING_PHASES,
            required_setting="lora_rank",
        ),
    ] = None
    lora_experts: Annotated[
        bool | None,
        Setting(
            "Fused routed experts have adapters, too, as with PEFT's all-linear for classes like Qwen3-MoE.",
            "Training",
            phases=TRAINING_PHASES,
            required_setting="lora_rank",
        ),
    ] = None
    use_dora: Annotated[
        bool | None,
        Setting(
            "Adapters train the magnitude of each output, too (DoRA), with --lora-library peft or torchtune.",
            "Training",
            phases=TRAINING_PHASES,
            required_setting="lora_rank",
        ),
    ] = None
    fused_adapters: Annotated[
        bool | None,
        Setting(
            "Adapters of attention and of gated networks run in functions that save their input once.",
            "Training",
            phases=TRAINING_PHASES,
            required_setting="lora_rank",
        ),
    ] = None
    bitsandbytes: Annotated[
        str | None,
        Setting(
            "Version of bitsandbytes; before 0.43.2 products with 4-bit weights keep their inputs.",
            "Training",
            "the newest",
            TRAINING_PHASES,
            "lora_rank",
            check_version,
            "0.45.0",
            metavar="VERSION",
        ),
    ] = None
    attn_implementation: Annotated[
        AttentionImplementation | None,
        Setting(
            "Kernels of attention: eager, sdpa, sdpa-math or flash. eager keeps all scores, flash none; sdpa is "
            "torch's choice among its backends. By default flash in inference, else sdpa where it takes the scores.",
            "Precision and kernels",
            spellings=("--attn",),
            metavar="KIND",
            is_common=True,
            every_framework=True,
        ),
    ] = None
    norm: Annotated[
        NormKernels | None,
        Setting(
            "Norms step by step or as one kernel. With liger gated activations are one too, as Liger-Kernel's.",
            "Precision and kernels",
            "fused in inference, else RMSNorm step by step and LayerNorm as one kernel",
        ),
    ] = None
    cross_entropy: Annotated[
        CrossEntropy | None,
        Setting(
            "The loss: eager copies logits to fp32; fused and chunked as Liger-Kernel, native as the "
            "cross_entropy_fusion_impl of that name, split as torchtune, recomputed as TRL's chunked_nll, flash and "
            "flash-in-place as flash-attn, selective as TRL's GRPO, selective-chunked as Liger-Kernel's.",
            "Precision and kernels",
            "eager",
            TRAINING_PHASES,
            every_framework=True,
        ),
    ] = None
    loss_chunk: Annotated[
        int | None,
        Setting(
            "Tokens of a chunk of a split, recomputed or chunked cross-entropy.",
            "Precision and kernels",
            "an eighth of them, 256, or Liger-Kernel's",
            TRAINING_PHASES,
        ),
    ] = None
    logits_to_keep: Annotated[
        int | None,
        Setting(
            "Tokens at the end of a sequence whose loss is computed: the completion. For selective and split losses.",
            "Precision and kernels",
            "all",
            TRAINING_PHASES,
        ),
    ] = None
    divide_logits: Annotated[
        bool | None,
        Setting(
            "The logits are divided in place by a temperature before the loss, as in reinforcement learning.",
            "Precision and kernels",
            phases=TRAINING_PHASES,
        ),
    ] = None
    keep_logits: Annotated[
        bool | None,
        Setting(
            "The training loop names the logits until the backward pass has run.",
            "Precision and kernels",
            phases=TRAINING_PHASES,
        ),
    ] = None
    fused_qkv: Annotated[
        bool | None,
        Setting(
            "Queries, keys and values are one product.",
            "Precision and kernels",
            phases=("training", "prefill", "decode"),
        ),
    ] = None
    compile: Annotated[
        bool | None,
        Setting(
            "An estimate of torch.compile: products and attention keep their results, norms are fused, and everything "
            "else is computed again in the backward pass.",
            "Precision and kernels",
            phases=TRAINING_PHASES,
        ),
    ] = None
    torch: Annotated[
        str | None,
        Setting(
            "Version of torch; before 2.11 sdpa is timed as FlashAttention-2 on Hopper and Blackwell too, before 2.1 "
            "AdamW's step makes two temporaries.",
            "Precision and kernels",
            "the newest",
            TRAINING_PHASES,
            check=check_version,
            example="2.6",
            metavar="VERSION",
        ),
    ] = None
    chunk: Annotated[
        int | None,
        Setting(
            "Tokens of each sequence in a pass over the prompts.",
            "Inference",
            f"as many as make {DEFAULT_PROMPT_PASS_TOKENS:,} of all sequences in inference, else whole prompts",
            INFERENCE_PHASES,
        ),
    ] = None
    kv_block: Annotated[
        int | None,
        Setting(
            "Tokens of a block of a paged cache; 0 for a cache that grows by concatenation.",
            "Inference",
            f"{DEFAULT_KV_BLOCK_TOKENS} in inference and where the cache has a format of its own, else 0",
            INFERENCE_PHASES,
            minimum=0,
        ),
    ] = None
    mla: Annotated[
        LatentForm | None,
        Setting("Form of latent attention.", "Inference", "absorbed in decode, expanded elsewhere", INFERENCE_PHASES),
    ] = None
    allocator: Annotated[
        Allocator | None,
        Setting(
            "Whether torch's allocator makes segments or expandable ones.", "Hardware", "segments", every_framework=True
        ),
    ] = None

    def with_changes(self, **changes: Any) -> Settings:
        """Returns a copy of the settings in which some are changed."""
        return replace(self, **changes)

    @property
    def inputs(self) -> Inputs:
        """The images and the audio of each sequence."""
        return Inputs(self.image, self.images, self.audio)

    @property
    def is_serving(self) -> bool:
        """Whether kernels and KV cache default to a serving engine's instead of transformers'."""
        return self.phase == "inference"

    def recompute_choice(self) -> Recompute:
        """The modules that are recomputed in the backward pass."""
        return parse_recompute(self.recompute or "none")

    @property
    def has_kbit_base(self) -> bool:
        """Whether PEFT trains adapters on frozen weights that are quantized to 4 or 8 bits."""
        return self.base not in (None, "none") and self.lora_library in (None, "peft")

    @property
    def keeps_experts_in_16_bits(self) -> bool:
        """Whether routed experts stay in 16 bits while the other frozen weights are quantized to 4 bits."""
        return self.base in ("nf4", "nf4-dq") and not self.quantized_experts

    def with_usual_recomputation(self) -> Settings:
        """Returns the settings with default recomputation: full if frozen weights are quantized to 4 or 8 bits.

        `peft.prepare_model_for_kbit_training` turns gradient checkpointing on (peft/utils/other.py).
        """
        return self.with_changes(recompute="full") if self.recompute is None and self.has_kbit_base else self

    def cached_tokens(self, seq: int) -> int:
        """Returns the number of cached tokens per sequence after the last pass."""
        return seq + 1 if self.phase == "decode" else seq

    def seq_in_context(self, context: int) -> int:
        """Returns the `seq` that fits a context length; decoding leaves room for one new token."""
        return context - 1 if self.phase == "decode" else context

    def check(self, spec: ModelSpec) -> None:
        """Raises `InputError`, which names the option, for an invalid, contradictory or inapplicable setting."""
        for setting_name, declaration in declarations_of(Settings).items():
            declaration.checked_value(getattr(self, setting_name))
        if self.quantize is not None and self.phase == "training":
            raise InputError("--quantize: a quantised weight takes no gradient; expected --base nf4 --lora-rank")
        check_phase(self, self.phase)
        _check_model(self, spec)
        if self.chunk is not None and self.phase == "decode":
            raise InputError("--chunk: a decoding step reads one token; expected --phase prefill or inference")
        if self.logits_dtype is not None and self.cross_entropy in ("chunked", "recomputed", "selective-chunked"):
            raise InputError(
                f"--logits-dtype: a {self.cross_entropy} cross-entropy computes logits in a format of its own"
            )
        if self.seq == 1 and self.cross_entropy in SHIFTED_LOSSES:
            raise InputError(
                f"--seq 1: a {self.cross_entropy} cross-entropy is of each token's next one; expected 2 or more tokens"
            )
        if self.loss_chunk is not None and self.cross_entropy not in CHUNKED_LOSSES:
            raise InputError("--loss-chunk: it is for --cross-entropy split, recomputed and chunked")
        if self.logits_to_keep is not None and self.cross_entropy not in ("selective", "selective-chunked", "split"):
            raise InputError("--logits-to-keep: it is for --cross-entropy selective, selective-chunked and split")
        if self.divide_logits and self.cross_entropy in (*LOSSES_WITH_HEAD, "selective"):
            raise InputError(
                f"--divide-logits: a {self.cross_entropy} cross-entropy computes logits itself; expected another "
                "--cross-entropy"
            )
        if self.optimizer_in_backward and (self.num_microbatches or 1) > 1:
            raise InputError(
                "--optimizer-in-backward: it takes one micro-batch per step; expected no --num-microbatches"
            )


def _check_model(run_settings: Settings, spec: ModelSpec) -> None:
    """Raises `InputError` for a setting that does not apply to the model's architecture."""
    from ..costs.context_length import check_source_tokens
    from ..ops import ExpertLinear

    check_source_tokens(spec, run_settings.source)
    if spec.one_pass_model_name:
        if run_settings.phase == "decode":
            raise InputError(
                f"--phase decode: {spec.one_pass_model_name} does not decode; expected prefill or training"
            )
        for setting_name in ("chunk", "kv_block", "kv_dtype"):
            if getattr(run_settings, setting_name) is not None:
                raise InputError(f"{option(setting_name)}: an encoder-only model keeps no cache")
    if run_settings.moe is not None and not any(isinstance(node.node.op, ExpertLinear) for node in spec.tree().walk()):
        raise InputError("--moe: the model has no experts; expected no --moe")


CHECKPOINTING_SETTING = DeclaredSetting(
    "gradient_checkpointing", bool, Setting("The same as --recompute full.", "Training")
)

SETTINGS_BY_SHORTHAND: Mapping[str, DeclaredSetting] = {
    declaration.name: declaration for declaration in (USERS_SETTING, CHECKPOINTING_SETTING)
}
"""Short name (`users`, `checkpointing`) → the declaration of the option that stands for another setting."""


def users_in_training_error(conflicting_option: str) -> InputError:
    """Returns the error for `--users` together with `conflicting_option`, which only training has."""
    return InputError(
        f"--users: training has no users, and {conflicting_option} asks for training; expected one of the two"
    )


def settings_with_shorthands(setting_values: Mapping[str, Any]) -> Settings:
    """Returns the settings with these values, whose names may be the short names in `SETTINGS_BY_SHORTHAND`.

    Without a phase it is training if a value is of an option that only training has, else inference.
    Raises `InputError` where two of them say one setting.
    """
    run_settings = Settings(
        **{
            setting_name: setting_value
            for setting_name, setting_value in setting_values.items()
            if setting_name not in SETTINGS_BY_SHORTHAND and setting_value is not None
        }
    )
    if setting_values.get("phase") is None and (
        training_option(run_settings) or setting_values.get(CHECKPOINTING_SETTING.name)
    ):
        run_settings = run_settings.with_changes(phase="training")
    conflicting_option = training_option(run_settings)
    if setting_values.get(USERS_SETTING.name) is not None and conflicting_option:
        raise users_in_training_error(conflicting_option)
    run_settings = run_settings.with_changes(
        batch=batch_of_users(run_settings.batch, setting_values.get(USERS_SETTING.name), run_settings.phase)
    )
    if not setting_values.get(CHECKPOINTING_SETTING.name):
        return run_settings
    if run_settings.recompute not in (None, "full"):
        raise InputError(
            f"--gradient-checkpointing: it is --recompute full, and --recompute is {run_settings.recompute}; expected "
            "one of the two"
        )
    return run_settings.with_changes(recompute="full")


def settings_of(**setting_values: Any) -> Settings:
    """Returns the settings with these names and values.

    Raises `InputError` for a name that no setting has, and for a value that it does not take.
    """
    return settings_with_shorthands(
        checked_values({**declarations_of(Settings), **SETTINGS_BY_SHORTHAND}, setting_values)
    )
