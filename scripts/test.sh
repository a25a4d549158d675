#!/usr/bin/env bash
# Runs the tests in the environment of quickstart.sh.
set -euo pipefail

# shellcheck source=scripts/environment.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"

help_if_asked 'usage: scripts/test.sh [PYTEST ARGUMENT]...

Makes .venv if need be, installs rl_compat with what the tests need, and runs pytest with the given arguments.' "$@"

prepare_environment "[dev,quant]"
cd "$root"
exec "$venv/bin/python" -m pytest "$@"
