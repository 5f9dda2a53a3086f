#!/usr/bin/env bash
# What kernels for a GPU do on one, in ten minutes: loads, bits, speed, launches, compile times; a table last.
#   bench/h200.sh              on a machine with a GPU, its driver, torch for CUDA and triton 3.6
#   bench/h200.sh --dry-run    the first case of each section on a driver that interprets: shows that the script works
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH="src:.${PYTHONPATH:+:$PYTHONPATH}"
exec timeout 600 "${PYTHON:-python3}" bench/h200.py "$@"
