"""Qwen's multimodal models."""
