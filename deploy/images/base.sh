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
trap 'umount "$work" 2>/dev/null || true; rm -rf "$work"' EXIT
# Thousands of small files, for each of which dpkg waits for the disk: in memory, where there is enough, in half the time.
free_kb=$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo)
[ "${free_kb:-0}" -lt 3000000 ] || mount -t tmpfs -o size=1g,mode=0700 dpswd-base "$work" 2>/dev/null || true
# Left out is what a container never reads: documentation and translations (copyright files stay), logs, and Perl's
# modules, which only the change to a merged /usr would need: it is merged from the beginning here. dpkg leaves out what
# it is told to; told by --dpkgopt, mmdebstrap would first sift each package by a program of its own.
cat >"$work/leave-out" <<'HOOK'
set -eu
share=$1/usr/share
{
  printf 'path-exclude=/usr/share/%s/*\n' man locale info doc
  echo 'path-include=/usr/share/doc/*/copyright'
} >"$1/etc/dpkg/dpkg.cfg.d/leave-out"
find "$share/man" "$share/locale" "$share/info" "$share/doc" -mindepth 1 -not -path '*/doc/*/copyright' \
  \( -not -type d -o -empty \) -delete
HOOK
SOURCE_DATE_EPOCH=0 TMPDIR=$work mmdebstrap --mode=root --variant=minbase \
  --include=python3,python3-venv,ca-certificates,usr-is-merged \
  --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr --extract-hook="sh $work/leave-out \"\$1\"" \
  --aptopt='Acquire::Languages "none"' --aptopt='APT::Install-Recommends "false"' \
  --customize-hook='rm -rf "$1"/var/log/*' "$suite" "$work/base.tar" ${MIRROR:+"$MIRROR"} 2>"$work/log" ||
  { cat "$work/log" >&2; fail "mmdebstrap failed"; }
docker import --change 'CMD ["python3"]' --message "mmdebstrap --variant=minbase $suite" "$work/base.tar" "$tag"
