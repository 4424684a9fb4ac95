"""FLOPs of encoders of images and audio with their projectors, against those of their classes.

The class's own `get_image_features` or `get_audio_features` runs on an input of the size that its processor makes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from llmcalc.components.inputs.base import InputSizes
from llmcalc.costs.encoders import encoded_inputs
from llmcalc.costs.flops import forward_flops_of
from llmcalc.errors import InputError
from llmcalc.model import ModelSpec
from llmcalc.witnesses.transformers import class_config_fields, class_model_type, load_class
from llmcalc.workload.inputs import EncoderPass, Inputs
from llmcalc.workload.run_config import RunConfig
from tests.builders import parts_of, spec_of
from tests.components.inputs.test_processors import phi4_mask
from tests.components.towers.test_towers import towers_of, wrapped
from tests.components.towers.tower_shapes import LLAMA4, PIXTRAL, WRAPPERS
from tests.families import shapes_of
from tests.samples import sampled, spread

SIZES = ((40, 64), (90, 31))
"""Height and width of an image."""

OTHER_SHAPES: dict[str, list[dict[str, Any]]] = {
    "llama4": [{"vision_config": {**LLAMA4, "num_attention_heads": 3}}],  # RoPE needs heads of a multiple of 4
    "kimi_k25": WRAPPERS["kimi_k25"][2][:1],  # whose class takes a square of positions
    "lfm2_vl": [
        {**shape, "vision_config": {**shape["vision_config"], "num_patches": 25, "patch_size": 16}}
        for shape in WRAPPERS["lfm2_vl"][2]
    ],  # tiles of 32 × 32 patches
    "phi4_multimodal": [
        {**shape, "audio_config": {**shape["audio_config"], "downsample_rate": 1}}
        for shape in WRAPPERS["phi4_multimodal"][2][:1]
    ],  # whose class merges no frames, and fails with a symmetric bias
    "gemma4_unified": [
        {**shape, "vision_config": {**shape["vision_config"], "mm_posemb_size": 400}}
        for shape in WRAPPERS["gemma4_unified"][2]
        if shape["vision_config"]
    ],
    "llava": [*WRAPPERS["llava"][2], {"vision_config": PIXTRAL, "vision_feature_select_strategy": "full"}],
    **{
        kind: [
            {**shape, "vision_config": {**shape["vision_config"], "position_embedding_size": 2000}}
            for shape in WRAPPERS[kind][2]
            if shape["vision_config"]
        ]
        for kind in ("gemma4", "embedding_gemma2", "diffusion_gemma")
    },
}
"""Shapes that the class runs with images, where those of its parameters do not suffice."""


def rule_of(spec: ModelSpec, field: str) -> Any:
    return next((rule for tower in spec.towers.values() if (rule := getattr(tower, field, None)) is not None), None)


def cases(field: str) -> Iterator[Any]:
    """Yields the kinds and shapes of wrappers whose processor's rule is known."""
    for kind, (_, _, shapes) in WRAPPERS.items():
        for i, shape in enumerate(OTHER_SHAPES.get(kind, shapes)):
            spec = spec_of(wrapped(kind, shape))
            if rule_of(spec, field) is not None and not merges_too_many(spec):
                marks = pytest.mark.exhaustive if kind == "gemma4" and i else ()  # a large budget of patches
                yield pytest.param(kind, shape, id=f"{kind}-{i}", marks=marks)


def merges_too_many(spec: ModelSpec) -> bool:
    """Whether a projector merges more patches than an image has; the class fails then too."""
    return any(getattr(tower, "merge", 1) == 4 for tower in spec.towers.values() if tower.type == "projector")


def build(config: dict[str, Any]) -> Any:
    """Returns the class with random weights, in which the encoders are."""
    import transformers

    config_object = transformers.AutoConfig.for_model(
        class_model_type(config["model_type"]), **class_config_fields(config)
    )
    config_object._attn_implementation = "eager"
    model: Any = load_class(config)(config_object).eval()
    return getattr(model, "model", model)


def pixels(kind: str, spec: ModelSpec, height: int, width: int) -> dict[str, torch.Tensor]:
    """Returns the class's input for an image."""
    rule, tower = next((tower.image, tower) for tower in spec.towers.values() if getattr(tower, "image", None))
    patches, side = tower.patches, tower.patches.patch_size
    encoded: InputSizes = rule.input_sizes(height, width, side)
    flat = patches.num_channels * patches.temporal_patch_size * side**2
    if rule.type == "smart_resize":
        grid = torch.tensor([[1, encoded.rows, encoded.columns]])
        merges = {"image_merge_sizes": torch.tensor([1])} if kind == "video_llama_3" else {}
        return {"pixel_values": torch.ones(encoded.rows * encoded.columns, flat), "image_grid_thw": grid, **merges}
    if rule.type == "patch_grid":
        grid = torch.tensor([[encoded.rows, encoded.columns]])
        return {"pixel_values": torch.ones(encoded.rows * encoded.columns, flat), "image_grid_hw": grid}
    if rule.type == "padded":
        grid = torch.tensor([[1, encoded.rows, encoded.columns]])
        square = patches.num_channels, side, side
        return {"pixel_values": torch.ones(encoded.rows * encoded.columns, *square), "image_grid_thw": grid}
    if rule.type == "budget":
        real_patches = (encoded.tokens - rule.marks) * rule.merge**2
        columns = max(1, real_patches // rule.merge // max(1, round((real_patches * height / width) ** 0.5)))
        columns = next(n for n in range(columns, 0, -1) if real_patches % n == 0 and n % rule.merge == 0)
        places = torch.full((1, encoded.rows, 2), -1)
        for i in range(real_patches):
            places[0, i] = torch.tensor([i % columns, i // columns])
        return {"pixel_values": torch.ones(1, encoded.rows, flat), "image_position_ids": places}
    if rule.type == "native_tiles":
        real_patches = encoded.projector_patches or 0
        return {
            "pixel_values": torch.ones(1, encoded.rows, flat),
            "spatial_shapes": torch.tensor([[rule.merge, real_patches // rule.merge]]),
            "pixel_attention_mask": (torch.arange(encoded.rows) < real_patches)[None].long(),
        }
    shape = encoded.tile_or_clip_count, patches.num_channels, encoded.rows * side, encoded.columns * side
    values = torch.ones(*shape)
    if rule.type == "longest_edge":
        return {"pixel_values": values, "image_sizes": torch.tensor([shape[2:]])}
    if rule.type == "pinpoints":
        return {"pixel_values": values[None], "image_sizes": torch.tensor([[height, width]])}
    return {"pixel_values": values[None] if rule.type == "split" else values}


def parts_of_image(case: tuple[Any, ...]) -> set[Any]:
    """What of an image costs FLOPs: the parts of the encoders, and the rule of the processor."""
    spec = spec_of(wrapped(*case))
    return {rule_of(spec, "image").type, *parts_of(spec.towers)}


@pytest.mark.parametrize(
    ("kind", "shape"), spread(sampled({str(case.id): case.values for case in cases("image")}, parts_of_image))
)
def test_flops_of_an_image_are_those_of_the_class(kind: str, shape: dict[str, Any]) -> None:
    config = wrapped(kind, shape)
    spec, model = spec_of(config), build(config).requires_grad_(False)  # a Q-Former's queries are a parameter
    for height, width in SIZES:
        closed = encoded_inputs(spec, Inputs(image=f"{width}x{height}")).total(forward_flops_of)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            with_encoder = model if hasattr(model, "get_image_features") else getattr(model, "encoder", None)
            if kind == "phi4_multimodal":
                run_phi4_image(model, height, width)
            else:
                output = with_encoder.get_image_features(**pixels(kind, spec, height, width))
            if kind == "llama4":  # the forward pass has this line
                model.multi_modal_projector(output.last_hidden_state.flatten(0, -2))
        assert closed == counter.get_total_flops() - products_for_nothing(spec, height, width), (height, width)


def run_phi4_image(model: Any, height: int, width: int) -> None:
    """Runs Phi-4-multimodal's encoder of images of 24 × 24 pixels and its projector on an image and its padding."""
    embedding = model.embed_tokens_extend.image_embed
    embedding.crop_size, side, fields = 24, 6, embedding.config.vision_config
    mask = phi4_mask(24, 4, height, width)
    tiles = mask.unflatten(1, (-1, side)).unflatten(0, (-1, side)).transpose(1, 2).flatten(0, 1)
    masks = torch.cat([torch.ones(1, side, side), tiles])
    real_tokens = tiles[:, ::2, ::2].sum() + tiles[:: mask.shape[1] // side, ::2, 0].sum()
    ids = torch.full((1, int(real_tokens) + 1 + side // 2 * (side // 2 + 1)), fields.image_token_id)
    pixels = torch.ones(1, len(masks), fields.num_channels, 24, 24)
    sizes = torch.tensor([[4 * patches for patches in mask.shape]])
    embedding(ids, torch.ones(*ids.shape, embedding.config.hidden_size), pixels, sizes, masks[None])


def products_for_nothing(spec: ModelSpec, height: int, width: int) -> int:
    """Returns the FLOPs of means that Gemma 4's class computes as products, and of Ovis 2's products with zeros.

    Gemma 4: patches of the whole budget, times embeddings of the whole budget, times the width, by a matrix of shares.
    Ovis 2: the probabilities of the words that mark images are zeros, which its class multiplies with their embeddings.
    """
    tower: Any = next(iter(spec.towers.values()))
    rule: Any = tower.image
    if rule.type == "budget" and not rule.projects_padding:
        return 2 * rule.max_tokens * rule.max_tokens * rule.merge**2 * tower.output_width
    if rule.type == "covering":
        table: Any = spec.towers["visual_embeddings_table"]
        encoded = rule.input_sizes(height, width, tower.patches.patch_size)
        rows = encoded.tile_or_clip_count * encoded.rows * encoded.columns // rule.merge**2
        return 2 * rows * table.output_marks * table.output_width
    return 0


@pytest.mark.parametrize(("kind", "shape"), list(cases("audio")))
def test_flops_of_audio_are_those_of_the_class(kind: str, shape: dict[str, Any]) -> None:
    config = wrapped(kind, shape)
    spec, model = spec_of(config), build(config)
    rule = rule_of(spec, "audio")
    lengths = [rule.frames / 100] if rule.type == "clips" else [0.31, 1.9, 4.73]  # a clip has the frames of the encoder
    for seconds in lengths:
        closed = encoded_inputs(spec, Inputs(audio=seconds)).total(forward_flops_of)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            run_audio(kind, model, spec, rule.input_sizes(seconds))
        assert closed == counter.get_total_flops(), seconds


def test_flops_of_audio_of_gemma3n_are_those_of_its_encoder_and_embedder() -> None:
    """Its whole class needs timm for its encoder of images."""
    from transformers.models.gemma3n import configuration_gemma3n as settings
    from transformers.models.gemma3n.modeling_gemma3n import Gemma3nAudioEncoder, Gemma3nMultimodalEmbedder

    audio = {"hidden_size": 24, "conf_num_attention_heads": 2, "conf_num_hidden_layers": 2, "vocab_size": 7}
    audio |= {"input_feat_size": 21, "sscp_conv_channel_size": [10, 6]}
    config = wrapped("gemma3n", {"vision_config": {"vocab_size": 9}, "audio_config": audio})
    spec, fields = spec_of(config), settings.Gemma3nAudioConfig(**audio)
    encoder = Gemma3nAudioEncoder(fields).eval()
    embedder = Gemma3nMultimodalEmbedder(fields, settings.Gemma3nTextConfig(**config["text_config"]))
    for seconds in (0.31, 1.9):
        frames = rule_of(spec, "audio").input_sizes(seconds).rows
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            output = encoder(torch.ones(1, frames, 21), torch.zeros(1, frames).bool())
            embedder(inputs_embeds=output.last_hidden_state)
        assert encoded_inputs(spec, Inputs(audio=seconds)).total(forward_flops_of) == counter.get_total_flops(), seconds


def test_flops_of_audio_of_ultravox_are_those_of_whisper_and_its_projector() -> None:
    """Its class is code of its repository: Whisper's layers on the frames of a recording, and positions in eights."""
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    audio = {"d_model": 24, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 40}
    audio |= {"num_mel_bins": 10, "max_source_positions": 150}
    spec = spec_of({**shapes_of("ultravox")[0], "hidden_size": 56, "audio_config": audio})
    encoder = WhisperEncoder(WhisperConfig(**audio, attn_implementation="eager")).eval()
    gated, last = torch.nn.Linear(8 * 24, 56, bias=False), torch.nn.Linear(28, spec.hidden_size, bias=False)
    for seconds in (0.31, 1.9, 3):
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            positions = encoder.conv2(encoder.conv1(torch.ones(1, 10, round(100 * seconds)))).transpose(1, 2)
            for layer in encoder.layers:
                positions = layer(positions, None)
            whole_tokens = torch.nn.functional.pad(positions, (0, 0, 0, -positions.shape[1] % 8))
            last(gated(whole_tokens.reshape(1, -1, 8 * 24))[..., :28])
        assert encoded_inputs(spec, Inputs(audio=seconds)).total(forward_flops_of) == counter.get_total_flops(), seconds


def run_audio(kind: str, model: Any, spec: ModelSpec, encoded: InputSizes) -> None:
    """Runs the class's encoder of audio and its projector on features of the size that its processor makes."""
    tower: Any = next(tower for tower in spec.towers.values() if getattr(tower, "audio", None) is not None)
    batch = encoded.tile_or_clip_count, encoded.rows
    if tower.audio.type == "chunks":
        stem, frames = tower.stack.stem, encoded.rows
        mels = stem.num_mel_bins if stem.type == "convolution" else stem.subsampling.num_mel_bins
        padding = -frames % 100 if kind == "qwen3_asr" else 0
        mask = (torch.arange(frames + padding) < frames)[None].long()
        model.get_audio_features(torch.ones(1, mels, frames + padding), mask)
    elif tower.type == "projector":
        model.get_audio_features(torch.ones(*batch, tower.input_size), torch.ones(*batch).bool())
    elif tower.audio.type == "recording" and tower.type == "audio":
        features = torch.ones(*batch, tower.stack.stem.subsampling.num_mel_bins)
        model.get_audio_features(features, torch.ones(*batch).bool())
    elif tower.type == "san_m":
        model.get_audio_features(torch.ones(*batch, tower.input_size), torch.ones(*batch).bool())
    elif tower.type == "ctc_conformer":
        model.get_audio_features(torch.ones(*batch, tower.input_size))
    elif tower.type == "conformer":
        features = torch.ones(*batch, tower.subsampling.num_mel_bins)
        if kind == "phi4_multimodal":
            embedding = model.embed_tokens_extend.audio_embed
            embedding.down_proj_for_speech(embedding.up_proj_for_speech(embedding.encoder(features, None)))
        else:
            model.get_audio_features(features, torch.full(batch, kind != "gemma3n"))
    else:
        features = torch.ones(encoded.tile_or_clip_count, tower.stack.stem.num_mel_bins, encoded.rows)
        if hasattr(model, "get_audio_features"):
            further: tuple[Any, ...] = (torch.ones(*batch),) if "flamingo" in kind or kind == "glmasr" else ()
            if kind == "musicflamingo":
                further = *further, torch.full((1, encoded.rows // 4), model.config.audio_token_id)
            model.get_audio_features(features, *further)
        else:  # Qwen2-Audio has these two lines in its forward pass
            model.multi_modal_projector(model.audio_tower(features).last_hidden_state)


GRIDS: dict[str, tuple[EncoderPass, dict[str, torch.Tensor]]] = {
    "idefics2": (EncoderPass(rows=6, columns=6), {"pixel_values": torch.ones(1, 1, 3, 24, 24)}),
    "minicpmv4_6": (
        EncoderPass(rows=8, columns=8),
        {"pixel_values": torch.ones(1, 3, 4, 8 * 8 * 4), "target_sizes": torch.tensor([[8, 8]])},
    ),
    "vibevoice_asr": (EncoderPass(rows=24), {"input_values": torch.ones(1, 1, 24)}),
    "nemo_speechlm": (
        EncoderPass(rows=24),
        {"input_features": torch.ones(1, 24, 6), "input_features_mask": torch.ones(1, 24).long()},
    ),
    "vibevoice": (
        EncoderPass(rows=24),
        {"input_values": torch.ones(1, 1, 24), "padding_mask": torch.ones(1, 24)},
    ),
}
"""Wrapper whose processor's rule is not counted → patches or samples of a pass, and the class's input with them."""

GENERATED = {
    "vibevoice": ("semantic_audio_encoder", "semantic_audio_projector", "semantic_audio_projection"),
}
"""Wrapper → its encoders and projectors of generated speech alone."""


@pytest.mark.parametrize("kind", GRIDS)
def test_flops_of_a_grid_of_patches_are_those_of_the_class(kind: str) -> None:
    config, (encoder_pass, inputs) = wrapped(kind, WRAPPERS[kind][2][0]), GRIDS[kind]
    model = build(config).requires_grad_(False)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        getattr(model, "get_image_features", getattr(model, "get_audio_features", None))(**inputs)
    nodes = (node for name, node in towers_of(spec_of(config)).items() if name not in GENERATED.get(kind, ()))
    assert sum(node.total(forward_flops_of, RunConfig(encoder_pass)) for node in nodes) == counter.get_total_flops()


def test_an_image_with_too_few_patches_is_refused() -> None:
    """24 / 4 = 6 patches a side, of which 4 × 4 are merged."""
    spec = spec_of(wrapped("smolvlm", WRAPPERS["smolvlm"][2][0]))
    with pytest.raises(InputError, match=r"towers\.connector\.merge: 16 patches are merged into one, .* gives 36"):
        encoded_inputs(spec, Inputs(image="64x40"))


def test_images_of_emu3_are_tokens_of_its_codebook() -> None:
    """768 and 1,024 pixels are 96 lines of 128 tokens and a mark, with four marks around; four frames are read."""
    encoded = encoded_inputs(spec_of(wrapped("emu3", {"vq_config": {}})), Inputs(image="1024x768", images=3))
    (run,) = encoded.encoder_runs
    workload: Any = run.run_config.workload
    assert encoded.image_tokens == 3 * (96 * 129 + 4)
    assert (workload.batch, workload.rows) == (3 * 4, 96)
