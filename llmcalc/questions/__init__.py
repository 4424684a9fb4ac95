"""Every command's question, asked in one place for the command line, for Python and for the page.

A function takes models that have been read and settings that have been checked, and returns an answer, which has the
command's report. What a question needs is loaded when it is asked.

How a question refuses options that contradict each other may be changed without reading elsewhere; the numbers come
from rooms below, and words of an answer from `reports`.
"""
