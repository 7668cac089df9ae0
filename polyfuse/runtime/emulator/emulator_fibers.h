// Stacks and the switch between them: what a thread of a block needs only once it waits.
//
// A context is one word. On x86-64 it is the stack pointer, where the six saved registers lie; elsewhere it is
// the address of a ucontext_t at the low end of the stack (ten times slower: it calls the system).

#include <sys/mman.h>
#if !defined(__x86_64__) || !defined(__ELF__) || defined(PF_EMU_UCONTEXT)
#define PF_EMU_PORTABLE 1
#include <ucontext.h>
#endif

typedef void* Context;

namespace {

constexpr size_t kColour = 9 * 64;   // so that the tops of neighbouring stacks meet different sets of a cache
constexpr int kSlab = 64;            // stacks mapped at once
constexpr size_t kGuard = 64 << 10;  // below them, without access
constexpr size_t kCanary = 64;       // at the low end of a stack: stays zero, and takes no memory to stay so

struct Stack {
  char* low;
  char* top;
  bool whole() const {
    uint64_t any = 0;
    for (size_t k = 0; k < kCanary / 8; ++k) any |= ((const uint64_t*)low)[k];
    return any == 0;
  }
};

// All stacks of the process, of one size; they are kept for later launches.
class Stacks {
 public:
  // Before a launch: nothing runs on any of them.
  void prepare(size_t bytes) {
    if (bytes > bytes_) {
      for (void* slab : slabs_) munmap(slab, slab_bytes_);
      slabs_.clear();
      all_.clear();
      bytes_ = bytes;
      slab_bytes_ = kGuard + kSlab * (bytes_ + kColour);
    }
    free_ = all_;
  }

  Stack take() {
    if (free_.empty()) map();
    Stack s = free_.back();
    free_.pop_back();
    return s;
  }

  void give(Stack s) { free_.push_back(s); }

 private:
  void map() {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* slab = mmap(nullptr, slab_bytes_, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (slab == MAP_FAILED) abort();
#ifdef MADV_NOHUGEPAGE
    madvise(slab, slab_bytes_, MADV_NOHUGEPAGE);  // few pages of each stack are ever touched
#endif
    mprotect(slab, kGuard, PROT_NONE);
    slabs_.push_back(slab);
    for (int k = 0; k < kSlab; ++k) {
      char* low = (char*)slab + kGuard + k * (bytes_ + kColour);
      all_.push_back({low, low + bytes_});
      free_.push_back(all_.back());
    }
  }

  size_t bytes_ = 0, slab_bytes_ = 0;
  std::vector<void*> slabs_;
  std::vector<Stack> all_, free_;
};

#ifndef PF_EMU_PORTABLE

extern "C" void pf_emu_switch(Context* from, Context to);
asm(R"(
.text
.p2align 4
.globl pf_emu_switch
.hidden pf_emu_switch
.type pf_emu_switch,@function
pf_emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size pf_emu_switch, .-pf_emu_switch
)");

inline void switch_context(Stack*, Context* from, Context to) { pf_emu_switch(from, to); }

// A context that enters `run`, which never returns, on a fresh stack.
inline Context fresh_context(Stack s, void (*run)()) {
  void** p = (void**)((uintptr_t)s.top & ~(uintptr_t)63);
  *--p = nullptr;  // where `run` would return to: the stack is aligned at its entry as after a call
  *--p = (void*)run;
  for (int k = 0; k < 6; ++k) *--p = nullptr;
  return p;
}

#else

ucontext_t main_context;

inline ucontext_t* place_of(Stack* s) {
  return s ? (ucontext_t*)(s->low + kCanary) : &main_context;
}

inline void switch_context(Stack* own, Context* from, Context to) {
  ucontext_t* place = place_of(own);
  *from = place;
  swapcontext(place, (ucontext_t*)to);
}

inline Context fresh_context(Stack s, void (*run)()) {
  ucontext_t* place = place_of(&s);
  getcontext(place);
  char* low = (char*)(place + 1);
  place->uc_stack.ss_sp = low;
  place->uc_stack.ss_size = (size_t)(s.top - low);
  place->uc_link = nullptr;
  makecontext(place, run, 0);
  return place;
}

#endif

}  // namespace
