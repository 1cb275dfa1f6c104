#!/usr/bin/env bash
# Downloads every wheel that the images need into deploy/wheelhouse, on a machine that reaches a package index.
# An image build that finds wheels there uses nothing else.
#
#   PYTHON       an interpreter of the images' version, with pip (default python3.11)
#   TORCH_INDEX  a package index that holds CPU builds of torch, where pip's own configuration names none
set -euo pipefail
cd "$(dirname "$0")/../.."

python=${PYTHON:-python3.11}
house=deploy/wheelhouse
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
index=()
[ -n "${TORCH_INDEX:-}" ] && index=(--index-url "$TORCH_INDEX") # that one alone
"$python" -m venv "$tools"
pip() { local act=$1; shift; "$tools/bin/python" -m pip --disable-pip-version-check "$act" --quiet --no-deps --require-hashes "$@"; }

pip install -r deploy/build.lock
pip download --dest "$house" -r deploy/build.lock
pip download --dest "$house" "${index[@]}" -r deploy/torch-cpu.lock || pip download --dest "$house" -r deploy/torch-cuda.lock
# `pip wheel` also builds the few packages that come as source alone (autodp), with what was just installed.
locks=(-r deploy/images/curator.lock -r deploy/images/client.lock -r deploy/images/cluster.lock)
pip wheel --no-build-isolation --wheel-dir "$house" "${locks[@]}"
(cd "$house" && sha256sum ./*.whl >SHA256SUMS)
printf 'wheelhouse: %s wheels, %s\n' "$(ls "$house"/*.whl | wc -l)" "$(du -sh "$house" | cut -f1)"
