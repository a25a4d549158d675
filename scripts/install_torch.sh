#!/usr/bin/env bash
# Installs the torch build for the cards and driver of this machine into a virtual environment.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: scripts/install_torch.sh [PYTHON]

Installs torch into the environment of PYTHON (default: .venv/bin/python of this checkout). The compute capability of
the cards determines the build first, the driver second; without a GPU it is a CPU build. A torch that already suits
the machine is kept.

  RLC_TORCH   install this instead: a pip requirement or a wheel file, such as "torch==2.13.0"
TEXT
}

if [[ ${1:-} == --help || ${1:-} == -h ]]; then
    usage
    exit 0
fi

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
python=${1:-${RLC_VENV:-$root/.venv}/bin/python}
if ! command -v "$python" >/dev/null; then
    echo "error: \`$python\` is not a Python interpreter; create the environment first: python3 -m venv $root/.venv" >&2
    exit 2
fi
exec "$python" "$root/doctor/install_torch.py"
