#!/usr/bin/env bash
# Runs the tests in the environment of quickstart.sh.
set -euo pipefail

# shellcheck source=scripts/environment.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"

help_if_asked 'usage: scripts/test.sh [PYTEST ARGUMENT]...

Makes .venv if need be, installs rl_compat with what the tests need, and runs pytest with the given arguments.
Without arguments, all tests run in one process for each processor, at most 8 processes of one thread.' "$@"

prepare_environment "[dev,quant]"
cd "$root"
unset PYTHONDONTWRITEBYTECODE # one process compiles a module, the others read it
if (($# == 0)); then
    export OMP_NUM_THREADS=1
    set -- -q -n logical --maxprocesses 8 --dist worksteal --durations 15
fi
exec "$venv/bin/python" -m pytest "$@"
