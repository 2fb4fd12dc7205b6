"""`python -m exo_inference.supervisor --state-dir DIR`: keep a control plane running."""

import sys

from exo_inference.supervisor.supervisor import main

if __name__ == "__main__":
    sys.exit(main())
