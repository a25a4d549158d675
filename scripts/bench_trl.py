#!/usr/bin/env python3
"""Compare the step time of PPO and GRPO with TRL: same model, prompts and lengths, in alternating processes.

On a CPU:

    python -m venv peer112 && peer112/bin/pip install torch==2.13.0 trl==1.12.0 transformers==5.12.1
    python -m venv peer116 && peer116/bin/pip install torch==2.13.0 trl==1.16.0
    python scripts/bench_trl.py --algorithm ppo --model small --trl-python peer112/bin/python
    python scripts/bench_trl.py --algorithm grpo --model small --kl-coef 0.04 --trl-python peer116/bin/python

On a GPU, GRPO with 8 prompts x 8 responses x 128 tokens at the shape of Qwen2.5-0.5B. TRL generates with `generate` and
with vLLM in its own process. `--trl-path` is the PYTHONPATH of the peer, with the same interpreter:

    python scripts/bench_trl.py --algorithm grpo --device cuda --dtype bf16 --peer-rollout generate,vllm \\
        --trl-path trl/site-packages:vllm/site-packages

Each round runs each side in its own process, one after the other, in alternating order. The first step of a side is not
timed; its work is counted instead: tokens fed to models and weights changed. The run fails if the sides did not
generate the same number of tokens for the same prompts. A step ends when the device has finished it.

Equal on all sides: weights in fp32, the dtype of matrix products in training and generation, tokenizer, SDPA attention,
prompts and their order, exactly `--new-tokens` tokens per response at temperature 1 without filters, rewards from
digits, clip range 0.2, epochs and mini-batches, one micro-batch per mini-batch, fused AdamW without weight decay at a
constant rate, no gradient checkpointing, PPO with critic, reference and k1 KL in the reward, GRPO with k3 KL in the
loss or no reference. On a GPU, the plan of rl_compat chooses micro-batches, attention and checkpointing.

Different by design: PPO here computes old log-probabilities with a separate forward, TRL's PPO uses the logits of the
sampler. TRL's GRPO computes them with vLLM, to correct for its numerics, and otherwise takes them from the update, as
rl_compat does with one mini-batch. Prompts here are padded on the right, and their last token is decoded instead of
prefilled. TRL's PPO also computes logits of prompts, has one optimizer for both models, neither clips nor measures
gradients, and computes the entropy for its metrics, as does its GRPO. The reward function here runs in its own process,
and the log-probabilities of the sampler and their difference to those of the trainer are recorded. TRL's vLLM reserves
TRL's share of the device for its cache, 0.3, and uses the dtype of the run, which TRL has no setting for.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench_trl_common import RESULT_MARK, Workload
from bench_trl_model import SHAPES, make_prompts, save_random_model
from bench_trl_report import OURS, as_text, different_work, summary

ROLLOUTS = ("generate", "vllm")
DEFAULTS = {
    "cpu": {"model": "tiny", "group": 4, "prompt_tokens": 64, "new_tokens": 64, "threads": 2},
    "cuda": {"model": "qwen2.5-0.5b", "group": 8, "prompt_tokens": 128, "new_tokens": 128, "threads": 8},
}
"by device; `group` is for GRPO"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", choices=("ppo", "grpo"), required=True)
    parser.add_argument("--device", choices=tuple(DEFAULTS), default="cpu", help="default: cpu")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32", help="dtype of products (default: fp32)")
    parser.add_argument("--model", help=f"random {', '.join(SHAPES)}, or a folder (default: tiny, GPU qwen2.5-0.5b)")
    parser.add_argument("--prompts", type=int, default=8, help="prompts per step (default: 8)")
    parser.add_argument("--group", type=int, help="responses per prompt (default: 1 for PPO, GRPO 4, on a GPU 8)")
    parser.add_argument(
        "--prompt-tokens", type=int, help="approximate longest prompt; the shortest is half as long (64, GPU 128)"
    )
    parser.add_argument("--new-tokens", type=int, help="tokens of every response (default: 64, on a GPU 128)")
    parser.add_argument("--epochs", type=int, default=1, help="passes over a batch (default: 1)")
    parser.add_argument("--mini-batches", type=int, default=1, help="optimizer steps per epoch (default: 1)")
    parser.add_argument("--kl-coef", type=float, help="default: 0.05 for PPO, 0 (no reference) for GRPO")
    parser.add_argument(
        "--steps", type=int, default=6, help="steps per round and side, the first not timed (default: 6)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="processes per side (default: 3)")
    parser.add_argument("--threads", type=int, help="torch threads of each side (default: 2, on a GPU 8)")
    parser.add_argument(
        "--engine", choices=("native", "vllm"), default="native", help="rollout engine of rl_compat (default: native)"
    )
    parser.add_argument("--peer-rollout", default="generate", help="generate, vllm, or both separated by a comma")
    parser.add_argument("--trl-python", type=Path, help="interpreter of an environment with TRL (default: this one)")
    parser.add_argument(
        "--trl-path",
        help="PYTHONPATH of the peer instead of the current one; dill requires folders named site-packages",
    )
    parser.add_argument("--json", action="store_true", help="print everything measured as JSON")
    options = parser.parse_args(arguments)
    fill_in(options)
    problem = problem_of(options)
    if problem is not None:
        parser.error(problem)
    return options


def fill_in(options: argparse.Namespace) -> None:
    """Set the defaults that depend on the device and the algorithm, in place."""
    for name, value in DEFAULTS[options.device].items():
        if getattr(options, name) is None:
            setattr(options, name, 1 if name == "group" and options.algorithm == "ppo" else value)
    if options.kl_coef is None:
        options.kl_coef = 0.05 if options.algorithm == "ppo" else 0.0
    options.peer_rollout = options.peer_rollout.split(",")


def problem_of(options: argparse.Namespace) -> str | None:
    """The first problem of the options, or None."""
    if options.steps < 2:
        return f"--steps is {options.steps}, must be at least 2: the first is not timed"
    for name in ("prompts", "group", "prompt_tokens", "new_tokens", "epochs", "mini_batches", "rounds", "threads"):
        if getattr(options, name) < 1:
            return f"--{name.replace('_', '-')} is {getattr(options, name)}, must be at least 1"
    if options.prompts % options.mini_batches:
        return f"--prompts {options.prompts} is not divisible by --mini-batches {options.mini_batches}"
    if options.algorithm == "ppo" and options.kl_coef <= 0:
        return "--kl-coef must be above 0 for PPO: TRL's PPO always has a reference"
    if options.algorithm == "grpo" and options.group < 2:
        return "--group must be at least 2 for GRPO"
    if options.model not in SHAPES and not Path(options.model).is_dir():
        return f"--model {options.model} is neither {' nor '.join(SHAPES)} nor a folder"
    return problem_of_device(options) or problem_of_peer(options)


def problem_of_device(options: argparse.Namespace) -> str | None:
    if options.device == "cpu" and options.dtype != "fp32":
        return f"--dtype {options.dtype} needs --device cuda"
    if options.device == "cuda" and options.algorithm == "ppo":
        return "--algorithm ppo needs --device cpu: only GRPO is compared on a GPU"
    if options.device == "cpu" and "vllm" in options.peer_rollout:
        return "--peer-rollout vllm needs --device cuda"
    return None


def problem_of_peer(options: argparse.Namespace) -> str | None:
    strange = [name for name in options.peer_rollout if name not in ROLLOUTS]
    if strange:
        return f"--peer-rollout {strange[0]} is neither {' nor '.join(ROLLOUTS)}"
    if options.trl_python is None and options.trl_path is None:
        return "the location of TRL is required: --trl-python, --trl-path, or both"
    if options.trl_python is not None and not options.trl_python.is_file():
        return f"--trl-python {options.trl_python} is not a file"
    return None


def main() -> None:
    options = parse()
    load = os.getloadavg()[0]
    if load > 0.5 and options.device == "cpu":
        print(f"warning: other work is running (load average {load:.1f}), times are unreliable", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        model = options.model
        if model in SHAPES:
            model = str(save_random_model(Path(folder) / "model", options.model))
        workload = make_workload(options, str(Path(model).absolute()))
        file = Path(folder) / "workload.json"
        workload.save(file)
        rounds = [run_round(number, options, file) for number in range(options.rounds)]
    result = summary(rounds)
    result |= {"options": {name: str(value) for name, value in vars(options).items()}, "load_before": load}
    print(json.dumps(result, indent=1) if options.json else as_text(headline(options), result))
    differing = different_work(result["work"])
    if differing:
        sys.exit("the sides did not do the same work: " + "; ".join(differing))


def headline(options: argparse.Namespace) -> str:
    return (
        f"{options.algorithm} on {options.device} in {options.dtype}, model {options.model}, {options.prompts} prompts "
        f"x {options.group}, {options.new_tokens} new tokens, KL coefficient {options.kl_coef}, {options.epochs} "
        f"epochs x {options.mini_batches} mini-batches, {options.threads} threads, {options.rounds} rounds of "
        f"{options.steps - 1} timed steps"
    )


def make_workload(options: argparse.Namespace, model: str) -> Workload:
    return Workload(
        algorithm=options.algorithm,
        model=model,
        prompts=make_prompts(model, steps=options.steps, prompts=options.prompts, longest=options.prompt_tokens),
        group=options.group,
        new_tokens=options.new_tokens,
        epochs=options.epochs,
        mini_batches=options.mini_batches,
        kl_coef=options.kl_coef,
        threads=options.threads,
        device=options.device,
        dtype=options.dtype,
        engine=options.engine,
    )


def commands_of(options: argparse.Namespace, workload: Path) -> dict[str, list[str]]:
    """The command of each side, by name."""
    here = Path(__file__).parent
    peer = [str(options.trl_python.absolute() if options.trl_python else sys.executable)]
    peer += [str(here / "bench_trl_peer.py"), str(workload)]
    names = {"generate": "trl", "vllm": "trl + vllm"}
    ours = {OURS: [sys.executable, str(here / "bench_trl_ours.py"), str(workload)]}
    return ours | {names[rollout]: [*peer, rollout] for rollout in options.peer_rollout}


def run_round(number: int, options: argparse.Namespace, workload: Path) -> dict[str, dict[str, Any]]:
    """Run all sides once, in alternating order."""
    commands = commands_of(options, workload)
    results = {}
    for side in list(commands) if number % 2 == 0 else list(commands)[::-1]:
        path = None if side == OURS else options.trl_path
        results[side] = run_side(commands[side], environment=environment_of(options, path=path))
        seconds = statistics.median(results[side]["step_seconds"][1:])
        print(f"round {number + 1} {side}: {seconds:.3f} s per step", file=sys.stderr, flush=True)
    return results


def environment_of(options: argparse.Namespace, *, path: str | None) -> dict[str, str]:
    """The environment of a side: its threads, no network, at most one GPU, and PYTHONPATH if `path` is given."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    environment = os.environ | {
        "OMP_NUM_THREADS": str(options.threads),
        "MKL_NUM_THREADS": str(options.threads),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "" if options.device == "cpu" else visible,
    }
    return environment if path is None else environment | {"PYTHONPATH": path}


def run_side(command: Sequence[str], *, environment: dict[str, str]) -> dict[str, Any]:
    """The measurement of a side's process. Exits with the end of its stderr if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        sys.exit(f"`{' '.join(command)}` failed:\n{done.stderr[-4000:]}")
    return parse_result(done.stdout)


def parse_result(output: str) -> dict[str, Any]:
    """The measurement in the output of a side. Raises ValueError if there is none."""
    lines = [line for line in output.splitlines() if line.startswith(RESULT_MARK)]
    if not lines:
        raise ValueError(f"no line starts with `{RESULT_MARK}`")
    result: dict[str, Any] = json.loads(lines[-1].removeprefix(RESULT_MARK))
    return result


if __name__ == "__main__":
    main()
