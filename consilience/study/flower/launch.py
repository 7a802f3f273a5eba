"""One of Flower's programs, run so that it ends with the process that started it, and ends whole.

Started as a script with a pipe from its parent as its input: when the parent dies, however it dies, the pipe closes.
Nothing else of the package is imported, so that a start costs no more than Flower's own.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from importlib.metadata import distribution

PATIENCE = 8.0  # seconds to say goodbye


def end() -> None:
    """End this process, first politely."""
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(PATIENCE)
    os._exit(1)


def watch() -> None:
    """End with the parent: its end of the pipe closes."""
    while os.read(0, 1):
        pass
    end()


def end_with_thread(failure: threading.ExceptHookArgs) -> None:
    """End when a thread fails: a SuperNode without its heartbeat looks alive and is not.

    Args:
        failure: What the thread failed with.
    """
    threading.__excepthook__(failure)
    threading.Thread(target=end, daemon=True).start()


def run(program: str) -> int:
    """Run a program to its end.

    Args:
        program: Its name among Flower's commands.

    Returns:
        Its exit code.
    """
    try:
        (entry,) = distribution("flwr").entry_points.select(group="console_scripts", name=program)
        entry.load()()
    except SystemExit as exit:
        if isinstance(exit.code, str):
            print(exit.code, file=sys.stderr)
            return 1
        return exit.code or 0
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def main() -> None:
    """Run the program that the command line names, and leave no thread of it behind."""
    sys.argv = sys.argv[1:]
    threading.excepthook = end_with_thread
    threading.Thread(target=watch, daemon=True).start()
    code = run(sys.argv[0])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
