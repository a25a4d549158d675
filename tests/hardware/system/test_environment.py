"""The variables that are recorded, and the secrets that are not."""

from __future__ import annotations

import pytest

from rl_compat.hardware.system.software import read_environment, without_credentials


def test_variables_that_matter_are_kept_and_others_are_not() -> None:
    given = {"CUDA_VISIBLE_DEVICES": "", "LC_ALL": "C", "TMPDIR": "/tmp", "HOME": "/home/ada", "AWS_SECRET": "x"}
    assert read_environment(given) == {"CUDA_VISIBLE_DEVICES": "", "LC_ALL": "C", "TMPDIR": "/tmp"}


def test_of_a_token_only_that_it_is_set() -> None:
    assert read_environment({"HF_TOKEN": "hf_abc", "WANDB_API_KEY": ""}) == {"HF_TOKEN": "(set)"}


def test_addresses_lose_their_credentials() -> None:
    found = read_environment(
        {
            "https_proxy": "http://ada:s3cret@proxy:3128",
            "HF_ENDPOINT": "https://token@hub.example/api?key=s3cret",
            "PIP_EXTRA_INDEX_URL": "https://a:s3cret@one/simple https://b:s3cret@two/simple",
        }
    )
    assert found == {
        "HF_ENDPOINT": "https://hub.example/api",
        "PIP_EXTRA_INDEX_URL": "https://one/simple https://two/simple",
        "https_proxy": "http://proxy:3128",
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ada:s3cret@proxy:3128", "proxy:3128"),
        ("http://ada:p@ss@proxy", "http://proxy"),
        ("proxy:3128", "proxy:3128"),
        ("cannot reach https://u:p@host/x?token=1: refused", "cannot reach https://host/x refused"),
        ("https://host/path#part", "https://host/path"),
        ("git@github.com", "git@github.com"),
    ],
)
def test_credentials_query_and_fragment_are_cut(text: str, expected: str) -> None:
    assert without_credentials(text) == expected
