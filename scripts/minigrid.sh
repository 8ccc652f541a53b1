#!/usr/bin/env bash
# Compares BabyAI's worlds with MiniGrid's own: tools/minigrid_worlds.py in a virtual environment
# with the pinned packages. `scripts/minigrid.sh --write` makes the table that the tests use,
# `--show LEVEL SEED` prints one world. Needs a Python of 3.9 to 3.12, for which the pinned NumPy has
# wheels; PYTHON names one that is not in the path.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/common.sh
python=""
for candidate in ${PYTHON:-} python3 python3.12 python3.11 python3.10 python3.9 \
  "$HOME"/.pyenv/versions/3.{12,11,10,9}.*/bin/python3; do
  # A name in the path may be a stub that starts nothing.
  if "$candidate" -c 'import sys; sys.exit(not (3, 9) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null; then
    python="$candidate"
    break
  fi
done
if [ -z "$python" ]; then
  echo "minigrid: no Python of 3.9 to 3.12 is here; install one, or name it with PYTHON=…" >&2
  exit 1
fi
venv="${CARGO_TARGET_DIR:-target}/minigrid-2.3.1"
# All of them by name: nothing is left to be resolved.
environment minigrid "$venv" "$python" --no-deps \
  minigrid==2.3.1 gymnasium==0.29.1 numpy==1.26.4 pygame==2.6.1 \
  cloudpickle==3.1.3 Farama-Notifications==0.0.6 typing_extensions==4.16.0
PYGAME_HIDE_SUPPORT_PROMPT=1 "$venv/bin/python" tools/minigrid_worlds.py "$@"
