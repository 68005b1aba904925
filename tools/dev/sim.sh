#!/usr/bin/env bash
# Builds the simulator, optimised, and runs it with the arguments given. Planted bugs are in a build of their own.
set -euo pipefail
. tools/dev/common.sh
. tools/dev/setup.sh

# build_sim FOLDER MESON-OPTION…
build_sim() {
  local folder=$1
  shift
  mkdir -p "$CACHE/logs"
  [ -f "$folder/build.ninja" ] ||
    .venv/bin/meson setup "$folder" --buildtype=debugoptimized -Dbench=false "$@" >"$CACHE/logs/$folder.log" ||
    { tail -n 20 "$CACHE/logs/$folder.log" >&2; rm -rf "$folder"; die "meson cannot set up $folder"; }
  .venv/bin/ninja -C "$folder" --quiet tests/sim/kvferry-sim
}

folder=build-sim
options=()
for argument in "$@"; do
  case $argument in
    --mutants* | -m*)
      folder=build-mutants
      options=(-Dmutants=true)
      ;;
  esac
done
build_sim $folder "${options[@]}"
exec $folder/tests/sim/kvferry-sim "$@"
