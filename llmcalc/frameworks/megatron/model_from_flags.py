"""The model that Megatron-LM builds from its arguments, as a spec.

Sources: megatron/core/models/{gpt,bert,T5,hybrid}, transformer/{attention,multi_latent_attention,mlp}.py,
transformer/moe/{router,experts,shared_experts}.py, ssm/mamba_mixer.py and transformer/multi_token_prediction.py at
commit d98e8a64. All models have the norm before each sublayer and one after the last layer.
"""

from __future__ import annotations

from typing import Any

from ...errors import InputError
from ...model import ModelSpec
from ...sources.files import validate
from ...sources.huggingface.parts import stack_of_kinds
from .arguments import flag_of
from .settings import MegatronSettings

Table = dict[str, Any]

NOTHING: Table = {"type": "none"}

MAMBA_CHUNK = 128
"""Tokens that a Mamba layer scans at once (mamba_mixer.py, `chunk_size`)."""

BERT_LABELS = 2
"""Whether the second text follows the first (bert_model.py, `binary_head`)."""

SEGMENTS = 2
"""Kinds of segments of BERT's tokens."""

HIDDEN_LAYERS = {"M": "mamba", "*": "attention", "-": "dense", "E": "experts", "+": "latent"}
"""Letter of a hybrid pattern → kind of layer."""


def model_of(s: MegatronSettings, where: str) -> ModelSpec:
    """The model of these arguments. Raises `InputError`, naming the argument, for one that has no parts here."""
    if s.padded_vocabulary is None:
        raise InputError(
            f"--vocab-size: missing; the size of a {s.tokenizer} is in its files alone; expected --vocab-size or "
            "--padded-vocab-size too"
        )
    for name in ("apply_residual_connection_post_layernorm", "fp32_residual_connection"):
        if getattr(s, name):
            raise InputError(f"{flag_of(name)}: not supported; expected a residual stream without norms")
    table: Table = {
        "vocab_size": s.padded_vocabulary,
        "hidden_size": s.hidden_size,
        "tie_word_embeddings": not s.untie_embeddings_and_output_weights,
    }
    if s.positions != "learned_absolute" and s.max_position_embeddings is not None:
        table["max_position_embeddings"] = s.max_position_embeddings
    build = {"gpt": _gpt, "bert": _bert, "t5": _t5, "hybrid": _hybrid}[s.kind]
    return validate(ModelSpec, {**table, **build(s)}, where)


def _norm(s: MegatronSettings) -> Table:
    return {"type": "rmsnorm" if s.normalization == "RMSNorm" else "layernorm", "eps": s.norm_epsilon}


def _rope(s: MegatronSettings) -> Table | None:
    if s.positions not in ("rope", "yarn", "mrope"):
        return None
    partial = {} if s.rotary_percent >= 1 else {"partial_rotary_factor": s.rotary_percent}
    return {"type": "rope", "rope_theta": float(s.rotary_base), **partial}


def _added(s: MegatronSettings) -> Table:
    """The fields of a stack that say which positions are added to its input."""
    if s.positions != "learned_absolute":
        return {}
    if s.max_position_embeddings is None:
        raise InputError("--max-position-embeddings: missing; learned positions need it")
    return {"position": {"type": "learned", "max_position_embeddings": s.max_position_embeddings}}


def _attention(s: MegatronSettings, position: Table | None, cross: bool = False) -> Table:
    """cross: attention to an encoder's output, which has no positions and as many heads of keys as of queries."""
    biased = not s.disable_bias_linear
    inner = biased or s.add_qkv_bias
    table: Table = {
        "num_attention_heads": s.num_attention_heads,
        "num_key_value_heads": s.num_attention_heads if cross else s.query_groups,
        "head_dim": s.head_dim,
        "q_bias": inner,
        "k_bias": inner,
        "v_bias": inner,
        "o_bias": biased,
    }
    if position is not None:
        table["position"] = position
    if s.attention_output_gate and not cross:
        table["output_gate"] = {"per": "element", "bias": inner}
    if s.qk_l2_norm and not cross:
        table["qk_norm"] = {"norm": {"type": "rmsnorm", "weight": False, "eps": 1e-6}}
    elif s.qk_layernorm and not cross:
        table["qk_norm"] = {"norm": _norm(s)}
    return table


def _delta(s: MegatronSettings) -> Table:
    """Gated DeltaNet (ssm/gated_delta_net), whose linear layers have no bias."""
    if s.transformer_impl != "transformer_engine":
        raise InputError(f"--transformer-impl {s.transformer_impl}: has no gated DeltaNet; expected transformer_engine")
    keys, values = s.linear_num_key_heads, s.linear_num_value_heads
    if values % keys:
        raise InputError(f"--linear-num-key-heads: {keys}; expected a divisor of {values} heads of values")
    return {
        "type": "gated_delta_net",
        "linear_num_key_heads": keys,
        "linear_num_value_heads": values,
        "linear_key_head_dim": s.linear_key_head_dim,
        "linear_value_head_dim": s.linear_value_head_dim,
        "linear_conv_kernel_dim": s.linear_conv_kernel_dim,
        "norm_type": _norm(s)["type"],
        "norm_eps": s.norm_epsilon,
    }


def _indexer(s: MegatronSettings) -> Table:
    """What selects tokens (experimental_attention_variant/dsa.py, `DSAIndexer`)."""
    table = {
        "index_n_heads": s.dsa_indexer_n_heads,
        "index_head_dim": s.dsa_indexer_head_dim,
        "index_topk": s.dsa_indexer_topk,
    }
    for name, value in table.items():
        if value is None:
            raise InputError(f"{flag_of(name.replace('index', 'dsa_indexer'))}: missing; dsa needs it")
    if not s.disable_bias_linear:
        raise InputError("--disable-bias-linear: missing; dsa needs it")
    return table


def _latent(s: MegatronSettings) -> Table:
    low: Table = {} if s.q_lora_rank is None else {"q_lora_rank": s.q_lora_rank}
    if s.experimental_attention_variant == "dsa":
        low["indexer"] = _indexer(s)
    return {
        "type": "mla",
        "num_attention_heads": s.num_attention_heads,
        **low,
        "kv_lora_rank": s.kv_lora_rank,
        "qk_nope_head_dim": s.qk_head_dim,
        "qk_rope_head_dim": s.qk_pos_emb_head_dim,
        "v_head_dim": s.v_head_dim,
        "o_bias": not s.disable_bias_linear,
        "norm": _norm(s) if s.qk_layernorm else None,
        "position": {"type": "rope", "rope_theta": float(s.rotary_base)},
    }


def _network(s: MegatronSettings, width: int, biased: bool) -> Table:
    act = "silu" if s.swiglu else "relu2" if s.squared_relu else "gelu_tanh" if s.openai_gelu else "gelu"
    gate = {"gate_bias": biased} if s.gated else {}
    return {
        "type": "mlp",
        "intermediate_size": width,
        "hidden_act": act,
        "gated": s.gated,
        "up_bias": biased,
        "down_bias": biased,
        **gate,
    }


def _experts(s: MegatronSettings) -> Table:
    """The router has a bias where linear layers have; a shared expert never has one."""
    biased = not s.disable_bias_linear
    router: Table = {"type": "linear", "bias": biased, "scoring_func": s.moe_router_score_function}
    if s.moe_router_enable_expert_bias:
        router["score_correction"] = "buffer"
    shared = s.moe_shared_expert_intermediate_size
    table: Table = {
        "type": "moe",
        "num_experts": s.num_experts,
        "num_experts_per_tok": s.moe_router_topk,
        "expert": _network(s, s.expert_ffn, biased),
        "router": router,
    }
    if shared is not None:
        table |= {"shared_expert": _network(s, shared, biased=False), "shared_expert_gate": s.moe_shared_expert_gate}
    if s.moe_latent_size is not None:
        table["latent"] = {"moe_latent_size": s.moe_latent_size}
    return table


def _mamba(s: MegatronSettings) -> Table:
    inner, dim = s.mamba_inner, s.mamba_head_dim
    if inner % dim:
        raise InputError(f"--mamba-head-dim: {dim} does not divide the inner width {inner}; expected a divisor")
    if inner // dim % s.mamba_num_groups:
        raise InputError(f"--mamba-num-groups: {s.mamba_num_groups}; expected a divisor of {inner // dim} heads")
    return {
        "type": "mamba2",
        "num_heads": inner // dim,
        "head_dim": dim,
        "state_size": s.mamba_state_dim,
        "n_groups": s.mamba_num_groups,
        "chunk_size": MAMBA_CHUNK,
        "norm": {"type": "rmsnorm", "eps": s.norm_epsilon},
    }


def _layer(s: MegatronSettings, attention: Table, network: Table) -> Table:
    return {"attention": attention, "feed_forward": network, "norm": _norm(s), "norm_placement": "pre"}


def _mixer(s: MegatronSettings, rotated: bool = True) -> Table:
    """The attention of a layer. rotated: whether the layer has rotary positions, if the model has."""
    return _latent(s) if s.latent else _attention(s, _rope(s) if rotated else None)


def _unrotated(s: MegatronSettings) -> list[bool]:
    """Whether each layer goes without rotary positions; an N as the frequency means the last of every N layers."""
    freq = s.no_rope_freq
    if freq is None or _rope(s) is None:
        return [False] * s.layers
    if isinstance(freq, int):
        return [freq > 0 and (i + 1) % freq == 0 for i in range(s.layers)]
    if len(freq) != s.layers:
        raise InputError(f"--no-rope-freq: a pattern of {len(freq)} layers; expected one of {s.layers}")
    return list(map(bool, freq))


def _gpt(s: MegatronSettings) -> Table:
    kinds, names = {}, []
    for has_experts, plain, delta in zip(s.expert_layers, _unrotated(s), s.delta_layers, strict=True):
        name = ("experts" if has_experts else "dense") + ("_delta" if delta else "_unrotated" if plain else "")
        if name not in kinds:
            network = _experts(s) if has_experts else _network(s, s.ffn, not s.disable_bias_linear)
            kinds[name] = _layer(s, _delta(s) if delta else _mixer(s, not plain), network)
        names.append(name)
    return _decoder(s, kinds, names, s.later_tokens, None)


def _hybrid(s: MegatronSettings) -> Table:
    letters = "".join(s.segments)
    wrong = sorted(set(letters) - set(HIDDEN_LAYERS))
    if wrong or not letters:
        problem = f"a layer {wrong[0]}" if wrong else "no layers"
        raise InputError(
            f"--hybrid-layer-pattern: {problem} is not supported; expected letters {', '.join(HIDDEN_LAYERS)}"
        )
    build = {
        "mamba": lambda: _layer(s, _mamba(s), NOTHING),
        "attention": lambda: _layer(s, _attention(s, _rope(s)), NOTHING),
        "latent": lambda: _layer(s, _latent(s), NOTHING),
        "dense": lambda: _layer(s, NOTHING, _network(s, s.ffn, not s.disable_bias_linear)),
        "experts": lambda: _layer(s, NOTHING, _experts(s)),
    }
    names = [HIDDEN_LAYERS[letter] for letter in letters]
    kinds = {name: build[name]() for name in dict.fromkeys(names)}
    later = _later_layer(s)
    return _decoder(s, kinds, names, s.later_tokens, later)


def _later_layer(s: MegatronSettings) -> Table | None:
    """The layer that each module of multi-token prediction of a hybrid model runs; None without any."""
    if not s.later_tokens:
        return None
    ends = (s.hybrid_layer_pattern or "").split("/")[1:] or [s.mtp_hybrid_override_pattern or ""]
    letters = ends[0]
    if len(set(ends)) > 1 or len(letters) not in (1, 2) or set(letters) - set(HIDDEN_LAYERS):
        raise InputError(
            f"--hybrid-layer-pattern: '{'/'.join(ends)[:40]}' after the slash is not supported; expected one mixer and "
            "at most one network, such as /*E"
        )
    mixers = {"M": _mamba, "*": lambda s: _attention(s, _rope(s)), "+": _latent}
    networks = {"-": lambda s: _network(s, s.ffn, not s.disable_bias_linear), "E": _experts}
    if letters[0] in mixers and (len(letters) == 1 or letters[1] in networks):
        return _layer(s, mixers[letters[0]](s), networks[letters[1]](s) if len(letters) == 2 else NOTHING)
    if len(letters) == 1:
        return _layer(s, NOTHING, networks[letters](s))
    raise InputError(f"--hybrid-layer-pattern: /{letters}: not supported; expected a mixer before a network")


def _decoder(
    s: MegatronSettings, kinds: dict[str, Table], names: list[str], later: int, later_layer: Table | None
) -> Table:
    stack = {**stack_of_kinds(kinds, names), "num_hidden_layers": len(names), "final_norm": _norm(s), **_added(s)}
    if not later:
        return {"decoder": stack}
    mtp: Table = {"num_nextn_predict_layers": later, "repeated": s.mtp_use_repeated_layer, "norm": _norm(s)}
    if later_layer is not None:
        stack["variants"] = {**stack["variants"], "later": later_layer}
        mtp["layer"] = "later"
    else:
        last = names[-1]
        mtp["layer"] = last if last in stack["variants"] else "block"
    return {"decoder": stack, "mtp": mtp}


def _bert(s: MegatronSettings) -> Table:
    if s.pp > 1 and s.mtp_num_layers:
        raise InputError("--mtp-num-layers: BERT has none; expected none")
    block = _layer(s, _attention(s, _rope(s)), _network(s, s.ffn, not s.disable_bias_linear))
    binary = not s.bert_no_binary_head
    stack: Table = {"num_hidden_layers": s.layers, "block": block, "final_norm": _norm(s), **_added(s)}
    if binary:
        stack["token_types"] = {"type_vocab_size": SEGMENTS}
    transform = {"hidden_act": "gelu", "norm": {"type": "layernorm", "eps": s.norm_epsilon}}
    table: Table = {"encoder": stack, "head": {"type": "lm", "bias": True, "transform": transform}}
    return {**table, "pooler": {"num_labels": BERT_LABELS}} if binary else table


def _t5(s: MegatronSettings) -> Table:
    network = _network(s, s.ffn, not s.disable_bias_linear)
    block = _layer(s, _attention(s, _rope(s)), network)
    relative: Table = {}
    if s.positions == "relative":
        relative = {
            "relative_bias": {
                "relative_attention_num_buckets": s.relative_attention_num_buckets,
                "relative_attention_max_distance": s.relative_attention_max_distance,
            }
        }
    ends: Table = {"final_norm": _norm(s), **relative}
    return {
        "encoder": {"num_hidden_layers": s.layers, "block": block, **ends, **_added(s)},
        "decoder": {
            "num_hidden_layers": s.decoder_layers,
            "block": {**block, "cross_attention": _attention(s, None, cross=True)},
            **ends,
            **_added(s),
        },
        "head": {"type": "lm", "bias": True},
        "shared_positions": bool(_added(s)),
    }
