/* Copying with conversion and broadcasting, as Tensor.copy_ does. */
#include <math.h>
#include <string.h>

#include "internal.h"

/* An element on its way: whole numbers and floating ones are each exact in one of the two. */
typedef struct element {
    bool is_whole;
    int64_t whole;
    double real;
} element;

static float widened(uint32_t bits)
{
    float found;
    memcpy(&found, &bits, sizeof found);
    return found;
}

static double from_f16(uint16_t bits)
{
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double magnitude = exponent == 31 ? (fraction ? NAN : INFINITY)
                       : exponent     ? ldexp(fraction + 1024, exponent - 25)
                                      : ldexp(fraction, -24);
    return bits >> 15 ? -magnitude : magnitude;
}

/* Rounded to the nearest, to even between two. */
static uint16_t to_f16(float value)
{
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    double magnitude = fabs((double)value);
    if (isnan(value))
        return sign | 0x7e00;
    if (magnitude >= 65520)
        return sign | 0x7c00;
    int exponent;
    frexp(magnitude, &exponent);
    if (exponent < -13)
        return sign | (uint16_t)nearbyint(ldexp(magnitude, 24));
    /* A fraction that rounds up to 2048 carries into the exponent, as it should. */
    return sign | (uint16_t)(((exponent + 13) << 10) + (int)nearbyint(ldexp(magnitude, 11 - exponent)));
}

static uint16_t to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (isnan(value))
        return 0x7fc0;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#define WHOLE(type)                             \
    {                                           \
        type found;                             \
        memcpy(&found, at, sizeof found);       \
        return (element){true, found, 0};       \
    }

static element read_element(const char *at, int32_t dtype)
{
    uint16_t half;
    switch (dtype) {
    case SMELT_U8: case SMELT_BOOL: WHOLE(uint8_t)
    case SMELT_I8: WHOLE(int8_t)
    case SMELT_I16: WHOLE(int16_t)
    case SMELT_I32: WHOLE(int32_t)
    case SMELT_I64: WHOLE(int64_t)
    case SMELT_F32: {
        float found;
        memcpy(&found, at, sizeof found);
        return (element){false, 0, found};
    }
    case SMELT_F64: {
        double found;
        memcpy(&found, at, sizeof found);
        return (element){false, 0, found};
    }
    case SMELT_F16:
        memcpy(&half, at, sizeof half);
        return (element){false, 0, from_f16(half)};
    default: /* SMELT_BF16 */
        memcpy(&half, at, sizeof half);
        return (element){false, 0, widened((uint32_t)half << 16)};
    }
}

/* What a floating number beyond 64 bits becomes is nothing that torch promises; C leaves it open. */
static int64_t whole_of(element given)
{
    if (given.is_whole)
        return given.whole;
    return given.real >= -0x1p63 && given.real < 0x1p63 ? (int64_t)given.real : INT64_MIN;
}

static void write_element(char *at, int32_t dtype, element given)
{
    double real = given.is_whole ? (double)given.whole : given.real;
    float narrow = given.is_whole ? (float)given.whole : (float)given.real;
    int64_t whole = whole_of(given);
    uint16_t half = dtype == SMELT_F16 ? to_f16(narrow) : to_bf16(narrow);
    uint8_t truth = given.is_whole ? given.whole != 0 : given.real != 0;
    switch (dtype) {
    case SMELT_U8: *(uint8_t *)at = (uint8_t)whole; break;
    case SMELT_I8: *(int8_t *)at = (int8_t)whole; break;
    case SMELT_BOOL: *(uint8_t *)at = truth; break;
    case SMELT_I16: memcpy(at, &(int16_t){(int16_t)whole}, 2); break;
    case SMELT_I32: memcpy(at, &(int32_t){(int32_t)whole}, 4); break;
    case SMELT_I64: memcpy(at, &whole, 8); break;
    case SMELT_F32: memcpy(at, &narrow, 4); break;
    case SMELT_F64: memcpy(at, &real, 8); break;
    default: memcpy(at, &half, 2); break;
    }
}

static void copy_along(tensor *target, tensor *source, int64_t dim, char *to, const char *from)
{
    int64_t shift = target->ndim - source->ndim;
    size_t wide = smelt_itemsize(target->dtype), narrow = smelt_itemsize(source->dtype);
    if (dim == target->ndim) {
        if (target->dtype == source->dtype)
            memmove(to, from, wide);
        else
            write_element(to, target->dtype, read_element(from, source->dtype));
        return;
    }
    int64_t step = target->dims[target->ndim + dim] * (int64_t)wide, back = 0;
    if (dim >= shift && source->dims[dim - shift] != 1)
        back = source->dims[source->ndim + dim - shift] * (int64_t)narrow;
    for (int64_t i = 0; i < target->dims[dim]; i++)
        copy_along(target, source, dim + 1, to + i * step, from + i * back);
}

int32_t smelt_copy(tensor *target, tensor *source)
{
    int64_t shift = target->ndim - source->ndim;
    bool is_plain = target->dtype == source->dtype || (target->dtype != SMELT_C64 && source->dtype != SMELT_C64);
    if (shift < 0 || !is_plain)
        return 1;
    for (int64_t i = 0; i < source->ndim; i++)
        if (source->dims[i] != 1 && source->dims[i] != target->dims[shift + i])
            return 1;
    for (int64_t i = 0; i < target->ndim; i++)
        if (!target->dims[i])
            return 0;
    copy_along(target, source, 0, target->data, source->data);
    return 0;
}
