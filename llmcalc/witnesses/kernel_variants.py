"""Replaces parts of the reference: attention, norms, losses, activation checkpoints and adapters.

Each function replaces the forward pass of some modules. Kernels of torch are torch's own. Kernels of libraries are
written here as the libraries run them, with the name of their file.

This module imports torch, so import it only in functions that run torch.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from ..components.runtime import attention_mask
from ..simulator.adapters import Adapters
from ..simulator.kernel_choices import KernelChoices
from ..workload.execution import LOSSES_WITH_HEAD
from ..workload.recompute import SAVED_PRODUCTS, Recompute


def apply_kernel_choices(
    module: nn.Module,
    kernel_choices: KernelChoices,
    recompute: Recompute,
    adapters: Adapters | None = None,
    device: str = "cpu",
) -> None:
    """Makes a reference use the chosen kernels inside `kernel_context`, in training mode with dropout."""
    if module.training:
        attach_dropout(module)
    if adapters is not None:
        attach_adapters(module, adapters, device)
    if kernel_choices.attention != "eager":
        replace_attention(module, kernel_choices)
    if kernel_choices.norm != "eager":
        fuse_norms(module)
    if kernel_choices.cross_entropy in LOSSES_WITH_HEAD:
        lm_head_module(module).forward = lambda x: x
    if kernel_choices.logits_to_keep is not None and kernel_choices.cross_entropy == "selective":
        unused_row = -(kernel_choices.logits_to_keep + 1)
        lm_head_module(module).register_forward_pre_hook(lambda _, hook_inputs: (hook_inputs[0][:, unused_row:],))
    add_checkpoints(module, recompute)
    if adapters is not None and recompute.layers:
        module.get_submodule("embed_tokens").register_forward_hook(
            lambda *hook_arguments: hook_arguments[-1].requires_grad_(True)
        )


# --- attention --------------------------------------------------------------------------------------------------------


def flash_attention(causal: bool, q: Any, k: Any, v: Any, *_: Any, **__: Any) -> Any:
    """Runs the GPUs' flash attention kernel, on a GPU or on the meta device; torch's kernel for CPUs differs."""
    return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)[0]


def sdpa_math(causal: bool, q: Any, k: Any, v: Any, *_: Any, **__: Any) -> Any:
    """Runs F.scaled_dot_product_attention's math kernel: separate matrix products and a softmax."""
    return torch.ops.aten._scaled_dot_product_attention_math(q, k, v, None, 0.0, causal)[0]


def scaled_dot_product(
    compute_capability: int, causal: bool, q: Any, k: Any, v: Any, mask: Any = None, *_: Any, **__: Any
) -> Any:
    """Runs scaled_dot_product_attention: on a CPU torch's kernel, on meta the kernel of a compute capability.

    mask: the mask of the keys that an indexer selected; None (default) for none.

    The kernels of 9.0 and 8.0 read each key head for all of its queries; that of 7.5 has no groups, for which torch
    falls back to its math.
    """
    aten = torch.ops.aten
    if mask is not None:
        return masked_scaled_dot_product(compute_capability, q, k, v, mask)
    if compute_capability == 0:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=k.shape[1] != q.shape[1])
    if compute_capability == 90:
        return aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal)[0]
    if compute_capability == 80:
        return flash_attention(causal, q, k, v)
    if k.shape[1] != q.shape[1]:
        return aten._scaled_dot_product_attention_math(q, k, v, None, 0.0, causal, enable_gqa=True)[0]
    return aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, causal)[0]


def masked_scaled_dot_product(compute_capability: int, q: Any, k: Any, v: Any, mask: Any) -> Any:
    """Runs scaled_dot_product_attention with a mask of visible keys: torch's on a CPU, cuDNN's for 9.0 on meta."""
    if compute_capability == 0:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    minus_infinity = torch.full((), float("-inf"), dtype=q.dtype, device=q.device)
    bias = torch.where(mask, torch.zeros((), dtype=q.dtype, device=q.device), minus_infinity)
    del minus_infinity
    return torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, bias, True, 0.0, False)[0]


def compute_attention_masks(mixer: Any) -> None:
    """Makes a mixer compute its attention mask inside `kernel_context` too, because its indexer reads the mask."""
    mixer_module: Any = sys.modules[type(mixer).__module__]
    forward = mixer.forward

    def forward_with_mask(*inputs: Any) -> Any:
        original_attention_mask = mixer_module.attention_mask
        mixer_module.attention_mask = attention_mask
        try:
            return forward(*inputs)
        finally:
            mixer_module.attention_mask = original_attention_mask

    mixer.forward = forward_with_mask


def replace_attention(module: nn.Module, kernel_choices: KernelChoices) -> None:
    """Replaces the attention of a reference by the chosen kernel, which needs no mask."""
    for module_name, submodule in module.named_modules():
        parent_name = module_name.rpartition(".")[0]
        if is_attention_core(module_name):
            parent_module: Any = module.get_submodule(parent_name)
            causal = getattr(parent_module, "causal", True) and not getattr(parent_module, "cross", False)
            kernels: dict[str, Callable[..., Any]] = {
                "flash": flash_attention,
                "sdpa": partial(scaled_dot_product, kernel_choices.compute_capability),
            }
            submodule.forward = partial(kernels.get(kernel_choices.attention, sdpa_math), causal)
            if getattr(getattr(parent_module, "spec", None), "indexer", None) is not None:
                compute_attention_masks(parent_module)
            if hasattr(parent_module, "_mask_and_bias"):
                parent_module._mask_and_bias = lambda *_: (None, None)


def is_attention_core(module_path: str) -> bool:
    """Whether a module computes the attention itself: scores, softmax and weighted sums of values."""
    *_, parent_name, module_name = ("", *module_path.split("."))
    return module_name in ("core", "core_1", "core_2") and parent_name not in ("relative", "indexer")


@contextmanager
def kernel_context(kernel_choices: KernelChoices) -> Iterator[None]:
    """Skips attention masks except for eager attention, and for fused attention also the repetition of keys."""
    changed_attributes: list[tuple[Any, str, Any]] = []
    if kernel_choices.attention != "eager":
        mixer_modules = [
            module
            for imported_name, module in sys.modules.items()
            if imported_name.startswith("llmcalc.components.mixers.")
        ]
        mask_name = attention_mask.__name__
        changed_attributes = [
            (module, mask_name, lambda *_, **__: None) for module in mixer_modules if hasattr(module, mask_name)
        ]
    if kernel_choices.attention in ("flash", "sdpa"):
        original_repeat_interleave = torch.Tensor.repeat_interleave
        changed_attributes.append(
            (
                torch.Tensor,
                "repeat_interleave",
                lambda x, n, axis: x if axis == 1 else original_repeat_interleave(x, n, axis),
            )
        )
    original_attributes = [
        (owner, imported_name, getattr(owner, imported_name)) for owner, imported_name, _ in changed_attributes
    ]
    try:
        for owner, module_name, replacement in changed_attributes:
            setattr(owner, module_name, replacement)
        yield
    finally:
        for owner, module_name, replacement in original_attributes:
            setattr(owner, module_name, replacement)


# --- norms ------------------------------------------------------------------------------------------------------------


class FusedRmsNorm(torch.autograd.Function):
    """torch's `_fused_rms_norm` (derivatives.yaml), a single kernel only on GPUs."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any) -> Any:
        normed_x, rstd = x.new_empty(x.shape), x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)
        ctx.save_for_backward(x, rstd, *(() if weight is None else (weight,)))
        return normed_x

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, _, *weight = ctx.saved_tensors
        return x.new_empty(x.shape), torch.empty_like(weight[0]) if weight else None


def fuse_norms(module: nn.Module) -> None:
    """Replaces every plain norm by a fused kernel."""
    for submodule in module.modules():
        norm: Any = submodule
        norm_type = getattr(submodule, "kind", "")
        is_fusable = getattr(submodule, "groups", 1) == 1 and (
            getattr(submodule, "weight", None) is None or norm.weight.dim() == 1
        )
        if norm_type in ("layernorm", "rmsnorm") and is_fusable:
            submodule.forward = partial(_layer_norm if norm_type == "layernorm" else _rms_norm, submodule)


def _layer_norm(norm_module: Any, x: Any) -> Any:
    """Runs torch's layer norm with float32 statistics as on GPUs. The CPU kernel has bfloat16 statistics."""
    return F.layer_norm(x, x.shape[-1:], norm_module.scale_factor(), norm_module.bias, norm_module.eps)


def _rms_norm(norm_module: Any, x: Any) -> Any:
    if x.is_cuda:
        normed_x = F.rms_norm(x, x.shape[-1:], norm_module.scale_factor(), norm_module.eps)
    else:
        normed_x = FusedRmsNorm.apply(x, norm_module.scale_factor())  # type: ignore[no-untyped-call]
    return normed_x if norm_module.bias is None else normed_x + norm_module.bias


LIGER_ROWS, LIGER_VOCABULARY = 2048, 4096


# --- losses -----------------------------------------------------------------------------------------------------------


class LigerCrossEntropy(torch.autograd.Function):
    """Liger-Kernel's cross-entropy (0.8.2, ops/cross_entropy.py), which overwrites the logits with their gradient."""

    @staticmethod
    def forward(ctx: Any, logits: Any, labels: Any) -> Any:
        losses = logits.new_zeros(logits.shape[0])
        is_counted = labels != -100
        is_counted.sum()
        (labels * is_counted).max()
        (labels * is_counted).min()
        loss = losses.sum()
        ctx.save_for_backward(logits.detach())
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return ctx.saved_tensors[0], None


class FlashCrossEntropy(torch.autograd.Function):
    """flash-attn's cross-entropy (ops/triton/cross_entropy.py), whose backward pass may overwrite the logits."""

    @staticmethod
    def forward(ctx: Any, logits: Any, labels: Any, is_in_place: bool) -> Any:
        losses = logits.new_empty(logits.shape[0], dtype=torch.float)
        log_sums, z_losses = torch.empty_like(losses), torch.empty_like(losses)
        ctx.save_for_backward(logits, log_sums, labels)
        ctx.mark_non_differentiable(z_losses)
        ctx.in_place = is_in_place
        return losses, z_losses

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        logits = ctx.saved_tensors[0]
        return logits.detach() if ctx.in_place else torch.empty_like(logits), None, None


class LigerLinearCrossEntropy(torch.autograd.Function):
    """Liger-Kernel's fused linear cross-entropy (0.8.5, ops/fused_linear_cross_entropy.py).

    It computes the gradients in the forward pass.
    """

    @staticmethod
    def forward(ctx: Any, x: Any, labels: Any, weight: Any, bias: Any, loss_chunk: int | None) -> Any:
        token_count, chunk_count = x.shape[0], -(-weight.shape[0] // x.shape[1])
        chunk_tokens = min(token_count, loss_chunk or 1 << (-(-token_count // chunk_count) - 1).bit_length())
        input_gradient = torch.zeros_like(x)
        weight_gradient = torch.zeros_like(weight) if weight.requires_grad else None
        bias_gradient = None if bias is None else torch.zeros_like(bias)
        losses = x.new_zeros(token_count, dtype=torch.float32)
        is_counted = labels != -100
        is_counted.sum()
        device_type = "cuda" if x.is_cuda else "cpu"
        product_format = torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else x.dtype
        uses_mm_out = x.dtype == weight.dtype == product_format
        logits_storage = x.new_empty((chunk_tokens, weight.shape[0])) if uses_mm_out else None
        for chunk_start in range(0, token_count, chunk_tokens):
            chunk_input = x[chunk_start : chunk_start + chunk_tokens]
            if logits_storage is None:
                logits = chunk_input @ weight.t()
                if bias is not None:
                    logits = logits + bias
                input_gradient[chunk_start : chunk_start + chunk_tokens] = logits @ weight
            else:
                logits = logits_storage[: chunk_input.shape[0]]
                torch.mm(chunk_input, weight.t(), out=logits)
                if bias is not None:
                    logits.add_(bias)
                torch.mm(logits, weight, out=input_gradient[chunk_start : chunk_start + chunk_tokens])
            if weight_gradient is not None and logits.dtype is torch.float32:
                weight_gradient += torch.mm(logits.t(), chunk_input).float()
            elif weight_gradient is not None:
                chunk_input = chunk_input.to(logits.dtype)
                if weight_gradient.dtype == logits.dtype:  # else a product of a GPU adds to it in float32
                    torch.addmm(weight_gradient, logits.t(), chunk_input, out=weight_gradient)
            if bias_gradient is not None:
                torch.add(bias_gradient, logits.sum(0), out=bias_gradient)
            del logits, chunk_input
        del logits_storage
        loss = losses.sum()
        ctx.save_for_backward(
            input_gradient.detach(), None if weight_gradient is None else weight_gradient.detach(), bias_gradient
        )
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x_gradient, weight_gradient, bias_gradient = ctx.saved_tensors
        return x_gradient, None, weight_gradient, bias_gradient, None


class LigerLogProbabilities(torch.autograd.Function):
    """Log-probabilities in chunks of the vocabulary (Liger-Kernel 0.8.5, chunked_loss/fused_linear_ppo.py)."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any, labels: Any) -> Any:
        log_probs = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
        log_sums = torch.empty_like(log_probs)
        for first_row in range(0, x.shape[0], LIGER_ROWS):
            token_rows, row_labels = x[first_row : first_row + LIGER_ROWS], labels[first_row : first_row + LIGER_ROWS]
            row_maxima = torch.full((token_rows.shape[0],), float("-inf"), device=x.device)
            exp_sums, label_logits = torch.zeros_like(row_maxima), torch.zeros_like(row_maxima)
            row_indices = torch.arange(token_rows.shape[0], device=x.device)
            for first_token in range(0, weight.shape[0], LIGER_VOCABULARY):
                logits, end_token = logits_of_part(token_rows, weight, bias, first_token)
                logit_maxima = logits.amax(dim=-1)
                new_maxima = torch.maximum(row_maxima, logit_maxima)
                rescaling = torch.exp(row_maxima - new_maxima)
                exponentials = torch.exp(logits - new_maxima.unsqueeze(-1))
                exp_sums = exp_sums * rescaling + exponentials.sum(dim=-1)
                row_maxima = new_maxima
                is_label = (row_labels >= first_token) & (row_labels < end_token)
                label_indices = torch.clamp(row_labels - first_token, 0, end_token - first_token - 1)
                label_logits += logits[row_indices, label_indices] * is_label
            row_log_sums = row_maxima + torch.log(exp_sums)
            log_sums[first_row : first_row + LIGER_ROWS] = row_log_sums
            log_probs[first_row : first_row + LIGER_ROWS] = label_logits - row_log_sums
            del logits, logit_maxima, rescaling, exponentials, is_label, label_indices, row_log_sums
        ctx.save_for_backward(x, weight, bias, labels, log_sums)
        return log_probs

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, weight, bias, labels, log_sums = ctx.saved_tensors
        x_gradient = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        weight_gradient, bias_gradient = (
            torch.zeros(tensor.shape, dtype=torch.float32, device=x.device) if needs_gradient else None
            for tensor, needs_gradient in zip((weight, bias), ctx.needs_input_grad[1:3], strict=True)
        )
        for first_row in range(0, x.shape[0], LIGER_ROWS):
            token_rows, row_labels = x[first_row : first_row + LIGER_ROWS], labels[first_row : first_row + LIGER_ROWS]
            row_gradients, row_log_sums = (
                token_values[first_row : first_row + LIGER_ROWS] for token_values in (gradients[0], log_sums)
            )
            row_indices = torch.arange(token_rows.shape[0], device=x.device)
            for first_token in range(0, weight.shape[0], LIGER_VOCABULARY):
                logits, end_token = logits_of_part(token_rows, weight, bias, first_token)
                probabilities = torch.exp(logits - row_log_sums.unsqueeze(-1))
                logits_gradient = (-row_gradients).unsqueeze(-1) * probabilities
                is_label = (row_labels >= first_token) & (row_labels < end_token)
                label_indices = torch.clamp(row_labels - first_token, 0, end_token - first_token - 1)
                logits_gradient[row_indices, label_indices] += row_gradients * is_label
                x_gradient[first_row : first_row + LIGER_ROWS].add_(
                    logits_gradient @ weight[first_token:end_token].float()
                )
                if weight_gradient is not None:
                    weight_gradient[first_token:end_token].add_(logits_gradient.t() @ token_rows.float())
                if bias_gradient is not None:
                    bias_gradient[first_token:end_token].add_(logits_gradient.sum(dim=0))
            del logits, probabilities, logits_gradient, is_label, label_indices
        return (
            x_gradient.to(x.dtype),
            None if weight_gradient is None else weight_gradient.to(weight.dtype),
            None if bias_gradient is None else bias_gradient.to(bias.dtype),
            None,
        )


def logits_of_part(token_rows: Any, weight: Any, bias: Any, first_token: int) -> tuple[Any, int]:
    """Returns the float32 logits of token rows for a chunk of the vocabulary, and the chunk's end."""
    end_token = min(first_token + LIGER_VOCABULARY, weight.shape[0])
    logits = (token_rows @ weight[first_token:end_token].to(token_rows.dtype).t()).float()
    if bias is not None:
        logits.add_(bias[first_token:end_token].to(torch.float32))
    return logits.mul_(1 / 0.9), end_token


class LigerLogProbabilityLoss(torch.autograd.Function):
    """Liger-Kernel's GRPO (0.8.5, `LigerFusedLinearPPOBase`), with the mean of log-probabilities as its loss."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any, labels: Any) -> Any:
        loss_sum = torch.zeros((), dtype=torch.float32, device=x.device)
        trained_flags = [tensor is not None and tensor.requires_grad for tensor in (weight, bias)]
        gradient_sums = [
            torch.zeros_like(tensor) if is_tensor_trained else None
            for tensor, is_tensor_trained in zip((weight, bias), trained_flags, strict=True)
        ]
        gradients_of_x = []
        for sequence, sequence_labels in zip(torch.chunk(x, x.shape[0]), torch.chunk(labels, x.shape[0]), strict=True):
            loss, gradient_of_x, *other_gradients = LigerLogProbabilityLoss.loss_of_sequence(
                sequence, weight, bias, sequence_labels, trained_flags
            )
            for gradient_sum in gradient_sums:
                if gradient_sum is not None:
                    gradient_sum.add_(other_gradients.pop(0))
            gradients_of_x.append(gradient_of_x)
            loss_sum.add_(loss)
            del loss, gradient_of_x, other_gradients
        ctx.save_for_backward(torch.cat(gradients_of_x, dim=0), *gradient_sums)
        return loss_sum

    @staticmethod
    def loss_of_sequence(x: Any, weight: Any, bias: Any, labels: Any, trained_flags: list[bool]) -> tuple[Any, ...]:
        """Returns the loss of one sequence, and the gradients of its inputs."""
        with torch.enable_grad():
            x, weight = x.detach().requires_grad_(True), weight.detach().requires_grad_(trained_flags[0])
            bias = None if bias is None else bias.detach().requires_grad_(trained_flags[1])
            token_rows = x.reshape(x.shape[0] * x.shape[1], x.shape[2]).contiguous()
            log_probs = LigerLogProbabilities.apply(token_rows, weight, bias, labels.reshape(-1))  # type: ignore[no-untyped-call]
            loss = log_probs.mean()
            trained_tensors = [
                tensor for tensor, has_gradient in zip((weight, bias), trained_flags, strict=True) if has_gradient
            ]
            return loss.detach(), *torch.autograd.grad(loss, [x, *trained_tensors])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return *ctx.saved_tensors, None


def lm_head_module(module: Any) -> Any:
    """Returns the linear layer that computes the logits."""
    return getattr(module.lm_head, "decoder", module.lm_head)


def loss_of(module: Any, kernel_choices: KernelChoices, model_output: Any, token_ids: Any, mtp_logits: Any = ()) -> Any:
    """Returns the loss of logits, or of hidden states for a chunked loss, plus the loss of each MTP module."""
    labels = token_ids.flatten()
    if model_output.shape[1] > token_ids.shape[1]:  # of several heads, one behind the other
        labels = token_ids.repeat(1, model_output.shape[1] // token_ids.shape[1]).flatten()
    if kernel_choices.cross_entropy == "chunked":
        lm_head = lm_head_module(module)
        loss = LigerLinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
            model_output.flatten(0, 1), labels, lm_head.weight, lm_head.bias, kernel_choices.loss_chunk
        )
    elif kernel_choices.cross_entropy == "selective-chunked":
        lm_head, last_token_count = lm_head_module(module), kernel_choices.logits_to_keep or token_ids.shape[1] - 1
        completion_states = model_output[:, :-1, :][:, -last_token_count:, :]
        loss = LigerLogProbabilityLoss.apply(
            completion_states, lm_head.weight, lm_head.bias, token_ids[:, -last_token_count:]
        )  # type: ignore[no-untyped-call]
    elif kernel_choices.cross_entropy == "split":
        loss = chunked_loss(lm_head_module(module), kernel_choices, model_output, token_ids)
    elif kernel_choices.cross_entropy == "recomputed":
        loss = recomputed_loss(lm_head_module(module), kernel_choices, model_output, token_ids)
    else:
        loss = _loss_of_logits(
            kernel_choices, model_output.div_(1.5) if kernel_choices.divides_logits else model_output, labels
        )
    for logits in mtp_logits:
        loss = loss + _loss_of_logits(kernel_choices, logits, labels)
    return loss


def log_probability_loss(logits: Any, labels: Any) -> Any:
    """Returns the mean log-probability of the labels, and computes entropies (TRL, `GRPOTrainer._compute_loss`)."""
    last_token_count = logits.shape[1] - 1
    last_logits = logits[:, :-1, :]
    last_logits = last_logits[:, -last_token_count:, :]
    last_logits.div_(0.9)
    log_probabilities = log_probabilities_of(
        last_logits, labels.reshape(logits.shape[0], -1)[:, -last_token_count:].unsqueeze(-1)
    )
    with torch.no_grad():
        _entropies = logit_entropies(last_logits)
    return log_probabilities.flatten().mean()


def log_probabilities_of(logits: Any, label_index: Any) -> Any:
    """Returns the log-probabilities of labels, sequence by sequence (TRL, `selective_log_softmax`)."""
    if logits.dtype is torch.float32:
        label_logits = torch.gather(logits, dim=-1, index=label_index)
        log_sums = torch.stack([torch.logsumexp(logit_rows, dim=-1) for logit_rows in logits])
        return (label_logits - log_sums.unsqueeze(-1)).squeeze(-1)
    label_log_probs = []
    for logit_rows, row_labels in zip(logits, label_index, strict=True):
        log_probs = F.log_softmax(logit_rows, dim=-1)
        label_log_probs.append(log_probs.gather(dim=-1, index=row_labels))
    return torch.stack(label_log_probs).squeeze(-1)


def logit_entropies(logits: Any) -> Any:
    """Returns the entropies of logits, 128 rows at a time (TRL, `entropy_from_logits`)."""
    entropies = []
    for logit_rows in logits.reshape(-1, logits.shape[-1]).split(128, dim=0):
        log_probs = F.log_softmax(logit_rows, dim=-1)
        entropies.append(-(torch.exp(log_probs) * log_probs).sum(-1))
    return torch.cat(entropies, dim=0)


def chunked_loss(lm_head: nn.Linear, kernel_choices: KernelChoices, x: Any, token_ids: Any) -> Any:
    """Computes the loss in chunks, like torchtune's `CEWithChunkedOutputLoss` with eight chunks by default.

    With `logits_to_keep`, the loss covers only the last tokens, as in unsloth_zoo's GRPO (rl_replacements.py).
    """
    last_token_count = kernel_choices.logits_to_keep
    if last_token_count is not None and last_token_count < x.shape[1]:
        x, token_ids = x[:, -last_token_count:], token_ids[:, -last_token_count:]
    chunk_tokens = kernel_choices.loss_chunk or -(-x.shape[1] // 8)
    dtype = getattr(torch, kernel_choices.logits_dtype or "float32")
    logits_chunks = [logits_of_chunk(lm_head, token_chunk) for token_chunk in x.split(chunk_tokens, dim=1)]
    labels = [token_chunk.reshape(-1) for token_chunk in token_ids.split(chunk_tokens, dim=1)]
    logits_chunks = [token_chunk.reshape(-1, token_chunk.size(-1)) for token_chunk in logits_chunks]
    loss_sum = None
    for logits, label_chunk in zip(logits_chunks, labels, strict=True):
        loss = F.cross_entropy(logits.to(dtype), label_chunk, reduction="sum")
        loss_sum = loss if loss_sum is None else loss_sum + loss
    return loss_sum


def recomputed_loss(lm_head: nn.Linear, kernel_choices: KernelChoices, x: Any, token_ids: Any) -> Any:
    """Computes the loss of all labels in checkpointed chunks (TRL 1.10, `_chunked_cross_entropy_loss`)."""
    hidden_states = x[..., :-1, :].reshape(-1, x.size(-1))
    labels = token_ids[..., 1:].reshape(-1)
    label_order = (labels != -100).to(torch.int8).argsort(descending=True, stable=True)
    hidden_states, labels = hidden_states[label_order], labels[label_order]
    chunk_size = kernel_choices.loss_chunk or 256
    logit_scale = 0.0625 if kernel_choices.scales_logits else 1.0
    logit_cap = 30.0 if kernel_choices.caps_logits else None
    loss_sum = hidden_states.new_zeros((), dtype=torch.float32)
    for first_row in range(0, labels.numel(), chunk_size):
        hidden_chunk, chunk_labels = (
            hidden_states[first_row : first_row + chunk_size],
            labels[first_row : first_row + chunk_size],
        )
        arguments = (hidden_chunk, lm_head.weight, lm_head.bias, chunk_labels, logit_scale, logit_cap)
        loss_sum = loss_sum + checkpoint(loss_of_float_logits, *arguments, use_reentrant=False)
    return loss_sum / labels.numel()


def loss_of_float_logits(
    x: Any, weight: Any, bias: Any, labels: Any, logit_scale: float, logit_cap: float | None
) -> Any:
    """Returns the loss of a chunk of tokens, and computes its entropy (TRL 1.10, `_chunk`)."""
    logits = x.float() @ weight.float().t()
    if bias is not None:
        logits = logits + bias.float()
    if logit_scale != 1.0:
        logits = logits * logit_scale
    if logit_cap is not None:
        logits = logit_cap * torch.tanh(logits / logit_cap)
    log_probs = F.log_softmax(logits.float(), dim=-1)  # the cast is that of autocast on a GPU
    loss = F.nll_loss(log_probs, labels, ignore_index=-100, reduction="sum")
    is_counted = labels != -100
    _entropy = (-(log_probs.exp() * log_probs).sum(dim=-1) * is_counted).sum()
    return loss


def logits_of_chunk(lm_head: nn.Linear, token_chunk: Any) -> Any:
    """Returns the logits of a chunk of hidden states, computed with the output head's weights."""
    return F.linear(token_chunk, lm_head.weight, lm_head.bias)


def _loss_of_logits(kernel_choices: KernelChoices, logits: Any, labels: Any) -> Any:
    dtype = None if kernel_choices.logits_dtype is None else getattr(torch, kernel_choices.logits_dtype)
    if kernel_choices.cross_entropy == "selective":
        loss_dtype = torch.float32 if kernel_choices.float32_loss else logits.dtype
        return log_probability_loss(logits.to(dtype or loss_dtype), labels)
    if kernel_choices.cross_entropy.startswith("flash"):
        logit_rows = logits.to(dtype or logits.dtype).flatten(0, 1)
        is_in_place = kernel_choices.cross_entropy == "flash-in-place"
        return FlashCrossEntropy.apply(logit_rows, labels, is_in_place)[0].mean()  # type: ignore[no-untyped-call]
    if kernel_choices.cross_entropy == "fused":
        return LigerCrossEntropy.apply(logits.to(dtype or logits.dtype).flatten(0, 1), labels)  # type: ignore[no-untyped-call]
    default_dtype = torch.float32 if kernel_choices.float32_loss else logits.dtype
    return F.cross_entropy(logits.to(dtype or default_dtype).flatten(0, 1), labels)


# --- checkpoints ------------------------------------------------------------------------------------------------------

SAVED_OPERATIONS = {
    "mm": torch.ops.aten.mm.default,
    "addmm": torch.ops.aten.addmm.default,
    "bmm": torch.ops.aten.bmm.default,
    "baddbmm": torch.ops.aten.baddbmm.default,
    "grouped_mm": torch.ops.aten._grouped_mm.default,
    "flash_attention": torch.ops.aten._scaled_dot_product_flash_attention.default,
    "efficient_attention": torch.ops.aten._scaled_dot_product_efficient_attention.default,
    "cudnn_attention": torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    "reduce_scatter": torch.ops._c10d_functional.reduce_scatter_tensor.default,
}
"""Name of an operation of `SAVED_PRODUCTS`, or `reduce_scatter` → torch's operation."""
assert set(SAVED_OPERATIONS) >= SAVED_PRODUCTS


def selective_checkpoint(saved_operations: frozenset[str], alternate_operations: frozenset[str]) -> Callable[[], Any]:
    """Returns a factory of checkpoint contexts that save results of some operations, partly only every second one."""
    operations, alternating_operations = (
        {SAVED_OPERATIONS[operation_name] for operation_name in operation_names}
        for operation_names in (saved_operations, alternate_operations)
    )

    def create_contexts() -> Any:
        call_counts = Counter[Any]()

        def policy(checkpoint_context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
            call_counts[checkpoint_context.is_recompute, op] += 1
            is_skipped = op in alternating_operations and call_counts[checkpoint_context.is_recompute, op] % 2 == 0
            return (
                CheckpointPolicy.MUST_SAVE if op in operations and not is_skipped else CheckpointPolicy.PREFER_RECOMPUTE
            )

        return create_selective_checkpoint_contexts(policy)

    return create_contexts


def add_checkpoints(module: nn.Module, recompute: Recompute) -> None:
    """Wraps modules in activation checkpointing, so that the backward pass recomputes them."""
    run_checkpointed = partial(checkpoint, use_reentrant=recompute.reentrant, preserve_rng_state=False)
    if recompute.saved_operations:
        run_checkpointed = partial(
            run_checkpointed, context_fn=selective_checkpoint(recompute.saved_operations, recompute.alternate)
        )
    carries_router_state = any(hasattr(submodule, "below_scale") for submodule in module.modules())
    for module_name, submodule in [*module.named_modules()]:
        parent_name, _, child_name = module_name.rpartition(".")
        module_path = _path_in_layer(module_name)
        is_layer = child_name.isdigit() and parent_name.rpartition(".")[2] == "layers"
        recomputes_core = recompute.core and is_attention_core(module_name)
        is_recomputed = is_layer and recompute.includes_layer(int(child_name))
        if is_recomputed and carries_router_state:
            submodule.forward = partial(_checkpoint_with_router_state, run_checkpointed, submodule.forward)
        elif is_recomputed or recomputes_core or module_path in recompute.nodes:
            submodule.forward = partial(run_checkpointed, submodule.forward)


def _checkpoint_with_router_state(
    run_checkpointed: Callable[..., Any], forward: Callable[..., Any], x: Any, pass_state: Any
) -> Any:
    """Checkpoints a layer whose router reads the router state of the layer before.

    That state is an argument and a result, as in transformers/models/zaya/modeling_zaya.py. Otherwise the recomputed
    layer would read the state of the last layer.
    """

    def run_with_router_state(x: Any, router_state: Any) -> Any:
        outer_router_state, pass_state.router_state = pass_state.router_state, router_state
        try:
            return forward(x, pass_state), pass_state.router_state
        finally:
            pass_state.router_state = outer_router_state

    layer_output, pass_state.router_state = run_checkpointed(run_with_router_state, x, pass_state.router_state)
    return layer_output


def _path_in_layer(module_name: str) -> str:
    """Returns the path of a module relative to its layer; empty outside of layers."""
    _, separator, path_after_layers = f".{module_name}".rpartition(".layers.")
    return path_after_layers.partition(".")[2] if separator else ""


# --- dropout and adapters ---------------------------------------------------------------------------------------------


class Dropout(nn.Module):
    """Dropout with one kernel and a byte mask, as on a GPU; the meta device would multiply by noise."""

    def forward(self, x: Any) -> Any:
        return torch.native_dropout(x, 0.1, True)[0]


def attach_dropout(module: Any) -> None:
    """Adds dropout to all modules of a reference where the spec has dropout."""
    if module.spec.dropout is not None:
        dropout_modules = dict.fromkeys(module.spec.dropout.probabilities(), Dropout())
        for submodule in (*module.modules(), *getattr(module, "_only", ())):
            submodule.__dict__["dropouts"] = dropout_modules


class Lora(nn.Module):
    """A LoRA layer as in peft 0.21 (peft/tuners/lora/layer.py)."""

    def __init__(self, base_layer: nn.Linear, adapters: Adapters, device: str) -> None:
        super().__init__()
        self.base_layer: nn.Linear = base_layer
        dtype = getattr(torch, adapters.dtype.name)
        with torch.device(device):
            self.lora_A = nn.Linear(base_layer.in_features, adapters.rank, bias=False, dtype=dtype)
            self.lora_B = nn.Linear(adapters.rank, base_layer.out_features, bias=False, dtype=dtype)
        self.dropout: nn.Module = Dropout() if adapters.dropout else nn.Identity()

    def forward(self, x: Any) -> Any:
        base_output = self.base_layer(x)
        result_dtype = base_output.dtype
        x = x.to(self.lora_A.weight.dtype)
        base_output = base_output + self.lora_B(self.lora_A(self.dropout(x))) * 2.0
        return base_output.to(result_dtype)


class Dora(Lora):
    """A LoRA layer with magnitudes, as in peft 0.20 (peft/tuners/lora/variants.py and dora.py)."""

    def __init__(self, base_layer: nn.Linear, adapters: Adapters, device: str) -> None:
        super().__init__(base_layer, adapters, device)
        with torch.device(device):
            self.magnitude = nn.Parameter(torch.ones(base_layer.out_features, dtype=self.lora_A.weight.dtype))

    def forward(self, x: Any) -> Any:
        layer_output = self.base_layer(x)
        result_dtype = layer_output.dtype
        x = x.to(self.lora_A.weight.dtype)
        base_result = None
        if isinstance(self.dropout, nn.Identity):
            base_result = layer_output
        else:
            x = self.dropout(x)
        layer_output = layer_output + self._decomposed_output(x, base_result)
        return layer_output.to(result_dtype)

    def _decomposed_output(self, x: Any, base_result: Any) -> Any:
        lora_weight = self._lora_weight().to(x.dtype)
        weight = self.base_layer.weight.to(x.dtype)
        weight_norm = self._row_norms(weight, lora_weight.detach()).detach()
        magnitude_scale = (self.magnitude / weight_norm).view(1, -1)
        lora_result = self.lora_B(self.lora_A(x))
        if base_result is None:
            base_result = F.linear(x, weight)
        elif self.base_layer.bias is not None:
            base_result = base_result - self.base_layer.bias
        return (magnitude_scale - 1) * base_result + magnitude_scale * lora_result * 2.0

    def _lora_weight(self) -> Any:
        identity = torch.eye(self.lora_A.in_features, device=self.lora_A.weight.device, dtype=self.lora_A.weight.dtype)
        return self.lora_B(self.lora_A(identity)).T

    def _row_norms(self, weight: Any, lora_weight: Any) -> Any:
        weight = weight + 2.0 * lora_weight
        return torch.linalg.norm(weight, dim=1).to(weight.dtype)


def attach_adapters(module: nn.Module, adapters: Adapters, device: str = "cpu") -> None:
    """Freezes all parameters and adds an adapter to each target layer. Layers with tied weights share an adapter."""
    lora_by_weight: dict[int, Lora] = {}
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    for module_name, submodule in [*module.named_modules()]:
        parent_name, _, child_name = module_name.rpartition(".")
        if child_name in adapters.targets and isinstance(submodule, nn.Linear):
            layer_class = Dora if adapters.has_dora_magnitudes else Lora
            lora_by_weight[id(submodule.weight)] = lora_by_weight.get(id(submodule.weight)) or layer_class(
                submodule, adapters, device
            )
            setattr(module.get_submodule(parent_name), child_name, lora_by_weight[id(submodule.weight)])
