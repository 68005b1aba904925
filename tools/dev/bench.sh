#!/usr/bin/env bash
# Runs the benchmarks that build-release holds.
set -euo pipefail
exec .venv/bin/python tools/dev/bench.py build-release/bench "$@"
