"""Ends with 0 while vLLM's own /health answers."""

import urllib.request

urllib.request.urlopen("http://127.0.0.1:8000/health", timeout=4).close()
