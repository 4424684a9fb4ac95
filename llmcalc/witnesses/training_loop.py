"""Training steps and inference passes of the PyTorch reference, whose memory is measured.

The training loop:

    for ids in micro_batches:
        loss = F.cross_entropy(model(ids).float().flatten(0, 1), ids.flatten())
        loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none)

With master weights the optimizer has copies in float32, and the step is

    for copy, weight in zip(copies, weights):
        copy.grad = weight.grad.float()
    optimizer.step()
    for copy, weight in zip(copies, weights):
        copy.grad = None
        weight.copy_(copy)

in which all copies of gradients exist at once, in addition to the gradients.

This module imports torch, so import it only in functions that run torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any, TypeAlias

import torch
import torch._dynamo  # a first optimizer step imports it, and would count what it allocates
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..device_memory.inference import InferenceConfig
from ..device_memory.optimizers.registry import optimizer
from ..device_memory.training import TrainingConfig, TrainingRun
from ..errors import InputError
from ..model import ModelSpec
from ..optional import MTP
from ..simulator.kernel_choices import EAGER_CHOICES, KernelChoices
from ..simulator.meter import Meter
from ..workload.execution import OptimizerImplementation
from ..workload.recompute import NO_RECOMPUTATION
from . import kernel_variants, module_measurements
from .meta_device import device_context
from .module_measurements import default_dtype, encoder_input

PhaseCallback: TypeAlias = Callable[[str, Tensor | None], None]
"""A function that is called after each phase with the phase's name, and the loss (None except after a forward pass)."""


# --- the model and what it reads --------------------------------------------------------------------------------------


def build_reference(spec: ModelSpec, dtype: str, device: str, included_parts: frozenset[str] = frozenset()) -> Any:
    """Builds the reference in one number format, without vision and audio encoders.

    Multi-token prediction is removed too, unless it is in `included_parts`.
    """
    with device_context(device), default_dtype(getattr(torch, dtype)):
        module: Any = spec.reference()
    for slot_name in ("towers", *(() if MTP.name in included_parts else ("mtp",))):
        if hasattr(module, slot_name):
            delattr(module, slot_name)
    return module


class SkipInitialization(TorchFunctionMode):  # it is used as a function
    """Skips the initialization of parameters, because memory does not depend on their values."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__name__", "") in ("normal_", "uniform_", "trunc_normal_"):
            return args[0] if args else kwargs["tensor"]
        return function(*args, **(kwargs or {}))


def token_ids(spec: ModelSpec, batch: int, token_count: int, device: str) -> Tensor:
    """Returns token ids: random on a GPU, elsewhere zeros, for which all rows have the same experts."""
    return module_measurements.token_ids(spec, batch, token_count, device, is_random=device == "cuda")


def loss_or_output(
    spec: ModelSpec,
    module: Any,
    input_ids: Tensor,
    source_input: Tensor | None,
    kernels: KernelChoices = EAGER_CHOICES,
    included_parts: frozenset[str] = frozenset(),
) -> Any:
    """Runs a forward pass, and returns the loss; for a model without a language-model head, the output."""
    has_mtp = MTP.name in included_parts
    model_output = module(
        input_ids, source_input, with_mtp=has_mtp, grouped_experts=True, expert_capacity=kernels.expert_capacity
    )
    output, mtp_logits = model_output if has_mtp else (model_output, [])
    del model_output
    return kernel_variants.loss_of(module, kernels, output, input_ids, mtp_logits) if spec.head.type == "lm" else output


# --- training ---------------------------------------------------------------------------------------------------------


class TrainingLoop:
    """The training loop whose memory is measured. Each batch overwrites the tensors of the previous batch."""

    def __init__(self, spec: ModelSpec, training: TrainingConfig, device: str) -> None:
        self.spec: ModelSpec = spec
        self.training: TrainingConfig = training
        self.device: str = device
        self.module: Any = build_reference(spec, training.dtype, device, training.include)
        kernel_variants.apply_kernel_choices(
            self.module, training.kernel_choices, training.recompute, training.adapters, device
        )
        self.trained_parameters: list[Tensor] = self._parameters_in_order()
        self.updated: list[Tensor] = (
            [parameter.detach().float() for parameter in self.trained_parameters]
            if training.has_master_weights
            else self.trained_parameters
        )
        matrix_ids = layer_matrix_ids(self.module)
        parameters = [
            (tensor, id(weight) in matrix_ids)
            for tensor, weight in zip(self.updated, self.trained_parameters, strict=True)
        ]
        self.optimizers = build_optimizers(
            training.optimizer, parameters, training.implementation, training.has_momentum
        )

    def _parameters_in_order(self) -> list[Tensor]:
        """Returns the trained parameters in the order of the simulation.

        The order matters because the variable of a loop over tensors still refers to the previous tensor.
        """
        parameters_by_name = {
            param_name: parameter for param_name, parameter in self.module.named_parameters() if parameter.requires_grad
        }
        simulated_run = TrainingRun(self.spec, self.training, memory_meter=Meter())
        simulated_run.set_up()
        simulated_keys = (
            ".".join(str(key_part).strip(".") for key_part in parameter_key[1:] if key_part != "")
            for parameter_key, _ in simulated_run.lowering.parameters
        )
        ordered_parameters = [
            parameters_by_name.pop(param_name)
            for parameter_key in simulated_keys
            for param_name in (parameter_key, f"{parameter_key}.weight", f"{parameter_key}.bias")
            if param_name in parameters_by_name
        ]
        return [*ordered_parameters, *parameters_by_name.values()]

    @property
    def outside_tensors(self) -> Iterable[Tensor]:
        """Returns the tensors outside of a micro-batch's autograd graph: parameters, buffers and inputs."""
        source_tensors = () if self.source is None else (self.source,)
        return (*self.module.parameters(), *self.module.buffers(), self.ids, *source_tensors)

    def run_step(self, phase_callback: PhaseCallback) -> None:
        """Runs one training step. phase_callback: called after each `forward`, `backward` and `step`."""
        for _ in range(self.training.microbatches):
            self.run_micro_batch(phase_callback)
        self._update_parameters()
        phase_callback("step", None)

    def run_micro_batch(self, phase_callback: PhaseCallback) -> None:
        """Runs the two passes of a micro-batch. phase_callback: called after `forward` and after `backward`."""
        self.create_tokens()
        with kernel_variants.kernel_context(self.training.kernel_choices):
            loss = self.compute_loss()
            phase_callback("forward", loss)
            loss.backward(torch.ones_like(loss))
        del loss
        phase_callback("backward", None)

    def create_tokens(self) -> None:
        """Creates the token ids of a micro-batch, and for an encoder-decoder the encoder's input."""
        training = self.training
        self.ids: Tensor = token_ids(self.spec, training.batch, training.seq, self.device)
        source_length = training.seq if training.source_tokens is None else training.source_tokens
        self.source: Tensor | None = encoder_input(
            self.spec, training.batch, source_length, training.dtype, self.device
        )

    def compute_loss(self) -> Tensor:
        """Computes the loss for the current token ids."""
        training = self.training
        with torch.autocast(self.device, torch.bfloat16) if training.autocast else nullcontext():
            loss: Tensor = loss_or_output(
                self.spec, self.module, self.ids, self.source, training.kernel_choices, training.include
            )
        return loss

    def _update_parameters(self) -> None:
        if self.training.has_master_weights:
            for updated_copy, weight in zip(self.updated, self.trained_parameters, strict=True):
                updated_copy.grad = None if weight.grad is None else weight.grad.float()
        for torch_optimizer in self.optimizers:
            torch_optimizer.step()
        if self.training.has_master_weights:
            with torch.no_grad():
                for updated_copy, weight in zip(self.updated, self.trained_parameters, strict=True):
                    updated_copy.grad = None
                    weight.copy_(updated_copy)
        self.module.zero_grad(set_to_none=not self.training.keeps_gradients)


def build_optimizers(
    optimizer_name: str,
    parameters: list[tuple[Tensor, bool]],
    implementation: OptimizerImplementation | None = None,
    has_momentum: bool = False,
) -> list[torch.optim.Optimizer]:
    """Builds torch's optimizers of a name such as `adamw`.

    parameters: (parameter, whether it is a matrix of a layer).
    implementation: None (default) for torch's default.
    Raises `InputError` for an optimizer that torch does not have.
    """
    record = optimizer(optimizer_name)
    if record.build_torch_optimizers is None:
        raise InputError(f"--optimizer {optimizer_name}: {record.reason_not_in_torch}")
    return list(record.build_torch_optimizers(parameters, implementation or record.implementations[0], has_momentum))


def layer_matrix_ids(module: nn.Module) -> set[int]:
    """Returns the Python ids of the weight matrices inside the model's layers."""
    return {
        id(submodule.weight)
        for module_name, submodule in module.named_modules()
        if isinstance(submodule, nn.Linear) and ".layers." in f".{module_name}"
    }


# --- passes without gradients -----------------------------------------------------------------------------------------


CacheShapes: TypeAlias = dict[str, list[tuple[Any, Any, Any, int]]]
"""Path of a module → (shape, strides, dtype, elements of the storage) of each tensor that it caches."""


def cache_shapes(spec: ModelSpec, inference_config: InferenceConfig) -> CacheShapes:
    """Returns the shapes of the cache's tensors after a prompt, from a run on the meta device."""
    inference_configs = InferencePasses(spec, inference_config, "meta")
    inference_configs.run_prefill()
    path_by_module = {
        cached_module: module_path for module_path, cached_module in inference_configs.module.named_modules()
    }
    return {
        path_by_module[cached_module]: [
            (tensor.shape, tensor.stride(), tensor.dtype, tensor.untyped_storage().nbytes() // tensor.itemsize)
            for tensor in cached_tensors
        ]
        for cached_module, cached_tensors in (inference_configs.store or {}).items()
    }


class InferencePasses:
    """Inference passes of the reference: prefill, and decoding of one token.

    store: the cache by module; None for a model without a cache.
    """

    def __init__(self, spec: ModelSpec, inference_config: InferenceConfig, device: str) -> None:
        self.spec: ModelSpec = spec
        self.inference: InferenceConfig = inference_config
        self.device: str = device
        self.module: Any = build_reference(spec, inference_config.dtype, device, inference_config.include).eval()
        kernel_variants.apply_kernel_choices(self.module, inference_config.kernel_choices, NO_RECOMPUTATION)
        self.store: dict[Any, tuple[Tensor, ...]] | None = None if spec.one_pass_model_name else {}

    def run_prefill(self) -> None:
        """Runs the reference on the whole prompt, in one pass or in chunks."""
        seq = self.inference.seq
        chunk_size = seq if self.inference.chunk_tokens is None or self.store is None else self.inference.chunk_tokens
        for past_tokens in range(0, seq, chunk_size):
            self._run_pass(min(chunk_size, seq - past_tokens), past_tokens, last_only=self.store is not None)

    def create_cache(self, cache_tensors: CacheShapes) -> None:
        """Creates the cache that exists after a prompt. cache_tensors: the shapes of its tensors."""
        modules_by_path = dict(self.module.named_modules())
        self.store = {
            modules_by_path[module_path]: tuple(
                torch.zeros(element_count, dtype=dtype, device=self.device).as_strided(shape, strides)
                for shape, strides, dtype, element_count in tensor_shapes
            )
            for module_path, tensor_shapes in cache_tensors.items()
        }

    def run_decode(self) -> None:
        """Runs one decoding step of the reference after the prompt."""
        self._run_pass(1, self.inference.seq, last_only=False)

    def _run_pass(self, new_token_count: int, past_tokens: int, last_only: bool) -> None:
        """Runs one inference pass, and frees its token ids and logits at the end."""
        inference_config = self.inference
        input_ids, source_input = token_ids(self.spec, inference_config.batch, new_token_count, self.device), None
        if not past_tokens:
            input_tokens = (
                inference_config.seq if inference_config.source_tokens is None else inference_config.source_tokens
            )
            source_input = encoder_input(
                self.spec, inference_config.batch, input_tokens, inference_config.dtype, self.device
            )
        with torch.no_grad(), kernel_variants.kernel_context(inference_config.kernel_choices):
            self.module(
                input_ids,
                source_input,
                cached_tensors=self.store,
                past=past_tokens,
                last_only=last_only,
                mla=inference_config.latent_form,
                grouped_experts=True,
                expert_capacity=inference_config.kernel_choices.expert_capacity,
            )
