#!/usr/bin/env bash
# Makes the virtual environment that `make demo` and `make test` use: CPU torch unless a GPU is there, everything
# else from requirements.lock with hashes, then this project itself, editable.
#
#   PYTHON       the interpreter, 3.11 or newer (default python3)
#   TORCH_INDEX  a package index that holds CPU builds of torch, where pip's own configuration names none
set -euo pipefail

venv=${1:?usage: set-up.sh VENV}
python=${PYTHON:-python3}
torch_version=2.13.0
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

quiet() { "$@" >"$log" 2>&1 || { cat "$log" >&2; fail "this failed: $*"; }; }
pip() { quiet "$venv/bin/python" -m pip --disable-pip-version-check install --quiet "$@"; }

if ! "$venv/bin/python" -c "import torch; assert torch.__version__.split('+')[0] == '$torch_version'" 2>/dev/null; then
  index=()
  [ -n "${TORCH_INDEX:-}" ] && index=(--extra-index-url "$TORCH_INDEX")
  if command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU; then
    say "a GPU is there: installing torch $torch_version with CUDA"
    pip "${index[@]}" "torch==$torch_version"
  else
    say "no GPU: installing torch $torch_version for CPU"
    # pip takes the CPU build where one is configured; elsewhere the index's default build also runs on a CPU.
    "$venv/bin/python" -m pip --disable-pip-version-check install --quiet "${index[@]}" "torch==$torch_version+cpu" \
      >"$log" 2>&1 || pip "${index[@]}" "torch==$torch_version"
  fi
fi

say "installing the locked dependencies"
pip --no-deps --require-hashes -r requirements.lock
say "installing dpswd"
pip --no-deps --no-build-isolation --editable .
