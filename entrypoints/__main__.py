"""`python3 -I -S /opt/drydock/entrypoints VERB …`: finds its package, then runs the command line."""

import os
import sys
from _signal import SIG_BLOCK, SIGINT, SIGTERM, pthread_sigmask  # type: ignore[import-not-found]  # `signal` is slow

if __name__ == "__main__":
    # The kernel drops a signal that process 1 has no handler for. A blocked one waits for the supervisor.
    pthread_sigmask(SIG_BLOCK, (SIGTERM, SIGINT))
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for stream in (sys.stdout, sys.stderr):
        if stream and stream.encoding != "utf-8":  # the locale of a user's -e LANG=zh_CN.GBK, or one that is not there
            stream.reconfigure(encoding="utf-8")  # type: ignore[union-attr]  # a TextIOWrapper, as Python starts
    from entrypoints.core.folders import IMAGE_HOME, UNCHOSEN_HOMES
    from entrypoints.verbs.dispatch import main

    if os.environ.get("HOME") in UNCHOSEN_HOMES:  # for vendors' tools and cloud clients
        os.environ["HOME"] = IMAGE_HOME
    sys.exit(main(tuple(sys.argv[1:]), os.environ))
