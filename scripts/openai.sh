#!/usr/bin/env bash
# Asks `agentgym-submit serve` by OpenAI's own Python client (tools/openai_client.py), in a virtual
# environment with the pinned packages; with the programs in target/release (or AGENTGYM_PROGRAMS).
#
#   scripts/openai.sh [RUN|FOLDER]     # models/base where nothing is given
#
# Needs a Python of 3.11 or later with venv; PYTHON names one that is not in the path.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/common.sh
python="$(python_of openai 11)"
program="$(cd "${AGENTGYM_PROGRAMS:-target/release}" && pwd)/agentgym-submit"
venv="${CARGO_TARGET_DIR:-target}/openai-3.57.0"
# All of them by name: nothing is left to be resolved.
environment openai "$venv" "$python" --no-deps \
  openai==3.57.0 httpx2==2.16.2 httpcore2==2.16.2 h11==0.16.0 anyio==4.16.0 sniffio==1.3.1 idna==3.20 \
  truststore==0.10.5 jiter==0.19.0 pydantic==2.14.4 pydantic_core==2.50.5 annotated-types==0.8.0 \
  typing-inspection==0.4.5 typing_extensions==4.16.0
scratch="$(mktemp -d)"
server=""
trap 'kill $server 2>/dev/null || true; rm -rf "$scratch"' EXIT
"$program" serve "${1:-models/base}" --json --addr 127.0.0.1:0 >"$scratch/said" &
server=$!
for _ in $(seq 100); do
  [ ! -s "$scratch/said" ] || break
  kill -0 "$server"
  sleep 0.1
done
url="$(sed 's/.*"url":"\([^"]*\)".*/\1/' "$scratch/said")"
"$venv/bin/python" tools/openai_client.py "$url"
# It ends by itself when it is told to.
kill "$server"
wait "$server"
server=""
