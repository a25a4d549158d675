"""Launch scripts in the forms that people publish: whole scripts, launchers, checks before the command."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

SHELL_SCRIPTS = {
    "continued lines": """
        set -xeuo pipefail
        # a comment with "quotes' and $signs
        train \\
            data.train_batch_size=8 \\
            trainer.logger='["console","wandb"]' \\
            "data.train_files=['a.parquet', 'b.parquet']" 2>&1 | cat
    """,
    "a comment ends the command": """
        train a.b=1 \\
            a.c=2 \\
            # a.d=3 \\
            a.e=4 2>/dev/null || true
    """,
    "variables and arithmetic": """
        export N=4
        local_size=$((N * 2))
        NAME=grpo_$N-${SUFFIX:-plain}
        readonly ROOT=/data
        FILES="['$ROOT/a.parquet', '$ROOT/b.parquet']"
        N=16 train a.b=$local_size a.c=$NAME a.d="$FILES" a.e=$N
    """,
    "arrays": """
        DATA=(
            data.train_batch_size=8   # don't
            "data.train_files=['a', 'b']"
            # data.seed=1
        )
        EXTRA=()
        DATA+=(data.shuffle=False)
        DATA[3]=data.seed=2
        train "${DATA[@]}" "${EXTRA[@]}" count=${#DATA[@]} first=${DATA[0]} "$@"
    """,
    "conditions": """
        if [ "${DEVICE:-gpu}" = gpu ] && [ $# -ge 1 ]; then A=1; else A=2; fi
        if [[ "$A" == 2 || -z "$UNSET" ]]; then B=(b=1); elif [ $A -gt 1 ]; then B=(b=2); fi
        if (( A > 1 )); then C=3; else C=4; fi
        [ -d /nowhere ] && D=5 || D=6
        [[ abc == a* ]] && E=7
        test -n "$E" || E=8
        if ! false; then F=9; fi
        train a=$A "${B[@]}" c=$C d=$D e=$E f=$F
    """,
    "case": """
        MODEL=Qwen3-8B
        case "$MODEL" in
            llama*|mistral*) TP=1 ;;
            (Qwen3-*) TP=2; NAME=qwen
                ;;
            *) TP=4 ;;
        esac
        case ${1:-x} in "first argument") KIND=one;; *) KIND=other;; esac
        train tp=$TP name=$NAME kind=$KIND
    """,
    "loops": """
        OUT=()
        for lr in 1e-6 5e-7; do
            [ $lr = 5e-7 ] && continue
            OUT+=(lr=$lr)
        done
        for word; do OUT+=("word=$word"); done
        i=0
        while [ $i -lt 3 ]; do i=$((i + 1)); [ $i -eq 2 ] && break; done
        until [[ $i -ge 5 ]]; do ((i++)); done
        train "${OUT[@]}" i=$i
    """,
    "arguments": """
        while [[ $# -gt 0 ]]; do
            case "$1" in
                --model) MODEL="$2"; shift 2 ;;
                *) REST+=("$1"); shift ;;
            esac
        done
        set -- --model x y
        train model=${MODEL:-none} "${REST[@]}" "$@" n=$#
    """,
    "functions": """
        launch() {
            local lr=$1; shift
            if [ "$lr" = skip ]; then return 0; fi
            train lr=$lr "$@" n=$#
        }
        function other { launch "$@" other=1; }
        launch skip a=0
        other 1e-6 "a=b c"
    """,
    "groups": """
        A=1
        ( A=2; cd /tmp; : )
        { A=$((A + 2)); } > /dev/null
        train a=$A
    """,
    "text as a command": """
        CMD="train a.b=1 a.c=2"
        $CMD a.d=3
    """,
    "evaluated text": """
        CMD="train 'a.b=1 2'"
        eval "$CMD" a.c=3
    """,
    "here-documents": """
        cat > /dev/null <<EOF
        train a.wrong=1 "
EOF
        cat > /dev/null <<-'END'
	$(not run
	END
        train a.b=1 <<< "text"
    """,
    "windows line ends": "train a.b=1 \\\r\n  a.c=2\r\n",
    "stops early": """
        if [ $# -lt 1 ]; then echo "Usage: $0"; exit 1; fi
        train a.b=1
        exit 0
        train a.b=2
    """,
    "redirections": """
        train a.b=1 >/dev/null 2>&1 a.c=2 &
        wait
    """,
    "substitution": """
        HERE=$(cd / && pwd)
        BASE=$(basename "${HERE}/x/run.sh" .sh)
        WHO=$(false && echo one || echo two)
        train here=$HERE base=$BASE who=$WHO day=$(date +%Y)
    """,
    "nested quotes": """
        train a="$(echo "x $(echo 'y z')")" b='it'"'"'s' c="${UNSET:-"d e"}"
    """,
    "a chain": "true && train a.b=1 || train a.b=2",
    "counting": """
        for ((i = 0; i < 3; i++)); do OUT+=(a$i=$((i * 2))); done
        for (( j=5; j>3; j-- ))
        do
            train "${OUT[@]}" j=$j
        done
    """,
    "unset variables in quotes": """
        [ -n "$UNSET" ] && A=1 || A=2
        if test -z "$UNSET"; then B=1; fi
        train a=$A b=$B
    """,
    "one line": "A=1; B=$A; if true; then train a=$A b=$B; fi",
}
"programs by what they show of the shell; the program is `train`"

SCRIPT = """#!/usr/bin/env bash
set -x
export VLLM_ATTENTION_BACKEND=XFORMERS
pip install -r requirements.txt
ray stop --force; ray start --head
BATCH=${BATCH:-16}
MODEL=(
    actor_rollout_ref.model.path="Qwen/Qwen2.5-0.5B-Instruct"
    +actor_rollout_ref.model.override_config.attn_implementation=eager
)
if [ "${ALGORITHM:-grpo}" = grpo ]; then
    MODEL+=(algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=4)
fi
CUDA_VISIBLE_DEVICES=0 nohup python3 -u -m verl.trainer.main_ppo \\
    data.train_files="['$DATA/train.parquet', '/b.parquet']" \\
    data.train_batch_size=$BATCH \\
    "${MODEL[@]}" \\
    trainer.logger='["console","wandb"]' \\
    'trainer.default_local_dir=runs/${trainer.project_name}/${trainer.experiment_name}' \\
    trainer.experiment_name=grpo-$((BATCH * 4)) \\
    ++trainer.total_epochs=1 "$@" 2>&1 | tee run.log
"""
"one with most of what a launch script has"

LAUNCHERS = [
    "python3 -m verl.trainer.main_ppo",
    "python -u -m recipe.dapo.main_dapo",
    "HYDRA_FULL_ERROR=1 uv run python3 -m verl.trainer.main_ppo",
    "ray job submit --working-dir . -- python3 -m verl.trainer.main_ppo",
    "nohup torchrun --nproc_per_node=1 -m verl.trainer.main_ppo",
    "CUDA_VISIBLE_DEVICES=0,1 python3 verl/trainer/main_ppo.py",
]

GUARDS = [
    'if [ -z "$WANDB_API_KEY" ]; then echo "no key"; exit 1; fi',
    "[ -f /nowhere/train.parquet ] || exit 1",
    '[[ -d /nowhere ]] || { echo "no folder" >&2; exit 2; }',
    'python3 -c "import no_such_module" || exit',
    'if [ $# -lt 2 ]; then echo "usage: $0 A B"; exit 1; fi',
    "if ! command -v no_such_command &> /dev/null; then exit 1; fi",
    '[ -z "$HF_TOKEN" ] && exit 1',
    'die() { echo "$1"; exit 1; }\ntest -n "$NODE_RANK" || die "no rank"',
    'if [ -n "$MASTER" ]; then echo ok; else exit 1; fi',
    'case "$MACHINE" in h100) N=8 ;; *) echo "unknown machine"; exit 1 ;; esac',
]

TAILS = [
    "",
    " 2>&1 | tee run.log",
    " |& tee -a run.log",
    " > run.log 2>&1",
    " &> run.log",
    " 2>&1 | tee run.log | grep -v warning",
    " || exit 1",
    " && echo done",
    " &\nwait",
]

ARGUMENTS = """data.train_files="['a.parquet', 'b.parquet']" \\
    data.train_batch_size=16 \\
    algorithm.adv_estimator=grpo \\
    actor_rollout_ref.rollout.n=4 \\
    +actor_rollout_ref.model.override_config.attn_implementation=eager \\
    trainer.logger='["console","wandb"]'"""
MODULE = "verl.trainer.main_ppo"
COMMAND = f"python3 -m {MODULE}"


def launch_scripts() -> Mapping[str, str]:
    """Every script by its name, with verl's training command."""
    folder = Path(__file__).parents[1] / "verl"
    plain = {path.stem: path.read_text(encoding="utf-8").split() for path in sorted(folder.glob("*_command.txt"))}
    return {
        **{
            name: text.replace("train ", f"{COMMAND} ").replace("train\n", f"{COMMAND}\n")
            for name, text in SHELL_SCRIPTS.items()
        },
        **{name: f"{COMMAND} {' '.join(words)}\n" for name, words in plain.items()},
        "all at once": SCRIPT,
        **{f"launched by {launcher}": f'{launcher} \\\n    {ARGUMENTS} "$@"\n' for launcher in LAUNCHERS},
        **{f"checked by {guard}": f"set -e\n{guard}\n{COMMAND} \\\n    {ARGUMENTS}\n" for guard in GUARDS},
        **{f"ended by {tail!r}": f"{COMMAND} {ARGUMENTS}{tail}\n" for tail in TAILS},
    }
