"""Logs of serving engines and training programs: code that their readers share, and the list of readers.

A folder of a program has its reader in `log.py`; whatever is here may be changed without reading those, as long as
`ParsedLog` keeps its fields.
"""
