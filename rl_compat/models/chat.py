"""Chat messages to prompt ids and response ids to text, the same way in training and evaluation."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

from rl_compat.errors import ModelError
from rl_compat.models.tokenizer import TokenizerBundle, turn_end_ids

Messages = Sequence[Mapping[str, Any]]
ToolList = Sequence[Mapping[str, Any]]
"functions that the assistant may call, in OpenAI's form"

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
    "the tokenizer has no chat template: prompts have the form `Question: …`, `Answer:` (`model.chat_template=plain`)"
)


class ChatEncoder:
    """Encodes prompts with a chat template: the tokenizer's, `plain`, or a Jinja file."""

    def __init__(self, bundle: TokenizerBundle, template: str | None = None) -> None:
        """`template` is None (the tokenizer's template, else `plain`), `plain`, or the path of a Jinja file.

        Raises ModelError if the file cannot be read or the template cannot be parsed.
        """
        self.bundle = bundle
        self.notes: tuple[str, ...] = ()
        self._prefix = ""
        added = bundle.tokenizer.added_tokens_decoder.items()
        self._special = {token_id: token.content for token_id, token in added if token.special}
        if template == PLAIN or (template is None and not bundle.tokenizer.chat_template):
            self._template: str | None = PLAIN_TEMPLATE
            # the begin token if the tokenizer adds one before plain text
            begins = bundle.tokenizer("a")["input_ids"][:1] == [bundle.tokenizer.bos_token_id]
            self._prefix = str(bundle.tokenizer.bos_token) if begins else ""
            self.notes = () if template == PLAIN else (PLAIN_NOTE,)
        else:
            self._template = None if template is None else _read_template(Path(template).expanduser())
        own = turn_end_ids(bundle.tokenizer, self._template)
        self.stop_token_ids = tuple(dict.fromkeys((*bundle.stop_token_ids, *own)))
        "the stop ids of the tokenizer and the token that ends a turn of this template"
        self.end_token_id = next(iter((*own, *bundle.stop_token_ids)), None)
        "appended to the end of a response, None for a model without an end token"
        self.encode("a")

    def ends(self) -> tuple[str, ...]:
        """A note with the end tokens and their ids, if there are any."""
        tokens = self.bundle.tokenizer.convert_ids_to_tokens(list(self.stop_token_ids))
        shown = [f"`{token}` ({token_id})" for token, token_id in zip(tokens, self.stop_token_ids, strict=True)]
        return (f"a response ends at {', '.join(shown)}",) if shown else ()

    def encode(self, prompt: str | Messages, tools: ToolList = ()) -> tuple[str, list[int]]:
        """The prompt with the template applied, as text and as ids. A string is one user turn.

        The tokenizer adds no begin token, because the template writes it. Raises ModelError if the template rejects
        the messages.
        """
        text = self.render(_messages(prompt), opens_response=True, tools=tools)
        return text, list(self.bundle.tokenizer(text, add_special_tokens=False)["input_ids"])

    def encode_conversation(self, prompt: str | Messages, response: str, tools: ToolList = ()) -> tuple[str, list[int]]:
        """A prompt with the assistant's response and the template's end of turn, as text and as ids.

        If the prompt ends with the start of the assistant's turn, the response continues it. Raises ModelError like
        `encode`.
        """
        messages = _messages(prompt)
        begun = messages.pop() if messages and messages[-1].get("role") == "assistant" else {"content": ""}
        messages.append({"role": "assistant", "content": f"{begun['content']}{response}"})
        text = self.render(messages, opens_response=False, tools=tools)
        return text, list(self.bundle.tokenizer(text, add_special_tokens=False)["input_ids"])

    def render(self, messages: Messages, *, opens_response: bool, tools: ToolList = ()) -> str:
        """The text of messages; with `opens_response`, followed by the template's start of a response.

        The arguments of calls are objects, or JSON text where the template fails on objects or writes them as Python
        does. Raises ModelError if the template rejects the messages.
        """
        apply = partial(self._apply, opens_response=opens_response, tools=tools)
        if not any(turn.get("tool_calls") for turn in messages):
            return apply(messages)
        as_objects, objects = _with_arguments(messages, _object)
        as_text, _ = _with_arguments(messages, _json)
        try:
            text = apply(as_objects)
        except ModelError as refusal:
            try:
                return apply(as_text)
            except ModelError:
                raise refusal from None
        return apply(as_text) if any(given and str(given) in text for given in objects) else text

    def _apply(self, messages: Messages, *, opens_response: bool, tools: ToolList) -> str:
        from jinja2 import TemplateError

        try:
            text = self.bundle.tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tools=[dict(tool) for tool in tools] or None,
                chat_template=self._template,
                tokenize=False,
                add_generation_prompt=opens_response,
            )
        except (TemplateError, ValueError, TypeError, KeyError) as error:
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise ModelError(
                f"the chat template failed on messages with roles `{roles}`: {error}",
                hint="set `model.chat_template` to `plain` or to a file with another Jinja template",
            ) from error
        assert isinstance(text, str)
        return self._prefix + text

    def tokenize(self, text: str, *, is_whole: bool = False) -> list[int]:
        """The ids of a text. `is_whole`: the text has no template, so the tokenizer adds its begin token, if any."""
        return list(self.bundle.tokenizer(text, add_special_tokens=is_whole)["input_ids"])

    def decode(self, token_ids: Sequence[int], *, keeps: Collection[str] = ()) -> str:
        """The text of ids, without ids that the tokenizer does not know and special tokens, except those in `keeps`."""
        known = [token_id for token_id in token_ids if token_id < self.bundle.num_tokens]
        kept = bool(keeps) and any(self._special.get(token_id) in keeps for token_id in known)
        if kept:
            known = [token_id for token_id in known if self._special.get(token_id, "") in ("", *keeps)]
        text = self.bundle.tokenizer.decode(known, skip_special_tokens=not kept, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text


def _messages(prompt: str | Messages) -> list[dict[str, Any]]:
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(m) for m in prompt]


def _with_arguments(messages: Messages, form: Callable[[Any], Any]) -> tuple[Messages, list[Any]]:
    """Messages with the arguments of their calls in another form, and these arguments."""
    found, arguments = deepcopy(list(messages)), []
    for turn in found:
        for call in turn.get("tool_calls") or ():
            function = call.get("function", call)
            function["arguments"] = form(function.get("arguments") or {})
            arguments.append(function["arguments"])
    return found, arguments


def _object(arguments: Any) -> Any:
    with suppress(TypeError, ValueError):
        return json.loads(arguments)
    return arguments


def _json(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _read_template(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(
            f"`model.chat_template` is `{path}`, which is neither `plain` nor a readable file",
            hint="set it to `plain` or to the path of a Jinja template",
        ) from error
