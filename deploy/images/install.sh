#!/usr/bin/env bash
# Inside the image build, with the wheelhouse at /mnt, if there is one, and the tools at /srv.
#
#   install.sh tools          /srv: pip and the build back end, which are never shipped
#   install.sh dependencies   /opt/dpswd: a virtual environment with torch and curator.lock, without pip
#   install.sh project        /stage/opt/dpswd: this project, to be laid over it
#   install.sh cluster        /stage/opt/dpswd: what cluster.lock has and curator.lock has not, to be laid over it
#   install.sh extras         /stage/opt/dpswd: what client.lock has and curator.lock has not, to be laid over it
set -euo pipefail

venv=/opt/dpswd
tools=/srv
wheelhouse=/mnt
pip() {
  "$tools/bin/python" -m pip --disable-pip-version-check --no-cache-dir --python "$venv/bin/python" install --quiet --no-compile "$@"
}

# A wheelhouse was checked against the lock's hashes when it was made and carries its own checksums; wheels that were
# built from source there have no hash in the lock.
if compgen -G "$wheelhouse/*.whl" >/dev/null; then
  source=(--no-index --find-links "$wheelhouse")
else
  source=()
fi
# Installs a lock, by hash; further words are pip's. What comes as source alone was built by the tools.
locked() {
  local lock=$1 rest
  shift
  rest=$(mktemp)
  if [ "${source[0]:-}" = --no-index ]; then
    sed -e '/^ *--hash=/d' -e 's/ *\\$//' "$lock" >"$rest"
    pip "${source[@]}" --no-deps -r "$rest"
  else
    sed '/^autodp==/,/[^\\]$/d' "$lock" >"$rest"
    pip "$@" --no-deps --require-hashes --only-binary=:all: -r "$rest"
    ! grep -q '^autodp==' "$lock" || pip --no-index --no-deps "$tools"/built/*.whl
  fi
  rm "$rest"
}

# Test suites and what only a compiler or a type checker reads.
trim() {
  find "$venv" -type d -name tests -not -path "*/torch/*" -prune -exec rm -rf {} +
  find "$venv" -type f \( -name '*.a' -o -name '*.c' -o -name '*.h' -o -name '*.px[di]' -o -name '*.pyx' -o -name '*.pyi' \) \
    -delete
}

# Writes the bytecode of these modules and of all that they import.
bytecode() {
  local names
  names=$(IFS=,; printf '%s' "$*")
  "$venv/bin/python" -c "import $names"
}

# Copies what changed under the virtual environment since the file $1 was made; a wheel's own times are older.
stage() {
  mkdir -p /stage
  find "$venv" -cnewer "$1" -not -type d -print0 | tar --create --null --no-recursion --files-from=- |
    tar --extract --directory /stage --no-same-owner
}

case $1 in
  tools)
    [ "${source[0]:-}" = --no-index ] && (cd "$wheelhouse" && sha256sum --quiet --check SHA256SUMS)
    python3 -m venv "$tools"
    # What builds; the rest of the lock releases and audits, which is nothing for an image.
    awk -v wanted=" editables hatchling packaging pathspec pluggy setuptools trove-classifiers wheel " \
      '/^[a-z0-9]/ {split($1, pin, "=="); taken = index(wanted, " " pin[1] " ")} taken' "$tools/build.lock" >"$tools/own.lock"
    venv=$tools locked "$tools/own.lock"
    if [ "${source[0]:-}" != --no-index ]; then
      sed -n '/^autodp==/,/[^\\]$/p' "$tools/curator.lock" >"$tools/sources.lock"
      "$tools/bin/python" -m pip --disable-pip-version-check wheel --quiet --no-deps --require-hashes --no-build-isolation \
        --wheel-dir "$tools/built" -r "$tools/sources.lock"
    fi
    ;;
  dependencies)
    python3 -m venv --without-pip "$venv"
    index=()
    [ -n "${TORCH_INDEX:-}" ] && index=(--index-url "$TORCH_INDEX") # that one alone
    if [ "${ACCELERATOR:-cpu}" != cpu ] || ! locked "$tools/torch-cpu.lock" "${index[@]}"; then
      locked "$tools/torch-cuda.lock"
    fi
    locked "$tools/curator.lock"
    site=$(echo "$venv"/lib/python3*/site-packages)
    # Headers, compilers' inputs and test suites: 200 MB that nothing imports at run time.
    rm -rf "$site"/torch/{include,test,share,utils/model_dump}
    rm -rf "$site"/torch/testing/_internal/{opinfo,generated,optests,common_methods_invocations.py,distributed/rpc}
    rm -f "$site"/torch/lib/lib{torchbind_test,aoti_custom_ops,jitbackend_test,backend_with_compiler}.so
    find "$site/torch/bin" -type f -not -name torch_shm_manager -delete
    trim
    # Arrow's parts that talk to other machines, and copies of a library under names that nothing loads.
    if [ -d "$site/pyarrow" ]; then
      (
        cd "$site/pyarrow"
        rm -rf include includes src
        rm -f ./*flight* ./*s3* ./*azurefs* ./*gcsfs* ./*hdfs* ./*encryption* ./*orc* ./*cpp_tests*
        rm -f libarrow_python.so libarrow_python.so.*.*.*
      )
    fi
    # pip would write 140 MB of it, most of it never read.
    bytecode torch torch.fx torch.func scipy.{fft,integrate,linalg,optimize,signal,special,stats} autodp.rdp_bank \
      autodp.{mechanism_zoo,transformer_zoo} grpc grpc_health.v1.health grpc_status.rpc_status google.rpc.error_details_pb2 \
      cryptography.x509 cryptography.hazmat.primitives.asymmetric.{ec,ed25519} cryptography.hazmat.primitives.serialization \
      pydantic_settings rich.{console,table,progress} safetensors.torch PIL.Image pyarrow.parquet psycopg \
      prometheus_client click
    ;;
  project)
    "$tools/bin/python" -m pip --disable-pip-version-check wheel --quiet --no-index --no-deps --no-build-isolation \
      --wheel-dir built .
    touch mark
    pip --no-index --no-deps built/*.whl
    "$venv/bin/python" -m compileall -q "$venv"/lib/python3*/site-packages/dpswd
    stage mark
    ;;
  extras)
    touch mark
    locked client.lock
    trim
    rm -rf "$venv"/lib/python3*/site-packages/tensorboard_data_server/bin # the viewer's; logs are only written here
    "$venv/bin/python" without_symbols.py "$venv"/lib/python3*/site-packages/ot/*/*.so
    bytecode matplotlib.pyplot sklearn.datasets yaml ot torch._dynamo # an optimizer's first use imports it
    stage mark
    ;;
  cluster)
    touch mark
    locked cluster.lock
    trim
    bytecode dask distributed
    stage mark
    ;;
  *)
    printf 'install.sh: %s is no part; allowed: dependencies, project, extras, cluster\n' "$1" >&2
    exit 2
    ;;
esac
