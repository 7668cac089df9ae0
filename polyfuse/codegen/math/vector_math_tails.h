// Polynomials of the functions in vector_math_elementary.h and vector_math_gamma.h: near-minimax fits (Chebyshev nodes) of
// relative error on the reduced range.

// (atan(t) - t) / t^3 in z = t^2, |t| <= 1.
PF_INLINE float pf_atan_tail_f32(float z) {
  float p = -0.000936299446f * z + 0.00620725472f;
  p = p * z + -0.0192610808f;
  p = p * z + 0.0383274443f;
  p = p * z + -0.057607159f;
  p = p * z + 0.0741749704f;
  p = p * z + -0.0903674215f;
  p = p * z + 0.111047067f;
  p = p * z + -0.142853186f;
  p = p * z + 0.199999899f;
  return p * z + -0.333333343f;
}

// (asin(t) - t) / t^3 in z = t^2, |t| <= 1/2.
PF_INLINE float pf_asin_tail_f32(float z) {
  float p = 0.0336908475f * z + 0.0171492379f;
  p = p * z + 0.0311006624f;
  p = p * z + 0.0445994027f;
  p = p * z + 0.0750009418f;
  return p * z + 0.166666657f;
}

// (sinh(r) - r) / r^3 in z = r^2, |r| <= ln2 / 2.
PF_INLINE float pf_sinh_tail_f32(float z) {
  float p = 0.000198910799f * z + 0.00833331048f;
  return p * z + 0.166666672f;
}

// (cosh(r) - 1) / r^2 in z = r^2, |r| <= ln2 / 2.
PF_INLINE float pf_cosh_tail_f32(float z) {
  float p = 2.48680026e-05f * z + 0.00138888392f;
  p = p * z + 0.0416666679f;
  return p * z + 0.5f;
}

// The cube root of 1 + f for 1 + f in [sqrt(1/2), sqrt(2)), within 2^-19: one step of Halley makes all of it.
PF_INLINE float pf_cbrt_start_f32(float f) {
  float p = 0.0255660824f * f + -0.0443565063f;
  p = p * f + 0.0624521859f;
  p = p * f + -0.111000888f;
  p = p * f + 0.333315909f;
  return p * f + 0.999999404f;
}

// (1 + 2 a) exp(a^2) erfc(a) in q = (a - 3) / (a + 3), a >= 0. Within 2^-28: for f32.
PF_INLINE double pf_erfc_short_f64(double q) {
  double p = -0x1.1ee2dde80b0f6p-12 * q + -0x1.9d33c6e0731e5p-11;
  p = p * q + 0x1.06604be544440p-9;
  p = p * q + 0x1.51c0f4eeaaf58p-9;
  p = p * q + -0x1.85da0e7f986a4p-6;
  p = p * q + 0x1.17ba6e6564b82p-4;
  p = p * q + -0x1.e889ac0e27117p-4;
  p = p * q + 0x1.098437829e323p-3;
  p = p * q + -0x1.85a16921b7cc3p-5;
  p = p * q + -0x1.15c08a7ede16fp-3;
  return p * q + 0x1.40c522d752b2fp+0;
}

// (atan(t) - t) / t^3 in z = t^2, |t| <= 1.
PF_INLINE double pf_atan_tail_f64(double z) {
  double p = -0x1.8d087295ab9f4p-17 * z + 0x1.1f0adb240a1fbp-13;
  p = p * z + -0x1.8a2f3ae537bb1p-11;
  p = p * z + 0x1.57cc888719aa0p-9;
  p = p * z + -0x1.aef1a8e977bf8p-8;
  p = p * z + 0x1.a1fe88baf72d4p-7;
  p = p * z + -0x1.4b974a27ac39fp-6;
  p = p * z + 0x1.c3ac54a572735p-6;
  p = p * z + -0x1.147b2825d82f6p-5;
  p = p * z + 0x1.3d3f26d5ea7ffp-5;
  p = p * z + -0x1.60ebd1489b946p-5;
  p = p * z + 0x1.854a7b99af61dp-5;
  p = p * z + -0x1.af00bd568a3d2p-5;
  p = p * z + 0x1.e1dc0d7679adcp-5;
  p = p * z + -0x1.1110bfea8ed5ep-4;
  p = p * z + 0x1.3b13aaf4aba4ap-4;
  p = p * z + -0x1.745d16f26d0a3p-4;
  p = p * z + 0x1.c71c71c472843p-4;
  p = p * z + -0x1.249249248c7dap-3;
  p = p * z + 0x1.99999999998f9p-3;
  return p * z + -0x1.5555555555555p-2;
}

// (asin(t) - t) / t^3 in z = t^2, |t| <= 1/2.
PF_INLINE double pf_asin_tail_f64(double z) {
  double p = 0x1.e529c6fce9bb4p-6 * z + -0x1.3b416bb7d9257p-6;
  p = p * z + 0x1.406192d124629p-6;
  p = p * z + 0x1.8f193743418ffp-9;
  p = p * z + 0x1.31622469ce5adp-7;
  p = p * z + 0x1.3b49de7121487p-7;
  p = p * z + 0x1.7b027ee1dd585p-7;
  p = p * z + 0x1.c990ad3d8fdcap-7;
  p = p * z + 0x1.1c4efce23019fp-6;
  p = p * z + 0x1.6e8ba123e494cp-6;
  p = p * z + 0x1.f1c71c7a52ba3p-6;
  p = p * z + 0x1.6db6db6dac1e0p-5;
  p = p * z + 0x1.3333333333388p-4;
  return p * z + 0x1.5555555555555p-3;
}

// (sinh(r) - r) / r^3 in z = r^2, |r| <= ln2 / 2.
PF_INLINE double pf_sinh_tail_f64(double z) {
  double p = 0x1.61bff1c64f494p-33 * z + 0x1.ae642c5c1fa33p-26;
  p = p * z + 0x1.71de3a5aaefb9p-19;
  p = p * z + 0x1.a01a01a01969bp-13;
  p = p * z + 0x1.1111111111111p-7;
  return p * z + 0x1.5555555555555p-3;
}

// (cosh(r) - 1) / r^2 in z = r^2, |r| <= ln2 / 2.
PF_INLINE double pf_cosh_tail_f64(double z) {
  double p = 0x1.944cc8cd82b19p-37 * z + 0x1.1eed70f498346p-29;
  p = p * z + 0x1.27e4fb7c785a9p-22;
  p = p * z + 0x1.a01a01a0192cep-16;
  p = p * z + 0x1.6c16c16c16c18p-10;
  p = p * z + 0x1.5555555555555p-5;
  return p * z + 0x1.0000000000000p-1;
}

// The cube root of 1 + f for 1 + f in [sqrt(1/2), sqrt(2)), within 2^-19: one step of Halley makes all of it.
PF_INLINE double pf_cbrt_start_f64(double f) {
  double p = 0x1.a2dfec4a72870p-6 * f + -0x1.6b5e55f526a69p-5;
  p = p * f + 0x1.ff9bb93f8cb25p-5;
  p = p * f + -0x1.c6a8dee40bbcbp-4;
  p = p * f + 0x1.5550c4cba5158p-2;
  return p * f + 0x1.ffffeb4382a69p-1;
}

// (1 + 2 a) exp(a^2) erfc(a) in q = (a - 4) / (a + 4), a >= 0.
PF_INLINE double pf_erfc_factor_f64(double q) {
  double p = -0x1.f47207b168acdp-30 * q + -0x1.d5bb4c6d5b92dp-27;
  p = p * q + -0x1.09198a32cd9a9p-27;
  p = p * q + 0x1.ef6c0c38d1a2bp-24;
  p = p * q + 0x1.0d535fce28f99p-24;
  p = p * q + -0x1.c05fc977974eap-21;
  p = p * q + 0x1.4392983419eddp-22;
  p = p * q + 0x1.7fb88e391a9fep-18;
  p = p * q + -0x1.78a43458cca4bp-17;
  p = p * q + -0x1.996ad056e530bp-16;
  p = p * q + 0x1.3be0b393ee921p-13;
  p = p * q + -0x1.a1de7c6e9ac9cp-13;
  p = p * q + -0x1.8d4a9dc0d22f3p-11;
  p = p * q + 0x1.49c671893963fp-8;
  p = p * q + -0x1.0962388367b2fp-6;
  p = p * q + 0x1.3079edfa1033fp-5;
  p = p * q + -0x1.0fb06dfe46987p-4;
  p = p * q + 0x1.7fee004df6263p-4;
  p = p * q + -0x1.9ddb23c3e98a6p-4;
  p = p * q + 0x1.16ecefcfa6077p-4;
  p = p * q + 0x1.f7f5df66fd951p-7;
  p = p * q + -0x1.1df1ad154a29cp-3;
  return p * q + 0x1.3ba5916e9fd7fp+0;
}

// erf(t) / t in z = t^2, |t| <= 0.6.
PF_INLINE double pf_erf_near_f64(double z) {
  double p = -0x1.1e753aafbaf11p-30 * z + 0x1.f6dffd0071295p-27;
  p = p * z + -0x1.5f41b2f01140ap-23;
  p = p * z + 0x1.b9e4a269292d0p-20;
  p = p * z + -0x1.f4d24ca7aef0bp-17;
  p = p * z + 0x1.f9a326ae5a4e5p-14;
  p = p * z + -0x1.c02db3ff50947p-11;
  p = p * z + 0x1.565bcd0e686e9p-8;
  p = p * z + -0x1.b82ce31288b08p-6;
  p = p * z + 0x1.ce2f21a042be1p-4;
  p = p * z + -0x1.812746b0379e7p-2;
  return p * z + 0x1.20dd750429b6dp+0;
}

// lgamma(2 + s) / s, |s| <= 1/2.
PF_INLINE double pf_lgamma_near_f64(double s) {
  double p = 0x1.11fa5e7c86f7bp-24 * s + -0x1.2009c1a550d0dp-23;
  p = p * s + 0x1.b40adb09a1e12p-23;
  p = p * s + -0x1.ce17528bcf460p-22;
  p = p * s + 0x1.012012be3900ap-20;
  p = p * s + -0x1.1276ebd557fb0p-19;
  p = p * s + 0x1.258f3057730fap-18;
  p = p * s + -0x1.3cb3be36ad88bp-17;
  p = p * s + 0x1.580e0afa55850p-16;
  p = p * s + -0x1.78de9ab752b81p-15;
  p = p * s + 0x1.a127afee53e7dp-14;
  p = p * s + -0x1.d3fd4b679c1c4p-13;
  p = p * s + 0x1.0b36af8779ca0p-11;
  p = p * s + -0x1.38ac5c2d48207p-10;
  p = p * s + 0x1.7add6eadb5317p-9;
  p = p * s + -0x1.e404fc218dbaep-8;
  p = p * s + 0x1.51322ac7d848ap-6;
  p = p * s + -0x1.13e001a55760ap-4;
  p = p * s + 0x1.4a34cc4a60fa6p-2;
  return p * s + 0x1.b0ee6072093cep-2;
}

// a (lgamma(a) - (a - 1/2) log(a) + a - log(2 pi) / 2) in z = a^-2, a >= 8: Stirling's series.
PF_INLINE double pf_lgamma_far_f64(double z) {
  double p = 0x1.4bffc9d8b455bp-8 * z + -0x1.ef8d748aeb0f2p-10;
  p = p * z + 0x1.b92c33f9445e5p-11;
  p = p * z + -0x1.38134d4f8896fp-11;
  p = p * z + 0x1.a01a017dcf9e1p-11;
  p = p * z + -0x1.6c16c16c149f4p-9;
  return p * z + 0x1.5555555555555p-4;
}

// digamma(y) / (y - y0) in s = y - y0 for y in [1, 2]; y0 is its zero.
PF_INLINE double pf_digamma_near_f64(double s) {
  double p = 0x1.f255c4568ac4dp-14 * s + -0x1.240948d22d468p-12;
  p = p * s + 0x1.26295f0593efbp-12;
  p = p * s + -0x1.2a1fc057e6926p-12;
  p = p * s + 0x1.eeb63ac1d9595p-12;
  p = p * s + -0x1.8bcc0b751e398p-11;
  p = p * s + 0x1.1dc4e258eabcdp-10;
  p = p * s + -0x1.9caaeb515882dp-10;
  p = p * s + 0x1.2dd82689f2bbbp-9;
  p = p * s + -0x1.b9b8b82225d53p-9;
  p = p * s + 0x1.42e651172a51bp-8;
  p = p * s + -0x1.d827c859dea8dp-8;
  p = p * s + 0x1.59559c1cf5f48p-7;
  p = p * s + -0x1.f97051520041ep-7;
  p = p * s + 0x1.723d69292499dp-6;
  p = p * s + -0x1.0fa7ec371be39p-5;
  p = p * s + 0x1.8fce02ae2495cp-5;
  p = p * s + -0x1.27baba2616b8fp-4;
  p = p * s + 0x1.b9a5b63716ca7p-4;
  p = p * s + -0x1.4fc1317257e68p-3;
  p = p * s + 0x1.08b4294d50355p-2;
  p = p * s + -0x1.c563b54aa1a35p-2;
  return p * s + 0x1.ef72bc8ee38acp-1;
}

// a^2 (log(a) - 1 / (2 a) - digamma(a)) in z = a^-2, a >= 10.
PF_INLINE double pf_digamma_far_f64(double z) {
  double p = -0x1.5e57d05c6fc3dp-2 * z + 0x1.4f05a054f4db8p-4;
  p = p * z + -0x1.59609637f3c51p-6;
  p = p * z + 0x1.f07b24fc36f2dp-8;
  p = p * z + -0x1.1111106fd5075p-8;
  p = p * z + 0x1.04104103dcfb0p-8;
  p = p * z + -0x1.11111111110dfp-7;
  return p * z + 0x1.5555555555555p-4;
}

// sin(pi r) / r in z = r^2, |r| <= 1/2.
PF_INLINE double pf_sinpi_f64(double z) {
  double p = 0x1.9d462020fcc78p-21 * z + -0x1.6f7acdb8f6580p-16;
  p = p * z + 0x1.e8f3675ee37ddp-12;
  p = p * z + -0x1.e3074dfaf87afp-8;
  p = p * z + 0x1.5078348551854p-4;
  p = p * z + -0x1.32d2cce627c86p-1;
  p = p * z + 0x1.466bc6775aa7dp+1;
  p = p * z + -0x1.4abbce625be52p+2;
  return p * z + 0x1.921fb54442d18p+1;
}

// cos(pi r) in z = r^2, |r| <= 1/2.
PF_INLINE double pf_cospi_f64(double z) {
  double p = -0x1.2084dd432a1bep-23 * z + 0x1.209de0f1701fdp-18;
  p = p * z + -0x1.b6e1921f719a3p-14;
  p = p * z + 0x1.f9d3881e49dfdp-10;
  p = p * z + -0x1.a6d1f29e543bcp-6;
  p = p * z + 0x1.e1f5068913c52p-3;
  p = p * z + -0x1.55d3c7e3cbf5ep+0;
  p = p * z + 0x1.03c1f081b5ac3p+2;
  p = p * z + -0x1.3bd3cc9be45dep+2;
  return p * z + 0x1.0000000000000p+0;
}
