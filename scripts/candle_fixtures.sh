#!/usr/bin/env bash
# Makes tests/fixtures/candle anew: small models of families that candle computes, and what transformers
# says of them (tools/candle_fixtures.py). Needs 5 GB of disk: torch, of which the pinned version brings
# its libraries for GPUs. PYTHON names a Python that has torch, transformers and gguf already.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/common.sh
python="${PYTHON:-}"
if [ -z "$python" ]; then
  venv="${CARGO_TARGET_DIR:-target}/candle-fixtures"
  environment candle_fixtures "$venv" python3 torch==2.15.0 transformers==5.24.0 gguf==0.19.0
  python="$venv/bin/python"
fi
exec "$python" tools/candle_fixtures.py tests/fixtures/qwen2-tiny tests/fixtures/candle
