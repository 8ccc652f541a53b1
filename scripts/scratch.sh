# Sourced by scripts that break the project on purpose: a worktree of this commit below FOLDER, a
# target of its own, and what is known of a change at this commit. Sets `tree`, `results` and
# `commit`; the caller has set `folder`, and is in the project's folder.
tree="$folder/tree" results="$folder/results.tsv"
export CARGO_TARGET_DIR="$folder/target"
mkdir -p "$folder"
touch "$results"
commit="$(git rev-parse HEAD)"
if [ ! -e "$tree/.git" ]; then
  git worktree prune
  git worktree add --force --detach "$tree" "$commit" >&2
fi
clean() { git -C "$tree" checkout --quiet --force --detach "$commit" && git -C "$tree" clean --quiet -fd; }
known() { awk -F '\t' -v c="$commit" -v k="$1" '$1 == c && $2 == k { found = $3 } END { print found }' "$results"; }
learn() { printf '%s\t%s\t%s\n' "$commit" "$1" "$2" >>"$results"; }
trap clean EXIT
clean
