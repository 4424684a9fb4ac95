"""The base class of recurrent modules: kernels that run a whole module, and the operations that they share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .....algebra import exact_div, is_zero
from .....components.base import BY_TORCH, PUBLISHED
from .....evidence import compared
from .....flow.program import Scope, Step
from .....ops import State
from .....workload.rows import TOKENS
from ....published import causal_conv1d
from ....published.function import H100, Accelerator, Optional
from ....strides import is_size_one
from ....tensor import FLOAT32, Tensor
from ..basic import BasicKernels
from ..convolution import ConvolutionKernels
from .module_steps import Steps, every_step, module_steps


class ScanModules(ConvolutionKernels, BasicKernels):
    """Base of recurrent modules: kernels that run a whole module, and shared operations.

    accelerator: what kernels ask of the device that runs them.
    left: what a module keeps after it ran, until it runs again.
    """

    accelerator: Accelerator = H100

    def __init__(self, *run: Any, **options: Any) -> None:
        super().__init__(*run, **options)
        self.left: dict[Any, Tensor] = {}

    def module_kernel(self, scope: Scope) -> Callable[[], None] | None:
        """Returns the kernel that runs the recurrent module as a whole."""
        for step in module_steps(scope):
            if step.verb not in ("core", "scan"):
                continue
            kind = type(step.op).__name__ if step.verb == "core" else step.options.get("kind", "")
            run = getattr(self, f"{'decode' if self.decodes_one_token else 'module'}_{kind}", None)
            if run is not None:
                return lambda: self.run_module_at_once(scope, run)
        return super().module_kernel(scope)

    @property
    def decodes_one_token(self) -> bool:
        """Whether the pass decodes a single token after earlier passes."""
        return self.has_earlier_tokens and is_size_one(self.run_config.new(TOKENS))

    def run_module_at_once(self, scope: Scope, run: Callable[[Steps, Tensor], Tensor]) -> None:
        """Runs all steps of a module by `run`, and binds the output of the last."""
        assert scope.reads is not None
        self._check_number_formats()
        steps = Steps(scope)
        for step in steps.all:
            if step.verb == "keep":
                raise self.unsupported("no kernels of a recurrence whose output higher layers read", step.name)
        self.set(steps.all[-1].outs[0], run(steps, self.flat(scope.reads)))
        for step in steps.all:
            if step.verb == "state" and self.store is not None and self.cached(step.name) is None:
                raise self.unsupported("no kernels that keep this state", step.name)
        for step in every_step(scope.items):
            for value in step.ins:
                if self.last.get(id(value.storage)) == id(step):
                    self.forget(value.storage)

    def _check_number_formats(self) -> None:
        """Raises `Unsupported` for number formats that the kernels do not support."""
        if self.graph.autocast is not None:
            raise self.unsupported("no published kernels under autocast; expected weights in the type of activations")

    def project(self, step: Step, x: Tensor) -> Tensor:
        """Runs the linear layer of a step on x."""
        return self.linear_output(step, x, self.matrix(step), self.bias(step))

    def raw_weight(self, step: Step) -> Tensor:
        """Returns the weight of a linear layer that a published module reads without calling the layer."""
        if self.adapters is not None and (self.adapters.base != "none" or step.name in self.adapters.targets):
            raise self.unsupported(
                "the published module reads this weight itself; expected no adapter on it, and no base in 4 bits",
                step.name,
            )
        return self.matrix(step)

    def bias(self, step: Step) -> Tensor | None:
        """Returns the bias of a linear layer or convolution."""
        return self.weight(f"{step.name}.bias", (step.outs[0].width,)) if step.options["bias"] else None

    def filters(self, step: Step) -> Tensor:
        """Returns the weight of a depthwise convolution: rearrange(weight, "d 1 w -> d w")."""
        width, kernel = step.outs[0].width, step.options["kernel"]
        return self.t.reshape(self.weight(f"{step.name}.weight", (width, 1, kernel)), (width, kernel))

    def by_head(self, x: Tensor, size: Any) -> Tensor:
        """Splits the last axis into heads: rearrange(x, "... (h d) -> ... h d")."""
        return self.t.unflatten(x, -1, (exact_div(x.shape[-1], size), size))

    def decay(self, shape: tuple[Any, ...]) -> Tensor:
        """Computes the decay of a state-space mixer: A = -exp(A_log.float())."""
        return self.t.scale(self.t.exp(self.t.to(self.weight("A_log", shape), FLOAT32)), "neg")

    def causal_conv(self, step: Step, x: Tensor, kind: str | None = None) -> Tensor:
        """Runs a causal convolution with an activation, default none. x: [batch, channels, tokens].

        For a kernel that causal_conv1d does not have, torch's convolution of x with zeros on both sides.
        """
        t, kernel = self.t, step.options["kernel"]
        if 2 <= kernel <= 4:
            y = causal_conv1d.causal_conv1d_fn(t, x, self.filters(step), self.bias(step))
            return y if kind in (None, "silu") else self.apply_activation(y, kind)
        weight = self.weight(f"{step.name}.weight", (step.outs[0].width, 1, kernel))
        y = t.slice(t.convolution(x, weight, self.bias(step), x.shape[2] + kernel - 1), x.shape[2])
        return y if kind is None else self.apply_activation(y, kind)

    @compared(BY_TORCH)
    def do_conv(self, step: Step) -> None:
        if is_zero(getattr(step.op, "padding", 0)):
            super().do_conv(step)
            return
        self._check_number_formats()
        x, state = self.channels(step), step.options["state"]
        by_kernel = 2 <= step.options["kernel"] <= 4 and not self.decodes_one_token
        if self.store is None or not by_kernel:
            y = self.causal_conv(step, x) if self.store is None else self.conv_with_state(step, x, state)
        else:
            self.keep_inputs(self.find_step(state), x)
            y = self.causal_conv(step, x)
        self.set(step.outs[0], self.t.transpose(y, 1, 2))

    def conv_with_state(self, step: Step, x: Tensor, state: str, cached_inputs: Any = None) -> Tensor:
        """Runs CausalConv1d.forward of the references. x: [batch, channels, tokens]."""
        t, kernel, stored_inputs = self.t, step.options["kernel"], self.cached(state)
        cached_inputs = kernel if cached_inputs is None else cached_inputs
        width, tokens = step.outs[0].width, x.shape[2]
        weight = self.conv_weight(step, (width, 1, kernel))
        if stored_inputs is None:
            out = t.slice(t.convolution(x, weight, self.bias(step), tokens + kernel - 1), tokens)
            padded_input = t.pad(x, tokens + cached_inputs)
        else:
            padded_input = t.cat([stored_inputs[0], x])
            out = t.convolution(t.slice(padded_input, tokens + kernel - 1), weight, self.bias(step), tokens)
        self.keep(state, t.slice(padded_input, cached_inputs))
        return out

    def conv_weight(self, step: Step, shape: Any) -> Tensor:
        """Returns the filters of a convolution; those of queries, keys and values are concatenated."""
        filter_keys = [(*self.module_path(), f"{name}_conv1d.weight") for name in "qkv"]
        if filter_keys[0] in self.weights:
            return self.in_pool(shape, self.dtype)
        return self.weight(f"{step.name}.weight", shape)

    def keep_inputs(self, state: Step, x: Tensor) -> None:
        """Caches the last inputs of a convolution: conv_state.copy_(F.pad(x, (kernel - tokens, 0)))."""
        if self.store is not None:
            assert isinstance(state.op, State)
            cached_tokens = exact_div(state.op.size, x.shape[1])
            self.states(state, (x.shape[1], cached_tokens))
            _padded_input = self.t.new((*x.shape[:2], cached_tokens), x.dtype)

    def final_state(self, state: Step, *shape: Any) -> Optional:
        """Returns the tensor to which a kernel writes the last state: the cache's, or one that is copied there."""
        is_first_pass = self.cached(state.name) is None
        states = self.states(state, shape)
        if not states or is_first_pass:
            return states[0] if states else None
        return self.graph.new((self.run_config.batch, *shape), states[0].dtype)

    def channels(self, step: Step) -> Tensor:
        """Returns the input of a convolution as [batch, channels, tokens]."""
        return self.t.transpose(self.flat(step.ins[0]), 1, 2)

    def _normalize_with(self, step: Step, x: Tensor) -> Tensor:
        return self.norm(x, step.options["spec"], step.name, x.shape[-1:])

    @compared(PUBLISHED)
    def do_scan(self, step: Step) -> None:
        """Runs an elementwise recurrence by the method `scan_<kind>`."""
        run = getattr(self, f"{'next' if self.decodes_one_token else 'scan'}_{step.options['kind']}", None)
        if run is None:
            raise self.unsupported(f"no kernels for a scan of the kind '{step.options['kind']}'", step.name)
        self._check_number_formats()
        run(step)

    def find_step(self, name: str) -> Step:
        """Returns a step of the current module by its name."""
        return next(step for step in module_steps(self.frames[-1].scope) if step.name == name)

    @compared(BY_TORCH)
    def do_shift(self, step: Step) -> None:
        t, x, state = self.t, self.get(step.ins[0]), step.options["state"]
        cached_row = self.cached(state)
        previous_row = t.new((x.shape[0], 1, *x.shape[2:]), x.dtype) if cached_row is None else cached_row[0]
        self.keep(state, t.slice(x, 1, 1))
        self.set(step.outs[0], t.cat([previous_row, t.slice(x, x.shape[1] - 1, 1)], 1))

    @compared(BY_TORCH)
    def do_complement(self, step: Step) -> None:
        self.set(step.outs[0], self.t.scale(self.get(step.ins[0]), "rsub"))
