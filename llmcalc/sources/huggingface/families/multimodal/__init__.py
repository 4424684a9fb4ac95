"""Families of multimodal wrappers that may contain any text model."""
