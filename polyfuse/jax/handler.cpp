// A call from XLA: its buffers go into the pointer table of a layout, and kernels run.  There is no Python in it.
//
// Programs of XLA name a layout by a text that is the same in every process, never by an address: they may be kept on
// disk. `calls.py` registers layouts before XLA gets to know their names.

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "xla/ffi/api/ffi.h"

#include "launcher.h"

namespace {

namespace ffi = xla::ffi;

constexpr uintptr_t kLine = 64;

std::shared_mutex lock;
std::unordered_map<std::string, const pf_layout*> layouts;

const pf_layout* layout_of(std::string_view name) {
  std::shared_lock<std::shared_mutex> held(lock);
  const auto found = layouts.find(std::string(name));
  return found == layouts.end() ? nullptr : found->second;
}

ffi::Error call(ffi::RemainingArgs arguments, ffi::RemainingRets results, std::string_view name) {
  const pf_layout* l = layout_of(name);
  if (!l) return ffi::Error::Internal("polyfuse: these kernels are not loaded in this process");
  if (int64_t(arguments.size()) != l->narguments || int64_t(results.size()) < l->nresults)
    return ffi::Error::Internal("polyfuse: a call has other arguments than its kernels");
  std::vector<char*> pointers(size_t(l->buffers), nullptr);
  for (int64_t k = 0; k < l->narguments; ++k) {
    const ffi::AnyBuffer buffer = *arguments.get<ffi::AnyBuffer>(size_t(k));
    char* data = static_cast<char*>(buffer.untyped_data());
    const pf_argument& a = l->arguments[k];
    if (int64_t(buffer.size_bytes()) != a.nbytes) return ffi::Error::Internal("polyfuse: a buffer has another size");
    if (a.nbytes && reinterpret_cast<uintptr_t>(data) % uintptr_t(a.align))
      return ffi::Error::Internal("polyfuse: a buffer is not aligned");
    pointers[size_t(a.place)] = data;
    if (a.also >= 0) pointers[size_t(a.also)] = data;
  }
  for (int64_t k = 0; k < l->nresults; ++k) {
    const ffi::AnyBuffer buffer = **results.get<ffi::AnyBuffer>(size_t(k));
    const pf_result& r = l->results[k];
    int64_t elements = 1;
    for (int64_t d = 0; d < r.rank; ++d) elements *= r.extents[d];
    if (int64_t(buffer.element_count()) != elements)
      return ffi::Error::Internal("polyfuse: a result has another size");
    pointers[size_t(r.place)] = static_cast<char*>(buffer.untyped_data());
  }
  std::unique_ptr<char, decltype(&std::free)> space(nullptr, &std::free);
  if (l->nspaces) {
    space.reset(static_cast<char*>(std::malloc(size_t(l->space_bytes) + kLine)));
    if (!space) return ffi::Error(ffi::ErrorCode::kResourceExhausted, "polyfuse: no memory for temporaries");
    char* base = space.get() + (kLine - reinterpret_cast<uintptr_t>(space.get()) % kLine) % kLine;
    for (int64_t k = 0; k < l->nspaces; ++k) pointers[size_t(l->spaces[k].place)] = base + l->spaces[k].offset;
  }
  int64_t status = 0;
  pointers[size_t(l->buffers - 1)] = reinterpret_cast<char*>(&status);
  if (l->run(l->steps, l->nsteps, pointers.data(), l->numbers, l->scratch, l->flags))
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, "polyfuse: no memory");
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(polyfuse_call, call,
                              ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attr<std::string_view>("name"));

extern "C" void polyfuse_register(const char* name, const pf_layout* layout) {
  std::unique_lock<std::shared_mutex> held(lock);
  layouts[name] = layout;
}
