"""A module whose import starts a thread, and a runner with a child process."""

import subprocess
import sys
import threading
from collections.abc import Callable

from tests.fakes import FakeRunner, create_fake

threading.Thread(target=threading.Event().wait, daemon=True).start()

CHILD = """
import time
from model.machine.child import name_process
name_process("sleeping")
time.sleep(60)
"""


def create_with_child(progress: Callable[[str, float], None], **options: object) -> FakeRunner:
    subprocess.Popen([sys.executable, "-c", CHILD])
    return create_fake(progress, **options)
