#!/usr/bin/env bash
# Trains an agent of openai-agents (examples/agents/openai_agents.py), as PyPI has it, on the toolbox's tasks,
# and prints rows of docs/results.md; with the programs in target/release (or AGENTGYM_PROGRAMS).
#
#   scripts/harness.sh [WORDS FOR tools/results.py]     # --seeds 1 harness where nothing is given
#
# Needs a Python of 3.11 or later with venv; PYTHON names one that is not in the path.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/common.sh
python="$(python_of harness 11)"
programs="$(cd "${AGENTGYM_PROGRAMS:-target/release}" && pwd)"
venv="${CARGO_TARGET_DIR:-target}/openai-agents-0.24.0"
environment harness "$venv" "$python" openai-agents==0.24.0 openai==3.57.0
workplace
"$programs/agentgym-env" toolbox --terms 1 --port 0 >"$scratch/toolbox" &
started+=($!)
toolbox="$(address "${started[0]}" "$scratch/toolbox")"
"$programs/agentgym-env" demos --env 'builtin:toolbox?terms=1' --ids 0..1 >"$scratch/shown"
# The port of configs/harness.yaml.
"$venv/bin/python" examples/agents/openai_agents.py "$toolbox" "$scratch/shown" 36010 >"$scratch/agents" &
started+=($!)
listening "${started[1]}" "$scratch/agents"
if [ $# -eq 0 ]; then
  set -- --seeds 1 harness
fi
AGENTGYM_SUBMIT="$programs/agentgym-submit" "$python" tools/results.py "$@"
