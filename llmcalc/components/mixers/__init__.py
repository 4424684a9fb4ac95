"""Token mixers, one file each: parts that mix information between tokens."""
