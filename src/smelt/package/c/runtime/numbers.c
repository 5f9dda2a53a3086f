/* Numbers that the executor leaves to Python: what Python gives for them, or which error it raises.
 *
 * Source: the Python language reference, "Binary arithmetic operations", and `math.sqrt` and `float` of its library. */
#include <math.h>
#include <string.h>

#include "internal.h"

/* smelt.runtime.table.Arith; a test compares them. */
enum {
    I_ADD = 1, I_SUB = 2, I_MUL = 3, I_NEG = 4, I_ABS = 5, I_FLOORDIV = 6, I_MOD = 7, I_TRUEDIV = 8, I_EXACT = 22,
    F_TRUEDIV = 27, F_INT = 38, F_SQRT = 40, F_POW = 42, F_IN_F32 = 43
};

static bool no(const char *text, const char *why)
{
    smelt_fail(SMELT_DATA, "%s: %s: %s", smelt_current->running->entry->signature.name, text, why);
    return false;
}

static double as_double(int64_t bits)
{
    double found;
    memcpy(&found, &bits, sizeof found);
    return found;
}

static bool put(int64_t *cells, int32_t cell, double value)
{
    memcpy(&cells[cell], &value, sizeof value);
    return true;
}

static int bits_of(uint64_t value)
{
    return value ? 64 - __builtin_clzll(value) : 0;
}

/* The quotient rounded once: 55 bits or more of it, and whether anything is behind them. */
static double divided(int64_t a, int64_t b)
{
    uint64_t n = a < 0 ? 0 - (uint64_t)a : (uint64_t)a, d = b < 0 ? 0 - (uint64_t)b : (uint64_t)b;
    int shift = 55 + bits_of(d) - bits_of(n);
    if (shift < 0)
        shift = 0;
    unsigned __int128 wide = (unsigned __int128)n << shift;
    unsigned __int128 quotient = wide / d;
    /* At most 64 bits without a shift, 56 with one. */
    uint64_t kept = (uint64_t)quotient | (wide % d != 0);
    double found = ldexp((double)kept, -shift);
    return (a < 0) != (b < 0) ? -found : found;
}

static bool power(const smelt_step *step, int64_t *cells, double a, double b)
{
    if (a == 0 && b < 0)
        return no(step->text, "zero cannot be raised to a negative power");
    if (a < 0 && isfinite(a) && isfinite(b) && b != floor(b))
        return no(step->text, "a negative number raised to a fraction is complex");
    double found = pow(a, b);
    if (isinf(found) && isfinite(a) && isfinite(b))
        return no(step->text, "the result is too large for a float");
    return put(cells, step->dst, found);
}

bool smelt_number_step(const smelt_step *step, int64_t *cells)
{
    int64_t a = cells[step->a], b = cells[step->b];
    double x = as_double(a), y = as_double(b);
    switch (step->operation) {
    case I_MOD:
        if (!b)
            return no(step->text, "division by zero");
        cells[step->dst] = 0; /* of the least number by -1 */
        return true;
    case I_TRUEDIV:
        return b ? put(cells, step->dst, divided(a, b)) : no(step->text, "division by zero");
    case I_FLOORDIV:
        return no(step->text, b ? "the result is beyond 64 bits" : "division by zero");
    case I_ADD: case I_SUB: case I_MUL: case I_NEG: case I_ABS:
        return no(step->text, "the result is beyond 64 bits");
    case I_EXACT:
        if ((double)a < 0x1p63 && (int64_t)(double)a == a)
            return put(cells, step->dst, (double)a);
        return no(step->text, "a whole number beyond 2 ** 53 is compared with a float");
    case F_TRUEDIV:
        return y != 0 ? put(cells, step->dst, x / y) : no(step->text, "division by zero");
    case F_INT:
        return no(step->text, isnan(x) ? "nan has no whole number" : "the whole number is beyond 64 bits");
    case F_SQRT:
        return no(step->text, "the square root of a negative number");
    case F_IN_F32:
        return no(step->text, "the number is too large for a float of 32 bits");
    case F_POW:
        return power(step, cells, x, y);
    }
    return no(step->text, "an operation on numbers that C does not have");
}
