"""`python -m qwisp`: the command line."""

import sys

from qwisp.cli import main

sys.exit(main())
