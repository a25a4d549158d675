"""Bytes as people write and read them."""

from __future__ import annotations

import pytest

from rl_compat.errors import ConfigError
from rl_compat.units import GIB, format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "expected"),
    [("24GiB", 24 * GIB), ("1.5 gib", 3 * GIB // 2), ("3g", 3 * GIB), ("512 MB", 512_000_000), ("17", 17), (17, 17)],
)
def test_sizes_are_read_as_people_write_them(text: str | int, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "many", "3 parsecs", "-1", "1 2"])
def test_what_is_no_size_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_bytes(text)
    assert f"`{text}`" in error.value.message


@pytest.mark.parametrize(
    ("num_bytes", "expected"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 * GIB // 2, "1.5 GiB"), (-GIB, "-1.0 GiB")],
)
def test_sizes_are_shown_in_the_largest_unit_that_fits(num_bytes: int, expected: str) -> None:
    assert format_bytes(num_bytes) == expected
