"""Layouts over several devices: a rank's program and placements, messages, pipeline schedules, and search.

How layouts are searched and suggested (`search`, `nearest`) and the words of a layout's options (`layout_request`)
may be changed without reading elsewhere; the numbering of ranks in `layout` is relied on by every framework.
"""
