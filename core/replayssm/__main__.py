"""`python -m replayssm`, where the installed script is not on the path."""

import sys

from replayssm.cli import main

if __name__ == "__main__":
    sys.exit(main())
