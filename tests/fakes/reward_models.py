"""Small real reward models with random weights, saved as ordinary Hugging Face folders."""

from __future__ import annotations

from pathlib import Path

from fakes.models import CHAT_TEMPLATE, character_tokenizer


def save_reward_model(
    folder: Path,
    *,
    family: str = "llama",
    num_labels: int = 1,
    chat_template: str | None = CHAT_TEMPLATE,
    pad_token: str | None = "<|pad|>",
    eos_token_id: int = 1,
    max_positions: int = 512,
    seed: int = 0,
) -> Path:
    """Write config, weights and tokenizer of a tiny `llama`, `qwen2` or `bert` sequence classification model."""
    import torch
    from transformers import (
        BertConfig,
        BertForSequenceClassification,
        LlamaConfig,
        LlamaForSequenceClassification,
        Qwen2Config,
        Qwen2ForSequenceClassification,
    )

    tokenizer = character_tokenizer(chat_template=chat_template, pad_token=pad_token)
    config_class, model_class = {
        "llama": (LlamaConfig, LlamaForSequenceClassification),
        "qwen2": (Qwen2Config, Qwen2ForSequenceClassification),
        "bert": (BertConfig, BertForSequenceClassification),
    }[family]
    grouped = {} if family == "bert" else {"num_key_value_heads": 2}
    torch.manual_seed(seed)
    model = model_class(
        config_class(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=max_positions,
            num_labels=num_labels,
            eos_token_id=eos_token_id,
            pad_token_id=None if pad_token is None else tokenizer.pad_token_id,
            initializer_range=0.3,
            **grouped,
        )
    )
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
