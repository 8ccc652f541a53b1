#!/usr/bin/env bash
# ScienceWorld's simulator: gets scienceworld.jar of scienceworld 1.2.3 (Apache-2.0) out of the wheel
# on PyPI and prints its path. With `--test` it also runs the tests that need it, and checks that no
# Java process outlives its server. Needs Python with pip, and for the tests Java (11 or later).
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/common.sh
target="$(realpath -m "${CARGO_TARGET_DIR:-target}")"
folder="$target/scienceworld-1.2.3"
jar="$folder/scienceworld.jar"
sum=f4e1fdce0cdabe1bab7128a7e78ea820210d9db3c28d7272bcbbc3f3a1c5f0d7
if ! echo "$sum  $jar" | sha256sum --check --status 2>/dev/null; then
  mkdir -p "$folder"
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$folder" \
    scienceworld==1.2.3 >&2
  python3 - "$folder" <<'PYTHON'
import pathlib, sys, zipfile
folder = pathlib.Path(sys.argv[1])
wheel = zipfile.ZipFile(folder / "scienceworld-1.2.3-py3-none-any.whl")
(folder / "scienceworld.jar").write_bytes(wheel.read("scienceworld/scienceworld.jar"))
PYTHON
  echo "$sum  $jar" | sha256sum --check --quiet >&2
fi
echo "$jar"
[ "${1:-}" = --test ] || exit 0
if ! command -v java > /dev/null; then
  packages sciworld "install Java 11 or later" default-jre-headless
fi
SCIENCEWORLD_JAR="$jar" cargo test --release --workspace --features "${AGENTGYM_FEATURES:-}" --lib sciworld -- --include-ignored --nocapture

# No Java process may be left, whatever ends its server.
cargo build --release --workspace --features "${AGENTGYM_FEATURES:-}" --bins
for signal in TERM KILL; do
  out="$(mktemp)"
  "$target/release/agentgym-env" sciworld --jar "$jar" --port 0 > "$out" &
  server=$!
  listening "$server" "$out"
  java_process="$(pgrep -P "$server" java)"
  kill -"$signal" "$server"
  for _ in $(seq 50); do
    kill -0 "$java_process" 2> /dev/null || break
    sleep 0.1
  done
  if kill -0 "$java_process" 2> /dev/null; then
    echo "sciworld: Java process $java_process outlives a server that got SIG$signal" >&2
    kill -KILL "$java_process"
    exit 1
  fi
  echo "SIG$signal: no Java process is left"
  rm "$out"
done
