"""A training loop that tells perfd of itself by the hook alone, and prints nothing that perfd reads.

    python hooked_trainer.py LAST

It goes on until the file LAST is there.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from perfd import hook

sys.stdout.write(f"socket {os.environ[hook.SOCKET_VARIABLE]}\n")
sys.stdout.write(f"on {os.environ[hook.NODE_VARIABLE]}\n")
sys.stdout.flush()
timer = hook.StepTimer(report_steps=True, layout={"dp": 1, "tp": 1, "pp": 1}, warmup_steps=0)
# The agent may not listen yet: the hook looks for it again each second.
last = Path(sys.argv[1])
while not last.exists():
    with timer.step(), timer.phase("forward"):
        time.sleep(0.01)
timer.close()
