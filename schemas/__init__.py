"""Wire contracts of recalld: settings, events, jobs, answers, and the ports between packages.

Modules here do no I/O and import no other package of recalld.
"""

from __future__ import annotations
