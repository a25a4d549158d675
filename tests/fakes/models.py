"""Small real models with random weights and a character tokenizer, saved as ordinary Hugging Face folders."""

from __future__ import annotations

from pathlib import Path

CHARACTERS = "0123456789+-*=?.,:#$ \nabcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ'\"()[]{}\\/<>|!%&_"
CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<|pad|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>", "<|unk|>"]


def character_tokenizer(*, chat_template: str | None = CHAT_TEMPLATE, pad_token: str | None = "<|pad|>"):
    """A PreTrainedTokenizerFast with one token per character; `<|end|>` (id 1) is the end token."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocab = {token: i for i, token in enumerate(SPECIAL + list(dict.fromkeys(CHARACTERS)))}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<|unk|>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<|unk|>",
        eos_token="<|end|>",
        pad_token=pad_token,
        additional_special_tokens=["<|user|>", "<|assistant|>", "<|system|>"],
        chat_template=chat_template,
    )


def save_random_model(
    folder: Path,
    *,
    family: str = "llama",
    num_layers: int = 2,
    hidden_size: int = 32,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    tie_word_embeddings: bool = True,
    generation_config: dict | None = None,
    chat_template: str | None = CHAT_TEMPLATE,
    pad_token: str | None = "<|pad|>",
    seed: int = 0,
) -> Path:
    """Write config, weights and tokenizer of a tiny `llama` or `qwen2` model to the folder."""
    import torch
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    tokenizer = character_tokenizer(chat_template=chat_template, pad_token=pad_token)
    config_class, model_class = {
        "llama": (LlamaConfig, LlamaForCausalLM),
        "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    }[family]
    torch.manual_seed(seed)
    model = model_class(
        config_class(
            vocab_size=len(tokenizer),
            hidden_size=hidden_size,
            intermediate_size=2 * hidden_size,
            num_hidden_layers=num_layers,
            num_attention_heads=num_heads,
            num_key_value_heads=num_kv_heads,
            max_position_embeddings=1024,
            tie_word_embeddings=tie_word_embeddings,
            eos_token_id=1,
            pad_token_id=0,
            bos_token_id=None,
            initializer_range=0.2,
        )
    )
    model.generation_config = GenerationConfig(**(generation_config or {"eos_token_id": 1, "pad_token_id": 0}))
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
