"""Multimodal wrappers of any text model."""
