"""The modes of a thread's floating-point arithmetic, for libraries of tests."""

# FTZ and DAZ, bits 15 and 6 of the control register.
FLUSH = """
extern "C" void flush(int on) {
#ifdef __x86_64__
  __builtin_ia32_ldmxcsr(on ? __builtin_ia32_stmxcsr() | 0x8040u : __builtin_ia32_stmxcsr() & ~0x8040u);
#endif
}
"""
