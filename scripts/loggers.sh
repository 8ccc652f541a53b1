#!/usr/bin/env bash
# Sends a run to Weights & Biases (offline), MLflow (a folder) and Trackio while it goes on, with the package in
# python/ and each tracker's own client in a pinned version; kills the sender with SIGKILL in between, starts it
# again, and reads back what is there: every figure once, and equal to the run's. Prints a row of docs/python.md
# for each.
#
#   scripts/loggers.sh [wandb] [mlflow] [trackio]     # all where none is named
#
# With the programs in target/release (or AGENTGYM_PROGRAMS). Needs Python 3.11 with venv; PYTHON names one that
# is not in the path.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/common.sh
root="$PWD"
AGENTGYM_PROGRAMS="$(cd "${AGENTGYM_PROGRAMS:-target/release}" && pwd)"
venv="$(mkdir -p "${CARGO_TARGET_DIR:-target}" && cd "${CARGO_TARGET_DIR:-target}" && pwd)/loggers-1"
environment loggers "$venv" "$(python_of loggers 11)" --no-deps -r tools/loggers/requirements.txt
workplace
export AGENTGYM_PROGRAMS PYTHONPATH="$root/python" WANDB_MODE=offline WANDB_DIR="$scratch" WANDB_SILENT=true \
  MLFLOW_TRACKING_URI="sqlite:///$scratch/mlflow.db" TRACKIO_DIR="$scratch/trackio" MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR=false

echo "\`scripts/loggers.sh\`, $(date -u +%F), Python $("$venv/bin/python" -c 'import platform; print(platform.python_version())'):"
echo
echo "| Logger | Figures | Iterations | Tables of episodes |"
echo "|---|---|---|---|"
for tracker in ${*:-wandb mlflow trackio}; do
  store="$scratch/$tracker.store"
  "$AGENTGYM_PROGRAMS/agentgym-submit" --quiet --store "$store" run configs/smoke.yaml run.id=smoke run.name=loggers \
    trainer.total_training_steps=10 >"$scratch/$tracker.run" 2>&1 &
  run=$!
  started+=("$run")
  until [ -e "$store/runs/smoke/commits/00000000/init" ]; do
    kill -0 "$run"
    sleep 0.1
  done
  # send ITERATION: a sender that is killed when it has sent this one, or, with `end`, goes on to the end.
  send() {
    (cd "$scratch" && exec "$venv/bin/python" -m agentgym_rl log smoke --store "$store" --to "$tracker" --project tried \
      --follow --every-s 0.3 >>"$scratch/$tracker.out" 2>>"$scratch/$tracker.err") &
    local sender=$!
    started+=("$sender")
    if [ "$1" != end ]; then
      until grep -q "iteration $1 sent" "$scratch/$tracker.err"; do
        kill -0 "$sender" || { tail -n 5 "$scratch/$tracker.err" >&2; return 1; }
        sleep 0.02
      done
      kill -KILL "$sender"
      wait "$sender" 2>/dev/null || true
    else
      wait "$sender" || { tail -n 5 "$scratch/$tracker.err" >&2; return 1; }
    fi
  }
  send 1
  send 4
  send end
  wait "$run"
  send end
  tail -n 1 "$scratch/$tracker.out" | grep -q " 0 iterations sent to $tracker, 11 were there" ||
    { tail -n 3 "$scratch/$tracker.out" >&2; echo "loggers: $tracker was sent something twice" >&2; exit 1; }
  (cd "$scratch" && "$venv/bin/python" "$root/tools/loggers/check.py" "$tracker" "$store" smoke tried)
  cat "$scratch/$tracker.out" >&2
done
