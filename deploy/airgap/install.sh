#!/usr/bin/env bash
# On a machine without a network: checks an unpacked archive of bundle.sh and loads its images.
#
#   tar --extract --file dpswd-airgap.tar --directory DIR, then DIR/install.sh
#
# Needs bash, coreutils and a Docker engine; reaches for nothing outside.
set -euo pipefail
cd "$(dirname "$0")"
fail() { printf 'install.sh: %s\n' "$*" >&2; exit 1; }

[ -f SHA256SUMS ] || fail "no SHA256SUMS here; unpack the whole archive and run the install.sh inside it"
docker version >/dev/null 2>&1 || fail "no Docker engine answers; start one, or set DOCKER_HOST"
# What is missing, or was added on the way, is seen before the long reading begins.
listed=$(cut -c67- SHA256SUMS | sort)
present=$(find . -type f -not -name SHA256SUMS | sort)
lost=$(comm -23 <(printf '%s\n' "$listed") <(printf '%s\n' "$present"))
added=$(comm -13 <(printf '%s\n' "$listed") <(printf '%s\n' "$present"))
[ -z "$lost" ] || fail "the archive is damaged or was changed; copy it again. Missing: $lost"
[ -z "$added" ] || fail "there are files that SHA256SUMS does not list; unpack into an empty folder. Not listed: $added"
sha256sum --quiet --check SHA256SUMS || fail "the archive is damaged or was changed; copy it again"
docker load --quiet --input images.tar
cp --no-clobber wheels/*.whl sources/deploy/wheelhouse/
(cd sources/deploy/wheelhouse && sha256sum ./*.whl >SHA256SUMS)
printf 'installed; next: cd %s/sources && docker compose up --no-build\n' "$PWD"
