"""What the functions of the Python API return."""
