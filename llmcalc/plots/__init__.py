"""Pictures of answers, drawn with matplotlib.

Colours, labels and places may be changed without reading elsewhere: the numbers come from `reports` and other packages,
and nothing is computed from a picture.
"""
