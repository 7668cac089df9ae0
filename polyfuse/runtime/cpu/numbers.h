// Python numbers as kernels read them: a part of both launchers (for kernels of a CPU, and of a GPU).
//
// A kind is what the number is in Python, a code what the kernel reads: its place in `launcher.CODES`.

constexpr int64_t kFloat = 1, kInt = 2, kBool = 3;

template <class T, class From>
inline bool store(int64_t* cell, From value) {
  const T x = static_cast<T>(value);
  std::memcpy(cell, &x, sizeof x);
  return true;
}

template <class T>
inline bool store_if_fits(int64_t* cell, long long value) {
  return static_cast<T>(value) == value && store<T>(cell, value);
}

// The nearest f16, ties to even, as bits.
uint16_t half(double x) {
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  if (x != x) return sign | 0x7e00;
  x = std::fabs(x);
  if (x >= 65520) return sign | 0x7c00;
  const int exponent = std::max(std::ilogb(x), -14);  // smaller ones are denormal
  return uint16_t(sign + ((exponent + 14) << 10) + int(std::nearbyint(std::ldexp(x, 10 - exponent))));
}

// The nearest bf16 of the nearest f32, as NumPy finds it; ties to even.
uint16_t brain(float x) {
  uint32_t b;
  std::memcpy(&b, &x, sizeof b);
  if (x != x) return uint16_t((b >> 16 & 0x8000) | 0x7fc0);
  return uint16_t((b + 0x7fff + (b >> 16 & 1)) >> 16);
}

// A Python number as the kernel reads it; false if it does not fit.
bool number(int64_t kind, int64_t code, Object item, int64_t* cell) {
  if (kind == kFloat) {
    const double x = py.float_value(item);
    switch (code) {
      case 0: return store<double>(cell, x);
      case 1: return store<float>(cell, x);
      case 2: return store<uint16_t>(cell, half(x));
      case 9: return store<uint16_t>(cell, brain(float(x)));
      default: return false;
    }
  }
  long long x = item == py.yes;
  int overflow = 0;
  if (kind == kInt) x = py.int_value(item, &overflow);
  if (overflow) return false;
  switch (code) {
    case 0: return store<double>(cell, x);
    case 1: return store<float>(cell, x);
    case 2: return store<uint16_t>(cell, half(double(x)));
    case 3: return store_if_fits<int64_t>(cell, x);
    case 4: return store_if_fits<int32_t>(cell, x);
    case 5: return store_if_fits<int16_t>(cell, x);
    case 6: return store_if_fits<int8_t>(cell, x);
    case 7: return store_if_fits<uint8_t>(cell, x);
    case 8: return kind == kBool && store<uint8_t>(cell, x);
    case 9: return store<uint16_t>(cell, brain(float(x)));
    case 10: return store_if_fits<uint16_t>(cell, x);
    case 11: return store_if_fits<uint32_t>(cell, x);
    case 12: return x >= 0 && store<uint64_t>(cell, x);
    default: return false;
  }
}
