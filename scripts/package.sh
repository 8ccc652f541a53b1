#!/usr/bin/env bash
# Packs the programs in target/release (tools/package.py), installs the wheel into a virtual environment and the
# tarball into a folder, and has each do what README's first run does, in an empty folder without a clone: the run
# id and the digest are the clone's. Prints the sizes.
#
#   scripts/package.sh [CONFIG]        # configs/smoke.yaml
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/common.sh
config="${1:-configs/smoke.yaml}"
programs="$(cd "${AGENTGYM_PROGRAMS:-target/release}" && pwd)"
packages="$(mkdir -p "${CARGO_TARGET_DIR:-target}/package" && cd "${CARGO_TARGET_DIR:-target}/package" && pwd)"
python="$(python_of package 10)"
rm -f "$packages"/*.whl "$packages"/*.tar.gz "$packages"/*.deb
"$python" tools/package.py --programs "$programs" --to "$packages"
(cd "$packages" && sha256sum --quiet -c SHA256SUMS)
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT

# ended FOLDER BIN: plays the config there; prints its run id and its digest.
ended() {
  mkdir -p "$1"
  (cd "$1" && "$2/agentgym-submit" "$config" --store "$scratch/store" --quiet --json) >"$scratch/ended"
  "$python" -c 'import json, sys; d = json.load(sys.stdin); print(d["run"], d["digest"])' <"$scratch/ended"
  rm -rf "$scratch/store"
}
clone="$(ended . "$programs")"
echo "package: a clone's $clone"
"$python" -m venv "$scratch/venv"
"$scratch/venv/bin/pip" install --quiet --disable-pip-version-check --no-index "$packages"/*.whl
mkdir "$scratch/tar"
tar -xzf "$packages"/*.tar.gz -C "$scratch/tar" --strip-components 1
for bin in "$scratch/venv/bin" "$scratch/tar/bin"; do
  installed="$(ended "$scratch/empty" "$bin")"
  if [ "$installed" != "$clone" ]; then
    echo "package: in an empty folder $bin has another one: $installed" >&2
    exit 1
  fi
done
"$scratch/venv/bin/python" -c 'import agentgym_rl; print("package:", agentgym_rl.__name__, "is imported")'
ls "$scratch/tar/share/agentgym-rl"
