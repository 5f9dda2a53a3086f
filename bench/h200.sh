#!/usr/bin/env bash
# What kernels for a GPU do on one, in ten minutes: loads, bits, speed, launches, compile times; a table last.
#   bench/h200.sh              on a machine with a GPU, its driver, torch for CUDA and triton 3.6
#   bench/h200.sh --dry-run    the same lines on small sizes, on a GPU that is not there: shows that the script works
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH="src:.${PYTHONPATH:+:$PYTHONPATH}"
exec timeout "${TIMEOUT_S:-600}" "${PYTHON:-python3}" bench/h200.py "$@"
