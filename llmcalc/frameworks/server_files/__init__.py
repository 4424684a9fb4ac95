"""Readers of launch files of servers: shell scripts, container files, Kubernetes manifests, Modelfiles.

Whatever is here may be changed without reading other rooms: all that is asked of it is `read.servers_of_file`, which
returns a `LaunchedServer` for each server. Nothing in a file is executed.
"""
