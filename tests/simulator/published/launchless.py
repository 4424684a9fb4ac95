"""Opens the published kernel libraries where they are importable, so that their own Python runs on meta.

`install` replaces Triton by stand-ins whose launches do nothing. What a library's autograd.Function saves, and what its
Python allocates, then happens as written, without a GPU. CUDA extensions have stand-ins too: they do what their C++
does to memory, transcribed from its source. Everything that depends on a device is answered as an H100 would.

What torch.compile fuses makes its results and nothing else.

This changes `torch` for the whole process, so only a process of its own may call it. Nothing is fetched: `missing`
names the libraries that are not importable.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import MagicMock

LIBRARIES = ("mamba_ssm", "causal_conv1d", "fla", "mlstm_kernels", "lightning_attn", "jetai", "einops")
"""The libraries, and einops, which they import."""

WITHOUT_INIT = (
    "mamba_ssm",
    "fla",
    "fla.ops",
    "fla.layers",
    "mlstm_kernels",
    "mlstm_kernels.torch",
    "mlstm_kernels.torch.chunkwise",
    "lightning_attn",
    "lightning_attn.ops",
    "lightning_attn.ops.triton",
    "jetai",
    "jetai.modeling",
    "jetai.modeling.hf",
)
"""Packages whose own `__init__` imports models and more; their modules are imported one by one instead."""

MULTIPROCESSORS, SHARED_MEMORY = 132, 232448


def missing() -> list[str]:
    """The libraries that cannot be imported here."""
    return [name for name in LIBRARIES if importlib.util.find_spec(name) is None]


# --- Triton ----------------------------------------------------------------------------------------------------------


class Kernel:
    """A kernel whose launches do nothing."""

    def __init__(self, fn: Any) -> None:
        self.fn, self.__name__ = fn, getattr(fn, "__name__", "kernel")
        self.arg_names: list[str] = []
        self.cache: dict[Any, Any] = {}
        self.configs: list[Any] = []
        self.best_config: Any = types.SimpleNamespace(kwargs={})

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *arguments, **named: None

    def __call__(self, *arguments: Any, **named: Any) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        return MagicMock()


class Autotuner(Kernel):
    """The class that fla's cached autotuner derives from."""

    def __init__(self, fn: Any, names: Any, configs: Sequence[Any] = (), *arguments: Any, **named: Any) -> None:
        super().__init__(fn)
        self.configs, self.user_defined_pre_hook, self.pre_hook = list(configs), True, None
        if self.configs:
            self.best_config = self.configs[0]


class Config:
    def __init__(self, kwargs: dict[str, Any], **how: Any) -> None:
        self.kwargs, self.num_warps, self.num_stages = kwargs, how.get("num_warps", 4), how.get("num_stages", 2)


class Constexpr:
    def __init__(self, value: Any = None) -> None:
        self.value = value


def jit(fn: Any = None, **how: Any) -> Any:
    return Kernel if fn is None else Kernel(fn)


def autotune(configs: Sequence[Any] = (), **how: Any) -> Callable[[Any], Any]:
    """The first configuration is the one that runs."""

    def wrap(fn: Any) -> Any:
        fn.configs = list(configs)
        fn.best_config = fn.configs[0] if fn.configs else types.SimpleNamespace(kwargs={})
        return fn

    return wrap


class StandIn(types.ModuleType):
    """A module in which every name is defined."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = MagicMock()
        setattr(self, name, made)
        return made


def _module(name: str, **attributes: Any) -> Any:
    made = StandIn(name)
    made.__path__ = []
    made.__spec__ = None
    for key, value in attributes.items():
        setattr(made, key, value)
    sys.modules[name] = made
    return made


def _power_of_two(n: int) -> int:
    return 1 << max(int(n) - 1, 0).bit_length()


def _triton() -> None:
    language = _module("triton.language", constexpr=Constexpr)
    language.math, language.extra = _module("triton.language.math"), _module("triton.language.extra")
    for name in ("triton.language.extra.libdevice", "triton.language.extra.cuda"):
        _module(name)
    target = types.SimpleNamespace(backend="cuda", arch=90, warp_size=32)
    properties = {"multiprocessor_count": MULTIPROCESSORS, "max_shared_mem": SHARED_MEMORY}
    active = types.SimpleNamespace(
        get_current_target=lambda: target,
        utils=types.SimpleNamespace(get_device_properties=lambda index: properties),
    )
    runtime = _module("triton.runtime", driver=types.SimpleNamespace(active=active))
    _module("triton.runtime.autotuner", Autotuner=Autotuner)
    _module("triton.runtime.driver", active=active)
    _module("triton.runtime.jit", JITFunction=Kernel, KernelInterface=Kernel)
    for name in ("runtime.cache", "compiler", "compiler.compiler", "tools", "tools.tensor_descriptor", "testing"):
        _module(f"triton.{name}")
    _module(
        "triton",
        __version__="3.7.1",
        jit=jit,
        autotune=autotune,
        heuristics=lambda *_: lambda fn: fn,
        Config=Config,
        cdiv=lambda a, b: -(-a // b),
        next_power_of_2=_power_of_two,
        language=language,
        runtime=runtime,
        set_allocator=lambda *_: None,
    )


class Everywhere:
    """The shared memory of every device, also of one without a number, as meta has."""

    def __getitem__(self, index: Any) -> int:
        return SHARED_MEMORY


def _device(torch: Any) -> None:
    """An H100, where a library asks."""
    named = types.SimpleNamespace(
        major=9,
        minor=0,
        multi_processor_count=MULTIPROCESSORS,
        shared_memory_per_block_optin=SHARED_MEMORY,
        shared_memory_per_block=49152,
        name="NVIDIA H100",
    )
    torch.cuda.device = lambda *_: contextlib.nullcontext()
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    torch.cuda.get_device_name = lambda *_: named.name
    torch.cuda.get_device_properties = lambda *_: named
    torch.cuda.current_device, torch.cuda.device_count = (lambda *_: 0), (lambda: 1)
    torch.compile = compiled
    torch.nn.functional.logsigmoid = log_sigmoid(torch)


def log_sigmoid(torch: Any) -> Any:
    """The function as CUDA has it: its buffer is empty there, and as large as the input elsewhere.

    Source: pytorch, aten/src/ATen/native/cuda/ActivationLogSigmoidKernel.cu.
    """

    class LogSigmoid(torch.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return torch.empty_like(x)

        @staticmethod
        def backward(ctx: Any, dy: Any) -> Any:
            return torch.empty_like(ctx.saved_tensors[0])

    return LogSigmoid.apply


def compiled(fn: Any = None, **how: Any) -> Any:
    """A function whose results alone are made under the modes that are on."""
    if fn is None:
        return compiled
    import torch
    from torch.utils._python_dispatch import _disable_current_modes
    from torch.utils._pytree import tree_map_only

    def run(*arguments: Any, **named: Any) -> Any:
        with _disable_current_modes():
            made = fn(*arguments, **named)
        return tree_map_only(torch.Tensor, torch.empty_like, made)

    return run


# --- CUDA extensions, from their C++ ---------------------------------------------------------------------------------


def scan_forward(
    u: Any, delta: Any, a: Any, b: Any, c: Any, d: Any, z: Any, delta_bias: Any, softplus: Any
) -> tuple[Any, ...]:
    """Source: state-spaces/mamba csrc/selective_scan/selective_scan.cpp:227, `selective_scan_fwd`."""
    import torch

    out_z = None if z is None else torch.empty_like(z)
    out = torch.empty_like(delta)
    chunks = -(-u.shape[2] // 2048)
    x = torch.empty(u.shape[0], u.shape[1], chunks, a.shape[1] * 2, dtype=a.dtype, device=u.device)
    return (out, x) if z is None else (out, x, out_z)


def scan_backward(
    u: Any,
    delta: Any,
    a: Any,
    b: Any,
    c: Any,
    d: Any,
    z: Any,
    delta_bias: Any,
    dout: Any,
    x: Any,
    out: Any,
    dz: Any,
    softplus: Any,
    recompute_out_z: bool,
) -> tuple[Any, ...]:
    """Source: state-spaces/mamba csrc/selective_scan/selective_scan.cpp:338, `selective_scan_bwd`."""
    import torch

    if z is not None and dz is None:
        dz = torch.empty_like(z)
    out_z = torch.empty_like(out) if z is not None and recompute_out_z else None
    du, ddelta, da = torch.empty_like(u), torch.empty_like(delta), torch.zeros_like(a)
    db = torch.zeros_like(b, dtype=torch.float32)
    dc = torch.zeros_like(c, dtype=torch.float32)
    dd = None if d is None else torch.zeros_like(d)
    dbias = None if delta_bias is None else torch.zeros_like(delta_bias)
    result = [du, ddelta, da, db.to(b.dtype), dc.to(c.dtype), dd, dbias]
    return (*result, *([] if z is None else [dz]), *([out_z] if recompute_out_z else []))


def conv_backward(x: Any, weight: Any, bias: Any, dout: Any, *rest: Any, **named: Any) -> None:
    """Source: Dao-AILab/causal-conv1d csrc/causal_conv1d.cpp, `causal_conv1d_bwd`: it copies a gradient in another
    order.
    """
    channels_last = x.stride(1) == 1 and x.stride(2) > 1
    if not channels_last and dout.stride(2) != 1:
        dout = dout.contiguous()
    if channels_last and dout.stride(1) != 1:
        dout = dout.transpose(-1, -2).contiguous().transpose(-1, -2)


def install() -> None:
    """Replaces Triton, the device and the CUDA extensions. The libraries can be imported afterwards."""
    warnings.filterwarnings("ignore")
    os.environ["FLA_DISABLE_BACKEND_DISPATCH"] = "1"
    import torch
    import torch._dynamo
    import torch._inductor
    import torch._inductor.runtime.triton_heuristics
    from torch.utils import _triton as torch_triton

    torch_triton.has_triton_package()  # remembers that there is none
    _triton()
    _device(torch)
    _module("selective_scan_cuda", fwd=scan_forward, bwd=scan_backward)
    for name in ("causal_conv1d_cuda", "causal_conv1d.causal_conv1d_varlen"):
        _module(name)
    for name in WITHOUT_INIT:
        top, *inner = name.split(".")
        spec = importlib.util.find_spec(top) if top not in sys.modules else None
        root = sys.modules[top].__path__[0] if spec is None else (spec.submodule_search_locations or [""])[0]
        made: Any = types.ModuleType(name)
        made.__version__, made.__path__ = "0", [os.path.join(root, *inner)]
        sys.modules[name] = made
    import fla.utils._device as device

    device.get_all_max_shared_mem = Everywhere
    import causal_conv1d.cpp_functions as conv

    conv._causal_conv1d_fwd_cpp = lambda **named: None
    conv._causal_conv1d_bwd_cpp = conv_backward
