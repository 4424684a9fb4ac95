"""Wrappers around any text model."""
