"""`python3 -I -S /opt/drydock/entrypoints/__main__.py VERB …`: finds its package, then hands over to the command line.

The image names this file and not its folder, for which Python would import runpy and all that it needs: 2 ms.
"""

import os
import sys

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    from entrypoints.cli import main

    sys.exit(main(tuple(sys.argv[1:]), os.environ))
