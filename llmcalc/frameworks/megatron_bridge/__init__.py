"""Megatron-Bridge and its Python recipes.

All of it may be changed without reading another program; a run is one of Megatron-Core.
"""
