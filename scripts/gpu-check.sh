#!/usr/bin/env bash
# Shows whether a GPU computes what it should, and how fast, on a machine without Rust, sources or
# network, in calls of less than ten minutes.
#
#   scripts/gpu-check.sh pack [FILE]   in a checkout: builds a kit (target/gpu-check.tar.xz) with all
#                                      that the sections run
#   python3 -m tarfile -e FILE DIR     on the machine with the GPU
#   DIR/gpu-check/gpu-check.sh 1       call 1, 2 or 3; or sections by name
#
# Call 1, is it right?  machine probe first tests agree:bf16 memcheck racecheck agree:f32 speed:bf16
#                       torch:bf16 resume:bf16
# Call 2, does it carry weight? (3b)  machine ceilings agree:bf16 speed:bf16 torch:bf16 ncu:bf16
#                       learn:f32 learn:bf16
# Call 3, the proof     machine ceilings first tests agree:bf16 speed:bf16 iteration:bf16
#
# Each section has a limit of time. Its word in the table is ok, FAILED, HUNG (stopped at its limit),
# no room, not here (this machine lacks what it needs) or skipped. Table and logs go to $OUT (default:
# results in the kit) and are written as the sections go, so that what was learnt before a section
# that hangs, or before the machine goes away, is kept. The exit code is 0 where all sections are ok
# or not here, 1 where one is not, 2 for a bad kit or a bad word.
#
# DEVICE (cuda:0), SHAPE (0.5b; 3b in call 2), SECONDS_MAX (a smaller limit for all sections), BASE
# (another unpacked kit: `speed` measures both in turns) and WORK (a folder for stores and caches;
# default: memory, if it has room) change what is run. With DEVICE=cpu SHAPE=tiny the sections that
# need no GPU show themselves on a processor.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
self="$here/$(basename "${BASH_SOURCE[0]}")"
# Exit codes of sections.
NOT_HERE=77
NO_ROOM=76
# Tree and kit travel together.
MIB_MAX=40

usage() { sed -n '2,/^set/p' "$self" | sed -n 's/^# \{0,1\}//p'; }
die() { echo "gpu-check: $*" >&2; exit 2; }
not_here() { echo "not here: $*"; exit "$NOT_HERE"; }

# Every section with its limit in seconds and its log; a machine may send few files back.
limits() {
  case "$1" in
    machine) echo 15 machine ;;
    probe) echo 75 probe ;;
    ceilings) echo 30 probe ;;
    first) echo 30 tests ;;
    tests) echo 105 tests ;;
    candle) echo 120 tests ;;
    memcheck) echo 60 sanitizer ;;
    racecheck) echo 45 sanitizer ;;
    agree) [ "$SHAPE" = 3b ] && echo 70 agree || echo 40 agree ;;
    speed)
      local seconds=45
      [ "$SHAPE" != 3b ] || seconds=90
      # Two programs, twice each.
      [ -z "${BASE:-}" ] || seconds=$((4 * seconds))
      echo "$seconds" speed
      ;;
    torch) [ "$SHAPE" = 3b ] && echo 120 speed || echo 45 speed ;;
    resume) echo 35 runs ;;
    ncu) echo 80 ncu ;;
    learn) echo 60 runs ;;
    iteration) echo 70 runs ;;
    *) return 1 ;;
  esac
}

of_call() {
  case "$1" in
    1) echo machine probe first tests agree:bf16 memcheck racecheck agree:f32 speed:bf16 torch:bf16 resume:bf16 ;;
    2) echo machine ceilings agree:bf16 speed:bf16 torch:bf16 ncu:bf16 learn:f32 learn:bf16 ;;
    3) echo machine ceilings first tests agree:bf16 speed:bf16 iteration:bf16 ;;
  esac
}

# --- pack -------------------------------------------------------------------------------------------

# The program that cargo built of the target of this name, by its messages.
built() {
  python3 -c '
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable") and message.get("target", {}).get("name") == sys.argv[1]:
        print(message["executable"])
' "$1" | tail -n 1
}

# A name for the sources that a kit is built from, with or without a repository around them.
sources() {
  find Cargo.lock scripts/gpu-check.sh tools/gpu_* tools/torch_speed.py ./*/src ./*/benches configs -type f \
    -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -c -12
}

pack() {
  cd "$here/.."
  local file="${1:-target/gpu-check.tar.xz}" kit features="agentgym-worker/cuda" messages
  scratch="$(mktemp -d)"
  trap 'rm -rf "$scratch"' EXIT
  kit="$scratch/gpu-check"
  mkdir -p "$kit/bin" "$kit/tools" "$kit/configs" "$kit/models" "$kit/tests/fixtures" "$(dirname "$file")"
  cargo build --release --workspace --bins --features "$features"
  messages=(--workspace --no-run --features "$features" --message-format json)
  cp "$(cargo test --release --lib "${messages[@]}" | built agentgym_model)" "$kit/bin/model-tests"
  cp "$(cargo bench --bench speed "${messages[@]}" | built speed)" "$kit/bin/speed"
  cp target/release/agentgym-submit "$kit/bin"
  if command -v nvcc >/dev/null; then
    messages=(--package agentgym-model --no-run --features agentgym-model/candle-cuda --message-format json)
    cp "$(cargo test --release --lib "${messages[@]}" | built agentgym_model)" "$kit/bin/candle-tests"
  fi
  strip "$kit"/bin/*
  cp scripts/gpu-check.sh "$kit"
  cp tools/gpu_probe.py tools/gpu_predictions.tsv tools/torch_speed.py "$kit/tools"
  cp configs/quickstart.yaml configs/smoke.yaml "$kit/configs"
  # One model: each takes 3.5 MB of what may travel.
  cp -r models/reader "$kit/models"
  cp -r tests/fixtures/qwen2-tiny "$kit/tests/fixtures"
  sources >"$kit/VERSION"
  echo "gpu-check: ten iterations of the quickstart on this processor, to compare a GPU's with" >&2
  mkdir "$scratch/work"
  # In a process of its own: inside of a list, bash would go on after what fails.
  (cd "$kit" && WORK="$scratch/work" DEVICE=cpu exec ./gpu-check.sh section learn:f32 >/dev/null)
  mv "$scratch/work/learnt-f32.tsv" "$kit/cpu.tsv"
  (cd "$kit" && find . -type f ! -name SHA256SUMS -print0 | LC_ALL=C sort -z | xargs -0 sha256sum >SHA256SUMS)
  tar -C "$scratch" -cf - gpu-check | xz -T0 -9e >"$file"
  sizes "$file"
}

# Fails where tree and kit are larger than may travel.
sizes() {
  local kit tree
  kit="$(stat -c %s "$1")"
  tree="$(git ls-files -coz --exclude-standard | xargs -0 du -cb | tail -n 1 | cut -f 1)"
  awk -v kit="$kit" -v tree="$tree" -v most="$MIB_MAX" 'BEGIN {
    mib = 1048576
    printf "gpu-check: kit %.1f MiB + tree %.1f MiB = %.1f MiB, at most %d\n", kit / mib, tree / mib, (kit + tree) / mib, most
    exit (kit + tree) / mib > most
  }' >&2
}

# --- sections: each runs in the kit's folder, in a process of its own ----------------------------------

# What a section may be asked to do on: 0.5b, or the one that SHAPE names.
sizes_of_shape() {
  case "$SHAPE" in
    tiny) echo "tiny" ;;
    0.5b) echo "tiny?hidden=896&layers=24&heads=14&kv_heads=2&intermediate=4864&vocab=151936" ;;
    3b) echo "tiny?hidden=2048&layers=36&heads=16&kv_heads=2&intermediate=11008&vocab=151936" ;;
  esac
}

# Options of the speed bench: a type, and the card's limits where they were measured.
options_of() {
  local operations BYTES="" OPERATIONS_BF16="" OPERATIONS_F32=""
  # shellcheck disable=SC1091 # written by the probe
  [ ! -s "$WORK/ceilings" ] || . "$WORK/ceilings"
  [ "$1" = f32 ] && operations="$OPERATIONS_F32" || operations="$OPERATIONS_BF16"
  echo --device "$DEVICE" --dtype "$1" --shape "$SHAPE"
  if [ -n "$operations" ]; then
    echo --operations "$operations" --bytes "$BYTES"
  elif [ "$DEVICE" != cpu ]; then
    # Of an H100, measured: where the probe could not run, the shares are of these.
    echo --operations 798e12 --bytes 3.0e12
  fi
}

# shellcheck disable=SC2046 # options are words
speed_of() { "$1/bin/speed" --bench $(options_of "$2") "${@:3}"; }

submit() { bin/agentgym-submit --device "$DEVICE" --dtype "$dtype" "$@"; }

# On lines of the bench's, what was predicted for a card like this one.
with_predictions() {
  local card=H100
  ! nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | grep -q H200 || card=H200
  awk -v card="$card" -v dtype="$1" '
    NR == FNR { if ($1 == card) predicted[$2, $3, $4] = $5; next }
    { print }
    ($1, $2, dtype) in predicted {
      printf "      predicted on an %s: %d tokens/s; measured / predicted = %.2f\n", card, predicted[$1, $2, dtype], $3 / predicted[$1, $2, dtype]
    }' tools/gpu_predictions.tsv -
}

# Fails with "no room" where a folder has fewer GiB.
room() {
  local free
  free="$(df --output=avail -B1M "$WORK" | tail -n 1)"
  if [ "$free" -lt $(($1 * 1024)) ]; then
    echo "no room: $free MiB in $WORK, $1 GiB are needed; name a larger folder by WORK"
    exit "$NO_ROOM"
  fi
}

# The one tool that a section wraps around our program.
tool() { command -v "$1" >/dev/null || not_here "$1 is not on the path"; }

needs_gpu() { [ "$DEVICE" != cpu ] || not_here "it needs a GPU, DEVICE is cpu"; }

section() {
  local name="${1%%:*}" kill_after
  dtype="${1##*:}"
  [ "$dtype" != "$1" ] || dtype=f32
  # Lengths around which a token attends to 2 048 others, as predicted; a processor's are the bench's.
  local decode=(--prompt 1984 --sampled 128) units=(--sequences 2 --length 2048 --unit-tokens 2048)
  local micro=(--sequences 2 --length 2048 --micro 1) cases=(decode-64 decode-256 score train)
  [ "$SHAPE" != 3b ] || cases=(decode-64 score train)
  [ "$SHAPE" != tiny ] || { decode=() units=() micro=() cases=(decode-64 score train); }
  case "$name" in
    machine)
      nvidia-smi || echo "no nvidia-smi"
      ldconfig -p | grep -E 'libcuda\.|cublas|nvrtc' || true
      echo "AGENTGYM_CUDA_LIBS=${AGENTGYM_CUDA_LIBS:-}"
      ls -l "${AGENTGYM_CUDA_LIBS:-/usr/local/cuda/lib64}" 2>/dev/null | grep -E 'cublas|nvrtc' || true
      python3 - <<'P' || true
from importlib import metadata
for name in ("nvidia-cublas", "nvidia-cuda-nvrtc", "torch", "transformers"):
    try:
        print(name, metadata.version(name))
    except metadata.PackageNotFoundError:
        print(name, "is not installed")
P
      ldd --version | sed -n 1p
      df -h . /dev/shm "$WORK" || true
      grep -m 1 'model name' /proc/cpuinfo || true
      echo "result: $(nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader 2>/dev/null || echo no GPU), $(nproc) cores, $(df --output=avail -BG "$WORK" | tail -n 1 | tr -d ' ') free in $WORK"
      ;;
    probe) python3 tools/gpu_probe.py --device "$DEVICE" --ceilings "$WORK/ceilings" --seconds 60 ;;
    ceilings) python3 tools/gpu_probe.py --device "$DEVICE" --ceilings "$WORK/ceilings" --seconds 0 ;;
    first)
      # The program opens the libraries, compiles the kernels and computes; then the smallest tests.
      SHAPE=tiny speed_of . "$dtype" --seconds 0.2 decode-8
      needs_gpu
      AGENTGYM_TEST_GPU="${DEVICE#cuda:}" bin/model-tests --test-threads 1 gpu::tests::uploads gpu::tests::kernels::norms
      echo "result: our program starts and its first kernels are right"
      ;;
    tests)
      needs_gpu
      AGENTGYM_TEST_GPU="${DEVICE#cuda:}" bin/model-tests --test-threads 1 gpu:: \
        --skip trouble --skip accesses --skip refusals | tee "$WORK/tests"
      echo "result: $(grep '^test result' "$WORK/tests" | tail -n 1)"
      ;;
    candle)
      needs_gpu
      [ -x bin/candle-tests ] || not_here "the kit was packed without nvcc"
      AGENTGYM_TEST_GPU="${DEVICE#cuda:}" bin/candle-tests foreign::
      ;;
    memcheck | racecheck)
      tool compute-sanitizer
      # initcheck is left out: rows that pad a tile are never written, and it would complain of them.
      local modules=(gpu::tests::kernels gpu::tests::attention)
      [ "$name" = memcheck ] || modules=(gpu::tests::attention)
      AGENTGYM_CUDA_LINES=1 AGENTGYM_TEST_GPU="${DEVICE#cuda:}" compute-sanitizer --tool "$name" \
        --error-exitcode 9 bin/model-tests --test-threads 1 "${modules[@]}" | tee "$WORK/$name"
      echo "result: $(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$WORK/$name" | tail -n 1)"
      ;;
    agree)
      speed_of . "$dtype" --prompt 200 --sampled 100 agree-1 agree-32 agree-128 agree-200
      echo "result: sampled and scored log-probabilities have the same bits, 1 to 200 rows, $SHAPE"
      ;;
    speed)
      for kit in ${BASE:+"$BASE"} . ${BASE:+"$BASE" .}; do
        [ -z "${BASE:-}" ] || echo "program of $kit ($(cat "$kit/VERSION"))"
        speed_of "$kit" "$dtype" "${decode[@]}" "${units[@]}" --seconds 1 "${cases[@]}" |
          with_predictions "$dtype" | tee "$WORK/speed"
      done
      echo "result: $(sed -n 's/^[^ ]* *\([^ ]*\) *\([0-9]*\) tokens.*/\1 \2/p' "$WORK/speed" | paste -sd ,) tokens/s"
      ;;
    torch)
      python3 -c 'import torch, transformers' || not_here "torch and transformers"
      local theirs=float32 row="$WORK/torch"
      [ "$dtype" = f32 ] || theirs=bfloat16
      # shellcheck disable=SC2046 # options are words
      compare() {
        python3 tools/torch_speed.py "$@" --shape "$SHAPE" --device "$DEVICE" --dtypes "$theirs" --threads 1 \
          --rounds 1 --seconds 1 --against "bin/speed --bench $(echo $(options_of "$dtype"))" | tee -a "$row"
      }
      : >"$row"
      # Compiling takes half a minute a case: for the large shape, decoding alone.
      local compiled=(--no-compile)
      [ "$SHAPE" != 3b ] || compiled=()
      compare decode-64 "${decode[@]}" "${compiled[@]}"
      compare score train "${micro[@]}" --no-compile
      echo "result: ours / torch: $(awk '$2 == "wall" { printf "%s %s  ", $1, $NF }' "$row")"
      ;;
    resume)
      room 1
      local begun whole killed status=0 third
      local run=(run configs/smoke.yaml run.id=r actor_rollout_ref.model.path=models/reader)
      begun="$(date +%s%N)"
      submit --quiet --store "$WORK/whole" "${run[@]}" >/dev/null
      third="$(awk -v ns="$(($(date +%s%N) - begun))" 'BEGIN { printf "%.2f", ns / 3e9 }')"
      timeout -s KILL "$third" bin/agentgym-submit --device "$DEVICE" --dtype "$dtype" --quiet \
        --store "$WORK/killed" "${run[@]}" >/dev/null || status=$?
      if [ "$status" -ne 137 ]; then
        echo "it ended with $status before it was killed after $third s"
        exit 1
      fi
      submit --quiet --store "$WORK/killed" "${run[@]}" >/dev/null
      whole="$(submit --store "$WORK/whole" digest r)"
      killed="$(submit --store "$WORK/killed" digest r)"
      echo "left alone             $whole"
      echo "killed after $third s   $killed"
      [ "$whole" = "$killed" ]
      echo "result: killed after $third s and resumed to the same digest"
      ;;
    ncu)
      tool ncu
      local width=64
      [ "$SHAPE" != 3b ] || width=128
      AGENTGYM_CUDA_LINES=1 ncu --clock-control none --graph-profiling node --set basic --kernel-id \
        "::regex:^(attend_span_$width|attend_$width|attend_backward_keys_$width|sample|.*gemm.*|nvjet.*)\$:^3\$" \
        bin/speed --bench --device "$DEVICE" --dtype "$dtype" --shape "$SHAPE" --prompt 512 --sampled 8 \
        "${units[@]}" --seconds 0 decode-64 train | tee "$WORK/ncu"
      echo "result: $(grep -c 'Duration' "$WORK/ncu" || true) kernels profiled"
      ;;
    learn)
      room 1
      submit --quiet --store "$WORK/learn-$dtype" run configs/quickstart.yaml run.id=learn \
        trainer.total_training_steps=10 trainer.test_freq=0 "evaluation.sets=[]" >/dev/null
      submit --store "$WORK/learn-$dtype" --json inspect learn |
        python3 -c '
import json, sys
for row in json.load(sys.stdin)["iterations"]:
    if row["iteration"] > 0:
        print(row["iteration"], row["success"], sep="\t")
' >"$WORK/learnt-$dtype.tsv"
      [ -s cpu.tsv ] || exit 0
      paste cpu.tsv "$WORK/learnt-$dtype.tsv" | awk -v dtype="$dtype" '
        { printf "iteration %d: success on the CPU in f32 %.3f, here in %s %.3f\n", $1, $2, dtype, $4; cpu += $2; own += $4; n++ }
        END {
          printf "result: mean success of %d iterations: CPU %.3f, here %.3f\n", n, cpu / n, own / n
          exit !(n == 10 && own / n > cpu / n - 0.1 && own / n < cpu / n + 0.1)
        }'
      ;;
    iteration)
      room 8
      submit --store "$WORK/iteration" run configs/quickstart.yaml run.id=iteration \
        "actor_rollout_ref.model.path=$(sizes_of_shape)" trainer.total_training_steps=1 \
        data.train_batch_size=16 actor_rollout_ref.rollout.n=4 \
        algorithm.rounds_ctrl.type=fixed algorithm.rounds_ctrl.rounds=4 \
        "evaluation.sets=[]" trainer.test_freq=0 jobs.rollout_part_tasks=16 jobs.decode_rows=64
      rm -rf "$WORK/iteration"
      ;;
  esac
}

# --- the table ------------------------------------------------------------------------------------------

rows=()

table() {
  printf '%-14s %-9s %9s  %s\n' section word seconds result
  printf '%s\n' "${rows[@]}"
}

# Writes the table as it stands; a full disk takes the file and not the run.
keep_table() { table >"$OUT/table.txt" || echo "gpu-check: the table cannot be written to $OUT" >&2; }

row() { printf -v "$1" '%-14s %-9s %9s  %.300s' "${@:2}"; }

# Runs a section within its limit; adds its row.
guarded() {
  local name="$1" limit log output status=0 word result begun="$SECONDS" line
  read -r limit log <<<"$(limits "${name%%:*}")"
  [ "$limit" -le "${SECONDS_MAX:-$limit}" ] || limit="$SECONDS_MAX"
  case "$broken:$name" in
    :* | *:machine | *:probe | *:ceilings | *:memcheck) ;;
    *)
      row line "$name" skipped "-" "$broken failed, and this needs our program"
      rows+=("$line")
      return
      ;;
  esac
  row line "$name" running "/$limit" "since $(date -u +%T)"
  rows+=("$line")
  keep_table
  echo "== $name, $DEVICE, $SHAPE, at most $limit s, $(date -u +%T)" | tee -a "$OUT/$log.log" || true
  # What it prints goes to the log and to this output as it comes, and is kept to be judged.
  output="$(
    set +e
    timeout --kill-after 5 "$limit" "$self" section "$name" 2>&1 |
      tee -a "$OUT/$log.log" |
      while IFS= read -r line || [ -n "$line" ]; do printf '%s\n' "$line" >&3; printf '%s\n' "$line"; done
    exit "${PIPESTATUS[0]}"
  )" || status=$?
  result="$(sed -n 's/^result: //p' <<<"$output" | tail -n 1)"
  [ -n "$result" ] || result="$(grep -v '^ *$' <<<"$output" | tail -n 1 || true)"
  case "$status" in
    0) word=ok ;;
    "$NOT_HERE") word="not here" result="${result#not here: }" ;;
    "$NO_ROOM") word="no room" failed=1 ;;
    124) word=HUNG failed=1 ;;
    137)
      # At its limit, or by the system for want of memory.
      [ $((SECONDS - begun)) -ge "$limit" ] && word=HUNG || word=FAILED result="killed: $result"
      failed=1
      ;;
    *) word=FAILED failed=1 ;;
  esac
  [ "$name" != first ] || [ "$word" = ok ] || [ "$word" = "not here" ] || broken=first
  row line "$name" "$word" "$((SECONDS - begun))/$limit" "$result"
  rows[-1]="$line"
  keep_table
}

run_sections() {
  local name sum=0
  for name in "$@"; do
    limits "${name%%:*}" >/dev/null || die "there is no section $name; see $self without arguments"
    case "$name" in *:*) [[ "${name##*:}" = f32 || "${name##*:}" = bf16 ]] || die "$name: the type is f32 or bf16" ;; esac
    sum=$((sum + $(limits "${name%%:*}" | cut -d ' ' -f 1)))
  done
  echo "gpu-check: kit $(cat VERSION), $# sections, at most $sum s in all"
  for name in "$@"; do guarded "$name"; done
  echo
  table
}

# A kit must be whole, and of one version.
check_kit() {
  local bad
  bad="$(sha256sum --quiet -c SHA256SUMS 2>&1)" ||
    die "the kit in $here is damaged or mixed from two versions: $(head -n 1 <<<"$bad"); unpack it again, into an empty folder"
}

# --- start ------------------------------------------------------------------------------------------------

export DEVICE="${DEVICE:-cuda:0}" SHAPE="${SHAPE:-}"
case "${1:-}" in
  "") usage; exit 2 ;;
  pack) SHAPE=0.5b; pack "${2:-}"; exit ;;
  section) cd "$here"; section "$2"; exit ;;
esac
if [ ! -e "$here/SHA256SUMS" ]; then
  # In a checkout: its kit, if it is of these sources.
  cd "$here/.."
  [ -e target/gpu-check.tar.xz ] || die "there is no target/gpu-check.tar.xz; make it with: scripts/gpu-check.sh pack"
  unpacked="$(mktemp -d)"
  python3 -m tarfile -e target/gpu-check.tar.xz "$unpacked"
  packed="$(cat "$unpacked/gpu-check/VERSION")"
  [ "$packed" = "$(sources)" ] ||
    die "target/gpu-check.tar.xz is of another version ($packed, these sources are $(sources)); make it again with: scripts/gpu-check.sh pack"
  OUT="${OUT:-$PWD/target/gpu-check-results}" exec "$unpacked/gpu-check/gpu-check.sh" "$@"
fi
cd "$here"
check_kit
if [ -z "$SHAPE" ]; then
  [ "$1" = 2 ] && SHAPE=3b || SHAPE=0.5b
fi
[ -n "$(sizes_of_shape)" ] || die "SHAPE=$SHAPE is not known; known are tiny, 0.5b and 3b"
names="$(of_call "$1")"
[ -z "$names" ] || set -- $names
export OUT="${OUT:-$here/results}" AGENTGYM_FIXTURES="$here/tests/fixtures"
mkdir -p "$OUT" || die "results cannot be written to $OUT; name another folder by OUT"
# Stores and caches go to memory where it has room for those of a model: a machine's disk may not.
if [ -z "${WORK:-}" ]; then
  folder="${TMPDIR:-/tmp}"
  shared="$(df --output=avail -BG /dev/shm 2>/dev/null | tail -n 1 | tr -dc 0-9 || true)"
  [ "${shared:-0}" -lt 32 ] || folder=/dev/shm
  WORK="$(mktemp -d -p "$folder" gpu-check.XXXXXX)" || die "there is no room for files in $folder; name another folder by WORK"
  trap 'rm -rf "$WORK"' EXIT
fi
mkdir -p "$WORK"
export WORK XDG_CACHE_HOME="$WORK/cache"
if [ -z "${AGENTGYM_CUDA_LIBS:-}" ]; then
  # The libraries of the Python that has torch, where it has them.
  libraries="$(python3 -c 'import nvidia; print(list(nvidia.__path__)[0] + "/cu13/lib")' 2>/dev/null || true)"
  [ ! -e "$libraries/libcublas.so.13" ] || export AGENTGYM_CUDA_LIBS="$libraries"
fi
failed=0 broken=""
# Where sections print to, also while their output is kept.
exec 3>&1
run_sections "$@"
exit "$failed"
