#!/usr/bin/env bash
# On a connected machine: packs all that a machine without a network needs into one archive.
#
#   usage: bundle.sh [ARCHIVE]           (default dpswd-airgap.tar)
#   BASE_IMAGE  base of the images (default dpswd-base:bookworm, made by deploy/images/base.sh where it is missing)
#
# The archive holds images.tar (base, curator, client), the wheels, the sources, LICENCES.tsv, and SHA256SUMS over all.
set -euo pipefail
cd "$(dirname "$0")/../.."

archive=$(realpath "${1:-dpswd-airgap.tar}")
base=${BASE_IMAGE:-dpswd-base:bookworm}
fail() { printf 'bundle.sh: %s\n' "$*" >&2; exit 1; }
say() { printf 'bundle: %s\n' "$*"; }

[ ! -e "$archive" ] || fail "$archive exists; nothing is overwritten, choose another name"
docker version >/dev/null 2>&1 || fail "no Docker engine answers; start one, or set DOCKER_HOST"
stage=$(mktemp -d "$(dirname "$archive")/.bundle.XXXXXX")
trap 'rm -rf "$stage"' EXIT

docker image inspect "$base" >/dev/null 2>&1 || bash deploy/images/base.sh "$base" >/dev/null
compgen -G "deploy/wheelhouse/*.whl" >/dev/null || bash deploy/airgap/wheelhouse.sh
# With Python in the base, the wheelhouse is all that a build may use: what it lacks shows here, not at the other site.
network=default
docker run --rm --network none --entrypoint python3 "$base" -c "import venv, ensurepip" 2>/dev/null && network=none
for site in curator client; do
  say "building dpswd-$site"
  docker build --quiet --network "$network" --file deploy/images/Dockerfile --target "$site" --build-arg BASE_IMAGE="$base" \
    --tag "dpswd-$site:latest" . >/dev/null
done

say "saving the images"
docker save --output "$stage/images.tar" "$base" dpswd-curator:latest dpswd-client:latest
mkdir "$stage/wheels" "$stage/sources"
cp deploy/wheelhouse/*.whl "$stage/wheels/"
cp -r docker-compose.yml deploy dpswd shared private_curator public_client pyproject.toml README.md LICENSE docs \
  "$stage/sources/"
rm -rf "$stage/sources/deploy/wheelhouse"/*.whl
find "$stage/sources" -type d -name __pycache__ -prune -exec rm -rf {} +
cp deploy/airgap/install.sh "$stage/install.sh"

say "listing licences"
docker run --rm --interactive --network none --entrypoint python dpswd-client:latest - \
  <deploy/airgap/licences.py >"$stage/LICENCES.tsv"

(cd "$stage" && find . -type f -not -name SHA256SUMS -print0 | sort -z | xargs -0 sha256sum >SHA256SUMS)
tar --create --file "$archive.part" --directory "$stage" --sort=name --owner=0 --group=0 --numeric-owner .
mv "$archive.part" "$archive"
(cd "$(dirname "$archive")" && sha256sum "$(basename "$archive")") | tee "$archive.sha256"
