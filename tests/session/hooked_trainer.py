"""A training loop that tells perfd of itself by the hook alone, and prints nothing that perfd reads."""

from __future__ import annotations

import os
import sys
import time

from perfd import hook

sys.stdout.write(f"socket {os.environ[hook.SOCKET_VARIABLE]}\n")
sys.stdout.write(f"on {os.environ[hook.NODE_VARIABLE]}\n")
sys.stdout.flush()
timer = hook.StepTimer(report_steps=True, layout={"dp": 1, "tp": 1, "pp": 1}, warmup_steps=0)
# The agent may not listen yet: the hook looks for it again each second.
for _ in range(400):
    with timer.step(), timer.phase("forward"):
        time.sleep(0.01)
timer.close()
