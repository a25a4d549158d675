"""From chat messages to prompt ids and from response ids to text, the same for training and evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_compat.errors import ModelError
from rl_compat.models.tokenizer import TokenizerBundle, turn_end_ids

Messages = Sequence[Mapping[str, Any]]

PLAIN = "plain"
PLAIN_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}Question: {{ message['content'] }}\n"
    "{% elif message['role'] == 'assistant' %}Answer: {{ message['content'] }}\n\n"
    "{% else %}{{ message['content'] }}\n\n{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}Answer:{% endif %}"
)
PLAIN_NOTE = (
    "the tokenizer has no chat template: prompts are written as `Question: …`, `Answer:` (`model.chat_template=plain`)"
)


class ChatEncoder:
    """Encodes prompts with one template: the tokenizer's own, `plain`, or a Jinja file's."""

    def __init__(self, bundle: TokenizerBundle, template: str | None = None) -> None:
        """`template` is None (the tokenizer's own, else plain), `plain`, or the path of a file with a Jinja template.

        Raises ModelError for a file that cannot be read and for a template that cannot be parsed.
        """
        self.bundle = bundle
        self.notes: tuple[str, ...] = ()
        self._prefix = ""
        if template == PLAIN or (template is None and not bundle.tokenizer.chat_template):
            self._template: str | None = PLAIN_TEMPLATE
            self._prefix = _default_prefix(bundle.tokenizer)
            self.notes = () if template == PLAIN else (PLAIN_NOTE,)
        else:
            self._template = None if template is None else _read_template(Path(template).expanduser())
        own = turn_end_ids(bundle.tokenizer, self._template)
        self.stop_token_ids = tuple(dict.fromkeys((*bundle.stop_token_ids, *own)))
        "those of the tokenizer and the one that ends a turn of the template in use"
        self.end_token_id = next(iter((*own, *bundle.stop_token_ids)), None)
        "what a response ends with, None for a model without an end"
        self.encode("a")

    def encode(self, prompt: str | Messages) -> tuple[str, list[int]]:
        """The prompt as the model sees it, as text and as ids; a plain string is one user turn.

        A template writes its own begin token, so the tokenizer adds none. Raises ModelError when the template refuses
        the messages.
        """
        text = self._prefix + self._render(_messages(prompt))
        return text, list(self.bundle.tokenizer(text, add_special_tokens=False)["input_ids"])

    def encode_conversation(self, prompt: str | Messages, response: str) -> tuple[str, list[int]]:
        """A prompt and the assistant's response, as text and ids, ended as the template ends a turn.

        A prompt that ends with a beginning of the assistant's turn is continued. Raises ModelError as `encode` does.
        """
        messages = _messages(prompt)
        begun = messages.pop() if messages and messages[-1].get("role") == "assistant" else {"content": ""}
        messages.append({"role": "assistant", "content": f"{begun['content']}{response}"})
        text = self._prefix + self._render(messages, add_generation_prompt=False)
        return text, list(self.bundle.tokenizer(text, add_special_tokens=False)["input_ids"])

    def render(self, messages: Messages, *, opens_response: bool) -> str:
        """Messages as the model sees them; `opens_response` adds what the template writes before a response.

        Raises ModelError when the template refuses them.
        """
        return self._prefix + self._render(_messages(messages), add_generation_prompt=opens_response)

    def tokenize(self, text: str, *, is_whole: bool = False) -> list[int]:
        """The ids of a text; a whole one, not made by a template, gets the tokenizer's begin token if it has one."""
        return list(self.bundle.tokenizer(text, add_special_tokens=is_whole)["input_ids"])

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of ids without special tokens; ids that the tokenizer does not have give no text."""
        known = [token_id for token_id in token_ids if token_id < self.bundle.num_tokens]
        text = self.bundle.tokenizer.decode(known, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text

    def _render(self, messages: list[dict[str, Any]], *, add_generation_prompt: bool = True) -> str:
        from jinja2 import TemplateError

        try:
            text = self.bundle.tokenizer.apply_chat_template(
                messages,
                chat_template=self._template,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
            )
        except (TemplateError, ValueError, TypeError, KeyError) as error:
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise ModelError(
                f"the chat template failed on messages with roles `{roles}`: {error}",
                hint="`model.chat_template` takes `plain` or a file with another Jinja template",
            ) from error
        assert isinstance(text, str)
        return text


def _messages(prompt: str | Messages) -> list[dict[str, Any]]:
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(m) for m in prompt]


def _default_prefix(tokenizer: Any) -> str:
    """The begin token where the tokenizer puts one before plain text, else nothing."""
    first = tokenizer("a")["input_ids"][:1]
    return str(tokenizer.bos_token) if first and first[0] == tokenizer.bos_token_id else ""


def _read_template(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(
            f"`model.chat_template` is `{path}`, which is neither `plain` nor a readable file",
            hint="give `plain` or the path of a file with a Jinja template",
        ) from error
