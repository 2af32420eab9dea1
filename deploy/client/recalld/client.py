"""Ask a running recalld over HTTP: the client of recalld, where the rest of it is not installed.

The distribution `recalld-client` keeps the code under a name of its own, and this module beside it. recalld itself has
a package of this module's name, which Python prefers: with both installed recalld's own is used, and neither one has a
file of the other, so that either can be removed.
"""

from _recalld_client import *  # noqa: F403 - exactly what the next line names
from _recalld_client import __all__ as __all__
