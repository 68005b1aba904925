#!/usr/bin/env bash
# All tests and checks, one step after the other; a failing step does not stop the others.
set -euo pipefail
. tools/dev/common.sh
. tools/dev/setup.sh

RESULTS=$CACHE/results
SANITIZE=(-Dbench=false --buildtype=debugoptimized)
quick=no
e2e=yes
chaos=no
versions=no

for option in "$@"; do
  case $option in
    --quick) quick=yes ;;
    --skip-e2e) e2e=no ;;
    --chaos) chaos=yes ;;
    --versions) versions=yes ;;
    *) die "test: unknown option '$option' (--quick, --skip-e2e, --chaos, --versions)" ;;
  esac
done

# step NAME REPORT COMMAND…: REPORT is the JUnit file that the command writes (or several, with blanks between them), or
# "-" where the step is one check.
step() {
  local name=$1 report=$2 start=$SECONDS code=0 files
  read -ra files <<<"$2"
  shift 2
  say ""
  say "=== $name"
  [ "$report" = - ] || rm -f "${files[@]}"
  "$@" || code=$?
  say "=== $name: $([ $code = 0 ] && echo ok || echo FAILED), $((SECONDS - start)) s"
  printf '%s\t%s\t%s\t%s\n' "$name" "$code" "$report" "$((SECONDS - start))" >>$RESULTS/steps
}

# What the Python tests need is mostly downloaded: that takes three minutes in which others can compute.
setup_beside() {
  mkdir -p "$CACHE/logs"
  say "[setup] beside clang-tidy: vLLM, and what else the Python tests need"
  setup_tests >"$CACHE/logs/setup-tests.log" 2>&1 &
  beside=$!
}

check_tidy() {
  .venv/bin/python tools/dev/tidy_database.py build build/tidy &&
    run-clang-tidy-19 -quiet -p build/tidy -j "$(nproc)" "^$PWD/(src|tests|bench)/" 2>/dev/null | sed '/warnings generated/d'
}

# meson_tests FOLDER MESON-OPTION…: all tests, and the rules of the code (suite tidy) where nothing is instrumented; with a
# sanitizer not the crowd, which is many times the same, nor what is about the order of memory; with that of threads not the
# rest of what has none, nor the faults of ucx, which the other one sees; with --quick not those of hostile peers. Those that
# mostly wait run four at a time.
meson_tests() {
  local folder=$1 suites=() code=0
  [ "$folder" = build ] || suites+=(--no-suite tidy --no-suite crowd --no-suite litmus)
  [ "$folder" != build-tsan ] || suites+=(--no-suite sim --no-suite threadless --no-suite ucx_faults)
  [ $quick = no ] || suites+=(--no-suite hostile --no-suite stress --no-suite litmus)
  build_c "$@" || return
  chosen_tests "$folder" busy --no-suite waits "${suites[@]}" || code=$?
  chosen_tests "$folder" waits --suite waits --num-processes 4 "${suites[@]}" || code=$?
  return $code
}

# chosen_tests FOLDER LOG MESON-OPTION…
chosen_tests() {
  local folder=$1 log=$2
  shift 2
  .venv/bin/meson test -C "$folder" --no-rebuild --print-errorlogs --logbase "$log" "$@"
}

# Where meson_tests FOLDER reports.
reports() {
  printf '%s ' "$1"/meson-logs/{busy,waits}.junit.xml
}

# The tests that must fail with a planted bug.
mutant_tests() {
  build_c build-mutants -Dbench=false -Dmutants=true &&
    .venv/bin/meson test -C build-mutants --no-rebuild --print-errorlogs --suite mutants
}

fuzz() {
  build_fuzz && .venv/bin/python tools/dev/fuzz.py "$@"
}

python_tests() {
  local folder=$1 report=$2
  .venv/bin/python -m pytest -q --junitxml="$report" -o junit_family=xunit2 "$folder"
}

engine_tests() {
  local report=$1
  shift
  .venv/bin/python -m pytest -v --junitxml="$report" -o junit_family=xunit2 "$@"
}

rm -rf $RESULTS
mkdir -p $RESULTS
setup_c
step "C tests" "$(reports build)" meson_tests build
if [ $quick = no ]; then
  step "simulator, 60 s of fresh seeds" - tools/dev/sim.sh --seconds 60
  step "simulator, the same runs with gcc and clang, -O0 and -O2" - tools/dev/sim.sh --compilers
  step "coverage of src/core and src/wire" - tools/dev/coverage.sh
  setup_beside # of which nothing is timed
  step "clang-tidy" - check_tidy
  wait "$beside" || true # setup_tests says why
  step "C tests, address and undefined behaviour sanitizers" "$(reports build-asan)" \
    meson_tests build-asan "${SANITIZE[@]}" -Db_sanitize=address,undefined
  step "C tests, thread sanitizer" "$(reports build-tsan)" \
    meson_tests build-tsan "${SANITIZE[@]}" -Db_sanitize=thread
  step "planted bugs" build-mutants/meson-logs/testlog.junit.xml mutant_tests
  step "fuzzing, 30 s a target" - fuzz --seconds 30
  setup_tests
  step "Python tests" $RESULTS/python.xml python_tests tests/python $RESULTS/python.xml
  step "hosts on networks that fail" $RESULTS/hosts.xml python_tests tests/hosts $RESULTS/hosts.xml
  if [ $e2e = yes ]; then
    step "end to end, real engines" $RESULTS/e2e.xml \
      engine_tests $RESULTS/e2e.xml tests/e2e --ignore tests/e2e/topology --ignore tests/e2e/chaos --ignore tests/e2e/versions
    step "end to end, engines of other shapes" $RESULTS/topology.xml \
      engine_tests $RESULTS/topology.xml tests/e2e/topology
  fi
  if [ $versions = yes ]; then
    setup_old_vllm
    step "end to end, engines of two versions of vLLM" $RESULTS/versions.xml \
      engine_tests $RESULTS/versions.xml tests/e2e/versions
  fi
  if [ $chaos = yes ]; then
    step "end to end, chaos below the library" $RESULTS/chaos.xml \
      engine_tests $RESULTS/chaos.xml tests/e2e/chaos
  fi
fi
exec .venv/bin/python tools/dev/tally.py $RESULTS/steps
