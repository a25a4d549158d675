"""A tokenizer with its padding id, its stop ids and its number of ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_compat.errors import ModelError, quoted
from rl_compat.models.files.folder import TOKENIZER_FILES, check_model_folder, read_json

MARKER = "5f1e"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerBundle:
    """A tokenizer, which is never modified, and how to pad and stop with it."""

    tokenizer: Any
    "a transformers tokenizer"
    pad_token_id: int
    "masks are made from lengths, so it may equal an end token"
    stop_token_ids: tuple[int, ...]
    "each of them ends a response"
    num_tokens: int
    "ids from this one on have no text"
    notes: tuple[str, ...] = ()


def load_tokenizer(
    folder: Path, *, model_folder: Path | None = None, trust_remote_code: bool = False
) -> TokenizerBundle:
    """The tokenizer in a folder, with the additional end tokens in `generation_config.json` of the model's folder.

    Raises ModelError if the folder has no tokenizer or it cannot be loaded.
    """
    from transformers import AutoTokenizer

    check_model_folder(folder, needs=("tokenizer",))
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError) as error:
        raise ModelError(
            f"the tokenizer in `{folder}` could not be loaded: {error}",
            hint="check that its files are complete, or set `model.tokenizer` to another folder",
        ) from error
    settings = (model_folder or folder) / "generation_config.json"
    return describe_tokenizer(tokenizer, generation_config=read_json(settings) if settings.is_file() else {})


def check_same_words(own: TokenizerBundle, folder: Path, *, role: str, num_ids: int, trust_remote_code: bool) -> None:
    """Raise ModelError for a model in which an id of the actor's tokenizer means another word, or none.

    `num_ids` is the number of ids that the model knows, of those that the actor uses at most. Special tokens may have
    other names. A folder without a tokenizer is only checked for the number of ids.
    """
    hint = "use a model with the actor's tokenizer"
    if num_ids < own.num_tokens:
        raise ModelError(f"the {role} knows {num_ids} token ids and the actor samples from {own.num_tokens}", hint=hint)
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        return
    other = load_tokenizer(folder, trust_remote_code=trust_remote_code).tokenizer
    words, others = ({number: word for word, number in each.get_vocab().items()} for each in (own.tokenizer, other))
    special = {number for number, token in own.tokenizer.added_tokens_decoder.items() if token.special}
    shared = [number for number in sorted(words) if number < own.num_tokens and number not in special]
    differing = [number for number in shared if others.get(number) != words[number]]
    if differing:
        first = differing[0]
        raise ModelError(
            f"{len(differing)} of {len(shared)} token ids mean other words for the {role}: "
            f"{first} is `{others.get(first)!r}`, and `{words[first]!r}` for the actor",
            hint=hint,
        )


def describe_tokenizer(tokenizer: Any, *, generation_config: Mapping[str, Any] | None = None) -> TokenizerBundle:
    """The padding id, stop ids and number of ids of a tokenizer, without modifying it.

    Raises ModelError for end ids in the generation config that are not ids.
    """
    pad, pad_note = _padding(tokenizer)
    num_tokens = max(tokenizer.get_vocab().values()) + 1
    listed = _stop_ids(tokenizer, generation_config or {})
    stops = tuple(token_id for token_id in listed if 0 <= token_id < num_tokens)
    unknown = [token_id for token_id in listed if token_id not in stops]
    notes = [*pad_note]
    if unknown:
        notes.append(
            f"`generation_config.json` lists the end ids {quoted(unknown)}, and the tokenizer has {num_tokens} ids: "
            "they end no response"
        )
    if not stops:
        notes.append("the model has no end token, so responses end only at `data.max_response_length`")
    return TokenizerBundle(
        tokenizer=tokenizer, pad_token_id=pad, stop_token_ids=stops, num_tokens=num_tokens, notes=tuple(notes)
    )


def _padding(tokenizer: Any) -> tuple[int, tuple[str, ...]]:
    """The id of the pad token, else of the end token, else of the unknown token, else 0; and a note for the user."""
    if tokenizer.pad_token_id is not None:
        return int(tokenizer.pad_token_id), ()
    for kind in ("eos", "unk"):
        token_id = getattr(tokenizer, f"{kind}_token_id")
        if token_id is not None:
            token = getattr(tokenizer, f"{kind}_token")
            return int(token_id), (f"the tokenizer has no pad token: padding uses `{token}` and is masked",)
    return 0, ("the tokenizer has no pad token: padding uses id 0 and is masked",)


def _stop_ids(tokenizer: Any, generation_config: Mapping[str, Any]) -> tuple[int, ...]:
    """The end tokens of the tokenizer and of the generation config, and the token that ends a turn of the template."""
    given = generation_config.get("eos_token_id")
    listed = given if isinstance(given, list) else [given]
    wrong = [token_id for token_id in listed if token_id is not None and type(token_id) is not int]
    if wrong:
        raise ModelError(
            f"`eos_token_id` in `generation_config.json` holds {quoted(wrong)}, expected ids",
            hint="fix the file, or remove the key: the end token of the tokenizer is then used",
        )
    found = [tokenizer.eos_token_id, *listed, *turn_end_ids(tokenizer, tokenizer.chat_template)]
    return tuple(dict.fromkeys(token_id for token_id in found if token_id not in (None, -1)))


def turn_end_ids(tokenizer: Any, template: Any) -> list[int]:
    """The special token that a chat template writes directly after the assistant's text, or nothing."""
    from jinja2 import TemplateError

    if not template:
        return []
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": MARKER}]
    try:
        text = tokenizer.apply_chat_template(
            messages, chat_template=template if isinstance(template, str) else None, tokenize=False
        )
    except (TemplateError, ValueError, TypeError, KeyError):
        return []
    rest = text.rpartition(MARKER)[2].lstrip()
    special = {token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special}
    ids = tokenizer(rest, add_special_tokens=False)["input_ids"] if rest else []
    return [token_id for token_id in ids[:1] if token_id in special and token_id != tokenizer.bos_token_id]
