"""A reader that does what it is asked to, as one that was taken over would."""

import os
import socket
import time
from pathlib import Path


def _do(message):
    what, _, argument = message.decode().partition(" ")
    match what:
        case "open":
            Path(argument).read_bytes()
        case "write":
            Path(argument).write_bytes(b"x")
        case "run":
            os.execv(argument, [argument])
        case "fork":
            os.fork()
        case "connect":
            socket.socket(socket.AF_UNIX)
        case "signal":
            os.kill(int(argument), 0)
        case "become":
            os.setuid(int(argument))
        case "allocate":
            bytearray(int(argument))
        case "recurse":
            _do(message)
        case "end":
            os._exit(int(argument))
        case "wait":
            time.sleep(float(argument))
    return message


def reader():
    return _do
