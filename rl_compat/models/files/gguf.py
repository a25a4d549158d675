"""Convert a GGUF file to a model folder: safetensors, config, tokenizer and chat template."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_compat.errors import ModelError
from rl_compat.models.files.folder import read_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer

CONVERSION_VERSION = 1
RECORD = "conversion.json"
MAGIC = b"GGUF"
FLOAT_TYPES = ("F32", "F16", "BF16")
SPECIAL_TOKENS = (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
CONTROL, USER_DEFINED = 3, 4
"values of `tokenizer.ggml.token_type`"
BEGINS_WITH_BOS = ("llama3", "llama-v3", "llama-bpe", "falcon3")
"values of `tokenizer.ggml.pre` for which a text begins with BOS and a word of the vocabulary is one token"
SPLITS_DIGITS = ("smollm", "codeshell", "exaone", "minerva-7b")
"values of `tokenizer.ggml.pre` for which digits are split one by one before the GPT-2 split"


def cache_name(file: Path) -> str:
    """The name of the cached conversion. It depends on the path, size and modification time and on the converter."""
    stat = file.stat()
    identity = f"{file.resolve()}\n{stat.st_size}\n{stat.st_mtime_ns}\n{CONVERSION_VERSION}"
    stem = re.sub(r"[^\w.-]", "_", file.stem)
    return f"{stem}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"


def convert_gguf(file: Path, folder: Path) -> None:
    """Write the model of a GGUF file to an existing empty folder.

    The weights of quantized and fp16 files become fp16; bf16 and fp32 weights keep their dtype. Raises ModelError if
    the file is not GGUF or transformers does not convert its architecture.
    """
    with file.open("rb") as start:
        if start.read(4) != MAGIC:
            raise ModelError(f"`{file}` is not a GGUF file", hint="copy or download it again")
    try:
        reader = GGUFFacts(file)
        model = _load_model(file, reader.storage_dtype())
        tokenizer = _load_tokenizer(file, reader)
    except (ValueError, KeyError, TypeError, ImportError, IndexError, RuntimeError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise ModelError(
            f"cannot convert `{file}`: {type(error).__name__}: {error}",
            hint="use a folder with safetensors weights instead",
        ) from error
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    record = {"source": file.name, "tensor_types": dict(reader.matrix_types()), "version": CONVERSION_VERSION}
    (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def quantization_note(folder: Path) -> tuple[str, ...]:
    """A note if the weights of a converted folder come from a quantized file."""
    types = read_json(folder / RECORD)["tensor_types"]
    quantized = [name for name in types if name not in FLOAT_TYPES]
    if not quantized:
        return ()
    names = ", ".join(f"`{name}`" for name in quantized)
    return (f"weights are dequantized from {names}: training starts slightly off the original model",)


class GGUFFacts:
    """The metadata of a GGUF file that transformers does not read."""

    def __init__(self, file: Path) -> None:
        from gguf import GGUFReader

        self._reader = GGUFReader(str(file))

    def matrix_types(self) -> Counter[str]:
        """Number of matrices by type. Vectors are not counted: they are always fp32."""
        return Counter(t.tensor_type.name for t in self._reader.tensors if len(t.shape) > 1)

    def storage_dtype(self) -> str:
        types = self.matrix_types()
        if "F32" in types:
            return "float32"
        return "bfloat16" if "BF16" in types else "float16"

    def text(self, key: str) -> str | None:
        field = self._reader.get_field(key)
        return None if field is None else bytes(field.parts[field.data[0]]).decode("utf-8")

    def integer(self, key: str) -> int | None:
        field = self._reader.get_field(key)
        return None if field is None else int(field.parts[field.data[0]][0])

    def integers(self, key: str) -> list[int]:
        field = self._reader.get_field(key)
        return [] if field is None else [int(field.parts[i][0]) for i in field.data]

    def texts(self, key: str) -> list[str]:
        field = self._reader.get_field(key)
        return [] if field is None else [bytes(field.parts[i]).decode("utf-8") for i in field.data]


def _load_model(file: Path, storage_dtype: str) -> Any:
    """The model with dequantized weights in the storage dtype, or in fp32 if fp16 overflows."""
    import torch
    import transformers

    options = {"dtype": getattr(torch, storage_dtype), "local_files_only": True}
    if hasattr(transformers, "GgufConfig"):
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(str(file.parent), gguf_file=file.name, **options)
    if storage_dtype == "float16" and not all(bool(p.isfinite().all()) for p in model.parameters()):
        return _load_model(file, "float32")
    model.hf_quantizer = None
    model.config.name_or_path = ""
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    return model


def _load_tokenizer(file: Path, reader: GGUFFacts) -> Any:
    """The tokenizer with the vocabulary, special tokens and chat template of the file."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    tokens = reader.texts("tokenizer.ggml.tokens")
    names = {
        f"{kind}_token": tokens[token_id]
        for kind, key in SPECIAL_TOKENS
        if (token_id := reader.integer(f"tokenizer.ggml.{key}_token_id")) is not None
    }
    template = reader.text("tokenizer.chat_template")
    if reader.text("tokenizer.ggml.model") == "gpt2":
        backend = byte_level_tokenizer(file, reader, tokens)
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=backend, chat_template=template, clean_up_tokenization_spaces=False, **names
        )
    else:
        tokenizer = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name, local_files_only=True)
        tokenizer.add_special_tokens(names)
        tokenizer.chat_template = template
    if len(tokenizer) != len(tokens):
        raise ValueError(f"the tokenizer has {len(tokenizer)} tokens, the file {len(tokens)}")
    return tokenizer


def byte_level_tokenizer(file: Path, reader: GGUFFacts, tokens: list[str]) -> Tokenizer:
    """A byte-level BPE tokenizer with the vocabulary, merges and pre-tokenizer (`tokenizer.ggml.pre`) of the file."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, processors

    pre = reader.text("tokenizer.ggml.pre")
    merges = [(left, right) for left, _, right in (m.partition(" ") for m in reader.texts("tokenizer.ggml.merges"))]
    backend = Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(tokens)}, merges=merges, ignore_merges=pre in BEGINS_WITH_BOS
        )
    )
    backend.normalizer, backend.pre_tokenizer = _text_split(file, pre)
    backend.decoder = decoders.ByteLevel()
    types = reader.integers("tokenizer.ggml.token_type")
    for token, kind in zip(tokens, types, strict=False):
        if kind in (CONTROL, USER_DEFINED):
            added = [AddedToken(token, normalized=False, special=kind == CONTROL)]
            backend.add_special_tokens(added) if kind == CONTROL else backend.add_tokens(added)
    adds_bos = reader.integer("tokenizer.ggml.add_bos_token")
    bos = reader.integer("tokenizer.ggml.bos_token_id")
    if bos is not None and (pre in BEGINS_WITH_BOS if adds_bos is None else bool(adds_bos)):
        backend.post_processor = processors.TemplateProcessing(
            single=[tokens[bos], "$A"], pair=[tokens[bos], "$A", "$B"], special_tokens=[(tokens[bos], bos)]
        )
    return backend


def _text_split(file: Path, pre: str | None) -> tuple[Any, Any]:
    """Normalizer and pre-tokenizer: built here for the kinds that split digits, else those of transformers."""
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    if pre in SPLITS_DIGITS:
        digits = pre_tokenizers.Digits(individual_digits=True)
        return None, pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    converted = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name, local_files_only=True)
    return converted.backend_tokenizer.normalizer, converted.backend_tokenizer.pre_tokenizer
