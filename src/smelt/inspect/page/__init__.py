"""The page on a program: what is known of it as one tree of plain data, and the HTML file that shows it."""

from smelt.inspect.page.gather import Inside
from smelt.inspect.page.model import Page

__all__ = ["Inside", "Page"]
