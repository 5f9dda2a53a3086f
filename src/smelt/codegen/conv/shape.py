"""What a two-dimensional convolution is: sizes, window, borders, groups.

f32[n, cin, h, w] with weight f32[cout, cin / groups, kh, kw] -> f32[n, cout, oh, ow]
"""

from __future__ import annotations

from smelt.diag.records import record
from smelt.ir.sizes import is_symbolic


@record
class Window:
    """How the kernel slides: strides, dilations, and zeros above, left of, below and right of the input."""

    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    before: tuple[int, int] = (0, 0)
    after: tuple[int, int] = (0, 0)


@record
class ConvShape:
    """Sizes of a convolution."""

    n: int
    cin: int
    h: int
    w: int
    cout: int
    kh: int
    kw: int
    window: Window
    groups: int = 1

    @property
    def oh(self) -> int:
        """Rows of the result."""
        return self._out(0, self.h, self.kh)

    @property
    def ow(self) -> int:
        """Columns of the result."""
        return self._out(1, self.w, self.kw)

    def _out(self, axis: int, size: int, kernel: int) -> int:
        at = self.window
        padded = size + at.before[axis] + at.after[axis] - at.dilation[axis] * (kernel - 1) - 1
        return padded // at.stride[axis] + 1

    @property
    def pixels(self) -> int:
        """Positions of the result: n x oh x ow."""
        return self.n * self.oh * self.ow

    @property
    def depth(self) -> int:
        """Products summed into one element of the result."""
        return self.kh * self.kw * (self.cin // self.groups)

    @property
    def group_out(self) -> int:
        """Output channels of a group."""
        return self.cout // self.groups

    @property
    def group_in(self) -> int:
        """Input channels of a group."""
        return self.cin // self.groups

    @property
    def macs(self) -> int:
        """Multiply-adds."""
        return self.pixels * self.cout * self.depth

    @property
    def has_border(self) -> bool:
        """Whether a window may reach outside the input."""
        at = self.window
        if is_symbolic((self.h, self.w)):
            # At some sizes a window does, if there are zeros to reach.
            return any(at.before) or any(at.after)
        ends = ((self.oh - 1) * at.stride[0] - at.before[0] + (self.kh - 1) * at.dilation[0],
                (self.ow - 1) * at.stride[1] - at.before[1] + (self.kw - 1) * at.dilation[1])  # fmt: skip
        return any(at.before) or ends[0] >= self.h or ends[1] >= self.w


@record
class Over:
    """A convolution over frames: that of one frame by the taps of one moment, and what it is along time.

    shape: n counts samples. frames, results: of a sample of the image and of the result. taps, step, before, gap: taps
    in time, how many frames from one result to the next, frames of zeros before the first, and from tap to tap.
    """

    shape: ConvShape
    frames: int
    results: int
    taps: int
    step: int
    before: int
    gap: int

    @property
    def depth(self) -> int:
        """Products summed into one element of the result."""
        return self.taps * self.shape.depth

    @property
    def reached(self) -> int:
        """Taps that lie inside of the image, of all frames of a result together."""
        starts = (at * self.step - self.before for at in range(self.results))
        return sum(0 <= start + tap * self.gap < self.frames for start in starts for tap in range(self.taps))
