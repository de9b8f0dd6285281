"""`python3 -I -S /opt/drydock/entrypoints VERB …`: finds its package, then runs the command line."""

import os
import sys

if __name__ == "__main__":
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    from entrypoints.cli.cli import main

    sys.exit(main(tuple(sys.argv[1:]), os.environ))
