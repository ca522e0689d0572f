"""TensorFlow's import without its notes about itself."""

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator

LOG_LINE = re.compile(r"[IWE]\d{4} |\d{4}-\d\d-\d\d .*: [IWE] |WARNING: All log messages before")
"""A line of TensorFlow's C++ log, of 2.21 and of 2.15."""

NVIDIA_DRIVER = "/proc/driver/nvidia"


@contextlib.contextmanager
def quiet_import() -> Iterator[None]:
    """Keep the C++ log of an import from standard error; all else is shown afterwards.

        with quiet_import():
            import tensorflow

    At its import TensorFlow logs what it was built with and which libraries it did not find, some
    of it as an error, before any level can be set. What matters is logged again when a device is
    used, and a failed import raises.
    """
    sys.stderr.flush()
    with tempfile.TemporaryFile() as log:
        stderr = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            yield
            if "tensorflow" in sys.modules and not os.path.exists(NVIDIA_DRIVER):
                # The first look for a GPU logs an error where there is no driver.
                sys.modules["tensorflow"].config.list_physical_devices()
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            log.seek(0)
            for line in log.read().decode(errors="replace").splitlines():
                if not LOG_LINE.match(line):
                    print(line, file=sys.stderr)
