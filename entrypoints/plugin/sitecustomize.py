"""Python runs this module at its start, because the plugin's folder is on PYTHONPATH (docs.python.org, module site).

vLLM imports Inductor before it loads any plugin.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

from drydock_plugin import METHOD, write_stacks_when_asked

if os.environ.get(METHOD) == "fork":
    from drydock_plugin.deferring import Finder

    sys.meta_path.insert(0, Finder())

write_stacks_when_asked()

if os.environ.get("DRYDOCK_REPORT") and os.getsid(0) == os.getpid():  # the process that the supervisor started
    from drydock_plugin.supervisor_report import watch_refusals

    watch_refusals()

# Python runs only the first module of this name. This is the next one, of the image or of the user.
_plugin_folder = os.path.dirname(__file__)
_hidden = PathFinder.find_spec("sitecustomize", [folder for folder in sys.path if folder != _plugin_folder])
if _hidden and _hidden.loader:
    _hidden.loader.exec_module(module_from_spec(_hidden))
