#!/usr/bin/env bash
# Types the tutorial (docs/tutorial.md) in an empty folder and compares every output with what it
# shows; then the same server in Rust: its own tests, and the doctor; then docs/harness.md, with a shorter run,
# and docs/python.md.
# The programs are those in target/release.
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
free_port() {
  python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}
port="$(free_port)"
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
url="$(address "$server" "$scratch/said")"
agentgym-env doctor "$url" --spec "$scratch/stones/stones.yaml" --leaks 20 --clients 1 --measure-s 0.5

shorter='s/steps: 520/steps: 2/; s/total_training_steps: 40/total_training_steps: 1/; s/train_batch_size: 16/train_batch_size: 2/'
shorter="$shorter; s/ n: 8/ n: 2/; s/samples: 4/samples: 1/; s/3976\.\./3998../"
ports="s/36007/$(free_port)/g; s/36010/$(free_port)/g; s/36020/$(free_port)/g"
for file in docs/harness.md configs/harness.yaml examples/agents/*; do
  mkdir -p "$(dirname "$scratch/agents/$file")"
  sed -e "$shorter; $ports" "$file" >"$scratch/agents/$file"
done
(cd "$scratch/agents" && python3 "$root/tools/tutorial.py" docs/harness.md "$@")

mkdir "$scratch/python"
ln -s "$root" "$scratch/python/agentgym"
sed -e "s/36200/$(free_port)/g; s/36201/$(free_port)/g; s/36202/$(free_port)/g" docs/python.md >"$scratch/python.md"
(cd "$scratch/python" && "${PYTHON:-python3}" "$root/tools/tutorial.py" ../python.md "$@")
