"""The first look imports modules: in a thread, since that takes longer than a turn of the loop may.

In an interpreter of its own: here others have imported them.
"""

import subprocess
import sys

LOOK = """
import asyncio, importlib.abc, sys, threading

from magnetar.broker.doctor.doctor import Doctor
from tests.unit.broker.doubles import Broker

found = []


class Notes(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.startswith("magnetar."):
            found.append((name, threading.current_thread() is threading.main_thread()))


async def main():
    broker = await Broker().start()
    sys.meta_path.insert(0, Notes())
    doctor = Doctor(broker.service)
    await doctor.cluster_report()
    await doctor.broker_report()
    doctor.close()
    del sys.meta_path[0]
    await broker.close()


asyncio.run(main())
assert "magnetar.broker.doctor.broker_collector" in dict(found), found
print(*(name for name, is_main in found if is_main))
"""


def test_a_thread_imports_what_the_first_look_needs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOK], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.stdout.strip(), done.returncode) == ("", 0), done.stdout + done.stderr
