#!/usr/bin/env bash
# From a fresh clone to a trained model: environment, torch for this machine, model, PPO on GSM8K.
set -euo pipefail

# shellcheck source=scripts/environment.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"

help_if_asked 'usage: scripts/quickstart.sh [RUN.TOML] [KEY=VALUE]...

Makes .venv, installs the torch build that suits this machine and rl_compat, fetches SmolLM2-135M, and trains it with
PPO on GSM8K; without a GPU in a short run, after a minute of sums on a tiny model. Arguments are handed to `rlc train`.
Running it again resumes the run and reinstalls nothing.' "$@"

prepare_environment "[track]"
[[ ${1:-} == sums ]] || "$venv/bin/rlc" models get smollm2-135m  # sums trains the built-in tiny model
if (($# == 0)); then
    if "$venv/bin/python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
        set -- gsm8k
    else
        echo "no GPU: training on sums with the built-in tiny model first, which learns within a minute; results in ${PWD%/}/runs/sums"
        "$venv/bin/rlc" train sums
        set -- gsm8k-cpu
    fi
    echo "SmolLM2-135M on GSM8K with the shipped settings \`$1\`; results in ${PWD%/}/runs/$1"
else
    echo "training; results in \`trainer.output_dir\`, by default ${PWD%/}/runs/default"
fi
exec "$venv/bin/rlc" train "$@"
