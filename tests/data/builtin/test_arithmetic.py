from __future__ import annotations

from rl_compat.data.builtin import arithmetic


def _pairs(rows: list[dict]) -> set[frozenset[str]]:
    return {frozenset(row["prompt"][0]["content"].rstrip("=").split("+")) for row in rows}


def test_ground_truth_is_the_sum_of_the_prompt() -> None:
    for row in arithmetic.rows("train", limit=50):
        a, b = row["prompt"][0]["content"].rstrip("=").split("+")
        assert row["reward_model"]["ground_truth"] == str(int(a) + int(b))


def test_splits_share_no_pair_in_either_order_and_cover_all_sums() -> None:
    train, test = arithmetic.rows("train"), arithmetic.rows("test")
    assert not _pairs(train) & _pairs(test)
    assert len(_pairs(test)) == arithmetic.NUM_HELD_OUT_PAIRS
    assert len(train) + len(test) == 100 * 100
    assert len({row["prompt"][0]["content"] for row in train + test}) == 100 * 100


def test_rows_depend_on_the_seed_only() -> None:
    assert arithmetic.rows("train", seed=3) == arithmetic.rows("train", seed=3)
    assert arithmetic.rows("train", seed=3) != arithmetic.rows("train", seed=4)
    assert arithmetic.rows("test", limit=2)[0]["prompt"] == arithmetic.rows("test")[0]["prompt"]
