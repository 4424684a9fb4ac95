"""DeepSpeed's ZeRO: reads its config file, and computes the memory of a rank (Rajbhandari 2019, arXiv:1910.02054).

All of it may be changed without reading another framework; what DeepSpeed's processes were seen to hold is in
`tests/data/deepspeed.json`.
"""
