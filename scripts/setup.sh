#!/usr/bin/env bash
# Installs what the tests start for themselves and a fresh machine may lack:
# redis-server, and xz, with which the kept runs are packed. Everything else is a
# Rust dependency.
set -euo pipefail
if ! command -v redis-server >/dev/null 2>&1 || ! command -v xz >/dev/null 2>&1; then
  echo "setup: installing redis-server and xz" >&2
  sudo=""
  [ "$(id -u)" -eq 0 ] || sudo="sudo"
  if command -v apt-get >/dev/null 2>&1; then
    $sudo apt-get update -qq >&2 && $sudo apt-get install -y -qq redis-server xz-utils >&2
  elif command -v brew >/dev/null 2>&1; then
    brew install redis xz >&2
  else
    echo "setup: redis-server or xz is missing and no known package manager: install Redis 6 or newer and xz by hand" >&2
    exit 1
  fi
fi
