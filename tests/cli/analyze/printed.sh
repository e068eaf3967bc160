# Printed speeds on other GPUs beside predicted ones. Ratios of dense attention: an independent program gives 1.11 to 1.18, 1.08, 1.07
# (RTX 4090), 0.93 and 0.97 (L40), 1.00 (A100).
for gpu in A100-80 H100-SXM L40 RTX4090; do
    "$LACUNA" analyze "$ROOT/datasets/printed/$gpu.jsonl" --gpu $gpu --beside measured -g trace,method --format csv |
        LC_ALL=C awk -F, 'NR > 1 { printf "%s %s: %.4g ms printed, %.4g predicted, %.2f\n", $1, $2, $6 / 1e6, $12 / 1e6, $18 }'
done
