#!/usr/bin/env bash
# Builds the programs with the hub (target/hub) and lets `pull` and `push` and the hub's own Python
# client (huggingface_hub, in a virtual environment with pinned packages) exchange models/base by way
# of a local server (tools/hub_double.py): what one of them writes, the other reads, byte for byte.
# Then what the hub may refuse. AGENTGYM_PROGRAMS names programs that are built so already.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/common.sh
if [ -z "${AGENTGYM_PROGRAMS:-}" ]; then
  cargo build --release --workspace --bin agentgym-submit --features agentgym-submit/hub --target-dir target/hub
fi
program="$(cd "${AGENTGYM_PROGRAMS:-target/hub/release}" && pwd)/agentgym-submit"
venv="${CARGO_TARGET_DIR:-target}/hub-2.4.0"
# All of them by name: nothing is left to be resolved.
environment hub "$venv" "${PYTHON:-python3}" --no-deps \
  huggingface_hub==2.4.0 hf-xet==1.8.0 httpx2==2.16.2 httpcore2==2.16.2 h11==0.16.0 anyio==4.16.0 idna==3.20 \
  truststore==0.10.5 click==8.5.1 filelock==4.3.1 fsspec==2026.9.0 packaging==26.4 PyYAML==6.0.4 tqdm==4.70.1 \
  typing_extensions==4.16.0
scratch="$(mktemp -d)"
server=""
trap 'kill $server 2>/dev/null || true; rm -rf "$scratch"' EXIT
mkdir -p "$scratch/hub"/{them,private,stored,bare}
python3 tools/hub_double.py "$scratch/hub" secret >"$scratch/said" 2>"$scratch/log" &
server=$!
listening "$server" "$scratch/said"
HF_ENDPOINT="$(sed 's/listening //' "$scratch/said")"
export HF_ENDPOINT HF_HOME="$scratch/home" HF_HUB_DISABLE_TELEMETRY=1 HF_HUB_DISABLE_XET=1
cp -r models/base "$scratch/hub/private/base"
cp -r models/base "$scratch/hub/stored/base"
mkdir "$scratch/hub/bare/base" && echo text >"$scratch/hub/bare/base/README.txt"

# refused CODE WORDS COMMAND…: a command that ends with the code and says the words.
refused() {
  local code="$1" words="$2" got=0
  shift 2
  "$program" "$@" >"$scratch/out" 2>"$scratch/err" || got=$?
  if [ "$got" != "$code" ] || ! grep -q -- "$words" "$scratch/err"; then
    echo "hub: \`$*\` ended with $got and said: $(cat "$scratch/err")" >&2
    exit 1
  fi
  echo "refused as it should be: $(head -c 300 "$scratch/err")"
}

HF_TOKEN=secret "$program" push models/base --to me/ours
diff -r models/base "$scratch/hub/me/ours"
[ "$(cat "$scratch/hub/me/ours.private")" = true ]
HF_TOKEN=secret "$program" push models/base --to me/ours --message "the same again"
"$venv/bin/python" - me/ours "$scratch/theirs" <<'PY'
import sys
import huggingface_hub
huggingface_hub.snapshot_download(sys.argv[1], local_dir=sys.argv[2])
PY
diff -r --exclude .cache models/base "$scratch/theirs"
HF_TOKEN=secret "$venv/bin/python" - models/base them/base <<'PY'
import sys
import huggingface_hub
huggingface_hub.create_repo(sys.argv[2])
huggingface_hub.upload_folder(folder_path=sys.argv[1], repo_id=sys.argv[2])
PY
folder="$("$program" --quiet pull them/base)"
for file in "$folder"/*; do cmp "$file" "models/base/$(basename "$file")"; done
[ -e "$folder/model.safetensors" ]
"$program" check-model them/base >"$scratch/checked"
"$program" plan configs/smoke.yaml actor_rollout_ref.model.path=them/base >"$scratch/planned"
# A second one asks for nothing that is here, and the hub's own client finds it in the cache too.
"$program" --quiet pull them/base
"$venv/bin/python" - them/base <<'PY'
import sys
import huggingface_hub
huggingface_hub.snapshot_download(sys.argv[1], local_files_only=True, allow_patterns=["*.json", "*.safetensors"])
PY
HF_TOKEN=secret "$program" --quiet pull private/base

refused 2 "no id of a model" pull base
HF_TOKEN=secret refused 2 "no such model" pull them/nothing
refused 2 "no such revision" pull them/base --revision nothing
refused 2 "no config.json" pull bare/base
refused 2 "HF_TOKEN" pull private/other
refused 5 "redirects to another host" pull elsewhere/base
refused 5 "redirects to another host" pull stored/base
refused 5 "Rate limited" pull limited/base
refused 2 "HF_TOKEN" push models/base --to me/other
refused 2 "no config.json" push docs --to me/other
HF_TOKEN=secret refused 2 "does not permit" push models/base --to forbidden/base
HF_ENDPOINT=http://127.0.0.1:1 refused 5 "cannot be reached" pull them/base
! grep -r secret "$scratch/home" "$scratch/log"
echo "hub: what each of both wrote, the other read"
