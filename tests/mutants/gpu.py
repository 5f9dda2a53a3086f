"""Seeded bugs of kernels for GPUs: products, attention, random numbers, and what a call does."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_PRODUCTS = "tests/triton/test_products.py"
_ATTENTION = "tests/triton/test_attention.py"
_RANDOM = "tests/triton/test_random.py"

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
    Mutant(
        "gpu random: how far a draw moves the generator",
        "codegen/triton/random.py",
        "ceil_div(elements, self.started(elements) * _UNROLL) * _UNROLL",
        "_UNROLL",
        "a second draw repeats numbers of a long first one",
        (f"{_RANDOM}::test_a_second_draw_goes_on_where_the_first_ended",),
    ),
    Mutant(
        "gpu random: one is not drawn",
        "codegen/triton/random.py",
        "tl.where(r == 1.0, 0.0, r)",
        "r",
        "a number of a half type that rounds up to 1 is not in [0, 1)",
        (f"{_RANDOM}::test_half_floats_are_rounded_and_never_one",),
    ),
    Mutant(
        "gpu random: words of groups",
        "codegen/triton/random.py",
        "(step % {each}) * {group} + e % {group}",
        "e % {group}",
        "dropout of groups of two draws the same words twice",
        (f"{_RANDOM}::test_dropout_draws_in_groups",),
    ),
    Mutant(
        "gpu random: another device",
        "runtime/cuda/executable.py",
        "!= (draws.processors, draws.threads)",
        "== (0, 0)",
        "on another device numbers differ from eager's without a word",
        (f"{_RANDOM}::test_another_device_would_draw_other_numbers",),
    ),
)
