"""`python3 -I -S /opt/drydock/entrypoints VERB …`: finds its package, then runs the command line."""

import os
import sys
from _signal import SIG_BLOCK, SIGINT, SIGTERM, pthread_sigmask  # type: ignore[import-not-found]  # `signal` is slow

if __name__ == "__main__":
    # The kernel drops a signal that process 1 has no handler for. A blocked one waits for the supervisor.
    pthread_sigmask(SIG_BLOCK, (SIGTERM, SIGINT))
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    from entrypoints.cli.cli import main

    sys.exit(main(tuple(sys.argv[1:]), os.environ))
