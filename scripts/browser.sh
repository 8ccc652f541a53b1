#!/usr/bin/env bash
# Tests the viewer's pages in headless Chromium (tests/browser), with the programs in
# target/release. What is missing is installed: Debian's chromium, node and npm; the two packages of
# npm have locked versions and are used by these tests alone.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/common.sh
missing=()
command -v node >/dev/null 2>&1 || missing+=(nodejs)
command -v npm >/dev/null 2>&1 || missing+=(npm)
if [ -z "${AGENTGYM_BROWSER:-}" ] && ! command -v chromium >/dev/null 2>&1 &&
  ! command -v google-chrome >/dev/null 2>&1; then
  missing+=(chromium)
fi
if [ ${#missing[@]} -gt 0 ]; then
  packages browser "install them, or set AGENTGYM_BROWSER to a Chromium" "${missing[@]}"
fi
cd tests/browser
npm ci --no-audit --no-fund --silent
npm test
