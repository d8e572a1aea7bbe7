"""A process that sends batches of one step each, until it is asked to end: `FOLDER ADDRESS NODE`.

The step is the sequence, also over restarts. It ends when all is acknowledged, and prints the last sequence.
"""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

from history.support import Node

stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
agent = Node(Path(sys.argv[1]), sys.argv[2], node=sys.argv[3])
while not stop.wait(0.01):
    agent.produce()
acknowledged = agent.uplink.wait_acknowledged(agent.spool.last_sequence, 120.0)
sys.stdout.write(str(agent.spool.last_sequence) if acknowledged else "not acknowledged")
agent.close()
