"""What failed in earlier compilations and what was done about it, in the cache on disk.

One small file for each form of a cluster that failed; `polyfuse.feedback` says what is in it.
"""

from __future__ import annotations

from polyfuse.runtime.cache import Cache
from polyfuse.runtime.cache_files import read_text
from polyfuse.runtime.plan_cache import plan_key

_FILE = "lesson.txt"


class KeptLessons:
    """Lessons of this version of polyfuse, by the form of a cluster."""

    def recall(self, key: str) -> str | None:
        """What to do with a cluster that failed before, or None."""
        entry = Cache.open_default().get(plan_key([("lesson", key)]))
        if entry is None:
            return None
        try:
            return read_text(entry / _FILE)
        except OSError:
            return None

    def keep(self, key: str, lesson: str) -> None:
        """Remember what to do."""
        Cache.open_default().put(plan_key([("lesson", key)]), {_FILE: lesson.encode()}, {"kind": "lesson"})
