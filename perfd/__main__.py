"""The command `perfd`, and `python -m perfd`: quiet about Ctrl-C before there is anything to unwind."""

import signal

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # First of all, as the imports below take a while; `unwound_by_signals` gives Ctrl-C back its exception.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import sys

from perfd.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
