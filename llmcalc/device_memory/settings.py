"""Every setting of a run on one device: what `llmcalc memory` and `llmcalc fit` take."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeAlias

from ..costs.context_length import check_source
from ..errors import InputError, suggest
from ..model import ModelSpec
from ..ops import ExpertLinear
from ..optional import TOWERS
from ..simulator.adapters import Adapters
from ..simulator.choices import Choices
from ..simulator.tensor import DTYPES, FLOAT8, Dtype
from ..units import dtype, short_dtype
from ..workload.execution import AttentionImplementation, CrossEntropy, LatentForm, NormImplementation
from ..workload.expert_capacity import capacity_of
from ..workload.lora import Library
from ..workload.recompute import Recompute, recompute_of
from ..workload.validation import maybe_whole, one_of, text
from .inference import Inference
from .optimizer_steps import Implementation, implementations
from .static import MemoryPhase, MemoryUse, Setup
from .training import Training

Routing: TypeAlias = Literal["balanced", "worst"]
ZeroGrad: TypeAlias = Literal["none", "zeros"]
Allocator: TypeAlias = Literal["segments", "expandable"]

KV_BLOCK = 16
"""Default tokens of a block of a paged cache: that of vLLM (vllm/config/cache.py, `block_size`)."""


SERVED_TOKENS = 8192
"""Default tokens of a pass over prompts in inference: what vLLM takes on GPUs of 70 GiB and more
(vllm/engine/arg_utils.py, `default_max_num_batched_tokens`).
"""


@dataclass(frozen=True)
class Settings:
    """How a model runs on one device. None means the default. A setting of another phase is an error.

    phase: training; prefill, which reads a prompt; decode, which adds one token after `seq` tokens; or inference, the
        larger of prefill and decode with the kernels and the cache of a server.
    batch: sequences, in training those of a micro-batch; default 1.
    seq: tokens of each. Default in training `usual_sequence`, else `usual_context`.
    source: tokens that the encoder of an encoder-decoder reads; default seq.
    dtype, kv_dtype, quantize, precision, grad_dtype, master_weights, optimizer, optimizer_dtype, momentum, lora_rank,
        lora_targets, lora_dtype, lora_library, modules_to_save, quantized_head, fused_qkv, base: as in
        `costs.resident.Setup`. In prefill and decode the cache has the format of the activations by default, as the
        reference's has.
    attn_implementation: default eager; flash in inference, where the model's attention has such a kernel.
    norm: default eager; fused in inference.
    logits_dtype: number format in which the loss reads the logits; default fp32 if it is eager, else their own.
    cross_entropy: default eager.
    recompute: what runs again in the backward pass, as `recompute_of` reads it; default none.
    compile: whether torch.compile is estimated: products and attention keep their results, norms are fused, and
        everything else is computed again in the backward pass. Default False.
    optimizer_impl: how the library runs the step; default its own on a GPU.
    num_microbatches: micro-batches per step, whose gradients are accumulated; default 1.
    moe: whether every expert takes all rows that choose it (`dropless`, default), or at most its share of them times a
        factor (`capacity:1.25`), padded.
    routing: whether tokens spread evenly over the experts (`balanced`, default) or as unevenly as they can (`worst`).
        On one device the bytes are the same: all experts together take as many rows, or a fixed number each.
    zero_grad: whether gradients are freed after a step (`none`, default) or kept as `zeros`.
    lora_dropout: whether an adapter's input passes dropout; default False.
    bitsandbytes, torch: versions of these libraries, such as `0.41.1`; default the newest. Older ones keep more.
    loss_chunk: of a split cross-entropy, the tokens of a chunk; default an eighth of them.
    keep_logits: whether the training loop names the logits until the backward pass has run; default False.
    offload_activations: whether what layers save waits on the host; default False.
    optimizer_in_backward: whether each tensor is updated as soon as its gradient is complete; default False.
    precision_aware_optimizer: whether the optimizer keeps its own main weights and states, each in a format of its own
        (Megatron-LM with Transformer Engine); default False.
    chunk: tokens of each sequence in a pass over the prompts. Default in inference so many that a pass has at most
        8,192 tokens of all sequences, else the whole prompt.
    kv_block: tokens of a block of a paged cache; 0 for a cache that grows by concatenation, as the reference's does.
        Default 16 in inference and where the cache has a format of its own, else 0.
    mla: form of latent attention; default absorbed in decode and expanded elsewhere.
    allocator: whether torch's allocator makes `segments` (default) or `expandable` ones.
    """

    phase: MemoryPhase = "inference"
    batch: int | None = None
    seq: int | None = None
    source: int | None = None
    dtype: str | None = None
    kv_dtype: str | None = None
    quantize: str | None = None
    precision: str | None = None
    grad_dtype: str | None = None
    master_weights: str | None = None
    optimizer: str | None = None
    optimizer_dtype: str | None = None
    momentum: bool | None = None
    lora_rank: int | None = None
    lora_targets: tuple[str, ...] | None = None
    lora_dtype: str | None = None
    lora_dropout: bool | None = None
    lora_library: Library | None = None
    modules_to_save: tuple[str, ...] | None = None
    quantized_head: bool | None = None
    bitsandbytes: str | None = None
    fused_qkv: bool | None = None
    base: str | None = None
    attn_implementation: AttentionImplementation | None = None
    norm: NormImplementation | None = None
    logits_dtype: str | None = None
    loss_chunk: int | None = None
    keep_logits: bool | None = None
    cross_entropy: CrossEntropy | None = None
    recompute: str | None = None
    compile: bool | None = None
    optimizer_impl: Implementation | None = None
    num_microbatches: int | None = None
    moe: str | None = None
    routing: Routing | None = None
    zero_grad: ZeroGrad | None = None
    optimizer_in_backward: bool | None = None
    precision_aware_optimizer: bool | None = None
    offload_activations: bool | None = None
    torch: str | None = None
    chunk: int | None = None
    kv_block: int | None = None
    mla: LatentForm | None = None
    allocator: Allocator | None = None

    def with_(self, **changes: Any) -> Settings:
        """A copy with some settings changed."""
        return replace(self, **changes)

    def setup(self) -> Setup:
        """The settings that closed forms need: what stays in memory between passes."""
        of = {one.name: getattr(self, one.name) for one in fields(Setup)}
        return Setup(**of)

    def check(self, spec: ModelSpec) -> None:
        """Raises `InputError`, naming the option, for a setting of another phase, or of another kind of model."""
        maybe_whole("--batch", self.batch)
        maybe_whole("--seq", self.seq)
        maybe_whole("--source", self.source)
        maybe_whole("--chunk", self.chunk)
        maybe_whole("--kv-block", self.kv_block, least=0)
        maybe_whole("--lora-rank", self.lora_rank)
        maybe_whole("--loss-chunk", self.loss_chunk)
        maybe_whole("--num-microbatches", self.num_microbatches, most=MOST_MICROBATCHES)
        for name, words in WORDS.items():
            if getattr(self, name) is not None:
                one_of(option(name), getattr(self, name), words)
        check_source(spec, self.source)
        others = OF_INFERENCE if self.phase == "training" else OF_TRAINING
        for name in others:
            if getattr(self, name) is not None:
                phases = "--phase inference" if self.phase == "training" else "--phase training"
                raise InputError(f"{option(name)}: it is not for the phase {self.phase}; expected {phases}")
        if self.chunk is not None and self.phase == "decode":
            raise InputError("--chunk: a decoding step reads one token; expected --phase prefill or inference")
        if spec.kind == "encoder":
            self._check_encoder()
        if self.moe is not None:
            capacity_of(self.moe)
        for name in ("moe", "routing"):
            if getattr(self, name) is not None and not has_experts(spec):
                raise InputError(f"{option(name)}: the model has no experts; expected no {option(name)}")
        if self.logits_dtype is not None and self.cross_entropy == "chunked":
            raise InputError("--logits-dtype: a chunked cross-entropy computes logits in the format of the weights")
        if self.loss_chunk is not None and self.cross_entropy != "split":
            raise InputError("--loss-chunk: it is for --cross-entropy split")
        if self.optimizer_in_backward and (self.num_microbatches or 1) > 1:
            raise InputError(
                "--optimizer-in-backward: it takes one micro-batch per step; expected no --num-microbatches"
            )
        for name in ("bitsandbytes", "torch"):
            version = getattr(self, name)
            if version is not None and not _VERSION.fullmatch(version):
                raise InputError(f"{option(name)} {version}: not a version; expected one such as 2.4.1")
        for name in ("lora_dropout", "bitsandbytes"):
            if self.lora_rank is None and getattr(self, name) is not None:
                raise InputError(f"{option(name)}: it describes low-rank adapters; expected --lora-rank too")

    def _check_encoder(self) -> None:
        if self.phase == "decode":
            raise InputError("--phase decode: an encoder-only model does not decode; expected prefill or training")
        for name in ("chunk", "kv_block"):
            if getattr(self, name) is not None:
                raise InputError(f"{option(name)}: an encoder-only model keeps no cache")

    @property
    def serves(self) -> bool:
        """Whether kernels and cache are those of a server by default."""
        return self.phase == "inference"

    def choices(self, attention: AttentionImplementation | None = None) -> Choices:
        """The kernels that run. attention: the implementation where none is set; by default the phase's."""
        usual = attention or ("flash" if self.serves else "eager")
        fused = self.serves
        return Choices(
            attention=self.attn_implementation or usual,
            norm=self.norm or ("fused" if fused else "eager"),
            cross_entropy=self.cross_entropy or "eager",
            logits_dtype=None if self.logits_dtype is None else dtype(self.logits_dtype),
            loss_chunk=self.loss_chunk,
            keeps_logits=bool(self.keep_logits),
            fused_qkv=bool(self.fused_qkv),
            compiled=bool(self.compile),
            capacity=None if self.moe is None else capacity_of(self.moe),
        )

    def recomputed(self) -> Recompute:
        """What runs again in the backward pass."""
        return recompute_of(self.recompute or "none")

    def implementation(self, use: MemoryUse) -> Implementation | None:
        """How the optimizer's step runs; None without an optimizer."""
        return None if use.optimizer is None else self.optimizer_impl or implementations(use.optimizer.name)[0]

    def training(self, use: MemoryUse, include: frozenset[str]) -> Training:
        """The run that is replayed. use: what stays between passes under these settings."""
        assert use.optimizer is not None
        if self.precision_aware_optimizer:
            raise InputError("--precision-aware-optimizer: it is Megatron-LM's; expected --framework megatron too")
        run = run_dtype(use.dtype, "--dtype")
        if self.optimizer_impl is not None and self.optimizer_impl not in implementations(use.optimizer.name):
            known = ", ".join(implementations(use.optimizer.name))
            raise InputError(f"--optimizer-impl {self.optimizer_impl}: {use.optimizer.name} has {known}")
        states = use.optimizer.dtype
        updated = use.adapter_dtype or ("float32" if use.has_master else use.dtype)
        adapters = None
        if use.adapters is not None:
            adapters = Adapters(
                use.adapters.rank,
                use.adapters.targets,
                bool(self.lora_dropout),
                DTYPES[run_dtype(use.adapter_dtype, "--lora-dtype")],
                use.adapters.base,
                use.adapters.library,
                use.adapters.copies,
                use.adapters.quantized_head,
                self.bitsandbytes or "",
            )
        return Training(
            batch=use.workload.batch,
            seq=use.workload.seq,
            source=self.source,
            microbatches=self.num_microbatches or 1,
            dtype=run,
            master=use.has_master,
            optimizer=use.optimizer.name,
            implementation=self.optimizer_impl,
            momentum=bool(self.momentum),
            recompute=self.recomputed(),
            choices=self.choices(),
            autocast=self.precision == "autocast",
            adapters=adapters,
            include=include - {TOWERS.name},
            keeps_gradients=self.zero_grad == "zeros",
            optimizer_in_backward=bool(self.optimizer_in_backward),
            offload=bool(self.offload_activations),
            torch=self.torch or "",
            state_dtype=None if states in ("", "uint8", updated) else number_format(states, "--optimizer-dtype"),
            gradient_dtype=None
            if use.grad_dtype == (use.adapter_dtype or use.dtype)
            else number_format(use.grad_dtype, "--grad-dtype"),
        )

    def block(self, use: MemoryUse) -> int:
        """Tokens of a block of a paged cache; 0 for a cache that grows by concatenation, or without one."""
        if not use.kv_dtype:
            return 0
        if self.kv_block is not None:
            return self.kv_block
        return KV_BLOCK if self.serves or use.kv_dtype != activations(use) else 0

    def passes(self, spec: ModelSpec, use: MemoryUse, attention: AttentionImplementation) -> list[Inference]:
        """The passes that are replayed. use: what stays between passes under these settings."""
        block, seq = self.block(use), use.workload.seq
        if use.kv_dtype and not block and use.kv_dtype != activations(use):
            raise InputError(
                f"--kv-dtype {short_dtype(use.kv_dtype)}: a cache that grows by concatenation has the format of the "
                f"activations, {short_dtype(activations(use))}; expected --kv-block {KV_BLOCK}"
            )
        whole = replace(self.choices(attention), attention=attention)
        stored = stored_otherwise(use)
        how = Inference(
            phase="prefill",
            batch=use.workload.batch,
            seq=seq,
            source=self.source,
            chunk=self.chunked(use),
            dtype=activations(use),
            choices=whole,
            mla=self.mla or "auto",
            include=use.count.include - {TOWERS.name},
            paged=bool(block),
            weights=not stored,
        )
        if self.phase == "prefill" or spec.kind == "encoder":
            return [how]
        if self.phase == "decode":
            return [replace(how, phase="decode", chunk=None)]
        return [how, *([replace(how, phase="decode", seq=seq - 1, chunk=None)] if seq > 1 else [])]

    def chunked(self, use: MemoryUse) -> int | None:
        """Tokens of each sequence in a pass over the prompts; None for whole prompts."""
        if self.chunk is None and self.serves and use.kv_dtype:
            return int(max(1, SERVED_TOKENS // use.workload.batch))
        return self.chunk

    def cached(self, seq: int) -> int:
        """Tokens of each sequence that the cache holds after the last pass."""
        return seq + 1 if self.phase == "decode" else seq


EXAMPLES = {
    "quantize": "nf4",
    "optimizer": "adamw",
    "bitsandbytes": "0.45.0",
    "base": "nf4",
    "recompute": "full",
    "moe": "capacity:1.5",
    "torch": "2.6",
    "precision": "bf16-master",
    "master_weights": "fp32",
}
"""Settings of which no number format is an example."""


def settings_of(**given: Any) -> Settings:
    """The settings of these names and values. Raises `InputError` for a name that no setting has."""
    known = [one.name for one in fields(Settings)]
    for name in given:
        if name not in known:
            raise InputError(
                f"{name}: there is no such setting.{suggest(name, known)} (llmcalc memory --help lists all)"
            )
    for name in ("lora_targets", "modules_to_save"):
        names = given.get(name)
        if names is not None:
            given[name] = (names,) if isinstance(names, str) else tuple(names)
    for one in fields(Settings):
        if one.type == "str | None" and given.get(one.name) is not None:
            text(one.name, given[one.name], EXAMPLES.get(one.name, "bf16"))
    return Settings(**{**given, "phase": one_of("--phase", given.get("phase", "inference"), MemoryPhase)})


def has_experts(spec: ModelSpec) -> bool:
    """Whether a layer has experts of which each token uses some."""
    return any(isinstance(place.node.op, ExpertLinear) for place in spec.tree().walk())


def stored_otherwise(use: MemoryUse) -> bool:
    """Whether weights are stored in a format that no pass computes in."""
    return use.quantized is not None or use.dtype not in COMPUTED


def activations(use: MemoryUse) -> str:
    """The number format in which a pass without gradients computes: that of the weights, or bf16 for narrow ones."""
    return use.dtype if use.dtype in COMPUTED else "bfloat16"


def run_dtype(name: str, option: str) -> str:
    """The number format in which a pass computes. Raises `InputError`, naming the option, for one that it cannot."""
    if name not in COMPUTED:
        known = ", ".join(map(short_dtype, COMPUTED))
        raise InputError(f"{option} {short_dtype(name)}: no pass computes in it; expected one of {known}")
    return name


def number_format(name: str, option: str) -> Dtype:
    """The element type of tensors that are stored in that format."""
    if name == "float8":
        return FLOAT8
    return DTYPES[run_dtype(name, option)]


def option(name: str) -> str:
    """The command-line option of a setting."""
    return f"--{name.replace('_', '-')}"


COMPUTED = ("bfloat16", "float16", "float32", "float64")
"""Number formats of activations."""

_VERSION = re.compile(r"\d{1,4}(\.\d{1,4}){1,3}")

MOST_MICROBATCHES = 2**20
"""The most micro-batches per step. From the second on all are alike, so two are replayed."""

WORDS: dict[str, Any] = {
    "attn_implementation": AttentionImplementation,
    "norm": NormImplementation,
    "cross_entropy": CrossEntropy,
    "zero_grad": ZeroGrad,
    "routing": Routing,
    "mla": LatentForm,
    "allocator": Allocator,
    "optimizer_impl": Implementation,
    "lora_library": Library,
}
"""Setting → the words that it takes."""

OF_TRAINING = (
    "cross_entropy",
    "logits_dtype",
    "recompute",
    "compile",
    "optimizer_impl",
    "num_microbatches",
    "zero_grad",
    "moe",
    "routing",
    "lora_dropout",
    "bitsandbytes",
    "fused_qkv",
    "loss_chunk",
    "keep_logits",
    "optimizer_in_backward",
    "precision_aware_optimizer",
    "offload_activations",
    "torch",
)
"""Settings of training, beside those that `costs.resident` refuses."""

OF_INFERENCE = ("chunk", "kv_block", "mla")
"""Settings of a pass without gradients, beside those that `costs.resident` refuses."""
