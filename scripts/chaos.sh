#!/usr/bin/env bash
# Plays runs that learn under every fault at once, as processes of their own: worker processes are
# killed, stopped for longer than their lease and panic, Redis is wiped and restarted, submitters
# and the environment's server are killed, and the environment answers wrongly. Each run must end
# with the digest of a run to which nothing happened. Then a fleet of which one worker is sick for good, in
# six ways.
#
# `scripts/chaos.sh [N [SEED]]` plays N runs (20) with the seeds SEED (1), SEED+1, … and prints a
# line for each as it ends: one that was stopped is continued from the next seed on. It needs
# redis-server (scripts/setup.sh).
set -euo pipefail
cd "$(dirname "$0")/.."
export AGENTGYM_CHAOS_RUNS="${1:-20}" AGENTGYM_CHAOS_SEED="${2:-1}"
cargo build --release --workspace --bins
cargo test --release --workspace --test suite -- --ignored --exact --nocapture \
  environments::chaos::a_run_that_learns_ends_equal_whatever_happens \
  fleet::a_worker_sick_in_other_ways_stops_nobody
