"""Multimodal wrappers of any text model, whose vision and audio encoders `towers` reads.

transformers: the folders of `models` that the model types name.
"""

from __future__ import annotations

from ...family import Family, Quirks, field_names
from ..seq2seq.fast_conformer import ENCODER_MODULES as PARAKEET_MODULES

LLAVA_IGNORED_FIELDS = field_names("""
    freeze_mm_mlp_adapter image_aspect_ratio image_grid_pinpoints mm_projector_type mm_use_im_patch_token
    mm_use_im_start_end mm_use_im_video_token mm_vision_select_feature mm_vision_select_layer tune_mm_mlp_adapter
    use_mm_proj
    """)
"""Fields of the original LLaVA code in its flat configs, which change no count of the text model."""

LLAVA_TOWERS = {
    "mm_hidden_size": "the projector from encoders of width {} is not counted",
    "mm_image_tower": "the image encoder {} is not counted",
    "mm_video_tower": "the video encoder {} is not counted",
    "mm_vision_tower": "the vision encoder {} is not counted",
}
"""Parts of flat LLaVA configs that their own code loads from other repositories; no class of transformers has them."""

JANUS_TOKENIZER = {
    "image_tokenizer": "vqmodel",
    "codebook": "quantize.embedding",
    "decoder": "decoder + .post_quant_conv",
    "post_quant_conv": ".post_quant_conv",
    **{f"encoder.level_{i}": f"down.{i}" for i in range(8)},
    **{f"decoder.level_{i}": f"up.{4 - i}" for i in range(5)},
    **{f"block_{i + 1}": f"block.{i}" for i in range(8)},
    **{f"attn_{i + 1}": f"attn.{i} - attn.{i}.norm" for i in range(8)},
    **{f"attn_{i + 1}_norm": f"attn.{i}.norm" for i in range(8)},
    "middle_1": "mid.block_1",
    "middle_2": "mid.block_2",
    "middle_attn": "mid.attn_1 - mid.attn_1.norm",
    "middle_attn_norm": "mid.attn_1.norm",
    **{f"{name}_{i}": f"{name}{i}" for name in ("conv", "norm") for i in (1, 2)},
    "shortcut": "nin_shortcut",
    "downsample": "downsample.conv",
    "generation": ".generation_embeddings + .generation_aligner + .generation_head",
    "generation.embeddings": ".generation_embeddings",
    "generation.map_1": ".generation_aligner.fc1",
    "generation.map_2": ".generation_aligner.hidden_layers.0",
    "head_1": ".generation_head.proj_out",
    "head_2": ".generation_head.vision_head",
}
"""Node of Janus's image tokenizer → module of `JanusModel`, whose decoder has its five levels in the reverse order."""
VIBEVOICE_MODULES = {
    "towers.acoustic_audio_encoder": "acoustic_tokenizer_encoder",
    "towers.semantic_audio_encoder": "semantic_tokenizer_encoder",
    "towers.stage_0": "stem",
    **{f"towers.stage_{i}": f"conv_layers.{i - 1}" for i in range(1, 9)},
    "towers.layers": "stage | layers",
    "towers.conv": "conv.conv | mixer.conv | convtr.convtr",
    "towers.conv_pre_norm": "norm",
    "towers.conv_out_scale": "gamma",
    "towers.mlp": "ffn",
    "towers.mlp_pre_norm": "ffn_norm",
    "towers.up_proj": "linear1",
    "towers.down_proj": "linear2",
    "towers.mlp_out_scale": "ffn_gamma",
    "towers.conv_out": "head.conv",
}
"""Node of VibeVoice's encoders of samples → module of its class."""
SAM_MODULES = {
    "towers.patch_embedding": "patch_embed.projection | embeddings.patch_embedding",
    "towers.position_embedding": "pos_embed | embeddings.position_embedding",
    "towers.row_distances": "rel_pos_h",
    "towers.column_distances": "rel_pos_w",
    **{f"towers.{letter}_proj": f"qkv/3 | {letter}_proj" for letter in "qkv"},
    "towers.up_proj": "lin1 | fc1 | .fc1",
    "towers.down_proj": "lin2 | fc2 | .fc2",
    **{
        f"towers.{name}_{i}": f"{module_name}{i}"
        for name, module_name in (("conv", "conv"), ("norm", "layer_norm"))
        for i in (1, 2)
    },
}
"""Node of SAM's encoder → module of `SamVisionEncoder`."""

GOT_MODULES = {
    **SAM_MODULES,
    "towers.halving_1": "multi_modal_projector.conv_upsampler1",
    "towers.halving_2": "multi_modal_projector.conv_upsampler2",
    "towers.multi_modal_projector.map_1": "multimodal_projector",
}
GRANITE_MODULES = {
    "towers.audio_encoder": "encoder",
    "towers.input_proj": "input_linear",
    "towers.label_head": "out",
    "towers.label_proj": "out_mid",
    **{f"towers.mlp_{i}": f"ff{i} - ff{i}.pre_norm" for i in (1, 2)},
    **{f"towers.mlp_{i}_pre_norm": f"ff{i}.pre_norm" for i in (1, 2)},
    "towers.self_attn_pre_norm": "attn.pre_norm",
    "towers.self_attn": "attn - attn.pre_norm | attention - attention.output.LayerNorm",
    "towers.q_proj": "to_q | attention.query",
    "towers.k_proj": "to_kv/2 | attention.key",
    "towers.v_proj": "to_kv/2 | attention.value",
    "towers.o_proj": "to_out | output.dense",
    "towers.distance_keys": "rel_pos_emb",
    "towers.convolution_pre_norm": "conv.norm",
    "towers.convolution": "conv - conv.norm",
    "towers.convolution.in_proj": "up_conv",
    "towers.convolution.conv": "depth_conv.conv",
    "towers.convolution.norm": "batch_norm",
    "towers.convolution.out_proj": "down_conv",
    "towers.norm": "post_norm",
    "towers.resampler": "qformer + query",
    "towers.resampler.query": ".query",
    "towers.resampler.query_norm": "layernorm",
    "towers.resampler.layers": "encoder.layer",
    "towers.self_attn_post_norm": "attention.output.LayerNorm",
    "towers.cross_attn": "crossattention - crossattention.output.LayerNorm",
    "towers.cross_attn_post_norm": "crossattention.output.LayerNorm",
    "towers.mlp": "intermediate_query + output_query - output_query.LayerNorm",
    "towers.mlp.up_proj": "dense",
    "towers.mlp_post_norm": "output_query.LayerNorm",
    "towers.projector.map_1": "linear",
}
"""Node of Granite Speech's encoder and Q-Former → module of its class."""

FAMILIES = {
    "fuyu": Family(
        None,
        text_type="persimmon",
        tower_class_prefixes="Fuyu",
        tower_file="fuyu",
        modules={"towers.patch_embedding": ".vision_embed_tokens"},
    ),
    "llava": Family(
        None,
        ignored_fields=LLAVA_IGNORED_FIELDS,
        uncounted_fields=LLAVA_TOWERS,
        text_type="llama",
        tying_source="either",
        tower_file="llava",
    ),
    "llava_next": Family(None, text_type="llama", tower_file="llava"),
    "llava_onevision": Family(None, text_type="qwen2", tying_source="either", tower_file="llava"),
    "internvl": Family(None, text_type="qwen2", tower_file="llava"),
    "idefics3": Family(None, text_type="llama", tower_file="llava"),
    "smolvlm": Family(None, text_type="llama", tower_file="llava"),
    "modernvbert": Family(
        None,
        text_type="modernbert",
        tower_file="siglip",
        modules={"lm_head": "projection_head + lm_head", "lm_head.decoder": ".lm_head"},
    ),
    "qwen2_audio": Family(None, text_type="qwen2", tying_source="never", tower_file="audio"),
    "voxtral": Family(
        None,
        text_type="llama",
        tying_source="never",
        text_defaults={
            "vocab_size": 131072,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "num_hidden_layers": 30,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 100_000_000.0,
            "head_dim": 128,
        },
        tower_file="audio",
    ),
    "llava_next_video": Family(None, text_type="llama", tying_source="either", tower_file="llava"),
    "video_llava": Family(None, text_type="llama", tower_file="llava"),
    "vipllava": Family(
        None,
        text_type="llama",
        tower_file="llava",
        modules={"towers.multi_modal_projector.norm": "projector_layernorm"},
    ),
    "ovis2": Family(
        None,
        text_type="qwen2",
        wrapper_sizes_head=True,
        tower_file="ovis",
        modules={
            "towers.vision_tower": "vision_tower.transformer",
            "towers.vision_tower.embed_norm": "embeddings.rms_norm",
            "towers.vision_tower.norm": "rms_norm",
            "towers.self_attn_pre_norm": "rms_norm1",
            "towers.mlp_pre_norm": "rms_norm2",
            "towers.mlp": "ffn",
            "towers.visual_head": "vision_tower",
            "towers.visual_head.map_1": "head_linear",
            "towers.visual_head.out_norm": "head_norm",
            "towers.visual_embeddings_table.map_1": "weight",
            "towers.visual_embeddings_table.output_marks": "weight",
        },
    ),
    "deepseek_vl": Family(
        None, text_type="llama", tower_file="llava", modules={"towers.map_1": "linear1", "towers.map_2": "linear2"}
    ),
    "qianfan_ocr": Family(None, text_type="qwen3", tower_file="llava"),
    "video_llama_3": Family(
        None,
        text_type="qwen2",
        tying_source="either",
        tower_file="siglip",
        modules={"towers.map_1": "readout.0", "towers.map_2": "readout.2"},
    ),
    "lighton_ocr": Family(
        None,
        text_type="qwen3",
        tower_file="pixtral",
        modules={
            "towers.vision_projection.map_1": "patch_merger.merging_layer",
            "towers.vision_projection.map_2": "linear_1",
            "towers.vision_projection.map_3": "linear_2",
        },
    ),
    "exaone4_5": Family(
        None,
        text_type="exaone4",
        tower_file="qwen",
        modules={"towers.q_proj": "qkv", "towers.k_proj": "qkv", "towers.v_proj": "qkv"},
    ),
    "hyperclovax_vision_v2": Family(
        None,
        text_type="hyperclovax",
        tower_file="qwen",
        modules={
            "towers.vision_merger": "vision_model.merger",
            "towers.vision_merger.norm": "ln_q",
            "towers.vision_merger.map_1": "mlp.0",
            "towers.vision_merger.map_2": "mlp.2",
            "towers.projector.map_1": "projector",
        },
    ),
    "cosmos3_omni": Family(None, text_type="qwen3_vl_text", tower_file="qwen"),
    "glm46v": Family(None, text_type="glm4v_text", tower_file="glm"),
    "glmga": Family(None, text_type="glm4v_text", tower_file="glm"),
    "audioflamingo3": Family(None, text_type="qwen2", tying_source="never", tower_file="audio"),
    "musicflamingo": Family(None, text_type="qwen2", tying_source="never", tower_file="audio"),
    **{
        kind: Family(
            None,
            text_type=text,
            text_section="vlm_config",
            projection_size=("embedding_dim", 128),
            quirks=Quirks(mask_making_classes=("ForRetrieval",) if kind == "colpali" else ()),
        )
        for kind, text in (("colpali", "paligemma"), ("colqwen2", "qwen2_vl"), ("colmodernvbert", "modernvbert"))
    },
    "moss_transcribe_diarize": Family(
        None, text_type="qwen3", tower_file="audio", modules={"towers.multi_modal_projector.out_norm": "norm"}
    ),
    "glmasr": Family(
        None,
        text_type="llama",
        text_defaults={
            "vocab_size": 59264,
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-5,
            "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        },
        ignored_fields=frozenset({"rope_dim", "text_config.rope_dim"}),  # of its own code, which rotates whole heads
        tower_file="audio",
    ),
    "nemotron_h_omni": Family(
        None,
        text_type="nemotron_h",
        tying_source="text",
        tower_file="radio",
        modules={
            **{f"towers.{name.removeprefix('encoder.')}": place for name, place in PARAKEET_MODULES.items()},
            "towers.self_attn_pre_norm": "norm_self_att | norm1",
            "towers.embed_audio.norm": "layer_norm",
            "towers.patch_embedding": "embeddings.patch_projection",
            "towers.video_patch_embedding": "embeddings.video_patch_projection",
            "towers.registers": "embeddings.cls_register_token",
            "towers.self_attn_out_scale": "layer_scale1.lambda1",
            "towers.mlp_out_scale": "layer_scale2.lambda1",
        },
    ),
    "janus": Family(
        None,
        text_type="llama",
        tower_file="emu",
        modules={
            **{f"towers.{node_name}": module_name for node_name, module_name in JANUS_TOKENIZER.items()},
            "towers.o_proj": "projection_layer | proj_out",
            "towers.aligner.map_1": "fc1",
            "towers.aligner.map_2": "hidden_layers.0",
        },
    ),
    "got_ocr2": Family(None, text_type="qwen2", tower_file="sam", modules=GOT_MODULES),
    "pp_chart2table": Family(None, text_type="qwen2", tower_file="sam", modules=GOT_MODULES),
    "deepseek_vl_hybrid": Family(
        None,
        text_type="llama",
        tower_file="sam",
        ignored_fields=frozenset({"high_res_vision_config"}),
        modules={
            **SAM_MODULES,
            "towers.high_res_vision_model": "high_res_vision_model.vision_encoder",
            "towers.vision_aligner": "aligner",
            "towers.vision_aligner.map_1": "vision_proj",
            "towers.high_res_vision_aligner": "aligner",
            "towers.high_res_vision_aligner.map_1": "high_res_vision_proj",
            "towers.aligner.map_1": "proj",
            "towers.second_neck": ".high_res_vision_neck + .high_res_vision_alpha",
            "towers.second_neck.factor": ".high_res_vision_alpha",
            "towers.halving_1": ".high_res_vision_proj.conv1",
            "towers.halving_2": ".high_res_vision_proj.conv2",
        },
    ),
    "idefics2": Family(
        None,
        text_type="mistral",
        tower_file="llava",
        ignored_fields=frozenset({"perceiver_config"}),
        modules={
            "towers.connector_projection": "connector.modality_projection",
            "towers.connector_projection.map_1": "gate_proj + up_proj",
            "towers.connector_projection.map_2": "down_proj",
            "towers.connector.resampler": "perceiver_resampler",
            "towers.resampler.query": "latents",
            "towers.latents_norm": "input_latents_norm",
            "towers.patches_norm": "input_context_norm",
            "towers.mlp_pre_norm": "layer_norm2 | post_attention_layernorm",
        },
    ),
    **{
        kind: Family(
            None,
            text_type="granite",
            ignored_fields=frozenset({"projector_config"}),
            tower_file="granite",
            modules=GRANITE_MODULES,
        )
        for kind in ("granite_speech", "granite_speech_plus")
    },
    **{
        kind: Family(
            None,
            text_type="qwen3_5_text",
            tower_file="siglip",
            modules={
                "towers.vision_tower.layers": "encoder.layers[first]",
                "towers.vision_tower.upper.layers": "encoder.layers[last]",
                "towers.merger": "vit_merger",
                "towers.merger.self_attn_pre_norm": "layer_norm1",
                "towers.merged_norm": "pre_norm",
                "towers.merger.up_proj": "linear_1",
                "towers.merger.down_proj": "linear_2",
                **{f"towers.vision_merger_{i}": f"merger.mlp.{i}" for i in range(8)},
                **{f"towers.vision_merger_{i}.norm": "pre_norm" for i in range(8)},
            },
        )
        for kind in ("minicpmv4_6", "minicpmv4_7", "minicpm_ocr")
    },
    "fun_asr_nano": Family(
        None,
        text_type="qwen3",
        ignored_fields=frozenset({"adaptor_config"}),
        tower_file="fun_asr",
        modules={
            "towers.self_attn_pre_norm": "input_layernorm",
            "towers.memory": "fsmn.conv",
            "towers.norm": "final_layernorm",
        },
    ),
    "vibevoice_asr": Family(
        None,
        text_type="qwen2",
        tying_source="never",
        tower_file="vibevoice",
        modules={
            **VIBEVOICE_MODULES,
            **{
                f"towers.{name}_audio_{node_name}": module_name.format(name)
                for name in ("acoustic", "semantic")
                for node_name, module_name in (
                    ("projector", "multi_modal_projector"),
                    ("projector.map_1", "{}_linear_1"),
                    ("projector.out_norm", "{}_norm"),
                    ("projection", "multi_modal_projector"),
                    ("projection.map_1", "{}_linear_2"),
                )
            },
        },
    ),
    "nemo_speechlm": Family(
        None,
        text_type="nemotron_h",
        tying_source="never",
        ignored_fields=frozenset({"word_timestamp_config"}),
        tower_file="transcribe",
        uncounted_classes=("TranscribeModel",),  # without the head of word timestamps
        modules={
            "towers.audio_tower": "audio_tower + word_timestamp_encoder + word_timestamp_head",
            "towers.audio_tower.patch_embedding": "asr_encoder.embedder.projection",
            "towers.embed_norm": "input_layer_norm",
            "towers.audio_tower.embed_norm": "asr_encoder.input_layer_norm",
            "towers.audio_tower.layers": "asr_encoder.layers",
            "towers.audio_tower.norm": "asr_encoder.layer_norm",
            "towers.out_norm": "asr_norm",
            "towers.speakers": "diarization_model",
            "towers.speakers.patch_embedding": "model.audio_tower.embedder.projection",
            "towers.speakers.embed_norm": "model.audio_tower.input_layer_norm",
            "towers.speakers.layers": "model.audio_tower.layers",
            "towers.speakers.norm": "model.audio_tower.layer_norm",
            "towers.silence": "silence_embeds",
            "towers.speakers.proj": "model.proj",
            "towers.speakers.upsampler": "model.upsampler.conv",
            "towers.dense": "classifier.dense",
            "towers.speakers.classifier": "classifier.out_proj",
            "towers.timestamps": "word_timestamp_encoder + .word_timestamp_head",
            "towers.timestamps.classifier": ".word_timestamp_head",
            "towers.multi_modal_projector.map_1": ".multi_modal_projector",
        },
    ),
    "vibevoice": Family(
        None,
        {"tie_word_embeddings": False},
        text_type="qwen2",
        tying_source="text",
        ignored_fields=frozenset({"diffusion_head_config"}),
        tower_file="vibevoice",
        modules={
            **VIBEVOICE_MODULES,
            "towers.acoustic_audio_encoder": (
                "audio_tower + .diffusion_head + .latent_bias_factor + .latent_scaling_factor"
            ),
            "towers.semantic_audio_encoder": "semantic_tokenizer_encoder",
            "towers.acoustic_audio_encoder.stage_0": "encoder.stem",
            **{f"towers.acoustic_audio_encoder.stage_{i}": f"encoder.conv_layers.{i - 1}" for i in range(1, 9)},
            "towers.acoustic_audio_encoder.conv_out": "encoder.head.conv",
            "towers.latent_bias": ".latent_bias_factor",
            "towers.latent_scale": ".latent_scaling_factor",
            "towers.diffusion_head": ".diffusion_head",
            "towers.latent_proj": "noisy_images_proj",
            "towers.condition_proj": "cond_proj",
            "towers.step_proj_1": "timestep_proj.fc1",
            "towers.step_proj_2": "timestep_proj.fc2",
            "towers.modulation": "linear | linear_1",
            "towers.output": "final_layer",
            "towers.proj": "linear_2",
            **{
                f"towers.{name}_audio_{node_name}": module_name
                for name, connector in (("acoustic", "multi_modal_projector"), ("semantic", "semantic_connector"))
                for node_name, module_name in (
                    ("projector", connector),
                    ("projector.map_1", "linear_1"),
                    ("projector.out_norm", "act"),
                    ("projection", connector),
                    ("projection.map_1", "linear_2"),
                )
            },
        },
    ),
}
