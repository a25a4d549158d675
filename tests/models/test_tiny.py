from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

from rl_compat.data.builtin.arithmetic import rows
from rl_compat.models.chat import ChatEncoder
from rl_compat.models.files.registry import BUILTIN, resolve_model
from rl_compat.models.tokenizer import load_tokenizer

FOLDER = resolve_model("tiny").folder


@pytest.fixture(scope="module")
def chat() -> ChatEncoder:
    return ChatEncoder(load_tokenizer(FOLDER))


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return AutoModelForCausalLM.from_pretrained(FOLDER, dtype="float32")


@torch.no_grad()
def answer_logprobs(model: nn.Module, chat: ChatEncoder, prompt: str, answer: str) -> torch.Tensor:
    """Log-probabilities [T] of the answer and its end token."""
    ids, response = chat.encode(prompt)[1], chat.bundle.tokenizer(answer + "<|end|>")["input_ids"]
    logits = model(torch.tensor([ids + response])).logits[0, len(ids) - 1 : -1]
    return F.log_softmax(logits, dim=-1).gather(1, torch.tensor(response)[:, None])[:, 0]


def test_the_folder_is_small_enough_to_ship_and_complete(model: nn.Module) -> None:
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 1_500_000
    assert sum(parameter.numel() for parameter in model.parameters()) == BUILTIN[0].num_parameters
    assert not [file for file in FOLDER.iterdir() if file.suffix in (".bin", ".pt", ".pkl")]


def test_the_tokenizer_has_one_token_per_character_and_one_end(chat: ChatEncoder) -> None:
    text, ids = chat.encode("17+25=")
    assert text == "<|user|>17+25=<|end|><|assistant|>"
    assert len(ids) == 9
    assert (chat.bundle.stop_token_ids, chat.bundle.pad_token_id, chat.bundle.notes) == ((1,), 0, ())
    assert chat.decode([*chat.bundle.tokenizer("42")["input_ids"], 1]) == "42"


def test_any_printable_text_survives_the_tokenizer(chat: ChatEncoder) -> None:
    text = "\n" + "".join(chr(code) for code in range(32, 127))
    assert chat.decode(chat.bundle.tokenizer(text)["input_ids"]) == text


def test_it_starts_right_about_once_in_five_on_rows_it_never_saw(model: nn.Module, chat: ChatEncoder) -> None:
    right = [
        float(
            answer_logprobs(model, chat, row["prompt"][0]["content"], row["reward_model"]["ground_truth"]).sum().exp()
        )
        for row in rows("test", limit=200)
    ]
    assert 0.15 <= sum(right) / len(right) <= 0.25
    assert sum(p > 0.1 for p in right) / len(right) > 0.95


def test_the_right_sum_is_seldom_its_first_choice(model: nn.Module, chat: ChatEncoder) -> None:
    held_out = rows("test", limit=100)
    wins = 0
    for row in held_out:
        prompt, right = row["prompt"][0]["content"], row["reward_model"]["ground_truth"]
        neighbour = answer_logprobs(model, chat, prompt, str(int(right) + 1)).sum()
        wins += int(neighbour > answer_logprobs(model, chat, prompt, right).sum())
    assert wins / len(held_out) > 0.85


def test_it_ends_its_answers(model: nn.Module, chat: ChatEncoder) -> None:
    assert float(answer_logprobs(model, chat, "17+25=", "42")[-1].exp()) > 0.99


def test_padding_ids_are_never_likely(model: nn.Module, chat: ChatEncoder) -> None:
    ids = torch.tensor([chat.encode("3+4=")[1]])
    with torch.no_grad():
        probabilities = model(ids).logits[0, -1].softmax(-1)
    digits = chat.bundle.tokenizer("0123456789")["input_ids"]
    assert float(probabilities[digits].sum()) > 0.99


def test_the_shipped_folder_holds_nothing_but_the_model(tmp_path: Path) -> None:
    assert {file.name for file in FOLDER.iterdir()} == {
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
