"""Components that process each token separately, one file each: feed-forward networks, experts, routers.

A network may be changed without reading other networks or layers: what they ask of it is in `Network` of
`components/base.py`.
"""
