"""The report of `llmcalc compare`: quantities as rows, models as columns, in blocks that fit the width.

CSV has one row per model instead, so that each column has one unit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from .. import units
from ..components.base import Network
from ..sources.preset import Preset
from ..studies.compare import DENSE_BAND, ModelQuantities, StackShape
from ..studies.distinct_layers import distinct_layers
from .document import Column, Report, Row, Table, row, single_document_or_list, with_notes_below
from .formats import Format
from .formats.pipe import width_of_terminal
from .notes import cache_per_token_note, counted_noun, flops_per_token_note
from .summary import describe_part, model_data, norm_name, norm_placement_of, position_encodings, unique_texts

if TYPE_CHECKING:
    from ..studies.timed_run import TimedRun

TableLayout: TypeAlias = Literal["terminal", "columns", "rows"]
"""Layout of a comparison's tables: blocks that fit the terminal, one column per model, or one row per model."""

LAYOUT_BY_FORMAT: dict[Format, TableLayout] = {
    "table": "terminal",
    "json": "rows",
    "csv": "rows",
    "markdown": "columns",
}
"""Output format → layout of its tables."""

PresetQuantities: TypeAlias = tuple[Preset, ModelQuantities]

IN_BAND_MARK, ACTIVE_MARK = "*", "†"
BAND_NOTE = (
    f"{IN_BAND_MARK} h/L, rounded, is within {DENSE_BAND[0]} to {DENSE_BAND[1]}, as in most large dense decoders "
    "(GPT-3, Chinchilla, Llama): a convention, not an optimum"
)

WIDE_TERMINAL_COLUMNS = 112
"""Width of a terminal, in characters, from which on a list shows every quantity."""

MAX_COLUMNS = 12
"""Largest number of models in columns; more models are a row each."""

QuantityLine: TypeAlias = tuple[str, Callable[[ModelQuantities], str]]
"""A row of a comparison: (heading, function that writes a model's quantity)."""


def _tpot_range(timed_run: TimedRun | None) -> str:
    """Returns the range of the seconds per decoded token. Imports the timing modules only with an accelerator."""
    if timed_run is None:
        return "–"
    from .time_estimate import tpot_text

    return tpot_text(timed_run)


class DecodingLoad(NamedTuple):
    """The load at which decoding is compared. hardware: the accelerator's title. user_count: concurrent sequences."""

    hardware: str
    user_count: int

    def data(self, model_quantities: ModelQuantities) -> dict[str, Any]:
        """Returns seconds per token and tokens/s as raw values; unknown values are null."""
        timed_run = model_quantities.decoding
        seconds_range: dict[str, Any] = (
            dict.fromkeys(("estimate", "low", "high")) if timed_run is None else timed_run.time_range.amount.as_data()
        )
        return {
            "users": self.user_count,
            "tpot": seconds_range["estimate"],
            "tpot_low": seconds_range["low"],
            "tpot_high": seconds_range["high"],
            "tokens_per_second": None if timed_run is None else timed_run.tokens_per_second,
        }

    def lines(self) -> tuple[QuantityLine, ...]:
        """Returns the table's rows of the time per token, with models as columns."""
        return (
            (f"TPOT, {counted_noun(self.user_count, 'user')}", lambda counts: _tpot_range(counts.decoding)),
            (
                "  tokens/s",
                lambda counts: "–" if counts.decoding is None else f"{counts.decoding.tokens_per_second:,.0f}",
            ),
        )

    def notes(self, compared_models: Sequence[PresetQuantities]) -> list[str]:
        """Returns a note on the software that runs each model, and notes on the weight formats of Ollama's tags."""
        names_by_software: dict[str, list[str]] = {}
        format_notes: list[str] = []
        for preset, model_quantities in compared_models:
            if model_quantities.decoding is not None:
                timed_run = model_quantities.decoding
                names_by_software.setdefault(timed_run.stack.title, []).append(preset.target or preset.display)
                format_notes += [f"{preset.target}: {note}" for note in timed_run.engine_notes]
        software_texts = list(names_by_software)
        if len(software_texts) > 1:  # that of most models stands first
            software_texts = [
                f"{title} ({', '.join(model_names)})"
                for title, model_names in sorted(
                    names_by_software.items(), key=lambda title_and_models: -len(title_and_models[1])
                )
            ]
        software_text = f" under {', '.join(software_texts)}" if software_texts else ""
        return [
            f"TPOT: a token of {counted_noun(self.user_count, 'user')} after {compared_models[0][1].seq:,} tokens on 1 "
            f"{self.hardware}{software_text}, with its range (llmcalc time says how sure); tokens/s of the estimate; "
            "– if weights and cache do not fit",
            *format_notes,
        ]


def report(
    compared_models: Sequence[PresetQuantities],
    layout: TableLayout = "terminal",
    width: int | None = None,
    decoding_load: DecodingLoad | None = None,
) -> Report:
    """Returns the answer as data (one document per model, in their order) and as tables no wider than the terminal.

    decoding_load: the load under which a token is timed; default none.
    """
    json_documents = single_document_or_list(
        [
            {"model": model_data(preset), "compare": _quantities_data(model_quantities, decoding_load)}
            for preset, model_quantities in compared_models
        ]
    )
    quantity_lines = _quantity_lines([model_quantities for _, model_quantities in compared_models], decoding_load)
    warnings = _position_warnings(compared_models)
    if layout == "rows":
        return Report(json_documents, [_raw_value_table(compared_models, decoding_load)], warnings=warnings)
    if len(compared_models) > MAX_COLUMNS:
        is_wide = layout == "columns" or (width_of_terminal() if width is None else width) >= WIDE_TERMINAL_COLUMNS
        return Report(
            json_documents, [_table_with_row_per_model(compared_models, is_wide, decoding_load)], warnings=warnings
        )
    if layout == "columns":
        model_blocks = [list(compared_models)]
    else:
        model_blocks = list(
            _model_blocks(compared_models, quantity_lines, width_of_terminal() if width is None else width)
        )
    tables = [_table_of_model_block(model_block, quantity_lines) for model_block in model_blocks]
    notes = [*_compare_notes(compared_models, decoding_load), *warnings]
    return Report(json_documents, with_notes_below(tables, notes))


def _model_blocks(
    compared_models: Sequence[PresetQuantities], quantity_lines: Sequence[QuantityLine], terminal_width: int
) -> Iterator[list[PresetQuantities]]:
    """Yields groups of models with columns that fit the width, about equally many per group."""
    label_width = 2 + max(len(row_label) for row_label, _ in quantity_lines)
    column_widths = [
        2
        + max(
            len(cell_text)
            for cell_text in (preset.display, *_cells_of_quantity_lines(model_quantities, quantity_lines))
        )
        for preset, model_quantities in compared_models
    ]
    models_per_block = max(1, len(compared_models))
    while models_per_block > 1 and any(
        label_width + sum(column_widths[first_model : first_model + models_per_block]) > terminal_width
        for first_model in range(0, len(compared_models), models_per_block)
    ):
        models_per_block -= 1
    block_count = -(-len(compared_models) // models_per_block)
    block_length = -(-len(compared_models) // block_count)
    for first_model in range(0, len(compared_models), block_length):
        yield list(compared_models[first_model : first_model + block_length])


def _table_of_model_block(model_block: Sequence[PresetQuantities], quantity_lines: Sequence[QuantityLine]) -> Table:
    table_columns = [Column("quantity", "", justify="left")] + [
        Column(preset.name, preset.display) for preset, _ in model_block
    ]
    cells_by_model = [_cells_of_quantity_lines(model_quantities, quantity_lines) for _, model_quantities in model_block]
    table_rows = [
        row(row_label.strip(), *cell_texts, depth=int(row_label.startswith(" ")))
        for (row_label, _), *cell_texts in zip(quantity_lines, *cells_by_model, strict=True)
        if any(cell_texts)
    ]
    return Table("", table_columns, table_rows)


def _cells_of_quantity_lines(model_quantities: ModelQuantities, quantity_lines: Sequence[QuantityLine]) -> list[str]:
    return [cell_text(model_quantities) for _, cell_text in quantity_lines]


def _text_per_stack(write_shape: Callable[[StackShape], str]) -> Callable[[ModelQuantities], str]:
    """Returns a function that joins a text of each stack: `12 / 24` if encoder and decoder differ."""
    return lambda quantities: " / ".join(unique_texts([write_shape(stack_shape) for stack_shape in quantities.shapes]))


def _ratio_text(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.2f}"


def _integer_text(integer: int | None) -> str:
    return "–" if integer is None else f"{integer:,}"


def aspect_text(aspect_ratio: float, is_in_band: bool) -> str:
    """Returns the aspect ratio h/L as text, marked if it is in the range of large dense decoders."""
    return f"{aspect_ratio:.1f}" + (f" {IN_BAND_MARK}" if is_in_band else "")


def _width_ratio_text(stack_shape: StackShape) -> str:
    return _ratio_text(stack_shape.feed_forward_ratio) + (f" {ACTIVE_MARK}" if stack_shape.mixture_of_experts else "")


def _heads_text(stack_shape: StackShape) -> str:
    return (
        "–"
        if stack_shape.num_attention_heads is None
        else f"{stack_shape.num_attention_heads} × {stack_shape.head_dim}"
    )


def _kv_heads_text(stack_shape: StackShape) -> str:
    query_heads, kv_heads = stack_shape.num_attention_heads, stack_shape.num_key_value_heads
    if query_heads is None:
        return "–"
    return "latent" if kv_heads is None else f"{kv_heads} ({Fraction(kv_heads, query_heads)})"


def _activation_text(stack_shape: StackShape) -> str:
    feed_forward = stack_shape.block.feed_forward
    return (feed_forward.activation() if isinstance(feed_forward, Network) else "") or "–"


def _quantity_lines(
    quantities: Sequence[ModelQuantities], decoding_load: DecodingLoad | None
) -> Sequence[QuantityLine]:
    """Returns the rows of parameters, FLOPs and cache, each in the largest unit in which no model is below 0.1."""
    parameter_scale = units.count_scale(10 * min(model_quantities.active for model_quantities in quantities))
    flops_scale = units.decimal_scale(
        10 * min(model_quantities.forward_flops_per_token for model_quantities in quantities), "FLOPs"
    )
    cache_sizes = [
        model_quantities.kv_bytes_per_token for model_quantities in quantities if model_quantities.kv_bytes_per_token
    ]
    cache_byte_scale = units.memory_scale(min(cache_sizes, default=0))
    whole_cache_sizes = [model_quantities.kv_bytes for model_quantities in quantities if model_quantities.kv_bytes]
    whole_cache_scale = units.memory_scale(min(whole_cache_sizes, default=0))
    has_windows = any(
        model_quantities.kv_bytes_per_token
        and model_quantities.kv_bytes != model_quantities.kv_bytes_per_token * model_quantities.seq
        for model_quantities in quantities
    )
    return (
        (
            f"parameters, {parameter_scale.name}" if parameter_scale.name else "parameters",
            lambda model_quantities: parameter_scale.write(model_quantities.parameters),
        ),
        ("  active per token", lambda model_quantities: parameter_scale.write(model_quantities.active)),
        *_SHAPE_LINES,
        (
            f"{flops_scale.name}/tok at {quantities[0].seq:,}",
            lambda model_quantities: flops_scale.write(model_quantities.forward_flops_per_token),
        ),
        (
            f"KV {cache_byte_scale.name} per token" if cache_sizes else "KV cache per token",
            lambda model_quantities: (
                "–"
                if model_quantities.kv_bytes_per_token is None
                else cache_byte_scale.write(model_quantities.kv_bytes_per_token)
            ),
        ),
        *(
            [
                (
                    f"KV {whole_cache_scale.name} at {quantities[0].seq:,}",
                    lambda model_quantities: (
                        "–" if model_quantities.kv_bytes is None else whole_cache_scale.write(model_quantities.kv_bytes)
                    ),
                )
            ]
            if has_windows
            else []
        ),
        *(decoding_load.lines() if decoding_load is not None else ()),
        *_STYLE_LINES,
    )


_SHAPE_LINES: tuple[QuantityLine, ...] = (
    ("layers L", _text_per_stack(lambda shape: str(shape.num_hidden_layers))),
    ("hidden size h", _text_per_stack(lambda shape: _integer_text(shape.hidden_size))),
    ("h / L", _text_per_stack(lambda shape: aspect_text(shape.aspect_ratio, shape.is_in_dense_band))),
    ("d_ff / h", _text_per_stack(_width_ratio_text)),
    ("heads × head_dim", _text_per_stack(_heads_text)),
    ("heads·head_dim / h", _text_per_stack(lambda shape: _ratio_text(shape.head_ratio))),
    ("kv heads (/ heads)", _text_per_stack(_kv_heads_text)),
    ("vocabulary", lambda quantities: _integer_text(quantities.vocab_size)),
    ("  of parameters", lambda quantities: units.percent(quantities.vocabulary_share)),
)
_STYLE_LINES: tuple[QuantityLine, ...] = (
    ("norm", _text_per_stack(lambda shape: norm_name(shape.block))),
    ("  placement", _text_per_stack(lambda shape: norm_placement_of(shape.block))),
    ("activation", _text_per_stack(_activation_text)),
    ("positions", lambda quantities: ", ".join(position_encodings(quantities.spec))),
)


def _compare_notes(compared_models: Sequence[PresetQuantities], decoding_load: DecodingLoad | None) -> list[str]:
    all_quantities = [model_quantities for _, model_quantities in compared_models]
    stack_shapes = [stack_shape for model_quantities in all_quantities for stack_shape in model_quantities.shapes]
    notes: list[str] = []
    if any(stack_shape.is_in_dense_band for stack_shape in stack_shapes):
        notes.append(BAND_NOTE)
    for preset, model_quantities in compared_models:
        if model_quantities.shape.mixture_of_experts:
            ffn_text = describe_part(model_quantities.shape.block.feed_forward, model_quantities.shape.hidden_size)
            notes.append(
                f"{ACTIVE_MARK} {preset.display}: d_ff is the active width, {ffn_text} = "
                f"{_integer_text(model_quantities.shape.feed_forward_width)}"
            )
    if any(model_quantities.encoder is not None for model_quantities in all_quantities):
        notes.append("encoder-decoders: encoder / decoder where the two differ; --sort goes by the decoder")
    for preset, model_quantities in compared_models:
        if len(distinct_layers(model_quantities.spec)) > len(model_quantities.shapes):
            kinds_text = ", ".join(
                f"{layer_count} {'of the base kind' if layer_kind == 'block' else layer_kind}"
                for layer_kind, layer_count in model_quantities.shape.layer_kinds.items()
            )
            notes.append(
                f"{preset.display}: layers differ ({kinds_text}); shape, norm and activation are those of the most "
                "frequent kind"
            )
    first_model = all_quantities[0]
    notes.append("vocabulary, of parameters: input and output weights, tied ones once")
    notes += decoding_load.notes(compared_models) if decoding_load is not None else []
    return [*notes, flops_per_token_note(first_model.seq), cache_per_token_note(first_model.dtype)]


def _position_warnings(compared_models: Sequence[PresetQuantities]) -> list[str]:
    """Returns a warning that names the models with fewer learned positions than the sequence has tokens."""
    sequence_tokens = compared_models[0][1].seq
    model_texts = [
        f"{preset.display} ({model_quantities.context_length:,})"
        for preset, model_quantities in compared_models
        if model_quantities.context_length is not None and model_quantities.context_length < sequence_tokens
    ]
    if model_texts:
        return [
            f"fewer learned positions than {sequence_tokens:,} tokens: {', '.join(model_texts)}; FLOPs are "
            f"extrapolated past the "
            "learned positions"
        ]
    return []


def _shape_data(stack_shape: StackShape) -> dict[str, Any]:
    return {
        "num_hidden_layers": stack_shape.num_hidden_layers,
        "layer_kinds": stack_shape.layer_kinds,
        "hidden_size": stack_shape.hidden_size,
        "aspect_ratio": stack_shape.aspect_ratio,
        "in_dense_band": stack_shape.is_in_dense_band,
        "feed_forward_width": stack_shape.feed_forward_width,
        "feed_forward_width_is": "active" if stack_shape.mixture_of_experts else "dense",
        "feed_forward_ratio": stack_shape.feed_forward_ratio,
        "num_attention_heads": stack_shape.num_attention_heads,
        "head_dim": stack_shape.head_dim,
        "head_ratio": stack_shape.head_ratio,
        "num_key_value_heads": stack_shape.num_key_value_heads,
        "kv_ratio": stack_shape.kv_ratio,
        "norm": norm_name(stack_shape.block),
        "norm_placement": norm_placement_of(stack_shape.block),
        "activation": _activation_text(stack_shape),
    }


def _quantities_data(model_quantities: ModelQuantities, decoding_load: DecodingLoad | None = None) -> dict[str, Any]:
    """Returns each model's JSON document with raw values.

    The shape is the shape of the stack before the head; `stacks` has both of an encoder-decoder.
    """
    return {
        "parameters": model_quantities.parameters,
        "active": model_quantities.active,
        "stack": "encoder" if model_quantities.spec.kind == "encoder" else "decoder",
        **_shape_data(model_quantities.shape),
        "position": position_encodings(model_quantities.spec),
        "vocab_size": model_quantities.vocab_size,
        "vocabulary_parameters": model_quantities.vocabulary_parameters,
        "vocabulary_share": model_quantities.vocabulary_share,
        "flops_per_token": model_quantities.forward_flops_per_token,
        "kv_bytes_per_token": model_quantities.kv_bytes_per_token,
        "kv_bytes": model_quantities.kv_bytes,
        "seq": model_quantities.seq,
        "pairs": "full",
        "dtype": model_quantities.dtype,
        **(decoding_load.data(model_quantities) if decoding_load is not None else {}),
        "stacks": {}
        if model_quantities.encoder is None
        else {"encoder": _shape_data(model_quantities.encoder), "decoder": _shape_data(model_quantities.shape)},
    }


def _table_with_row_per_model(
    compared_models: Sequence[PresetQuantities], is_wide: bool, decoding_load: DecodingLoad | None
) -> Table:
    """Returns a row per model, with columns in the unit in which most values are at least 1.

    is_wide: whether KV cache, key/value heads and FLOPs are shown, which do not fit 80 characters. Otherwise times
    take the place of the shape.
    """
    parameter_scale = units.count_scale(
        _lower_quartile(model_quantities.parameters for _, model_quantities in compared_models)
    )
    flops_scale = units.decimal_scale(
        _lower_quartile(model_quantities.forward_flops_per_token for _, model_quantities in compared_models), "FLOPs"
    )
    cache_byte_scale = units.memory_scale(
        _lower_quartile(
            model_quantities.kv_bytes_per_token
            for _, model_quantities in compared_models
            if model_quantities.kv_bytes_per_token
        )
    )
    title = f"params, {parameter_scale.name}" if parameter_scale.name else "params"
    table_columns: tuple[Column, ...] = (
        Column("target", "model", justify="left"),
        Column("parameters", title, parameter_scale.write),
        Column("active", "active", parameter_scale.write),
        Column("num_hidden_layers", "L"),
        Column("hidden_size", "h", units.exact_text),
        Column("aspect_ratio", "h/L"),
        Column("feed_forward_ratio", "d_ff/h"),
        Column("kv_bytes_per_token", f"KV {cache_byte_scale.name}/tok", cache_byte_scale.write),
        Column("num_key_value_heads", "kv heads"),
        Column("flops_per_token", f"{flops_scale.name}/tok at {compared_models[0][1].seq:,}", flops_scale.write),
    )
    if not is_wide:
        table_columns = table_columns[: 7 if decoding_load is None else 3]
    timed_columns = (
        (Column("tpot", "TPOT"), Column("tokens_per_second", "tokens/s")) if decoding_load is not None else ()
    )
    table_rows = [
        Row(
            [
                preset.target,
                model_quantities.parameters,
                None if model_quantities.active == model_quantities.parameters else model_quantities.active,
                model_quantities.shape.num_hidden_layers,
                model_quantities.shape.hidden_size,
                f"{model_quantities.shape.aspect_ratio:.0f}",
                _ratio_text(model_quantities.shape.feed_forward_ratio),
                model_quantities.kv_bytes_per_token,
                _kv_heads_text(model_quantities.shape),
                model_quantities.forward_flops_per_token,
            ][: len(table_columns)]
            + [
                cell_text(model_quantities)
                for _, cell_text in (decoding_load.lines() if decoding_load is not None else ())
            ]
        )
        for preset, model_quantities in compared_models
    ]
    first_model = compared_models[0][1]
    notes = [
        "active: parameters used per token, where that is not all of them; d_ff of a mixture of experts: the active "
        "width; of an encoder-decoder the decoder",
        *(
            [flops_per_token_note(first_model.seq), cache_per_token_note(first_model.dtype)]
            if is_wide
            else [
                f"{'shape, ' if decoding_load is not None else ''}KV cache and FLOPs: from {WIDE_TERMINAL_COLUMNS} "
                "columns on"
            ]
        ),
    ]
    notes += decoding_load.notes(compared_models) if decoding_load is not None else []
    return Table("", [*table_columns, *timed_columns], table_rows, notes=[*notes, *_position_warnings(compared_models)])


def _lower_quartile(values: Iterable[float]) -> float:
    """Returns the lower quartile of the values; 0 for no values."""
    sorted_values = sorted(values)
    return sorted_values[len(sorted_values) // 4] if sorted_values else 0


def _raw_value_table(compared_models: Sequence[PresetQuantities], decoding_load: DecodingLoad | None) -> Table:
    """Returns one row of raw values per model, without nested entries."""
    flat_rows = [
        {
            "target": preset.target,
            **_quantities_data(model_quantities, decoding_load),
            "position": ", ".join(position_encodings(model_quantities.spec)),
        }
        for preset, model_quantities in compared_models
    ]
    column_keys = [column_key for column_key, raw_value in flat_rows[0].items() if not isinstance(raw_value, dict)]
    columns = [Column(column_key, column_key) for column_key in column_keys]
    return Table("", columns, [Row([flat_row[column_key] for column_key in column_keys]) for flat_row in flat_rows])
