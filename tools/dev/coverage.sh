#!/usr/bin/env bash
# What the unit tests of src/base, src/wire and src/core, the fuzz inputs of the decoders and the simulator reach of
# src/wire and src/core. They are built apart: counted branches, nothing optimised, no assertions (a branch that must not
# happen is none).
set -euo pipefail
. tools/dev/common.sh
. tools/dev/setup.sh

FOLDER=build-coverage
seeds=3000

while [ $# -gt 0 ]; do
  case $1 in
    --seeds) seeds=${2:-}; shift 2 || die "coverage: --seeds COUNT" ;;
    *) die "coverage: unknown option '$1' (--seeds COUNT)" ;;
  esac
done

configure() {
  mkdir -p "$CACHE/logs"
  [ -f $FOLDER/build.ninja ] ||
    CC=gcc .venv/bin/meson setup $FOLDER --buildtype=plain -Db_coverage=true -Db_ndebug=true -Dbench=false \
      -Ddefault_library=static >"$CACHE/logs/$FOLDER.log" ||
    { tail -n 20 "$CACHE/logs/$FOLDER.log" >&2; rm -rf $FOLDER; die "meson cannot set up $FOLDER"; }
}

# Counts of an earlier run would be added to.
forget_counts() {
  find $FOLDER -name '*.gcda' -delete
}

unit_tests() {
  .venv/bin/meson test -C $FOLDER --print-errorlogs 'base/*' 'wire/*' 'core/*' corpus/wire corpus/ticket
}

simulate() {
  local tape
  for tape in tests/sim/tapes/*.tape; do
    $FOLDER/tests/sim/kvferry-sim --tape "$tape" >$FOLDER/tape.log 2>&1 || { cat $FOLDER/tape.log >&2; die "tape $tape"; }
  done
  $FOLDER/tests/sim/kvferry-sim --seeds "1..$seeds"
}

PATH=$PWD/.venv/bin:$PATH # meson and this script must mean one ninja
configure
forget_counts
say "building $FOLDER and running the unit tests …"
ninja -C $FOLDER --quiet tests/sim/kvferry-sim
unit_tests
say "simulating seeds 1 to $seeds, and the kept tapes …"
simulate
say "counting …"
exec .venv/bin/python tools/dev/coverage.py $FOLDER
