"""Oumi: training with TRL's trainers or transformers' Trainer from one YAML file.

All of it may be changed without reading another program; `frameworks/trl/config_file.py` reads the arguments that a
config stands for.
"""
