"""Encoders, and encoders with a decoder."""

from __future__ import annotations

from typing import Any

from ....components.added_position import Learned
from ....components.head import Classifier
from ....components.mixers.attention import Attention
from ....components.networks.moe import MoE
from ..facts import Absent, Facts, present
from ..fields import FIELDS, Value


def _tasks(s: Facts) -> int | None:
    """ERNIE: the number of tasks."""
    types = s.first.token_types
    return None if types is None else types.task_type_vocab_size


def _offset(s: Facts) -> int:
    """Rows of the table of positions below the first."""
    return s.first.position.offset if isinstance(s.first.position, Learned) else 0


def _rows(s: Facts) -> Any:
    """All rows of that table."""
    return FIELDS["max_position_embeddings"](s) + _offset(s)


def _padding(s: Facts) -> int | None:
    return _offset(s) - 1 if _offset(s) else None


def _owners(s: Facts) -> list[int]:
    """For each layer the first that has its parameters."""
    names = s.first.layer_names()
    first = {name: names.index(name) for name in dict.fromkeys(names)}
    return [first[name] for name in names]


def _in_a_group(s: Facts) -> int:
    """ALBERT: layers of a group, which are run one after the other."""
    owners = _owners(s)
    back = [i for i, owner in enumerate(owners) if owner == 0]
    return back[1] if len(back) > 1 else 1


def _transform(s: Facts) -> Any:
    return present(s.head.transform)


def _side(s: Facts, side: str, field: str) -> Any:
    block = present(getattr(s.spec, side)).block
    return getattr(block, field)


def _sparse(s: Facts, side: str) -> list[int]:
    """Layers of a side that have experts."""
    stack = present(getattr(s.spec, side))
    return [i for i, name in enumerate(stack.layer_names()) if isinstance(stack.layer(name).feed_forward, MoE)]


def _width(s: Facts, side: str) -> int:
    network = _side(s, side, "feed_forward")
    width: int = network.expert.intermediate_size if isinstance(network, MoE) else network.intermediate_size
    return width


def _step(s: Facts, side: str) -> int:
    """Experts in every so many layers."""
    found = _sparse(s, side)
    return found[0] + 1 if found else 0


def _distances(s: Facts) -> Any:
    return s.typed("disentangled")


def _position_terms(s: Facts) -> list[str]:
    try:
        position = _distances(s)
    except Absent:
        return []
    return [term for term in ("c2p", "p2c") if getattr(position, term)]


def _convolution(field: str) -> Value:
    return lambda s: getattr(present(s.first.side_convolution), field)


def _pooling(s: Facts) -> str:
    return "bos" if isinstance(s.spec.head, Classifier) and s.spec.head.over == "sequence" else "late"


ROBERTA: dict[str, Value] = {"pad_token_id": _padding, "max_position_embeddings": _rows}

SIDES: dict[str, Value] = {
    "decoder_layers": lambda s: present(s.spec.decoder).num_hidden_layers,
    "encoder_ffn_dim": lambda s: _width(s, "encoder"), "decoder_ffn_dim": lambda s: _width(s, "decoder"),
    "decoder_attention_heads": lambda s: _side(s, "decoder", "attention").num_attention_heads,
}  # fmt: skip

T5: dict[str, Value] = {
    "num_decoder_layers": lambda s: present(s.spec.decoder).num_hidden_layers,
    "feed_forward_proj": lambda s: ("gated-" if s.network.gated else "") + s.network.hidden_act.removesuffix("_tanh"),
}

DEBERTA: dict[str, Value] = {
    "relative_attention": lambda s: s.first.relative_embedding is not None,
    "position_biased_input": lambda s: s.first.position is not None,
    "max_relative_positions": lambda s: _distances(s).max_relative_positions,
    "pos_att_type": _position_terms,
}

MODERN: dict[str, Value] = {
    "decoder_bias": lambda s: s.head.bias, "classifier_bias": lambda s: _transform(s).bias,
    "classifier_activation": lambda s: _transform(s).hidden_act, "norm_bias": lambda s: s.layers[0].norm.has_bias,
    "local_attention": lambda s: present(s.window) - 1,
}  # fmt: skip

LONG: dict[str, Value] = {
    "encoder_attention_type": lambda s: "local" if s.typed("local").global_block_size is None else "transient-global",
    "global_block_size": lambda s: present(s.typed("local").global_block_size),
}


def _module(s: Facts, side: str) -> dict[str, Any]:
    """T5Gemma: a config for each side."""
    stack = present(getattr(s.spec, side))
    alone = Facts(s.spec.model_copy(update={"encoder": None, "decoder": stack}))
    names = ("num_hidden_layers", "intermediate_size", "head_dim", "num_key_value_heads", "layer_types", "rms_norm_eps")
    values = {field: FIELDS[field](alone) for field in names}
    mixer, context = alone.find(Attention), s.spec.max_position_embeddings
    values |= {
        "hidden_activation": FIELDS["hidden_act"](alone),
        "attention_bias": mixer.q_bias,
        "attn_logit_softcapping": mixer.attn_logit_softcapping,
    }
    values |= {} if alone.window is None else {"sliding_window": alone.window}
    values |= {} if context is None else {"max_position_embeddings": context}
    sizes = {
        "vocab_size": stack.vocab_size or s.spec.vocab_size,
        "hidden_size": stack.hidden_size or s.spec.hidden_size,
    }
    return {
        **sizes,
        "num_attention_heads": mixer.num_attention_heads,
        **values,
        "rope_theta": alone.position.rope_theta,
    }


OWN: dict[str, dict[str, Value]] = {
    **dict.fromkeys(
        ("roberta", "xlm-roberta", "camembert", "mpnet", "roberta-prelayernorm", "xlm-roberta-xl", "data2vec-text"),
        ROBERTA,
    ),
    "ernie": {
        "use_task_id": lambda s: _tasks(s) is not None,
        "task_type_vocab_size": lambda s: present(_tasks(s)),
    },
    "rembert": {
        "input_embedding_size": lambda s: s.spec.embedding_size,
        "output_embedding_size": lambda s: _transform(s).size,
    },
    "albert": {
        "num_hidden_groups": lambda s: len({*_owners(s)}) // _in_a_group(s),
        "inner_group_num": _in_a_group,
        "num_hidden_layers": lambda s: s.first.num_hidden_layers // _in_a_group(s),
    },
    "deberta": DEBERTA,
    "deberta-v2": {
        **DEBERTA,
        "position_buckets": lambda s: _distances(s).position_buckets or -1,
        "share_att_key": lambda s: _distances(s).share_att_key,
        "norm_rel_ebd": lambda s: "none" if present(s.first.relative_embedding).norm is None else "layer_norm",
        "conv_kernel_size": _convolution("conv_kernel_size"),
        "conv_groups": _convolution("conv_groups"),
        "conv_act": _convolution("conv_act"),
    },
    "modernbert": MODERN,
    "modernbert-decoder": {**MODERN, "local_attention": lambda s: 2 * present(s.window)},
    "eurobert": {"classifier_pooling": _pooling},
    **dict.fromkeys(("t5", "mt5", "umt5"), T5),
    "longt5": {**T5, **LONG},
    "t5gemma": {
        "encoder": lambda s: _module(s, "encoder"),
        "decoder": lambda s: _module(s, "decoder"),
        "is_encoder_decoder": lambda s: s.spec.kind == "encoder-decoder",
    },
    "switch_transformers": {
        **T5,
        "num_sparse_encoder_layers": lambda s: len(_sparse(s, "encoder")),
        "num_sparse_decoder_layers": lambda s: len(_sparse(s, "decoder")),
        "dense_act_fn": lambda s: s.network.hidden_act,
    },
    **dict.fromkeys(("bart", "mbart", "m2m_100", "pegasus", "blenderbot", "blenderbot-small", "plbart", "mvp"), SIDES),
    "marian": {
        **SIDES,
        "share_encoder_decoder_embeddings": lambda s: s.first.vocab_size is None or s.spec.unused_embedding is not None,
        "vocab_size": lambda s: s.first.vocab_size or s.spec.vocab_size,
        "decoder_vocab_size": lambda s: s.spec.vocab_size,
    },
    "nllb-moe": {
        **SIDES,
        "encoder_sparse_step": lambda s: _step(s, "encoder"),
        "decoder_sparse_step": lambda s: _step(s, "decoder"),
    },
    "whisper": {
        **SIDES,
        "num_mel_bins": lambda s: present(s.first.stem).num_mel_bins,
        "max_source_positions": lambda s: present(s.first.stem).max_source_positions,
        "max_target_positions": lambda s: getattr(s.main.position, "max_position_embeddings", None),
    },
}
