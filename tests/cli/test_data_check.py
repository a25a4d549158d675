"""What `rlc data check` finds before a run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.facts import facts
from fakes.models import character_tokenizer, save_random_model

from rl_compat.cli.app import run_command
from rl_compat.data.read.reading import NUM_FIRST_RECORDS
from rl_compat.errors import ConfigError, DataError

GSM8K = {"data_source": "openai/gsm8k", "reward_model": {"ground_truth": "4"}}
STRICT_TEMPLATE = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}<|{{ m['role'] }}|>{{ m['content'] | lower }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

Check = Callable[..., tuple[int, dict[str, Any]]]


def user(text: str | None) -> dict[str, Any]:
    return {"role": "user", "content": text}


def jsonl(path: Path, *records: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


@pytest.fixture
def check(llama_folder: Path, capsys: pytest.CaptureFixture[str]) -> Check:
    """Runs the command with `--json`: its exit code and what it prints."""

    def run(*arguments: str, model: Path = llama_folder) -> tuple[int, dict[str, Any]]:
        code = run_command("rl_compat.cli.data", ["check", *arguments, "--model", str(model), "--json"], "rlc data")
        return code, json.loads(capsys.readouterr().out)

    return run


def problems(report: dict[str, Any], *, spoils: bool | None = None) -> list[tuple[str, list[int]]]:
    """The kinds of problems in the first file, each with its rows."""
    found = report["files"][0]["problems"]
    return sorted((item["kind"], item["rows"]) for item in found if spoils is None or item["spoils"] is spoils)


def test_good_data_has_lengths_and_no_problems(check: Check, tmp_path: Path) -> None:
    rows = [GSM8K | {"prompt": [user("x" * size)], "extra_info": {"answer": "so #### 4"}} for size in (1, 2, 3, 10)]
    code, shown = check(jsonl(tmp_path / "a.jsonl", *rows))
    report = shown["files"][0]
    assert code == 0
    assert report["lengths"]["prompt"] == {"minimum": 4, "median": 6, "p95": 13, "maximum": 13, "total": 28}
    assert report["lengths"]["reference solution"]["maximum"] == len("so #### 4")
    assert (report["num_rows"], report["num_usable"], report["tokens_per_epoch"]) == (4, 4, 28)
    assert report["sources"] == {"openai/gsm8k": 4}
    assert report["problems"] == [] and shown["shared"] == []


def test_overlong_rows_are_counted_and_a_length_equal_to_the_limit_is_not_one(check: Check, tmp_path: Path) -> None:
    """A-DATA-05"""
    path = jsonl(tmp_path / "a.jsonl", *(GSM8K | {"prompt": "x" * size} for size in (7, 13, 14)))
    code, shown = check(path, "data.max_prompt_length=16")
    assert code == 1
    assert problems(shown) == [("prompt-too-long", [2])]
    assert shown["files"][0]["num_usable"] == 2
    _, shown = check(path, "data.max_prompt_length=16", "data.overlong_prompts=left")
    assert problems(shown) == [("prompt-too-long", [2])]
    assert shown["files"][0]["tokens_per_epoch"] == 10 + 16 + 16


def test_null_and_empty_prompts_are_told_apart(check: Check, tmp_path: Path) -> None:
    rows = [{"prompt": prompt} for prompt in ("ok", None, " ", [], [user("")], [user("a"), user(None)])]
    code, shown = check(jsonl(tmp_path / "a.jsonl", *(GSM8K | row for row in rows)))
    assert code == 1
    assert problems(shown, spoils=True) == [("empty-turn", [5]), ("unusable", [1]), ("unusable", [2, 3, 4])]


def test_template_problems_are_named_by_what_the_template_says(
    check: Check, tmp_path: Path, llama_folder: Path
) -> None:
    template = tmp_path / "strict.jinja"
    template.write_text(STRICT_TEMPLATE)
    rows = [
        [user("fine")],
        [{"role": "system", "content": "be brief"}, user("a")],
        [user("b"), user("c")],
        [user("d"), {"role": "assistant", "content": "e"}],
        [user("Shouting")],
    ]
    path = jsonl(tmp_path / "a.jsonl", *(GSM8K | {"prompt": row} for row in rows))
    code, shown = check(path, f"model.chat_template={template}")
    assert code == 1
    assert problems(shown) == [
        ("ends-with-assistant", [3]),
        ("repeated-role", [2]),
        ("template-drops-text", [4]),
        ("template-error", [1]),
        ("template-error", [2]),
    ]
    errors = [item["what"] for item in shown["files"][0]["problems"] if item["kind"] == "template-error"]
    assert any("System role not supported" in what for what in errors)
    assert any("roles must alternate" in what for what in errors)


def test_a_field_that_the_template_does_not_write_is_a_note_with_its_rows(check: Check, tmp_path: Path) -> None:
    named = user("a") | {"name": "Ann", "weight": 1}
    rows = [GSM8K | {"prompt": prompt} for prompt in ([named], [user("b")], [user("c"), named])]
    path = jsonl(tmp_path / "a.jsonl", *rows)
    template = tmp_path / "names.jinja"
    code, shown = check(path)
    fields = [item for item in shown["files"][0]["problems"] if item["kind"] == "template-drops-field"]
    assert code == 0
    assert [facts(item["what"]) for item in fields] == [{"name", "user"}, {"weight", "user"}]
    assert [item["rows"] for item in fields] == [[0, 2], [0, 2]]
    template.write_text("{% for m in messages %}{{ m['name'] or '' }}:{{ m['content'] }};{% endfor %}")
    _, shown = check(path, f"model.chat_template={template}")
    fields = [item for item in shown["files"][0]["problems"] if item["kind"] == "template-drops-field"]
    assert [(facts(item["what"]), item["rows"]) for item in fields] == [({"weight", "user"}, [0, 2])]


def test_a_begin_token_that_comes_twice_is_flagged(check: Check, tmp_path: Path) -> None:
    """A-DATA-10"""
    folder = save_random_model(tmp_path / "model", chat_template="{{ bos_token }}" + "{{ messages[0]['content'] }}")
    tokenizer = character_tokenizer(chat_template="{{ bos_token }}{{ messages[0]['content'] }}")
    tokenizer.bos_token = "<|unk|>"
    tokenizer.save_pretrained(folder)
    path = jsonl(tmp_path / "a.jsonl", GSM8K | {"prompt": "hi"}, GSM8K | {"prompt": "<|unk|>hi"})
    code, shown = check(path, model=folder)
    assert code == 1
    assert problems(shown) == [("double-begin", [1]), ("special-token", [1])]


def test_a_mark_of_an_image_is_noted_where_no_column_has_images(check: Check, tmp_path: Path) -> None:
    marks = ("<image>\nwhat is this?", "see <|image_pad|>", "a <img> tag", "image")
    code, shown = check(jsonl(tmp_path / "a.jsonl", *(GSM8K | {"prompt": text} for text in marks)))

    assert (code, problems(shown)) == (0, [("media-mark", [0]), ("media-mark", [1])])


def test_copies_name_the_row_they_repeat_and_contradictions_spoil(check: Check, tmp_path: Path) -> None:
    rows = [GSM8K | {"prompt": text} for text in ("a", "b", " a", "b")]
    rows[3] = rows[3] | {"reward_model": {"ground_truth": "5"}}
    code, shown = check(jsonl(tmp_path / "a.jsonl", *rows))
    assert code == 1
    by_kind = {item["kind"]: (item["rows"], item["others"]) for item in shown["files"][0]["problems"]}
    assert by_kind == {"contradiction": ([3], [1]), "copy": ([2], [0])}


def test_held_out_prompts_that_are_trained_on_are_found(check: Check, tmp_path: Path) -> None:
    train = jsonl(tmp_path / "train.jsonl", *(GSM8K | {"prompt": text} for text in "abc"))
    test = jsonl(tmp_path / "test.jsonl", *(GSM8K | {"prompt": text} for text in "xcb"))
    code, shown = check(train, test)
    assert code == 1
    assert [(item["num_rows"], item["rows"]) for item in shown["shared"]] == [(2, [1, 2])]
    assert check(train, f"data.val_files={test}", f"data.train_files={train}")[1]["shared"] == []
    assert check(f"data.val_files={test}", f"data.train_files={train}")[1]["shared"] == shown["shared"]


def test_sources_and_answers_that_the_reward_cannot_use_are_named(check: Check, tmp_path: Path) -> None:
    """A-DATA-04"""
    rows = [
        {"data_source": "", "ground_truth": "4"},
        {"data_source": "/data/gsm8k", "ground_truth": "4"},
        {"data_source": "openai/gsm8k", "ground_truth": "four"},
        {"data_source": "openai/gsm8k", "ground_truth": None},
        {"data_source": "openai/gsm8k", "ground_truth": "4", "extra_info": {"answer": "no number"}},
        {"data_source": "openai/gsm8k", "ground_truth": "4", "extra_info": {"answer": "#### 5"}},
        {"data_source": "openai/gsm8k", "ground_truth": "-3", "extra_info": {"answer": "fell by 5\n#### -3"}},
    ]
    path = jsonl(tmp_path / "a.jsonl", *({"prompt": f"q{i}"} | row for i, row in enumerate(rows)))
    code, shown = check(path)
    assert code == 1
    assert problems(shown) == [("reward", [row]) for row in range(6)]
    code, shown = check(path, 'reward.sources={"": "exact_match", "/data/*": "gsm8k"}')
    assert ("reward", [0]) not in problems(shown) and ("reward", [1]) not in problems(shown)


def test_the_gold_answers_and_the_end_tokens_are_shown(check: Check, tmp_path: Path) -> None:
    """A-DATA-04"""
    rows = [{"question": f"q{i}", "answer": f"first #### 1\nthen #### {i}"} for i in range(5)]
    code, shown = check(jsonl(tmp_path / "a.jsonl", *rows), "reward.functions=gsm8k")
    report = shown["files"][0]
    assert (code, report["ground_truths"], report["end_tokens"]) == (0, ["0", "1", "2"], ["<|end|> (1)"])
    whole = [{"prompt": "q", "ground_truth": "first #### 1\nthen #### 2"}, {"prompt": "p", "ground_truth": "$1,080"}]
    _, shown = check(jsonl(tmp_path / "b.jsonl", *whole), "reward.functions=gsm8k")
    assert shown["files"][0]["ground_truths"] == ["2", "1080"]
    rows[3]["answer"] = "It is 3, since 1+2=3."
    code, shown = check(jsonl(tmp_path / "a.jsonl", *rows), "reward.functions=gsm8k")
    assert (code, problems(shown)) == (1, [("unusable", [3])])


def test_mathematics_is_compared_as_text_and_only_noted(check: Check, tmp_path: Path) -> None:
    solutions = [r"so \boxed{\frac12}", r"so \boxed{0.5}", r"so $x$ \boxed{"]
    rows = [{"problem": f"p{i}", "solution": text, "answer": r"\frac12"} for i, text in enumerate(solutions)]
    path = jsonl(tmp_path / "a.jsonl", *rows[:2])
    code, shown = check(path)
    assert code == 0
    assert problems(shown, spoils=False) == [("reward", [1])]
    assert "`problem`" in shown["files"][0]["form"] and "`solution`" in shown["files"][0]["form"]


@pytest.mark.parametrize(
    ("algorithm", "rows", "found"),
    [
        (
            "sft",
            [
                {"prompt": "a", "completion": "b"},
                {"prompt": "a", "completion": ""},
                {"prompt": "a", "completion": "x" * 9},
            ],
            [("response-too-long", [2]), ("unusable", [1])],
        ),
        (
            "dpo",
            [{"prompt": "a", "chosen": "b", "rejected": "c"}, {"prompt": "a", "chosen": "b", "rejected": "b"}],
            [("same-responses", [1])],
        ),
        (
            "kto",
            [{"prompt": "a", "completion": "b", "label": True}, {"prompt": "a", "completion": "c", "label": True}],
            [("one-label", [0])],
        ),
        ("reward_model", [{"prompt": "a", "chosen": "b", "rejected": "c"}] * 2, [("copy", [1])]),
    ],
)
def test_each_kind_of_data_is_looked_at_as_its_algorithm_reads_it(
    algorithm: str, rows: list[dict[str, Any]], found: list[tuple[str, list[int]]], check: Check, tmp_path: Path
) -> None:
    path = jsonl(tmp_path / "a.jsonl", *rows)
    _, shown = check(path, f"algorithm.name={algorithm}", "data.max_response_length=8")
    assert problems(shown) == found
    lengths = shown["files"][0]["lengths"]
    assert (lengths["conversation"] if algorithm == "reward_model" else lengths["response"])["minimum"] >= 2


def test_rows_of_a_large_problem_are_capped_and_counted(
    llama_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = jsonl(tmp_path / "a.jsonl", *({"prompt": None} for _ in range(30)), {"prompt": "same"}, {"prompt": "same"})
    arguments = ["check", path, "--model", str(llama_folder), "reward.functions=gsm8k_format"]
    assert run_command("rl_compat.cli.data", arguments, "rlc data") == 1
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert f"`{path}`" in lines[0] and "`prompt`" in lines[0]
    assert lines[1].split()[0] == "32" and " 2 " in lines[1]
    first = next(index for index, line in enumerate(lines) if "problem:" in line)
    assert " 30 " in lines[first] and "rows 0, 1, 2, " in lines[first] and ", 19 and 10 more" in lines[first]
    assert "`data.bad_rows=drop`" in lines[first + 1]
    assert "note: " in lines[first + 2] and "row 31 (row 30)" in lines[first + 2]
    assert lines[-1].startswith("1 ")
    assert "32/32" in shown.err


def test_the_shipped_test_questions_are_fine(check: Check) -> None:
    code, shown = check("data.train_files=arithmetic", "data.val_files=gsm8k", "data.max_prompt_length=1024")
    train, test = shown["files"]
    assert (train["name"], test["name"], test["split"], test["num_rows"]) == ("arithmetic", "gsm8k", "test", 1319)
    assert (code, problems(shown, spoils=True), shown["shared"]) == (0, [], [])


def test_a_built_in_run_names_its_data(check: Check) -> None:
    code, shown = check("sums")
    assert (code, shown["files"][0]["name"]) == (0, "arithmetic")


def test_data_is_found_before_a_model_is_looked_for() -> None:
    with pytest.raises(DataError, match="nowhere"):
        run_command("rl_compat.cli.data", ["check", "nowhere.jsonl", "--model", "no/such"], "rlc data")


def test_the_files_of_a_folder_are_told_apart_before_any_is_read_to_its_end(tmp_path: Path) -> None:
    rows = json.dumps({"prompt": "1+1=", "answer": "2"}) + "\n"
    (tmp_path / "a.jsonl").write_text(rows * (NUM_FIRST_RECORDS + 500) + "not JSON\n")
    (tmp_path / "b.json").write_text('{"name": "a package"}')

    with pytest.raises(DataError, match=r"b\.json") as raised:
        run_command("rl_compat.cli.data", ["check", str(tmp_path)], "rlc data")
    assert raised.value.hint is not None
    assert f"`{tmp_path}` stands for 2 files" in raised.value.hint


@pytest.mark.parametrize(
    ("arguments", "error", "fact"),
    [
        (["nowhere.jsonl"], DataError, "`nowhere.jsonl`"),
        (["gsm9k"], DataError, "`gsm9k`"),
        (["a.toml", "b.toml"], ConfigError, "`a.toml` and `b.toml`"),
        (["gsm8k", "data.max_prompt_lenght=1"], ConfigError, "data.max_prompt_lenght"),
    ],
)
def test_what_cannot_be_checked_is_asked_wrongly(
    arguments: list[str], error: type[Exception], fact: str, llama_folder: Path
) -> None:
    with pytest.raises(error, match=fact) as raised:
        run_command("rl_compat.cli.data", ["check", *arguments, "--model", str(llama_folder)], "rlc data")
    assert raised.value.exit_code == 2  # type: ignore[attr-defined]
