#!/usr/bin/env bash
# Runs the tests in the environment of quickstart.sh.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: scripts/test.sh [PYTEST ARGUMENT]...

Makes .venv if need be, installs rl_compat with what the tests need, and runs pytest with the given arguments.

  RLC_TORCH    torch to install instead of the chosen build, such as "torch==2.13.0"
  RLC_PYTHON   Python 3.11 or newer to make the environment with
  RLC_VENV     folder of the environment instead of .venv
TEXT
}

if [[ ${1:-} == --help || ${1:-} == -h ]]; then
    usage
    exit 0
fi

# shellcheck source=scripts/environment.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"

prepare_environment "[dev,quant]"
cd "$root"
exec "$venv/bin/python" -m pytest "$@"
