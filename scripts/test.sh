#!/usr/bin/env bash
# Passes every check of the project on a fresh machine: format, lints, documentation, dependencies,
# tests. `scripts/test.sh NAME…` runs only the tests that match.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
# What only some programs are built with is tested with the rest; sciworld.sh builds the same.
export AGENTGYM_FEATURES=agentgym-submit/candle,agentgym-tests/candle
# A test that fails says what is wrong; a trace of the runtime below it buries that line.
export RUST_BACKTRACE=0
# The tests run the programs themselves, which `cargo test` does not build.
cargo build --release --workspace --bins --examples --features "$AGENTGYM_FEATURES"
if [ $# -gt 0 ]; then
  exec cargo test --release --workspace --features "$AGENTGYM_FEATURES" -- "$@"
fi
cargo fmt --all --check
cargo clippy --release --workspace --all-targets --features "$AGENTGYM_FEATURES" -- -D warnings
# What only a GPU runs is at least compiled and looked at; so is a program without candle.
cargo clippy --release --workspace --all-targets --features agentgym-worker/cuda -- -D warnings
# NVRTC compiles the GPU's kernels where scripts/cuda-libs.sh, or a toolkit, has put it.
if [ -n "${AGENTGYM_CUDA_LIBS:-}" ]; then
  cargo test --release --workspace --lib --features agentgym-worker/cuda gpu::
fi
RUSTDOCFLAGS="-D warnings" cargo doc --release --workspace --features "$AGENTGYM_FEATURES" --no-deps --document-private-items
# The suite checks licences, sources and bans itself; cargo-deny looks closer where it is there.
if command -v cargo-deny >/dev/null 2>&1; then
  cargo deny --offline check bans licenses sources
fi
scripts/browser.sh
# A worker asked as Prometheus asks it.
scripts/promtool.sh
# Every --json document against its schema.
scripts/schema.sh
# The tutorial, typed; its server in Rust; the pages on agents and on Python.
scripts/tutorial.sh
# The Python package: its types and its tests.
scripts/python.sh
# BabyAI's worlds against MiniGrid itself; the tests compare ours with the same table.
scripts/minigrid.sh
# ScienceWorld by its own simulator, as recorded; no Java process outlives its server.
scripts/sciworld.sh --test
# Last, so that what a reader sees last is how the tests went, and which took longest.
log="$(mktemp)"
trap 'rm -f "$log"' EXIT
cargo test --release --workspace --features "$AGENTGYM_FEATURES" --doc
timed="target.\"cfg(all())\".runner=[\"$PWD/scripts/timed.sh\"]"
if [ -n "${AGENTGYM_DATA:-}" ]; then
  cargo test --release --workspace --features "$AGENTGYM_FEATURES" --lib --config "$timed" -- --ignored minecraft | tee "$log"
  grep -q 'minecraft.* ok' "$log" || { echo "test: no test of third-party data has run" >&2; exit 1; }
else
  echo "test: AGENTGYM_DATA is not set: the tests of third-party data, which are ignored by name, do not run" >&2
fi
# One test more at once than there are cores: many wait, for leases, timeouts and other programs.
threads="${RUST_TEST_THREADS:-$(($(nproc) + 1))}"
cargo test --release --workspace --features "$AGENTGYM_FEATURES" --lib --bins --tests --config "$timed" -- --test-threads="$threads" |
  tee -a "$log"
echo "the ten slowest tests:"
sed -n 's/^test \(.*\) \.\.\. ok <\([0-9.]*\)s>$/\2 s  \1/p' "$log" | sort -rn | sed -n 1,10p
echo "all of them:"
grep '^test result:' "$log" | grep -v '. 0 passed; 0 failed; 0 ignored'
