"""The Jinja filter that refuses a bad `project_slug` while it is asked for.

A pre_gen hook would come too late: cookiecutter has made the folder by then, wherever a slug like
`../elsewhere` leads.
"""

import re

from cookiecutter.exceptions import FailedHookException
from jinja2 import Environment
from jinja2.ext import Extension

ALLOWED = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?")
RESERVED_BY_WINDOWS = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])", re.IGNORECASE)


def valid_slug(slug: str) -> str:
    """The slug itself.

    Raises:
        FailedHookException: it is no name for a folder; cookiecutter prints the line and stops.
    """
    if RESERVED_BY_WINDOWS.fullmatch(slug):
        raise FailedHookException(f"project_slug: {slug!r} is a name that Windows reserves.")
    if not ALLOWED.fullmatch(slug):
        raise FailedHookException(
            f"project_slug: {slug!r} is not a name of letters (a to z), digits, - and _ "
            "that begins and ends with a letter or digit."
        )
    return slug


class SlugCheck(Extension):
    """Makes `valid_slug` known to cookiecutter.json."""

    def __init__(self, environment: Environment):
        super().__init__(environment)
        environment.filters["valid_slug"] = valid_slug
