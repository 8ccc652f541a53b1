# Shared by the recipes in this folder: an AgentGym server in a virtual environment of its own, as
# many processes of it as wanted, their address for `env_addr`, and a stop that leaves nothing behind.
#
# A recipe sets some of the following and then calls `serve "$@"`.
#   name      its folder here, and that of its virtual environment
#   source_of the folder in the clone of AgentGym whose server it starts
#   module    the Python package with `launch`
#   python    oldest and newest version of Python, as in "3.9 3.12"
#   port      first port; the ports are outside Linux's usual range for outgoing connections
#   suffix    what the base URL ends in
#   folder    where the server has to be started, below source_of
#   wait_s    how long a server may take until it answers
#   install   a function for what pip alone does not install; prepare: one before each start
#   extra_path  a further folder of Python packages, set by prepare
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
suffix="" folder="." wait_s=120
install() { :; }
prepare() { :; }

fail() {
  echo "$name: $*" >&2
  exit 1
}

usage() {
  cat << USAGE
AGENTGYM_ORIGINALS=CLONE $0 [--replicas N] [--port FIRST] [--install-only]
Starts N original servers ($name) from a clone of https://github.com/WooooDyy/AgentGym (commit
3ef9235 was tried) and prints their env_addr. Ctrl-C or SIGTERM stops them. The packages go to
\$AGENTGYM_ENVS_HOME (~/.cache/agentgym-envs), the clone is left as it is.
USAGE
}

find_python() {
  local oldest="${python% *}" newest="${python#* }" candidate
  for candidate in ${PYTHON:-} python3 python3.{13,12,11,10,9,8} \
    "$HOME"/.pyenv/versions/3.{13,12,11,10,9,8}.*/bin/python3; do
    if "$candidate" - "$oldest" "$newest" 2> /dev/null << 'PYTHON'; then
import sys
oldest, newest = (tuple(map(int, text.split("."))) for text in sys.argv[1:])
sys.exit(not oldest <= sys.version_info[:2] <= newest)
PYTHON
      echo "$candidate"
      return
    fi
  done
  fail "needs a Python of $oldest to $newest; install one, or name it with PYTHON=…"
}

set_up() {
  pins="$here/$name/requirements.txt"
  venv="${AGENTGYM_ENVS_HOME:-$HOME/.cache/agentgym-envs}/$name"
  # Installed anew when the pins or the recipe change.
  local state
  state="$(cat "$pins" "$here/$name/start.sh" | sha256sum)"
  [ "$(cat "$venv/complete" 2> /dev/null)" = "$state" ] && return
  local with
  with="$(find_python)"
  echo "$name: installing into $venv" >&2
  "$with" -m venv --clear "$venv"
  # All of them by name and version: nothing is left to be resolved.
  if ! "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps -r "$pins" >&2; then
    fail "the pins of $pins do not install on $("$with" --version); name another Python with PYTHON=…"
  fi
  install
  echo "$state" > "$venv/complete"
}

# Refuses a port that the system may give to an outgoing connection at any time.
check_ports() {
  local low high last=$((port + replicas - 1))
  read -r low high 2> /dev/null < /proc/sys/net/ipv4/ip_local_port_range || return 0
  if [ "$last" -ge "$low" ] && [ "$port" -le "$high" ]; then
    fail "ports $port to $last lie in $low–$high, from which the system takes ports for outgoing connections; choose --port below"
  fi
}

stop() {
  trap '' EXIT INT TERM
  local group
  for group in "${groups[@]}"; do kill -TERM -- "-$group" 2> /dev/null || true; done
  for _ in $(seq 100); do
    local left=""
    for group in "${groups[@]}"; do kill -0 -- "-$group" 2> /dev/null && left=yes; done
    [ -z "$left" ] && return
    sleep 0.1
  done
  for group in "${groups[@]}"; do kill -KILL -- "-$group" 2> /dev/null || true; done
}

answers() {
  "$venv/bin/python" - "http://127.0.0.1:$1/" << 'PYTHON' 2> /dev/null
import sys, urllib.request
urllib.request.build_opener(urllib.request.ProxyHandler({})).open(sys.argv[1], timeout=5).read()
PYTHON
}

serve() {
  local replicas=1 install_only="" host="${AGENTGYM_HOST:-127.0.0.1}"
  while [ $# -gt 0 ]; do
    case "$1" in
      --replicas) replicas="${2:?--replicas needs a number}" && shift ;;
      --port) port="${2:?--port needs a number}" && shift ;;
      --install-only) install_only=yes ;;
      -h | --help) usage && exit 0 ;;
      *) usage >&2 && fail "does not know $1" ;;
    esac
    shift
  done
  [[ "$replicas" =~ ^[1-9][0-9]*$ && "$port" =~ ^[0-9]+$ ]] || fail "--replicas and --port are numbers"
  if [ -n "$install_only" ]; then
    set_up
    return
  fi
  [ -n "${AGENTGYM_ORIGINALS:-}" ] || fail "AGENTGYM_ORIGINALS names no clone of AgentGym: git clone --recurse-submodules https://github.com/WooooDyy/AgentGym"
  originals="$(realpath "$AGENTGYM_ORIGINALS")"
  [ -f "$originals/$source_of/$module/__init__.py" ] || fail "$originals/$source_of/$module is missing; is AGENTGYM_ORIGINALS a whole clone, with its submodules?"
  check_ports
  set_up
  # It may put another copy in the place of the clone.
  prepare
  local at index source="$originals/$source_of"
  groups=()
  trap stop EXIT
  trap 'exit 0' INT TERM
  # Each server leads a process group, to which whatever it starts belongs.
  set -m
  for index in $(seq 0 $((replicas - 1))); do
    at=$((port + index))
    answers "$at" && fail "something answers at port $at already; stop it or give another --port"
    (
      cd "$source/$folder"
      PYTHONPATH="$source${extra_path:+:$extra_path}" PYTHONDONTWRITEBYTECODE=1 \
        exec "$venv/bin/python" -c "from $module import launch; launch()" --host "$host" --port "$at"
    ) > "$venv/server-$at.log" 2>&1 < /dev/null &
    groups+=($!)
  done
  set +m
  local addresses="" deadline=$((SECONDS + wait_s))
  for index in "${!groups[@]}"; do
    at=$((port + index))
    until answers "$at"; do
      if ! kill -0 "${groups[$index]}" 2> /dev/null; then
        tail -n 5 "$venv/server-$at.log" >&2
        fail "the server at port $at ended; its last lines are above, all of them in $venv/server-$at.log"
      fi
      [ "$SECONDS" -lt "$deadline" ] || fail "the server at port $at does not answer within $wait_s s; see $venv/server-$at.log"
      sleep 0.3
    done
    addresses+="${addresses:+,}http://127.0.0.1:$at$suffix"
  done
  echo "env_addr: $addresses"
  wait -n "${groups[@]}" || true
  fail "a server has ended; see $venv/server-*.log. The others are stopped"
}
