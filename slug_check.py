"""The Jinja filter that asks again for a bad `project_slug`, while it is asked for.

A pre_gen hook would come too late: cookiecutter has made the folder by then, wherever a slug like
`../elsewhere` leads.
"""

import re
import sys

from cookiecutter.exceptions import FailedHookException
from cookiecutter.prompt import read_user_variable
from jinja2 import Environment, pass_context
from jinja2.ext import Extension
from jinja2.runtime import Context

ALLOWED = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?")
RESERVED_BY_WINDOWS = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])", re.IGNORECASE)


def fault_of(slug: str) -> str:
    """Why it is no name for a folder, or ""."""
    if RESERVED_BY_WINDOWS.fullmatch(slug):
        return f"project_slug: {slug!r} is a name that Windows reserves."
    if not ALLOWED.fullmatch(slug):
        return (
            f"project_slug: {slug!r} is not a name of letters (a to z), digits, - and _ "
            "that begins and ends with a letter or digit."
        )
    return ""


@pass_context
def valid_slug(context: Context, slug: str) -> str:
    """The slug, or the next one that is typed in its place; other answers are kept.

    Raises:
        FailedHookException: it is no name for a folder, and there is nobody to ask; cookiecutter
            prints the line and stops.
    """
    while fault := fault_of(slug):
        if not sys.stdin.isatty() or "--no-input" in sys.argv:
            raise FailedHookException(fault)
        print(fault)
        slug = read_user_variable("project_slug", "my-project")
        context["cookiecutter"]["project_slug"] = slug
    return slug


class SlugCheck(Extension):
    """Makes `valid_slug` known to cookiecutter.json."""

    def __init__(self, environment: Environment):
        super().__init__(environment)
        environment.filters["valid_slug"] = valid_slug
