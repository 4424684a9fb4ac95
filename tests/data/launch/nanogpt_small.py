# A small model on one machine.
wandb_log = False
out_dir = "out-small"
batch_size = 8
block_size = 512
gradient_accumulation_steps = 2 * 8
n_layer = 6
n_head = 6
n_embd = 384
