for depth in 12 20; do
    torchrun --standalone --nproc_per_node=8 -m scripts.base_train -- --depth=$depth --run=dummy
done
