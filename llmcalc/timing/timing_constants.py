"""The constants in `presets/timing`, with their sources, evidence and measured test rows."""

from __future__ import annotations

from datetime import date
from functools import cache, lru_cache
from typing import Any, Literal, TypeAlias

from pydantic import Field

from ..record import Record
from ..sources.files import parse_toml, read_text
from ..sources.presets import presets_dir

DatasheetShare: TypeAlias = float
"""The fraction of a datasheet figure that software reaches, from 0 to 1."""

FigureEvidence: TypeAlias = Literal["profiled", "measured", "assumed"]


class ConstantSource(Record):
    """The source of several constants of an accelerator generation.

    gives: names of the fields, separated by commas.
    evidence: `profiled` by kernel tables of the generation, `measured` on runs, or `assumed`.
    source: where they come from.
    rows: number of measured rows that they were tested on.
    checked: the date on which the source was read.
    """

    gives: str
    evidence: FigureEvidence
    source: str
    rows: int = Field(ge=0)
    checked: date

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(field_name.strip() for field_name in self.gives.split(","))


class AcceleratorGeneration(Record):
    """The efficiencies of an accelerator generation; comments in the TOML file explain each field."""

    name: str
    like: str = ""
    accelerators: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    vendors: tuple[str, ...] = ()
    profiled: tuple[str, ...] = ()
    products: dict[str, DatasheetShare]
    sustained: dict[str, DatasheetShare]
    float32_sums: DatasheetShare
    memory: DatasheetShare
    cache: DatasheetShare
    link: DatasheetShare
    nic: DatasheetShare
    attention: tuple[DatasheetShare, float]
    attention_backward: tuple[DatasheetShare, float]
    older_attention: dict[str, DatasheetShare]
    block_quantized: float = Field(ge=0, le=1)
    vector_read: float = Field(ge=0)
    scan: DatasheetShare
    half_rate_depth: dict[str, float]
    tile_rows: int = Field(gt=0)
    block_scaled: tuple[DatasheetShare, float, DatasheetShare]
    decoded_experts: float = Field(ge=0)
    tiles: tuple[tuple[int, int, DatasheetShare], ...]
    filled: DatasheetShare
    matrix_units: bool
    unaligned: tuple[DatasheetShare, DatasheetShare]
    kernel_start: float
    launch_gap: float
    host_launch: float = Field(gt=0)
    tested_stacks: tuple[str, ...] = ()
    latency: float
    far_latency: float
    ring_protocols: tuple[tuple[DatasheetShare, float, float], ...] = Field(min_length=1)
    sources: tuple[ConstantSource, ...] = Field(min_length=1)


IDENTITY_FIELDS = frozenset({"name", "like", "accelerators", "capabilities", "vendors", "profiled", "sources"})
"""Fields of an accelerator generation that are not figures."""

TABLE_FIELDS = ("products", "sustained", "older_attention", "depth", "launches_by_verb")
"""Figures that are tables; a generation or stack inherits the entries that it does not state, unless its table is
empty.
"""


@cache
def _read_tables(file_name: str) -> dict[str, dict[str, Any]]:
    preset_path = presets_dir() / "timing" / file_name
    return parse_toml(read_text(preset_path), preset_path.name)


def _with_base_table(tables_by_name: dict[str, dict[str, Any]], table_name: str) -> dict[str, Any]:
    """Returns a table completed with values of the table that its field `like` names."""
    named_table = tables_by_name[table_name]
    base_table = _with_base_table(tables_by_name, named_table["like"]) if named_table.get("like") else {}
    inherited_values = {
        field_name: field_value
        for field_name, field_value in base_table.items()
        if field_name not in IDENTITY_FIELDS or field_name == "sources"
    }
    return {**_merged_figures(inherited_values, named_table), "name": table_name}


def _merged_figures(base_figures: dict[str, Any], figures: dict[str, Any]) -> dict[str, Any]:
    """Returns constants, completed with those of the base table; nested tables (`TABLE_FIELDS`) are merged."""
    merged_tables = {
        field_name: {**base_figures[field_name], **figures[field_name]}
        for field_name in TABLE_FIELDS
        if figures.get(field_name) and field_name in base_figures
    }
    return {**base_figures, **figures, **merged_tables}


@cache
def accelerator_generations() -> dict[str, AcceleratorGeneration]:
    """Returns every accelerator generation by name."""
    tables_by_name = _read_tables("generations.toml")
    return {
        generation_name: AcceleratorGeneration(**_with_base_table(tables_by_name, generation_name))
        for generation_name in tables_by_name
    }


class SoftwareStack(Record):
    """The efficiencies of a software stack that runs a model; comments in the TOML file explain each field.

    name: its name, for `--stack`.
    title: its name on screens.
    phase: whether it trains or runs inference.
    is_server: whether it is a server.
    is_combinable: whether another stack can have its own figures too (`combined_stack`).
    versions: versions of the software that the figures hold for.
    rows, sets: number of measured rows that the figures were tested on, and of their sources.
    source: where the figures come from.
    """

    name: str
    title: str
    phase: Literal["training", "inference"]
    like: str = ""
    is_combinable: bool = False
    is_server: bool = False
    vendors: tuple[str, ...] = ()
    supported_vendors: tuple[str, ...] = ()
    fuses_elementwise: bool = True
    regathers_inputs: bool = True
    adds_experts_before_reduction: bool = False
    attention: Literal["flash", "cudnn", "fa2", "triton", "scores"] = "flash"
    uses_torch_attention: bool = False
    has_wide_single_key_kernel: bool = False
    hidden_share_by_group: dict[str, float] = {}
    hides_all_reduces: bool = False
    overlapped_stages: tuple[Literal[0, 1, 2, 3], ...] = (0, 1, 2, 3)
    bucket_parameters: float | Literal["layer"] = "layer"
    bucket_parameters_per_rank: float = 0.0
    all_reduces_gradients: bool = False
    keeps_weights_in_pipelines: bool = False
    gradient_bytes: float = 4.0
    sends_gradient_buffers: bool = False
    optimizer_bytes: float = 30.0
    optimizer_flops: float = 0.0
    bytes_per_logit: float = 6.0
    gradient_bytes_per_logit: float | None = None
    loss_bytes: dict[str, tuple[float, float]] = {}
    product_rate_share: DatasheetShare = 1.0
    pads_rows: bool = False
    rate_share_by_format: dict[str, DatasheetShare] = {}
    sums_in_16_bits: bool = False
    quantized_product_format: Literal["bf16", "int8"] = "bf16"
    reads_before_products: bool = False
    least_tokens_to_copy_weights: int = Field(0, ge=0)
    has_vector_kernels: bool = False
    prompt_batch_tokens: int = Field(0, ge=0)
    pipelines_prompts: bool = False
    runs_float32_in_16_bits: bool = False
    four_bit_scheme: str | None = None
    expert_weight_rate_share: DatasheetShare = 1.0
    prompt_expert_weight_rate_share: DatasheetShare | None = None
    expert_rate_share_by_format: dict[str, DatasheetShare] = {}
    expert_wait_by_format: dict[str, float] = {}
    product_wait_by_format: dict[str, float] = {}
    fuses_expert_activation: bool = False
    launches_experts_separately: bool = False
    gathers_tokens: bool = False
    casts_before_gathering: bool = False
    casts_gathered_inputs: bool = False
    most_gathering_ranks: int = Field(0, ge=0)
    exchange_option: str = ""
    sends_each_copy: bool = False
    exchange_stack: str = ""
    moves_all_rows: bool = False
    fuses_gates: bool = False
    runs_layers_on_host: bool = False
    slowdown_of_busiest_rank: float = 0.0
    padded_sparse_heads: int = Field(0, ge=0)
    launch_factor: float = 1.0
    least_kernel_gap_seconds: float = 0.0
    launches_by_verb: dict[str, tuple[float, float]] = {}
    host_seconds_per_kernel: float = 0.0
    host_seconds_per_prompt_kernel: float = 0.0
    host_seconds_per_expert: dict[str, float] = {}
    prompt_graph_tokens: int = Field(0, ge=0)
    has_graphs_of_text_models_only: bool = False
    casts_inputs: bool = False
    has_tuned_products: bool = False
    captured_modules: tuple[Literal["attn", "mamba", "mlp", "moe", "moe_router"], ...] = ()
    has_library_layers: bool = False
    copies_gathered_tokens: bool = False
    host_seconds_per_dtensor_operation: float = 0.0
    dtensor_operations_by_kind: dict[str, tuple[float, float]] = {}
    fastest_host_share: DatasheetShare = 1.0
    host_seconds_per_step: float = 0.0
    hides_host: bool = False
    steps_ahead: int = Field(0, ge=0)
    host_seconds_per_sequence: float = 0.0
    first_token_seconds: float = 0.0
    latency_factor: float = 1.0
    layer_wait_seconds: float = 0.0
    hides_stage_messages: bool = False
    scatters_stage_messages: bool = False
    sends_before_receiving: bool = False
    exchange_wait_seconds: float = 0.0
    unaligned_head_slowdown: float = 1.0
    keeps_unaligned_sizes: bool = False
    reads_window_masks: bool = False
    copies_cache_per_token: bool = False
    copies_key_heads: bool = False
    repeated_expert_share: DatasheetShare = 0.0
    mixed_steps: bool = True
    stops_early: bool = False
    host_update_seconds_per_parameter: float = 0.0
    offloaded_update_seconds_per_parameter: float = 2e-9
    accesses_by_verb: dict[str, float] = {}
    expert_bias_bytes_per_element: tuple[float, float] = (0.0, 0.0)
    adapter_bytes_per_element: dict[Literal["input", "output"], tuple[float, float]] = {}
    versions: str
    rows: int = Field(ge=0)
    sets: int = Field(ge=0)
    source: str

    def check_fields(self) -> None:
        if (self.rows == 0) != (self.sets == 0):
            raise ValueError(f"{self.name}: rows and sets; expected both or none")
        if self.host_seconds_per_expert and "bf16" not in self.host_seconds_per_expert:
            raise ValueError(
                f"{self.name}: host_seconds_per_expert has no bf16; expected its seconds, which other formats use"
            )

    @property
    def on_fastest_host(self) -> SoftwareStack | None:
        """The software stack with the launch time of the fastest measured host CPU, for the low end of a range.

        None for a stack whose launch times were measured on hosts of one speed.
        """
        if self.fastest_host_share == 1.0:
            return None
        return self.model_copy(
            update={
                figure_name: getattr(self, figure_name) * self.fastest_host_share
                for figure_name in ("host_seconds_per_kernel", "host_seconds_per_dtensor_operation")
            }
        )

    def gathers_on(self, replica_count: int, expert_ranks: int) -> bool:
        """Whether expert ranks all-gather the tokens of all attention replicas, in place of an all-to-all."""
        exceeds_gathering_ranks = bool(self.most_gathering_ranks) and expert_ranks > self.most_gathering_ranks
        return self.gathers_tokens and not (replica_count > 1 and exceeds_gathering_ranks)

    @property
    def is_eager(self) -> bool:
        """Whether the host launches every kernel of a layer by itself, except those that a library fuses."""
        return self.host_seconds_per_kernel > 0 and not self.has_library_layers

    def hidden_share(self, process_group: str, message_kind: str = "") -> float:
        """Returns the fraction of a group's messages that computation hides; for gathered weights, by default dp's
        fraction.

        message_kind: the kind of the message, such as `all_reduce`; default any.
        """
        group_share = self.hidden_share_by_group.get(
            process_group, self.hidden_share_by_group.get("dp", 0.0) if process_group == "weights" else 0.0
        )
        is_exposed = process_group == "tp" and message_kind == "all_reduce" and not self.hides_all_reduces
        return min(group_share, 0.0) if is_exposed else group_share


@cache
def software_stacks() -> dict[str, SoftwareStack]:
    """Returns name → software stack, for every software stack that `--stack` accepts."""
    tables_by_name = _read_tables("stacks.toml")
    return {stack_name: SoftwareStack(**_with_base_table(tables_by_name, stack_name)) for stack_name in tables_by_name}


DESCRIPTION_FIELDS = IDENTITY_FIELDS | {
    "title",
    "phase",
    "is_combinable",
    "exchange_stack",
    "versions",
    "rows",
    "sets",
    "source",
}
"""Fields of a software stack that are not figures."""


EXCHANGE_FIGURES = frozenset({"sends_each_copy", "gathers_tokens"})
"""Figures about the exchange of experts' tokens; a software stack that states one replaces the inherited one."""


MAX_SETTINGS = 3
"""Largest number of settings in a software stack's combined name."""


def _base_stack_name(stack_name: str) -> str:
    """Returns the last stack in the chain of `like` fields, from which a stack inherits its constants."""
    base_name = _read_tables("stacks.toml")[stack_name].get("like")
    return _base_stack_name(base_name) if base_name else stack_name


def _can_combine_stacks(first_stack_name: str, setting_names: list[str]) -> bool:
    """Whether these settings can be combined with the first stack: same software and phase, distinct, one exchange."""
    stacks, tables_by_name = software_stacks(), _read_tables("stacks.toml")
    stack_names = [first_stack_name, *setting_names]
    if (
        len(setting_names) > MAX_SETTINGS
        or len(set(stack_names)) < len(stack_names)
        or not all(stack_name in stacks for stack_name in stack_names)
    ):
        return False
    exchange_names = [
        name for name in stack_names if stacks[name].is_combinable and EXCHANGE_FIGURES & tables_by_name[name].keys()
    ]
    return len(exchange_names) <= 1 and all(
        stacks[stack_name].is_combinable
        and stacks[stack_name].phase == stacks[first_stack_name].phase
        and _base_stack_name(stack_name) == _base_stack_name(first_stack_name)
        for stack_name in setting_names
    )


@lru_cache(maxsize=64)
def combined_stack(stack_name: str) -> SoftwareStack | None:
    """Returns the software stack of a name `STACK+SETTING`: the stack with the settings' constants.

    None where a name is unknown, where one after the first does not combine with others or is of another phase or
    software, and for several exchanges of experts' tokens. No row tests a combination.
    """
    base_stack_name, *setting_names = stack_name.split("+")
    stacks, tables_by_name = software_stacks(), _read_tables("stacks.toml")
    if not _can_combine_stacks(base_stack_name, setting_names):
        return None
    stack = stacks[base_stack_name]
    for setting_name in setting_names:
        setting_stack, setting_table = stacks[setting_name], tables_by_name[setting_name]
        setting_figures = {
            figure_name: figure_value
            for figure_name, figure_value in setting_table.items()
            if figure_name not in DESCRIPTION_FIELDS
        }
        if not stack.exchange_stack:
            exchange_stack = ""
        elif EXCHANGE_FIGURES & setting_table.keys():
            exchange_stack = f"{stack.name}+{setting_stack.exchange_stack}"
        else:
            exchange_stack = f"{stack.exchange_stack}+{setting_name}"
        description_fields = {
            "name": f"{stack.name}+{setting_name}",
            "title": f"{stack.title}, {setting_stack.title.partition(' ')[2]}",
            "exchange_stack": exchange_stack,
            "rows": 0,
            "sets": 0,
        }
        stack = SoftwareStack(**{**_merged_figures(stack.model_dump(), setting_figures), **description_fields})
    return stack
