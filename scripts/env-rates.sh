#!/usr/bin/env bash
# Speed and memory of our own environment servers, as a table: each is started, examined by
# `agentgym-env doctor` with 1 and with 8 clients (sessions that are dear to open are opened two at a
# time), and its memory is the largest resident set of its processes. Give names to measure some of
# them; sciworld is measured where scienceworld.jar is (scripts/sciworld.sh) and Java.
# BIN names a folder with a built agentgym-env; SECONDS_EACH how long each number of clients plays.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/common.sh
bin="${BIN:-${CARGO_TARGET_DIR:-target}/release}"
[ -x "$bin/agentgym-env" ] || {
  cargo build --workspace --release
}
jar="${SCIENCEWORLD_JAR:-${CARGO_TARGET_DIR:-target}/scienceworld-1.2.3/scienceworld.jar}"
names=("$@")
[ ${#names[@]} -gt 0 ] || names=(textcraft babyai searchqa maze wordle sokoban toolbox sciworld)
echo "| server | verdict | steps/s, 1 client | steps/s, 8 clients | step p50 ms, 1 / 8 | memory MiB |"
echo "|---|---|---|---|---|---|"
for name in "${names[@]}"; do
  options=(--port 0)
  if [ "$name" = sciworld ]; then
    if [ ! -f "$jar" ] || ! command -v java > /dev/null; then
      echo "| sciworld | not measured: no Java, or no $jar | | | | |"
      continue
    fi
    options+=(--jar "$jar")
  fi
  out="$(mktemp)"
  "$bin/agentgym-env" "$name" "${options[@]}" > "$out" &
  server=$!
  listening "$server" "$out"
  url="$(awk '/listening/ { print $3 }' "$out")"
  report="$("$bin/agentgym-env" doctor "$url" --task "$name" --clients 1,8 --leaks 20 \
    --measure-s "${SECONDS_EACH:-5}" 2> /dev/null)" || true
  memory=0
  for process in "$server" $(pgrep -P "$server" || true); do
    memory=$((memory + $(awk '/VmHWM/ { print $2 }' "/proc/$process/status")))
  done
  kill "$server"
  wait "$server" || true
  rm "$out"
  echo "$report" | awk -v name="$name" -v memory="$((memory / 1024))" '
    /^ +[0-9]+ +[0-9.]+ +[0-9.]+ +[0-9.]+ / { rates[++rows] = $2; medians[rows] = $3; clients[rows] = $1 }
    /^(Fit|Not fit)/ { verdict = $0 }
    END {
      more = clients[2] == 8 ? "" : " (" clients[2] " clients)"
      printf "| %s | %s | %s | %s%s | %s / %s | %s |\n", name, verdict, rates[1], rates[2], more, medians[1], medians[2], memory
    }'
done
