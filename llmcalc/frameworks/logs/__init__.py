"""Logs of engines and training programs: what their readers share, and which folders have one.

A folder of a program has its reader in `log.py`; whatever is here may be changed without reading those, as long as
`LogReading` keeps its fields.
"""
