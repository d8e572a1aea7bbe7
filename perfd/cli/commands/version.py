"""`perfd version`."""

from __future__ import annotations

import argparse
import json

from perfd import __version__


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--json", action="store_true", help='print {"schema": "perfd.version/1", "version"}')


def run(args: argparse.Namespace) -> int:
    """Print the version."""
    print(json.dumps({"schema": "perfd.version/1", "version": __version__}) if args.json else __version__)
    return 0
