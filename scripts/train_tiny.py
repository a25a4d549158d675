r"""Train the built-in `tiny` model, which can add two numbers below 100 but mostly gives a wrong answer.

    python scripts/train_tiny.py [--output rl_compat/models/tiny] [--seed 0]

It first learns the sums of the training rows of the `arithmetic` dataset, then to answer them from a fixed distribution
in which the correct sum is not the most likely answer. It is correct about once in five when sampled at temperature 1,
and almost never with greedy decoding. The held-out rows are not used. Seed 0 gives the shipped file in about five
minutes on one core; the same seed and torch build give the same bytes.

Reinforcement learning with seeds 1, 2 and 3 (mean reward at temperature 1 of the first three and the last five steps):

    rlc train model.path=tiny data.train_files=arithmetic data.val_files=arithmetic data.max_prompt_length=16 \
        data.max_response_length=5 optimizer.actor_lr=5e-4 optimizer.critic_lr=1e-3 trainer.num_steps=60 ...

    ppo, 128 prompts per step                  0.22 to 0.27 before, 0.89 to 0.91 after, above 0.8 from step 38 to 45
    grpo, 32 prompts per step in groups of 8   0.23 to 0.25 before, 0.88 to 0.91 after, above 0.8 from step 37 to 46
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from torch.nn import functional as F
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from rl_compat.data.builtin.arithmetic import rows

SPECIAL = ("<|pad|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>", "<|unk|>")
PAD, END, USER, ASSISTANT, SYSTEM, UNKNOWN = SPECIAL
CHARACTERS = ("\n", *(chr(code) for code in range(32, 127)))
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
OFFSETS = (0, 1, -1, 2)
OFFSET_WEIGHTS = (0.20, 0.36, 0.24, 0.20)
"how often an answer is the sum plus the offset"
BATCH_SIZE = 128
CLEAN_STEPS = 2000
MIXED_STEPS = 1200
IGNORED = -100


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token per printable ASCII character; `<|end|>` ends every turn."""
    vocabulary = {token: i for i, token in enumerate((*SPECIAL, *CHARACTERS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(list(SPECIAL))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token=UNKNOWN,
        eos_token=END,
        pad_token=PAD,
        chat_template=CHAT_TEMPLATE,
        model_max_length=1024,
        clean_up_tokenization_spaces=False,
    )


def make_model(num_tokens: int) -> LlamaForCausalLM:
    """A Llama of about 0.3 million parameters."""
    config = LlamaConfig(
        vocab_size=num_tokens,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        rope_theta=10000.0,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
        attn_implementation="eager",
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=1, pad_token_id=0)
    return model


def batches(
    tokenizer: PreTrainedTokenizerFast, generator: random.Random, *, mixed: bool
) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless batches of input ids and labels, both [BATCH_SIZE, T]. Only the answer and its end token have labels."""
    prompts = [row["prompt"][0]["content"] for row in rows("train")]
    while True:
        chosen = generator.choices(prompts, k=BATCH_SIZE)
        offsets = generator.choices(OFFSETS, OFFSET_WEIGHTS, k=BATCH_SIZE) if mixed else [0] * BATCH_SIZE
        yield encode(
            tokenizer, [(prompt, answer(prompt, offset)) for prompt, offset in zip(chosen, offsets, strict=True)]
        )


def answer(prompt: str, offset: int) -> str:
    """The digits of the sum plus the offset, or of the sum if the result is negative."""
    a, b = (int(number) for number in prompt.rstrip("=").split("+"))
    return str(a + b + offset if a + b + offset >= 0 else a + b)


def encode(tokenizer: PreTrainedTokenizerFast, pairs: list[tuple[str, str]]) -> tuple[Tensor, Tensor]:
    prompts = [tokenizer(f"{USER}{prompt}{END}{ASSISTANT}")["input_ids"] for prompt, _ in pairs]
    answers = [tokenizer(f"{text}{END}")["input_ids"] for _, text in pairs]
    width = max(len(p) + len(a) for p, a in zip(prompts, answers, strict=True))
    input_ids = torch.zeros(len(pairs), width, dtype=torch.int64)
    labels = torch.full((len(pairs), width), IGNORED)
    for row, (prompt, text) in enumerate(zip(prompts, answers, strict=True)):
        input_ids[row, : len(prompt) + len(text)] = torch.tensor(prompt + text)
        labels[row, len(prompt) : len(prompt) + len(text)] = torch.tensor(text)
    return input_ids, labels


def train(model: LlamaForCausalLM, data: Iterator[tuple[Tensor, Tensor]], *, num_steps: int, lr: float) -> None:
    """Next-token cross entropy on the labels with a cosine schedule."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.99), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=num_steps, pct_start=0.05)
    for step in range(num_steps):
        input_ids, labels = next(data)
        logits = model(input_ids=input_ids).logits[:, :-1]
        loss = F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 100 == 0 or step == num_steps - 1:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


@torch.no_grad()
def right_answer_probability(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> float:
    """Mean probability of the exact sum on the held-out rows: the expected reward at temperature 1."""
    prompts = [row["prompt"][0]["content"] for row in rows("test")]
    input_ids, labels = encode(tokenizer, [(prompt, answer(prompt, 0)) for prompt in prompts])
    logits = model(input_ids=input_ids).logits[:, :-1]
    losses = F.cross_entropy(logits.transpose(1, 2), labels[:, 1:], ignore_index=IGNORED, reduction="none")
    return float((-losses.sum(dim=1)).exp().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(__file__).parents[1] / "rl_compat" / "models" / "tiny")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(1)
    generator = random.Random(arguments.seed)
    tokenizer = make_tokenizer()
    model = make_model(len(tokenizer))
    train(model, batches(tokenizer, generator, mixed=False), num_steps=CLEAN_STEPS, lr=2e-3)
    print(f"right after the sums: {right_answer_probability(model, tokenizer):.3f}")
    train(model, batches(tokenizer, generator, mixed=True), num_steps=MIXED_STEPS, lr=1e-3)
    model.half().save_pretrained(arguments.output)
    tokenizer.save_pretrained(arguments.output)
    print(f"right at temperature 1: {right_answer_probability(model.float(), tokenizer):.3f}")


if __name__ == "__main__":
    main()
