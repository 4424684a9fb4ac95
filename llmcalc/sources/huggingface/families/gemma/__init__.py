"""Gemma, its encoder-decoders and its multimodal models."""
