"""The one error that a user is meant to read."""


class UserError(Exception):
    """Something that the user can mend. Its text is one line: what, where, and what to do."""
