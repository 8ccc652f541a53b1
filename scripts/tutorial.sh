#!/usr/bin/env bash
# Types the tutorial (docs/tutorial.md) in an empty folder and compares every output with what it
# shows; then the same server in Rust: its own tests, and the doctor. The programs are those in target/release.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/common.sh
root="$PWD"
target="$(cd "${CARGO_TARGET_DIR:-target}" && pwd)"
export PATH="$target/release:$PATH"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
# What the tutorial installs, fetched once.
environment tutorial "$target/tutorial-1" "${PYTHON:-python3}" -r games/templates/python/requirements.txt
port="$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')"
# The document's port may be taken, and its clone is this folder.
mkdir -p "$scratch/play/agentgym/examples/tutorial"
ln -s "$root/models" "$scratch/play/agentgym/models"
for file in docs/tutorial.md examples/tutorial/*; do
  to="$scratch/play/agentgym/$file"
  mkdir -p "$(dirname "$to")"
  sed -e "s/36100/$port/g" "$file" >"$to"
done
cp -r "$target/tutorial-1" "$scratch/play/venv"
(cd "$scratch/play" && python3 "$root/tools/tutorial.py" agentgym/docs/tutorial.md "$@")

agentgym-env new stones --lang rust --to "$scratch" >/dev/null
cp Cargo.lock "$scratch/stones"
cargo test --quiet --manifest-path "$scratch/stones/Cargo.toml" --target-dir "$target/tutorial-rust"
"$target/tutorial-rust/debug/stones" 0 >"$scratch/said" &
server=$!
trap 'kill $server 2>/dev/null || true; rm -rf "$scratch"' EXIT
listening "$server" "$scratch/said"
agentgym-env doctor "$(sed 's/listening on //' "$scratch/said")" --spec "$scratch/stones/stones.yaml" --leaks 20 --clients 1 --measure-s 0.5
