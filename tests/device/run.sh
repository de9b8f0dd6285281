#!/bin/sh
# Records this machine's devices, checks it, plans five models, and compares the facts with the vendor's own tool.
# Needs Python 3.10 and the vendor's driver; no Docker, no network, no packages. Changes nothing on the machine.
#
#   sh tests/device/run.sh                         with drydock's packages; writes to build/device-answers
#   python tests/device/prepare.py build/device    where drydock's packages are: the profiles of the images …
#   OUT=answers sh tests/device/run.sh build/device    … which the machine with the device then needs; writes to $OUT
#   sh tests/device/run.sh build/device tests/hosts/rocm-mi300x-8x    a recorded host instead of this machine
#
# Exit code: 0 all rows of the table agree, 1 one differs or nothing could be recorded, 2 it cannot begin.
# $OUT/hosts/NAME/host.json is the recorded host: read it, and move its folder to tests/hosts to keep it.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
prepared=${1:-build/device}
python=${PYTHON:-python3}
if ! "$python" -I -S -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
    echo "$python: expected Python 3.10 or newer; name one with PYTHON=/path/to/python3" >&2
    exit 2
fi
if [ $# -eq 0 ] && [ ! -d "$prepared" ] && [ -x "$here/../../.venv/bin/python" ]; then
    "$here/../../.venv/bin/python" "$here/prepare.py" "$prepared"
fi
if [ ! -f "$prepared/profile.json" ] && ! ls "$prepared"/*/profile.json >/dev/null 2>&1; then
    echo "$prepared/profile.json: not found; make it with: python tests/device/prepare.py $prepared" >&2
    exit 2
fi
exec "$python" -I -S -B "$here/device_check.py" "$prepared" "${OUT:-build/device-answers}" "${2:-}"
