#!/usr/bin/env bash
# Measures the viewer against its targets (docs/performance.md): `scripts/view-speed.sh [STORE RUN]`,
# a finished quickstart and its run; without them one is made, which takes as long as the README
# says. Needs what scripts/browser.sh installs, and the programs in target/release.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ $# -eq 0 ]; then
  set -- "$(mktemp -d)" quickstart
  trap 'rm -rf "$1"' EXIT
  target/release/agentgym-submit --quiet configs/quickstart.yaml run.id=quickstart --store "$1"
fi
store=$(realpath "$1")
cd tests/browser
[ -d node_modules ] || npm ci --no-audit --no-fund --silent
node measure.mjs "$store" "$2"
