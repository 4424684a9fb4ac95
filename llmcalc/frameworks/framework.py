"""The registry record of a training framework: its name, its rules, and the functions that llmcalc calls.

Each framework is a folder beside this file with a `record.py` that fills one `Framework`; `registry.py` finds it by its
name. A record is read whenever options are listed, so it names functions by their files (`LazyFunction`), which are
imported when a function is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ..evidence import FrameworkEvidence
from ..frozen import frozen
from ..parallel.layout_rules import LayoutRules
from .launch.launch_types import Launch, LaunchFile, Plugin

if TYPE_CHECKING:
    from ..device_memory.cuda_runtime import CudaRuntime
    from ..device_memory.device_memory import DeviceMemory
    from ..device_memory.estimate import Memory
    from ..parallel.layout import Layout
    from ..parallel.layout_request import LayoutRequest
    from ..parallel.messages import GradientRules, Message
    from ..workload.execution import AttentionImplementation, CrossEntropy
    from ..workload.loaded_encoders import LoadedEncoders
    from .frozen_model import FrozenModel, SecondLoss
    from .peak_estimate import PeakEstimate


@frozen
class RunOnRanks:
    """A model's training run on several devices: its memory settings, layout, framework version and settings.

    memory: the model and its run.
    layout: the layout over the devices.
    version: the framework's version, a date or a tag; empty (default) for the newest known.
    framework_settings: the framework's own settings from a launch file; None (default) without one.
    frozen_model: a frozen copy of the model on the same devices; None (default) without one.
    encoders: use of encoders of images and sound that the run does not include; None (default) if they are not loaded.
    """

    memory: Memory
    layout: Layout
    version: str = ""
    framework_settings: Any = None
    frozen_model: FrozenModel | SecondLoss | None = None
    encoders: LoadedEncoders | None = None
    _recorded_ranks: dict[CudaRuntime, dict[Any, Any]] = field(default_factory=dict, repr=False, compare=False)
    _settings: dict[CudaRuntime, Any] = field(default_factory=dict, repr=False, compare=False)

    def recorded_ranks(self, cuda_runtime: CudaRuntime) -> dict[Any, Any]:
        """Returns the cache of recorded passes for this CUDA runtime, which ranks with equal passes share.

        Passes do not depend on the allocator, so runs with and without expandable segments share them.
        """
        return self._recorded_ranks.setdefault(replace(cuda_runtime, has_expandable_segments=False), {})

    def settings_on(self, cuda_runtime: CudaRuntime, make_settings: Callable[[], Any]) -> Any:
        """Returns the framework's settings for an accelerator, which `make_settings` creates at the first call."""
        if cuda_runtime not in self._settings:
            self._settings[cuda_runtime] = make_settings()
        return self._settings[cuda_runtime]


@frozen
class LazyFunction:
    """A function whose file is imported when the function is first called.

    package: the package of the file, `__package__` in a record. location: `file:function`.
    """

    package: str
    location: str

    @property
    def function(self) -> Callable[..., Any]:
        """The function, imported from the file."""
        file_name, _, function_name = self.location.partition(":")
        imported_function: Callable[..., Any] = getattr(import_module(f".{file_name}", self.package), function_name)
        return imported_function

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)


class EstimateErrors(NamedTuple):
    """The largest relative errors of a framework's estimate of a rank's peak memory.

    relative_error_below: how much less a layout may need, as a share of the estimate. relative_error_above: how much
        more it may need.

    `python -m tests.studies.walk_errors` measures a grid of models, lengths and layouts; the largest that a layout
    needed more is 0.66 of the estimate, of small layers, whose blocks do not fill the allocator's segments. The rank of
    any stage of a pipeline needed at most 0.48 more than the estimate of its stage.
    relative_error_between_stages: how much more a stage's rank may need than the replay of another stage of its layout
        and the
    difference of their estimates, as a share of its estimate: what one rank needs beyond its estimate, others need too.
    The largest of the grid is 0.13; of small layers (Qwen3 0.6B, 8,192 tokens, 8 stages) it was 0.29.
    """

    relative_error_below: float
    relative_error_above: float = 1.0
    relative_error_between_stages: float = 0.4

    def lower_bound(self, estimated_bytes: int) -> int:
        """Returns a lower bound of the memory, in bytes, from the estimated peak and the largest errors."""
        return estimated_bytes - int(self.relative_error_below * estimated_bytes)

    def upper_bound(self, estimated_bytes: int) -> int:
        """Returns an upper bound of the memory, in bytes, from the estimated peak and the largest errors."""
        return estimated_bytes + int(self.relative_error_above * estimated_bytes)

    def upper_bound_of_stage(self, estimated_bytes: int, replayed_stage_estimate: int, replayed_bytes: int) -> int:
        """Returns an upper bound of a rank's memory in bytes, from the replay of another pipeline stage.

        estimated_bytes, replayed_stage_estimate: the estimated peaks of both stages.
        """
        expected_bytes = replayed_bytes + estimated_bytes - replayed_stage_estimate
        margin_bytes = int(self.relative_error_between_stages * estimated_bytes)
        return min(self.upper_bound(estimated_bytes), expected_bytes + margin_bytes)


RankMemoryOf: TypeAlias = "Callable[[RunOnRanks, int, CudaRuntime], DeviceMemory]"
"""Returns the memory of one rank. Raises `InputError` for runs that the framework lacks or that are not modelled."""


def _accept_every_run(memory_estimate: Memory, framework_version: str) -> None:
    """Accepts every training run: the default of the record's field `check_run`."""


def _accept_every_layout(memory_estimate: Memory, layout: Layout) -> None:
    """Accepts every parallel layout: the default of the record's field `check_layout`."""


@frozen
class Framework:
    """The registry record of one training framework.

    name: the word of `--framework`. title: its name on screens.
    rank_memory: the memory of one rank in training, replayed.
    tensor_bytes: the bytes of tensors of one rank in training, which are known before it is replayed on an allocator;
        None (default) where they are known only afterwards.
    estimate: the memory of any rank of any layout, without an allocator, for plans.
    estimate_errors: the largest errors of that estimate.
    gradient_rules: how gradients are summed over replicas.
    layout_rules: which layouts a search tries.
    messages_of_rank: the messages of a rank that its replay records, or None where it records none; None (default) for
        a framework whose messages all follow from placements and `gradient_rules`.
    default_attention: the attention implementation that runs where none is chosen; None (default) for that of the
        settings.
    has_two_world_communicators: whether NCCL has two communicators of all ranks; by default one for each axis of the
        mesh.
    has_known_communicators: whether the communicators are known at all; true by default.
    document_values: values of a run in its JSON document that differ from the settings.
    check_run: refuses a run that the framework has on no layout.
    check_layout: refuses a layout that the framework has not for a run, without a replay.
    evidence: (layout, whether it trains) → the witnesses of its runs; None (default) where they are untested.
    implying_options: the options that imply it where no framework is named, in words, and a test of a layout's options.
    launcher: the program that starts a run's processes, where scripts name it; empty for none of its own.
    starts_on_every_device: whether the launcher starts a process on each visible device, if no number is stated.
    launch_file: the kind of launch file that is its own; None (default) for none.
    plugin: how files of accelerate and of the Trainer ask for it; None (default) where they cannot.
    replays_every_micro_batch: whether each micro-batch of a pipeline is replayed, however many; false by default.
    replays_stages_alone: whether the ranks of a pipeline's stages are replayed without what other stages have recorded,
        so that several processes may replay them; false by default.
    runs_inference: whether it runs passes without gradients; false by default.
    selective_recompute: the value of `--recompute` that `selective` stands for.
    time_stack_name: (launch file or None, whether torch.compile runs, whether ranks may exchange tokens of experts) →
        the name of the stack that times its runs (`presets/timing/stacks.toml`).
    micro_batch_group: (pipeline ranks, micro-batches of a step) → micro-batches that pass a chunk before the turn
        of the next chunk in an interleaved schedule; None (default) for as many as ranks.
    overlapped_parallel_groups: launch file → groups whose messages its settings send beside products (`dp`, `weights`,
        `tp`, `ep`), or None where it does not say; None (default) for those of the stack.
    recomputed_modules: launch file → Megatron-Core's names of modules that run again by themselves; None (default) for
        none.
    recomputed_layers: launch file → share of the layers that run again as a whole, where the options of the run do not
        state it; None (default) for none.
    product_format: own settings → number format of matrix products, `bf16`, `fp8` or `fp4`; None (default) for the
        format of the run's precision.
    low_precision_formats: training precisions with products in 8 or 4 bits whose memory it has; none by default.
    library_losses: values of `--cross-entropy` that its own library has, beside those of all frameworks; none by
        default.
    loss: the value of `--cross-entropy` that runs where none is chosen; None (default) for that of the settings.
    """

    name: str
    title: str
    rank_memory: RankMemoryOf
    estimate: Callable[[Memory], PeakEstimate]
    estimate_errors: EstimateErrors
    gradient_rules: Callable[[], GradientRules]
    layout_rules: LayoutRules
    tensor_bytes: Callable[[RunOnRanks, int, CudaRuntime], int] | None = None
    messages_of_rank: Callable[[RunOnRanks, int], list[Message] | None] | None = None
    default_attention: AttentionImplementation | None = None
    has_two_world_communicators: bool = False
    has_known_communicators: bool = True
    document_values: Callable[[RunOnRanks], Mapping[str, Any]] = lambda training_run: {}
    check_run: Callable[[Memory, str], None] = _accept_every_run
    check_layout: Callable[[Memory, Layout], None] = _accept_every_layout
    evidence: Callable[[Layout, bool], FrameworkEvidence] | None = None
    implying_options: tuple[str, Callable[[LayoutRequest], bool]] | None = None
    launcher: str = ""
    starts_on_every_device: bool = False
    launch_file: LaunchFile | None = None
    plugin: Plugin | None = None
    replays_every_micro_batch: bool = False
    replays_stages_alone: bool = False
    runs_inference: bool = False
    selective_recompute: str = "attention"
    time_stack_name: Callable[[Launch | None, bool, bool], str] = lambda launched_run, is_compiled, exchanges_tokens: (
        "torch-compile" if is_compiled else "torch"
    )
    micro_batch_group: Callable[[int, int], int] | None = None
    overlapped_parallel_groups: Callable[[Launch], frozenset[str] | None] | None = None
    recomputed_modules: Callable[[Launch], frozenset[str]] | None = None
    recomputed_layers: Callable[[Launch], float] | None = None
    product_format: Callable[[Any], str] | None = None
    low_precision_formats: frozenset[str] = frozenset()
    library_losses: frozenset[str] = frozenset()
    loss: CrossEntropy | None = None

    def evidence_for(self, layout: Layout, is_training: bool) -> FrameworkEvidence:
        """Returns the evidence (tests and measurements) for results with this layout, in training or inference."""
        return FrameworkEvidence(self.name) if self.evidence is None else self.evidence(layout, is_training)

    def is_implied(self, layout_request: LayoutRequest) -> bool:
        """Whether the typed layout options exist only in this framework, so that users need not name it."""
        return self.implying_options is not None and self.implying_options[1](layout_request)
