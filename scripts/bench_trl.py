#!/usr/bin/env python3
"""Step time of our PPO and GRPO beside TRL's on a CPU: same model, prompts and lengths, interleaved, as ratios.

    python -m venv peer112 && peer112/bin/pip install torch==2.13.0 trl==1.12.0 transformers==5.12.1
    python -m venv peer116 && peer116/bin/pip install torch==2.13.0 trl==1.16.0
    python scripts/bench_trl.py --algorithm ppo --model small --trl-python peer112/bin/python
    python scripts/bench_trl.py --algorithm grpo --model small --kl-coef 0.04 --trl-python peer116/bin/python

Each round runs both sides in processes of their own, one after the other, in alternating order. A side's first step is
dropped as a time; in it the work is counted: tokens fed to models and weights changed. The run fails when the sides did
not generate the same number of tokens for the same prompts.

Equal on both sides: weights and tokenizer in fp32, SDPA attention, prompts and their order, exactly `--new-tokens`
tokens a response at temperature 1 without filters, rewards from digits, clip range 0.2, epochs and mini-batches, one
micro-batch a mini-batch, fused AdamW without weight decay at a constant rate, no gradient checkpointing, PPO with
critic, reference and k1 KL in the reward, GRPO with k3 KL in the loss or no reference.

Different, because each side does it by itself: we compute old log-probabilities with a forward of their own, which
both TRL trainers take from elsewhere (PPO from the sampler's logits, GRPO from the update while it is on-policy); our
prompts are padded on the right and their last token is decoded, not prefilled; TRL's PPO makes logits of prompts too,
has one optimizer for both models, neither clips nor measures gradients, and computes the entropy for its metrics, as
its GRPO does; our reward function runs in a process of its own; we record the sampler's log-probabilities and their
distance to the trainer's.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench_trl_common import RESULT_MARK, Workload
from bench_trl_report import SIDES, as_text, different_work, summary

SHAPES = {
    "tiny": {"hidden_size": 256, "num_hidden_layers": 4, "intermediate_size": 1024, "vocab_size": 2048},
    "small": {"hidden_size": 512, "num_hidden_layers": 8, "intermediate_size": 2048, "vocab_size": 8192},
}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", choices=("ppo", "grpo"), required=True)
    parser.add_argument("--model", default="tiny", help=f"random {', '.join(SHAPES)}, or a folder (default: tiny)")
    parser.add_argument("--prompts", type=int, default=8, help="prompts a step (default: 8)")
    parser.add_argument("--group", type=int, help="responses a prompt (default: 1 for PPO, 4 for GRPO)")
    parser.add_argument("--prompt-tokens", type=int, default=64, help="longest prompt, about; shortest is half of it")
    parser.add_argument("--new-tokens", type=int, default=64, help="tokens of every response (default: 64)")
    parser.add_argument("--epochs", type=int, default=1, help="passes over a batch (default: 1)")
    parser.add_argument("--mini-batches", type=int, default=1, help="optimizer steps an epoch (default: 1)")
    parser.add_argument("--kl-coef", type=float, help="default: 0.05 for PPO, 0 (no reference) for GRPO")
    parser.add_argument("--steps", type=int, default=6, help="steps a round and side, the first dropped (default: 6)")
    parser.add_argument("--rounds", type=int, default=3, help="processes a side (default: 3)")
    parser.add_argument("--threads", type=int, default=2, help="torch threads of each side (default: 2)")
    parser.add_argument("--trl-python", type=Path, required=True, help="interpreter of an environment with TRL")
    parser.add_argument("--json", action="store_true", help="print everything measured as JSON")
    options = parser.parse_args(arguments)
    if options.group is None:
        options.group = 1 if options.algorithm == "ppo" else 4
    if options.kl_coef is None:
        options.kl_coef = 0.05 if options.algorithm == "ppo" else 0.0
    problem = problem_of(options)
    if problem is not None:
        parser.error(problem)
    return options


def problem_of(options: argparse.Namespace) -> str | None:
    """What is wrong with the options, if anything."""
    if options.steps < 2:
        return f"--steps is {options.steps}, must be at least 2: the first is dropped"
    for name in ("prompts", "group", "prompt_tokens", "new_tokens", "epochs", "mini_batches", "rounds", "threads"):
        if getattr(options, name) < 1:
            return f"--{name.replace('_', '-')} is {getattr(options, name)}, must be at least 1"
    if options.prompts % options.mini_batches:
        return f"--prompts {options.prompts} is not divisible by --mini-batches {options.mini_batches}"
    if options.algorithm == "ppo" and options.kl_coef <= 0:
        return "--kl-coef must be above 0 for PPO: TRL's always runs a reference"
    if options.algorithm == "grpo" and options.group < 2:
        return "--group must be at least 2 for GRPO"
    if options.model not in SHAPES and not Path(options.model).is_dir():
        return f"--model {options.model} is neither {' nor '.join(SHAPES)} nor a folder"
    if not options.trl_python.is_file():
        return f"--trl-python {options.trl_python} is not a file"
    return None


def main() -> None:
    options = parse()
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"warning: other work is running (load average {load:.1f}), the times mean little", file=sys.stderr)
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
        f"{options.algorithm}, model {options.model}, {options.prompts} prompts x {options.group}, "
        f"{options.new_tokens} new tokens, KL coefficient {options.kl_coef}, {options.epochs} epochs x "
        f"{options.mini_batches} mini-batches, {options.threads} threads, {options.rounds} rounds of "
        f"{options.steps - 1} timed steps"
    )


def save_random_model(folder: Path, shape: str) -> Path:
    """A random Qwen2 of that shape with a byte-level tokenizer, in a form that old transformers read too."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1024,
        special_tokens=["<pad>", "<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((sentence(a, b) for a in range(60) for b in range(60)), trainer)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        chat_template="{% for message in messages %}{{ message['content'] }}{% endfor %}",
    ).save_pretrained(folder)
    config = Qwen2Config(
        **SHAPES[shape],
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=1, pad_token_id=0)
    model.save_pretrained(folder)
    return folder


def sentence(first: int, second: int) -> str:
    return f"Tom has {first} apples and buys {second} more. How many apples does he have now? "


def make_workload(options: argparse.Namespace, model: str) -> Workload:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
    generator = random.Random(0)

    def prompt() -> str:
        wanted = generator.randint(max(1, options.prompt_tokens // 2), options.prompt_tokens)
        text = sentence(generator.randrange(60), generator.randrange(60))
        while len(tokenizer(text)["input_ids"]) < wanted:
            text += sentence(generator.randrange(60), generator.randrange(60))
        return str(tokenizer.decode(tokenizer(text)["input_ids"][:wanted]))

    return Workload(
        algorithm=options.algorithm,
        model=model,
        prompts=[[prompt() for _ in range(options.prompts)] for _ in range(options.steps)],
        group=options.group,
        new_tokens=options.new_tokens,
        epochs=options.epochs,
        mini_batches=options.mini_batches,
        kl_coef=options.kl_coef,
        threads=options.threads,
    )


def run_round(number: int, options: argparse.Namespace, workload: Path) -> dict[str, dict[str, Any]]:
    """Both sides once; who goes first alternates."""
    here = Path(__file__).parent
    commands = {
        "rl_compat": [sys.executable, str(here / "bench_trl_ours.py"), str(workload)],
        "trl": [str(options.trl_python.absolute()), str(here / "bench_trl_peer.py"), str(workload)],
    }
    order = SIDES if number % 2 == 0 else SIDES[::-1]
    results = {}
    for side in order:
        results[side] = run_side(commands[side], threads=options.threads)
        seconds = statistics.median(results[side]["step_seconds"][1:])
        print(f"round {number + 1} {side}: {seconds:.3f} s a step", file=sys.stderr, flush=True)
    return results


def run_side(command: Sequence[str], *, threads: int) -> dict[str, Any]:
    """What a side's process measured. Ends the program with the process's last words when it fails."""
    environment = os.environ | {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        sys.exit(f"`{' '.join(command)}` failed:\n{done.stderr[-4000:]}")
    return parse_result(done.stdout)


def parse_result(output: str) -> dict[str, Any]:
    """The measurement in a side's output. Raises ValueError when there is none."""
    lines = [line for line in output.splitlines() if line.startswith(RESULT_MARK)]
    if not lines:
        raise ValueError(f"no line starts with `{RESULT_MARK}`")
    result: dict[str, Any] = json.loads(lines[-1].removeprefix(RESULT_MARK))
    return result


if __name__ == "__main__":
    main()
