"""Seeded bugs of kernels for GPUs: products, attention, random numbers, and what a call does."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_PRODUCTS = "tests/triton/test_products.py"
_ATTENTION = "tests/triton/test_attention.py"

GPU = (
    Mutant(
        "gpu product: the last block of a sum",
        "codegen/triton/dot.py",
        "        if mask and not is_zero:\n",
        "        if False:\n",
        "beyond the last inner point an operand that is computed is not 0, and a product of NaN stays",
        (f"{_PRODUCTS}::test_operands_are_computed_where_they_are_read",),
    ),
    Mutant(
        "gpu product: edges of a sum",
        "codegen/triton/dot.py",
        "self.is_even = self.length % frame.layout.k == 0",
        "self.is_even = True",
        "a sum whose length is no multiple of the block reads past its rows",
        (f"{_PRODUCTS}::test_a_product_with_what_surrounds_it",),
    ),
    Mutant(
        "gpu product: rows of tiles",
        "codegen/triton/frame.py",
        "height = tl.minimum({high} - band, {_BAND})",
        "height = {_BAND}",
        "the last rows of tiles are computed at the wrong place",
        (f"{_PRODUCTS}::test_few_tiles_share_a_long_sum", f"{_PRODUCTS}::test_strides_and_batches"),
    ),
    Mutant(
        "gpu product: partial sums",
        "codegen/fusion/chunks.py",
        "return (*row_major(self.nest.outer, 1), prod(self.nest.outer))",
        "return (*row_major(self.nest.outer, 1), prod(self.nest.outer) - 1)",
        "ranges of a shared sum overwrite each other's results",
        (f"{_PRODUCTS}::test_few_tiles_share_a_long_sum",),
    ),
    Mutant(
        "gpu convolution: dilation",
        "codegen/fusion/rules/products.py",
        ".plus(t.scaled(d)) for o, t",
        ".plus(t) for o, t",
        "the taps of a dilated convolution stand side by side",
        (f"{_PRODUCTS}::test_convolutions[strided]",),
    ),
    Mutant(
        "gpu convolution: windows between steps",
        "codegen/fusion/rules/products.py",
        "        inside = p.both(inside, fits)\n",
        "",
        "the gradient of an image adds windows that do not begin there",
        (f"{_PRODUCTS}::test_gradients_of_a_convolution[2]",),
    ),
    Mutant(
        "gpu product: bias of bf16",
        "codegen/fusion/rules/products.py",
        "return p.cast(_added(p, m, total, call, product, idx), out)",
        "return _added(p, out, p.cast(total, out), call, product, idx)",
        "a product is rounded before its bias is added, and again behind it",
        (f"{_PRODUCTS}::test_a_bias_is_added_before_rounding",),
    ),
    Mutant(
        "gpu attention: rescaled sums",
        "codegen/triton/attention.py",
        "v, sum * fade[:, None], ",
        "v, sum, ",
        "what was added under a smaller largest score counts too much",
        (f"{_ATTENTION}::test_scores_are_never_stored",),
    ),
    Mutant(
        "gpu attention: rows that see nothing",
        "codegen/triton/attention.py",
        "tl.where(total == 0.0, 1.0, total)",
        "total + 0.0",
        "a query whose keys are all hidden gives NaN",
        (f"{_ATTENTION}::test_a_query_that_sees_no_key_gives_zero",),
    ),
    Mutant(
        "gpu attention: heads that share keys",
        "codegen/triton/attention.py",
        "{self.word(self.share)} + step // {blocks}",
        "{self.word(self.share)}",
        "gradients of keys count one of the heads that share them several times",
        (f"{_ATTENTION}::test_gradients_of_shared_heads_are_added",),
    ),
    Mutant(
        "gpu attention: where operands begin",
        "codegen/triton/attention.py",
        "terms = [self.word(self.begins[name])] if self.begins[name] else []",
        "terms = []",
        "slices of one tensor are all read at its start",
        (f"{_ATTENTION}::test_operands_are_parts_of_one_product",),
    ),
    Mutant(
        "gpu pool: the position of a NaN",
        "codegen/fusion/rules/gathered.py",
        'p.op("select", t, p.op("isnan", DType.BOOL, largest), nan, number)',
        "number",
        "a window with NaN has no position",
        (f"{_PRODUCTS}::test_maxima_of_windows_with_their_positions",),
    ),
    Mutant(
        "gpu embedding: the padding row",
        "codegen/fusion/rules/gathered.py",
        "padding >= 0:",
        "padding > 99:",
        "the row of padding has a gradient",
        (f"{_PRODUCTS}::test_gradient_of_a_table",),
    ),
)
