#!/usr/bin/env bash
# Makes a small run, asks every command for its JSON document, errors too, and checks them all against
# schema/v1.json; with the programs in target/release (or AGENTGYM_PROGRAMS). The checker, jsonschema
# of PyPI, is used by this script alone and has a locked version.
set -euo pipefail
cd "$(dirname "$0")/.."
program="$(cd "${AGENTGYM_PROGRAMS:-target/release}" && pwd)/agentgym-submit"
venv="${CARGO_TARGET_DIR:-target}/jsonschema-4.26.0"
if [ ! -e "$venv/complete" ]; then
  python3 -m venv --clear "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: jsonschema==4.26.0 >&2
  touch "$venv/complete"
fi
scratch="$(mktemp -d)"
viewer=""
trap 'kill $viewer 2>/dev/null || true; rm -rf "$scratch"' EXIT
mkdir "$scratch/said"
export AGENTGYM_CACHE="$scratch/cache" AGENTGYM_STORE="$scratch/store"
# said DEFINITION[@NAME] CODE WORDS…: keeps what a command prints, and asks for its exit code.
said() {
  local name="$1" expected="$2" code=0
  shift 2
  "$program" --json --quiet "$@" >"$scratch/said/$name.json" 2>"$scratch/stderr" || code=$?
  if [ "$code" -ne "$expected" ]; then
    echo "schema: $* ends with $code, not $expected: $(cat "$scratch/stderr")" >&2
    exit 1
  fi
  # An error is the last line of standard error.
  [ "$code" -eq 0 ] || tail -n 1 "$scratch/stderr" >"$scratch/said/error@$name.json"
  [ -s "$scratch/said/$name.json" ] || rm "$scratch/said/$name.json"
}
smoke=(configs/smoke.yaml trainer.total_training_steps=2 'sft.sources=[]' sft.steps=0)
said plan@before 0 plan "${smoke[@]}"
said report@run 0 "${smoke[@]}" run.id=r
said report@eval 0 eval configs/smoke.yaml run.id=e evaluation.samples=1
said report 0 metrics r
said report@resume 0 resume r
said plan 0 plan "${smoke[@]}"
said plan@fork 0 fork r --iteration 1 --dry-run --fresh-optimizer trainer.total_training_steps=3
said status_all 0 status
said status 0 status r
said status@watch 0 watch r
said why 0 why r
said why@part 0 why r 2/update/0
said control@cancel 0 cancel r
said control@retry 0 retry r
said inspect 0 inspect r
for n in 0 1 2; do
  said "inspect_iteration@$n" 0 inspect r "$n"
done
for stage in rollout log_probs advantage update evaluate; do
  said "inspect_stage@$stage" 0 inspect r 2 "$stage"
  said "inspect_part@$stage" 0 inspect r 2 "$stage" 0
done
said digest 0 digest r
said verify 0 verify r
said export 0 export r --iteration 2 --to "$scratch/export"
said export_trajectories 0 export r --trajectories "$scratch/trajectories.json"
said check_model 0 check-model models/base
said import 0 import tests/fixtures/qwen2-tiny.gguf --to "$scratch/imported"
mkdir "$scratch/other"
cp models/base/model.safetensors "$scratch/other"
printf '{"model_type": "gemma", "architectures": ["GemmaForCausalLM"], "num_hidden_layers": 2}' \
  >"$scratch/other/config.json"
said check_model@other 2 check-model "$scratch/other"
said workers 0 workers r
said workers@all 0 workers
said ledger 0 ledger r
said episodes 0 episodes r --worst --where stage=rollout
said compare 0 compare r:0 r:2
said compare_several 0 compare r:0 r:2 r
said credit 0 credit r 1
said credit_pull 0 credit r 1 --pull
said credit@episode 0 credit r 1 --episode 0
said keys 0 keys rollout
said view_bundle 0 view r --bundle "$scratch/bundle"
"$program" view r --json --no-open --port 0 >"$scratch/view" 2>/dev/null &
viewer=$!
"$program" serve r --json --addr 127.0.0.1:0 >"$scratch/serve" 2>/dev/null &
viewer="$viewer $!"
for _ in $(seq 100); do
  [ ! -s "$scratch/view" ] || [ ! -s "$scratch/serve" ] || break
  sleep 0.1
done
cp "$scratch/view" "$scratch/said/view.json"
cp "$scratch/serve" "$scratch/said/serve.json"
said usage 2 statsu
said config 2 plan configs/smoke.yaml data.train_batch_size=many
said run 4 status nobody
said stage 4 inspect r 1 nothing
said episode 4 credit r 1 --episode 9999
said where 2 episodes r --where colour=red
# One byte of an artifact changes: two documents, one of what was found and one that says so.
batch="$(find "$scratch/store" -name batch.bin | sort | head -n 1)"
printf 'x' | dd of="$batch" bs=1 seek=100 conv=notrunc status=none
said verify@damaged 3 verify r
"$venv/bin/python" tools/check_schema.py "$scratch/said"
