# Functions of the scripts here, which read this file.

# packages SCRIPT INSTEAD PACKAGE…: installs Debian's packages; where there is no apt-get it ends the
# script and says what to do instead.
packages() {
  local script="$1" instead="$2" sudo=""
  shift 2
  if ! command -v apt-get >/dev/null 2>&1; then
    echo "$script: $* missing, and no apt-get; $instead" >&2
    exit 1
  fi
  echo "$script: installing Debian's $*" >&2
  [ "$(id -u)" -eq 0 ] || sudo="sudo"
  $sudo apt-get update -qq >&2
  $sudo apt-get install -y -qq --no-install-recommends "$@" >&2
}

# listening PROCESS FILE: waits until a server, whose output goes to the file, listens; ends the script
# if the server ends first.
listening() {
  until grep -q listening "$2"; do
    kill -0 "$1"
    sleep 0.2
  done
}

# environment SCRIPT FOLDER PYTHON WORDS…: a virtual environment with the pinned packages that the words
# for `pip install` name, made once: fetching them takes longer than what they are for.
environment() {
  local script="$1" folder="$2" python="$3"
  shift 3
  [ ! -e "$folder/complete" ] || return 0
  "$python" -m venv --clear "$folder"
  if ! "$folder/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: "$@" >&2; then
    echo "$script: the pinned packages do not install on $("$python" --version)" >&2
    exit 1
  fi
  touch "$folder/complete"
}
