"""What `findings.py` holds, under the name `types`; where Python's own module is meant, it stands aside for that.

`python3 doctor` puts this folder before the standard library, and Python imports `types` before the first line runs.
"""

if __name__ == "types":
    import sys

    folder = sys.path.pop(0)
    del sys.modules["types"]
    import types  # noqa: F401

    sys.path.insert(0, folder)
else:
    from rl_compat.doctor.findings import (  # noqa: F401
        Check,
        CheckResult,
        Finding,
        Remedy,
        Severity,
        Step,
        Sureness,
    )
