"""A typed `config.json` for family readers, with defaults, which records the fields that were read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

from ...components.base import LARGEST_SIZE, MAX_EXPERTS, MAX_LAYERS
from ...components.head_kind import HeadKind
from ...errors import InputError, short_repr, similar_name
from .unknown_fields import UnknownField, name_same_size

IRRELEVANT_FIELDS = frozenset(
    """
    _attn_implementation _attn_implementation_autoset _commit_hash _from_model_config _name_or_path _num_labels
    add_cross_attention architectures attention_dropout attention_probs_dropout_prob attention_softmax_in_fp32
    attn_dropout attn_implementation attn_pdrop auto_map bad_words_ids batch_size beam_size begin_suppress_tokens
    bos_token bos_token_id chat_template chunk_size_feed_forward classifier_dropout cross_attention_hidden_size
    custom_pipelines decoder_start_token_id diversity_penalty do_sample dropout dtype early_stopping embd_dropout
    embd_pdrop encoder_no_repeat_ngram_size epoch_size eos_token eos_token_id exponential_decay_length_penalty
    finetuning_task forced_bos_token_id forced_eos_token_id gradient_checkpointing hidden_dropout
    hidden_dropout_prob id2label init_method init_std initializer_factor initializer_range is_decoder
    is_encoder_decoder label2id language layer_norm_eps layer_norm_epsilon length_penalty license mask_token
    mask_token_id max_length max_sequence_length min_length model_type n_gpu_per_node n_nodes name name_or_path
    no_repeat_ngram_size norm_eps norm_epsilon num_beam_groups num_beams num_labels num_return_sequences
    output_attentions output_hidden_states output_past output_router_logits output_scores pad_token pad_token_id
    prefix pretraining_tp problem_type pruned_heads quantization quantization_config remove_invalid_values
    repetition_penalty resid_dropout resid_pdrop residual_dropout return_dict return_dict_in_generate rms_norm_eps
    rope_parameters rope_scaling rope_theta router_aux_loss_coef router_jitter_noise scale_attention_softmax_in_fp32
    scale_attn_by_inverse_layer_idx scale_attn_weights sentence_transformers sep_token sep_token_id suppress_tokens
    task_specific_params temperature tf_legacy_loss tie_encoder_decoder tokenizer_class top_k top_p torch_dtype
    torchscript transformers.js_config transformers_version trust_remote_code typical_p unk_token unk_token_id
    unsloth_fixed unsloth_version use_bfloat16 use_cache use_flash_attention use_flash_attn use_return_dict
    world_size
    """.split()  # noqa: SIM905
)
"""Fields of any family that change no count: tokens, sampling, dropout, initialisation, precision of a checkpoint."""

WIDTH_FIELDS = ("hidden_size", "d_model", "n_embd", "dim")
DEPTH_FIELDS = ("num_hidden_layers", "n_layer", "num_layers")
SIZE_FIELDS = (*WIDTH_FIELDS, *DEPTH_FIELDS)
"""Names of width and depth fields; a config with one of them at the top level has no separate section for its text
model.
"""

LARGEST_FIELD_VALUES: dict[str, int] = {
    **dict.fromkeys(
        ("num_hidden_layers", "num_layers", "num_decoder_layers", "decoder_layers", "num_blocks", "depth"), MAX_LAYERS
    ),
    **dict.fromkeys(
        ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_experts_per_tok"), MAX_EXPERTS
    ),
    "merger_times": 16,  # each leaves a quarter of an image's patches or fewer
}
"""Usual name of a field → its largest value; family readers build lists with one entry per layer.

The largest value of other fields is `LARGEST_SIZE`.
"""


def is_json_integer(field_value: Any) -> TypeGuard[int]:
    """Whether a value is an integer, except JSON's true and false."""
    return isinstance(field_value, int) and not isinstance(field_value, bool)


def json_spelling(field_value: Any) -> str:
    """Returns a value as a config.json spells it, for error messages: null, true, false."""
    json_words = {None: "null", True: "true", False: "false"}
    return json_words[field_value] if field_value is None or isinstance(field_value, bool) else short_repr(field_value)


def is_number(field_value: Any) -> TypeGuard[int | float]:
    """Whether a value is a number, except JSON's true and false."""
    return is_json_integer(field_value) or isinstance(field_value, float)


MAX_UNKNOWN_FIELDS = 1_000
"""Unknown fields of one table of a config, at most. Each is compared with all known names, which takes time."""


@dataclass
class Config:
    """A parsed `config.json` with typed getters, which record the fields that are read.

    Every getter takes the field's name, then other names for the same field. If the config has several of them, one
    wins: a configuration class first sets its own fields and then every other attribute of the config. So a name that
    is not the class's own (`hidden_size` of GPT-2, `num_local_experts` of Jamba) replaces the class's own name; among
    other names the last in the file wins.

    config_fields: the parsed JSON.
    defaults: defaults of the family's configuration class, under its own field names.
    head_kind: the output head of the class that saved the config.
    location: the path from the top of the file, for messages (`text_config.`).
    aliases: usual name of a field → its name in this family.
    unread_aliases: usual names in `aliases` that the family's class does not read; only the family's own name counts.
    fields_read: names of all fields that have been read.
    notes: remarks for the user.
    unknown_fields: fields that were never read, set by `finish`.
    default_sizes: path of each size that the config leaves to its class → the default.
    """

    config_fields: Mapping[str, Any]
    defaults: Mapping[str, Any]
    model_type: str
    head_kind: HeadKind = "lm"
    location: str = ""
    aliases: Mapping[str, str] = field(default_factory=dict)
    unread_aliases: frozenset[str] = frozenset()
    fields_read: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    unknown_fields: list[UnknownField] = field(default_factory=list)
    default_sizes: dict[str, int] = field(default_factory=dict)
    _names_by_field: dict[tuple[str, ...], tuple[str, ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """Cache: names of a field → the names with their aliases; most fields are read several times."""

    def __post_init__(self) -> None:
        """Raises `InputError` for RoPE parameters that are neither a table nor empty.

        They may contain the rotary share of a head. False, as in ZAYA's configs, counts as empty.
        """
        for field_name in ("rope_parameters", "rope_scaling"):
            if self.config_fields.get(field_name) is not False and not isinstance(
                self.config_fields.get(field_name), dict | None
            ):
                raise self.error(field_name, self.config_fields[field_name], "a table of fields")

    def get(self, *field_names: str) -> Any:
        """Returns the raw value of a field, or the class's default.

        Raises `InputError` for a field that has neither a value nor a default.
        """
        field_names = self._names_with_aliases(field_names)
        applicable_name = self._field_name_that_applies(field_names)
        if applicable_name is not None:
            return self.config_fields[applicable_name]
        for field_name in field_names:
            if field_name in self.defaults:
                return self.defaults[field_name]
        missing_error = self.error(
            self._name_in_config(field_names), "missing", f"a field that every {self.model_type} config has"
        )
        known_names = [name for name in self.config_fields if name not in self.fields_read]
        suggested_name = similar_name(field_names[0], known_names)
        raise InputError(f"{missing_error} (the config has '{suggested_name}')") if suggested_name else missing_error

    def has(self, field_name: str) -> bool:
        """Whether the config itself has the field, with a value that is not null."""
        return any(
            self.config_fields.get(known_name) is not None for known_name in self._names_with_aliases((field_name,))
        )

    def _names_with_aliases(self, field_names: tuple[str, ...]) -> tuple[str, ...]:
        """Returns field names with all their aliases, and marks these as read."""
        if field_names not in self._names_by_field:
            self._names_by_field[field_names] = self._names_in_use(field_names)
        self.fields_read.update(self._names_by_field[field_names])
        return self._names_by_field[field_names]

    def _names_in_use(self, field_names: tuple[str, ...]) -> tuple[str, ...]:
        read_names = [field_name for field_name in field_names if field_name not in self.unread_aliases]
        alias_names = [self.aliases[field_name] for field_name in field_names if field_name in self.aliases]
        usual_names = [
            field_name
            for field_name, field_alias in self.aliases.items()
            if field_alias in (*read_names, *alias_names) and field_name not in self.unread_aliases
        ]
        return tuple(dict.fromkeys((*read_names, *alias_names, *usual_names)))

    def _field_name_that_applies(self, field_names: tuple[str, ...]) -> str | None:
        """Returns the alias whose value is used if a config has several aliases of a field; null values are skipped."""
        present_names = [field_name for field_name in field_names if field_name in self.config_fields]
        if len(present_names) < 2:
            return present_names[0] if present_names else None
        foreign_names = {
            name for name in present_names if name not in self.defaults and self.config_fields[name] is not None
        }
        return next((name for name in reversed([*self.config_fields]) if name in foreign_names), present_names[0])

    def _name_in_config(self, field_names: tuple[str, ...]) -> str:
        """Returns the alias under which the config has the field, or the field's usual name."""
        return self._field_name_that_applies(self._names_with_aliases(field_names)) or field_names[0]

    def has_list(self, field_name: str) -> bool:
        """Whether the config itself, not only its defaults, has a list in the field."""
        return self.has(field_name) and isinstance(self.get(field_name), list | tuple)

    def integer(self, *field_names: str) -> int:
        """Returns the positive integer in a field. `LARGEST_FIELD_VALUES` bounds numbers of layers and experts."""
        return self._read_integer(field_names, 1, "a positive whole number")

    def integer_fields(self, *field_names: str) -> dict[str, int]:
        """Returns the positive integers of several fields by their names."""
        return {field_name: self.integer(field_name) for field_name in field_names}

    def count(self, *field_names: str) -> int:
        """Returns the integer in a field, which may be 0."""
        return self._read_integer(field_names, 0, "a whole number, 0 or more")

    def with_fields(self, **fields: Any) -> Config:
        """Returns the config with new values for some fields; both configs share the record of read fields."""
        return replace(self, config_fields={**self.config_fields, **fields})

    def integer_by_name(self, field_name: str) -> int:
        """Returns the positive integer in a field with exactly this name, or the default, ignoring aliases."""
        return replace(self, aliases={}).integer(field_name)

    def _read_integer(self, field_names: tuple[str, ...], minimum: int, expected_text: str) -> int:
        field_value, maximum = self.get(*field_names), LARGEST_FIELD_VALUES.get(field_names[0], LARGEST_SIZE)
        if not is_json_integer(field_value) or not minimum <= field_value <= maximum:
            limit_text = f", at most {maximum}" if is_json_integer(field_value) and field_value > maximum else ""
            raise self.error(self._name_in_config(field_names), field_value, expected_text + limit_text)
        if field_value and self._field_name_that_applies(self._names_with_aliases(field_names)) is None:
            self.default_sizes[f"{self.location}{field_names[0]}"] = field_value
        return field_value

    def optional_integer(self, *field_names: str) -> int | None:
        """Returns the positive integer in a field; None if the field is null or absent."""
        field_names = self._names_with_aliases(field_names)
        is_present = any(field_name in self.config_fields or field_name in self.defaults for field_name in field_names)
        return self.integer(*field_names) if is_present and self.get(*field_names) is not None else None

    def _checked_value(
        self, field_names: tuple[str, ...], is_valid_value: Callable[[Any], bool], expected_text: str
    ) -> Any:
        """Returns the value of a field. Raises `InputError` for an invalid value."""
        field_value = self.get(*field_names)
        if not is_valid_value(field_value):
            raise self.error(self._name_in_config(field_names), field_value, expected_text)
        return field_value

    def flag(self, *field_names: str) -> bool:
        """Returns the boolean in a field."""
        return bool(self._checked_value(field_names, lambda field_value: type(field_value) is bool, "true or false"))

    def number(self, *field_names: str, minimum: float = 0) -> float:
        """Returns the number in a field, of at least `minimum`."""

        def is_accepted_value(field_value: Any) -> bool:
            return is_number(field_value) and minimum <= field_value <= LARGEST_SIZE  # false for NaN

        field_value = self._checked_value(field_names, is_accepted_value, f"a number from {minimum} to {LARGEST_SIZE}")
        return field_value if isinstance(field_value, float) else float(field_value)

    def text(self, *field_names: str) -> str:
        """Returns the text in a field."""
        return str(self._checked_value(field_names, lambda field_value: isinstance(field_value, str), "a text"))

    def integers(self, *field_names: str) -> list[int]:
        """Returns the list of integers in a field, with 0 allowed."""

        def is_accepted_value(field_value: Any) -> bool:
            return isinstance(field_value, list | tuple) and all(
                is_json_integer(list_element) and 0 <= list_element <= LARGEST_SIZE for list_element in field_value
            )

        return list(self._checked_value(field_names, is_accepted_value, "a list of whole numbers"))

    def texts(self, *field_names: str) -> list[str]:
        """Returns the list of texts in a field."""

        def is_accepted_value(field_value: Any) -> bool:
            return isinstance(field_value, list | tuple) and all(
                isinstance(list_element, str) for list_element in field_value
            )

        return list(self._checked_value(field_names, is_accepted_value, "a list of texts"))

    def table(self, *field_names: str) -> Mapping[str, Any]:
        """Returns the table in a field."""
        table: Mapping[str, Any] = self._checked_value(
            field_names, lambda field_value: isinstance(field_value, dict), "a table of fields"
        )
        return table

    def layer_tables(self, layer_count: int) -> list[Mapping[str, Any]]:
        """Returns each layer's values in `per_layer_config`; an empty table for a layer without any.

        Its keys are layer numbers. transformers writes them with leading zeros, all of one length (`05`, `11`).
        """
        tables_by_layer = self.table("per_layer_config")
        fields_by_layer: dict[int, Mapping[str, Any]] = {}
        for layer_key, layer_fields in tables_by_layer.items():
            is_layer_number = layer_key.isdecimal() and len(layer_key) < 10 and int(layer_key) < layer_count
            if not is_layer_number or not isinstance(layer_fields, dict) or int(layer_key) in fields_by_layer:
                raise self.error(
                    "per_layer_config",
                    tables_by_layer,
                    f"tables of fields by different layer numbers below {layer_count}",
                )
            fields_by_layer[int(layer_key)] = layer_fields
        return [fields_by_layer.get(layer_index, {}) for layer_index in range(layer_count)]

    def section(self, field_name: str, defaults: Mapping[str, Any] | None = None) -> Config:
        """Returns a nested table as a `Config`; a missing table is empty. defaults: defaults of the table's fields."""
        section_data = self.table(field_name) if self.has(field_name) else {}
        return Config(section_data, defaults or {}, self.model_type, self.head_kind, f"{self.location}{field_name}.")

    def choice(self, value_by_text: Mapping[str, Any], *field_names: str) -> Any:
        """Returns the entry of `value_by_text` that a field's text names."""

        def is_accepted_value(field_value: Any) -> bool:
            return isinstance(field_value, str) and field_value in value_by_text

        return value_by_text[self._checked_value(field_names, is_accepted_value, "one of " + ", ".join(value_by_text))]

    def require(self, field_name: str, *expected_values: Any) -> None:
        """Raises `InputError` unless a field has an expected value; with another, the class has uncounted weights."""
        field_value = self.get(field_name)
        if field_value not in expected_values:
            expected_text = ", ".join(map(json_spelling, expected_values))
            raise self.error(
                field_name,
                field_value,
                f"one of {expected_text} (what is counted for {self.model_type} knows no other)",
            )

    def require_fields(self, **expected_values: Any) -> None:
        """Raises `InputError` unless each field has its expected value."""
        for field_name, expected_value in expected_values.items():
            self.require(field_name, expected_value)

    def require_if_present(self, field_name: str, *expected_values: Any) -> None:
        """Raises `InputError` if the config has the field with a value that is not one of the expected values."""
        if self.has(field_name):
            self.require(field_name, *expected_values)

    def quotient(self, field_name: str, dividend: int, divisor: int) -> int:
        """Returns dividend / divisor. Raises `InputError` if there is a remainder, which the class does not allow."""
        if divisor <= 0 or dividend % divisor:
            raise self.error(field_name, divisor, f"a divisor of {dividend}")
        return dividend // divisor

    def error(self, field_name: str, field_value: Any, expected_text: str) -> InputError:
        """Returns an error with the field's name, value and expected value."""
        field_alias = self.aliases.get(field_name, field_name)
        field_name = self._field_name_that_applies((field_name, field_alias)) or field_alias
        problem_text = (
            "missing" if field_value is None and field_name not in self.config_fields else json_spelling(field_value)
        )
        return InputError(f"{self.location}{field_name}: {problem_text}; expected {expected_text}")

    def field_error(self, field_name: str, expected_text: str) -> InputError:
        """Returns an error with the field's name, its value in the config and the expected value."""
        return self.error(field_name, self.get(field_name), expected_text)

    def finish(self, ignored_fields: frozenset[str], parent_config: Config | None = None) -> None:
        """Ends reading: unread fields that are not known to be irrelevant become `unknown_fields`.

        ignored_fields: fields of this family that change no count.
        parent_config: the outer config of a nested table; it receives the unknown fields and the default sizes.
        """
        parent_config = parent_config or self
        known_fields = self.fields_read | IRRELEVANT_FIELDS | ignored_fields
        known_fields |= {name for name, alias in self.aliases.items() if alias in known_fields} - self.unread_aliases
        num_hidden_layers = self.config_fields.get("num_hidden_layers")
        layer_count = self.config_fields.get(self.aliases.get("num_hidden_layers", ""), num_hidden_layers)
        unknown_fields = {
            name: field_value
            for name, field_value in self.config_fields.items()
            if name not in known_fields and not name.startswith("_")
        }
        if len(unknown_fields) > MAX_UNKNOWN_FIELDS:
            raise InputError(
                f"{self.location or 'config: '}{len(unknown_fields):,} fields are unknown; expected at most "
                f"{MAX_UNKNOWN_FIELDS:,}"
            )
        parent_config.unknown_fields += [
            UnknownField(
                f"{self.location}{field_name}",
                field_value,
                self._corrected_name(field_name),
                self._restates_another_field(field_name, field_value),
                layer_count if is_json_integer(layer_count) else 0,
            )
            for field_name, field_value in sorted(unknown_fields.items())
        ]
        if parent_config is not self:
            parent_config.default_sizes |= self.default_sizes

    def _corrected_name(self, field_name: str) -> str:
        """Returns the known field that an unknown name probably misspells; a field that the config has is excluded."""
        if field_name in self.unread_aliases:
            return "" if self.has(self.aliases[field_name]) else self.aliases[field_name]
        unset_fields = sorted(field_name for field_name in tuple(self.fields_read) if not self.has(field_name))
        return similar_name(field_name, unset_fields)

    def _restates_another_field(self, field_name: str, field_value: Any) -> bool:
        """Whether another field, already read, has the same value and a similar name."""
        return any(
            self.config_fields[read_name] == field_value and name_same_size(field_name, read_name)
            for read_name in self.fields_read & self.config_fields.keys()
        )
