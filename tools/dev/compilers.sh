#!/usr/bin/env bash
# A seed is one run, event for event, with any compiler: builds the simulator with gcc and clang, with and without
# optimisation, and compares the hashes of what happened.
set -euo pipefail
. tools/dev/common.sh
. tools/dev/setup.sh

SEEDS=1..300
HASHES=$CACHE/hashes
builds=(gcc-O0 gcc-O2 clang-19-O0 clang-19-O2)

# hashes BUILD: a line "SEED HASH" for each run. A run that found something fails.
hashes() {
  local simulator=build-$1/tests/sim/kvferry-sim
  "$simulator" --hash --seeds $SEEDS
}

rm -rf "$HASHES"
mkdir -p "$HASHES"
for build in "${builds[@]}"; do
  say "compiling build-$build …"
  CC=${build%-O?} build_sim "build-$build" -Doptimization="${build#*-O}" -Ddebug=false
done
for build in "${builds[@]}"; do
  hashes "$build" >"$HASHES/$build" || die "a run of $build has a finding: $(grep -m 1 ' P[1-8]$' "$HASHES/$build")"
done

differ=0
for build in "${builds[@]:1}"; do
  while read -r run one _ other; do
    [ "$one" = "$other" ] && continue
    differ=$((differ + 1))
    [ $differ -gt 20 ] || say "$run: ${builds[0]} $one, $build $other"
  done < <(paste -d ' ' "$HASHES/${builds[0]}" "$HASHES/$build")
done
[ $differ = 0 ] || die "the same run is not the same with every compiler: $differ differences"
say "$(wc -l <"$HASHES/${builds[0]}") runs, the same with ${builds[*]}"
