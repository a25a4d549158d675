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

The processes of both sides import the workload, its reward and the counter of work from this file, in environments
without the other side, so it imports neither.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

ROLLOUTS = ("generate", "vllm")
DEFAULTS = {
    "cpu": {"model": "tiny", "group": 4, "prompt_tokens": 64, "new_tokens": 64, "threads": 2},
    "cuda": {"model": "qwen2.5-0.5b", "group": 8, "prompt_tokens": 128, "new_tokens": 128, "threads": 8},
}
"by device; `group` is for GRPO"
SMALL_SHAPES = {
    "tiny": {"hidden_size": 256, "num_hidden_layers": 4, "intermediate_size": 1024, "vocab_size": 2048},
    "small": {"hidden_size": 512, "num_hidden_layers": 8, "intermediate_size": 2048, "vocab_size": 8192},
}
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 2}
SHAPES = (*SMALL_SHAPES, "qwen2.5-0.5b")
LEARNED_TOKENS = 1024
RESULT_MARK = "BENCH_RESULT "
SAME_WORK = ("prompt_tokens", "response_tokens")
OURS = "rl_compat"

Round = Mapping[str, Mapping[str, Any]]
"what each side measured, by its name"


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


def make_workload(options: argparse.Namespace, model: str) -> BenchWorkload:
    return BenchWorkload(
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


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchWorkload:
    """One measurement, the same for all sides."""

    algorithm: str
    "`ppo` or `grpo`"
    model: str
    "model folder with weights and tokenizer"
    prompts: list[list[str]]
    "by step, in the order in which they are used"
    group: int
    new_tokens: int
    epochs: int
    mini_batches: int
    kl_coef: float
    "PPO: of the KL in the reward. GRPO: of the KL in the loss, 0 runs without a reference"
    threads: int
    device: str = "cpu"
    "`cpu` or `cuda`"
    dtype: str = "fp32"
    "of matrix products in training and generation; trained weights are fp32"
    engine: str = "native"
    "that generates on our side"
    learning_rate: float = 1e-6

    @property
    def on_gpu(self) -> bool:
        return self.device != "cpu"

    @property
    def responses_per_step(self) -> int:
        return len(self.prompts[0]) * self.group

    @property
    def mini_batch_responses(self) -> int:
        return self.responses_per_step // self.mini_batches

    def save(self, file: Path) -> None:
        file.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def load(cls, file: Path) -> Self:
        return cls(**json.loads(file.read_text(encoding="utf-8")))


def digit_reward(solution_str: str) -> float:
    """A tenth of the number of digits: a reward that random models reach and that takes no time."""
    return sum(character.isdigit() for character in solution_str) / 10


class WorkCounter:
    """Counts the tokens that models are fed in batches of sequences and the weights that change, in this process.

    A forward is seen by its token embedding over [B, T]: with gradient it trains, without it scores (old and reference
    log-probabilities, values, the prefill of `generate`). Single tokens are decoding, which engines do in ways that
    cannot be compared so: replayed graphs call no embedding.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._handles: list[Any] = []

    def start(self) -> None:
        from torch.nn.modules.module import register_module_forward_hook
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._handles = [
            register_module_forward_hook(self._see_module),
            register_optimizer_step_post_hook(self._see_optimizer),
        ]

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _see_module(self, module: Any, inputs: tuple[Any, ...], output: Any) -> None:
        from torch import is_grad_enabled
        from torch.nn import Embedding

        if not isinstance(module, Embedding) or inputs[0].dim() < 2 or inputs[0].shape[-1] == 1:
            return
        kind = "train" if is_grad_enabled() and module.weight.requires_grad else "score"
        self.counts[f"{kind}_forwards"] += 1
        self.counts[f"{kind}_tokens"] += inputs[0].numel()

    def _see_optimizer(self, optimizer: Any, arguments: Any, keywords: Any) -> None:
        self.counts["updated_weights"] += sum(p.numel() for group in optimizer.param_groups for p in group["params"])


def report(
    *,
    versions: dict[str, str],
    step_seconds: list[float],
    rollout_seconds: list[float],
    work: Counter[str],
    peak_device_bytes: int | None,
) -> None:
    """Print a side's measurement as the line that `bench_trl.py` reads."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    result = {
        "versions": versions,
        "step_seconds": step_seconds,
        "rollout_seconds": rollout_seconds,
        "work": dict(work),
        "peak_rss_bytes": peak,
        "peak_device_bytes": peak_device_bytes,
    }
    print(RESULT_MARK + json.dumps(result), flush=True)


def wait_for_device() -> None:
    """Wait until the GPU has finished, if one is used."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def save_random_model(folder: Path, shape: str) -> Path:
    """A random Qwen2 of the given shape with a byte-level tokenizer, in a format that old transformers read too."""
    import torch
    from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    sizes = sizes_of(shape)
    save_tokenizer(folder, vocab_size=sizes["vocab_size"])
    config = Qwen2Config(
        **sizes,
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


def sizes_of(shape: str) -> dict[str, int]:
    """The sizes of a shape in `SHAPES`."""
    if shape in SMALL_SHAPES:
        return SMALL_SHAPES[shape] | HEADS
    from rl_compat.bench.worker import SHAPES

    return SHAPES[shape]


def save_tokenizer(folder: Path, *, vocab_size: int) -> None:
    """A tokenizer with a text for every id of the model: trained on the prompts, plus one word per remaining id."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    content = json.loads(learned_tokenizer().to_str())
    vocabulary = content["model"]["vocab"]
    vocabulary |= {f"w{token_id}": token_id for token_id in range(len(vocabulary), vocab_size)}
    PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(content)),
        pad_token="<pad>",
        eos_token="<eos>",
        chat_template="{% for message in messages %}{{ message['content'] }}{% endfor %}",
    ).save_pretrained(folder)


def learned_tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=LEARNED_TOKENS,
        special_tokens=["<pad>", "<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((sentence(a, b) for a in range(60) for b in range(60)), trainer)
    return tokenizer


def sentence(first: int, second: int) -> str:
    return f"Tom has {first} apples and buys {second} more. How many apples does he have now? "


def make_prompts(folder: str, *, steps: int, prompts: int, longest: int) -> list[list[str]]:
    """Prompts by step, with half of `longest` to `longest` tokens."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    generator = random.Random(0)

    def prompt() -> str:
        wanted = generator.randint(max(1, longest // 2), longest)
        text = sentence(generator.randrange(60), generator.randrange(60))
        while len(tokenizer(text)["input_ids"]) < wanted:
            text += sentence(generator.randrange(60), generator.randrange(60))
        return str(tokenizer.decode(tokenizer(text)["input_ids"][:wanted]))

    return [[prompt() for _ in range(prompts)] for _ in range(steps)]


def spread(values: Sequence[float]) -> dict[str, float]:
    """The median with its quartiles."""
    low, median, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [*values] * 3
    return {"median": median, "low": low, "high": high}


def summary(rounds: Sequence[Round]) -> dict[str, Any]:
    """Seconds of each side over all rounds without first steps, and the time of each peer over ours per round."""
    names = [OURS, *(name for name in rounds[0] if name != OURS)]
    sides = {}
    for side in names:
        results = [one[side] for one in rounds]
        device_peaks = [r["peak_device_bytes"] for r in results if r["peak_device_bytes"] is not None]
        sides[side] = {
            "versions": results[0]["versions"],
            "step_seconds": spread([s for r in results for s in r["step_seconds"][1:]]),
            "rollout_seconds": spread([s for r in results for s in r["rollout_seconds"][1:]]),
            "peak_rss_bytes": max(r["peak_rss_bytes"] for r in results),
            "peak_device_bytes": max(device_peaks, default=None),
        }
    return {
        "sides": sides,
        "ratio_step": {peer: ratio(rounds, peer, "step_seconds") for peer in names[1:]},
        "ratio_rollout": {peer: ratio(rounds, peer, "rollout_seconds") for peer in names[1:]},
        "work": {side: rounds[0][side]["work"] for side in names},
        "rounds": list(rounds),
    }


def ratio(rounds: Sequence[Round], peer: str, key: str) -> dict[str, float]:
    """Median time of a peer over ours per round: median, lowest and highest. Above 1, rl_compat is faster."""
    ratios = [statistics.median(one[peer][key][1:]) / statistics.median(one[OURS][key][1:]) for one in rounds]
    return {"median": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)}


def different_work(work: Mapping[str, Mapping[str, int]]) -> list[str]:
    """The counts of work that differ between the sides."""
    ours = work[OURS]
    return [
        f"{name} is {ours.get(name)} in {OURS} and {theirs.get(name)} in {peer}"
        for peer, theirs in work.items()
        for name in SAME_WORK
        if ours.get(name) != theirs.get(name)
    ]


def as_text(headline: str, result: Mapping[str, Any]) -> str:
    """The result as text."""
    sides = result["sides"]
    kind = "peak_rss_bytes" if sides[OURS]["peak_device_bytes"] is None else "peak_device_bytes"
    title = "peak RSS" if kind == "peak_rss_bytes" else "peak on GPU"
    lines = [headline, f"{'':12}{'step s (quartiles)':26}{'rollout s (quartiles)':26}{title:>13}"]
    for side, found in sides.items():
        times = "".join(
            f"{found[key]['median']:.3f} ({found[key]['low']:.3f} to {found[key]['high']:.3f})".ljust(26)
            for key in ("step_seconds", "rollout_seconds")
        )
        lines.append(f"{side:12}{times}{found[kind] / 2**20:9,.0f} MiB")
    for name in ("step", "rollout"):
        for peer, found in result[f"ratio_{name}"].items():
            spread = f"({found['lowest']:.2f} to {found['highest']:.2f})"
            lines.append(f"{peer} / {OURS}, {name}: {found['median']:.2f} {spread}")
    work = result["work"]
    lines.append("work of the first step:" + "".join(f"{side:>14}" for side in work))
    for name in sorted({name for counts in work.values() for name in counts}):
        lines.append(f"  {name:21}" + "".join(f"{counts.get(name, 0):>14,}" for counts in work.values()))
    for side, found in sides.items():
        lines.append(side + ": " + ", ".join(f"{name} {version}" for name, version in found["versions"].items()))
    return "\n".join(lines)


if __name__ == "__main__":
    main()
