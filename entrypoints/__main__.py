"""`python3 -I -S /opt/drydock/entrypoints VERB …`: finds its own package, then hands over to the command line."""

import gc
import os
import sys

if __name__ == "__main__":
    gc.disable()  # until vLLM runs: a start makes little garbage and many objects
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    from entrypoints.cli import main

    sys.exit(main(tuple(sys.argv[1:]), os.environ))
