#!/usr/bin/env python3
"""Measure the error of quantized frozen weights, and the difference between rollout and training.

On GSM8K questions with fp32 products. `off` is the difference between the log-probabilities of question tokens and
those of fp32 weights. `gap` is the difference between the log-probabilities of response tokens in the rollout and those
of a plain forward with the same weights.
Example: scripts/bench_quantized_base.py --model FOLDER --questions 16
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rl_compat.bench.worker import question_case
from rl_compat.config.types import ModelConfig
from rl_compat.data.builtin.gsm8k import raw_records
from rl_compat.models.load import LoadSettings, load_causal_lm
from rl_compat.planning.types import RolePlan, RolloutPlan
from rl_compat.rollout.build import build_rollout_engine
from rl_compat.rollout.inference import plain_logprobs
from rl_compat.rollout.types import SamplingParams
from rl_compat.workers.setup import lora_settings


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a Hugging Face folder")
    parser.add_argument("--forms", default=",".join(FORMS))
    parser.add_argument("--questions", type=int, default=16)
    parser.add_argument("--new-tokens", type=int, default=40)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    given.forms = given.forms.split(",")
    unknown = [form for form in given.forms if form not in FORMS]
    if unknown:
        parser.error(f"unknown form `{unknown[0]}`: choose from {', '.join(FORMS)}")
    if not (given.model / "config.json").is_file():
        parser.error(f"`{given.model}` has no `config.json`")
    return given


def planned(folder: Path, device: str, *, quantization: str) -> nn.Module:
    """The model as a run loads an actor. New adapters do not change its outputs."""
    role = RolePlan(
        role="actor",
        device=device,
        storage_dtype="fp32",
        compute_dtype="fp32",
        attention="sdpa",
        quantization=quantization,
    )
    return load_causal_lm(
        LoadSettings(folder=folder, role=role, lora=lora_settings(ModelConfig(lora_rank=8)), trust_remote_code=False)
    )


def of_bitsandbytes(folder: Path, device: str, *, threshold: float) -> nn.Module:
    """The model with int8 products of bitsandbytes; inputs above the threshold are multiplied in fp16, none with 0."""
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    settings = BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=threshold)
    model: nn.Module = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="sdpa", quantization_config=settings, device_map={"": device}
    )
    return model.eval()


FORMS: dict[str, Callable[[Path, str], nn.Module]] = {
    "fp32": partial(planned, quantization="none"),
    "int8": partial(planned, quantization="int8"),
    "nf4": partial(planned, quantization="nf4"),
    "bitsandbytes-int8": partial(of_bitsandbytes, threshold=6.0),
    "bitsandbytes-int8-without-fp16": partial(of_bitsandbytes, threshold=0.0),
}


@torch.no_grad()
def measure(model: Any, prompts: list[list[int]], *, exact: list[Tensor], new_tokens: int) -> dict[str, object]:
    off = torch.cat([(ours - its).abs() for ours, its in zip(logprobs(model, prompts), exact, strict=True)])
    plan = RolloutPlan(
        engine="native", compute_dtype="fp32", max_num_seqs=len(prompts), max_prefill_tokens=max(map(len, prompts))
    )
    engine = build_rollout_engine(model, plan=plan, pad_token_id=0)
    groups = engine.generate(prompts, SamplingParams(max_new_tokens=new_tokens, seed=0))
    gaps = [
        (torch.tensor(group[0].logprobs) - plain_logprobs(model, prompt, group[0].token_ids).cpu()).abs()
        for prompt, group in zip(prompts, groups, strict=True)
    ]
    gap = torch.cat(gaps)
    weights = sum(parameter.nbytes for name, parameter in model.named_parameters() if "lora_" not in name)
    return {
        "weights_bytes": weights,
        "off_mean": float(off.mean()),
        "off_max": float(off.max()),
        "engine": type(engine).__name__,
        "gap_mean": float(gap.mean()),
        "gap_max": float(gap.max()),
    }


def logprobs(model: Any, prompts: list[list[int]]) -> list[Tensor]:
    """The log-probability of every token except the first, given the tokens before it."""
    return [plain_logprobs(model, prompt[:1], prompt[1:]).cpu() for prompt in prompts]


def main() -> None:
    given = parse()
    questions = [str(record["question"]) for record in raw_records("test", limit=given.questions)]
    case = question_case(given.model, questions, batch=given.questions, new_tokens=given.new_tokens)
    prompts = [list(prompt) for prompt in case.prompts]
    with torch.no_grad():
        exact = logprobs(FORMS["fp32"](given.model, given.device), prompts)
    rows = []
    for form in given.forms:
        model = FORMS[form](given.model, given.device)
        row = {"form": form, **measure(model, prompts, exact=exact, new_tokens=given.new_tokens)}
        rows.append(row)
        print(" ".join(f"{k}={v:.3g}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items()), flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
