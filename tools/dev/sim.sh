#!/usr/bin/env bash
# Builds the simulator, optimised, and runs it with the arguments given. Planted bugs are built in a copy of the tree.
set -euo pipefail
. tools/dev/common.sh
. tools/dev/setup.sh

case " $* " in
  *" --compilers "*) exec tools/dev/compilers.sh ;;
  *" --mutants "*) exec .venv/bin/python tools/dev/mutants.py "$@" ;;
esac
build_sim build-sim --buildtype=debugoptimized
exec build-sim/tests/sim/kvferry-sim "$@"
