"""`python -m exo_inference.cli`, the same program as `exo`."""

import sys

from exo_inference.cli.main import main

sys.exit(main())
