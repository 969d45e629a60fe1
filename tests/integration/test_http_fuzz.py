"""Every endpoint under random requests made from the OpenAPI document (tests/http_fuzz.py).

Short and always the same in `make test`. `make fuzz` goes on for longer: MAGNETAR_FUZZ_EXAMPLES
requests an operation, MAGNETAR_FUZZ_SEED, MAGNETAR_FUZZ_ONLY (a part of the paths to try).
"""

import os
from pathlib import Path

import pytest

from tests.http_fuzz import Fuzzer, fuzzed_schema

EXAMPLES = int(os.environ.get("MAGNETAR_FUZZ_EXAMPLES", "1"))
SEED = int(os.environ.get("MAGNETAR_FUZZ_SEED", "0"))
ONLY = os.environ.get("MAGNETAR_FUZZ_ONLY", "")


@pytest.mark.slow
def test_no_request_harms_or_hangs(tmp_path: Path) -> None:
    with fuzzed_schema(tmp_path / "data") as (broker, schema):
        fuzzer, count = Fuzzer(broker, EXAMPLES, SEED), 0
        for result in schema.get_all_operations():
            operation = result.ok()
            if ONLY in operation.path:
                fuzzer.run(operation)
                count += 1
        found = ", ".join(f"{times} x {status}" for status, times in fuzzer.statuses.most_common())
        print(f"{fuzzer.sent} requests of {count} operations, seed {SEED}: {found}")
        assert not fuzzer.verdicts, "\n\n".join(map(str, fuzzer.verdicts))
        assert fuzzer.sent >= count > 0
        assert ONLY or fuzzer.statuses[200] + fuzzer.statuses[204] > count // 5, "it found its way"
