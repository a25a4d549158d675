"""Stop strings: a response ends with the token that completes one in its text."""

from __future__ import annotations

from collections.abc import Sequence

from rl_compat.errors import ConfigError
from rl_compat.rollout.types import Decode, SamplingParams

_MARGIN = 8
"tokens decoded before the new ones: a character may span several tokens"


class StopStrings:
    """Searches the decoded tail of a response for strings."""

    def __init__(self, strings: Sequence[str], decode: Decode) -> None:
        assert strings and all(strings)
        self._strings = tuple(strings)
        self._decode = decode
        self._reach = max(len(text.encode()) for text in strings) + _MARGIN

    def end(self, token_ids: Sequence[int], *, num_checked: int) -> int | None:
        """The length of a response that ends with the first token that completes a string, None when none does.

        The first `num_checked` tokens are known to complete none.
        """
        start = max(0, num_checked - self._reach)
        tail = list(token_ids[start:])
        if not self._found(tail):
            return None
        counts = range(num_checked - start + 1, len(tail) + 1)
        return next((start + count for count in counts if self._found(tail[:count])), None)

    def _found(self, token_ids: Sequence[int]) -> bool:
        text = self._decode(token_ids)
        return any(string in text for string in self._strings)


def stop_strings(params: SamplingParams, decode: Decode | None) -> StopStrings | None:
    """A search for the stop strings of a request, None without any. Raises ConfigError if there is no tokenizer."""
    if not params.stop_strings:
        return None
    if decode is None:
        raise ConfigError("stop strings need a tokenizer to decode with", hint="pass `decode` to the engine")
    return StopStrings(params.stop_strings, decode)
