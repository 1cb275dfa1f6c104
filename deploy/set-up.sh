#!/usr/bin/env bash
# Makes the virtual environment that `make demo` and `make test` use: what builds, torch and everything else from locks
# with hashes, then this project itself, editable. CPU torch unless a GPU is there.
#
#   PYTHON       the interpreter, 3.11 or newer (default python3)
#   TORCH_INDEX  a package index that holds CPU builds of torch, where pip's own configuration names none
set -euo pipefail

venv=${1:?usage: set-up.sh VENV}
python=${PYTHON:-python3}
log=$(mktemp)
trap 'rm -f "$log"' EXIT

say() { printf 'set-up: %s\n' "$*"; }
fail() { printf 'set-up: %s\n' "$*" >&2; exit 1; }

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  fail "$python is $("$python" --version 2>&1); Python 3.11 or newer is needed (set PYTHON=/path/to/python3.11)"

if [ ! -x "$venv/bin/pip" ]; then
  if ! "$python" -m venv "$venv" >"$log" 2>&1; then
    rm -rf "$venv"
    # Debian ships venv apart from python3.
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
      say "installing python3-venv"
      { apt-get update && apt-get install --yes --no-install-recommends python3-venv; } >"$log" 2>&1 ||
        { cat "$log" >&2; fail "python3-venv could not be installed"; }
      "$python" -m venv "$venv"
    else
      cat "$log" >&2
      fail "the venv module is missing; as root: apt-get install python3-venv"
    fi
  fi
fi

quiet() {
  "$@" >"$log" 2>&1 && return
  cat "$log" >&2
  ! grep -qi "certificate.verify" "$log" || say "behind a proxy that reads TLS: export PIP_CERT=/path/to/its/ca.crt" >&2
  fail "this failed: $*"
}
pip() { quiet "$venv/bin/python" -m pip --disable-pip-version-check install --quiet "$@"; }

locked() { pip --no-deps --require-hashes --no-build-isolation "$@"; }

say "installing what builds"
locked -r deploy/build.lock
index=()
[ -n "${TORCH_INDEX:-}" ] && index=(--index-url "$TORCH_INDEX") # that one alone
if command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU; then
  say "a GPU is there: installing torch with CUDA"
  locked -r deploy/torch-cuda.lock
elif ! (locked "${index[@]}" -r deploy/torch-cpu.lock) 2>/dev/null; then
  say "no index has torch for CPU alone: installing it with CUDA, which also runs on a CPU"
  locked -r deploy/torch-cuda.lock
fi
say "installing the locked dependencies"
locked -r requirements.lock
say "installing dpswd"
pip --no-deps --no-build-isolation --editable .
