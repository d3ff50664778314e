"""Text for XML and HTML: escaping, and elements as strings.

Everything that the report writes passes through `escape`: bodies, errors and names come from a
network under test. All pages are well-formed XML as well, so a parser can test them.
"""

from __future__ import annotations

import html
import re
from typing import Final

# XML 1.0 allows no control characters but tab, newline and carriage return, and no surrogates.
INVALID_IN_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

# What may stand without an end tag; any other empty element would swallow the rest of an HTML page.
SELF_CLOSED: Final = frozenset({"meta", "input", "line", "rect", "circle", "polygon", "polyline"})


def escape(text: object) -> str:
    """The text made safe in content and in quoted attributes; what XML forbids becomes U+FFFD."""
    return html.escape(INVALID_IN_XML.sub("\ufffd", str(text)), quote=True)


def attributes(given: dict[str, object]) -> str:
    """Attributes with a space before each; `class_` means class, `stroke_width` stroke-width."""
    return "".join(
        f' {name.rstrip("_").replace("_", "-")}="{number(value)}"'
        for name, value in given.items()
        if value is not None
    )


def number(value: object) -> str:
    """A value of an attribute; floats with two digits at most, which is enough for pixels."""
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return escape(value)


def element(name: str, /, *children: str, **given: object) -> str:
    """One element around children that are markup already."""
    if not children and name in SELF_CLOSED:
        return f"<{name}{attributes(given)}/>"
    return f"<{name}{attributes(given)}>{''.join(children)}</{name}>"


def text_element(name: str, text: object, /, **given: object) -> str:
    """One element around plain text, escaped; never self-closed, as HTML wants it."""
    return f"<{name}{attributes(given)}>{escape(text)}</{name}>"
