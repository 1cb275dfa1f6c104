#!/usr/bin/env bash
# Downloads every wheel that the images need into deploy/wheelhouse, on a machine that reaches a package index.
# An image build that finds wheels there uses nothing else.
#
#   PYTHON       an interpreter of the images' version, with pip (default python3.11)
#   TORCH_INDEX  a package index that holds CPU builds of torch, where pip's own configuration names none
set -euo pipefail
cd "$(dirname "$0")/../.."

python=${PYTHON:-python3.11}
torch=2.13.0
house=deploy/wheelhouse
index=()
[ -n "${TORCH_INDEX:-}" ] && index=(--extra-index-url "$TORCH_INDEX")
download() { "$python" -m pip --disable-pip-version-check download --quiet --dest "$house" "$@"; }

download "${index[@]}" --no-deps "torch==$torch+cpu" || download "${index[@]}" --no-deps "torch==$torch"
# `pip wheel` also builds the few packages that come as source alone (autodp); hashes are checked before that.
locks=(-r deploy/images/curator.lock -r deploy/images/client.lock -r deploy/images/cluster.lock)
"$python" -m pip --disable-pip-version-check wheel --quiet --no-deps --require-hashes --wheel-dir "$house" "${locks[@]}"
download --no-deps --only-binary=:all: setuptools hatchling packaging pathspec pluggy trove-classifiers
(cd "$house" && sha256sum ./*.whl >SHA256SUMS)
printf 'wheelhouse: %s wheels, %s\n' "$(ls "$house"/*.whl | wc -l)" "$(du -sh "$house" | cut -f1)"
