"""`python3 -I -S /opt/drydock/entrypoints VERB …`: finds its own package, then hands over to the command line."""

import os
import sys

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    from entrypoints.cli import main

    sys.exit(main(tuple(sys.argv[1:]), os.environ))
