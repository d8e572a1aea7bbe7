#!/bin/bash
# publish.sh FOLDER [--dry-run]: checks, signs and publishes what make_release.py and make_image.sh made, each in a folder
# of its own below FOLDER. With --dry-run it checks, and prints the commands of all else.
#
# TAG             vX.Y.Z
# REGISTRY        of image and chart, as in registry.example/organization; REGISTRY_USER and REGISTRY_TOKEN to log in
# GH_TOKEN        for the release page
set -euo pipefail
folder=$1 dry=${2:-}
: "${TAG:?is the tag of the release}" "${REGISTRY:?is where image and chart are pushed}"
version=${TAG#v}
say() { echo "publish: $*" >&2; }
run() { if [ "$dry" = --dry-run ]; then echo "$*"; else "$@"; fi; }

# What was built is what is published.
sums=("$folder"/*/SHA256SUMS)
[ -e "${sums[0]}" ] || { say "there is nothing in $folder"; exit 1; }
for sum in "${sums[@]}"; do
  (cd "$(dirname "$sum")" && sha256sum --check --quiet --strict SHA256SUMS >&2) || { say "$sum does not hold"; exit 1; }
done
# The machines built the same source distribution, or one of them is not to be trusted.
different=$(cat "${sums[@]}" | grep -F '.tar.gz' | sort -u | wc -l)
[ "$different" = 1 ] || { say "$different source distributions differ"; exit 1; }
images=("$folder"/*/image/manifest.json)
[ -e "${images[0]}" ] || { say "there is no image"; exit 1; }
image=${images[0]%/*}
all=$(mktemp -d)
trap 'rm -rf "$all"' EXIT
for file in "$folder"/*/perfd-*; do cp "$file" "$all/"; done
for file in "$all"/*; do
  case ${file##*/} in
    perfd-"$version".tar.gz | perfd-"$version".tgz | perfd-"$version"-*) ;;
    *) say "${file##*/} is not of $version"; exit 1 ;;
  esac
done
chart=$all/perfd-$version.tgz
[ -e "$chart" ] || { say "there is no chart"; exit 1; }

run skopeo login --username "${REGISTRY_USER:-}" --password-stdin "${REGISTRY%%/*}" <<<"${REGISTRY_TOKEN:-}"
run helm registry login --username "${REGISTRY_USER:-}" --password-stdin "${REGISTRY%%/*}" <<<"${REGISTRY_TOKEN:-}"
run skopeo copy --quiet --all --digestfile "$all/image.digest" "dir:$image" "docker://$REGISTRY/perfd:$version"
run helm push "$chart" "oci://$REGISTRY/charts"
(cd "$all" && sha256sum -- * >SHA256SUMS)
# One signature of all digests, that of the image among them, by the identity of the workflow; no key is kept anywhere.
run python3 -m sigstore sign --bundle "$all/SHA256SUMS.sigstore.json" "$all/SHA256SUMS"
run uv publish --trusted-publishing always "$all"/*.whl "$all"/*.tar.gz
run gh release create "$TAG" --verify-tag --title "perfd $version" --notes-file CHANGELOG.md "$all"/*
