"""The options of a run on one device, which several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeAlias

import typer

from ..costs.context_length import MOST_CONTEXT, USUAL
from ..costs.optimizers import ALIASES, OPTIMIZERS
from ..costs.quantization import COMMON
from ..device_memory.optimizer_steps import Implementation
from ..device_memory.settings import KV_BLOCK, Allocator, Routing, Settings, ZeroGrad
from ..device_memory.static import MasterWeights, MemoryPhase, Precision
from ..errors import InputError, suggest
from ..workload.execution import AttentionImplementation, CrossEntropy, LatentForm, NormImplementation
from ..workload.lora import ALL_LINEAR, Base, Library
from .grouped import takes
from .options import (
    CACHE_FORMATS,
    RECOMPUTE_HELP,
    cache_format_option,
    complete_recompute,
    number_format,
    phase_option,
    size,
)


def complete_scheme(incomplete: str) -> list[str]:
    """Names of schemes for the shell's completion."""
    return [name for name in (*COMMON, "none") if name.startswith(incomplete.lower())]


def _choice(name: str, text: str) -> Any:
    return typer.Option(name, help=text, show_default=False)


def _optimizer(given: str) -> str:
    """The optimizer of that name. The message has no option's name: typer adds it to what a parser raises."""
    known = (*OPTIMIZERS, *ALIASES)
    if given not in known:
        raise InputError(f"'{given}' is not known; expected one of {', '.join(known)}.{suggest(given, list(known))}")
    return ALIASES.get(given, given)


def _split(value: str | None) -> tuple[str, ...] | None:
    """`q_proj,v_proj` as a tuple."""
    return None if value is None else tuple(part.strip() for part in value.split(",") if part.strip())


CublasWorkspace: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--cublas-workspace",
        metavar=":KIB:COUNT",
        help="CUBLAS_WORKSPACE_CONFIG of the run, such as :4096:8; as torch chooses for the accelerator if not given.",
        show_default=False,
    ),
]


PHASE_HELP = "What the model does; inference if not given, training of layouts with fit --devices and plan."


class Options:
    """One attribute an option, in the order in which `--help` lists them; each is a field of `Settings`."""

    phase: Annotated[MemoryPhase, phase_option(MemoryPhase, PHASE_HELP, show_default=False)] = "inference"
    batch: Annotated[
        int | None,
        size("--batch", "-b", "--micro-batch", text="Sequences at once, in training those of a micro-batch; 1."),
    ] = None
    seq: Annotated[
        int | None,
        size(
            "--seq",
            "-s",
            text=f"Tokens of each sequence. In training {USUAL:,} if not given; else the context that the model was "
            f"made for, at most {MOST_CONTEXT:,}. In decode: tokens in the cache before the step.",
        ),
    ] = None
    source: Annotated[
        int | None, size("--source", text="Encoder tokens of an encoder-decoder; as many as --seq if not given.")
    ] = None
    dtype: Annotated[
        str | None, number_format("Of the weights; if not given, the published one, in training the precision's.")
    ] = None
    attn_implementation: Annotated[
        AttentionImplementation | None,
        _choice(
            "--attn-implementation",
            "Kernels of attention: eager keeps all scores, flash none. Flash in inference, else eager, if not given.",
        ),
    ] = None
    norm: Annotated[
        NormImplementation | None,
        _choice("--norm", "Norms step by step or as one kernel. Fused in inference, else eager, if not given."),
    ] = None
    quantize: Annotated[
        str | None,
        typer.Option(
            metavar="SCHEME",
            help="Inference: how weights are stored, such as q4_k_m, awq-int4-g128 or fp8-block128; as the config says "
            "if not given.",
            autocompletion=complete_scheme,
            show_default=False,
        ),
    ] = None
    kv_dtype: Annotated[
        str | None,
        cache_format_option(f"Inference: format of the KV cache; bf16 if not given: {CACHE_FORMATS}"),
    ] = None
    kv_block: Annotated[
        int | None,
        size(
            "--kv-block",
            text=f"Inference: tokens of a block of a paged cache, {KV_BLOCK} if not given; 0, the default of prefill "
            "and decode, for one that grows by concatenation.",
            least=0,
        ),
    ] = None
    chunk: Annotated[
        int | None,
        size(
            "--chunk",
            text="Inference: tokens of each sequence in a pass over the prompts. If not given, as many as make 8,192 "
            "of all sequences in inference, else whole prompts.",
        ),
    ] = None
    mla: Annotated[
        LatentForm | None, _choice("--mla", "Inference: form of latent attention; absorbed in decode if not given.")
    ] = None
    precision: Annotated[
        Precision | None,
        _choice(
            "--precision",
            "Training: bf16-master (bf16 weights and gradients, fp32 master weights and states) if not given; autocast "
            "keeps weights in fp32. --dtype, --grad-dtype and --master-weights refine it.",
        ),
    ] = None
    grad_dtype: Annotated[
        str | None, number_format("Training: of gradients; the dtype of the weights if not given.")
    ] = None
    master_weights: Annotated[
        MasterWeights | None,
        _choice("--master-weights", "Training: precision of a second copy of the weights, which is updated."),
    ] = None
    optimizer: Annotated[
        str | None,
        typer.Option(
            "--optimizer",
            metavar="|".join(OPTIMIZERS),
            parser=_optimizer,
            help="Training: adamw if not given.",
            autocompletion=lambda incomplete: [one for one in OPTIMIZERS if one.startswith(incomplete)],
            show_default=False,
        ),
    ] = None
    optimizer_impl: Annotated[
        Implementation | None,
        _choice("--optimizer-impl", "Training: how the step runs; the library's own default on a GPU if not given."),
    ] = None
    optimizer_dtype: Annotated[
        str | None, number_format("Training: of optimizer states; that of the tensors being updated if not given.")
    ] = None
    momentum: Annotated[bool | None, _choice("--momentum", "Training: keep the momentum buffer of SGD.")] = None
    zero_grad: Annotated[
        ZeroGrad | None, _choice("--zero-grad", "Training: free gradients after a step (none), or keep them as zeros.")
    ] = None
    num_microbatches: Annotated[
        int | None,
        size("--num-microbatches", text="Training: micro-batches per step, whose gradients are accumulated; 1."),
    ] = None
    moe: Annotated[
        str | None,
        typer.Option(
            "--moe",
            metavar="dropless|capacity:F",
            help="Training: experts take all rows that choose them (dropless, if not given), or F times an even share.",
            show_default=False,
        ),
    ] = None
    routing: Annotated[
        Routing | None,
        _choice("--routing", "Training: how tokens spread over experts; on one device the bytes are the same."),
    ] = None
    recompute: Annotated[
        str | None,
        typer.Option(
            "--recompute",
            metavar="MODE",
            help=f"{RECOMPUTE_HELP} None if not given.",
            autocompletion=complete_recompute,
            show_default=False,
        ),
    ] = None
    cross_entropy: Annotated[
        CrossEntropy | None,
        _choice(
            "--cross-entropy",
            "Training: eager copies logits to fp32; fused and chunked as Liger-Kernel, split as torchtune.",
        ),
    ] = None
    logits_dtype: Annotated[
        str | None, number_format("Training: in which the loss reads the logits; fp32 for eager if not given.")
    ] = None
    loss_chunk: Annotated[
        int | None,
        size("--loss-chunk", text="Training: tokens of a chunk of a split cross-entropy; an eighth if not given."),
    ] = None
    keep_logits: Annotated[
        bool | None, _choice("--keep-logits", "Training: the loop names the logits until the backward pass has run.")
    ] = None
    fused_qkv: Annotated[bool | None, _choice("--fused-qkv", "Training: queries, keys and values are one product.")] = (
        None
    )
    offload_activations: Annotated[
        bool | None, _choice("--offload-activations", "Training: what layers save waits on the host.")
    ] = None
    optimizer_in_backward: Annotated[
        bool | None,
        _choice("--optimizer-in-backward", "Training: each tensor is updated as soon as its gradient is complete."),
    ] = None
    precision_aware_optimizer: Annotated[
        bool | None,
        typer.Option(
            "--precision-aware-optimizer",
            help="Training with Megatron-LM: the optimizer keeps main weights and states in formats of its own "
            "(--optimizer-dtype, --grad-dtype).",
            show_default=False,
        ),
    ] = None
    torch: Annotated[
        str | None,
        typer.Option(
            "--torch",
            metavar="VERSION",
            help="Training: of the optimizer's step; before 2.1 AdamW makes two temporaries. The newest if not given.",
            show_default=False,
        ),
    ] = None
    compile: Annotated[
        bool | None, _choice("--compile", "Training: an estimate of torch.compile, which fuses and computes again.")
    ] = None
    lora_rank: Annotated[
        int | None, size("--lora-rank", text="Training: train low-rank adapters of this rank beside frozen weights.")
    ] = None
    lora_targets: Annotated[
        str | None,
        typer.Option(
            "--lora-targets",
            metavar="NAMES",
            help=f"Training: linear layers with an adapter, such as q_proj,v_proj (if not given) or {ALL_LINEAR}.",
            show_default=False,
        ),
    ] = None
    lora_dtype: Annotated[str | None, number_format("Training: of adapters; fp32 if not given, as in PEFT.")] = None
    lora_dropout: Annotated[
        bool | None, _choice("--lora-dropout", "Training: the input of an adapter passes dropout.")
    ] = None
    lora_library: Annotated[
        Library | None,
        _choice("--lora-library", "Training: whose adapters run; they differ in casts and copies. peft if not given."),
    ] = None
    modules_to_save: Annotated[
        str | None,
        typer.Option(
            "--modules-to-save",
            metavar="NAMES",
            help="Training: modules of which a copy is trained in full beside the frozen one: embed_tokens,lm_head.",
            show_default=False,
        ),
    ] = None
    quantized_head: Annotated[
        bool | None, _choice("--quantized-head", "Training: --base includes the output head, as in Lightning Fabric.")
    ] = None
    bitsandbytes: Annotated[
        str | None,
        typer.Option(
            "--bitsandbytes",
            metavar="VERSION",
            help="Training: of products with 4-bit weights; before 0.43.2 they keep inputs. The newest if not given.",
            show_default=False,
        ),
    ] = None
    base: Annotated[
        Base | None, _choice("--base", "Training: how frozen matrices of the layers are stored (QLoRA); none.")
    ] = None
    allocator: Annotated[
        Allocator | None,
        _choice("--allocator", "torch's allocator makes segments if not given, or expandable ones."),
    ] = None


def takes_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options of `Options` in the place of its parameter `settings`, which gets them as one."""

    def settings(chosen: dict[str, Any]) -> Settings:
        for name in ("lora_targets", "modules_to_save"):
            chosen[name] = _split(chosen[name])
        return Settings(**chosen)

    return takes("settings", Options, settings)(command)
