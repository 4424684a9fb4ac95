#!/bin/bash
ENV=$1
SIZE=$2
TP=$3
PR=$4
if [ $ENV = dsw ]; then
    GPUS=8
elif [ $ENV = dlc ]; then
    GPUS=${RESOURCE_GPU}
fi
if [ $SIZE = 0.5B ]; then
    LAYERS=24; HIDDEN=896; HEADS=14; FFN=4864; GROUPS_KV=2
elif [ $SIZE = 7B ]; then
    LAYERS=28; HIDDEN=3584; HEADS=28; FFN=18944; GROUPS_KV=4
fi
if [ $PR = bf16 ]; then
    precision=" --bf16"
fi
OVERLAP=$(( ($TP > 1) ? 1 : 0 ))
if [ $OVERLAP -eq 1 ] && [ $PR = bf16 ]; then
    parallel=" --sequence-parallel"
fi
if [ "$PRETRAINED" = yes ]; then
    load=" --load checkpoint"
fi
run="torchrun --nproc_per_node $GPUS pretrain_qwen.py --num-layers ${LAYERS} --hidden-size ${HIDDEN} \
    --num-attention-heads ${HEADS} --ffn-hidden-size ${FFN} --group-query-attention --num-query-groups ${GROUPS_KV} \
    --seq-length 2048 --max-position-embeddings 32768 --micro-batch-size 1 --global-batch-size 16 --train-iters 10 \
    --lr 1e-5 --swiglu --normalization RMSNorm --disable-bias-linear --add-qkv-bias --position-embedding-type rope \
    --untie-embeddings-and-output-weights --tensor-model-parallel-size ${TP} --attention-dropout 0 --hidden-dropout 0 \
    --patch-tokenizer-type Qwen2Tokenizer --extra-vocab-size 293 --use-distributed-optimizer \
    ${precision} ${parallel} ${load}"
echo ${run}
eval ${run}
