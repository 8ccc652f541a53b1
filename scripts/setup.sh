#!/usr/bin/env bash
# Installs what the tests start for themselves and a fresh machine may lack:
# redis-server. Everything else is a Rust dependency.
set -euo pipefail
if ! command -v redis-server >/dev/null 2>&1; then
  echo "setup: installing redis-server" >&2
  sudo=""
  [ "$(id -u)" -eq 0 ] || sudo="sudo"
  if command -v apt-get >/dev/null 2>&1; then
    $sudo apt-get update -qq >&2 && $sudo apt-get install -y -qq redis-server >&2
  elif command -v brew >/dev/null 2>&1; then
    brew install redis >&2
  else
    echo "setup: no redis-server and no known package manager: install Redis 6 or newer by hand" >&2
    exit 1
  fi
fi
