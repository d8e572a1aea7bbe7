#!/bin/bash
# make_image.sh FOLDER [PLATFORMS]: the image of this commit, one for each platform, as skopeo's `dir:` keeps it.
# Other machines' platforms need qemu-user-static. PYTHON names another base.
set -euo pipefail
folder=$(realpath -m "$1") platforms=${2:-}
cd "$(dirname "$0")/../.."
name=perfd-release-$$
trap 'buildah manifest rm "$name" >/dev/null 2>&1 || true' EXIT
arguments=(--quiet --format docker --timestamp "$(git log -1 --format=%ct)" --manifest "$name")
[ -z "$platforms" ] || arguments+=(--platform "$platforms")
[ -z "${PYTHON:-}" ] || arguments+=(--build-arg "PYTHON=$PYTHON" --pull-never)
buildah build "${arguments[@]}" .
mkdir -p "$folder"
# Unlike an OCI archive this keeps the health check, which is Docker's.
buildah manifest push --quiet --all "$name" "dir:$folder"
