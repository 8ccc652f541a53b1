#!/usr/bin/env bash
# Makes a small run, exports its policy exactly and in bf16 and shards, and lets transformers load both
# and compare them (tools/transformers_folder.py); with the programs in target/release (or
# AGENTGYM_PROGRAMS). Then a run starts from the bf16 folder, and what it begins with is compared too.
# Needs 5 GB of disk: torch, of which the pinned version brings its libraries for GPUs. PYTHON names
# a Python that has torch and transformers already.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/common.sh
program="$(cd "${AGENTGYM_PROGRAMS:-target/release}" && pwd)/agentgym-submit"
python="${PYTHON:-}"
if [ -z "$python" ]; then
  venv="${CARGO_TARGET_DIR:-target}/transformers-5.24.0"
  environment transformers "$venv" python3 torch==2.15.0 transformers==5.24.0
  python="$venv/bin/python"
fi
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
export AGENTGYM_CACHE="$scratch/cache" AGENTGYM_STORE="$scratch/store"
small=(configs/smoke.yaml trainer.total_training_steps=1 trainer.test_freq=0 'evaluation.sets=[]'
  'sft.sources=[]' sft.steps=0)
# exported RUN FOLDER WORDS…
exported() {
  local run="$1" to="$2"
  shift 2
  "$program" --quiet export "$run" --to "$scratch/$to" "$@" >&2
}
"$program" --quiet "${small[@]}" run.id=one >&2
exported one exact --iteration 1
exported one saved --iteration 1 --dtype bf16 --shard-size 500KB
"$program" check-model "$scratch/saved/policy_after" >&2
"$program" --quiet "${small[@]}" run.id=two "actor_rollout_ref.model.path=$scratch/saved/policy_after" >&2
exported two again --iteration 0
HF_HUB_OFFLINE=1 "$python" tools/transformers_folder.py "$scratch/exact" "$scratch/saved/policy_after" \
  "$scratch/again/policy_after"
