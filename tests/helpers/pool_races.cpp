// A program for ThreadSanitizer: steps that read what other threads wrote in the step before, in one call, in
// series and from several callers at once, while workers spin, sleep, come and go. It ends with the number of
// wrong elements.

#include POOL

#include <cstdio>
#include <thread>
#include <vector>

namespace {

// y[k] = x[n - 1 - k] + 1, of the round that the iterations are in.
void turn(char* const* buf, const int64_t* num, char* scratch, int64_t begin, int64_t end) {
  const int64_t n = num[0];
  const int64_t* x = reinterpret_cast<const int64_t*>(buf[0]);
  int64_t* y = reinterpret_cast<int64_t*>(buf[1]);
  int64_t* own = reinterpret_cast<int64_t*>(scratch);
  for (int64_t k = begin; k < end; ++k) {
    own[0] = x[n - 1 - k % n];
    y[k % n] = own[0] + 1;
  }
}

void back(char* const* buf, const int64_t* num, char* scratch, int64_t begin, int64_t end) {
  char* const swapped[] = {buf[1], buf[0]};
  turn(swapped, num, scratch, begin, end);
}

void plus_one_alone(char* const* buf, const int64_t* num, char*, int64_t, int64_t) {
  for (int64_t k = 0; k < num[0]; ++k) reinterpret_cast<int64_t*>(buf[0])[k] += 1;
}

// Wrong elements after some calls of some rounds each.
int64_t calls(int64_t n, int count, int64_t rounds, int64_t chunk) {
  std::vector<int64_t> x(n), y(n);
  char* buf[] = {reinterpret_cast<char*>(x.data()), reinterpret_cast<char*>(y.data())};
  const int64_t num[] = {n};
  const pf_step steps[] = {
      {turn, n, chunk, 1, 2, rounds}, {back, n, chunk, 1, 1, 1}, {plus_one_alone, 1, 1, 0, 1, 1}};
  for (int64_t k = 0; k < n; ++k) x[k] = k;
  for (int c = 0; c < count; ++c) pf_run(steps, 3, buf, num, 64 << c % 3, 1);
  int64_t wrong = 0;
  for (int64_t k = 0; k < n; ++k) wrong += x[k] != k + count * (2 * rounds + 1);
  return wrong;
}

}  // namespace

int main() {
  int64_t wrong = 0;
  for (int threads : {4, 2, 5, 3}) {
    pf_set_threads(threads);
    for (int64_t spin : {int64_t(0), int64_t(1000 * 1000)}) {
      pf_set_spin(spin);
      wrong += calls(200, 40, 3, 7);
      int64_t of_others[3] = {};
      std::vector<std::thread> callers;
      for (int64_t& mine : of_others) callers.emplace_back([&mine] { mine = calls(60, 40, 2, 4); });
      for (std::thread& caller : callers) caller.join();
      for (int64_t each : of_others) wrong += each;
    }
  }
  std::printf("%lld wrong\n", static_cast<long long>(wrong));
  return wrong != 0;
}
