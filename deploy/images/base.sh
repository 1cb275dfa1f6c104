#!/usr/bin/env bash
# Makes the base image of both sites from Debian's own packages, without any image registry: debootstrap, then
# `docker import`. A site that has a registry can skip this and build with --build-arg BASE_IMAGE=debian:bookworm-slim.
#
#   usage: base.sh [TAG]                 (default dpswd-base:bookworm; needs root, debootstrap and a Docker engine)
#   SUITE   Debian's release (default bookworm, whose python3 is 3.11)
#   MIRROR  Debian's packages (default debootstrap's own mirror); a proxy is taken from http_proxy and https_proxy
set -euo pipefail

tag=${1:-dpswd-base:bookworm}
suite=${SUITE:-bookworm}
fail() { printf 'base.sh: %s\n' "$*" >&2; exit 1; }

[ "$(id -u)" = 0 ] || fail "debootstrap needs root; run as root"
command -v debootstrap >/dev/null || fail "debootstrap is missing: apt-get install debootstrap"
docker version >/dev/null 2>&1 || fail "no Docker engine answers; start one, or set DOCKER_HOST"

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates "$suite" "$root/fs" ${MIRROR:+"$MIRROR"} >"$root/log" 2>&1 ||
  { cat "$root/log" >&2; fail "debootstrap failed"; }
# What a container never reads: package lists and archives, documentation, translations. Copyright files stay.
rm -rf "$root/fs/var/lib/apt/lists"/* "$root/fs/var/cache/apt"/* "$root/fs/var/log"/* \
  "$root/fs/usr/share/man"/* "$root/fs/usr/share/locale"/* "$root/fs/usr/share/info"/*
find "$root/fs/usr/share/doc" -type f -not -name copyright -delete
tar --create --directory "$root/fs" --numeric-owner --sort=name --mtime=@0 . |
  docker import --change 'CMD ["python3"]' --message "debootstrap --variant=minbase $suite" - "$tag"
