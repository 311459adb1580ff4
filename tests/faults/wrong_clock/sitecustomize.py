"""A process whose clock is wrong: put this folder on PYTHONPATH and say by how much in WRONG_CLOCK_S.

"3600" runs an hour ahead, "-3600" an hour behind; "jumps" goes back and forth between the two, many times a second.
Only the clock of the wall is touched, as by a wrong time server: waiting goes on as ever.
"""

import os
import threading
import time
from datetime import UTC, datetime, timedelta

import time_machine

HOUR_S = 3600.0
_shift = os.environ.get("WRONG_CLOCK_S", "0")
_begin = HOUR_S if _shift == "jumps" else float(_shift)
_traveller = time_machine.travel(datetime.now(UTC) + timedelta(seconds=_begin), tick=True).start()


def _jump() -> None:
    by = -2 * HOUR_S
    while True:
        time.sleep(0.05)
        _traveller.shift(by)
        by = -by


if _shift == "jumps":
    threading.Thread(target=_jump, daemon=True).start()
