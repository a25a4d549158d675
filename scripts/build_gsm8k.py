"""Pack the official GSM8K files into the parquet files that the package ships.

    python scripts/build_gsm8k.py FOLDER

FOLDER holds `train.jsonl`, `test.jsonl` and `LICENSE` as in the repository openai/grade-school-math (its folder
`grade_school_math/data` and its top level). Questions and answers are kept unchanged.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import pyarrow
import pyarrow.parquet

TARGET = Path(__file__).resolve().parent.parent / "rl_compat" / "data" / "builtin" / "gsm8k_files"
NUM_ROWS = {"train": 7473, "test": 1319}
SCHEMA = pyarrow.schema([("question", pyarrow.string()), ("answer", pyarrow.string())])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    source = parser.parse_args().folder
    TARGET.mkdir(parents=True, exist_ok=True)
    for split, expected in NUM_ROWS.items():
        lines = (source / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
        rows = [{key: json.loads(line)[key] for key in SCHEMA.names} for line in lines if line.strip()]
        assert len(rows) == expected, f"{split} has {len(rows)} rows, expected {expected}"
        table = pyarrow.Table.from_pylist(rows, schema=SCHEMA)
        pyarrow.parquet.write_table(
            table, TARGET / f"{split}.parquet", compression="zstd", compression_level=19, use_dictionary=False
        )
        print(f"{split}: {len(rows)} rows, {(TARGET / f'{split}.parquet').stat().st_size} bytes")
    shutil.copyfile(source / "LICENSE", TARGET / "LICENSE")


if __name__ == "__main__":
    main()
