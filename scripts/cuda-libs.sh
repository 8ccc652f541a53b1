#!/usr/bin/env bash
# Fetches the libraries that a GPU worker opens when it starts: cuBLAS and NVRTC of CUDA 13.0,
# as wheels from PyPI at pinned versions, each checked against its digest. The driver's own
# library is in no wheel: it comes with the driver (580 or newer).
# `scripts/cuda-libs.sh [FOLDER]` unpacks to FOLDER, by default ./cuda-libs.
set -euo pipefail
folder="${1:-cuda-libs}"

# wheel version digest
wheels="
nvidia-cublas 13.0.2.14 0cf238ffdbe46c00cb9aa98e7bca745c223a5ca5a53e686ac8b3e5a08fe80d6c
nvidia-cuda-nvrtc 13.0.88 ad9b6d2ead2435f11cbb6868809d2adeeee302e9bb94bcf0539c7a40d80e8575
"
platform="$(uname -s) $(uname -m)"
if [ "$platform" != "Linux x86_64" ]; then
  echo "cuda-libs: the wheels are for Linux on x86_64, this is $platform" >&2
  exit 1
fi
for tool in python3 sha256sum; do
  if ! command -v "$tool" >/dev/null 2>&1; then
    echo "cuda-libs: needs $tool" >&2
    exit 1
  fi
done

scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
while read -r name version digest; do
  [ -n "$name" ] || continue
  echo "cuda-libs: $name $version" >&2
  python3 -m pip download --quiet --no-deps --dest "$scratch" "$name==$version" \
    --only-binary=:all: --platform manylinux_2_27_x86_64 --platform manylinux2010_x86_64 >&2
  wheel="$(ls "$scratch/${name//-/_}-$version"-*.whl)"
  if ! echo "$digest  $wheel" | sha256sum --check --status; then
    echo "cuda-libs: $(basename "$wheel") has digest $(sha256sum "$wheel" | cut -d' ' -f1)," >&2
    echo "  expected $digest; nothing of it was unpacked" >&2
    exit 1
  fi
  python3 -m zipfile -e "$wheel" "$scratch/site"
done <<<"$wheels"

mkdir -p "$folder"
# Libraries alone: headers and static archives are for who links.
cp "$scratch"/site/nvidia/cu13/lib/lib{cublas,cublasLt,nvrtc,nvrtc-builtins}.so.* "$folder"
folder="$(cd "$folder" && pwd)"
du -sh "$folder" | sed 's/^/cuda-libs: /' >&2
echo "export AGENTGYM_CUDA_LIBS=$folder"
