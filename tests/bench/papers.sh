#!/bin/sh
# Fills the papers' tables at their own budgets on one GPU, the most wanted first, and takes up where the packs end:
#
#     FEDBENCH_DATA=... sh tests/bench/papers.sh MINUTES PACK.parquet
#
# When the minutes are over, the run under way is saved in the store (FEDBENCH_HOME), and what is complete is in the pack.
# `fedbench results import PACK.parquet` takes it in elsewhere.
set -u
end=$(($(date +%s) + 60 * $1))
pack=$2

fill() {
    left=$((end - $(date +%s)))
    [ "$left" -gt 30 ] || return 0
    timeout "$left" python -m fedbench train "$@" --budget paper --unshipped
    python -m fedbench results export budget=paper -o "$pack"
}

# FedDRM, Tables 1 and 2: does the paper's first claim hold?
for column in "*Dir-0.3" "*5-SPC"; do
    fill --table feddrm/1 --dataset cifar10 --column "$column" -m feddrm -m fedavgft -m fedavg
done
fill --table feddrm/1 --dataset cifar10
# pFedFDA, Table 2 on CIFAR-10, then its CIFAR10-S columns, Tables 3 and 5.
fill --table pfedfda/2 --dataset cifar10 --column "*0.5*"
fill --table pfedfda/2 --dataset cifar10 --column "*0.1*"
fill --table pfedfda/1 --dataset cifar10
fill --table pfedfda/3 --dataset cifar10
fill --table pfedfda/5 --dataset cifar10
# FLUX: the other four seeds on MNIST, then Fashion-MNIST, then CIFAR-10.
for seed in 43 44 45 46; do
    fill --table flux/1 --dataset mnist --seed "$seed" -m fedavg -m flux -m apfl_flux -m fesem
done
fill --table flux/1 --dataset fashion_mnist
fill --table flux/1 --dataset cifar10
# FedDRM, Table 3: eight to thirty-two clients.
fill --table feddrm/3 -m feddrm -m fedavgft
