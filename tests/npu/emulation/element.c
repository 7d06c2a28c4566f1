/* Elements of tensors: their size, and their value as a real or as a whole number. */
#include "cann.h"

#include <string.h>

size_t element_size(int type) {
  switch (type) {
    case INT8: case UINT8: case BOOL: return 1;
    case FLOAT16: case BFLOAT16: case INT16: case UINT16: return 2;
    case FLOAT32: case INT32: case UINT32: return 4;
    case FLOAT64: case INT64: case UINT64: case COMPLEX64: return 8;
    case COMPLEX128: return 16;
    default: return 0;
  }
}

int is_number(int type) { return element_size(type) && type != COMPLEX64 && type != COMPLEX128; }

int is_whole(int type) {
  return is_number(type) && type != FLOAT16 && type != BFLOAT16 && type != FLOAT32 && type != FLOAT64;
}

static float of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static uint32_t to_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static float of_half(uint16_t half) {
  uint32_t sign = (half & 0x8000u) << 16, exponent = half >> 10 & 31, fraction = half & 1023;
  if (exponent == 31) return of_bits(sign | 0x7F800000u | fraction << 13);
  if (exponent) return of_bits(sign | (exponent + 112) << 23 | fraction << 13);
  float small = fraction * 0x1p-24f;
  return sign ? -small : small;
}

/* To the nearest half, to the even one of two: a float's addition does that rounding when the sum's last place is the
   half's last place. */
static uint16_t to_half(float value) {
  uint32_t bits = to_bits(value), sign = bits >> 16 & 0x8000, size = bits & 0x7FFFFFFF;
  if (size > 0x7F800000) return sign | 0x7E00;       /* not a number */
  if (size >= 0x477FF000) return sign | 0x7C00;      /* rounds to infinity */
  if (size < 0x38800000) return sign | (to_bits(of_bits(size) + 0.5f) - 0x3F000000); /* a subnormal half, or zero */
  size += 0xFFF + (size >> 13 & 1);
  return sign | (size - (112u << 23)) >> 13;
}

static uint16_t to_bfloat(float value) {
  uint32_t bits = to_bits(value);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return 0x7FC0;
  return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}

#define LOAD(kind)                          \
  do {                                      \
    kind element;                           \
    memcpy(&element, from, sizeof element); \
    return element;                         \
  } while (0)
#define STORE(kind, value)                \
  do {                                    \
    kind element = (kind)(value);         \
    memcpy(to, &element, sizeof element); \
    return;                               \
  } while (0)

double load_real(const void *from, int type) {
  uint16_t half;
  memcpy(&half, from, type == FLOAT16 || type == BFLOAT16 ? sizeof half : 0);
  switch (type) {
    case FLOAT16: return of_half(half);
    case BFLOAT16: return of_bits((uint32_t)half << 16);
    case FLOAT32: LOAD(float);
    case FLOAT64: LOAD(double);
    case UINT64: LOAD(uint64_t);
    default: return (double)load_whole(from, type);
  }
}

int64_t load_whole(const void *from, int type) {
  switch (type) {
    case BOOL: return *(const char *)from != 0;
    case INT8: LOAD(int8_t);
    case UINT8: LOAD(uint8_t);
    case INT16: LOAD(int16_t);
    case UINT16: LOAD(uint16_t);
    case INT32: LOAD(int32_t);
    case UINT32: LOAD(uint32_t);
    case INT64: case UINT64: LOAD(int64_t);
    default: return (int64_t)load_real(from, type);
  }
}

void store_real(void *to, int type, double value) {
  switch (type) {
    case FLOAT16: STORE(uint16_t, to_half((float)value));
    case BFLOAT16: STORE(uint16_t, to_bfloat((float)value));
    case FLOAT32: STORE(float, value);
    case FLOAT64: STORE(double, value);
    case BOOL: STORE(char, value != 0);
    case UINT64: STORE(uint64_t, value);
    default: store_whole(to, type, (int64_t)value);
  }
}

void store_whole(void *to, int type, int64_t value) {
  switch (type) {
    case BOOL: STORE(char, value != 0);
    case INT8: case UINT8: STORE(int8_t, value);
    case INT16: case UINT16: STORE(int16_t, value);
    case INT32: case UINT32: STORE(int32_t, value);
    case INT64: case UINT64: STORE(int64_t, value);
    default: store_real(to, type, (double)value);
  }
}

double rounded(double value, int type) {
  char element[16];
  store_real(element, type, value);
  return load_real(element, type);
}
