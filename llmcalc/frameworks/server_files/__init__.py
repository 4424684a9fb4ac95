"""Readers of files that start servers: scripts, container files, manifests of clusters, model files of engines.

Whatever is here may be changed without reading other rooms: all that is asked of it is `read.servers_of`, which returns
a `LaunchedServer` for each server. Nothing in a file is executed.
"""
