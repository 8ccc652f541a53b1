#!/usr/bin/env bash
# Changes the code in small ways that nobody thought of (cargo-mutants: an operator, a constant, a
# returned value) and asks whether the unit tests of the changed crate see it.
#
#   scripts/mutants.sh [COUNT [PART]]   COUNT of the drawn mutants at most (all of them), those with
#                                       PART in their names; what was tried before at this commit
#                                       is not tried again
#
# Looked at are `algorithms` and, in `jobs`, the planner, the pipeline, the order of tasks and the
# random keys. 300 mutants are drawn: the first by the SHA-256 of "SEED name" (SEED=1). It may be
# stopped at any time; MUTANTS/results.tsv (target/mutants) says what is known. A mutant that
# survives is listed at the end, and ends in exit 1.
set -euo pipefail
cd "$(dirname "$0")/.."
root="$PWD"
DRAWN=300
SEED="${SEED:-1}"
MUTANTS="${MUTANTS:-$root/target/mutants}"
folder="$MUTANTS" list="$MUTANTS/drawn.$SEED.txt"
command -v cargo-mutants >/dev/null || cargo install --locked cargo-mutants
. scripts/scratch.sh

files=(--file 'algorithms/src/**' --file jobs/src/planner.rs --file jobs/src/pipeline.rs
  --file jobs/src/tasks.rs --file jobs/src/random.rs)
# cargo-mutants makes the changes; they are applied here, one at a time and by name, for its own
# filter lets some pass that were not asked for.
(cd "$tree" && cargo mutants --list --json --diff --no-shuffle "${files[@]}") >"$MUTANTS/all.json"
python3 - "$MUTANTS" "$SEED" "$DRAWN" <<'PYTHON'
import hashlib, json, pathlib, sys
folder, seed, drawn = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
mutants = {mutant["name"]: mutant for mutant in json.loads((folder / "all.json").read_text())}
order = sorted(mutants, key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).hexdigest())
print(f"{len(order)} mutants, {min(drawn, len(order))} are drawn", file=sys.stderr)
(folder / f"drawn.{seed}.txt").write_text("".join(name + "\n" for name in order[:drawn]))
patches = folder / "patches"
patches.mkdir(exist_ok=True)
for number, name in enumerate(order[:drawn], 1):
    file, diff = mutants[name]["file"], mutants[name]["diff"]
    body = diff[diff.index("@@"):]
    (patches / f"{number}.patch").write_text(f"--- a/{file}\n+++ b/{file}\n{body}")
PYTHON

# tests_of CRATE [--no-run]
tests_of() { (cd "$tree" && timeout "$([ "${2:-}" = --no-run ] && echo 900 || echo 120)" cargo test --quiet --release -p "agentgym-$1" --lib "${@:2}") >"$MUTANTS/last.log" 2>&1; }
for crate in algorithms jobs; do
  tests_of "$crate" --no-run || true
  tests_of "$crate" || { tail -n 20 "$MUTANTS/last.log" >&2; echo "mutants: $crate's tests fail without a change" >&2; exit 2; }
done

tried=0 number=0
while IFS= read -r mutant <&3; do
  number=$((number + 1))
  [ "$tried" -lt "${1:-$DRAWN}" ] || break
  [[ "$mutant" == *"${2:-}"* && -z "$(known "$mutant")" ]] || continue
  clean
  git -C "$tree" apply "$MUTANTS/patches/$number.patch"
  # A test that does not end has seen it, too.
  if ! tests_of "${mutant%%/*}" --no-run; then
    outcome=unviable
  elif tests_of "${mutant%%/*}"; then
    outcome=SURVIVED
  else
    outcome=caught
  fi
  learn "$mutant" "$outcome"
  printf '%-9s %s\n' "$outcome" "$mutant"
  tried=$((tried + 1))
done 3<"$list"

count() { awk -F '\t' -v c="$commit" -v o="$1" 'NR == FNR { drawn[$0] = 1; next } $1 == c && $2 in drawn && $3 == o { seen[$2] = 1 } END { print length(seen) }' "$list" "$results"; }
echo "of $(wc -l <"$list") drawn: $(count caught) caught, $(count SURVIVED) survived, $(count unviable) do not compile; the others were not tried"
awk -F '\t' -v c="$commit" 'NR == FNR { drawn[$0] = 1; next } $1 == c && $2 in drawn && $3 == "SURVIVED" { print "survived: " $2 }' "$list" "$results"
[ "$(count SURVIVED)" -eq 0 ]
