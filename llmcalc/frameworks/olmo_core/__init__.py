"""OLMo-core: AI2's trainer of OLMo 2 and OLMo 3.

All of it may be changed without reading another program; `frameworks/launch/python_source.py` evaluates constants of
Python files for all programs.
"""
