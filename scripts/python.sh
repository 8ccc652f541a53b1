#!/usr/bin/env bash
# Checks the Python package in python/: mypy --strict, and its tests, against the programs in target/release (or
# AGENTGYM_PROGRAMS). `scripts/python.sh NAME…` runs only these tests, as `test_run` or `test_run.Runs`. Needs a
# Python of 3.11 or later with venv; PYTHON names one that is not in the path.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/common.sh
AGENTGYM_PROGRAMS="$(cd "${AGENTGYM_PROGRAMS:-target/release}" && pwd)"
export AGENTGYM_PROGRAMS PYTHONPATH="$PWD/python"
venv="$(mkdir -p "${CARGO_TARGET_DIR:-target}" && cd "${CARGO_TARGET_DIR:-target}" && pwd)/python-1"
# All of them by name: nothing is left to be resolved.
environment python "$venv" "$(python_of python 11)" --no-deps -r python/tests/requirements.txt
# The oldest Python that the package is for is known to the type checker alone.
(cd python && "$venv/bin/mypy" --python-version 3.10 && "$venv/bin/mypy")
cd python/tests
if [ $# -gt 0 ]; then
  exec "$venv/bin/python" -m unittest "$@"
fi
exec "$venv/bin/python" -m unittest
