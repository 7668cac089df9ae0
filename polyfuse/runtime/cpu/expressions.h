// Expressions of sizes, computed when a call comes: a part of both launchers.

#pragma once

struct pf_operation { int64_t code, value; };  // 0 a number, 1 a size, 2 + 3 - 4 * 5 // 6 % 7 min 8 max
struct pf_expression { const pf_operation* operations; int64_t count; };
struct pf_condition { int64_t op; pf_expression left, right; };  // 0 == 1 != 2 < 3 <= 4 > 5 >=

// A size is (extent - offset) / factor; argument -1: it is offset.
struct pf_source { int64_t argument, axis, factor, offset; };

constexpr int64_t kStack = 32;

inline int64_t floor_div(int64_t a, int64_t b) { return a / b - ((a % b != 0) && ((a < 0) != (b < 0))); }

// The value of an expression, in postfix; false where it has none in 64 bits.
inline bool value_of(const pf_expression& e, const int64_t* sizes, int64_t* value) {
  int64_t stack[kStack];
  int64_t top = 0;
  for (int64_t k = 0; k < e.count; ++k) {
    const pf_operation& o = e.operations[k];
    if (o.code == 0 || o.code == 1) {
      stack[top++] = o.code == 0 ? o.value : sizes[o.value];
      continue;
    }
    const int64_t b = stack[--top], a = stack[--top];
    int64_t c = 0;
    bool bad = false;
    switch (o.code) {
      case 2: bad = __builtin_add_overflow(a, b, &c); break;
      case 3: bad = __builtin_sub_overflow(a, b, &c); break;
      case 4: bad = __builtin_mul_overflow(a, b, &c); break;
      case 5: bad = b == 0 || b == -1; if (!bad) c = floor_div(a, b); break;
      case 6: bad = b == 0 || b == -1; if (!bad) c = a - b * floor_div(a, b); break;
      case 7: c = std::min(a, b); break;
      default: c = std::max(a, b); break;
    }
    if (bad) return false;
    stack[top++] = c;
  }
  *value = stack[0];
  return true;
}

inline bool holds(const pf_condition& c, const int64_t* sizes) {
  int64_t a, b;
  if (!value_of(c.left, sizes, &a) || !value_of(c.right, sizes, &b)) return false;
  switch (c.op) {
    case 0: return a == b;
    case 1: return a != b;
    case 2: return a < b;
    case 3: return a <= b;
    case 4: return a > b;
    default: return a >= b;
  }
}

// The product of extents and the bytes of an element, each extent at least 0; false beyond 62 bits.
inline bool bytes_of(const int64_t* extents, int64_t rank, int64_t itemsize, int64_t* bytes) {
  int64_t found = itemsize;
  for (int64_t d = 0; d < rank; ++d)
    if (extents[d] < 0 || __builtin_mul_overflow(found, extents[d], &found)) return false;
  *bytes = found;
  return found <= INT64_C(1) << 62;
}
