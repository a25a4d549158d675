"""The model of the TRL comparison: random weights in a known shape with a tokenizer, and prompts for it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

SMALL_SHAPES = {
    "tiny": {"hidden_size": 256, "num_hidden_layers": 4, "intermediate_size": 1024, "vocab_size": 2048},
    "small": {"hidden_size": 512, "num_hidden_layers": 8, "intermediate_size": 2048, "vocab_size": 8192},
}
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 2}
SHAPES = (*SMALL_SHAPES, "qwen2.5-0.5b")
LEARNED_TOKENS = 1024


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
    from rl_compat.bench import cases as bench_cases

    return bench_cases.SHAPES[shape]


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
