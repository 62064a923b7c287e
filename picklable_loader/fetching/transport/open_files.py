"""The error for a program that may not open any more files."""

from __future__ import annotations

import errno
import resource


def lacks_descriptors(error: OSError) -> bool:
    return error.errno in (errno.EMFILE, errno.ENFILE)


def explained(error: OSError, what: str) -> OSError:
    """The error to raise instead of the system's when descriptors have run out."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return OSError(
        error.errno,
        f"{what}: this process may have {limit} files open (ulimit -n), and has. Each worker takes "
        "about six: raise the limit (ulimit -n, or resource.setrlimit), or use fewer workers",
    )
