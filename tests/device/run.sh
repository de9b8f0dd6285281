#!/bin/sh
# Records this machine's NVIDIA devices, checks it, plans five models, and compares the facts with nvidia-smi.
# Needs Python 3.10 and NVIDIA's driver; no Docker, no network, no packages. Changes nothing on the machine.
#
#   python tests/device/prepare.py build/device    where drydock's packages are: the profile of an image
#   OUT=build/device-answers sh tests/device/run.sh build/device    on the machine; writes to $OUT
set -eu
here=$(dirname "$0")
prepared=${1:-build/device}
if [ ! -f "$prepared/profile.json" ]; then
    echo "$prepared/profile.json: not found; make it with: python tests/device/prepare.py $prepared" >&2
    exit 2
fi
exec python3 -B -E -s -S "$here/device_check.py" "$prepared" "${OUT:-build/device-answers}"
