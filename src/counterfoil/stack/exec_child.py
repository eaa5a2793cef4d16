"""Become another program that the kernel kills when our parent dies (Linux). A script, not a module to import.

    python -I -S exec_child.py PARENT_PID PROGRAM [ARGUMENT ...]

The request survives exec, but not a parent that died before it was made: hence the look at the parent afterwards. The
signal comes when the parent's *thread* that started us ends, so a supervisor starts its children from a lasting one.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask for the signal, look whether the parent is still there, become the program. Exit status 127 if that fails."""
    parent, argv = int(sys.argv[1]), sys.argv[2:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit(f"{argv[0]}: prctl failed with errno {ctypes.get_errno()}")
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        print(f"{argv[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(127)


if __name__ == "__main__":
    main()
