"""Families of Qwen's multimodal models."""
