"""Parses and answers the question of each command, for the command line, the Python API and the web page.

A function takes models that have been read and settings that have been checked. It returns an answer, which builds the
command's report. Modules are imported when a question needs them.

How a question refuses options that contradict each other may be changed without reading elsewhere; the numbers come
from the packages below, and the texts of an answer from `reports`.
"""
