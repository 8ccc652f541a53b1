#!/usr/bin/env bash
# Five environments, one table: the published training scripts (configs/agentgym-rl/*-scaling-inter.yaml)
# with a tiny model and short numbers. Each run is made undisturbed, and by two worker processes with
# Redis and an S3 server, one of which gets SIGKILL in the middle of a rollout. A row holds what both
# runs were seen to do; an environment that fails has a row that says so, and then the exit code is 1.
#
# `scripts/five.sh [ENVIRONMENT…]` plays all, or those that are named. It needs redis-server (scripts/setup.sh), Java and Python with pip (scripts/sciworld.sh). BIN names a
# folder with built programs; then only the test around them is built, and lightly.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
export AGENTGYM_WORLDS="$*"
SCIENCEWORLD_JAR="$(scripts/sciworld.sh)"
export SCIENCEWORLD_JAR
if [ -n "${BIN:-}" ]; then
  AGENTGYM_PROGRAMS="$(realpath "$BIN")"
  export AGENTGYM_PROGRAMS
  profile=()
else
  profile=(--release)
  cargo build --release --workspace --bins
fi
cargo test "${profile[@]}" --workspace --test suite --no-run
echo "\`scripts/five.sh\`, $(date -u +%F):"
echo
cargo test --quiet "${profile[@]}" --workspace --test suite -- --ignored --exact --nocapture \
  worlds::five_environments_survive_a_kill_and_learn_from_both_outcomes | grep --line-buffered "^|" || exit 1
