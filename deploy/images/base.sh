#!/usr/bin/env bash
# Makes the base image of both sites from Debian's own packages, without any image registry: mmdebstrap, then
# `docker import`. A site that has a registry can skip this and build with --build-arg BASE_IMAGE=debian:bookworm-slim.
#
#   usage: base.sh [TAG]                 (default dpswd-base:bookworm; needs root, mmdebstrap and a Docker engine)
#   SUITE   Debian's release (default bookworm, whose python3 is 3.11)
#   MIRROR  Debian's packages (default Debian's own mirror, with security updates); a proxy is taken from http_proxy
set -euo pipefail

tag=${1:-dpswd-base:bookworm}
suite=${SUITE:-bookworm}
fail() { printf 'base.sh: %s\n' "$*" >&2; exit 1; }

[ "$(id -u)" = 0 ] || fail "mmdebstrap needs root here; run as root"
command -v mmdebstrap >/dev/null || fail "mmdebstrap is missing: apt-get install mmdebstrap"
docker version >/dev/null 2>&1 || fail "no Docker engine answers; start one, or set DOCKER_HOST"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Left out is what a container never reads: documentation and translations (copyright files stay), logs, and Perl's
# modules, which only the change to a merged /usr would need: it is merged from the beginning here.
leave_out=()
for folder in man locale info doc; do leave_out+=("--dpkgopt=path-exclude=/usr/share/$folder/*"); done
SOURCE_DATE_EPOCH=0 mmdebstrap --mode=root --variant=minbase --include=python3,python3-venv,ca-certificates,usr-is-merged \
  --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr \
  "${leave_out[@]}" --dpkgopt='path-include=/usr/share/doc/*/copyright' \
  --aptopt='Acquire::Languages "none"' --aptopt='APT::Install-Recommends "false"' \
  --customize-hook='rm -rf "$1"/var/log/*' "$suite" "$work/base.tar" ${MIRROR:+"$MIRROR"} 2>"$work/log" ||
  { cat "$work/log" >&2; fail "mmdebstrap failed"; }
docker import --change 'CMD ["python3"]' --message "mmdebstrap --variant=minbase $suite" "$work/base.tar" "$tag"
