"""`python -m perfd` is `perfd`."""

import sys

from perfd.cli import main

sys.exit(main())
