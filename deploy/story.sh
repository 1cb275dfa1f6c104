#!/usr/bin/env bash
# Tells the story of docker-compose.yml in order, the words of each as they are said. `docker compose up` mixes them, and
# its first generation (1.29) shows none before the last container has started.
#
#   usage: story.sh [two-hospitals | airgapped]
set -euo pipefail
cd "$(dirname "$0")/.."

export DOCKER_BUILDKIT="${DOCKER_BUILDKIT:-1}"
compose=(docker compose)
docker compose version >/dev/null 2>&1 || compose=(docker-compose)
[ -z "${PROJECT:-}" ] || compose+=(--project-name "$PROJECT")
heading() { printf '\n== %s\n' "$*"; }

# One container after the other, each to its end.
told() {
  for service in "$@"; do
    heading "$service"
    "${compose[@]}" run --rm --no-deps "$service"
  done
}

# Serving from here on.
serving() {
  heading "$* (in the background)"
  "${compose[@]}" up --detach --no-deps "$@"
}

healthy() {
  for _ in $(seq 120); do
    "${compose[@]}" exec -T "$1" dpswd-curator-health >/dev/null 2>&1 && return
    sleep 1
  done
  "${compose[@]}" logs "$1" >&2
  printf 'story.sh: %s does not serve; its words are above\n' "$1" >&2
  exit 1
}

first() {
  told hospital-records hospital-init team-init hospital-approve
  serving curator hospital-console hospital-console-door
  healthy curator
  told client hospital-trial hospital-report
}

case ${1:-} in
  "") first ;;
  two-hospitals)
    first
    compose+=(--profile two-hospitals)
    told hospital-extend south-records south-init south-request south-approve
    serving south-curator
    healthy south-curator
    told client-both south-trial south-report
    ;;
  airgapped)
    compose+=(--profile airgapped)
    told airgapped-records airgapped-init airgapped-prepare airgapped-publish airgapped-train airgapped-trial airgapped-report
    ;;
  *)
    printf 'story.sh: there is no story %s; allowed: none, two-hospitals, airgapped\n' "$1" >&2
    exit 2
    ;;
esac
