#!/usr/bin/env bash
# Builds the simulator, optimised, and runs it with the arguments given. Planted bugs are built in a copy of the tree.
set -euo pipefail
. tools/dev/common.sh
. tools/dev/setup.sh

case ${1:-} in
  --compilers) exec tools/dev/compilers.sh ;;
  --mutants) exec .venv/bin/python -m pytest -sv tests/mutants -k "${2:-test}" ;;
esac
build_sim build-sim --buildtype=debugoptimized
exec build-sim/tests/sim/kvferry-sim "$@"
