"""What a user did wrong, in one line.

Everything a user can get wrong (a file, a key, an address, a full disk) is raised as
`InputError`; the programs print it as one line and exit with 1. Any other exception is a
fault of ours and keeps its traceback.
"""

import errno
import sys
from collections.abc import Callable


class InputError(Exception):
    """A mistake in the input: names the file, the key and what was expected."""


def remake(rule: str, path: object) -> str:
    """What to call to make a damaged file again, for the end of a message."""
    return f"make it again: snakemake --forcerun {rule} -- {path}"


def run(main: Callable[[], None]) -> None:
    """Run a program's `main`; a user's mistake becomes one line on stderr and exit code 1."""
    try:
        main()
    except InputError as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
            raise
        where = f" while writing {error.filename}" if error.filename else ""
        sys.exit(f"error: {error.strerror}{where}; nothing already finished is lost")
