"""Launch files of Megatron-LM: the model they make, counted by hand, its layout and its settings."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

from llmcalc.costs.params import params
from llmcalc.errors import InputError
from llmcalc.frameworks.launch.launch_types import Launch, LaunchSource
from llmcalc.frameworks.launch.read_launch_file import launch_from_text, read_launch
from llmcalc.frameworks.megatron.launch_file import read_megatron
from llmcalc.frameworks.megatron.settings import MegatronSettings, expand_pipeline_layout
from llmcalc.parallel.layout import Layout
from tests.samples import in_one_test

LAUNCHES = Path(__file__).parents[2] / "data" / "launches"

SMALL: dict[str, Any] = {
    "--num-layers": 4,
    "--hidden-size": 64,
    "--num-attention-heads": 4,
    "--seq-length": 32,
    "--max-position-embeddings": 32,
    "--micro-batch-size": 1,
    "--tokenizer-type": "NullTokenizer",
    "--vocab-size": 100,
}


def read(name: str, world_size: int = 8) -> Launch:
    return read_launch(LAUNCHES / name, world_size)


def small(world_size: int | None = None, **more: Any) -> Launch:
    flags = {f"--{name.replace('_', '-')}": value for name, value in more.items()}
    return read_megatron({**SMALL, **flags}, LaunchSource("small.json", world_size))


def counted(launch: Launch) -> int:
    assert launch.spec is not None
    total = params(launch.spec, frozenset({"mtp"})).total
    assert isinstance(total, int)
    return total


def block(h: int) -> int:
    """A layer with biases and LayerNorms: 4 h² + 8 h² of matrices, 3 h + h + 4 h + h of biases, 4 h of norms."""
    return 12 * h * h + 13 * h


# ---- counts


def test_gpt() -> None:
    h, vocab = 512, 50432  # 50,257 tokens up to a multiple of 128 · 2
    assert counted(read("gpt_tp2_pp2.yaml")) == vocab * h + 1024 * h + 12 * block(h) + 2 * h


def test_gpt_with_grouped_heads_from_a_script() -> None:
    h, f, vocab = 4096, 16384, 131200  # 131,073 tokens up to a multiple of 128
    attention = 2 * h * h + 2 * h * 1024 + (h + 2 * 1024) + h  # q, o; k, v of 8 heads of 128; biases
    layer = attention + 2 * h * f + f + h + 4 * h
    assert counted(read("gpt3_7b.sh")) == 2 * vocab * h + 8192 * h + 32 * layer + 2 * h


def test_latent_attention_and_experts() -> None:
    h, a, vocab = 1024, 32, 51712  # 50,257 tokens up to a multiple of 3,232 · 2
    query = h * 1536 + 1536 + 1536 * a * (128 + 64)
    latent = h * (512 + 64) + 512 + 512 * a * (128 + 128)
    attention = query + latent + a * 128 * h
    dense = 3 * h * 4096
    experts = 32 * h + 32 * 3 * h * 1024 + 3 * h * 1024  # router, 32 experts, one shared
    layers = 16 * (attention + 2 * h) + dense + 15 * experts
    later = attention + 2 * h + experts + 2 * h * h + 3 * h  # one more layer, a map of two vectors, three norms
    assert counted(read("mla_moe_ep4.json")) == 2 * vocab * h + h + layers + later


def test_hybrid() -> None:
    h, vocab, inner, heads, state = 1024, 50304, 2048, 32, 8 * 128
    mamba = h * (2 * inner + 2 * state + heads) + (inner + 2 * state) * (4 + 1) + 3 * heads + inner + inner * h
    attention = 2 * h * h + 2 * h * 512 + (h + 2 * 512) + h
    network = 2 * h * 4 * h + 4 * h + h
    pattern = "M-M-M-M*-M-|M-M-M*-M-M-|M-M*-M-M-M-|M*-M-M-M-M-"
    layers = pattern.count("M") * mamba + pattern.count("*") * attention + pattern.count("-") * network
    norms = 2 * h * (len(pattern) - 3 + 1)  # one before each of 44 layers and one after the last
    assert counted(read("hybrid_pp2_vpp2.yaml")) == vocab * h + 1024 * h + layers + norms


def test_bert() -> None:
    h, vocab = 1024, 30592  # 30,522 word pieces and two, up to a multiple of 128
    embeddings = (vocab + 512 + 2) * h
    head = h * h + h + 2 * h + vocab  # a map and a norm before the vocabulary, whose matrix is the embedding's
    pooler = h * h + h + 2 * h + 2
    assert counted(read("bert_pp2.yaml")) == embeddings + 24 * block(h) + 2 * h + head + pooler


def test_t5() -> None:
    h, vocab = 768, 29184  # 28,996 word pieces, two and a hundred more, up to a multiple of 128 · 2
    crossing = 4 * h * h + 4 * h + 2 * h  # four maps with biases, and a norm
    embeddings = (vocab + 512) * h  # both halves add rows of one table of positions
    layers = 24 * block(h) + 12 * crossing
    assert counted(read("t5_tp2.yaml")) == embeddings + layers + 2 * 2 * h + vocab


def test_experts_divided() -> None:
    h, f, vocab = 512, 1024, 50688  # 50,257 tokens up to a multiple of 128 · 4
    experts = 8 * h + 8 * 2 * h * f + 2 * h * 512  # router, eight experts, one shared
    layer = 4 * h * h + 4 * h + experts
    assert counted(read("moe_tp4_pp2_ep2_etp2.yaml")) == vocab * h + 1024 * h + 12 * layer + 2 * h


# ---- layouts and settings


def test_layouts() -> None:
    assert read("gpt_tp2_pp2.yaml").layout == Layout(tp=2, pp=2, dp=2)
    assert read("gpt3_7b.sh").layout == Layout(pp=4, dp=2, vpp=8, zero=1, schedule="interleaved")
    assert read("moe_tp4_pp2_ep2_etp2.yaml").layout == Layout(tp=4, pp=2, ep=2, etp=2, sequence_parallel=True, zero=1)
    assert read("hybrid_pp2_vpp2.yaml").layout == Layout(
        pp=2, dp=4, vpp=2, zero=1, schedule="interleaved", pp_layout=(11, 11, 11, 11)
    )


def test_the_words_of_memory() -> None:
    settings = read("mla_moe_ep4.json").settings
    assert settings == {
        "phase": "training",
        "batch": 4,
        "seq": 4096,
        "num_microbatches": 4,  # 32 sequences over 2 data-parallel ranks of 4
        "dtype": "bf16",
        "master_weights": "fp32",
        "grad_dtype": "fp32",
        "optimizer": "adamw",
        "attn_implementation": "eager",
        "norm": "fused",
        "cross_entropy": "native",
        "allocator": "expandable",
    }
    assert read("gpt_tp2_pp2.yaml").settings["allocator"] == "segments"
    assert read("gpt_tp2_pp2.yaml").env["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


def test_a_script_says_its_devices_and_what_is_taken_as_not_set() -> None:
    launch = read_launch(LAUNCHES / "gpt3_7b.sh")
    assert launch.layout.world_size == 8
    assert launch.notes == ("$WANDB_API_KEY: taken as not set",)


def test_as_few_devices_as_the_layout_can_have() -> None:
    sizes = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2, "expert_model_parallel_size": 4}
    launch = small(**sizes, num_experts=4, sequence_parallel=True)
    assert launch.layout.world_size == 16  # experts of 2 · 4 ranks in each of two stages
    assert launch.notes == ("16 devices are assumed, as few as the layout can have",)
    with pytest.raises(InputError, match="sequence parallelism is off"):  # transformer/moe/moe_layer.py, `forward`
        small(**sizes, num_experts=4)


@in_one_test
@pytest.mark.parametrize(
    ("more", "stages"),
    [
        ({"decoder_first_pipeline_num_layers": 3, "num_layers": 7}, (3, 4)),
        ({"decoder_last_pipeline_num_layers": 1, "num_layers": 7}, (6, 1)),
        ({"account_for_embedding_in_pipeline_split": True, "num_layers": 7}, (3, 4)),
        ({"pipeline_model_parallel_layout": "Et*3|tL", "num_layers": 4}, (3, 1)),
        ({"pipeline_model_parallel_layout": "E|(t|)*2,ttL"}, (0, 1, 1, 2)),
    ],
)
def test_uneven_stages(more: dict[str, Any], stages: tuple[int, ...]) -> None:
    assert small(2, pipeline_model_parallel_size=2, **more).layout.pp_layout == stages


def test_a_layout_with_repeats() -> None:
    assert expand_pipeline_layout("Et|(tt|)*2,m|L") == "Et|tt|tt|m|L"
    with pytest.raises(InputError, match="too long"):
        expand_pipeline_layout("(t)*999999")
    with pytest.raises(InputError, match="not understood"):
        expand_pipeline_layout("Ex|L")


def test_the_null_tokenizer_added_a_token_until_2026() -> None:
    settings = MegatronSettings(tokenizer_type="NullTokenizer", vocab_size=128)
    assert settings.padded_vocabulary_size == 128
    before = MegatronSettings(tokenizer_type="NullTokenizer", vocab_size=128, date=datetime.date(2025, 10, 8))
    assert before.vocabulary_size == 129
    assert before.padded_vocabulary_size == 256


@in_one_test
@pytest.mark.parametrize(
    ("more", "tokens"),
    [
        ({"tokenizer_type": "GPT2BPETokenizer"}, 50257),
        ({"tokenizer_type": "TikTokenizer"}, 131072),
        ({"tokenizer_type": "Llama2Tokenizer"}, 32000),
        ({"tokenizer_type": "BertWordPieceCase", "vocab_extra_ids": 100}, 29098),
        ({"tokenizer_type": "GPTSentencePieceTokenizer", "tokenizer_model": "/x/stack_256k.model"}, 256000),
        ({"tokenizer_type": "HuggingFaceTokenizer"}, None),
    ],
)
def test_vocabularies(more: dict[str, Any], tokens: int | None) -> None:
    assert MegatronSettings(**more).vocabulary_size == tokens


def test_the_tokenizer_of_a_known_model_has_the_models_vocabulary() -> None:
    """config.json of Qwen/Qwen3-8B: vocab_size 151936; its tokenizer has 151,669 tokens."""
    tokenizer = {"tokenizer_type": "HuggingFaceTokenizer", "vocab_size": None}
    launch = small(**tokenizer, tokenizer_model="Qwen/Qwen3-8B", make_vocab_size_divisible_by=128)
    assert launch.spec is not None
    assert launch.spec.vocab_size == 151_936
    assert any(
        note.startswith("--tokenizer-model 'Qwen/Qwen3-8B': the vocabulary of qwen3-8b") for note in launch.notes
    )
    with pytest.raises(InputError, match="--vocab-size: missing"):
        small(**tokenizer, tokenizer_model="/models/unknown")


def test_networks() -> None:
    def network(**more: Any) -> Any:
        spec = small(**more).spec
        assert spec is not None
        return spec.main.block.feed_forward

    assert (network().hidden_act, network().gated, network().intermediate_size) == ("gelu", False, 256)
    swiglu = network(swiglu=True, disable_bias_linear=True)
    assert (swiglu.hidden_act, swiglu.gated, swiglu.intermediate_size) == ("silu", True, 128)  # 170 down to 64s
    assert not swiglu.up_bias
    assert network(squared_relu=True).hidden_act == "relu2"


def test_attention() -> None:
    def attention(**more: Any) -> Any:
        spec = small(**more).spec
        assert spec is not None
        return spec.main.block.attention

    biased = attention(disable_bias_linear=True, add_qkv_bias=True)
    assert (biased.q_bias, biased.o_bias) == (True, False)
    assert attention(group_query_attention=True, num_query_groups=2).num_key_value_heads == 2
    assert attention(num_query_groups=2).num_key_value_heads == 4  # without --group-query-attention
    rope = attention(position_embedding_type="rope", rotary_percent=0.5, rotary_base=5000)
    assert (rope.position.rope_theta, rope.position.partial_rotary_factor) == (5000.0, 0.5)
    assert attention(qk_layernorm=True, normalization="RMSNorm").qk_norm.norm.type == "rmsnorm"


def test_latent_attention_without_norms() -> None:
    h, a = 64, 4
    attention = h * a * 192 + h * (32 + 64) + 32 * a * 256 + a * 128 * h + h  # the output alone has a bias
    network, norms = 2 * h * 256 + 256 + h, 4 * h
    launch = small(multi_latent_attention=True, position_embedding_type="rope")
    assert counted(launch) == 128 * h + 4 * (attention + network + norms) + 2 * h
    normed = small(multi_latent_attention=True, position_embedding_type="rope", qk_layernorm=True)
    assert counted(normed) == counted(launch) + 4 * 2 * 32


def test_a_pattern_of_experts() -> None:
    spec = small(num_experts=4, moe_layer_freq="([0]*1+[1]*3)").spec
    assert spec is not None
    kinds = [spec.main.layer(name).feed_forward.type for name in spec.main.layer_names()]
    assert kinds == ["mlp", "moe", "moe", "moe"]
    spec = small(num_experts=4, moe_layer_freq=2).spec
    assert spec is not None
    kinds = [spec.main.layer(name).feed_forward.type for name in spec.main.layer_names()]
    assert kinds == ["moe", "mlp", "moe", "mlp"]


def test_the_script_or_an_argument_tells_the_model() -> None:
    def kind(script: str = "", **more: Any) -> str:
        flags = {f"--{name.replace('_', '-')}": value for name, value in more.items()}
        launch = read_megatron({**SMALL, **flags}, LaunchSource("x", script_name=script))
        assert isinstance(launch.framework_settings, MegatronSettings)
        return launch.framework_settings.kind

    assert kind() == "gpt"
    assert kind("pretrain_bert.py") == "bert"
    assert kind("pretrain_gpt.py", data_path="/x/my-bert_00") == "gpt"
    assert kind(data_path="/x/my-bert_00") == "bert"
    assert kind(decoder_seq_length=8) == "t5"
    assert kind(hybrid_layer_pattern="M*-E", num_experts=2, mamba_num_groups=1) == "hybrid"
    assert kind(hybrid_override_pattern="MM", mamba_num_groups=1) == "hybrid"


# ---- what is refused


@in_one_test
@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"fp4_format": "e2m1"}, "--fp4-format"),
        ({"cuda_graph_impl": "full_iteration"}, "--cuda-graph-impl (a CUDA graph of the whole step)"),
        ({"enable_cuda_graph": True, "cuda_graph_scope": "full_iteration"}, "--enable-cuda-graph (a CUDA graph of the"),
        ({"use_torch_fsdp2": True}, "--use-torch-fsdp2 (sharded weights)"),
        (
            {"use_custom_fsdp": True, "fsdp_double_buffer": True},
            "--fsdp-double-buffer (with --use-megatron-fsdp, two buffers for all layers)",
        ),
        (
            {
                "optimizer_cpu_offload": True,
                "optimizer_offload_fraction": 0.5,
                "use_precision_aware_optimizer": True,
                "use_distributed_optimizer": True,
            },
            "--optimizer-cpu-offload (Adam's step on the host with other than --optimizer-offload-fraction 1)",
        ),
        ({"optimizer": "soap"}, "--optimizer (another optimizer)"),
        ({"inference_max_requests": 4}, "--inference-max-requests (inference, not training)"),
        ({"hiden_size": 4}, "--hiden-size (no argument that is known. Did you mean --hidden-size"),
    ],
)
def test_what_may_change_memory_is_refused(more: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as stop:
        small(**more)
    text = str(stop.value)
    assert text.startswith("small.json: not understood, and may change memory: ")
    assert said in text
    assert text.endswith("or --allow-unknown")
    flags = {f"--{name.replace('_', '-')}": value for name, value in more.items()}
    assert len(read_megatron({**SMALL, **flags}, LaunchSource("small.json", allow_unknown=True)).unknown_arguments) == 1


@in_one_test
@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"hidden_size": None}, "--hidden-size: missing"),
        ({"hidden_size": "wide"}, "--hidden-size: 'wide'; expected a whole number"),
        ({"hidden_size": 10**30}, "--hidden-size"),
        ({"hidden_size": 0}, "--hidden-size: 0; expected a positive whole number"),
        ({"bf16": "bf16"}, "--bf16: 'bf16'; it takes no value"),
        ({"hidden_dropout": "a"}, "--hidden-dropout: 'a'; expected a number"),
        ({"position_embedding_type": "alibi"}, "expected one of learned_absolute, rope"),
        ({"num_attention_heads": 5}, "--num-attention-heads: 5; expected a divisor of --hidden-size 64"),
        ({"tensor_model_parallel_size": 3}, "--devices: 8 cannot hold the groups of tensor"),
        ({"pipeline_model_parallel_size": 8}, "8 stages do not divide 4 layers"),
        ({"global_batch_size": 12}, "--global-batch-size: 12; expected a multiple of"),
        ({"num_experts": 4, "moe_layer_freq": "[1]*3"}, "--moe-layer-freq: a pattern of 3 layers; expected one of 4"),
        ({"num_experts": 4, "moe_layer_freq": "__import__('os')"}, "--moe-layer-freq"),
        ({"batch_size": 4}, "no longer valid; expected --micro-batch-size"),
        ({"fp16": True, "bf16": True}, "both are given"),
        ({"seq_length": 64}, "--max-position-embeddings: 32; expected at least 64"),
        ({"cp_comm_type": "p2p+a2a", "context_parallel_size": 2}, "--cp-comm-type p2p+a2a: not supported"),
        ({"step_batch_size_schedule": "200B:768"}, "expected a batch from 0 on"),
        ({"step_batch_size_schedule": "0:384 x"}, "--step-batch-size-schedule '0:384 x': not understood"),
        ({"tokenizer_type": "HuggingFaceTokenizer", "vocab_size": None}, "--vocab-size: missing"),
        ({"hybrid_layer_pattern": "MX"}, "--hybrid-layer-pattern: a layer X is not supported"),
    ],
)
def test_wrong_values_name_file_argument_and_fix(more: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as stop:
        small(8, **more)
    assert str(stop.value).startswith("small.json: ")
    assert said in str(stop.value)


def test_all_arguments_of_the_files_are_known() -> None:
    """No argument of a functional test is unknown, and those that are ignored have no field."""
    known = MegatronSettings.flags()
    for path in LAUNCHES.glob("*.yaml"):
        if "MODEL_ARGS" in path.read_text():
            launch = read_launch(path, 8)
            assert not launch.unknown_arguments
            assert not set(launch.ignored_arguments) & set(known)
    ignored = read("mla_moe_ep4.json").ignored_arguments
    assert "--moe-router-bias-update-rate" in ignored


def test_arguments_of_a_checkpoint_are_noted() -> None:
    assert small(use_checkpoint_args=True).notes[0].startswith("--use-checkpoint-args: the arguments of a checkpoint")


def test_a_json_object_of_flags() -> None:
    data = json.loads((LAUNCHES / "mla_moe_ep4.json").read_text())
    flags = data["megatron_args"]
    launch = launch_from_text(json.dumps(flags), "flags.json", 8)
    assert counted(launch) == counted(read("mla_moe_ep4.json"))
    assert launch.env == {}


def test_the_file_is_not_told_by_its_name(tmp_path: Path) -> None:
    copy = tmp_path / "launch.txt"
    copy.write_text((LAUNCHES / "gpt_tp2_pp2.yaml").read_text())
    assert read_launch(copy, 8).layout == Layout(tp=2, pp=2, dp=2)
