#!/bin/sh
# Inside the image build: whatever reaches outside goes through here.
#
#   outside.sh packages       Debian's packages of the base, where it has no Python
#   outside.sh run COMMAND    a command that asks a package index
#
# By arguments of the build (docs/operator/two-sites.md):
#   HTTP_PROXY, HTTPS_PROXY   http://host:port that leads out
#   CA_CERTIFICATE            of a proxy that reads TLS: PEM, encoded in base64 in one line
#   PIP_INDEX                 a package index instead of pip's own, such as a mirror inside the hospital
#   APT_MIRROR                the same for Debian's packages, such as https://mirror/debian
#
# They are for the build alone: no file and no environment of an image holds them.
set -eu

export http_proxy="${HTTP_PROXY:-}" https_proxy="${HTTPS_PROXY:-}" # apt knows these spellings alone
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -n "${CA_CERTIFICATE:-}" ]; then
  printf %s "$CA_CERTIFICATE" | base64 -d >"$work/own.crt" && grep -q "BEGIN CERTIFICATE" "$work/own.crt" ||
    { echo 'outside.sh: CA_CERTIFICATE is no PEM in base64; give "$(base64 -w0 ca.crt)"' >&2; exit 1; }
  # Beside what the base trusts: a mirror with an ordinary certificate works as well.
  cat /etc/ssl/certs/ca-certificates.crt "$work/own.crt" >"$work/all.crt" 2>/dev/null || cp "$work/own.crt" "$work/all.crt"
  export PIP_CERT="$work/all.crt"
  echo "Acquire::https::CAInfo \"$work/all.crt\";" >"$work/apt.conf"
  export APT_CONFIG="$work/apt.conf"
fi
[ -z "${PIP_INDEX:-}" ] || export PIP_INDEX_URL="$PIP_INDEX"
advice='outside.sh: if a certificate or a connection is what failed, give the build CA_CERTIFICATE (of a proxy that reads
TLS), HTTP_PROXY and HTTPS_PROXY, or mirrors, PIP_INDEX and APT_MIRROR: docs/operator/two-sites.md'
trap '[ $? = 0 ] || echo "$advice" >&2; rm -rf "$work"' EXIT

case $1 in
  packages)
    sources=
    if [ -n "${APT_MIRROR:-}" ]; then
      suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
      echo "deb $APT_MIRROR $suite main" >"$work/sources.list"
      sources="--option Dir::Etc::SourceList=$work/sources.list --option Dir::Etc::SourceParts=-"
    fi
    chmod -R a+rX "$work" # apt downloads as a user of its own
    # Unquoted: two options or none.
    apt-get $sources update
    apt-get $sources install --yes --no-install-recommends python3 python3-venv
    rm -rf /var/lib/apt/lists/*
    ;;
  run)
    shift
    "$@"
    ;;
  *)
    echo "outside.sh: $1 is no part; allowed: packages, run" >&2
    exit 2
    ;;
esac
