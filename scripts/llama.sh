#!/usr/bin/env bash
# A server that is not ours, for `actor_rollout_ref.rollout.engine: server`: llama.cpp's, from PyPI's
# xllamacpp, on a policy folder that PyPI's gguf has converted (tools/llama_server.py), in a virtual
# environment with the pinned packages.
#
#   scripts/llama.sh serve FOLDER PORT     # serves a policy folder; SIGHUP: reads it again
#   scripts/llama.sh convert FOLDER FILE   # writes the GGUF alone
#
# Needs a Python of 3.10 or later with venv; PYTHON names one that is not in the path.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/common.sh
python="$(python_of llama 10)"
venv="$(realpath -m "${CARGO_TARGET_DIR:-target}")/xllamacpp-2026.10"
# All of them by name: nothing is left to be resolved.
environment llama "$venv" "$python" --no-deps \
  xllamacpp==2026.10.11549 gguf==0.19.0 numpy==2.2.6 pyyaml==6.0.4 requests==2.34.2 tqdm==4.70.1 \
  urllib3==2.8.0 idna==3.20 charset_normalizer==3.5.3 certifi==2026.10.19.post1
exec "$venv/bin/python" tools/llama_server.py "$@"
