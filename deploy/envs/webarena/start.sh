#!/usr/bin/env bash
# AgentGym's WebArena. The sites run elsewhere and are named by URL: SHOPPING, SHOPPING_ADMIN, REDDIT,
# GITLAB, MAP, WIKIPEDIA, HOMEPAGE. Fuzzy answers are judged by a model: OPENAI_API_KEY,
# OPENAI_BASE_URL. Each session is a browser of its own (some 1.3 GB).
source "$(dirname "$0")/../common.sh"
name=webarena source_of=agentenv-webarena module=agentenv_webarena python="3.10 3.10" port=21401
install() {
  # Into the virtual environment, and read from there at the start.
  PLAYWRIGHT_BROWSERS_PATH="$venv/browsers" "$venv/bin/python" -m playwright install chromium >&2 \
    || fail "the browser cannot be downloaded; put a Chromium of Playwright 1.32 into $venv/browsers"
}
prepare() {
  local site
  for site in SHOPPING SHOPPING_ADMIN REDDIT GITLAB MAP WIKIPEDIA HOMEPAGE; do
    [ -n "${!site:-}" ] || fail "$site names no URL of that site (docs/webarena.md)"
  done
  export PLAYWRIGHT_BROWSERS_PATH="$venv/browsers"
  # The server writes addresses of its own over these variables, so they go into a copy of it.
  local copy="$venv/agentgym"
  rm -rf "$copy" && mkdir -p "$copy" && cp -R "$originals/agentenv-webarena" "$copy/"
  "$venv/bin/python" - "$copy/agentenv-webarena/agentenv_webarena/__init__.py" << 'PYTHON'
import os, pathlib, re, sys
path = pathlib.Path(sys.argv[1])
text = path.read_text()
sites = ["SHOPPING", "SHOPPING_ADMIN", "REDDIT", "GITLAB", "MAP", "WIKIPEDIA", "HOMEPAGE"]
for site in sites:
    # An assignment may go on over several lines, in parentheses.
    pattern = r'os\.environ\["%s"\] = (\([^)]*\)|"[^"]*")' % site
    text, count = re.subn(pattern, 'os.environ["%s"] = %r' % (site, os.environ[site]), text)
    if count != 1:
        sys.exit(f"webarena: {path} sets {site} {count} times, not once")
for key in ["OPENAI_API_KEY", "OPENAI_BASE_URL"]:
    pattern = r'os\.environ\["%s"\] = (\([^)]*\)|"[^"]*")' % key
    text = re.sub(pattern, 'os.environ["%s"] = os.environ.get("%s", "")' % (key, key), text)
path.write_text(text)
PYTHON
  # Task files, prompts and login states, as setup.sh in the clone makes them.
  (
    cd "$copy/agentenv-webarena/webarena"
    mkdir -p .auth
    export PYTHONPATH="$PWD"
    "$venv/bin/python" scripts/generate_test_data.py >&2
    "$venv/bin/python" agent/prompts/to_json.py >&2
    "$venv/bin/python" browser_env/auto_login.py >&2
  ) || fail "the task files or the login states cannot be made; the cause is above"
  originals="$copy"
}
serve "$@"
