"""The command line as a module: `python -m corerl train ...`."""

import sys

from corerl.cli import main

sys.exit(main())
