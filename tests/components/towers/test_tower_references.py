"""References of vision and audio encoders against the outputs of a class, and which inputs each output depends on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from llmcalc.components.base import ModelProperties
from llmcalc.components.norm import Norm
from llmcalc.components.towers.audio import AudioTower
from llmcalc.components.towers.conformer import Conformer
from llmcalc.components.towers.image_tokenizer import ImageTokenizer
from llmcalc.components.towers.patch_embedder import PatchEmbedder
from llmcalc.components.towers.projector import Projector, ProjectorLayer
from llmcalc.components.towers.vision import Patches, PatchPositions
from llmcalc.costs.flops import forward_flops_of
from llmcalc.sources.huggingface.description import read_config
from llmcalc.workload.inputs import EncoderPass
from llmcalc.workload.run_config import RunConfig
from tests.builders import spec_of
from tests.components.towers.test_towers import towers_of, wrapped
from tests.components.towers.tower_shapes import PHI4_AUDIO, WRAPPERS
from tests.samples import in_one_test


def _halves(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    first, second = weight.chunk(2)
    return first, second


def _phi4(reference: Any, cls: Any) -> None:
    """Copies the weights of transformers' Phi-4-multimodal conformer to the reference."""

    def same(ours: Any, theirs: Any) -> None:
        ours.weight.copy_(theirs.weight.reshape(ours.weight.shape))
        ours.bias.copy_(theirs.bias)

    below, conv = reference.subsampling, cls.embed.conv
    for ours, theirs in (
        (below.conv_1, conv[0]),
        (below.depthwise_2, conv[2]),
        (below.pointwise_2, conv[3]),
        (below.depthwise_3, conv[5]),
    ):
        same(ours, theirs)
    same(below.pointwise_3, conv[6])
    same(below.proj, cls.embed.out)
    reference.relative_bias.weight.copy_(cls.relative_attention_bias_layer.bias_values.weight)
    for ours, theirs in zip(reference.layers, cls.encoders, strict=True):
        for mine, network in ((ours.mlp_1, theirs.feed_forward_in), (ours.mlp_2, theirs.feed_forward_out)):
            (up, gate), (up_bias, gate_bias) = _halves(network.gate_up_proj.weight), _halves(network.gate_up_proj.bias)
            for linear, weight, bias in ((mine.up_proj, up, up_bias), (mine.gate_proj, gate, gate_bias)):
                linear.weight.copy_(weight)
                linear.bias.copy_(bias)
            same(mine.down_proj, network.down_proj)
        for which in "qkvo":
            same(ours.self_attn.get_submodule(f"{which}_proj"), theirs.self_attn.get_submodule(f"{which}_proj"))
        inner, module = ours.convolution, theirs.conv
        same(inner.in_proj, module.glu.ext_pw_conv_1d)
        inner.gate_bias.weight.copy_(torch.stack([module.glu.b1.flatten(), module.glu.b2.flatten()]))
        for mine, part in (
            (inner.conv, module.dw_sep_conv_1d.dw_conv),
            (inner.pointwise, module.dw_sep_conv_1d.pw_conv),
            (inner.out_proj, module.ext_pw_conv_1d),
        ):
            same(mine, part)
        norms = {
            "mlp_1_pre_norm": theirs.feed_forward_in.layer_norm,
            "mlp_2_pre_norm": theirs.feed_forward_out.layer_norm,
            "norm": theirs.layer_norm,
            "self_attn_pre_norm": theirs.layer_norm_att,
            "convolution_pre_norm": theirs.conv.layer_norm,
        }
        for name, norm in norms.items():
            same(ours.get_submodule(name), norm)


def test_a_conformer_gives_what_the_class_of_phi4_multimodal_gives() -> None:
    from transformers.models.phi4_multimodal.configuration_phi4_multimodal import Phi4MultimodalAudioConfig
    from transformers.models.phi4_multimodal.modeling_phi4_multimodal import Phi4MultimodalAudioModel

    torch.manual_seed(0)
    config = {
        "model_type": "phi4_multimodal",
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    table, _ = read_config({**config, "vocab_size": 50, "intermediate_size": 20, "audio_config": PHI4_AUDIO})
    spec = Conformer.model_validate(table["towers"]["audio_encoder"])
    made = Phi4MultimodalAudioConfig(**PHI4_AUDIO)
    made._attn_implementation = "eager"
    cls, reference = Phi4MultimodalAudioModel(made).eval(), spec.reference(ModelProperties(32)).eval()
    with torch.no_grad():
        for parameter in cls.parameters():
            parameter.normal_(std=0.3)
        _phi4(reference, cls)
        frames = torch.randn(2, 90, PHI4_AUDIO["input_size"])
        theirs = cls(frames, mask=None)
        torch.testing.assert_close(
            reference(frames), getattr(theirs, "last_hidden_state", theirs), atol=1e-4, rtol=1e-4
        )


def test_a_windowed_conformer_sees_no_further_than_its_contexts() -> None:
    torch.manual_seed(0)
    spec = Conformer.examples()[0]
    net, frames = spec.reference(ModelProperties(24)).eval(), torch.randn(1, 160, spec.subsampling.num_mel_bins)
    changed = frames.clone()
    changed[:, 80:84] += 1
    with torch.no_grad():
        out, other = net(frames), net(changed)
    assert out.shape == (1, 40, spec.output_width)
    differs = (out != other).any(-1)[0].nonzero().flatten().tolist()
    back, ahead = spec.attention.context_left, spec.attention.context_right
    assert back is not None
    reach = spec.num_hidden_layers * (back - 1 + spec.convolution.kernel_size - 1)
    assert min(differs) == 20 - spec.num_hidden_layers * ahead
    assert max(differs) <= 21 + reach
    assert len(differs) > 1


def test_an_encoder_of_sound_sees_all_frames() -> None:
    torch.manual_seed(0)
    spec = AudioTower.examples()[0]
    net, frames = spec.reference(ModelProperties(24)).eval(), torch.randn(2, 5, 18)
    changed = frames.clone()
    changed[:, :, -1] += 1
    with torch.no_grad():
        out, other = net(frames), net(changed)
    assert out.shape == (2, 9, spec.hidden_size)
    assert (out != other).any(-1).all()


def test_a_projector_puts_frames_side_by_side_and_gates() -> None:
    frames = Projector(input_size=3, maps=(ProjectorLayer(size=5),), frames=2).reference(ModelProperties(5))
    x = torch.randn(4, 6, 3)
    torch.testing.assert_close(frames(x, 6)[1], frames.get_submodule("map_1")(torch.cat([x[2], x[3]], -1)))
    mean = Projector(input_size=3, maps=(ProjectorLayer(size=5),), frames=2, merged="mean").reference(
        ModelProperties(5)
    )
    torch.testing.assert_close(mean(x, 6)[1], mean.get_submodule("map_1")((x[2] + x[3]) / 2))
    gated = Projector(input_size=3, maps=(ProjectorLayer(size=8, hidden_act="silu", gated=True),)).reference(
        ModelProperties(4)
    )
    value, gate = gated.get_submodule("map_1")(x).chunk(2, -1)
    torch.testing.assert_close(gated(x, 6), value * torch.nn.functional.silu(gate))


@in_one_test
@pytest.mark.parametrize("shape", WRAPPERS["emu3"][2])
def test_flops_of_an_image_tokenizer_are_those_of_emu3(shape: dict[str, Any]) -> None:
    """Two images of 16 × 24 pixels, each of which the encoder reads as several frames."""
    from transformers.models.emu3.configuration_emu3 import Emu3VQVAEConfig
    from transformers.models.emu3.modeling_emu3 import Emu3VQVAE

    fields, spec = Emu3VQVAEConfig(**shape["vq_config"]), spec_of(wrapped("emu3", shape))
    fields._attn_implementation = "eager"
    tower = ImageTokenizer.model_validate(spec.towers["image_tokenizer"])
    side, frames = 2 ** (len(tower.channel_multiplier) - 1), 2**tower.temporal_levels
    pixels, sizes = torch.randn(2, tower.in_channels, 16, 24), torch.tensor([[16, 24]] * 2)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        tokens = Emu3VQVAE(fields).eval().encode(pixels, sizes).image_tokens
    run = RunConfig(EncoderPass(batch=2 * frames, rows=16 // side, columns=24 // side))
    assert tower.frames_per_image == frames
    assert towers_of(spec)["image_tokenizer"].total(forward_flops_of, run) == counter.get_total_flops()
    assert tuple(tokens[0].shape) == (16 // side, 24 // side)


@in_one_test
@pytest.mark.parametrize("shape", WRAPPERS["florence2"][2])
def test_flops_of_davit_and_its_projector_are_those_of_florence2(shape: dict[str, Any]) -> None:
    """Two images of 64 × 96 pixels, which are whole windows in every stage."""
    from transformers import Florence2Config
    from transformers.models.florence2.modeling_florence2 import Florence2Model

    config, spec = wrapped("florence2", shape), spec_of(wrapped("florence2", shape))
    class_config = Florence2Config(vision_config=shape["vision_config"], text_config=config["text_config"])
    class_config.vision_config._attn_implementation = "eager"
    pixels = torch.randn(2, shape["vision_config"].get("in_channels", 3), 64, 96)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        features = Florence2Model(class_config).eval().get_image_features(pixels).pooler_output
    run = RunConfig(EncoderPass(batch=2, rows=8, columns=12))
    assert sum(tower.total(forward_flops_of, run) for tower in towers_of(spec).values()) == counter.get_total_flops()
    assert tuple(features.shape) == (2, 8 * 12 + 1, 32)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"input_size": 4, "maps": [{"size": 5}], "mean_vector": True, "merge": 2}, "expected no resampler, merge"),
        ({"input_size": 4, "maps": [{"size": 5, "gated": True}]}, "5 has no two halves"),
        ({"input_size": 4, "maps": [{"size": 6, "gated": True, "halves": True}]}, "expected false with halves"),
        ({"input_size": 4, "maps": [{"size": 5}], "merged": "mean", "norm_of": "merged"}, "expected no norm_of"),
        ({"input_size": 4, "maps": [{"size": 5}], "vocab_size": 9}, "expected a norm"),
    ],
)
def test_projectors_that_cannot_be(table: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Projector.model_validate(table)


def test_patches_without_an_encoder_are_what_the_class_of_the_unified_gemma4_makes_of_them() -> None:
    """The class receives patches that are cut already; here they are cut as in the reference, which does not change the
    weights.
    """
    from transformers.models.gemma4_unified import configuration_gemma4_unified as settings
    from transformers.models.gemma4_unified import modeling_gemma4_unified as modeling

    torch.manual_seed(0)
    sizes = {"patch_size": 2, "pooling_kernel_size": 2, "mm_embed_dim": 12, "mm_posemb_size": 5, "output_proj_dims": 12}
    cls = modeling.Gemma4UnifiedVisionEmbedder(
        settings.Gemma4UnifiedVisionConfig(**sizes), settings.Gemma4UnifiedTextConfig(hidden_size=20)
    ).eval()
    spec = PatchEmbedder(
        hidden_size=12,
        patches=Patches(patch_size=4, bias=True),
        positions=PatchPositions(rows=5, axes=2),
        norm=Norm(type="layernorm"),
    )
    ours: Any = spec.reference(ModelProperties(20))
    with torch.no_grad():
        cls.pos_embedding.normal_()
        ours.patch_embedding.weight.copy_(cls.patch_dense.weight)
        ours.patch_embedding.bias.copy_(cls.patch_dense.bias)
        ours.position_embedding.weight.copy_(cls.pos_embedding.transpose(0, 1).flatten(0, 1))
        pixels = torch.randn(1, 3, 1, 8, 12)
        rows = (
            pixels[:, :, 0]
            .unflatten(-1, (3, 4))
            .unflatten(-3, (2, 4))
            .permute(0, 2, 4, 1, 3, 5)
            .flatten(3)
            .flatten(1, 2)
        )
        places = torch.tensor([[[x, y] for y in range(2) for x in range(3)]])
        torch.testing.assert_close(ours(pixels), cls(rows, places).last_hidden_state)
