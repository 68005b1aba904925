#!/usr/bin/env bash
# Runs the benchmarks that build-release holds; with --peers, beside other libraries.
set -euo pipefail
. tools/dev/common.sh
. tools/dev/setup.sh

for option in "$@"; do
  if [ "$option" = --peers ]; then
    setup_peers
    setup_plot
    PYTHONPATH=tools/dev exec .venv/bin/python -m peers.main build-release/bench "$@"
  fi
done
exec .venv/bin/python tools/dev/bench.py build-release/bench "$@"
