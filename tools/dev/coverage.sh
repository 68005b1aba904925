#!/usr/bin/env bash
# What the unit tests of the layers that decide, the inputs of the decoders and the simulator reach of src/core, src/find,
# src/plan, src/recovery and src/wire. They are built apart: counted branches, nothing optimised, no assertions (a branch
# that must not happen is none).
set -euo pipefail
. tools/dev/common.sh
. tools/dev/setup.sh

FOLDER=build-coverage
seeds=3000
[ $# -eq 0 ] || { [ "$1" = --seeds ] && [ $# -eq 2 ] && seeds=$2; } || die "coverage: --seeds COUNT"

PATH=$PWD/.venv/bin:$PATH # meson and this script must mean one ninja
CC=gcc configure_c $FOLDER --buildtype=plain -Db_coverage=true -Db_ndebug=true -Dbench=false -Ddefault_library=static
find $FOLDER -name '*.gcda' -delete # counts of an earlier run would be added to
say "building $FOLDER and running the unit tests …"
ninja -C $FOLDER --quiet tests/sim/kvferry-sim
.venv/bin/meson test -C $FOLDER --print-errorlogs 'base/*' 'wire/*' 'plan/*' 'core/*' 'find/*' 'recovery/*' corpus/wire corpus/ticket corpus/sim
say "simulating seeds 1 to $seeds …"
$FOLDER/tests/sim/kvferry-sim --seeds "1..$seeds" >$FOLDER/sim.log 2>&1 || { cat $FOLDER/sim.log >&2; die "the simulator found something"; }
say "counting …"
exec .venv/bin/python tools/dev/coverage.py $FOLDER
