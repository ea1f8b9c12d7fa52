"""The errors that the package raises. `KernelError` is the base of all but SuspendInterrupt, which nobody catches."""

from ravi_django.kernel.errors import *  # noqa: F403 - all of them, so that a new one is not forgotten
