#!/usr/bin/env bash
# Breaks the project on purpose and asks whether its tests see it: every patch of tests/faults is
# applied alone to a scratch worktree, built, and the tests that it names are run.
#
#   scripts/faults.sh [NAME…]   all faults, or those whose name contains one of these
#
# A patch begins with two lines: `what:` says what it breaks, `tests:` which tests must see it:
# `algorithms FILTER` and `lib FILTER` are unit tests, `suite FILTER` integration tests. First all
# of these tests must pass without a fault. A patch that does not apply any more, or does not
# compile, and a filter without a test are errors (exit 2); a fault that no test sees ends in
# exit 1.
#
# May be stopped at any time. What is known of a patch at this commit is in FAULTS/results.tsv and
# is not asked again. FAULTS (target/faults) takes as much space as target itself.
set -euo pipefail
cd "$(dirname "$0")/.."
root="$PWD"
FAULTS="${FAULTS:-$root/target/faults}"
folder="$FAULTS"
. scripts/scratch.sh

header() { sed -n "s/^$2: //p;/^---/q" "$1" | head -n 1; }

# By kind of test: what a fault touched is built again for the next one.
faults=()
for patch in $(for p in tests/faults/*.patch; do echo "$(header "$p" tests) $p"; done | sort | awk '{ print $NF }'); do
  name="$(basename "$patch" .patch)"
  wanted=$([ $# -eq 0 ] && echo yes || echo no)
  for part in "$@"; do [[ "$name" != *"$part"* ]] || wanted=yes; done
  [ "$wanted" = no ] || faults+=("$patch")
done
[ "${#faults[@]}" -gt 0 ] || { echo "faults: no patch is called like $*" >&2; exit 2; }

for patch in "${faults[@]}"; do
  git -C "$tree" apply --check "$root/$patch" || { echo "faults: $patch does not apply" >&2; exit 2; }
  [ -n "$(header "$patch" what)" ] && [ -n "$(header "$patch" tests)" ] ||
    { echo "faults: $patch does not say what it breaks, or which tests see it" >&2; exit 2; }
done

# The targets of a kind of tests. `algorithms` needs nothing of the others, so building it alone
# rebuilds nothing.
targets() {
  case "$1" in
    algorithms) echo "-p agentgym-algorithms --lib" ;;
    lib) echo "--workspace --lib" ;;
    suite) echo "--workspace --test suite" ;;
    *) echo "faults: $1 is no kind of tests" >&2; return 2 ;;
  esac
}

# build KIND
build() {
  local of
  of="$(targets "$1")"
  cd "$tree"
  # shellcheck disable=SC2086 # options are words
  cargo test --quiet --release $of --no-run && { [ "$1" != suite ] || cargo build --quiet --release --workspace --bins; }
}

# run KIND FILTER: passed, failed, or none where no test has such a name
run() {
  local of status=0
  of="$(targets "$1")"
  # shellcheck disable=SC2086
  (cd "$tree" && timeout 900 cargo test --release $of -- $2) >"$FAULTS/last.log" 2>&1 || status=$?
  if [ "$status" -ne 0 ]; then
    echo failed
  elif grep -Eq '^test result: .* [1-9][0-9]* passed' "$FAULTS/last.log"; then
    echo passed
  else
    echo none
  fi
}

# The first test that failed and how many others did, or what else ended the run: a test that
# hangs, or takes all others down.
failed() {
  sed -n 's/^test \(.*\) \.\.\. FAILED.*/\1/p' "$FAULTS/last.log" |
    awk 'NR == 1 { first = $1 } END { print NR == 0 ? "the end of all tests" : NR == 1 ? first : first " and " NR - 1 " more" }'
}

while IFS= read -r tests; do
  [ -z "$(known "without: $tests")" ] || continue
  echo "without a fault: $tests" >&2
  kind="${tests%% *}" filter="${tests#* }"
  (build "$kind") || { echo "faults: it does not build without a fault" >&2; exit 2; }
  outcome="$(run "$kind" "$filter")"
  [ "$outcome" = passed ] ||
    { tail -n 30 "$FAULTS/last.log" >&2; echo "faults: '$tests' without a fault: $outcome" >&2; exit 2; }
  learn "without: $tests" passed
done < <(for patch in "${faults[@]}"; do header "$patch" tests; done | sort -u)

missed=0
for patch in "${faults[@]}"; do
  name="$(basename "$patch" .patch)"
  key="$name $(sha256sum "$patch" | cut -c 1-16)"
  outcome="$(known "$key")"
  if [ -z "$outcome" ]; then
    tests="$(header "$patch" tests)"
    kind="${tests%% *}" filter="${tests#* }"
    clean
    git -C "$tree" apply "$root/$patch"
    (build "$kind") || { echo "faults: $patch does not compile" >&2; exit 2; }
    case "$(run "$kind" "$filter")" in
      failed) outcome="caught by $(failed)" ;;
      *) outcome="NOT CAUGHT" ;;
    esac
    learn "$key" "$outcome"
  fi
  [ "$outcome" != "NOT CAUGHT" ] || missed=$((missed + 1))
  printf '%-34s %s\n%34s %s\n' "$name" "$(header "$patch" what)" "" "$outcome"
done
echo "$((${#faults[@]} - missed)) of ${#faults[@]} faults are caught, at $(git rev-parse --short HEAD)"
[ "$missed" -eq 0 ]
