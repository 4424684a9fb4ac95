"""The tensors listed in a checkpoint's header: names, shapes, formats, bytes. Only headers are read, never the data."""
