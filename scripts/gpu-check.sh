#!/usr/bin/env bash
# Shows whether a GPU computes what it should, and how fast, in sections that take minutes each:
#
#   scripts/gpu-check.sh pack FOLDER      builds what the sections run, without their debug
#                                         information, for a machine without Rust
#   scripts/gpu-check.sh SECTION…         runs sections with what is packed in target/gpu-check:
#     tests       the model's tests, the GPU in the emulated device's place; and the processor's
#                 products in bf16, which say whether it has AMX
#     candle      the other families' tests by candle on it; packed where nvcc is
#     agree       whether scored log-probabilities are the sampled ones, bit for bit
#     speed       decoding, scoring and training beside what the GPU can do
#                 (OPERATIONS_BF16, OPERATIONS_F32, BYTES)
#     torch       the same work by PyTorch and transformers, in turns
#     iteration   an iteration of 64 episodes of four rounds, at the shape SHAPE
#     resume      a run killed again and again, and one left alone: their digests
#     learn       the quickstart
#
# FOLDER goes to target/gpu-check of a checkout of the same commit, at the same path. `tests` needs
# a C++ compiler there too, `torch` torch and transformers. DEVICE (cuda:0), DTYPES (f32 bf16), SHAPE
# (0.5b), KILL_AFTER (20 seconds) and STORES (a folder, kept; by default one that goes with the last
# section) say what to run, and on what; `resume` and `learn` take the first of DTYPES. With
# DEVICE=cpu DTYPES=f32 SHAPE=tiny the sections but `tests` and `candle` show themselves on a processor.
set -euo pipefail
cd "$(dirname "$0")/.."
kit=target/gpu-check
DEVICE="${DEVICE:-cuda:0}"
DTYPES="${DTYPES:-f32 bf16}"
SHAPE="${SHAPE:-0.5b}"
# What an H200 does in a second: multiplications and additions of bf16 and of f32, and bytes from
# its memory. Those of f32 are its maker's, the others were measured.
OPERATIONS_BF16="${OPERATIONS_BF16:-788e12}"
OPERATIONS_F32="${OPERATIONS_F32:-67e12}"
BYTES="${BYTES:-4.3e12}"
# Enough for a GPU to be busy, and for steps that were recorded to be most.
[ "$SHAPE" = tiny ] && lengths=() || lengths=(--prompt 512 --sampled 256 --sequences 16 --length 1024)

usage() { sed -n '2,/^set/p' scripts/gpu-check.sh | sed -n 's/^# \{0,1\}//p'; }

# The program that cargo built of the target of this kind, by its messages.
built() {
  python3 -c '
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    target = message.get("target", {})
    if message.get("executable") and target.get("name") == sys.argv[1]:
        print(message["executable"])
' "$1" | tail -n 1
}

pack() {
  local folder="$1" features="agentgym-worker/cuda"
  mkdir -p "$folder"
  cargo build --release --workspace --bins --features "$features"
  local messages=(--workspace --no-run --features "$features" --message-format json)
  local tests bench
  tests="$(cargo test --release --lib "${messages[@]}" | built agentgym_model)"
  bench="$(cargo bench --bench speed "${messages[@]}" | built speed)"
  cp "$tests" "$folder/model-tests"
  cp "$bench" "$folder/speed"
  cp target/release/agentgym-submit "$folder"
  if command -v nvcc >/dev/null; then
    messages=(--package agentgym-model --no-run --features agentgym-model/candle-cuda --message-format json)
    cp "$(cargo test --release --lib "${messages[@]}" | built agentgym_model)" "$folder/candle-tests"
  fi
  strip "$folder"/*
  du -sh "$folder" >&2
}

# Options of the speed bench for numbers of a type.
of_type() {
  local operations="$OPERATIONS_F32"
  [ "$1" = f32 ] || operations="$OPERATIONS_BF16"
  echo "--device $DEVICE --dtype $1 --operations $operations --bytes $BYTES"
}

# shellcheck disable=SC2046 # options are words
speed() { "$kit/speed" --bench $(of_type "$1") --shape "$SHAPE" "${@:2}"; }

submit() { "$kit/agentgym-submit" --device "$DEVICE" --dtype "${DTYPES%% *}" "$@"; }

sizes() {
  case "$SHAPE" in
    tiny) echo "tiny" ;;
    0.5b) echo "tiny?hidden=896&layers=24&heads=14&kv_heads=2&intermediate=4864&vocab=151936" ;;
    3b) echo "tiny?hidden=2048&layers=36&heads=16&kv_heads=2&intermediate=11008&vocab=151936" ;;
    *) echo "gpu-check: SHAPE=$SHAPE is not known; known are tiny, 0.5b and 3b" >&2; return 2 ;;
  esac
}

section() {
  case "$1" in
    tests)
      AGENTGYM_TEST_GPU="${DEVICE#cuda:}" "$kit/model-tests" gpu::
      "$kit/model-tests" --nocapture kernels::bf16
      ;;
    candle)
      AGENTGYM_TEST_GPU="${DEVICE#cuda:}" "$kit/candle-tests" foreign::
      ;;
    agree)
      for dtype in $DTYPES; do
        echo "$dtype"
        speed "$dtype" --prompt 200 --sampled 100 agree-1 agree-32 agree-128 agree-200
      done
      ;;
    speed)
      for dtype in $DTYPES; do
        echo "$dtype"
        speed "$dtype" "${lengths[@]}" --seconds 5 decode-1 decode-64 score train
      done
      ;;
    torch)
      for dtype in $DTYPES; do
        local theirs=float32
        [ "$dtype" = f32 ] || theirs=bfloat16
        python3 tools/torch_speed.py decode-64 score train --shape "$SHAPE" "${lengths[@]}" \
          --device "${DEVICE}" --dtypes "$theirs" --threads 1 --rounds 1 --seconds 5 \
          --against "$kit/speed --bench $(of_type "$dtype")"
      done
      ;;
    iteration)
      local model
      model="$(sizes)"
      for dtype in $DTYPES; do
        DTYPES="$dtype" submit --store "$STORES/iteration-$SHAPE-$dtype" run configs/quickstart.yaml \
          run.id=iteration "actor_rollout_ref.model.path=$model" trainer.total_training_steps=1 \
          data.train_batch_size=16 actor_rollout_ref.rollout.n=4 \
          algorithm.rounds_ctrl.type=fixed algorithm.rounds_ctrl.rounds=4 \
          "evaluation.sets=[]" trainer.test_freq=0 jobs.rollout_part_tasks=16 jobs.decode_rows=64
      done
      ;;
    resume)
      local whole killed status kills=0
      submit --quiet --store "$STORES/whole" run configs/smoke.yaml run.id=r >/dev/null
      while true; do
        status=0
        timeout -s KILL "${KILL_AFTER:-20}" "$kit/agentgym-submit" --device "$DEVICE" \
          --dtype "${DTYPES%% *}" --quiet --store "$STORES/killed" run configs/smoke.yaml run.id=r \
          >/dev/null || status=$?
        [ "$status" -ne 0 ] || break
        if [ "$status" -ne 137 ]; then
          echo "gpu-check: it ended with $status, and was not killed" >&2
          return 1
        fi
        kills=$((kills + 1))
        if [ "$kills" -ge 20 ]; then
          echo "gpu-check: killed $kills times and not done; take a larger KILL_AFTER" >&2
          return 1
        fi
      done
      whole="$(submit --store "$STORES/whole" digest r)"
      killed="$(submit --store "$STORES/killed" digest r)"
      echo "left alone      $whole"
      echo "killed $kills times $killed"
      if [ "$kills" -eq 0 ]; then
        echo "gpu-check: it was done before it was killed; take a smaller KILL_AFTER (seconds)" >&2
        return 1
      fi
      [ "$whole" = "$killed" ]
      ;;
    learn)
      submit --store "$STORES/learn" run configs/quickstart.yaml run.id=learn
      ;;
    *)
      usage >&2
      echo "gpu-check: there is no section $1" >&2
      return 2
      ;;
  esac
}

if [ $# -eq 0 ]; then
  usage
  exit 2
fi
if [ "$1" = pack ]; then
  pack "${2:-$kit}"
  exit
fi
if [ ! -x "$kit/speed" ]; then
  echo "gpu-check: $kit holds no programs; make them with: scripts/gpu-check.sh pack" >&2
  exit 2
fi
if [ -z "${STORES:-}" ]; then
  STORES="$(mktemp -d)"
  trap 'rm -rf "$STORES"' EXIT
fi
failed=()
for name in "$@"; do
  echo "== $name, $DEVICE, $(date -u +%T)"
  # Not behind `||`, where bash would go on after what fails in a section.
  set +e
  (set -e; section "$name")
  status=$?
  set -e
  [ "$status" -eq 0 ] || failed+=("$name")
done
if [ ${#failed[@]} -gt 0 ]; then
  echo "gpu-check: failed: ${failed[*]}" >&2
  exit 1
fi
