"""The memory of a run in bytes: what tensors hold, and what torch's allocator reserves for them."""
