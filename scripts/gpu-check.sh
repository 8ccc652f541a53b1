#!/usr/bin/env bash
# Shows whether a GPU computes what it should, and how fast, in sections that take minutes each:
#
#   scripts/gpu-check.sh pack FOLDER      builds what the sections run, without their debug
#                                         information, for a machine without Rust
#   scripts/gpu-check.sh SECTION…         runs sections with what is packed in target/gpu-check:
#     tests       the model's tests, the GPU in the emulated device's place
#     agree       how far scored log-probabilities are from sampled ones
#     speed       decoding, scoring and training beside what the GPU can do (OPERATIONS, BYTES)
#     torch       the same work by PyTorch and transformers, in turns
#     iteration   an iteration of 64 episodes of four rounds, at the shape SHAPE
#     resume      a run killed again and again, and one left alone: their digests
#     learn       the quickstart
#
# FOLDER goes to target/gpu-check of a checkout of the same commit, at the same path. DEVICE
# (cuda:0), DTYPES (f32 bf16), SHAPE (0.5b), KILL_AFTER (8 seconds) and OUT (a folder for stores,
# kept; by default one that goes with the last section) say what to run, and on what;
# with DEVICE=cpu DTYPES=f32 SHAPE=tiny the sections but `tests` show themselves on a processor.
set -euo pipefail
cd "$(dirname "$0")/.."
kit=target/gpu-check
DEVICE="${DEVICE:-cuda:0}"
DTYPES="${DTYPES:-f32 bf16}"
SHAPE="${SHAPE:-0.5b}"
# Of an H200, as measured: products of bf16, and reads from its memory.
OPERATIONS="${OPERATIONS:-788e12}"
BYTES="${BYTES:-4.3e12}"

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
  strip "$folder"/*
  du -sh "$folder" >&2
}

speed() { "$kit/speed" --bench --device "$DEVICE" --operations "$OPERATIONS" --bytes "$BYTES" "$@"; }

submit() { "$kit/agentgym-submit" --device "$DEVICE" "$@"; }

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
      ;;
    agree)
      for dtype in $DTYPES; do
        echo "$dtype"
        speed --dtype "$dtype" --shape "$SHAPE" --prompt 200 --sampled 100 agree-1 agree-32
      done
      ;;
    speed)
      for dtype in $DTYPES; do
        echo "$dtype"
        speed --dtype "$dtype" --shape "$SHAPE" --seconds 5 decode-1 decode-64 score train
      done
      ;;
    torch)
      local where=cpu
      [ "$DEVICE" = cpu ] || where=cuda
      for dtype in $DTYPES; do
        python3 tools/torch_speed.py decode-64 score train --shape "$SHAPE" --device "$where" \
          --threads 1 --rounds 1 --seconds 5 \
          --against "$kit/speed --bench --device $DEVICE --dtype $dtype"
      done
      ;;
    iteration)
      local model
      model="$(sizes)"
      for dtype in $DTYPES; do
        submit --dtype "$dtype" --store "$OUT/iteration-$SHAPE-$dtype" run configs/quickstart.yaml \
          run.id=iteration "actor_rollout_ref.model.path=$model" trainer.total_training_steps=1 \
          data.train_batch_size=16 actor_rollout_ref.rollout.n=4 \
          algorithm.rounds_ctrl.type=fixed algorithm.rounds_ctrl.rounds=4 \
          "evaluation.sets=[]" trainer.test_freq=0 jobs.rollout_part_tasks=16 jobs.decode_rows=64
      done
      ;;
    resume)
      local whole killed kills=0
      submit --quiet --json --store "$OUT/whole" run configs/smoke.yaml run.id=r >/dev/null
      until timeout -s KILL "${KILL_AFTER:-8}" "$kit/agentgym-submit" --device "$DEVICE" --quiet \
        --store "$OUT/killed" run configs/smoke.yaml run.id=r >/dev/null 2>&1; do
        kills=$((kills + 1))
        if [ "$kills" -ge 60 ]; then
          echo "gpu-check: killed $kills times and not done; take a larger KILL_AFTER" >&2
          return 1
        fi
      done
      whole="$(submit --store "$OUT/whole" digest r)"
      killed="$(submit --store "$OUT/killed" digest r)"
      echo "left alone      $whole"
      echo "killed $kills times $killed"
      if [ "$kills" -eq 0 ]; then
        echo "gpu-check: it was done before it was killed; take a smaller KILL_AFTER (seconds)" >&2
        return 1
      fi
      [ "$whole" = "$killed" ]
      ;;
    learn)
      submit --store "$OUT/learn" run configs/quickstart.yaml run.id=learn
      ;;
    *)
      sed -n '2,/^set/p' "$0" | sed -n 's/^# \{0,1\}//p' >&2
      echo "gpu-check: there is no section $1" >&2
      return 2
      ;;
  esac
}

if [ $# -eq 0 ]; then
  sed -n '2,/^set/p' "$0" | sed -n 's/^# \{0,1\}//p'
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
if [ -z "${OUT:-}" ]; then
  OUT="$(mktemp -d)"
  trap 'rm -rf "$OUT"' EXIT
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
