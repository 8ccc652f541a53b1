#!/usr/bin/env bash
# Passes every check of the project on a fresh machine: format, lints, tests,
# documentation. `scripts/test.sh NAME…` runs only the tests that match.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
# The tests run the programs themselves, which `cargo test` does not build.
cargo build --release --workspace --bins
if [ $# -gt 0 ]; then
  exec cargo test --release --workspace -- "$@"
fi
cargo fmt --all --check
cargo clippy --release --workspace --all-targets -- -D warnings
# What only a GPU runs is at least compiled and looked at.
cargo clippy --release --workspace --all-targets --features agentgym-worker/cuda -- -D warnings
cargo test --release --workspace
# NVRTC compiles the GPU's kernels where scripts/cuda-libs.sh, or a toolkit, has put it.
if [ -n "${AGENTGYM_CUDA_LIBS:-}" ]; then
  cargo test --release --workspace --lib --features agentgym-worker/cuda gpu::
fi
RUSTDOCFLAGS="-D warnings" cargo doc --release --workspace --no-deps --document-private-items
