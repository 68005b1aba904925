#!/usr/bin/env bash
# Builds the simulator, optimised, and runs it with the arguments given. Planted bugs are in a build of their own.
set -euo pipefail
. tools/dev/common.sh
. tools/dev/setup.sh

folder=build-sim
options=(--buildtype=debugoptimized)
for argument in "$@"; do
  case $argument in
    --compilers)
      exec tools/dev/compilers.sh
      ;;
    --mutants* | -m*)
      folder=build-mutants
      options+=(-Dmutants=true)
      ;;
  esac
done
build_sim $folder "${options[@]}"
exec $folder/tests/sim/kvferry-sim "$@"
