# shellcheck shell=bash
# Sourced by the scripts here: messages, time, and stamps that say what is already done.
# The working folder is the root of the checkout.

CACHE=.cache
STAMPS=$CACHE/stamps

say() {
  printf '%s\n' "$*" >&2
}

die() {
  say "error: $*"
  exit 1
}

# timed WHAT COMMAND…: says what is done, and how long it took. A function given here chains its commands with &&: the
# shell's -e has no effect inside it.
timed() {
  local what=$1 start=$SECONDS
  shift
  say "[setup] $what …"
  "$@" || { say "[setup] $what: FAILED"; return 1; }
  say "[setup] $what: $((SECONDS - start)) s"
}

# hash_of PATH…: one hash of the names and contents of all files there.
hash_of() {
  find "$@" -type f -not -path '*/__pycache__/*' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -d' ' -f1
}

# once NAME HASH WHAT COMMAND…: does it unless it was done with this very hash.
once() {
  local name=$1 hash=$2 what=$3
  shift 3
  mkdir -p "$STAMPS"
  [ "$(cat "$STAMPS/$name" 2>/dev/null)" = "$hash" ] && return
  timed "$what" "$@" || exit 1
  printf '%s' "$hash" >"$STAMPS/$name"
}

c_files() {
  find include src tests bench tools python examples -name '*.[ch]'
}
