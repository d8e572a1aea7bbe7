#!/bin/bash
# Installs what the tests of the chart and the image need beside Debian's packages: Helm, and an image to build on.
# Nothing is done twice.
set -euo pipefail
cd "$(dirname "$0")"
buildah=(buildah --root /var/lib/perfd-tests --runroot /run/perfd-tests --storage-driver overlay)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

../../../deploy/release/install_helm.sh

# The Dockerfile's base, by its name without its digest, from Debian's packages: tests pull no images.
base=$(sed -n 's|^ARG PYTHON=\([^@]*\).*|localhost/\1|p' ../../../Dockerfile)
if ! "${buildah[@]}" inspect --type image "$base" >/dev/null 2>&1; then
  debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates \
    bookworm "$work/root" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
  rm -rf "$work/root/var/cache/apt" "$work/root/var/lib/apt/lists"
  tar -C "$work/root" -cf "$work/base.tar" .
  printf 'FROM scratch\nADD base.tar /\n' >"$work/Dockerfile"
  "${buildah[@]}" bud --quiet --tag "$base" "$work" >/dev/null
fi
